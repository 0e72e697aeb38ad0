"""Directions in which a proved rule leaves the range of floating point are not taken."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from graphs import f32, graph, op
from roofline import Roofline

from superopt.ir.graph import constant
from superopt.rules.grammar import parse_rule
from superopt.rules.typing import instances
from superopt.search import SearchOptions, search
from superopt.search.overflow import overflows

CASES = {
    "Div(Exp(x), ReduceSum(Exp(x), axes=[-1], keepdims=1)) = Softmax(x, axis=-1)": (False, True),
    "Sub(x, Log(ReduceSum(Exp(x), axes=[-1], keepdims=1))) = LogSoftmax(x, axis=-1)": (False, True),
    "Log(Add(Exp(x), 1.0)) = Softplus(x)": (False, True),
    "Reciprocal(Add(Exp(Neg(x)), 1.0)) = Sigmoid(x)": (False, False),  # the reciprocal of infinity is 0
    "Exp(Add(x, y)) = Mul(Exp(x), Exp(y))": (True, False),  # exp(100) exp(-200)
    "Mul(x, x) = Pow(x, 2.0)": (False, False),
    "Concat(Exp(x), Exp(y), axis=-1) = Exp(Concat(x, y, axis=-1))": (False, False),
}


def rule(text: str):
    lhs, rhs = text.split(" = ")
    names = {name: "f[m, n]" for name in "xy" if f"({name}" in text or f" {name}" in text}
    return parse_rule({"id": "it", "forall": names, "lhs": [lhs], "rhs": [rhs]})


@pytest.mark.parametrize(("text", "expected"), CASES.items())
def test_which_directions_overflow(text: str, expected: tuple[bool, bool]) -> None:
    plain = instances(rule(text))[0]
    assert (overflows(plain, backward=False), overflows(plain, backward=True)) == expected


class Dear(Roofline):
    """A device on which one operator is dear."""

    def __init__(self, dear: str) -> None:
        super().__init__()
        self.dear = dear

    def application(self, op, *args, **kwargs):
        found = super().application(op, *args, **kwargs)
        return replace(found, us=found.us + 1000.0) if op == self.dear else found


def test_softmax_is_put_together_but_not_taken_apart() -> None:
    known = [rule(next(iter(CASES)))]
    axes = constant("axes", np.array([-1]))
    apart = graph(
        {"x": f32(4, 16)}, ["y"], [axes],
        [op("Exp", "e", "x"), op("ReduceSum", "s", "e", "axes", keepdims=1), op("Div", "y", "e", "s")],
    )  # fmt: skip
    together = graph({"x": f32(4, 16)}, ["y"], [], [op("Softmax", "y", "x", axis=-1)])
    assert [n.op for n in search(apart, known, Dear("Exp"), SearchOptions(cache=False)).graph.nodes] == ["Softmax"]
    assert search(together, known, Dear("Softmax"), SearchOptions(cache=False)).graph is together

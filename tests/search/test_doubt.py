"""What a search does of a plan whose gain is partly in doubt."""

from __future__ import annotations

import numpy as np
from graphs import f32, graph, op
from roofline import Roofline

from superopt.cost.record import Estimate
from superopt.ir.graph import constant
from superopt.rules.grammar import parse_rule
from superopt.search import SearchOptions, search

PRICES = {"Where": Estimate(1000.0, "measured"), "Sub": Estimate(1500.0, "measured")}


class Doubtful(Roofline):
    """A device on which nobody has timed an Add."""

    def __init__(self, sigma: float) -> None:
        super().__init__()
        self.prices = {**PRICES, "Add": Estimate(1000.0, "roofline", sigma)}

    def application(self, op, *args, **kwargs):
        return self.prices.get(op) or super().application(op, *args, **kwargs)


def operators(sigma: float) -> list[str]:
    rules = [
        parse_rule({"id": "sum", "forall": {"x": "f[m, n]", "y": "f[m, n]"}, "lhs": ["Sub(x, y)"],
                    "rhs": ["Add(x, Neg(y))"]}),
        parse_rule({"id": "mask", "forall": {"c": "b[m, n]", "x": "f[m, n]"}, "lhs": ["Where(c, x, 0.0)"],
                    "rhs": ['Mul(x, Cast(c, to="float32"))']}),
    ]  # fmt: skip
    model = graph(
        {"x": f32(4, 16), "y": f32(4, 16)}, ["o"], [constant("zero", np.float32(0))],
        [op("Greater", "c", "y", "zero"), op("Where", "z", "c", "x", "zero"), op("Sub", "o", "z", "y")],
    )  # fmt: skip
    return sorted(n.op for n in search(model, rules, Doubtful(sigma), SearchOptions(cache=False)).graph.nodes)


def test_what_is_sure_is_done_without_what_is_in_doubt() -> None:
    assert operators(sigma=0.05) == ["Add", "Cast", "Greater", "Mul", "Neg"]
    assert operators(sigma=1.0) == ["Cast", "Greater", "Mul", "Sub"]

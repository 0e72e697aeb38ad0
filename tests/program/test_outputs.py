"""Outputs that become constants, inputs or each other, and models that have such outputs to begin with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from as_run import as_run, searched, typed
from graphs import f32, feeds_of, graph, op, weight
from rules_for_tests import rules

from superopt.ir.graph import constant
from superopt.rules.grammar import parse_rule

X = {"x": f32(3, 4)}
FILLED = 'ConstantOfShape(shape=[m, n], value={}, dtype="float32")'
RULES = (
    *rules("relu-relu", "transpose-transpose", "mul-one", "assoc"),
    *(parse_rule({"id": f"out-{i}", "forall": {"x": "f[m, n]"}, "lhs": [left], "rhs": [right]})
      for i, (left, right) in enumerate([
          ("Neg(Neg(x))", "x"), ("HardSigmoid(x, alpha=0.0, beta=0.5)", FILLED.format(0.5)),
          ("Sub(x, x)", FILLED.format(0.0)), ("Identity(x)", "x"),
      ])),
)  # fmt: skip
FLAT = op("HardSigmoid", "h", "r", alpha=0.0, beta=0.5)
W = constant("w", np.arange(12, dtype=np.float32).reshape(3, 4) / 7)

MODELS = {
    "a constant": (["y"], [], [op("Relu", "r", "x"), FLAT, op("Neg", "n", "h"), op("Neg", "y", "n")]),
    "a computed constant": (["y"], [W], [op("Relu", "r", "x"), FLAT, op("Mul", "p", "h", "w"), op("Exp", "y", "p")]),
    "two equal constants": (["y", "z"], [], [op("Relu", "r", "x"), FLAT, op("Neg", "n", "h"), op("Neg", "y", "n"),
                                             op("Sub", "d", "x", "x"), op("Add", "z", "d", "h")]),
    "a constant that is read on": (["h", "y"], [W], [op("Relu", "r", "x"), FLAT, op("Mul", "p", "h", "w"),
                                                     op("Add", "y", "p", "x")]),
    "an input": (["y"], [], [op("Transpose", "t", "x", perm=(1, 0)), op("Transpose", "y", "t", perm=(1, 0))]),
    "an input, twice": (["y", "z"], [], [op("Neg", "n", "x"), op("Neg", "y", "n"), op("Neg", "m", "x"),
                                         op("Neg", "z", "m")]),
    "each other": (["y", "z"], [], [op("Relu", "y", "x"), op("Relu", "z", "y")]),
    "each other, made apart": (["y", "z"], [], [op("Relu", "y", "x"), op("Relu", "z", "x")]),
    "a weight": (["y"], [W], [op("Neg", "n", "w"), op("Neg", "y", "n")]),
    "a weight, by way of the input": (["y"], [W], [op("Relu", "r", "x"), op("Sub", "d", "r", "r"),
                                              op("Add", "y", "d", "w")]),
    "an initializer already": (["w", "y"], [W], [op("Relu", "r", "x"), op("Relu", "y", "r")]),
    "an input already": (["x", "y"], [], [op("Relu", "r", "x"), op("Relu", "y", "r")]),
    "Identity already": (["i", "j", "y"], [W], [op("Identity", "i", "x"), op("Identity", "j", "w"),
                                                op("Relu", "r", "i"),
                                                op("Relu", "y", "r")]),
    "what the model computes of weights": (["k", "y"], [W], [op("Exp", "k", "w"), op("Relu", "r", "x"),
                                                             op("Relu", "q", "r"),
                                                             op("Add", "y", "q", "k")]),
    "what rules compute of weights": (["a", "y"], [weight("u", 4, 4), weight("v", 4, 4)], [
        op("MatMul", "a", "u", "v"), op("MatMul", "h", "x", "u"), op("MatMul", "y", "h", "v")]),
}  # fmt: skip
ZERO = (parse_rule({"id": "zero", "forall": {"x": "f[m, n]"}, "rhs": ["x"],
                    "lhs": [f"Add({FILLED.format(0.0)}, x)"]}),)  # fmt: skip


@pytest.mark.parametrize("case", MODELS)
def test_such_outputs_are_handed_out(case: str) -> None:
    outputs, weights, nodes = MODELS[case]
    model = graph(X, outputs, weights, nodes)
    result = searched(model, (*RULES, *ZERO))
    feeds = feeds_of(model)
    found, wanted = as_run(result.graph, feeds), as_run(typed(model), feeds)
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        sums = any(n.op == "MatMul" for n in nodes)  # which are made in another order
        np.testing.assert_allclose(found[name], array, rtol=2e-7, atol=1e-5 if sums else 0)
    made = {o for n in result.graph.nodes for o in n.outputs}
    before = {v.name for v in model.inputs} | {w.name for w in model.weights}
    assert {v.name for v in result.graph.outputs} <= made | before


@pytest.mark.parametrize("case", ["a constant", "an input", "an input, twice", "two equal constants"])
def test_nothing_is_computed_for_them(case: str) -> None:
    outputs, weights, nodes = MODELS[case]
    result = searched(graph(X, outputs, weights, nodes), (*RULES, *ZERO))
    assert {n.op for n in result.graph.nodes} == {"Identity"}


def test_a_constant_output_that_may_not_grow_is_made_by_nodes() -> None:
    """Shape-only weights have no elements to fold: the nodes that compute an output of them stay."""
    model = graph(X, ["y"], [W], [op("Relu", "r", "x"), FLAT, op("Mul", "p", "h", "w"), op("Exp", "y", "p")])
    model = replace(model, weights=tuple(replace(w, data=None) for w in model.weights))
    result = searched(model, (*RULES, *ZERO))
    assert "Exp" in {n.op for n in result.graph.nodes}
    assert "HardSigmoid" not in {n.op for n in result.graph.nodes}

"""Rules about the last axes of tensors of any rank apply to tensors of four and five axes."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import assert_equivalent, f32, graph, op, ops_of, weight
from roofline import Roofline

from superopt.egraph.rule_compiler import compile_rewrites
from superopt.ir.graph import Graph, constant
from superopt.ops.shape_inference import infer
from superopt.passes import SearchOptions, search
from superopt.program.graph_program import program_of
from superopt.rules import load_library

LIBRARY = load_library()
FOUR, FIVE = (2, 3, 40, 64), (2, 2, 3, 40, 64)
Shape = tuple[int, ...]


def _shifted_softmax(shape: Shape) -> Graph:
    nodes = [op("Add", "a", "x", "t"), op("Softmax", "y", "a", axis=len(shape) - 1)]
    return graph({"x": f32(*shape), "t": f32()}, ["y"], [], nodes)


def _largest_of_tanh(shape: Shape) -> Graph:
    nodes = [op("Tanh", "a", "x"), op("ReduceMax", "y", "a", "last", keepdims=0)]
    return graph({"x": f32(*shape)}, ["y"], [constant("last", np.array([-1]))], nodes)


def _shifted_norm(shape: Shape) -> Graph:
    nodes = [op("Add", "a", "x", "u"), op("LayerNormalization", "y", "a", "q", axis=-1, epsilon=1e-3)]
    return graph({"x": f32(*shape), "u": f32(*shape[:-1], 1)}, ["y"], [weight("q", shape[-1])], nodes)


def _products(shape: Shape) -> Graph:
    nodes = [op("MatMul", "a", "x", "v"), op("MatMul", "y", "a", "w")]
    return graph({"x": f32(*shape)}, ["y"], [weight("v", 64, 64), weight("w", 64, 64, seed=1)], nodes)


def _scaled_sum(shape: Shape) -> Graph:
    nodes = [op("Mul", "a", "x", "t"), op("Mul", "b", "z", "t"), op("Add", "y", "a", "b")]
    return graph({"x": f32(*shape), "z": f32(*shape)}, ["y"], [weight("t", shape[-1])], nodes)


@pytest.mark.parametrize("shape", [FOUR, FIVE], ids=["four", "five"])
@pytest.mark.parametrize(
    ("rule", "model", "result"),
    [
        ("normalisation-6ca0", _shifted_softmax, ["Softmax"]),
        ("reduce-070e", _largest_of_tanh, ["ReduceMax", "Tanh"]),
        ("normalisation-7b8e", _shifted_norm, ["LayerNormalization"]),
        ("matmul-5467", _products, ["MatMul"]),
        ("algebra-017e", _scaled_sum, ["Add", "Mul"]),
    ],
)
def test_a_rule_applies(rule: str, model, result: list[str], shape: Shape) -> None:
    before, costs = model(shape), Roofline()
    options = SearchOptions(cache=False)
    assert ops_of(search(before, (), costs, options).graph) == ops_of(before)
    (alone,) = LIBRARY.select(enable=[rule]).admitted
    after = search(before, (alone,), costs, options).graph
    assert ops_of(after) == result
    assert_equivalent(before, after)


def test_a_direction_that_makes_more_operators_is_for_few_axes() -> None:
    """``Mul(x, t)`` as ``Mul(x, Expand(t, shape=[k]))`` only prepares other rules."""
    model = _scaled_sum(FOUR)
    (rule,) = LIBRARY.select(enable=["reshape-ac6f"]).admitted
    patterns = compile_rewrites((rule,), program_of(model, infer(model))).every.patterns
    axes = {less: [] for less in (True, False)}
    for pattern in patterns:
        axes[pattern.source == pattern.rule.lhs].append(len(pattern.rule.tensors["x"].shape))
    assert axes == {True: [1, 2, 3, 4, 5], False: [1, 2, 3]}

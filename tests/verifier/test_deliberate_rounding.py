"""A result nearer to the reals than the original passes the check, unless the original may round on purpose."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from superopt.ir.graph import Graph, Node, Value, constant
from superopt.ir.types import DType, TensorType
from superopt.ops.shape_inference import infer
from superopt.pipeline import optimize
from superopt.verifier.check.deliberate_rounding import outputs_rounded_on_purpose
from superopt.verifier.check.differential import check

NUMBERS = {"C": 4097.0, "D": 4096.0, "M": 12582912.0, "k": 3.0, "one": 1.0, "two": 2.0, "half": 0.5, "zero": 0.0}
Steps = list[tuple[str, ...]]


def model(steps: Steps, dtype: DType = DType.FLOAT32, inputs: str = "x y z") -> Graph:
    """A graph of (operator, operands, result); a Cast's operator has its type behind a blank."""
    nodes = []
    for place, (op, reads, makes) in enumerate(steps):
        name, *to = op.split()
        attributes = {"to": int(to[0])} if to else {}
        nodes.append(Node(f"n{place}", name, tuple(reads.split()), (makes,), attributes))
    read = {name for _, reads, _ in steps for name in reads.split()}
    held = [constant(n, np.array(v, dtype.numpy)) for n, v in NUMBERS.items() if n in read]
    if "v" in read:
        held.append(constant("v", np.array([1e6, -3e5, 7e7, 2e6], dtype.numpy)))
    kind = TensorType(dtype, (6, 4))
    values = tuple(Value(n, kind) for n in inputs.split())
    return Graph("g", values, (Value("r", kind),), tuple(held), tuple(nodes), {"": 20}).checked()


MEANT: dict[str, tuple[Steps, Steps]] = {  # over the reals the second is the first
    "Veltkamp": (
        [("Mul", "x C", "a"), ("Sub", "a x", "b"), ("Sub", "a b", "r")], [("Identity", "x", "r")]),
    "coefficients nearly cancel": (
        [("Mul", "x C", "a"), ("Mul", "x D", "b"), ("Sub", "a b", "r")], [("Identity", "x", "r")]),
    "to the nearest integer": ([("Add", "x M", "a"), ("Sub", "a M", "r")], [("Identity", "x", "r")]),
    "to a multiple of 2": (
        [("Sum", "x M M", "a"), ("Sub", "a M", "b"), ("Sub", "b M", "r")], [("Identity", "x", "r")]),
    "by a vector": ([("Add", "x v", "a"), ("Sub", "a v", "r")], [("Identity", "x", "r")]),
    "past a Relu": (
        [("Relu", "x", "p"), ("Add", "p M", "a"), ("Sub", "a M", "r")], [("Relu", "x", "r")]),
    "FastTwoSum": (
        [("Add", "x y", "s"), ("Sub", "s x", "b"), ("Sub", "y b", "r")], [("Mul", "x zero", "r")]),
    "Kahan's compensation": (
        [("Add", "x y", "s"), ("Sub", "s x", "b"), ("Sub", "b y", "c"), ("Sub", "z c", "r")], [("Identity", "z", "r")]),
    "AccSum's high part, by a scale that is computed": (
        [("Mul", "y M", "a"), ("Add", "x a", "b"), ("Sub", "b a", "r")], [("Identity", "x", "r")]),
    "two rounded by one constant": (
        [("Add", "x M", "a"), ("Add", "y M", "b"), ("Sub", "a b", "r")], [("Sub", "x y", "r")]),
    "the error of a butterfly": (
        [("Add", "x y", "a"), ("Sub", "x y", "b"), ("Add", "a b", "c"), ("Add", "x x", "d"), ("Sub", "c d", "r")],
        [("Mul", "x zero", "r")]),
    "a cast down and up": ([("Cast 10", "x", "a"), ("Cast 1", "a", "r")], [("Identity", "x", "r")]),
    "of one expression, written twice": (
        [("Exp", "x", "e"), ("Add", "e y", "a"), ("Exp", "x", "f"), ("Sub", "a f", "r")], [("Identity", "y", "r")]),
}  # fmt: skip
BUTTERFLY = [("Add", "x y", "a"), ("Sub", "x y", "b")]
ORDINARY: dict[str, tuple[Steps, Steps]] = {
    "butterfly": ([*BUTTERFLY, ("Add", "a b", "r")], [("Mul", "x two", "r")]),
    "butterfly, the other output": ([*BUTTERFLY, ("Sub", "a b", "r")], [("Mul", "y two", "r")]),
    "Haar and back": (
        [*BUTTERFLY, ("Mul", "a half", "c"), ("Mul", "b half", "d"), ("Add", "c d", "r")], [("Identity", "x", "r")]),
    "mean of a butterfly": ([*BUTTERFLY, ("Mean", "a b", "r")], [("Identity", "x", "r")]),
    "before an operator": (
        [*BUTTERFLY, ("Add", "a b", "t"), ("Tanh", "t", "r")], [("Mul", "x two", "t"), ("Tanh", "t", "r")]),
    "offsets of an ordinary size": (
        [("Add", "x k", "a"), ("Add", "y k", "b"), ("Sub", "a b", "r")], [("Sub", "x y", "r")]),
    "both sides of one": (
        [("Add", "one x", "a"), ("Sub", "one x", "b"), ("Sub", "a b", "r")], [("Mul", "x two", "r")]),
    "a difference of squares": (
        [("Mul", "x x", "a"), ("Mul", "y y", "b"), ("Sub", "a b", "r")],
        [("Add", "x y", "a"), ("Sub", "x y", "b"), ("Mul", "a b", "r")]),
}  # fmt: skip


@pytest.mark.parametrize("name", MEANT)
def test_a_deliberate_rounding_must_stay(name: str) -> None:
    before, after = (model(steps) for steps in MEANT[name])
    assert outputs_rounded_on_purpose(before, infer(before)) >= {"r"}
    assert check(before, after).verdict == "failed"


@pytest.mark.parametrize("name", ORDINARY)
def test_a_result_nearer_to_the_reals_passes(name: str) -> None:
    before, after = (model(steps) for steps in ORDINARY[name])
    assert "r" not in outputs_rounded_on_purpose(before, infer(before))
    found = check(before, after)
    assert found.verdict == "passed", found.reason


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_so_it_does_in_narrow_types(dtype: DType) -> None:
    before, after = (model(steps, dtype) for steps in ORDINARY["butterfly"])
    found = check(before, after)
    assert found.verdict == "passed", found.reason


@pytest.mark.parametrize("name", ["butterfly", "a difference of squares"])
def test_a_result_further_from_the_reals_fails(name: str) -> None:
    after, before = (model(steps) for steps in ORDINARY[name])
    assert check(before, after).verdict == "failed"


def test_what_an_operator_without_a_meaning_makes_may_be_meant() -> None:
    node = Node("n", "Gridded", ("x",), ("a",), {}, domain="com.example")
    graph = Graph(
        "g", (Value("x", TensorType(DType.FLOAT32, (4,))),), (Value("r", None),), (),
        (node, Node("m", "Relu", ("a",), ("r",), {})), {"": 20, "com.example": 1},
    )  # fmt: skip
    assert {"a", "r"} <= outputs_rounded_on_purpose(graph, infer(graph))


def test_the_error_of_a_sum_over_elements_must_stay() -> None:
    kind, axes = TensorType(DType.FLOAT32, (6, 1)), constant("axes", np.array([1], np.int64))
    nodes = (
        Node("", "Concat", ("x", "y"), ("c",), {"axis": 1}), Node("", "ReduceSum", ("c", "axes"), ("s",), {}),
        Node("", "Sub", ("s", "x"), ("b",), {}), Node("", "Sub", ("b", "y"), ("r",), {}),
    )  # fmt: skip
    before = Graph("g", (Value("x", kind), Value("y", kind)), (Value("r", kind),), (axes,), nodes, {"": 20}).checked()
    assert "r" in outputs_rounded_on_purpose(before, infer(before))
    assert (
        check(before, replace(before, nodes=(Node("", "Sub", ("x", "x"), ("r",), {}),), weights=())).verdict == "failed"
    )


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64])
def test_a_constant_is_of_a_formats_scale_from_half_of_its_bits_on(dtype: DType) -> None:
    bits = int(ml_dtypes.finfo(dtype.numpy).nmant) + 1
    for power, meant in (((bits + 1) // 2, True), ((bits + 1) // 2 - 1, False)):
        kind = TensorType(dtype, (3,))
        nodes = (
            Node("", "Add", ("x", "C"), ("a",), {}), Node("", "Add", ("y", "C"), ("b",), {}),
            Node("", "Sub", ("a", "b"), ("r",), {}),
        )  # fmt: skip
        held = (constant("C", np.array(2.0**power, dtype.numpy)),)
        graph = Graph("g", (Value("x", kind), Value("y", kind)), (Value("r", kind),), held, nodes, {"": 20})
        assert ("r" in outputs_rounded_on_purpose(graph, infer(graph))) == meant


def test_a_long_sum_may_be_anything() -> None:
    steps = [("Mul", "x k", "s0")]
    for place in range(200):
        steps += [
            ("Sin" if place % 2 else "Cos", f"s{place}", f"f{place}"),
            ("Add", f"s{place} f{place}", f"s{place + 1}"),
        ]
    before = model([*steps, ("Relu", "s200", "r")])
    assert "r" in outputs_rounded_on_purpose(before, infer(before))


def test_a_butterfly_of_a_long_branch_is_rewritten() -> None:
    """Twelve operators, of which eleven make what cancels."""
    branch = [("Tanh", "Exp"), ("Exp", "Sqrt"), ("Sqrt", "Sigmoid"), ("Sigmoid", "Erf"), ("Erf", "Cos"), ("Cos", "Exp")]
    steps = [("Tanh", "y", "h0")]
    for place, (_, op) in enumerate(branch):
        steps.append((op, f"h{place}", f"h{place + 1}"))
    before = model([*steps, ("Add", "x h6", "a"), ("Sub", "x h6", "b"), ("Add", "a b", "r")], inputs="x y")
    result = optimize(before, target="profile:cpu-epyc-2core")
    assert result.report.check.verdict == "passed"
    assert len(result.graph.nodes) == 1

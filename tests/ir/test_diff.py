"""Differences of graphs, and the pieces in which a rewrite is checked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from superopt.ir.diff import changed_regions, compare, grown
from superopt.ir.graph import Graph, Node, Value, constant
from superopt.ir.types import DType, TensorType
from superopt.ops.shape_inference import computed_from_weights, infer
from superopt.verifier.check.differential import check_regions

KIND = TensorType(DType.FLOAT32, (2, 2))


def chain(*ops: tuple[str, tuple[str, ...], str]) -> Graph:
    nodes = tuple(Node(f"n{i}", op, reads, (made,)) for i, (op, reads, made) in enumerate(ops))
    weight = constant("w", np.eye(2, dtype=np.float32))
    return Graph("g", (Value("x", KIND),), (Value(ops[-1][2], KIND),), (weight,), nodes, {"": 21}).checked()


def test_names_do_not_count_for_compare() -> None:
    a = chain(("Relu", ("x",), "a"), ("MatMul", ("a", "w"), "y"))
    b = chain(("Relu", ("x",), "other"), ("MatMul", ("other", "w"), "y"))
    assert compare(a, b).identical


def test_compare_lists_what_only_one_side_computes() -> None:
    a = chain(("Relu", ("x",), "a"), ("MatMul", ("a", "w"), "y"))
    b = chain(("Relu", ("x",), "a"), ("MatMul", ("w", "a"), "y"))
    found = compare(a, b)
    assert (found.shared, [n.op for n in found.only_a], [n.op for n in found.only_b]) == (1, ["MatMul"], ["MatMul"])


def test_regions_are_cut_at_values_that_both_graphs_have() -> None:
    a = chain(
        ("Neg", ("x",), "p"), ("Neg", ("p",), "m"), ("Relu", ("m",), "k"), ("Neg", ("k",), "q"), ("Neg", ("q",), "y")
    )
    b = chain(("Identity", ("x",), "m"), ("Relu", ("m",), "k"), ("Identity", ("k",), "y"))
    pairs = changed_regions(a, b, dict.fromkeys("xpmkqy", KIND))
    assert [[v.name for v in left.inputs] for left, _ in pairs] == [["x"], ["k"]]
    assert [[v.name for v in left.outputs] for left, _ in pairs] == [["m"], ["y"]]
    assert [(len(left.nodes), len(right.nodes)) for left, right in pairs] == [(2, 1), (2, 1)]
    for left, right in pairs:
        assert left.inputs == right.inputs
        assert left.outputs == right.outputs
        left.checked()
        right.checked()


def test_sizes_come_with_the_tensors_whose_shapes_they_are() -> None:
    """As free integers, two values that are one shape would be told apart; and no Reshape could be run on them."""
    sizes = TensorType(DType.INT64, (2,))
    a = chain(("Shape", ("x",), "s"), ("Shape", ("x",), "t"), ("Relu", ("x",), "r"), ("Reshape", ("r", "t"), "y"))
    b = chain(("Shape", ("x",), "s"), ("Relu", ("x",), "r"), ("Reshape", ("r", "s"), "y"))
    ((left, right),) = changed_regions(a, b, {**dict.fromkeys("xry", KIND), "s": sizes, "t": sizes})
    assert [v.name for v in left.inputs] == ["r", "x"] == [v.name for v in right.inputs]
    assert [n.op for n in left.checked().nodes] == ["Shape", "Reshape"] == [n.op for n in right.checked().nodes]
    assert check_regions([(left, right)]).verdict == "passed"


def test_a_piece_takes_its_weights_along() -> None:
    a = chain(("MatMul", ("x", "w"), "h"), ("Relu", ("h",), "y"))
    b = replace(a, nodes=(Node("n", "MatMul", ("w", "x"), ("h",)), a.nodes[1]))
    ((left, right),) = changed_regions(a, b, dict.fromkeys("xhy", KIND))
    assert [w.name for w in left.weights] == [w.name for w in right.weights] == ["w"]


def test_equal_graphs_have_no_changed_regions() -> None:
    a = chain(("MatMul", ("x", "w"), "h"), ("Relu", ("h",), "y"))
    assert changed_regions(a, a, {}) == ()


def test_a_place_grows_by_what_makes_one_of_its_inputs_of_another_first() -> None:
    """Which of two equal values is read is the whole change; what makes the other input would say nothing of it."""
    before = chain(("Exp", ("x",), "h"), ("Relu", ("h",), "r"), ("Relu", ("h",), "s"), ("Mul", ("r", "h"), "p"),
                   ("Add", ("p", "s"), "y"))  # fmt: skip
    after = replace(before, nodes=(*before.nodes[:2], before.nodes[3], Node("n4", "Add", ("p", "r"), ("y",))))
    types = dict.fromkeys("xhrspy", KIND)
    ((left, right),) = changed_regions(before, after, types)
    assert {v.name for v in left.inputs} == {"h", "p", "r"}
    assert check_regions([(left, right)]).verdict == "failed"
    larger = grown(before, after, (left, right), types)
    assert [[n.op for n in side.nodes] for side in larger] == [["Relu", "Relu", "Mul", "Add"], ["Relu", "Mul", "Add"]]
    assert {v.name for v in larger[0].inputs} == {"h"}
    assert check_regions([larger]).verdict == "passed"
    largest = grown(before, after, larger, types)
    assert {v.name for v in largest[0].inputs} == {"x"}


def test_what_is_made_of_weights_alone_is_no_free_input() -> None:
    """A place that reads a transposed weight has the weight, not any matrix."""
    a = chain(("Transpose", ("w",), "t"), ("MatMul", ("x", "t"), "m"), ("Relu", ("m",), "y"))
    b = chain(("Transpose", ("w",), "t"), ("MatMul", ("x", "t"), "n"), ("Relu", ("n",), "y"))
    typing = infer(a)
    fixed = computed_from_weights(a, typing)
    assert fixed == {"t"}
    (known,) = changed_regions(a, b, typing.types, fixed)
    (free,) = changed_regions(a, b, typing.types)
    assert [[v.name for v in g.inputs] for g in known] == [["x"], ["x"]]
    assert [[v.name for v in g.inputs] for g in free] == [["t", "x"], ["t", "x"]]

"""Elements at known positions as slices, joined, folded and turned: what runtimes copy by rows and not one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

import superopt
from superopt import formats
from superopt.frontend import GraphBuilder
from superopt.ir.errors import NotEquivalent
from superopt.ir.graph import ArrayWeightData, Graph
from superopt.passes.weights import WeightRewriteStage, by_positions
from superopt.pipeline import optimize
from superopt.rules.weight_claims import ConstantIndexAccess, WeightRewriteCertificate
from superopt.runtime import onnx_runtime
from superopt.verifier.weights.claim_checker import check_values

PROFILE = "profile:cpu-epyc-2core"
ANY: Callable[[Graph], bool] = lambda _: True  # noqa: E731
WINDOWS = np.arange(9)[:, None] + np.arange(64)

CASES: dict[str, tuple[tuple[int | str, ...], int, np.ndarray, list[str]]] = {
    "a range": ((1, 4, 16, 31), 3, np.arange(5, 21), ["Slice"]),
    "every third": ((2, 20, 3), 1, np.arange(1, 20, 3), ["Slice"]),
    "backwards": ((2, 20), 1, np.arange(19, -1, -1), ["Slice"]),
    "backwards from the end, as negative positions": ((2, 20), -1, np.array([-1, -2, -3]), ["Slice"]),
    "one": ((2, 20, 3), 1, np.array(7), ["Slice", "Reshape"]),
    "the only one": ((2, 5, 1), 2, np.array([[0]]), ["Reshape"]),
    "an open batch": (("N", 20, 3), 1, np.arange(4, 12), ["Slice"]),
    "windows of a signal": ((1, 6, 72), 2, WINDOWS, ["Slice"] * 9 + ["Concat", "Reshape"]),
    "windows, the place in each last": ((1, 6, 72), 2, WINDOWS.T, ["Slice"] * 9 + ["Concat", "Reshape", "Transpose"]),
    "two halves exchanged": ((3, 8, 2), 1, np.array([4, 5, 6, 7, 0, 1, 2, 3]), ["Slice", "Slice", "Concat"]),
    "channels shuffled": ((1, 12, 4), 1, np.arange(12).reshape(2, 6).T.ravel(), ["Slice"] * 6 + ["Concat"]),
}


def gathered(shape: tuple[int | str, ...], axis: int, at: np.ndarray, op: str = "Gather") -> Graph:
    b = GraphBuilder("net")
    x = b.op("Relu", b.input("x", "float32", shape))
    y = b.op(op, x, b.constant(at.astype(np.int64)), axis=axis)
    b.output(b.op("Neg", y), "y")
    return b.build()


def moved(graph: Graph) -> WeightRewriteStage:
    found = by_positions(graph, ANY)
    assert found is not None
    return found


@pytest.mark.parametrize("name", CASES)
def test_known_positions_are_forms_of_whole_axes(name: str) -> None:
    shape, axis, at, wanted = CASES[name]
    graph = gathered(shape, axis, at)
    stage = moved(graph)
    operators = [n.op for n in stage.after.nodes if n.op not in ("Relu", "Neg", "Constant")]
    assert sorted(operators) == sorted(wanted), operators
    x = np.random.default_rng(0).standard_normal([3 if d == "N" else d for d in shape]).astype(np.float32)
    expected = -np.take(np.maximum(x, 0), at, axis)
    made = onnx_runtime.run(onnx_runtime.make_session(formats.to_onnx_bytes(stage.after), threads=1), {"x": x})["y"]
    np.testing.assert_array_equal(made, expected)
    held = check_values(stage.before, stage.after, stage.certificate)
    assert held.claims == held.sites == held.exact == 1


def test_positions_of_every_element_that_are_the_same_in_each_row_are_a_slice() -> None:
    stage = moved(gathered((3, 8), 1, np.tile(np.arange(2, 6), (3, 1)), "GatherElements"))
    assert "Slice" in [n.op for n in stage.after.nodes]
    assert check_values(stage.before, stage.after, stage.certificate).exact == 1


@pytest.mark.parametrize("seed", range(3))
def test_positions_without_order_stay(seed: int) -> None:
    at = np.random.default_rng(seed).permutation(200)
    assert by_positions(gathered((2, 200), 1, at), ANY) is None


def test_positions_that_are_not_known_and_integers_stay() -> None:
    b = GraphBuilder("net")
    x, at = b.input("x", "float32", (4, 8)), b.input("at", "int64", (3,))
    whole = b.input("whole", "int64", (4, 8))
    b.output(b.op("Gather", x, at, axis=1), "y")
    b.output(b.op("Gather", whole, b.constant(np.arange(3)), axis=1), "z")
    assert by_positions(b.build(), ANY) is None


def test_what_is_not_worth_it_stays() -> None:
    asked: list[Graph] = []
    assert by_positions(gathered((2, 20), 1, np.arange(9)), lambda g: bool(asked.append(g))) is None
    assert len(asked) == 1


# ---- certificates that lie
def test_a_slice_that_begins_elsewhere_is_refused() -> None:
    stage = moved(gathered((2, 20, 3), 1, np.arange(4, 12)))
    (name,) = {n for node in stage.after.nodes if node.op == "Slice" for n in node.inputs[1:2]}
    weights = tuple(
        replace(w, data=ArrayWeightData(w.data.numpy() + 1)) if w.name == name and w.data is not None else w
        for w in stage.after.weights
    )
    ends = {n for node in stage.after.nodes if node.op == "Slice" for n in node.inputs[2:3]}
    weights = tuple(
        replace(w, data=ArrayWeightData(w.data.numpy() + 1)) if w.name in ends and w.data is not None else w
        for w in weights
    )
    with pytest.raises(NotEquivalent, match="does not hold"):
        check_values(stage.before, replace(stage.after, weights=weights), stage.certificate)


def test_other_positions_than_the_certificate_is_about_are_refused() -> None:
    stage = moved(gathered((2, 20, 3), 1, np.arange(4, 12)))
    weights = tuple(
        replace(w, data=ArrayWeightData(w.data.numpy()[::-1].copy())) if w.data is not None else w
        for w in stage.before.weights
    )
    with pytest.raises(NotEquivalent, match="not the one that the certificate is about"):
        check_values(replace(stage.before, weights=weights), stage.after, stage.certificate)


def test_what_is_said_to_be_moved_and_is_no_place_of_the_result_is_refused() -> None:
    stage = moved(gathered((2, 20), 1, np.arange(9)))
    lie = replace(stage.certificate, moved=(*stage.certificate.moved, ConstantIndexAccess("Relu")))
    with pytest.raises(NotEquivalent, match="not shown to be exactly"):
        check_values(stage.before, stage.after, lie)


def test_a_certificate_survives_its_file() -> None:
    certificate = moved(gathered((2, 20), 1, np.arange(9))).certificate
    assert WeightRewriteCertificate.from_json(certificate.as_json()) == certificate
    old = {k: v for k, v in certificate.as_json().items() if k != "moved"}
    assert WeightRewriteCertificate.from_json(old).moved == ()


# ---- in an optimisation
def test_windows_are_joined_of_slices_in_an_optimisation_where_that_is_cheaper() -> None:
    """ConvBERT unfolds a signal so."""
    graph = gathered((1, 48, 72, 1), 2, WINDOWS)
    found = optimize(graph, options=superopt.Options(target=PROFILE, time_limit=None))
    assert found.report.values is not None
    assert any("known" in c for c in found.report.values.claims)
    assert found.report.check.verdict == "passed"
    assert "Gather" not in [n.op for n in found.graph.nodes]
    assert found.report.cost.after_us < 0.8 * found.report.cost.before_us


# ---- writes
def written(
    shape: tuple[int | str, ...], writes: Sequence[np.ndarray], updates: Sequence[tuple[int | str, ...]],
    op: str = "ScatterND", dtype: str = "float32", **attributes: str | int,
) -> Graph:  # fmt: skip
    b = GraphBuilder("net", opset=18)
    made = b.input("x", dtype, shape)
    for at, (indices, update) in enumerate(zip(writes, updates, strict=True)):
        made = b.op(op, made, b.constant(indices.astype(np.int64)), b.input(f"u{at}", dtype, update), **attributes)
    b.output(made, "y")
    return b.build()


def box(*ranges: range) -> np.ndarray:
    """Positions as PyTorch writes an assignment to slices."""
    return np.stack(np.meshgrid(*ranges, indexing="ij"), -1)


ROWS = [np.array([[[0, row]]]) for row in range(4)]
WRITES: dict[str, tuple[Graph, list[str]]] = {
    "a slice of every axis": (
        written((2, 5, 6), [box(range(2), range(1, 4), range(2, 6))], [(2, 3, 4)]),
        ["Slice", "Slice", "Slice", "Concat", "Concat"],
    ),
    "all of it": (written((2, 3, 4), [box(range(2), range(3), range(4))], [(2, 3, 4)]), ["Identity"]),
    "rows, one after the other": (written((1, 4, 8), ROWS, [(1, 1, 8)] * 4), ["Concat"]),
    "rows, all but one": (written((1, 4, 8), ROWS[1:], [(1, 1, 8)] * 3), ["Slice", "Concat"]),
    "the last, from the end": (written((4, 8), [np.array([[-1]])], [(1, 8)]), ["Slice", "Concat"]),
    "open rows": (written((4, "N"), [np.array([[1], [2]])], [(2, "N")]), ["Slice", "Slice", "Concat"]),
    "halves": (written((4, 8), [np.array([[0]])], [(1, 8)], dtype="float16"), ["Slice", "Concat"]),
    "elements": (
        written((3, 4), [np.array([[1, 1, 1, 1]])], [(1, 4)], "ScatterElements", axis=0), ["Slice", "Slice", "Concat"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITES)
def test_writes_to_known_positions_are_what_is_left_joined_with_what_is_written(name: str) -> None:
    graph, wanted = WRITES[name]
    stage = moved(graph)
    operators = [n.op for n in stage.after.nodes if n.op != "Constant"]
    assert sorted(operators) == sorted(wanted), operators
    rng = np.random.default_rng(0)
    kinds = [(v.name, v.type) for v in graph.inputs]
    feed = {
        n: rng.standard_normal([3 if d == "N" else d for d in map(str_or_int, t.shape or ())]).astype(str(t.dtype))  # type: ignore[union-attr]
        for n, t in kinds
    }
    before, after = (
        onnx_runtime.run(onnx_runtime.make_session(formats.to_onnx_bytes(g), threads=1), feed)["y"]
        for g in (graph, stage.after)
    )
    assert before.tobytes() == after.tobytes()
    assert check_values(stage.before, stage.after, stage.certificate).exact == 1


def str_or_int(size: object) -> int | str:
    return size if isinstance(size, int) else str(size)


@pytest.mark.parametrize(
    "graph",
    [
        written((4, 8), [np.array([[1], [1]])], [(2, 8)]),
        written((4, 8), [np.array([[1], [-3]])], [(2, 8)]),
        written((4, 8), [np.array([[1]])], [(1, 8)], reduction="add"),
        written((4, 8), [np.array([[1]])], [(1, 8)], reduction="max"),
        written((4, 8), [np.array([[1]])], [(1, 8)], dtype="int64"),
        written((4, 8), [np.array([[4]])], [(1, 8)]),
    ],
    ids=["twice", "twice, once from the end", "sums", "maxima", "integers", "beyond the end"],
)
def test_writes_whose_order_or_sum_counts_stay(graph: Graph) -> None:
    assert by_positions(graph, ANY) is None


def test_what_is_written_over_by_two_and_read_between_stays_there() -> None:
    b = GraphBuilder("net", opset=18)
    x, u, v = b.input("x", "float32", (4, 8)), b.input("u", "float32", (1, 8)), b.input("v", "float32", (1, 8))
    first = b.op("ScatterND", x, b.constant(np.array([[0]])), u)
    b.output(first, "between")
    b.output(b.op("ScatterND", first, b.constant(np.array([[3]])), v), "y")
    stage = moved(b.build())
    assert {"between", "y"} <= {o for n in stage.after.nodes for o in n.outputs}
    assert check_values(stage.before, stage.after, stage.certificate).exact == 2


def test_positions_that_follow_from_sizes_are_known() -> None:
    """As ``torch.triu_indices`` of a product is exported: row times how long a row is, and column."""
    b = GraphBuilder("net")
    x = b.op("Relu", b.input("x", "float32", (4, 3, 3)))
    flat = b.op("Reshape", x, b.constant(np.array([4, 9])))
    long = b.op("Gather", b.op("Shape", x), b.constant(np.array(2)), axis=0)
    at = b.op("Add", b.op("Mul", long, b.constant(np.array([0, 0, 1]))), b.constant(np.array([1, 2, 2])))
    b.output(b.op("Gather", flat, at, axis=1), "y")
    stage = moved(b.build())
    assert "Shape" not in [n.op for n in stage.after.nodes]
    assert check_values(stage.before, stage.after, stage.certificate).exact == 1


def test_a_position_from_the_end_of_a_long_axis_is_not_one_of_a_short_axis() -> None:
    """Axes that claims do not name are drawn shorter elsewhere; 99 is the last of 100, and 3 of none but 4."""
    stage = moved(gathered((2, 100), 1, np.array([-1])))
    lying = gathered((2, 100), 1, np.array([3]))
    nodes = (replace(n, outputs=m.outputs) for n, m in zip(lying.nodes, stage.before.nodes, strict=True))
    after = replace(lying, nodes=tuple(nodes))
    for certificate in (stage.certificate, replace(stage.certificate, moved=())):
        with pytest.raises(NotEquivalent, match="does not hold"):
            check_values(stage.before, after, certificate)


def test_other_updates_and_writes_twice_are_refused() -> None:
    stage = moved(written((1, 4, 8), ROWS, [(1, 1, 8)] * 4))
    (join,) = (n for n in stage.after.nodes if n.op == "Concat")
    turned = replace(join, inputs=(join.inputs[1], join.inputs[0], *join.inputs[2:]))
    after = replace(stage.after, nodes=tuple(turned if n is join else n for n in stage.after.nodes))
    with pytest.raises(NotEquivalent, match="does not hold"):
        check_values(stage.before, after, stage.certificate)
    twice = written((1, 4, 8), [*ROWS[:3], np.array([[[0, 3], [0, 3]]])], [(1, 1, 8)] * 3 + [(1, 2, 8)])
    with pytest.raises(NotEquivalent):
        check_values(twice, stage.after, replace(stage.certificate, weights=()))


def test_what_is_written_is_joined_in_an_optimisation() -> None:
    """MViTv2 adds its relative positions to all of its attention so, and RWKV writes its steps."""
    graph = written((1, 4, 64, 64), [box(range(1), range(4), range(64), range(64))], [(1, 4, 64, 64)])
    found = optimize(graph, options=superopt.Options(target=PROFILE, time_limit=None))
    assert found.report.check.verdict == "passed"
    assert [n.op for n in found.graph.nodes] in ([], ["Identity"])

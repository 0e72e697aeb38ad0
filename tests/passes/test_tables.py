"""Functions of integers of few values are read from tables: whatever the index, and only where they are functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from superopt import formats
from superopt.frontend import GraphBuilder
from superopt.frontend.symbolic_tensor import SymbolicTensor
from superopt.ir.errors import NotEquivalent, UsageError
from superopt.ir.graph import Graph, constant
from superopt.passes.weights import WeightRewriteStage, by_tables
from superopt.runtime import onnx_runtime
from superopt.verifier.weights.claim_checker import check_values

DEPTH, WIDTH = 5, 8
RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def one_hot(b: GraphBuilder, i: SymbolicTensor) -> SymbolicTensor:
    values = b.constant(np.array([0, 1], np.float32))
    return b.op("OneHot", i, b.constant(np.array([DEPTH], np.int64)), values, axis=-1)


def layers(b: GraphBuilder, x: SymbolicTensor) -> SymbolicTensor:
    """What follows row by row: a product, a bias, an activation, a normalisation."""
    width = x.type.shape[-1] if x.type.shape is not None else 0
    assert isinstance(width, int)
    y = b.op("Gelu", b.op("Add", b.op("MatMul", x, b.constant(normal(width, WIDTH))), b.constant(normal(WIDTH))))
    return b.op("LayerNormalization", y, b.constant(normal(WIDTH)), axis=-1)


def categories(b: GraphBuilder) -> SymbolicTensor:
    return layers(b, one_hot(b, b.input("i", "int64", ("N", 7))))


def tokens(b: GraphBuilder) -> SymbolicTensor:
    return layers(b, b.op("Gather", b.constant(normal(DEPTH, 16)), b.input("i", "int64", ("N", 7)), axis=0))


def octets(b: GraphBuilder) -> SymbolicTensor:
    i = b.op("Cast", b.input("i", "uint8", (1, 7)), to=7)
    return layers(b, b.op("Gather", b.constant(normal(256, 16)), i, axis=0))


def clipped(b: GraphBuilder) -> SymbolicTensor:
    least, most = (b.constant(np.int64(v)) for v in (1, 3))
    return layers(b, one_hot(b, b.op("Clip", b.input("i", "int64", (2, 7)), least, most)))


INDICES: dict[str, Callable[[GraphBuilder], SymbolicTensor]] = {
    f.__name__: f for f in (categories, tokens, octets, clipped)
}


def softmax_of(index: Callable[[GraphBuilder], SymbolicTensor]) -> Graph:
    b = GraphBuilder("tables")
    b.output(b.op("Softmax", index(b), axis=-1), "y")
    return b.build()


def tabulated(graph: Graph) -> WeightRewriteStage:
    stage = by_tables(graph, lambda _: True)
    assert stage is not None
    return stage


def run(graph: Graph, **feeds: np.ndarray) -> np.ndarray:
    (array,) = onnx_runtime.run(onnx_runtime.make_session(formats.to_onnx_bytes(graph), threads=1), feeds).values()
    return array


@pytest.mark.parametrize("name", INDICES)
def test_rows_are_read_from_a_table_and_are_what_the_model_computes(name: str) -> None:
    stage = tabulated(softmax_of(INDICES[name]))
    left = {n.op for n in stage.after.nodes}
    assert left <= {"Gather", "Softmax", "Clip", "Cast"}
    check_values(stage.before, stage.after, stage.certificate)
    (given,) = stage.before.inputs
    low, high = (-DEPTH, DEPTH - 1) if name == "tokens" else (-9, 9) if given.type.dtype == "int64" else (0, 255)  # type: ignore[union-attr]
    shape = tuple(d if isinstance(d, int) else 9 for d in given.type.shape or ())  # type: ignore[union-attr]
    feed = np.resize(np.arange(low, high + 1), shape).astype(given.type.dtype.numpy)  # type: ignore[union-attr]
    np.testing.assert_allclose(run(stage.after, i=feed), run(stage.before, i=feed), rtol=1e-5, atol=1e-6)


def test_a_table_has_one_row_for_all_that_is_outside() -> None:
    stage = tabulated(softmax_of(categories))
    tables = {w.type.shape for w in stage.after.weights if w.type.shape}
    assert tables == {(2 * DEPTH + 2,), (DEPTH + 1, WIDTH)}


def test_rows_may_become_columns() -> None:
    b = GraphBuilder("columns")
    x = b.op("Gather", b.constant(normal(DEPTH, 16)), b.input("i", "int64", (7,)), axis=0)
    b.output(b.op("Transpose", b.op("MatMul", x, b.constant(normal(16, WIDTH))), perm=[1, 0]), "y")
    stage = tabulated(b.build())
    (node,) = stage.after.nodes
    assert (node.op, node.attributes) == ("Gather", {"axis": 1})
    check_values(stage.before, stage.after, stage.certificate)


def test_what_depends_on_the_place_is_no_row() -> None:
    b = GraphBuilder("positions")
    x = b.op("Gather", b.constant(normal(DEPTH, 16)), b.input("i", "int64", ("N", 7)), axis=0)
    b.output(layers(b, b.op("Add", x, b.constant(normal(7, 16)))), "y")
    assert by_tables(b.build(), lambda _: True) is None


def test_what_reads_other_rows_is_no_row() -> None:
    b = GraphBuilder("cumulated")
    x = b.op("Gather", b.constant(normal(DEPTH, 16)), b.input("i", "int64", ("N", 7)), axis=0)
    b.output(layers(b, b.op("CumSum", x, b.constant(np.int64(1)))), "y")
    assert by_tables(b.build(), lambda _: True) is None


def test_a_table_much_larger_than_the_weights_that_it_replaces_is_not_made() -> None:
    b = GraphBuilder("wide")
    x = b.op("Gather", b.constant(normal(4096, 4)), b.input("i", "int64", (1, 512)), axis=0)
    b.output(b.op("Softmax", b.op("MatMul", x, b.constant(normal(4, 64))), axis=1), "y")
    assert by_tables(b.build(), lambda _: True) is None


def test_what_reads_an_index_otherwise_stays() -> None:
    b = GraphBuilder("mixed")
    i = b.input("i", "int64", ("N", 7))
    b.output(layers(b, b.op("Gather", b.constant(normal(DEPTH - 1, 16)), i, axis=0)), "y")
    b.output(layers(b, one_hot(b, i)), "z")
    b.output(b.op("Equal", i, b.constant(np.int64(0))), "padded")
    stage = tabulated(b.build())
    assert [c.value for c in stage.certificate.tabulated] == ["y"]
    check_values(stage.before, stage.after, stage.certificate)


def test_a_position_beyond_the_table_stays_an_error() -> None:
    stage = tabulated(softmax_of(tokens))
    for graph in (stage.before, stage.after):
        with pytest.raises(UsageError, match="out of data bounds"):
            run(graph, i=np.full((1, 7), DEPTH))


def test_rows_that_do_not_fit_in_memory_are_not_computed() -> None:
    b = GraphBuilder("vocabulary")
    depth, i = b.constant(np.array([1 << 14], np.int64)), b.input("i", "int64", ("N", 7))
    x = b.op("OneHot", i, depth, b.constant(np.array([0, 1], np.float32)), axis=-1)
    b.output(b.op("Softmax", b.op("MatMul", x, b.constant(normal(1 << 14, 8))), axis=1), "y")
    assert by_tables(b.build(), lambda _: True) is None


def test_an_index_of_any_value_has_no_table() -> None:
    b = GraphBuilder("counts")
    x = b.op("Cast", b.input("i", "int64", ("N", 7, 1)), to=1)
    b.output(b.op("MatMul", x, b.constant(normal(1, WIDTH))), "y")
    assert by_tables(b.build(), lambda _: True) is None


@pytest.mark.parametrize("name", INDICES)
def test_a_wrong_row_is_refuted(name: str) -> None:
    stage = tabulated(softmax_of(INDICES[name]))
    largest = max(stage.after.weights, key=lambda w: w.type.nbytes or 0)
    assert largest.data is not None
    array = largest.data.numpy().copy()
    array[..., -1] += 0.01
    others = tuple(w for w in stage.after.weights if w is not largest)
    wrong = replace(stage.after, weights=(*others, constant(largest.name, array)))
    with pytest.raises(NotEquivalent, match="is not what the table"):
        check_values(stage.before, wrong, stage.certificate)


def test_a_table_with_a_row_too_few_is_refuted() -> None:
    stage = tabulated(softmax_of(tokens))
    (table,) = stage.after.weights
    assert table.data is not None
    short = replace(stage.after, weights=(constant(table.name, table.data.numpy()[:-1]),))
    with pytest.raises(NotEquivalent, match=r"has no row|is not what the table"):
        check_values(stage.before, short, stage.certificate)

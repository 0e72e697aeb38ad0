"""The float64 reference: against ONNX Runtime, at element types, with what it does not read."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from superopt.frontend import GraphBuilder
from superopt.ir.errors import Unsupported, UsageError
from superopt.ir.graph import Graph, Node, Value, Weight, constant
from superopt.ir.types import DType, TensorType
from superopt.ops import REGISTRY
from superopt.runtime import _algebra, reference
from superopt.runtime.reference import evaluate_application, run

F = DType.FLOAT32


class Counting:
    """Weight elements that count how often they are read."""

    digest = "counting"

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.reads = array, 0

    def numpy(self) -> np.ndarray:
        self.reads += 1
        return self.array


def chain(length: int) -> Graph:
    names = ["x", *(f"h{i}" for i in range(length))]
    nodes = tuple(Node(f"n{i}", "Neg", (names[i],), (names[i + 1],)) for i in range(length))
    kind = TensorType(F, (3,))
    return Graph("chain", (Value("x", kind),), (Value(names[-1], kind),), (), nodes, {"": 18})


def test_long_chains_and_freeing():
    x = np.float32([1, 2, 3])
    assert run(chain(5000), {"x": x})["h4999"].tolist() == [1, 2, 3]


def test_weights_are_read_only_when_needed():
    used, unused = Counting(np.float32([2, 3, 4])), Counting(np.float32([9]))
    weights = (Weight("w", TensorType(F, (3,)), used), Weight("u", TensorType(F, (1,)), unused))
    kind = TensorType(F, (3,))
    nodes = (Node("m", "Mul", ("x", "w"), ("y",)), Node("d", "Mul", ("x", "u"), ("z",)))
    graph = Graph("g", (Value("x", kind),), (Value("y", kind), Value("z", kind)), weights, nodes, {"": 18})
    assert run(graph, {"x": np.float32([1, 1, 1])}, outputs=["y"])["y"].tolist() == [2, 3, 4]
    assert unused.reads <= 1  # inference may look at a small one
    fed = run(graph, {"x": np.float32([1, 1, 1]), "u": np.float32([5])}, outputs=["z"])
    assert fed["z"].tolist() == [5, 5, 5]


def test_missing_inputs_are_named():
    with pytest.raises(UsageError, match="'x' was not given"):
        run(chain(1), {})


def test_application_at_element_types():
    add = REGISTRY["Add"]
    kind = TensorType(DType.INT8, (2,))
    (wrapped,) = evaluate_application(add, {}, [np.int8([127, 1]), np.int8([1, 1])], [kind, kind])
    assert wrapped.dtype == np.int8
    assert wrapped.tolist() == [-128, 2]
    half = TensorType(DType.BFLOAT16, (2,))
    ones = np.ones(2, ml_dtypes.bfloat16)
    (cast,) = evaluate_application(add, {}, [ones, ones], [half, half])
    (exact,) = evaluate_application(add, {}, [ones, ones], [half, half], cast=False)
    assert (cast.dtype, exact.dtype) == (ml_dtypes.bfloat16, np.float64)
    assert exact.tolist() == [2, 2]


def test_reading_at_an_element_type():
    assert reference.at_dtype(np.array([1.9, -1.9]), DType.INT32).tolist() == [1, -1]
    assert reference.at_dtype(np.array([0.5, 0.0]), DType.BOOL).tolist() == [True, False]


def test_an_unread_node_runs_in_onnx_runtime_with_constants_and_freshly_known_sizes():
    kind, index = TensorType(F, (2, 3)), TensorType(DType.INT64, None)
    nodes = (
        Node("r", "Relu", ("x",), ("h",)),
        Node("z", "NonZero", ("h",), ("i",)),
        Node("t", "Transpose", ("i",), ("y",), {"perm": (1, 0)}),
    )
    graph = Graph("g", (Value("x", kind),), (Value("y", index),), (), nodes, {"": 18})
    found = run(graph, {"x": np.float32([[1, -1, 0], [0, 2, 3]])})["y"]
    assert found.dtype == np.int64
    assert found.tolist() == [[0, 0], [1, 1], [1, 2]]


def test_what_nothing_can_run_is_named():
    kind = TensorType(F, (2,))
    node = Node("odd", "Frobnicate", ("x",), ("y",), domain="acme")
    graph = Graph("g", (Value("x", kind),), (Value("y", kind),), (), (node,), {"": 18, "acme": 1})
    with pytest.raises(Unsupported, match='node "odd"'):
        run(graph, {"x": np.float32([1, 2])})


def test_a_constant_operand_stays_a_constant_of_the_one_node_model():
    kind = TensorType(F, (3,))
    node = Node("k", "TopK", ("x", "k"), ("v", "i"), {})
    graph = Graph("g", (Value("x", kind),), (Value("v", None),), (constant("k", np.int64([2])),), (node,), {"": 18})
    assert run(graph, {"x": np.float32([1, 3, 2])})["v"].tolist() == [3, 2]


@pytest.mark.parametrize("piece", [1, 64])
@pytest.mark.parametrize(
    ("op", "shapes", "attributes"),
    [
        ("Conv", ((2, 3, 9, 8), (4, 3, 3, 3)), {"pads": (1, 1, 1, 1), "strides": (2, 1)}),
        ("Conv", ((1, 4, 7), (4, 1, 3)), {"group": 4}),
        ("MatMul", ((3, 5, 6), (6, 4)), {}),
        ("MatMul", ((2, 3, 5, 6), (2, 3, 6, 4)), {}),
    ],
)
def test_a_factor_that_is_packed_in_pieces_gives_the_same(
    monkeypatch: pytest.MonkeyPatch,
    op: str,
    shapes: tuple[tuple[int, ...], ...],
    attributes: dict[str, Any],
    piece: int,
) -> None:
    builder = GraphBuilder("pieces")
    inputs = [builder.input(f"x{i}", "float32", list(shape)) for i, shape in enumerate(shapes)]
    builder.output(builder.op(op, *inputs, **attributes), "y")
    graph = builder.build()
    rng = np.random.default_rng(3)
    feeds = {f"x{i}": rng.integers(-4, 5, shape).astype(np.float32) for i, shape in enumerate(shapes)}
    whole = run(graph, feeds)["y"]
    pieces: list[int] = []
    usual = _algebra._piecewise

    def counted(*args: Any) -> Any:
        pieces.append(args[-1])
        return usual(*args)

    monkeypatch.setattr(_algebra, "_piecewise", counted)
    monkeypatch.setattr(_algebra, "_PIECE", piece)
    assert np.array_equal(run(graph, feeds)["y"], whole)  # of whole numbers, whose sums do not round
    assert pieces
    assert min(pieces) > 1

"""The float64 reference: against ONNX Runtime, at element types, with what it does not read."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from onnx import TensorProto, helper

from superopt.formats import from_bytes
from superopt.ir.errors import Unsupported, UsageError
from superopt.ir.graph import Graph, Node, Value, Weight, constant
from superopt.ir.types import DType, TensorType
from superopt.ops import REGISTRY
from superopt.runtime import reference
from superopt.runtime._array_arithmetic import FLOAT64, Float64Arithmetic, IndexVariableArray, product_sum
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


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.FLOAT32])
def test_a_weight_of_several_nodes_is_read_once_and_means_the_same_to_each(dtype: DType):
    kind = TensorType(dtype, (3,))
    held = Counting(np.array([0.1, 2, -3], dtype.numpy))
    nodes = (
        Node("m", "Mul", ("x", "w"), ("p",)), Node("a", "Add", ("p", "w"), ("s",)),
        Node("i", "Identity", ("w",), ("v",)), Node("d", "Sub", ("s", "v"), ("y",)),
    )  # fmt: skip
    graph = Graph("g", (Value("x", kind),), (Value("y", kind),), (Weight("w", kind, held),), nodes, {"": 18})
    before = held.reads
    found = run(graph, {"x": np.array([1, 1, 2], dtype.numpy)})["y"]
    wide = held.array.astype(np.float64)
    np.testing.assert_array_equal(found, wide * [1, 1, 2] + wide - wide)
    inferred = run(graph, {"x": np.array([1, 1, 2], dtype.numpy)}, outputs=["p"])  # one node reads it
    np.testing.assert_array_equal(inferred["p"], wide * [1, 1, 2])
    assert held.reads - before <= 4  # inference may look at a small one


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


class Counted(Float64Arithmetic):
    """Float64 that counts its products of matrices."""

    products = 0

    def matmul(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        self.products += 1
        return super().matmul(left, right)


@pytest.mark.parametrize("piece", [1, 64])
@pytest.mark.parametrize(
    ("left", "right", "reduced", "windows"),
    [
        ("nchw", "ocij", "cij", True), ("nghw", "gij", "ij", True), ("bmk", "kn", "k", False),
        ("abmk", "abkn", "k", False),
    ],
    ids=["convolution", "depthwise convolution", "product", "batched product"],
)  # fmt: skip
def test_a_factor_that_is_packed_in_pieces_gives_the_same(
    left: str, right: str, reduced: str, windows: bool, piece: int
) -> None:
    sizes = dict(zip("abcgijkmnohw", (2, 3, 3, 4, 3, 2, 6, 5, 4, 4, 9, 8), strict=True))
    rng = np.random.default_rng(3)
    arrays = [rng.integers(-4, 5, [sizes[axis] for axis in axes]).astype(float) for axes in (left, right)]
    if windows:  # of an image, where they lie
        arrays[0] = sliding_window_view(arrays[0], (sizes["i"], sizes["j"]), axis=(2, 3))
        left, sizes = left + "ij", sizes | {"h": sizes["h"] - 2, "w": sizes["w"] - 1}
    factors = [IndexVariableArray(array, tuple(axes)) for array, axes in zip(arrays, (left, right), strict=True)]
    rank = {axis: place for place, axis in enumerate(dict.fromkeys(left + right))}
    whole = product_sum(FLOAT64, factors, reduced, sizes, rank)
    found = product_sum(counted := Counted(), factors, reduced, sizes, rank, piece)
    assert found.axes == whole.axes
    assert np.array_equal(found.array, whole.array)  # of whole numbers, whose sums do not round
    assert counted.products > 1
    kept = "".join(axis for axis in rank if axis not in reduced)
    assert found.axes == tuple(kept)
    assert np.array_equal(found.array, np.einsum(f"{left},{right}->{kept}", *arrays))


def test_a_sparse_value_is_not_read() -> None:
    """ONNX Runtime gives it as an object of its own."""
    elements = helper.make_tensor("elements", TensorProto.FLOAT, [1], [2.0])
    places = helper.make_tensor("places", TensorProto.INT64, [1], [3])
    sparse = helper.make_sparse_tensor(elements, places, [2, 2])
    nodes = [
        helper.make_node("Constant", [], ["w"], sparse_value=sparse),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2]) for name in "xy"]
    model = helper.make_model(helper.make_graph(nodes, "sparse", ends[:1], ends[1:]))
    with pytest.raises(Unsupported, match="sparse tensor"):
        run(from_bytes(model.SerializeToString()), {"x": np.ones((2, 2), np.float32)})


def test_outputs_of_one_operator_have_types_of_their_own() -> None:
    """A scale is a real beside the integers that it belongs to."""
    nodes = (
        Node("q", "DynamicQuantizeLinear", ("x",), ("q", "s", "z")),
        Node("i", "MatMulInteger", ("q", "w", "z"), ("i",)),
        Node("c", "Cast", ("i",), ("c",), {"to": 1}),
        Node("m", "Mul", ("c", "s"), ("y",)),
    )
    kind = TensorType(F, (2, 3))
    weights = (constant("w", np.array([[1, -128], [127, 0], [-5, 9]], np.int8)),)
    graph = Graph("g", (Value("x", kind),), (Value("y", None),), weights, nodes, {"": 17})
    x = np.array([[-12.5, 19.375, 0.0625], [0.1875, 1.0, -0.3125]], np.float32)  # 255 steps of an eighth; ties
    found = run(graph, {"x": x}, outputs=["q", "s", "z", "y"])
    np.testing.assert_array_equal(found["q"], [[0, 255, 100], [102, 108, 98]])
    assert (found["q"].dtype, found["s"].dtype, found["z"].dtype) == (np.uint8, np.float64, np.uint8)
    assert (found["s"], found["z"]) == (0.125, 100)
    np.testing.assert_array_equal(found["y"], [[2448.125, 1600.0], [128.5, -34.25]])

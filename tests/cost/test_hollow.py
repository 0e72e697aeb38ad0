"""What ONNX Runtime makes of a model is the same without the elements of its big weights."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from superopt import formats
from superopt.formats.onnx_reader import from_onnx
from superopt.formats.weight_data import expected_bytes
from superopt.frontend import GraphBuilder
from superopt.ir.graph import Graph
from superopt.runtime.executed_graph import lowered, lowered_without_weights, session_without_weights, type_values
from superopt.runtime.synthetic_tensors import feeds_for


def networks() -> dict[str, Graph]:
    rng = np.random.default_rng(0)

    def real(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    linear = GraphBuilder("linear")
    x = linear.input("x", "float32", (4, 256))
    weight = real(256, 256)
    left = linear.op("Relu", linear.op("MatMul", x, linear.constant(weight, "a")))
    right = linear.op("Tanh", linear.op("MatMul", x, linear.constant(weight + 1, "b")))
    folded = linear.op("Transpose", linear.constant(real(256, 256), "c"), perm=(1, 0))
    linear.output(linear.op("MatMul", linear.op("Add", left, right), folded), "out")
    image = GraphBuilder("image")
    y = image.input("y", "float32", (1, 64, 8, 8))
    conv = image.op("Conv", y, image.constant(real(64, 64, 3, 3), "k"), pads=(1, 1, 1, 1))
    scales = [image.constant(np.abs(real(64)), n) for n in ("gamma", "beta", "mean", "variance")]
    image.output(image.op("Relu", image.op("BatchNormalization", conv, *scales)), "out")
    return {"linear": linear.build(), "image": image.build()}


@pytest.mark.parametrize("name", ["linear", "image"])
def test_hollow_models_are_lowered_alike(name: str) -> None:
    graph = networks()[name]
    made, whole = lowered_without_weights(graph), lowered(graph)
    assert made.nodes == whole.nodes
    assert {w.name: w.type for w in made.weights} == {w.name: w.type for w in whole.weights}
    assert any(w.data is None for w in made.weights)
    assert all(w.data is not None for w in whole.weights)


@pytest.mark.parametrize("name", ["linear", "image"])
def test_hollow_models_have_the_same_types(name: str) -> None:
    graph = networks()[name]
    own = lowered_without_weights(graph)
    assert type_values(own, feeds_for(graph), given=graph) == type_values(lowered(graph), feeds_for(graph))


def test_big_weights_are_told_apart() -> None:
    """Two products of one value by different weights stay two, although neither weight is written."""
    graph = networks()["linear"]
    assert sum("MatMul" in n.op for n in lowered_without_weights(graph).nodes) == 3


def test_no_elements_are_read() -> None:
    """A weight that cannot be read is none of this module's business."""
    graph = networks()["linear"]

    class Unreadable:
        digest = "none"

        def numpy(self) -> np.ndarray:
            raise AssertionError("read")

    weights = tuple(w if expected_bytes(w.type) < 1 << 16 else replace(w, data=Unreadable()) for w in graph.weights)
    empty = replace(graph, weights=weights)
    assert lowered_without_weights(empty).nodes == lowered_without_weights(graph).nodes
    assert session_without_weights(empty).get_outputs()[0].shape == [4, 256]


def test_weights_in_subgraphs_stay() -> None:
    big = numpy_helper.from_array(np.ones((256, 256), np.float32), "inner")
    branches = [
        helper.make_graph(
            [helper.make_node("MatMul", ["x", "inner"], [f"y{i}"])], f"branch{i}", [],
            [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, [4, 256])], [big],
        )
        for i in range(2)
    ]  # fmt: skip
    node = helper.make_node("If", ["which"], ["y"], then_branch=branches[0], else_branch=branches[1])
    graph = helper.make_graph(
        [node], "chosen",
        [helper.make_tensor_value_info("which", TensorProto.BOOL, []),
         helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 256])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 256])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert [n.op for n in lowered_without_weights(from_onnx(model)).nodes] == ["If"]


def test_weights_that_are_inputs_stay() -> None:
    """Until IR version 4 each weight is an input that has a value unless it is given another."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "given",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 256]),
         helper.make_tensor_value_info("w", TensorProto.FLOAT, [256, 256])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 256])],
        [numpy_helper.from_array(np.ones((256, 256), np.float32), "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 7)], ir_version=3)
    made = lowered_without_weights(formats.from_bytes(model.SerializeToString()))
    assert "w" in made.weight


def test_positions_stay() -> None:
    """However many they are: any others would lie outside the axis."""
    b = GraphBuilder("positions")
    x = b.input("x", "float32", (1, 4))
    b.output(b.op("Gather", x, b.constant(np.zeros(9000, np.int64), "where"), axis=0), "out")
    graph = b.build()
    found = type_values(lowered_without_weights(graph), feeds_for(graph), given=graph)
    assert found.types["out"].shape == (9000, 4)

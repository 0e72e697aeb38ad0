"""What types a model's values have in a run."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from superopt import formats
from superopt.ir.graph import Graph
from superopt.runtime.executed_graph import type_values


def of_words() -> Graph:
    """A table looked up by words, which a session does not bind to memory."""
    nodes = [
        helper.make_node("LabelEncoder", ["words"], ["places"], domain="ai.onnx.ml", keys_strings=["a", "b"],
                         values_int64s=[0, 1], default_int64=0),
        helper.make_node("Gather", ["table", "places"], ["rows"]),
    ]  # fmt: skip
    words = helper.make_tensor_value_info("words", TensorProto.STRING, ["n"])
    rows = helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["n", 8])
    table = numpy_helper.from_array(np.ones((2, 8), np.float32), "table")
    versions = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(helper.make_graph(nodes, "words", [words], [rows], [table]), opset_imports=versions)
    return formats.from_onnx(model)


def of_pieces() -> Graph:
    """One of a sequence of tensors."""
    nodes = [
        helper.make_node("SplitToSequence", ["rows"], ["pieces"], axis=0),
        helper.make_node("SequenceAt", ["pieces", "last"], ["piece"]),
    ]
    rows = helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["n", 8])
    piece = helper.make_tensor_value_info("piece", TensorProto.FLOAT, None)
    last = numpy_helper.from_array(np.array(-1), "last")
    graph = helper.make_graph(nodes, "pieces", [rows], [piece], [last])
    return formats.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


@pytest.mark.parametrize(
    ("graph", "fed", "name", "shape"),
    [
        (of_words(), np.array(["a", "c", "b"], dtype=object), "rows", (3, 8)),
        (of_pieces(), np.ones((3, 8), np.float32), "piece", (1, 8)),
    ],
    ids=["strings", "sequences"],
)
def test_types_are_known_also_of_what_cannot_be_bound(
    graph: Graph, fed: np.ndarray, name: str, shape: tuple[int, ...]
) -> None:
    assert type_values(graph, {graph.inputs[0].name: fed}).types[name].shape == shape

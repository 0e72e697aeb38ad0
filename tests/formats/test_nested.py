"""Bodies in bodies: what is wrong in them is found, and looking for it takes no more where each holds two of them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from onnx import GraphProto, ModelProto, TensorProto, helper

from superopt.formats import from_bytes, shape_contradictions
from superopt.formats.control_flow_bodies import bodies, places_read
from superopt.ir.errors import InvalidModel, ResourceLimit
from superopt.ops.shape_inference import infer
from superopt.runtime.resource_limits import MOST_SUBGRAPHS, refuse_unbounded

SHAPE = [4, 8]


def body(depth: int, width: int, innermost: str, name: str = "g") -> GraphProto:
    """A graph with an If whose branches are such graphs, the first or both of them, and in the last one operator."""
    result = [helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, SHAPE)]
    if not depth:
        reads = ["x", "z"] if innermost == "MatMul" else ["x"]
        return helper.make_graph([helper.make_node(innermost, reads, [f"{name}_y"])], name, [], result)
    branches = [body(depth - 1 if n < width else 0, width, innermost, f"{name}{n}") for n in range(2)]
    node = helper.make_node("If", ["c"], [f"{name}_y"], then_branch=branches[0], else_branch=branches[1])
    return helper.make_graph([node], name, [], result)


def model(depth: int, width: int, innermost: str = "Relu") -> bytes:
    graph = body(depth, width, innermost)
    graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    for name in ("x", "z"):
        graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE))
    return bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    )


@pytest.mark.parametrize(("depth", "width"), [(1, 1), (6, 1), (14, 1), (6, 2)])
def test_a_contradiction_is_found_however_deep(depth: int, width: int) -> None:
    from_bytes(model(depth, width))
    with pytest.raises(InvalidModel, match="MatMul"):
        from_bytes(model(depth, width, "MatMul"))  # of [4, 8] and [4, 8]


def test_bodies_that_double_are_not_read_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    inferred = shape_contradictions.infer

    def counted(graph: Any) -> Any:
        read.append(len(graph.nodes) + sum(len(a.payload) for n in graph.nodes for a in n.attributes.values()))
        return inferred(graph)

    monkeypatch.setattr(shape_contradictions, "infer", counted)
    data = model(11, 2)
    from_bytes(data)
    assert sum(read) < 6 * len(data)  # reading every body at every level takes 11 times as much


def test_bodies_that_double_too_often_are_carried_through() -> None:
    """Of branches that nest in both, ten deep, none is read: the If is opaque, and the model comes back."""
    for depth, read in ((4, 2), (10, 0)):
        graph = from_bytes(model(depth, 2))
        assert len(list(bodies(graph, infer(graph)))) == read
        assert places_read(graph, list(bodies(graph, infer(graph)))) == frozenset([0] if read else [])


def test_a_model_of_more_subgraphs_than_a_runtime_reads_in_time_is_not_run() -> None:
    made = ModelProto.FromString(model(1, 1))
    held = made.graph.node.add(op_type="Select", domain="own", output=["s"]).attribute.add(name="bodies", type=10)
    made.opset_import.add(domain="own", version=1)
    for count, many in ((MOST_SUBGRAPHS - 2, False), (1, True)):  # the If has two
        held.graphs.extend(GraphProto(name="b") for _ in range(count))
        graph = from_bytes(made.SerializeToString())
        with pytest.raises(ResourceLimit, match="subgraphs") if many else nullcontext():
            refuse_unbounded(graph)

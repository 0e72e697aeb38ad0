"""Exported models with symbolic sizes: shapes computed from shapes, tables cut by a length. All stays symbolic."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from superopt.cost.device_profile import write_profile
from superopt.formats import from_onnx
from superopt.ops.shape_inference import OpaqueNode, infer
from superopt.pipeline import optimize

make = helper.make_node
WIDTH = 8


def constant(name: str, value: object) -> TensorProto:
    return numpy_helper.from_array(np.asarray(value), name)


def weight(name: str, *shape: int) -> TensorProto:
    return constant(name, (np.random.default_rng(len(name)).standard_normal(shape) * 0.1).astype(np.float32))


def size(source: str, axis: int, name: str, *, scalar: bool) -> list[NodeProto]:
    """One dimension, as TorchScript's exporter asks for it (a Gather) or as torch.export does (start, end of Shape)."""
    if not scalar:
        return [make("Shape", [source], [name], start=axis, end=axis + 1)]
    return [
        make("Shape", [source], [f"{name}.shape"]),
        make("Constant", [], [f"{name}.axis"], value=constant("", np.int64(axis))),
        make("Gather", [f"{name}.shape", f"{name}.axis"], [f"{name}.scalar"], axis=0),
        make("Unsqueeze", [f"{name}.scalar", "zero"], [name]),
    ]


def projection(source: str, result: str, name: str) -> tuple[list[NodeProto], list[TensorProto]]:
    """A linear layer whose product is scaled and unscaled: something to optimise."""
    nodes = [
        make("MatMul", [source, f"{name}.w"], [f"{name}.p"]),
        make("Mul", [f"{name}.p", "one"], [f"{name}.q"]),
        make("Add", [f"{name}.q", f"{name}.b"], [result]),
    ]
    return nodes, [weight(f"{name}.w", WIDTH, WIDTH), weight(f"{name}.b", WIDTH)]


def model(nodes: list[NodeProto], weights: list[TensorProto]) -> ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "seq", WIDTH])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "seq", WIDTH])
    shared = [constant("zero", np.array([0])), constant("first", np.array([1])), constant("one", np.float32(1))]
    graph = helper.make_graph(nodes, "g", [x], [y], [*shared, *weights])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def heads(scalar: bool) -> ModelProto:
    """Shape → Gather → Unsqueeze → Concat → Reshape → Transpose → … → Reshape."""
    before, first = projection("x", "h", "in")
    after, second = projection("joined", "y", "out")
    nodes = [
        *before, *size("x", 0, "b", scalar=scalar), *size("x", 1, "s", scalar=scalar),
        make("Concat", ["b", "s", "two", "four"], ["apart"], axis=0), make("Reshape", ["h", "apart"], ["heads"]),
        make("Transpose", ["heads"], ["turned"], perm=[0, 2, 1, 3]), make("Softmax", ["turned"], ["soft"], axis=-1),
        make("Transpose", ["soft"], ["back"], perm=[0, 2, 1, 3]),
        make("Concat", ["b", "s", "width"], ["together"], axis=0), make("Reshape", ["back", "together"], ["joined"]),
        *after,
    ]  # fmt: skip
    sizes = [constant("two", np.array([2])), constant("four", np.array([4])), constant("width", np.array([WIDTH]))]
    return model(nodes, [*first, *second, *sizes])


def positions(scalar: bool) -> ModelProto:
    """A table of 512 positions, cut to the length of the sequence and added."""
    before, first = projection("x", "h", "in")
    after, second = projection("placed", "y", "out")
    nodes = [
        *before, *size("x", 1, "s", scalar=scalar), make("Slice", ["table", "zero", "s", "first"], ["rows"]),
        make("Add", ["h", "rows"], ["placed"]), *after,
    ]  # fmt: skip
    return model(nodes, [*first, *second, weight("table", 1, 512, WIDTH)])


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("profile") / "roofline.jsonl.gz"
    write_profile(path, {"device": "a roofline", "threads": 1, "dispatch_ns": 200.0}, ())
    return f"profile:{path}"


@pytest.mark.parametrize("build", [heads, positions])
@pytest.mark.parametrize("scalar", [True, False], ids=["TorchScript", "torch.export"])
def test_symbolic_sizes_stay_and_the_model_is_optimised(build: object, scalar: bool, target: str) -> None:
    assert callable(build)
    graph = from_onnx(build(scalar))
    result = optimize(graph, target=target, time_limit=30)
    assert [v.type for v in result.graph.inputs] == [v.type for v in graph.inputs]
    assert [v.type for v in result.graph.outputs] == [v.type for v in graph.outputs]
    assert result.report.status == "improved", result.report.notes
    assert result.report.check.verdict == "passed"
    assert not any(n.op == "Mul" for n in result.graph.nodes), "scaling by one is gone on both sides"


def test_an_unknown_bound_is_one_barrier() -> None:
    graph = from_onnx(positions(True))
    typing = infer(graph)
    barriers = [n.op for n, known in zip(graph.nodes, typing.nodes, strict=True) if isinstance(known, OpaqueNode)]
    assert set(barriers) <= {"Slice", "Add", "Constant"}
    assert all(kind is not None and kind.shape is not None for kind in typing.types.values())

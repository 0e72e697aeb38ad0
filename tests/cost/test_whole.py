"""Costs and work of whole graphs, with answers that can be worked out by hand."""

import numpy as np
import pytest

from superopt.cost import (
    DeviceProfile,
    DeviceProfileStore,
    MeasuredCpuCostModel,
    ProfileCostModel,
    graph_cost,
    graph_work,
)
from superopt.cost.measurement_record import MeasurementRecord, key_of
from superopt.ir.graph import Graph, Node, Value, Weight, constant
from superopt.ir.size_polynomial import sym
from superopt.ir.types import DType, TensorType
from superopt.ops.shape_inference import infer
from superopt.runtime.synthetic_tensors import sample


def f(*shape):
    return TensorType(DType.FLOAT32, shape)


def graph(nodes, *, inputs, outputs, weights=()):
    return Graph(
        "g", tuple(Value(n, t) for n, t in inputs.items()), tuple(Value(n, None) for n in outputs),
        tuple(weights), tuple(nodes), {"": 21},
    )  # fmt: skip


def mlp(values=True):
    shapes = {"a": (64, 32), "b": (32,), "c": (32, 16)}
    weights = [constant(n, sample(f(*s))) if values else Weight(n, f(*s), None) for n, s in shapes.items()]
    nodes = [
        Node("m1", "MatMul", ("x", "a"), ("h1",)), Node("add", "Add", ("h1", "b"), ("h2",)),
        Node("relu", "Relu", ("h2",), ("h3",)), Node("m2", "MatMul", ("h3", "c"), ("y",)),
    ]  # fmt: skip
    return graph(nodes, inputs={"x": f(8, 64)}, outputs=["y"], weights=weights)


@pytest.fixture(scope="module")
def cpu(tmp_path_factory):
    """For all tests, as the ceilings of this processor take seconds to measure."""
    return MeasuredCpuCostModel(store=DeviceProfileStore("test", {}, tmp_path_factory.mktemp("store")))


def test_on_this_cpu_the_parts_are_what_onnx_runtime_runs(cpu):
    found = graph_cost(mlp(), cpu)
    assert found.measured_share == 1.0
    assert {op for _, op, _ in found.per_node}.isdisjoint({"Add"})  # it went into the matrix product
    assert len(found.per_node) < 4
    assert found.us >= sum(e.us for _, _, e in found.per_node) > 0


def test_shape_only_weights_can_be_costed(cpu):
    assert graph_cost(mlp(values=False), cpu).measured_share == 1.0


def test_without_measuring_the_share_says_so(tmp_path):
    found = graph_cost(mlp(), MeasuredCpuCostModel(store=DeviceProfileStore("idle", {}, tmp_path), time_limit=0.0))
    assert found.us > 0
    assert found.measured_share < 0.5
    assert all(e.source != "measured" for _, op, e in found.per_node if op not in ("Reshape",))


def test_a_recorded_profile_costs_the_graph_by_its_own_operators():
    found = graph_cost(mlp(), ProfileCostModel(DeviceProfile({}, {})))
    assert [n for n, _, _ in found.per_node] == ["m1", "add", "relu", "m2"]
    assert found.per_node[1][2].source == "free"
    assert found == graph_cost(mlp(), ProfileCostModel(DeviceProfile({}, {})))


def test_work_is_what_the_sizes_say():
    facts = graph_work(mlp(), infer(mlp()))
    assert facts["flops"] == 2 * 8 * 64 * 32 + 8 * 32 + 8 * 32 + 2 * 8 * 32 * 16
    assert facts["weight_bytes"] == 4 * (64 * 32 + 32 + 32 * 16)
    moved = (8 * 64 + 64 * 32 + 8 * 32) + (8 * 32 + 32 + 8 * 32) + (2 * 8 * 32) + (8 * 32 + 32 * 16 + 8 * 16)
    assert facts["bytes"] == 4 * moved
    assert facts["peak_activation_bytes"] == 4 * (8 * 64 + 8 * 32)
    assert facts["intensity"] == facts["flops"] / facts["bytes"]


def test_computing_on_weights_is_free_but_its_result_takes_memory():
    weights = [constant("a", sample(f(64, 8))), constant("b", sample(f(8, 64)))]
    nodes = [Node("w", "MatMul", ("a", "b"), ("w",)), Node("m", "MatMul", ("x", "w"), ("y",))]
    folded = graph(nodes, inputs={"x": f(2, 64)}, outputs=["y"], weights=weights)
    facts = graph_work(folded, infer(folded))
    assert facts["weight_bytes"] == 4 * 64 * 64
    assert facts["flops"] == 2 * 2 * 64 * 64
    found = graph_cost(folded, ProfileCostModel(DeviceProfile({}, {})))
    assert found.per_node[0][2].us == 0


def test_views_share_memory_and_dead_values_are_freed():
    shape = constant("s", np.array([64, 2]))
    nodes = [
        Node("r", "Relu", ("x",), ("a",)), Node("v", "Reshape", ("a", "s"), ("b",)), Node("n", "Neg", ("b",), ("c",)),
        Node("e", "Exp", ("c",), ("y",)),
    ]  # fmt: skip
    found = graph(nodes, inputs={"x": f(2, 64)}, outputs=["y"], weights=[shape])
    assert graph_work(found, infer(found))["peak_activation_bytes"] == 2 * 4 * 128


def test_a_long_chain_is_walked_without_recursion():
    count = 5_000
    names = ["x", *(f"v{i}" for i in range(count))]
    nodes = [Node(f"n{i}", "Relu", (names[i],), (names[i + 1],)) for i in range(count)]
    deep = graph(nodes, inputs={"x": f(4)}, outputs=[names[-1]])
    found = graph_cost(deep, ProfileCostModel(DeviceProfile({}, {})))
    assert len(found.per_node) == count
    assert found.peak_activation_bytes == 32


def test_what_nobody_understands_is_not_free(cpu):
    nodes = [Node("q", "Mystery", ("x",), ("y",), domain="odd")]
    odd = Graph("g", (Value("x", f(2)),), (Value("y", None),), (), tuple(nodes), {"": 21, "odd": 1})
    found = graph_cost(odd, cpu)
    assert found.us > 0
    assert found.measured_share < 1


def unrolled(steps, weights):
    """Products one after another; ``weights`` says which weight each step reads."""
    names = ["x", *(f"v{i}" for i in range(1, steps)), "y"]
    nodes = [Node(f"n{i}", "MatMul", (names[i], weights[i]), (names[i + 1],)) for i in range(steps)]
    held = [constant(n, sample(f(64, 64), i)) for i, n in enumerate(sorted(set(weights)))]
    return graph(nodes, inputs={"x": f(1, 64)}, outputs=["y"], weights=held)


def test_a_weight_that_is_read_again_soon_is_warm_and_a_copy_of_it_is_not():
    key = key_of("MatMul", {}, (f(1, 64), f(64, 64)), (False, True))
    header = {"cache_bytes": 64 * 64 * 4 * 5, "dispatch_ns": 200.0}
    profile = ProfileCostModel(DeviceProfile(header, {key.text: MeasurementRecord(key, 1000.0, 3000.0)}))

    def costs(*weights):
        return [round(e.us, 2) for _, _, e in graph_cost(unrolled(len(weights), weights), profile).per_node]

    copies = [f"w{i}" for i in range(12)]
    assert costs(*copies) == [3.0] * 12  # 12 weights, of which the cache holds 5
    assert costs(*["w"] * 12) == [1.0] * 12
    # one of them is read twice in a row, the others once an inference
    again = costs("w0", *copies)
    assert again[0] == again[2] == 3.0
    assert again[1] < 1.2
    assert sum(costs(*copies[:3] * 4)) < sum(costs(*copies))


@pytest.mark.parametrize(
    ("backend", "size", "free"),
    [("onnxruntime-cpu", 8, True), ("onnxruntime-cpu", sym("N"), False), ("superopt-cuda", 8, False)],
)
def test_integers_of_stated_sizes_cost_nothing_where_the_runtime_makes_constants_of_them(backend, size, free):
    """What torch writes for half of a tensor: Shape, Gather, Div. With the size open, all of it runs."""
    one, two = constant("one", np.array(1)), constant("two", np.array(2))
    nodes = [
        Node("s", "Shape", ("x",), ("s",)), Node("n", "Gather", ("s", "one"), ("n",)),
        Node("h", "Div", ("n", "two"), ("h",)), Node("c", "Cast", ("h",), ("c",), {"to": 1}),
        Node("y", "Mul", ("x", "c"), ("y",)),
    ]  # fmt: skip
    model = graph(nodes, inputs={"x": f(4, size)}, outputs=["y"], weights=[one, two])
    found = graph_cost(model, ProfileCostModel(DeviceProfile({"backend": backend}, {})), sizes={"N": 8})
    assert [e.source == "free" for _, op, e in found.per_node if op in ("Shape", "Gather")] == [free] * 2

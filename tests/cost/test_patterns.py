"""Groups of operators that ONNX Runtime runs as one kernel, checked against what ONNX Runtime does."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from superopt.cost import ONNX_RUNTIME_CPU, DeviceProfile, MeasurementRecord, ProfileCostModel, graph_cost
from superopt.cost.backend_capabilities import ONNX_RUNTIME_PATTERNS, SUPEROPT_CUDA, FusionPattern, groups
from superopt.cost.measurement_record import key_of
from superopt.ir.graph import Graph, Node, Value, constant
from superopt.ir.types import DType, TensorType
from superopt.ops.shape_inference import infer
from superopt.runtime.executed_graph import lowered

X = TensorType(DType.FLOAT32, (2, 8, 16))
ROW, WIDE = np.ones(16, np.float32), np.ones((16, 4), np.float32)


def kernels_in(graph: Graph, patterns: tuple[FusionPattern, ...] = ONNX_RUNTIME_PATTERNS) -> list[tuple[Node, ...]]:
    """The nodes of each group that runs as one kernel."""
    return [g.nodes for g in groups(graph, patterns, infer(graph).types)]


def graph(nodes, outputs=("y",), z=X, **values):
    weights = tuple(constant(k, np.array(v, np.float32)) for k, v in values.items())
    made = tuple(
        Node(f"n{i}", op, tuple(reads.split()), (out,), attributes)
        for i, (op, reads, out, attributes) in enumerate(nodes)
    )
    return Graph(
        "g", (Value("x", X), Value("z", z)), tuple(Value(o, None) for o in outputs), weights, made, {"": 17}
    )  # fmt: skip


def erf(first, c, **more):
    return [(first, "x c", "a", {}), ("Erf", "a", "b", {}), ("Add", "b one", "d", {})], {"c": c, "one": 1.0, **more}


def square(of="x", how="Pow"):
    first = ("Pow", f"{of} two", "p", {}) if how == "Pow" else ("Mul", f"{of} {of}", "p", {})
    return [first, ("ReduceMean", "p", "m", {"axes": (-1,)}), ("Add", "m e", "v", {}), ("Sqrt", "v", "s", {})]


def centred():
    return [("ReduceMean", "x", "mu", {"axes": (-1,)}), ("Sub", "x mu", "t", {})]


def tanh_gelu(*last):
    return [
        ("Pow", "x three", "p", {}), ("Mul", "p c", "q", {}), ("Add", "x q", "u", {}), ("Mul", "u r", "v", {}),
        ("Tanh", "v", "t", {}), ("Add", "t one", "d", {}), *last,
    ]  # fmt: skip


def factored_gelu(square: str) -> list[tuple[str, str, str, dict[str, object]]]:
    """GELU by tanh with x·(1 + 0.044715·x·x) for the sum, as Bloom has it, but its last product."""
    first, second = ("x c", "q x") if square == "x c x" else ("x x", "q c")
    return [
        ("Mul", "x h", "e", {}), ("Mul", "x r", "k", {}), ("Mul", first, "q", {}), ("Mul", second, "p", {}),
        ("Add", "p one", "u", {}), ("Mul", "k u", "v", {}), ("Tanh", "v", "t", {}), ("Add", "t one", "d", {}),
    ]  # fmt: skip


TANH = {"three": 3.0, "c": 0.044715, "r": 0.7978845608, "one": 1.0, "h": 0.5}
TWICE = (0, 2, 1)
DIV, DIV_C = erf("Div", 2**0.5, h=0.5)
MUL, MUL_C = erf("Mul", 0.5**0.5, h=0.5)
RMS = {"two": 2.0, "e": 1e-6, "g": ROW}
FUSED = {
    "gelu": (graph([*DIV, ("Mul", "x d", "e", {}), ("Mul", "e h", "y", {})], **DIV_C), "Gelu"),
    "gelu, the half first": (graph([*DIV, ("Mul", "x h", "e", {}), ("Mul", "e d", "y", {})], **DIV_C), "Gelu"),
    "gelu, factors swapped": (graph([*DIV, ("Mul", "d x", "e", {}), ("Mul", "h e", "y", {})], **DIV_C), "Gelu"),
    "silu": (graph([("Sigmoid", "x", "a", {}), ("Mul", "x a", "y", {})]), "QuickGelu"),
    "quick gelu": (
        graph([("Mul", "x c", "s", {}), ("Sigmoid", "s", "a", {}), ("Mul", "a x", "y", {})], c=1.702), "QuickGelu",
    ),
    "root mean square": (
        graph([*square(), ("Div", "x s", "d", {}), ("Mul", "d g", "y", {})], **RMS), "SimplifiedLayerNormalization",
    ),
    "root mean square, its inverse": (
        graph([*square(), ("Div", "one s", "r", {}), ("Mul", "x r", "d", {}), ("Mul", "d g", "y", {})], one=1.0, **RMS),
        "SimplifiedLayerNormalization",
    ),
    "layer normalisation": (
        graph([*centred(), *square("t"), ("Div", "t s", "d", {}), ("Mul", "d g", "q", {}), ("Add", "q b", "y", {})],
              b=ROW, **RMS), "LayerNormalization",
    ),
    "sum and normalisation": (
        graph([("Add", "x z", "a", {}), ("LayerNormalization", "a g b", "y", {"axis": -1})], g=ROW, b=ROW),
        "SkipLayerNormalization",
    ),
    "transposed": (graph([("Transpose", "x", "t", {"perm": TWICE}), ("MatMul", "t z", "y", {})]), "FusedMatMul"),
    "both transposed": (
        graph([("Transpose", "x", "t", {"perm": TWICE}), ("Transpose", "z", "u", {"perm": TWICE}),
               ("MatMul", "t u", "y", {})], z=TensorType(DType.FLOAT32, (2, 4, 8))), "FusedMatMul",
    ),
    "scaled": (graph([("Mul", "x c", "s", {}), ("MatMul", "s w", "y", {})], c=2.0, w=WIDE), "FusedMatMul"),
    "divided": (graph([("Div", "x c", "s", {}), ("MatMul", "s w", "y", {})], c=2.0, w=WIDE), "FusedMatMul"),
}  # fmt: skip
APART = {
    "gelu by tanh, the half inside": graph(tanh_gelu(("Mul", "d h", "e", {}), ("Mul", "x e", "y", {})), **TANH),
    "sum of two shapes and normalisation": graph(
        [("Add", "x g", "a", {}), ("LayerNormalization", "a g b", "y", {"axis": -1})], g=ROW, b=ROW),
    "gelu by a factor": graph([*MUL, ("Mul", "x d", "e", {}), ("Mul", "e h", "y", {})], **MUL_C),
    "gelu, the half inside": graph([*DIV, ("Mul", "d h", "e", {}), ("Mul", "x e", "y", {})], **DIV_C),
    "gelu of another root": graph(
        [*DIV, ("Mul", "x d", "e", {}), ("Mul", "e h", "y", {})], **{**DIV_C, "c": 1.7}
    ),
    "gelu whose sum is wanted": graph(
        [*DIV, ("Mul", "x d", "e", {}), ("Mul", "e h", "y", {})], ("y", "d"), **DIV_C
    ),
    "root mean square by a product": graph(
        [*square(how="Mul"), ("Div", "x s", "d", {}), ("Mul", "d g", "y", {})], **RMS
    ),
    "root mean square by a reciprocal": graph(
        [*square(), ("Reciprocal", "s", "r", {}), ("Mul", "x r", "d", {}), ("Mul", "d g", "y", {})], **RMS
    ),
    "sigmoid of a quotient": graph(
        [("Div", "x c", "s", {}), ("Sigmoid", "s", "a", {}), ("Mul", "a x", "y", {})], c=1.702
    ),
    "sigmoid of something else": graph([("Sigmoid", "z", "a", {}), ("Mul", "x a", "y", {})]),
}  # fmt: skip


@pytest.mark.parametrize("name", FUSED)
def test_onnx_runtime_runs_the_group_as_one_kernel(name):
    case, kernel = FUSED[name]
    assert [n.op for n in lowered(case).nodes] == [kernel]
    [group] = kernels_in(case)
    assert Counter(n.name for n in group) == Counter(n.name for n in case.nodes)


def test_a_gelu_by_tanh_is_one_kernel_where_something_reads_it():
    gelu = tanh_gelu(("Mul", "x h", "e", {}), ("Mul", "e d", "i", {}), ("Neg", "i", "y", {}))
    case = graph(gelu, **TANH)
    assert [n.op for n in lowered(case).nodes] == ["FastGelu", "Neg"]
    assert [len(nodes) for nodes in kernels_in(case)] == [len(case.nodes) - 1]


def test_a_gelu_by_tanh_of_a_product_is_one_kernel_too():
    """Bloom was made 3 % slower: a factor of it was taken into the next weights."""
    last = [("Mul", "e d", "i", {}), ("Neg", "i", "y", {})]
    case = graph([*factored_gelu("x c x"), *last], **TANH)
    assert [n.op for n in lowered(case).nodes] == ["FastGelu", "Neg"]
    assert [len(nodes) for nodes in kernels_in(case)] == [len(case.nodes) - 1]
    other = graph([*factored_gelu("x x c"), *last], **TANH)
    assert len(lowered(other).nodes) == len(other.nodes)
    assert kernels_in(other) == []


@pytest.mark.parametrize("name", FUSED)
def test_constants_may_be_nodes(name):
    """As PyTorch's exporter writes them, opset by opset: each a node, by itself, with a tensor or a number."""
    case, _ = FUSED[name]
    held = [w for w in case.weights if w.data is not None]
    given = {w.name: {"value": w} if i % 2 or w.type.elements != 1 or not w.type.dtype.is_float
             else {"value_float": float(w.data.numpy().reshape(-1)[0])} for i, w in enumerate(held)}  # fmt: skip
    made = tuple(Node(f"c{n}", "Constant", (), (n,), a) for n, a in given.items())
    nodes = replace(case, weights=tuple(w for w in case.weights if w.name not in given), nodes=(*made, *case.nodes))
    found, wanted = ([{n.name for n in g} for g in kernels_in(g)] for g in (nodes, case))
    assert found == wanted
    assert max(map(len, wanted)) > 1


@pytest.mark.parametrize("name", APART)
def test_what_onnx_runtime_does_not_fuse_is_no_group(name):
    case = APART[name]
    assert len(lowered(case).nodes) > 1
    assert all(len(g) < 3 for g in kernels_in(case))
    assert len(lowered(case).nodes) == len(case.nodes) - sum(len(g) - 1 for g in kernels_in(case))


def test_a_backend_without_patterns_has_no_groups():
    assert kernels_in(FUSED["gelu"][0], SUPEROPT_CUDA.patterns) == []
    assert ONNX_RUNTIME_CPU.patterns


def test_a_group_costs_what_its_dearest_operator_does_and_breaking_it_up_is_no_gain():
    whole, _ = FUSED["gelu"]
    broken = graph(
        [("Erf", "x", "b", {}), ("Add", "b one", "d", {}), ("Mul", "x d", "e", {}), ("Mul", "e h", "y", {})],
        one=1.0, h=0.5,
    )  # fmt: skip
    scalar = TensorType(DType.FLOAT32, ())
    keys = {op: key_of(op, {}, (X, scalar), (False, True)) for op in ("Div", "Add", "Mul")}
    keys |= {"Erf": key_of("Erf", {}, (X,)), "product": key_of("Mul", {}, (X, X), (False, False))}
    times = {"Div": 20e3, "Add": 10e3, "Mul": 10e3, "Erf": 50e3, "product": 10e3}
    profile = DeviceProfile(
        {"dispatch_ns": 200.0}, {k.text: MeasurementRecord(k, times[n], times[n]) for n, k in keys.items()}
    )
    model = ProfileCostModel(profile)
    assert graph_cost(whole, model).us == pytest.approx(50.0)
    assert graph_cost(broken, model).us == pytest.approx(80.0)


def test_identities_hide_no_kernel():
    """ONNX Runtime takes them out before it looks; a model that had them was priced without its (slow) kernel."""
    nodes = [
        ("Add", "x z", "a", {}), ("Identity", "a", "b", {}), ("Identity", "b", "c", {}),
        ("LayerNormalization", "c s t", "y", {"axis": -1}),
    ]  # fmt: skip
    found = kernels_in(graph(nodes, s=ROW, t=ROW))
    assert [[n.op for n in k] for k in found] == [["LayerNormalization", "Add"]]
    seen = graph([*nodes[:3], ("LayerNormalization", "c s t", "y", {"axis": -1})], outputs=("y", "b"), s=ROW, t=ROW)
    assert kernels_in(seen) == [], "what is an output is made"

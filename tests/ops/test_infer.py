"""Inference over whole graphs: symbolic sizes, computed shapes, barriers, and sizes that must not be materialised."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from superopt.ir.graph import ArrayWeightData, Graph, Node, OpaqueAttribute, Value, Weight, constant
from superopt.ir.size_polynomial import sym
from superopt.ir.types import DType, OpaqueType, TensorType
from superopt.ops.concat_slice_gather import clamp, placed
from superopt.ops.shape_inference import CanonicalNode, InferredTypes, OpaqueNode, infer

N, H = sym("N"), sym("H")


def f(*shape: Any) -> TensorType:
    return TensorType(DType.FLOAT32, shape)


def node(text: str, **attributes: Any) -> Node:
    """``node("y = Add(a, b)", axis=1)``"""
    outputs, _, call = text.partition(" = ")
    op, _, inputs = call.rstrip(")").partition("(")
    split = lambda s: tuple(n.strip() for n in s.split(",")) if s else ()  # noqa: E731
    return Node(outputs, op, split(inputs), split(outputs), attributes)


def typing(
    inputs: dict[str, Any], nodes: Sequence[Node], weights: dict[str, Any] | None = None, opset: int = 17, **more: Any
) -> InferredTypes:
    values = tuple(Value(n, t) for n, t in inputs.items())
    held = tuple(constant(n, np.asarray(a)) for n, a in (weights or {}).items())
    sizes = more.pop("sizes", None)
    outputs = more.pop("outputs", tuple(Value(o, None) for o in nodes[-1].outputs if o))
    return infer(Graph("g", values, outputs, held, tuple(nodes), {"": opset}, **more).checked(), sizes)


def test_exported_view_is_understood() -> None:
    """What PyTorch exports for ``x.view(x.size(0), -1, heads, x.size(2) // heads)``."""
    found = typing(
        {"x": f(N, H, 768)},
        [
            node("s = Shape(x)"), node("n = Gather(s, zero)", axis=0), node("h = Gather(s, two)", axis=0),
            node("d = Div(h, heads)"), node("n1 = Unsqueeze(n, axes)"), node("d1 = Unsqueeze(d, axes)"),
            node("c = Concat(n1, minus, heads1, d1)", axis=0), node("y = Reshape(x, c)"),
            node("z = Transpose(y)", perm=(0, 2, 1, 3)),
        ],
        {"zero": 0, "two": 2, "heads": 12, "axes": [0], "minus": [-1], "heads1": [12]},
    )  # fmt: skip
    assert not any(isinstance(n, OpaqueNode) for n in found.nodes)
    assert found.types["z"] == f(N, 12, H, 64)
    assert found.values["c"].integers == (N, -1, 12, 64)


def test_sizes_bind_names() -> None:
    found = typing({"x": f(N, 3)}, [node("y = Concat(x, x)", axis=0)], sizes={"N": 5})
    assert found.types == {"x": f(5, 3), "y": f(10, 3)}


def test_interpolation_by_float_arithmetic_on_sizes() -> None:
    """Shape → Cast → Mul by a scale → Floor → Cast, as old exporters write Resize's sizes."""
    found = typing(
        {"x": f(1, 3, H, 10)},
        [
            node("s = Shape(x)"), node("t = Slice(s, two, four)"), node("u = Cast(t)", to=1), node("v = Mul(u, k)"),
            node("w = Floor(v)"), node("a = Cast(w)", to=7), node("b = Slice(s, zero, two)"),
            node("c = Concat(b, a)", axis=0), node("y = Resize(x, , , c)", mode=b"linear"),
        ],
        {"two": [2], "four": [4], "zero": [0], "k": np.float32([2, 2])},
    )  # fmt: skip
    assert found.types["y"] == f(1, 3, 2 * H, 20)


@pytest.mark.parametrize("start", [-3, -1, 0, 2, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("end", [-3, -1, 0, 2, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("step", [1, -1, 3, -2])
def test_a_slice_of_an_empty_axis_is_empty(start: int, end: int, step: int) -> None:
    first, last, step = clamp(start, end, step, 0)
    low, high = placed(first, last, step, 0)
    assert low == high


def test_slice_of_an_open_size_is_decided_only_where_it_is_certain() -> None:
    cut = lambda start, end: typing(  # noqa: E731
        {"x": f(N, 4)}, [node("y = Slice(x, s, e)")], {"s": [start], "e": [end]}
    )
    assert cut(1, 2**63 - 1).types["y"] == f(N - 1, 4)
    assert cut(0, -1).types["y"] == f(N - 1, 4)
    assert isinstance(cut(3, 2**63 - 1).nodes[0], OpaqueNode)  # N may be 2
    assert isinstance(cut(0, 5).nodes[0], OpaqueNode)


@pytest.mark.parametrize(
    ("op", "shape"), [("ConstantOfShape", [2**20, 2**20]), ("Expand", [2**17, 2**17, 3]), ("Tile", [2**30])]
)
def test_huge_sizes_are_typed_and_not_made(op: str, shape: list[int]) -> None:
    inputs = "c" if op == "ConstantOfShape" else "x, c"
    found = typing({"x": f(1) if op == "Tile" else f(1, 3)}, [node(f"y = {op}({inputs})")], {"c": shape})
    assert found.types["y"] == f(*shape)


def test_range_of_a_million_million() -> None:
    bounds = {"a": np.int64(0), "b": np.int64(10**12), "c": np.int64(1)}
    found = typing({"x": f(1)}, [node("y = Range(a, b, c)")], bounds)
    assert found.types["y"] == TensorType(DType.INT64, (10**12,))


def test_a_tower_of_tiles_ends_in_a_barrier() -> None:
    tower = [node(f"v{p + 1} = Tile(v{p}, r)") for p in range(500)]
    found = typing({"v0": f(N, 3)}, tower, {"r": [2, 1]})
    assert found.types["v40"] == f(2**40 * N, 3)
    assert isinstance(found.nodes[-1], OpaqueNode)


def test_a_declared_type_that_contradicts_is_a_barrier() -> None:
    for stated in (f(2, 4), TensorType(DType.INT64, (2, 3)), f(2, 3, 1)):
        nodes = [node("y = Relu(x)"), node("z = Exp(y)")]
        found = typing({"x": f(2, 3)}, nodes, values=(Value("y", stated),))
        assert isinstance(found.nodes[0], OpaqueNode)
        assert "declares" in found.nodes[0].reason
        assert found.types["y"] is None
        assert isinstance(found.nodes[1], OpaqueNode)


def test_barriers_keep_declared_types_and_say_why() -> None:
    nodes = [node("y = Foo(x)"), node("z = Relu(y)"), Node("w", "Relu", ("z",), ("w",), domain="com.microsoft")]
    found = typing({"x": f(2, 3)}, nodes, values=(Value("y", f(N, 7)),))
    assert found.types["z"] == f(N, 7)
    assert isinstance(found.nodes[1], CanonicalNode)
    assert "Foo" in found.nodes[0].reason
    assert "com.microsoft" in found.nodes[2].reason
    assert found.types["w"] is None


def test_an_unused_extra_output_does_not_hide_the_operator() -> None:
    dropout = Node("d", "Dropout", ("x",), ("y", "mask"))
    assert isinstance(typing({"x": f(2)}, [dropout, node("z = Relu(y)")]).nodes[0], CanonicalNode)
    assert isinstance(typing({"x": f(2)}, [dropout, node("z = Not(mask)")]).nodes[0], OpaqueNode)


def test_an_overridable_weight_is_not_a_constant() -> None:
    shape = constant("s", np.array([6]))
    graph = Graph(
        "g", (Value("x", f(2, 3)), Value("s", shape.type)), (Value("y", None),), (shape,),
        (node("y = Reshape(x, s)"),), {"": 17},
    )  # fmt: skip
    assert isinstance(infer(graph).nodes[0], OpaqueNode)


HOSTILE: list[tuple[Node, dict[str, Any]]] = [
    (node("y = Transpose(x)", perm=(0, 5)), {}), (node("y = Transpose(x)", perm=b"ab"), {}),
    (node("y = Softmax(x)", axis=99), {}), (node("y = Softmax(x)", axis=1.5), {}),
    (node("y = Reshape(x, c)"), {"c": [-1, -1]}), (node("y = Reshape(x, c)"), {"c": [7, 7]}),
    (node("y = Reshape(x, c)"), {"c": [0, 0, 0]}), (node("y = Reshape(x, c)"), {"c": [0, -5]}),
    (node("y = Split(x)", split=(1, 1), axis=0), {}), (node("y = Cast(x)", to=77), {}),
    (node("y = Concat(x, x)"), {}), (node("y = Gemm(x, x)", alpha=float("nan")), {}),
    (node("y = MaxPool(x)", kernel_shape=(0, 0)), {}), (node("y = Conv(x, x)", strides=(0, 0)), {}),
    (node("y = Slice(x, c, c, c, c)"), {"c": [0]}), (node("y = Tile(x, c)"), {"c": [-1, 2]}),
    (node("y = Einsum(x)", equation=b"...->,->"), {}), (node("y = Pad(x, c)"), {"c": [-9, 0, 0, 0]}),
    (node("y = ConstantOfShape(c)"), {"c": [-1]}), (node("y = Relu()"), {}), (node("y = Add(x, x, x)"), {}),
    (node("y = Relu(x)", body=OpaqueAttribute(b"")), {}), (node("y = Constant()"), {}),
    (node("y = Range(c, c, c)"), {"c": np.int64(0)}), (node("y = EyeLike(x)", k=b"k"), {}),
    (node("y = Resize(x, , c)"), {"c": np.float32([0, -1])}), (node("y = ReduceSum(x, c)"), {"c": [0, 0]}),
    (node("y = DepthToSpace(x)", blocksize=0), {}), (node("y = GatherElements(x, c)"), {"c": [0.5]}),
    (node("y = Clip(x, c)"), {"c": [1.0, 2.0]}), (node("y = LRN(x)", size=-1), {}),
    (node("y = GroupNormalization(x, c, c)", num_groups=0), {"c": [1.0]}),
]  # fmt: skip


@pytest.mark.parametrize(("bad", "weights"), HOSTILE, ids=lambda v: v.op if isinstance(v, Node) else "")
@pytest.mark.parametrize("shape", [(2, 3), (N, 3), (), (0, 3)])
def test_nonsense_is_a_barrier_and_never_an_error(bad: Node, weights: dict[str, Any], shape: tuple[Any, ...]) -> None:
    for opset in (9, 21):
        (found,) = typing({"x": f(*shape)}, [bad], weights, opset=opset).nodes
        if shape == (2, 3) and opset == 21 and bad.op not in ("Gemm", "Pad"):
            assert isinstance(found, OpaqueNode)
            assert found.reason


def test_inputs_of_other_kinds() -> None:
    found = typing({"x": OpaqueType(b""), "y": None, "z": TensorType(DType.FLOAT32, None)}, [
        node("a = Relu(x)"), node("b = Relu(y)"), node("c = Relu(z)"), node("d = Shape(z)"),
    ])  # fmt: skip
    assert all(isinstance(n, OpaqueNode) for n in found.nodes)


def test_a_large_constant_node_is_typed_though_it_is_data() -> None:
    array = np.zeros((40, 40), np.float32)
    held = Weight("", TensorType(DType.FLOAT32, (40, 40)), ArrayWeightData(array))
    found = typing({"x": f(2, 40)}, [Node("c", "Constant", (), ("c",), {"value": held}), node("y = MatMul(x, c)")])
    assert isinstance(found.nodes[0], OpaqueNode)
    assert found.types["y"] == f(2, 40)


def test_a_dimension_named_like_an_index_variable_is_set_apart() -> None:
    found = typing({"x": f(sym("i0"), 3), "w": f(3, 4)}, [node("y = MatMul(x, w)")])
    assert found.types["y"].shape[0] == found.types["x"].shape[0] != sym("i0")


def test_a_long_chain_is_one_reading_per_form() -> None:
    chain = [node(f"v{p + 1} = Relu(v{p})") for p in range(20_000)]
    found = typing({"v0": f(N, 3)}, chain)
    assert found.types["v20000"] == f(N, 3)
    assert found.nodes[0].attributes is found.nodes[-1].attributes


ODD: list[Any] = [
    0, -1, 7, 2**63 - 1, -(2**63), 1.5, float("nan"), float("inf"), b"", b"\xff", (), (0,), (-1, 2**62), (1.5,),
    (b"a",), OpaqueAttribute(b"x"), Weight("", f(2), None),
]  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_mutated_nodes_never_raise(seed: int, samples: list[Any]) -> None:
    chance = random.Random(seed)
    for _ in range(500):
        sample = chance.choice(samples)
        names = [*sample.attributes, "axis", "shape", "to", "pads", "split", "value", "k", "mode"]
        odd = {**sample.attributes, chance.choice(names): chance.choice(ODD)}
        arrays = list(sample.arrays)
        if arrays and chance.random() < 0.5:
            arrays[chance.randrange(len(arrays))] = chance.choice([None, np.array([-1]), np.array(0.5), np.array([[]])])
        opset, outputs = chance.choice((1, 7, 11, 13, 21, 24)), chance.choice((1, 2))
        mutant = replace(sample, attributes=odd, arrays=tuple(arrays), opset=opset, outputs=outputs)
        (found,) = infer(mutant.graph(symbolic=chance.random() < 0.3)).nodes
        assert isinstance(found, CanonicalNode | OpaqueNode)

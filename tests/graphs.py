"""Graphs that the search is tested on."""

from __future__ import annotations

import numpy as np

from superopt.ir.graph import Graph, Node, Value, Weight, constant
from superopt.ir.size_polynomial import Dim
from superopt.ir.types import DType, TensorType
from superopt.runtime.reference import run


def f32(*shape: Dim) -> TensorType:
    return TensorType(DType.FLOAT32, shape)


def weight(name: str, *shape: int, seed: int = 0) -> Weight:
    generator = np.random.default_rng([seed, *map(ord, name)])
    return constant(name, (generator.standard_normal(shape) * 0.5).astype(np.float32))


def graph(inputs, outputs, weights, nodes, name="g") -> Graph:
    values = tuple(Value(n, t) for n, t in inputs.items())
    return Graph(name, values, tuple(Value(o, None) for o in outputs), tuple(weights), tuple(nodes), {"": 21}).checked()


def op(kind: str, out: str, *inputs: str, **attributes) -> Node:
    return Node(out, kind, inputs, (out,), attributes)


def feeds_of(model: Graph, size: int = 3, seed: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {
        v.name: generator.standard_normal([d if isinstance(d, int) else size for d in v.type.shape]).astype(np.float32)
        for v in model.inputs
    }


def assert_equivalent(before: Graph, after: Graph, size: int = 3) -> None:
    """Signature and values are the same."""
    assert [(v.name, v.type) for v in before.inputs] == [(v.name, v.type) for v in after.inputs]
    assert [v.name for v in before.outputs] == [v.name for v in after.outputs]
    feeds = feeds_of(before, size)
    wanted, found = run(before, feeds), run(after.checked(), feeds)
    for name, value in wanted.items():
        scale = 1 + np.abs(value).max(initial=0)
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5 * scale)


def qkv(count: int = 3) -> Graph:
    return graph(
        {"x": f32(4, 16)}, [f"y{i}" for i in range(count)], [weight(f"w{i}", 16, 8 + i) for i in range(count)],
        [op("MatMul", f"y{i}", "x", f"w{i}") for i in range(count)],
    )  # fmt: skip


def linear_stack(depth: int) -> Graph:
    nodes = [op("MatMul", f"y{i}", f"y{i - 1}" if i else "x", f"w{i}") for i in range(depth)]
    weights = [weight(f"w{i}", 16, 16) for i in range(depth)]
    return graph({"x": f32(4, 16)}, [f"y{depth - 1}"], weights, nodes)


def siamese(depth: int = 3) -> Graph:
    nodes = []
    for tower in "ab":
        value = tower
        for i in range(depth):
            nodes += [op("MatMul", f"{tower}m{i}", value, f"w{i}"), op("Relu", f"{tower}r{i}", f"{tower}m{i}")]
            value = f"{tower}r{i}"
    weights = [weight(f"w{i}", 8, 8) for i in range(depth)]
    return graph({"a": f32(4, 8), "b": f32(2, 8)}, [f"ar{depth - 1}", f"br{depth - 1}"], weights, nodes)


def two_hills() -> Graph:
    """A product of transposes, transposed: first the product must be turned round, which alone gains nothing."""
    return graph({"x": f32(12, 16), "y": f32(8, 12)}, ["z"], [], [
        op("Transpose", "a", "x", perm=(1, 0)), op("Transpose", "b", "y", perm=(1, 0)),
        op("MatMul", "m", "a", "b"), op("Transpose", "z", "m", perm=(1, 0)),
    ])  # fmt: skip


def ops_of(model: Graph) -> list[str]:
    return [n.op for n in model.nodes]

"""JAX: functions as graphs (skipped without JAX)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

import superopt  # noqa: E402
from superopt.formats import to_onnx_bytes  # noqa: E402
from superopt.ir.errors import Unsupported  # noqa: E402
from superopt.ir.graph import Graph  # noqa: E402
from superopt.runtime.onnx_runtime import ONNX_RUNTIME  # noqa: E402


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def attention(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2.0, axis=-1) @ v.transpose(0, 2, 1, 3)


def conv(x: Any, w: Any) -> Any:
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.nn.relu(lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=numbers)).mean((1, 2))


def moved(x: Any) -> Any:
    y = jnp.where(x > 0, x, jnp.exp(x))
    return [
        y[1:, ::2][::-1],
        jnp.pad(x, ((1, 0), (0, 2))),
        jnp.concatenate([x, y], 1).T,
        jnp.cumsum(x, 1),
        x.reshape(-1),
    ]


def normalised(x: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "perceptron": (
        lambda p, x: {"y": jax.nn.gelu(x @ p["w"] + p["b"][0])}, ({"w": normal(3, 4), "b": [normal(4)]}, normal(2, 3)),
    ),
    "attention": (attention, (normal(1, 3, 2, 4), normal(1, 5, 2, 4), normal(1, 5, 2, 4))),
    "conv": (conv, (normal(1, 8, 8, 3), normal(3, 3, 3, 4))),
    "normalised": (normalised, (normal(2, 5),)),
    "moved": (moved, (normal(3, 4),)),
    "pools": (
        lambda x: [
            lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME"),
            lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
        ],
        (normal(1, 5, 4, 2),),
    ),
    "taken": (lambda x: [jnp.take(x, jnp.array([1, 0, -1, 7]), axis=0), x[jnp.array([2, -3])]], (normal(3, 2),)),
    "batched": (jax.vmap(lambda a, b: a @ b, in_axes=(0, None)), (normal(4, 2, 3), normal(3, 5))),
    "gradient": (jax.grad(lambda x: (jnp.sin(x) @ x.T).sum()), (normal(3, 3),)),
    "integers": (lambda i: [i // 2, i % 3, i == 1, jax.nn.one_hot(i, 4)], (np.arange(-3, 4, dtype=np.int32),)),
}  # fmt: skip


def run(graph: Graph, leaves: list[Any]) -> list[np.ndarray]:
    feeds = {v.name: np.asarray(x) for v, x in zip(graph.inputs, leaves, strict=True)}
    return list(ONNX_RUNTIME.load(to_onnx_bytes(graph)).run(feeds, [v.name for v in graph.outputs]).values())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_graphs(name: str) -> None:
    function, inputs = FUNCTIONS[name]
    graph = superopt.from_jax(function, *inputs)
    found = run(graph, jax.tree_util.tree_leaves(inputs))
    expected = jax.tree_util.tree_leaves(function(*jax.tree_util.tree_map(jnp.asarray, inputs)))
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, np.asarray(want), rtol=1e-4, atol=1e-5)
        assert got.dtype == want.dtype


@pytest.mark.parametrize("name", ["attention", "conv", "normalised"])
def test_gradients_of_the_graph_are_those_of_the_function(name: str) -> None:
    function, inputs = FUNCTIONS[name]
    found = run(superopt.gradients(superopt.from_jax(function, *inputs)), list(inputs))
    expected = jax.grad(lambda *a: function(*a).sum(), argnums=tuple(range(len(inputs))))(*inputs)
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, np.asarray(want), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("function", "primitive"),
    [(jnp.sort, "sort"), (lambda x: lax.scan(lambda c, a: (c + a, c), 0.0, x)[0], "scan"), (jnp.fft.rfft, "fft")],
    ids=str,
)
def test_what_has_no_operator_is_named(function: Any, primitive: str) -> None:
    with pytest.raises(Unsupported, match=f"the primitive {primitive} has no operators here"):
        superopt.from_jax(function, (4,))


def test_names_say_where_a_leaf_is() -> None:
    graph = superopt.from_jax(FUNCTIONS["perceptron"][0], *FUNCTIONS["perceptron"][1])
    assert [v.name for v in graph.inputs] == ["x0['b'][0]", "x0['w']", "x1"]
    assert [v.name for v in graph.outputs] == ["y['y']"]

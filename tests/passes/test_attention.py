"""Attention takes heads packed: what takes them apart before it and joins them behind it goes."""

from __future__ import annotations

import numpy as np
import pytest

from superopt import formats
from superopt.frontend import GraphBuilder
from superopt.frontend.symbolic_tensor import SymbolicTensor
from superopt.ir.graph import Graph
from superopt.pipeline import optimize
from superopt.runtime import onnx_runtime

HEADS, WIDTH, ROWS, KEYS = 4, 8, 6, 5
MASKS: dict[str, tuple[int, ...] | None] = {
    "plain": None, "causal": None, "all": (ROWS, KEYS), "rows": (2, 1, ROWS, KEYS), "heads": (1, HEADS, ROWS, KEYS),
}  # fmt: skip


def attention(mask: str = "plain", *, batch: int | str = 2, order: tuple[int, ...] = (0, 2, 1, 3)) -> Graph:
    """Attention as PyTorch's exporter of opset 23 writes it."""
    b = GraphBuilder("attention", opset=23)
    q = b.input("q", "float32", (batch, ROWS, HEADS * WIDTH))
    k, v = (b.input(n, "float32", (batch, KEYS, HEADS * WIDTH)) for n in "kv")

    def split_heads(x: SymbolicTensor, length: int) -> SymbolicTensor:
        return b.op(
            "Transpose", b.op("Reshape", x, b.constant(np.array([-1, length, HEADS, WIDTH]))), perm=[0, 2, 1, 3]
        )

    shape = MASKS[mask]
    added = [] if shape is None else [b.input("m", "float32", shape)]
    made = b.op(
        "Attention",
        split_heads(q, ROWS),
        split_heads(k, KEYS),
        split_heads(v, KEYS),
        *added,
        scale=0.3,
        is_causal=int(mask == "causal"),
    )
    y = b.op("Transpose", made, perm=list(order))
    b.output(b.op("Reshape", y, b.constant(np.array([-1, ROWS, HEADS * WIDTH]))), "y")
    return b.build()


@pytest.mark.parametrize(("mask", "batch"), [*((m, 2) for m in MASKS), ("plain", "N"), ("causal", "N"), ("all", "N")])
def test_heads_stay_packed(mask: str, batch: int | str) -> None:
    graph = attention(mask, batch=batch)
    result = optimize(graph, target="profile:cpu-epyc-2core", time_limit=None)
    assert [n.op for n in result.graph.nodes] == ["Attention"]
    assert result.report.check.verdict == "passed"


def test_heads_that_are_joined_in_another_order_stay_apart() -> None:
    result = optimize(attention(order=(0, 1, 2, 3)), target="profile:cpu-epyc-2core", time_limit=None)
    assert "q_num_heads" not in next(n for n in result.graph.nodes if n.op == "Attention").attributes


def test_packed_heads_compute_the_same() -> None:
    graph = attention("all")
    result = optimize(graph, target="profile:cpu-epyc-2core", time_limit=None)
    rng = np.random.default_rng(0)
    shapes = {"q": (2, ROWS, HEADS * WIDTH), "k": (2, KEYS, HEADS * WIDTH), "v": (2, KEYS, HEADS * WIDTH)}
    feeds = {n: rng.standard_normal(s).astype(np.float32) for n, s in {**shapes, "m": (ROWS, KEYS)}.items()}
    old, new = (
        onnx_runtime.run(onnx_runtime.make_session(formats.to_onnx_bytes(g), threads=1), feeds)["y"]
        for g in (graph, result.graph)
    )
    np.testing.assert_allclose(new, old, rtol=1e-5, atol=1e-6)

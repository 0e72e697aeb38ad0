"""Transformer decoders: GPT-2 and the Llama family."""

from __future__ import annotations

from math import sqrt

import numpy as np

from corpus.models.layers import attention, causal_mask, concat, gelu_tanh, heads, layer_norm, linear, rms_norm
from superopt.frontend import GraphBuilder, SymbolicTensor
from superopt.ir.graph import Graph


def gpt2(
    name: str,
    *,
    layers: int = 4,
    width: int = 768,
    count: int = 12,
    vocabulary: int = 50257,
    time: int = 64,
    last: bool = False,
) -> Graph:
    """GPT-2 from token ids to logits, the head tied to the embedding.

    With ``last`` the last token's logits are sliced off at the very end, as generation loops do around a whole model.
    """
    b = GraphBuilder(name)
    ids = b.input("input_ids", "int64", (1, time))
    embedding = b.weight("wte", (vocabulary, width), scale=1 / sqrt(width))
    x = b.op("Gather", embedding, ids) * sqrt(width) + b.weight("wpe", (time, width), scale=0.2)
    mask, gain = causal_mask(b, time), 1 / sqrt(2 * layers)
    for layer in range(layers):
        with b.scope(f"h{layer}"):
            y = layer_norm(b, x, "ln_1", width)
            x = x + attention(b, y, "attn", width, count, time=time, mask=mask, gain=gain)
            y = linear(b, layer_norm(b, x, "ln_2", width), "c_fc", width, 4 * width, gain=sqrt(2))
            x = x + linear(b, gelu_tanh(y), "c_proj", 4 * width, width, gain=gain)
    logits = layer_norm(b, x, "ln_f", width) @ embedding.transpose(1, 0)
    if last:
        b.output(logits.slice(1, time - 1, time), "logits", shape=(1, 1, vocabulary))
    else:
        b.output(logits, "logits", shape=(1, time, vocabulary))
    return b.build()


def _rotary_tables(b: GraphBuilder, time: int, size: int, theta: float) -> tuple[SymbolicTensor, SymbolicTensor]:
    angles = np.outer(np.arange(time), theta ** -(np.arange(0, size, 2) / size))
    both = np.concatenate([angles, angles], axis=1)
    # Rounded, so that the file has the same bytes whatever the platform's libm says in the last place.
    return tuple(
        b.constant(np.round(f(both), 6).astype(np.float32), name=f"rotary.{f.__name__}") for f in (np.cos, np.sin)
    )  # type: ignore[return-value]


def _rotate(b: GraphBuilder, x: SymbolicTensor, size: int, cos: SymbolicTensor, sin: SymbolicTensor) -> SymbolicTensor:
    """Rotary embedding: x cos + rotate_half(x) sin."""
    low, high = x.slice(3, 0, size // 2), x.slice(3, size // 2, size)
    return x * cos + concat(b, [-high, low], 3) * sin


def llama(
    name: str,
    *,
    layers: int = 2,
    width: int = 2048,
    count: int = 32,
    groups: int = 8,
    hidden: int = 8192,
    vocabulary: int = 32000,
    time: int = 32,
    theta: float = 500000.0,
    qkv_bias: bool = False,
) -> Graph:
    """Llama-3.2-1B's layers (Qwen2's with ``qkv_bias``): RMS norm, rotary embedding, grouped-query attention, SwiGLU.

    The keys and values of ``groups`` heads are repeated to ``count`` heads by Unsqueeze, Expand, Reshape, as exported.
    """
    b = GraphBuilder(name)
    size, gain = width // count, 1 / sqrt(2 * layers)
    ids = b.input("input_ids", "int64", (1, time))
    x = b.op("Gather", b.weight("embed_tokens", (vocabulary, width)), ids)
    cos, sin = _rotary_tables(b, time, size, theta)
    mask = causal_mask(b, time)

    def repeated(y: SymbolicTensor) -> SymbolicTensor:
        shape = np.array([1, groups, count // groups, time, size])
        return b.op("Expand", y.unsqueeze(2), shape).reshape(1, count, time, size)

    for layer in range(layers):
        with b.scope(f"layer{layer}"):
            y = rms_norm(b, x, "input_norm", width)
            q = heads(linear(b, y, "q_proj", width, width, bias=qkv_bias), 1, time, count, size)
            k = heads(linear(b, y, "k_proj", width, groups * size, bias=qkv_bias), 1, time, groups, size)
            v = heads(linear(b, y, "v_proj", width, groups * size, bias=qkv_bias), 1, time, groups, size)
            q, k = _rotate(b, q, size, cos, sin), _rotate(b, k, size, cos, sin)
            scores = q @ repeated(k).transpose(0, 1, 3, 2) / sqrt(size) + mask
            y = (scores.softmax() @ repeated(v)).transpose(0, 2, 1, 3).reshape(1, time, width)
            x = x + linear(b, y, "o_proj", width, width, bias=False, gain=gain)
            y = rms_norm(b, x, "post_norm", width)
            gate = linear(b, y, "gate_proj", width, hidden, bias=False)
            y = gate * gate.sigmoid() * linear(b, y, "up_proj", width, hidden, bias=False)
            x = x + linear(b, y, "down_proj", hidden, width, bias=False, gain=2 * gain)
    logits = linear(b, rms_norm(b, x, "norm", width), "lm_head", width, vocabulary, bias=False)
    b.output(logits, "logits", shape=(1, time, vocabulary))
    return b.build()

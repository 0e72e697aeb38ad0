"""Transformer encoders: text, vision, speech, and kin."""

from __future__ import annotations

from math import sqrt

import numpy as np

from corpus.models.layers import attention, conv, gelu, heads, layer_norm, linear, rms_norm
from superopt.frontend import GraphBuilder, SymbolicTensor
from superopt.ir.graph import Graph


def bert(
    name: str,
    *,
    layers: int = 12,
    width: int = 768,
    count: int = 12,
    vocabulary: int = 30522,
    time: int = 128,
    dynamic: bool = False,
) -> Graph:
    """BERT-base, post-norm, from token ids to the pooled vector. ``dynamic`` leaves batch and time symbolic."""
    b = GraphBuilder(name)
    shape: tuple[int | str, ...] = ("batch", "sequence") if dynamic else (1, time)
    ids, mask = b.input("input_ids", "int64", shape), b.input("attention_mask", "int64", shape)
    kinds = b.input("token_type_ids", "int64", shape)
    bias = (1.0 - b.op("Cast", mask.unsqueeze(1, 2), to=1)) * -10000.0
    batch, steps = (0, -1) if dynamic else (1, time)
    with b.scope("embeddings"):
        words = b.op("Gather", b.weight("word", (vocabulary, width), scale=0.7), ids)
        positions = b.weight("position", (512 if dynamic else time, width), scale=0.4)
        if dynamic:
            positions = b.op("Gather", positions, b.input("position_ids", "int64", shape))
        x = words + positions + b.op("Gather", b.weight("token_type", (2, width), scale=0.4), kinds)
        x = layer_norm(b, x, "norm", width, epsilon=1e-12)
    for layer in range(layers):
        with b.scope(f"layer{layer}"):
            y = attention(b, x, "attention", width, count, batch=batch, time=steps, mask=bias)
            x = layer_norm(b, y + x, "attention.norm", width, epsilon=1e-12)
            y = linear(b, gelu(linear(b, x, "intermediate", width, 4 * width)), "output", 4 * width, width)
            x = layer_norm(b, y + x, "output.norm", width, epsilon=1e-12)
    pooled = linear(b, x.take(1, 0), "pooler", width, width).tanh()
    b.output(x, "last_hidden_state", shape=(*shape, width))
    b.output(pooled, "pooled", shape=(shape[0], width))
    return b.build()


def _pre_norm_layers(
    b: GraphBuilder, x: SymbolicTensor, layers: int, width: int, count: int, time: int, ratio: int
) -> SymbolicTensor:
    gain = 1 / sqrt(2 * layers)
    for layer in range(layers):
        with b.scope(f"layer{layer}"):
            y = layer_norm(b, x, "norm1", width)
            x = x + attention(b, y, "attention", width, count, time=time, gain=gain)
            y = gelu(linear(b, layer_norm(b, x, "norm2", width), "fc1", width, ratio * width, gain=sqrt(2)))
            x = x + linear(b, y, "fc2", ratio * width, width, gain=gain)
    return x


def vit(
    name: str, *, layers: int = 12, width: int = 768, count: int = 12, patch: int = 16, size: int = 224,
    classes: int = 1000,
) -> Graph:  # fmt: skip
    """ViT-B/16: patches, class token, pre-norm encoder, and only the class token used at the end."""
    b = GraphBuilder(name)
    time = (size // patch) ** 2
    x = b.input("image", "float32", (1, 3, size, size))
    x = conv(b, x, "patches", 3, width, patch, stride=patch, pad=0, bias=True, gain=1.0)
    x = x.reshape(1, width, time).transpose(0, 2, 1)
    x = b.op("Concat", b.weight("class_token", (1, 1, width)), x, axis=1)
    x = x + b.weight("position", (1, time + 1, width), scale=0.2)
    x = _pre_norm_layers(b, x, layers, width, count, time + 1, 4)
    x = layer_norm(b, x, "norm", width).take(1, 0)
    b.output(linear(b, x, "head", width, classes), "logits", shape=(1, classes))
    return b.build()


def whisper(name: str, *, layers: int = 4, width: int = 384, count: int = 6, mels: int = 80, time: int = 1500) -> Graph:
    """Whisper's encoder (tiny): two 1-D convolutions over the spectrogram, then a pre-norm encoder."""
    b = GraphBuilder(name)
    x = b.input("mel", "float32", (1, mels, 2 * time))
    x = gelu(conv(b, x, "conv1", mels, width, 3, bias=True, spatial=1))
    x = gelu(conv(b, x, "conv2", width, width, 3, stride=2, pad=1, bias=True, spatial=1)).transpose(0, 2, 1)
    x = x + b.weight("position", (time, width), scale=0.3)
    x = layer_norm(b, _pre_norm_layers(b, x, layers, width, count, time, 4), "norm", width)
    b.output(x, "states", shape=(1, time, width))
    return b.build()


def t5_encoder(
    name: str, *, layers: int = 6, width: int = 512, count: int = 8, hidden: int = 2048, vocabulary: int = 32128,
    time: int = 128,
) -> Graph:  # fmt: skip
    """T5-small's encoder: RMS norms, no biases, unscaled attention with a learned bias by bucketed distance."""
    b = GraphBuilder(name)
    ids = b.input("input_ids", "int64", (1, time))
    x = b.op("Gather", b.weight("embedding", (vocabulary, width)), ids)
    positions = b.constant(np.arange(time, dtype=np.int64), name="positions")
    distance = positions.unsqueeze(0) - positions.unsqueeze(1)
    # T5 buckets far distances logarithmically; here they saturate.
    buckets = b.op("Clip", distance, np.int64(-15), np.int64(15)) + 16
    bias = b.op("Gather", b.weight("relative_bias", (32, count), scale=0.5), buckets)
    bias = bias.transpose(2, 0, 1).unsqueeze(0)
    size = width // count
    for layer in range(layers):
        with b.scope(f"layer{layer}"):
            y = rms_norm(b, x, "norm1", width)
            q = heads(linear(b, y, "q", width, width, bias=False, gain=size**-0.5), 1, time, count, size)
            k = linear(b, y, "k", width, width, bias=False).reshape(1, time, count, size).transpose(0, 2, 3, 1)
            v = heads(linear(b, y, "v", width, width, bias=False), 1, time, count, size)
            y = ((q @ k + bias).softmax() @ v).transpose(0, 2, 1, 3).reshape(1, time, width)
            x = x + linear(b, y, "o", width, width, bias=False, gain=0.5)
            y = linear(b, rms_norm(b, x, "norm2", width), "wi", width, hidden, bias=False, gain=sqrt(2)).relu()
            x = x + linear(b, y, "wo", hidden, width, bias=False, gain=0.5)
    b.output(rms_norm(b, x, "norm", width), "states", shape=(1, time, width))
    return b.build()


def mlp_mixer(
    name: str, *, layers: int = 12, width: int = 768, token_hidden: int = 384, hidden: int = 3072, patch: int = 16,
    size: int = 224, classes: int = 1000,
) -> Graph:  # fmt: skip
    """MLP-Mixer B/16: products across tokens and across channels in turn."""
    b = GraphBuilder(name)
    time = (size // patch) ** 2
    x = b.input("image", "float32", (1, 3, size, size))
    x = conv(b, x, "patches", 3, width, patch, stride=patch, pad=0, bias=True, gain=1.0)
    x = x.reshape(1, width, time).transpose(0, 2, 1)
    for layer in range(layers):
        with b.scope(f"layer{layer}"):
            y = layer_norm(b, x, "norm1", width).transpose(0, 2, 1)
            y = gelu(linear(b, y, "token.fc1", time, token_hidden, gain=sqrt(2)))
            x = x + linear(b, y, "token.fc2", token_hidden, time, gain=0.3).transpose(0, 2, 1)
            y = gelu(linear(b, layer_norm(b, x, "norm2", width), "channel.fc1", width, hidden, gain=sqrt(2)))
            x = x + linear(b, y, "channel.fc2", hidden, width, gain=0.3)
    x = layer_norm(b, x, "norm", width).mean([1], keepdims=False)
    b.output(linear(b, x, "head", width, classes), "logits", shape=(1, classes))
    return b.build()


def linear_attention(
    name: str, *, layers: int = 4, width: int = 256, count: int = 4, time: int = 2048, ratio: int = 1
) -> Graph:
    """Linear attention, φ(x) = relu(x), written in the costly order (φ(Q) φ(K)ᵀ) V, then a small MLP."""
    b = GraphBuilder(name)
    size = width // count
    x = b.input("x", "float32", (1, time, width))
    for layer in range(layers):
        with b.scope(f"layer{layer}"):
            y = layer_norm(b, x, "norm1", width)
            q = heads(linear(b, y, "query", width, width), 1, time, count, size).relu()
            k = linear(b, y, "key", width, width).reshape(1, time, count, size).transpose(0, 2, 3, 1).relu()
            v = heads(linear(b, y, "value", width, width), 1, time, count, size)
            y = (q @ k @ v) * (1 / (time * sqrt(size)))
            x = x + linear(b, y.transpose(0, 2, 1, 3).reshape(1, time, width), "output", width, width)
            y = linear(b, layer_norm(b, x, "norm2", width), "fc1", width, ratio * width, gain=sqrt(2)).relu()
            x = x + linear(b, y, "fc2", ratio * width, width, gain=0.5)
    b.output(x, "y", shape=(1, time, width))
    return b.build()

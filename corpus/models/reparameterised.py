"""Networks trained with more structure than they need: branches, factors and adapters that algebra merges away."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt

from corpus.models.layers import RELU_GAIN, batch_norm, conv, conv_bn, gelu, gemm, global_pool, layer_norm, linear
from superopt.frontend import GraphBuilder, SymbolicTensor
from superopt.ir.graph import Graph


def _mobileone_block(
    b: GraphBuilder, x: SymbolicTensor, cin: int, cout: int, kernel: int, *, stride: int, groups: int, branches: int
) -> SymbolicTensor:
    """Skip BN + 1×1 scale branch (3×3 blocks only) + ``branches`` convolutions, each with its BN, summed, then ReLU."""
    parts: list[SymbolicTensor] = []
    count = branches + (kernel > 1) + (cin == cout and stride == 1)
    gain = 1 / sqrt(count)
    if kernel > 1:
        y = conv(b, x, "scale.conv", cin, cout, 1, stride=stride, pad=0, groups=groups)
        parts.append(batch_norm(b, y, "scale.bn", cout, gain=gain))
    if cin == cout and stride == 1:
        parts.append(batch_norm(b, x, "skip", cin, gain=gain))
    for index in range(branches):
        y = conv(b, x, f"conv{index}.conv", cin, cout, kernel, stride=stride, groups=groups)
        parts.append(batch_norm(b, y, f"conv{index}.bn", cout, gain=gain))
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total.relu()


def mobileone(
    name: str,
    widths: Sequence[int] = (48, 48, 128, 256, 1024),
    depths: Sequence[int] = (2, 8, 10, 1),
    *,
    branches: int = 4,
    size: int = 224,
    classes: int = 1000,
) -> Graph:
    """MobileOne-S0 as it is trained: every over-parameterised branch and its BatchNormalization present."""
    b = GraphBuilder(name)
    with b.scope("stage0"):
        image = b.input("image", "float32", (1, 3, size, size))
        x, cin = _mobileone_block(b, image, 3, widths[0], 3, stride=2, groups=1, branches=1), widths[0]
    for stage, (width, depth) in enumerate(zip(widths[1:], depths, strict=True), start=1):
        for block in range(depth):
            stride = 1 if block else 2
            with b.scope(f"stage{stage}.{block}.depthwise"):
                x = _mobileone_block(b, x, cin, cin, 3, stride=stride, groups=cin, branches=branches)
            with b.scope(f"stage{stage}.{block}.pointwise"):
                x = _mobileone_block(b, x, cin, width, 1, stride=1, groups=1, branches=branches)
            cin = width
    b.output(gemm(b, global_pool(b, x), "linear", cin, classes), "logits", shape=(1, classes))
    return b.build()


def repvgg(
    name: str,
    widths: Sequence[int] = (48, 48, 96, 192, 1280),
    depths: Sequence[int] = (1, 2, 4, 14, 1),
    *,
    size: int = 224,
    classes: int = 1000,
) -> Graph:
    """RepVGG-A0 as it is trained: 3×3 + 1×1 + identity branches, each with BatchNormalization."""
    b = GraphBuilder(name)
    x, cin = b.input("image", "float32", (1, 3, size, size)), 3
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        for block in range(depth):
            stride, same = (1 if block else 2), bool(block)
            gain = 1 / sqrt(3 if same else 2)
            with b.scope(f"stage{stage}.{block}"):
                y = conv(b, x, "dense.conv", cin, width, 3, stride=stride)
                y = batch_norm(b, y, "dense.bn", width, gain=gain)
                z = conv(b, x, "1x1.conv", cin, width, 1, stride=stride, pad=0)
                y = y + batch_norm(b, z, "1x1.bn", width, gain=gain)
                x = (y + batch_norm(b, x, "identity", width, gain=gain) if same else y).relu()
            cin = width
    b.output(gemm(b, global_pool(b, x), "linear", cin, classes), "logits", shape=(1, classes))
    return b.build()


def expand_conv(
    name: str, *, width: int = 64, ratio: int = 4, blocks: int = 6, size: int = 56, classes: int = 10
) -> Graph:
    """ExpandNets: every 3×3 convolution trained as 1×1 (wider) → 3×3 → 1×1 (narrower) with nothing in between."""
    b = GraphBuilder(name)
    x = conv_bn(b, b.input("image", "float32", (1, 3, size, size)), "stem", 3, width, 3)
    for block in range(blocks):
        with b.scope(f"block{block}"):
            y = conv(b, x, "expand", width, ratio * width, 1, gain=1.0)
            y = conv(b, y, "conv", ratio * width, ratio * width, 3, gain=1.0)
            x = conv(b, y, "reduce", ratio * width, width, 1, bias=True).relu()
    b.output(gemm(b, global_pool(b, x), "head", width, classes), "logits", shape=(1, classes))
    return b.build()


def deep_linear(
    name: str, *, widths: Sequence[int] = (784, *(1024,) * 8, 512), rows: int = 64, blocks: int = 1
) -> Graph:
    """A deep linear network (no activation anywhere): the object of the theory of implicit regularisation."""
    b = GraphBuilder(name)
    x = b.input("x", "float32", (rows, widths[0]))
    for index, (n_in, n_out) in enumerate(pairwise(widths)):
        x = linear(b, x, f"layer{index}", n_in, n_out)
    b.output(x, "y", shape=(rows, widths[-1]))
    return b.build()


def lora(name: str, *, width: int = 768, hidden: int = 3072, rank: int = 64, layers: int = 6, time: int = 128) -> Graph:
    """Transformer MLP blocks with unmerged low-rank adapters on every projection: xW + b + ((xA)B)·scale."""
    b = GraphBuilder(name)

    def adapted(x: SymbolicTensor, label: str, n_in: int, n_out: int) -> SymbolicTensor:
        base = linear(b, x, label, n_in, n_out)
        with b.scope(f"{label}.lora"):
            down = x @ b.weight("A", (n_in, rank), scale=1 / sqrt(n_in))
            return base + down @ b.weight("B", (rank, n_out), scale=0.2 / sqrt(rank)) * 2.0

    x = b.input("x", "float32", (1, time, width))
    for layer in range(layers):
        with b.scope(f"layer{layer}"):
            y = layer_norm(b, x, "norm", width)
            y = gelu(adapted(y, "up", width, hidden))
            x = x + adapted(y, "down", hidden, width)
    b.output(x, "y", shape=(1, time, width))
    return b.build()


def siamese(name: str, *, widths: Sequence[int] = (4096, 4096, 4096, 1024), rows: int = 1) -> Graph:
    """Two inputs through one tower with shared weights, compared by the cosine of their embeddings."""
    b = GraphBuilder(name)
    towers = [
        (
            b.weight(f"layer{i}.weight", (n_in, n_out), scale=RELU_GAIN / sqrt(n_in)),
            b.weight(f"layer{i}.bias", (n_out,), scale=0.02),
        )
        for i, (n_in, n_out) in enumerate(pairwise(widths))
    ]

    def embed(x: SymbolicTensor) -> SymbolicTensor:
        for index, (w, bias) in enumerate(towers):
            x = x @ w + bias
            x = x.relu() if index + 1 < len(towers) else x
        return x / ((x * x).sum([1]) + 1e-6).sqrt()

    left = embed(b.input("left", "float32", (rows, widths[0])))
    right = embed(b.input("right", "float32", (rows, widths[0])))
    b.output((left * right).sum([1], keepdims=False), "similarity", shape=(rows,))
    return b.build()

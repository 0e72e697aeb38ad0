"""Further networks of :mod:`lab.networks`, as exporters write public implementations of them: normalisations,
rotations, activations and gates by hand, heads by reshapes and transpositions, images as tokens and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

import numpy as np

from lab.layers import NetworkBuilder, batch_norm, conv, gelu, layer_norm, linear
from lab.published_networks import cut, sum_of, upsampled
from superopt.frontend import SymbolicTensor
from superopt.ir.graph import Graph

__all__ = ["EXPORTED"]


def number(value: float) -> float:
    """As float32 has it."""
    return float(np.float32(value))


def product(b: NetworkBuilder, x: SymbolicTensor, k: int, n: int) -> SymbolicTensor:
    """A linear layer without a bias."""
    return x @ b.param("w", (k, n), scale=0.1)


def silu(x: SymbolicTensor) -> SymbolicTensor:
    return x * x.sigmoid()


def rms_norm(b: NetworkBuilder, x: SymbolicTensor, d: int) -> SymbolicTensor:
    power = (x * x).mean([-1]) + 1e-6
    return b.param("s", (d,)) * (x * b.op("Reciprocal", b.op("Sqrt", power)))


def norm_2d(b: NetworkBuilder, x: SymbolicTensor, d: int) -> SymbolicTensor:
    """LayerNorm2d of image networks: over channels."""
    y = x - x.mean([1])
    y = y / b.op("Sqrt", (y * y).mean([1]) + 1e-6)
    return y * b.param("s", (d, 1, 1)) + b.param("t", (d, 1, 1))


def halves(b: NetworkBuilder, x: SymbolicTensor, axis: int) -> list[SymbolicTensor]:
    return list(b.ops("Split", x, outputs=2, axis=axis, num_outputs=2))


def heads_of(x: SymbolicTensor, n: int, heads: int, width: int) -> SymbolicTensor:
    return x.reshape(1, n, heads, width).transpose(0, 2, 1, 3)


def merged(x: SymbolicTensor, n: int, d: int) -> SymbolicTensor:
    return x.transpose(0, 2, 1, 3).reshape(1, n, d)


def feed_forward(b: NetworkBuilder, x: SymbolicTensor, d: int) -> SymbolicTensor:
    return linear(b, gelu(linear(b, x, d, 4 * d)), 4 * d, d)


def nafnet() -> Graph:
    """NAFNet (Chen 2022): no activations but products of halves, channel attention, residual scales."""
    b, d = NetworkBuilder("nafnet"), 32
    image = b.input("image", "float32", (1, 3, 64, 64))
    x = conv(b, image, 3, d, 3)
    for _ in range(3):
        y = conv(b, conv(b, norm_2d(b, x, d), d, 2 * d, 1), 2 * d, 2 * d, 3, groups=2 * d)
        u, v = halves(b, y, 1)
        y = u * v
        y = conv(b, y * conv(b, y.mean([2, 3]), d, d, 1), d, d, 1)
        x = x + y * b.param("beta", (1, d, 1, 1))
        u, v = halves(b, conv(b, norm_2d(b, x, d), d, 2 * d, 1), 1)
        x = x + conv(b, u * v, d, d, 1) * b.param("gamma", (1, d, 1, 1))
    b.output(conv(b, x, d, 3, 3) + image, "out")
    return b.build()


def restormer() -> Graph:
    """Restormer (Zamir 2022): attention between channels of normalised queries and keys."""
    b, d, heads, s = NetworkBuilder("restormer"), 48, 2, 48
    x = conv(b, b.input("image", "float32", (1, 3, s, s)), 3, d, 3, bias=False)

    def unit(t: SymbolicTensor) -> SymbolicTensor:
        return t / b.op("Sqrt", b.op("ReduceSum", t * t, b.constant(np.array([3], np.int64)), keepdims=1))

    for _ in range(2):
        y = layer_norm(b, x.reshape(1, d, s * s).transpose(0, 2, 1), d).transpose(0, 2, 1).reshape(1, d, s, s)
        y = conv(b, conv(b, y, d, 3 * d, 1, bias=False), 3 * d, 3 * d, 3, groups=3 * d, bias=False)
        parts = b.ops("Split", y, outputs=3, axis=1, num_outputs=3)
        q, k, v = (t.reshape(1, heads, d // heads, s * s) for t in parts)
        scores = (unit(q) @ unit(k).transpose(0, 1, 3, 2)) * b.param("temperature", (heads, 1, 1))
        x = x + conv(b, (scores.softmax(-1) @ v).reshape(1, d, s, s), d, d, 1, bias=False)
        y = layer_norm(b, x.reshape(1, d, s * s).transpose(0, 2, 1), d).transpose(0, 2, 1).reshape(1, d, s, s)
        u, v = halves(b, conv(b, conv(b, y, d, 4 * d, 1, bias=False), 4 * d, 4 * d, 3, groups=4 * d, bias=False), 1)
        x = x + conv(b, gelu(u) * v, 2 * d, d, 1, bias=False)
    b.output(x, "out")
    return b.build()


def pspnet() -> Graph:
    """PSPNet's head (Zhao 2017): pooled at four scales, projected, enlarged, concatenated; an enlarged result."""
    b, d, s = NetworkBuilder("pspnet"), 128, 24
    x = b.input("features", "float32", (1, d, s, s))
    parts = [x]
    for size in (1, 2, 3, 6):
        k = s // size
        y = b.op("AveragePool", x, kernel_shape=[k, k], strides=[k, k])
        y = batch_norm(b, conv(b, y, d, d // 4, 1, bias=False), d // 4).relu()
        parts.append(upsampled(b, y, k))
    y = batch_norm(b, conv(b, b.op("Concat", *parts, axis=1), 2 * d, 64, 3, bias=False), 64).relu()
    b.output(upsampled(b, conv(b, y, 64, 21, 1), 8), "out")
    return b.build()


def espcn() -> Graph:
    """ESPCN (Shi 2016): convolutions at the small size, channels to space."""
    b = NetworkBuilder("espcn")
    x = b.input("image", "float32", (1, 1, 96, 96))
    x = conv(b, conv(b, x, 1, 64, 5).tanh(), 64, 32, 3).tanh()
    b.output(b.op("DepthToSpace", conv(b, x, 32, 9, 3), blocksize=3, mode="CRD"), "out")
    return b.build()


def hifigan() -> Graph:
    """HiFi-GAN's generator (Kong 2020): transposed convolutions, and residual stacks of three windows averaged."""
    b, d = NetworkBuilder("hifigan"), 64
    x = conv(b, b.input("mel", "float32", (1, 40, 48)), 40, d, 7, axes=1)
    for _ in range(2):
        x = b.op("LeakyRelu", x, alpha=0.1)
        x = b.op("ConvTranspose", x, b.param("k", (d, d // 2, 8), scale=0.1), b.param("c", (d // 2,)),
                 strides=[4], pads=[2, 2])  # fmt: skip
        d //= 2
        stacks = []
        for k in (3, 5, 7):
            y = x
            for dilation in (1, 3):
                z = conv(b, b.op("LeakyRelu", y, alpha=0.1), d, d, k, axes=1, dilation=dilation)
                y = y + conv(b, b.op("LeakyRelu", z, alpha=0.1), d, d, k, axes=1)
            stacks.append(y)
        x = sum_of(stacks) / 3.0
    b.output(conv(b, b.op("LeakyRelu", x, alpha=0.01), d, 1, 7, axes=1).tanh(), "out")
    return b.build()


def whisper() -> Graph:
    """Whisper's encoder (Radford 2022): two convolutions, positions, queries and keys scaled by the fourth root."""
    b, n, d, heads = NetworkBuilder("whisper"), 128, 192, 3
    x = gelu(conv(b, b.input("mel", "float32", (1, 80, 2 * n)), 80, d, 3, axes=1))
    x = gelu(conv(b, x, d, d, 3, axes=1, stride=2)).transpose(0, 2, 1) + b.param("positions", (n, d))
    scale = number((d // heads) ** -0.25)
    for _ in range(2):
        y = layer_norm(b, x, d)
        q = heads_of(linear(b, y, d, d), n, heads, d // heads) * scale
        k = product(b, y, d, d).reshape(1, n, heads, d // heads).transpose(0, 2, 3, 1) * scale
        v = heads_of(linear(b, y, d, d), n, heads, d // heads)
        x = x + linear(b, merged((q @ k).softmax(-1) @ v, n, d), d, d)
        x = x + feed_forward(b, layer_norm(b, x, d), d)
    b.output(layer_norm(b, x, d), "out")
    return b.build()


def conformer() -> Graph:
    """Conformer (Gulati 2020): half-steps of a feed-forward part around a gated convolution module."""
    b, n, d = NetworkBuilder("conformer"), 160, 144
    x = b.input("frames", "float32", (1, n, d))
    for _ in range(2):
        x = x + linear(b, silu(linear(b, layer_norm(b, x, d), d, 4 * d)), 4 * d, d) * 0.5
        y = conv(b, layer_norm(b, x, d).transpose(0, 2, 1), d, 2 * d, 1, axes=1)
        u, v = halves(b, y, 1)
        y = silu(batch_norm(b, conv(b, u * v.sigmoid(), d, d, 15, axes=1, groups=d), d))
        x = x + conv(b, y, d, d, 1, axes=1).transpose(0, 2, 1)
        x = x + linear(b, silu(linear(b, layer_norm(b, x, d), d, 4 * d)), 4 * d, d) * 0.5
        x = layer_norm(b, x, d)
    b.output(x, "out")
    return b.build()


def acnet() -> Graph:
    """ACNet (Ding 2019) as it is trained: square, horizontal and vertical windows side by side, each normalised."""
    b, d = NetworkBuilder("acnet"), 48
    x = conv(b, b.input("image", "float32", (1, 3, 64, 64)), 3, d, 3, stride=2)

    def strip(y: SymbolicTensor, k: tuple[int, int]) -> SymbolicTensor:
        kernel = b.param("k", (d, d, *k), scale=0.1)
        pads = [k[0] // 2, k[1] // 2] * 2
        return b.op("Conv", y, kernel, strides=[1, 1], pads=pads, dilations=[1, 1], group=1)

    for _ in range(3):
        x = sum_of([batch_norm(b, strip(x, k), d) for k in ((3, 3), (1, 3), (3, 1))]).relu()
    b.output(x, "out")
    return b.build()


def large_kernel() -> Graph:
    """VAN (Guo 2022): two depthwise windows, one with gaps, and a projection, which multiply the input."""
    b, d = NetworkBuilder("large_kernel"), 64
    x = conv(b, b.input("image", "float32", (1, 3, 112, 112)), 3, d, 7, stride=4)
    for _ in range(2):
        y = gelu(conv(b, batch_norm(b, x, d), d, d, 1))
        z = conv(b, conv(b, y, d, d, 5, groups=d), d, d, 7, groups=d, dilation=3)
        x = x + (conv(b, y * conv(b, z, d, d, 1), d, d, 1) + batch_norm(b, x, d)) * b.param("scale", (d, 1, 1))
        y = conv(b, conv(b, batch_norm(b, x, d), d, 4 * d, 1), 4 * d, 4 * d, 3, groups=4 * d)
        x = x + conv(b, gelu(y), 4 * d, d, 1) * b.param("scale", (d, 1, 1))
    b.output(x, "out")
    return b.build()


def deepfm() -> Graph:
    """DeepFM (Guo 2017): half of the square of the sum less the sum of squares, beside a deep tower."""
    b, f, d = NetworkBuilder("deepfm"), 26, 16
    x = b.input("embeddings", "float32", (256, f, d))
    axis = b.constant(np.array([1], np.int64))
    total = b.op("ReduceSum", x, axis, keepdims=0)
    pairs = (total * total - b.op("ReduceSum", x * x, axis, keepdims=0)) * 0.5
    second = b.op("ReduceSum", pairs, axis, keepdims=1)
    y = x.reshape(256, f * d)
    first = linear(b, y, f * d, 1)
    for width in (f * d, 256):
        y = batch_norm(b, linear(b, y, width, 256), 256).relu()
    b.output((first + second + linear(b, y, 256, 1)).sigmoid(), "out")
    return b.build()


def tabnet() -> Graph:
    """TabNet's feature transformer (Arik 2021): normalised gated layers, sums scaled by the root of a half."""
    b, d = NetworkBuilder("tabnet"), 128
    x = batch_norm(b, b.input("rows", "float32", (256, d)), d)
    for block in range(4):
        u, v = halves(b, batch_norm(b, product(b, x, d, 2 * d), 2 * d), 1)
        y = u * v.sigmoid()
        x = (x + y) * number(0.5**0.5) if block else y
    b.output(product(b, x, d, 8), "out")
    return b.build()


def patch_tst() -> Graph:
    """PatchTST (Nie 2023): patches of a series, batch norm between transpositions, a flat head."""
    b, c, n, p, d, heads = NetworkBuilder("patch_tst"), 7, 42, 16, 128, 4
    x = linear(b, b.input("patches", "float32", (c, n, p)), p, d) + b.param("positions", (n, d))
    for _ in range(2):
        q, k, v = (linear(b, x, d, d).reshape(c, n, heads, d // heads).transpose(0, 2, 1, 3) for _ in range(3))
        y = ((q @ k.transpose(0, 1, 3, 2)) * number((d // heads) ** -0.5)).softmax(-1) @ v
        x = x + linear(b, y.transpose(0, 2, 1, 3).reshape(c, n, d), d, d)
        x = batch_norm(b, x.transpose(0, 2, 1), d).transpose(0, 2, 1)
        x = x + linear(b, gelu(linear(b, x, d, 2 * d)), 2 * d, d)
        x = batch_norm(b, x.transpose(0, 2, 1), d).transpose(0, 2, 1)
    b.output(linear(b, x.transpose(0, 2, 1).reshape(c, d * n), d * n, 96), "out")
    return b.build()


def gated_residual() -> Graph:
    """The gated residual network of temporal fusion transformers (Lim 2021)."""
    b, d = NetworkBuilder("gated_residual"), 160
    x, context = b.input("x", "float32", (256, d)), b.input("context", "float32", (256, d))
    for _ in range(3):
        y = b.op("Elu", linear(b, x, d, d) + product(b, context, d, d), alpha=1.0)
        y = linear(b, y, d, d)
        x = layer_norm(b, x + linear(b, y, d, d).sigmoid() * linear(b, y, d, d), d)
    b.output(x, "out")
    return b.build()


def film() -> Graph:
    """FiLM (Perez 2018): features scaled and shifted by layers of a condition."""
    b, d = NetworkBuilder("film"), 64
    x = conv(b, b.input("image", "float32", (1, 3, 56, 56)), 3, d, 3, stride=2)
    question = b.input("question", "float32", (1, 128))
    for _ in range(3):
        gamma, beta = (linear(b, question, 128, d).reshape(1, d, 1, 1) for _ in range(2))
        y = conv(b, x, d, d, 1).relu()
        x = y + (batch_norm(b, conv(b, y, d, d, 3), d) * (gamma + 1.0) + beta).relu()
    b.output(x.mean([2, 3]), "out")
    return b.build()


def hrnet() -> Graph:
    """HRNet's fusion (Wang 2019): each resolution is the sum of all, projected and enlarged, or strided."""
    b = NetworkBuilder("hrnet")
    high, low = b.input("high", "float32", (1, 32, 56, 56)), b.input("low", "float32", (1, 64, 28, 28))
    for _ in range(2):
        up = upsampled(b, batch_norm(b, conv(b, low, 64, 32, 1, bias=False), 32), 2)
        down = batch_norm(b, conv(b, high, 32, 64, 3, stride=2, bias=False), 64)
        high, low = (high + up).relu(), (down + low).relu()
        high = batch_norm(b, conv(b, high, 32, 32, 3, bias=False), 32).relu()
        low = batch_norm(b, conv(b, low, 64, 64, 3, bias=False), 64).relu()
    b.output(conv(b, b.op("Concat", high, upsampled(b, low, 2), axis=1), 96, 17, 1), "out")
    return b.build()


def rwkv_mix() -> Graph:
    """RWKV's channel mixing (Peng 2023): each token mixed with the one before, squared activations."""
    b, n, d = NetworkBuilder("rwkv_mix"), 128, 192
    x = b.input("tokens", "float32", (1, n, d))
    for _ in range(3):
        y = layer_norm(b, x, d)
        pads = b.constant(np.array([0, 1, 0, 0, -1, 0], np.int64))
        before = b.op("Pad", y, pads, mode="constant")
        mu, nu = b.param("mu", (1, 1, d)), b.param("nu", (1, 1, d))
        k = product(b, y * mu + before * (1.0 - mu), d, 4 * d).relu()
        r = product(b, y * nu + before * (1.0 - nu), d, d).sigmoid()
        x = x + r * product(b, k * k, 4 * d, d)
    b.output(x, "out")
    return b.build()


def gated_conv() -> Graph:
    """Mamba's block without its scan (Gu 2023): a short causal depthwise convolution, and a gate."""
    b, n, d = NetworkBuilder("gated_conv"), 256, 128
    x = b.input("tokens", "float32", (1, n, d))
    for _ in range(3):
        u, z = halves(b, product(b, rms_norm(b, x, d), d, 4 * d), 2)
        kernel, bias = b.param("k", (2 * d, 1, 4), scale=0.3), b.param("c", (2 * d,))
        u = b.op("Conv", u.transpose(0, 2, 1), kernel, bias, strides=[1], pads=[3, 3], dilations=[1], group=2 * d)
        u = silu(cut(b, u, [2], [0], [n])).transpose(0, 2, 1)
        x = x + product(b, u * b.param("skip", (2 * d,)) * silu(z), 2 * d, d)
    b.output(x, "out")
    return b.build()


def clip_vision() -> Graph:
    """CLIP's image tower (Radford 2021): patches, a quick GELU, the first token projected and normalised."""
    b, n, d, heads = NetworkBuilder("clip_vision"), 64, 192, 3
    x = conv(b, b.input("image", "float32", (1, 3, 128, 128)), 3, d, 16, stride=16, pad=0, bias=False)
    x = x.reshape(1, d, n).transpose(0, 2, 1) + b.param("positions", (n, d))
    x = layer_norm(b, x, d)
    for _ in range(2):
        y = layer_norm(b, x, d)
        q = heads_of(linear(b, y, d, d) * number((d // heads) ** -0.5), n, heads, d // heads)
        k, v = (heads_of(linear(b, y, d, d), n, heads, d // heads) for _ in range(2))
        x = x + linear(b, merged((q @ k.transpose(0, 1, 3, 2)).softmax(-1) @ v, n, d), d, d)
        y = linear(b, layer_norm(b, x, d), d, 4 * d)
        x = x + linear(b, y * (y * 1.702).sigmoid(), 4 * d, d)
    y = product(b, layer_norm(b, cut(b, x, [1], [0], [1]).reshape(1, d), d), d, 128)
    power = b.op("ReduceSum", y * y, b.constant(np.array([1], np.int64)), keepdims=1)
    b.output(y / b.op("Sqrt", power), "out")
    return b.build()


def bifpn() -> Graph:
    """EfficientDet's pyramid (Tan 2020): weighted sums of levels, divided by the sum of weights, separable layers."""
    b, d = NetworkBuilder("bifpn"), 64
    a, c = b.input("fine", "float32", (1, d, 48, 48)), b.input("coarse", "float32", (1, d, 24, 24))

    def separable(x: SymbolicTensor) -> SymbolicTensor:
        return batch_norm(b, conv(b, conv(b, x, d, d, 3, groups=d, bias=False), d, d, 1), d)

    for _ in range(2):
        v, w = (b.param("w", ()).relu() for _ in range(2))
        fine = separable(silu((v * a + w * upsampled(b, c, 2)) / (v + w + 1e-4)))
        pooled = b.op("MaxPool", fine, kernel_shape=[2, 2], strides=[2, 2])
        v, w = (b.param("w", ()).relu() for _ in range(2))
        a, c = fine, separable(silu((v * c + w * pooled) / (v + w + 1e-4)))
    b.output(a, "out_fine")
    b.output(c, "out_coarse")
    return b.build()


def inception_next() -> Graph:
    """InceptionNeXt (Yu 2024): depthwise square and strips on some channels, the others as they are."""
    b, d, g = NetworkBuilder("inception_next"), 96, 12
    x = conv(b, b.input("image", "float32", (1, 3, 112, 112)), 3, d, 4, stride=4, pad=0)

    def strip(y: SymbolicTensor, k: tuple[int, int]) -> SymbolicTensor:
        return b.op("Conv", y, b.param("k", (g, 1, *k), scale=0.1), b.param("c", (g,)), strides=[1, 1],
                    pads=[k[0] // 2, k[1] // 2] * 2, dilations=[1, 1], group=g)  # fmt: skip

    for _ in range(2):
        bounds = (0, d - 3 * g, d - 2 * g, d - g, d)
        parts = [cut(b, x, [1], [i], [j]) for i, j in pairwise(bounds)]
        mixed = [strip(p, k) for p, k in zip(parts[1:], ((3, 3), (1, 11), (11, 1)), strict=True)]
        y = batch_norm(b, b.op("Concat", parts[0], *mixed, axis=1), d)
        x = x + conv(b, gelu(conv(b, y, d, 4 * d, 1)), 4 * d, d, 1) * b.param("gamma", (1, d, 1, 1))
    b.output(x, "out")
    return b.build()


def mobile_vit() -> Graph:
    """MobileViT's block (Mehta 2022): convolutions, tokens of patches by reshapes, attention, and back."""
    b, c, d, s, heads = NetworkBuilder("mobile_vit"), 48, 96, 32, 4
    image = b.input("features", "float32", (1, c, s, s))
    x = silu(batch_norm(b, conv(b, image, c, c, 3, bias=False), c))
    x = conv(b, x, c, d, 1, bias=False)
    half, n = s // 2, s * s // 4
    x = x.reshape(d * half, 2, half, 2).transpose(0, 2, 1, 3).reshape(1, d, n, 4).transpose(0, 3, 2, 1).reshape(4, n, d)
    y = linear(b, layer_norm(b, x, d), d, 3 * d).reshape(4, n, 3, heads, d // heads).transpose(2, 0, 3, 1, 4)
    q, k, v = (cut(b, y, [0], [i], [i + 1]).reshape(4, heads, n, d // heads) for i in range(3))
    y = ((q @ k.transpose(0, 1, 3, 2)) * number((d // heads) ** -0.5)).softmax(-1) @ v
    x = x + linear(b, y.transpose(0, 2, 1, 3).reshape(4, n, d), d, d)
    x = x + linear(b, silu(linear(b, layer_norm(b, x, d), d, 2 * d)), 2 * d, d)
    x = x.reshape(1, 4, n, d).transpose(0, 3, 2, 1).reshape(d * half, half, 2, 2).transpose(0, 2, 1, 3)
    x = silu(batch_norm(b, conv(b, x.reshape(1, d, s, s), d, c, 1, bias=False), c))
    x = b.op("Concat", image, x, axis=1)
    b.output(silu(batch_norm(b, conv(b, x, 2 * c, c, 3, bias=False), c)), "out")
    return b.build()


def neural_ode() -> Graph:
    """Two steps of Runge and Kutta's fourth order through a small network (Chen 2018)."""
    b, d = NetworkBuilder("neural_ode"), 128
    x = b.input("state", "float32", (128, d))
    w, c, v, e = b.param("w", (d, d), 0.1), b.param("c", (d,)), b.param("w", (d, d), 0.1), b.param("c", (d,))

    def slope(y: SymbolicTensor) -> SymbolicTensor:
        return (y @ w + c).tanh() @ v + e

    h = 0.25
    for _ in range(2):
        k1 = slope(x)
        k2 = slope(x + k1 * (h / 2))
        k3 = slope(x + k2 * (h / 2))
        k4 = slope(x + k3 * h)
        x = x + (k1 + k2 * 2.0 + k3 * 2.0 + k4) * number(h / 6)
    b.output(x, "out")
    return b.build()


EXPORTED: Mapping[str, Callable[[], Graph]] = {
    f.__name__: f
    for f in (
        nafnet, restormer, pspnet, espcn, hifigan, whisper, conformer, acnet,
        large_kernel, deepfm, tabnet, patch_tst, gated_residual, film, hrnet, rwkv_mix, gated_conv, clip_vision,
        bifpn, inception_next, mobile_vit, neural_ode,
    )
}  # fmt: skip

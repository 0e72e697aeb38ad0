"""Networks that are in no corpus and no test, after their publications, for :mod:`lab.unseen_network_learning`.

Random weights, published wiring, few blocks: what is asked is which rewrites their operators allow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from lab.exporter_style_networks import EXPORTED
from lab.layers import NetworkBuilder, batch_norm, conv, gelu, layer_norm, linear, pool
from lab.published_networks import FURTHER
from superopt.frontend import SymbolicTensor
from superopt.ir.graph import Graph

__all__ = ["NETWORKS", "drawn"]


def resmlp() -> Graph:
    """ResMLP (Touvron 2021): affine instead of normalisation, a linear layer across patches, layer scale."""
    b, n, d = NetworkBuilder("resmlp"), 196, 384
    x = b.input("tokens", "float32", (1, n, d))
    for _ in range(3):
        y = x * b.param("alpha", (d,)) + b.param("beta", (d,))
        y = linear(b, y.transpose(0, 2, 1), n, n).transpose(0, 2, 1)
        x = x + y * b.param("gamma", (d,))
        y = x * b.param("alpha", (d,)) + b.param("beta", (d,))
        x = x + linear(b, gelu(linear(b, y, d, 4 * d)), 4 * d, d) * b.param("gamma", (d,))
    b.output(x, "out")
    return b.build()


def poolformer() -> Graph:
    """PoolFormer (Yu 2022): the token mixer is a pool less its input; layer scale."""
    b, d = NetworkBuilder("poolformer"), 64
    x = conv(b, b.input("image", "float32", (1, 3, 128, 128)), 3, d, 7, stride=4, pad=2)
    for _ in range(3):
        y = batch_norm(b, x, d)
        pooled = b.op("AveragePool", y, kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1], count_include_pad=1)
        x = x + (pooled - y) * b.param("scale", (d, 1, 1))
        y = conv(b, gelu(conv(b, batch_norm(b, x, d), d, 4 * d, 1)), 4 * d, d, 1)
        x = x + y * b.param("scale", (d, 1, 1))
    b.output(x, "out")
    return b.build()


def edsr() -> Graph:
    """EDSR (Lim 2017): residual blocks scaled by 0.1, a mean that is taken away and added again, sub-pixel output."""
    b, d = NetworkBuilder("edsr"), 64
    mean = b.constant(np.array([[[114.4]], [[111.5]], [[103.0]]], np.float32))
    x = conv(b, (b.input("image", "float32", (1, 3, 48, 48)) - mean) / 1.0, 3, d, 3)
    head = x
    for _ in range(4):
        x = conv(b, conv(b, x, d, d, 3).relu(), d, d, 3) * 0.1 + x
    x = conv(b, conv(b, x, d, d, 3) + head, d, 4 * d, 3)
    x = conv(b, b.op("DepthToSpace", x, blocksize=2, mode="CRD"), d, 3, 3)
    b.output(x + mean, "out")
    return b.build()


def r3d() -> Graph:
    """A pre-activation ResNet over video (Hara 2018): 3-D convolutions with normalisation."""
    b, d = NetworkBuilder("r3d"), 32
    x = conv(b, b.input("clip", "float32", (1, 3, 8, 56, 56)), 3, d, 3, axes=3, stride=2, bias=False)
    x = batch_norm(b, x, d).relu()
    for _ in range(3):
        y = batch_norm(b, conv(b, x, d, d, 3, axes=3, bias=False), d).relu()
        y = batch_norm(b, conv(b, y, d, d, 3, axes=3, bias=False), d)
        x = (y + batch_norm(b, conv(b, x, d, d, 1, axes=3, bias=False), d)).relu()
    b.output(x, "out")
    return b.build()


def convmixer() -> Graph:
    """ConvMixer (Trockman 2022): activations before normalisation."""
    b, d = NetworkBuilder("convmixer"), 128
    x = conv(b, b.input("image", "float32", (1, 3, 112, 112)), 3, d, 7, stride=7, pad=0)
    x = batch_norm(b, gelu(x), d)
    for _ in range(4):
        x = batch_norm(b, gelu(conv(b, x, d, d, 5, groups=d)), d) + x
        x = batch_norm(b, gelu(conv(b, x, d, d, 1)), d)
    b.output(x, "out")
    return b.build()


def nfnet() -> Graph:
    """NFNet (Brock 2021): scaled residual branches, scaled activations, no normalisation."""
    b, d = NetworkBuilder("nfnet"), 64
    x = conv(b, b.input("image", "float32", (1, 3, 64, 64)), 3, d, 3, stride=2)
    for block in range(4):
        y = (x * float(np.float32(1 / (1 + 0.04 * block) ** 0.5))).relu() * 1.7139588594436646
        y = conv(b, y, d, d // 2, 1).relu() * 1.7139588594436646
        y = conv(b, y, d // 2, d // 2, 3).relu() * 1.7139588594436646
        y = conv(b, y, d // 2, d, 1)
        x = x + y * 2.0 * b.param("gain", ()) * 0.2
    b.output(x, "out")
    return b.build()


def siren() -> Graph:
    """SIREN (Sitzmann 2020): sines of scaled linear layers."""
    b, d = NetworkBuilder("siren"), 256
    x = b.input("points", "float32", (4096, 2))
    for layer in range(4):
        x = b.op("Sin", linear(b, x, d if layer else 2, d) * 30.0)
    b.output(linear(b, x, d, 3), "out")
    return b.build()


def deep_cross() -> Graph:
    """DCN-V2 (Wang 2021): cross layers x₀ ⊙ (W x + b) + x, of low rank, beside a deep tower."""
    b, d, r = NetworkBuilder("deep_cross"), 416, 64
    first = b.input("features", "float32", (256, d))
    x = first
    for _ in range(3):
        x = first * (x @ b.param("v", (d, r), scale=0.1) @ b.param("u", (r, d), scale=0.1) + b.param("c", (d,))) + x
    y = batch_norm(b, linear(b, first, d, 256), 256).relu()
    y = batch_norm(b, linear(b, y, 256, 128), 128).relu()
    b.output(linear(b, b.op("Concat", x, y, axis=1), d + 128, 1), "out")
    return b.build()


def tcn() -> Graph:
    """A temporal convolutional network (Lea 2017) with normalisation and parallel dilated branches."""
    b, d = NetworkBuilder("tcn"), 64
    x = conv(b, b.input("signal", "float32", (1, 16, 512)), 16, d, 1, axes=1)
    for block in range(3):
        y = conv(b, x, d, d, 3, axes=1, dilation=1 << block) + conv(b, x, d, d, 3, axes=1)
        x = x + conv(b, batch_norm(b, y, d).relu(), d, d, 1, axes=1) * b.param("gain", (d, 1))
    b.output(x, "out")
    return b.build()


def inpainting() -> Graph:
    """A U-shaped denoiser after DnCNN (Zhang 2017): normalised input, averaged skips."""
    b, d = NetworkBuilder("inpainting"), 48
    image = b.input("image", "float32", (1, 3, 96, 96))
    x = conv(b, (image - b.param("mean", (3, 1, 1))) / 0.25, 3, d, 1)
    for _ in range(3):
        y = batch_norm(b, conv(b, x, d, d, 3, bias=False), d).relu()
        z = conv(b, x, d, d, 1) * 0.5
        x = (conv(b, y, d, d, 3) + z + x) * 0.5
    b.output(image - conv(b, x, d, 3, 3), "out")
    return b.build()


def autoencoder() -> Graph:
    """A tabular autoencoder with a linear bottleneck and standardised features."""
    b, d = NetworkBuilder("autoencoder"), 512
    x = (b.input("rows", "float32", (128, d)) - b.param("mean", (d,))) / b.param("std", (d,))
    y = linear(b, linear(b, linear(b, x, d, 256).relu(), 256, 64), 64, 256).relu()
    y = batch_norm(b, linear(b, y, 256, d), d)
    b.output(y * b.param("std", (d,)) + b.param("mean", (d,)), "out")
    return b.build()


def gmlp() -> Graph:
    """gMLP (Liu 2021): half of the channels gates the other, projected across tokens."""
    b, n, d = NetworkBuilder("gmlp"), 128, 192
    x = b.input("tokens", "float32", (1, n, d))
    for _ in range(3):
        y = gelu(linear(b, layer_norm(b, x, d), d, 2 * d))
        u, v = b.ops("Split", y, outputs=2, axis=2, num_outputs=2)
        v = layer_norm(b, v, d).transpose(0, 2, 1) @ b.param("w", (n, n), scale=0.1) + b.param("c", (n,))
        x = x + linear(b, u * v.transpose(0, 2, 1), d, d)
    b.output(x, "out")
    return b.build()


def dlinear() -> Graph:
    """DLinear (Zeng 2023): a moving average and what is left of it, each projected along time, and added."""
    b, t, c, k = NetworkBuilder("dlinear"), 336, 64, 25
    x = b.input("series", "float32", (8, c, t))
    trend = pool(b, x, k, axes=1)
    b.output(linear(b, trend, t, 96) + linear(b, x - trend, t, 96), "out")
    return b.build()


def nbeats() -> Graph:
    """N-BEATS (Oreshkin 2020): blocks that take their backcast away and add their forecast."""
    b, t, h, d = NetworkBuilder("nbeats"), 168, 24, 256
    x = b.input("series", "float32", (64, t))
    forecasts = []
    for _ in range(3):
        y = linear(b, linear(b, x, t, d).relu(), d, d).relu()
        theta = y @ b.param("w", (d, 32), scale=0.1)
        x = x - theta @ b.param("w", (32, t), scale=0.1)
        forecasts.append(theta @ b.param("w", (32, h), scale=0.1))
    b.output(forecasts[0] + forecasts[1] + forecasts[2], "out")
    return b.build()


def cait() -> Graph:
    """CaiT (Touvron 2021): heads are mixed by linear layers before and behind the softmax; layer scale."""
    b, n, d, heads = NetworkBuilder("cait"), 128, 192, 4
    x = b.input("tokens", "float32", (1, n, d))
    for _ in range(2):
        y = layer_norm(b, x, d)
        q, k, v = (linear(b, y, d, d).reshape(1, n, heads, d // heads).transpose(0, 2, 1, 3) for _ in range(3))
        scores = (q * 0.14433756729740643) @ k.transpose(0, 1, 3, 2)
        scores = linear(b, scores.transpose(0, 2, 3, 1), heads, heads).transpose(0, 3, 1, 2).softmax(-1)
        scores = linear(b, scores.transpose(0, 2, 3, 1), heads, heads).transpose(0, 3, 1, 2)
        y = linear(b, (scores @ v).transpose(0, 2, 1, 3).reshape(1, n, d), d, d)
        x = x + y * b.param("gamma", (d,), scale=0.1)
        y = linear(b, gelu(linear(b, layer_norm(b, x, d), d, 4 * d)), 4 * d, d)
        x = x + y * b.param("gamma", (d,), scale=0.1)
    b.output(x, "out")
    return b.build()


def gcn() -> Graph:
    """A graph convolutional network (Kipf 2017): D^-1/2 A D^-1/2 X W, with the graph as an input."""
    b, n, d = NetworkBuilder("gcn"), 512, 128
    adjacency, x = b.input("adjacency", "float32", (n, n)), b.input("nodes", "float32", (n, 256))
    degree = b.input("degree", "float32", (n, 1))
    for width in (256, d, d):
        x = (degree * (adjacency @ (degree * (x @ b.param("w", (width, d), scale=0.1)))) + b.param("c", (d,))).relu()
    b.output(x, "out")
    return b.build()


def pointnet() -> Graph:
    """PointNet (Qi 2017): the same layers for each point, normalised, and a maximum over points."""
    b, n = NetworkBuilder("pointnet"), 1024
    x = b.input("points", "float32", (4, 3, n))
    for inner, outer in ((3, 64), (64, 64), (64, 128), (128, 512)):
        x = batch_norm(b, conv(b, x, inner, outer, 1, axes=1), outer).relu()
    y = b.op("ReduceMax", x, b.constant(np.array([2], np.int64)), keepdims=0)
    y = batch_norm(b, linear(b, y, 512, 256), 256).relu()
    b.output(linear(b, y, 256, 40), "out")
    return b.build()


def wavenet() -> Graph:
    """WaveNet (van den Oord 2016): two dilated convolutions, gated, with residual and skip."""
    b, d = NetworkBuilder("wavenet"), 32
    x, skips = conv(b, b.input("audio", "float32", (1, 1, 2048)), 1, d, 1, axes=1), list[SymbolicTensor]()
    for block in range(4):
        filtered, gate = (conv(b, x, d, d, 3, axes=1, dilation=1 << block) for _ in range(2))
        y = filtered.tanh() * gate.sigmoid()
        skips.append(conv(b, y, d, 64, 1, axes=1))
        x = (x + conv(b, y, d, d, 1, axes=1)) * 0.7071067811865476
    b.output(conv(b, (skips[0] + skips[1] + skips[2] + skips[3]).relu(), 64, 256, 1, axes=1), "out")
    return b.build()


def highway() -> Graph:
    """A highway network (Srivastava 2015): t · h + (1 - t) · x."""
    b, d = NetworkBuilder("highway"), 256
    x = b.input("rows", "float32", (128, d))
    for _ in range(4):
        t = linear(b, x, d, d).sigmoid()
        x = t * linear(b, x, d, d).relu() + (1.0 - t) * x
    b.output(x, "out")
    return b.build()


def coupling() -> Graph:
    """Glow's steps (Kingma 2018) on vectors: activation normalisation, an invertible layer, affine coupling."""
    b, d = NetworkBuilder("coupling"), 128
    x = b.input("z", "float32", (256, d))
    for _ in range(4):
        x = (x + b.param("t", (d,))) * b.param("s", (d,))
        x = x @ b.param("w", (d, d), scale=0.1)
        first, second = b.ops("Split", x, outputs=2, axis=1, num_outputs=2)
        scale = linear(b, linear(b, first, d // 2, 128).relu(), 128, d // 2)
        shift = linear(b, linear(b, first, d // 2, 128).relu(), 128, d // 2)
        x = b.op("Concat", first, (second + shift) * (scale + 2.0).sigmoid(), axis=1)
    b.output(x, "out")
    return b.build()


def decoder() -> Graph:
    """DCGAN's generator (Radford 2016): transposed convolutions with normalisation."""
    b = NetworkBuilder("decoder")
    x = b.input("z", "float32", (1, 128, 4, 4))
    for inner, outer in ((128, 96), (96, 64), (64, 32)):
        kernel = b.param("k", (inner, outer, 4, 4), scale=0.1)
        x = b.op("ConvTranspose", x, kernel, strides=[2, 2], pads=[1, 1, 1, 1])
        x = batch_norm(b, x, outer).relu()
    b.output(conv(b, x, 32, 3, 3).tanh(), "out")
    return b.build()


def aspp() -> Graph:
    """DeepLab's head (Chen 2017): parallel dilated convolutions, normalised, concatenated and projected."""
    b, c, d = NetworkBuilder("aspp"), 128, 48
    x = b.input("features", "float32", (1, c, 32, 32))
    parts = [batch_norm(b, conv(b, x, c, d, 1, bias=False), d).relu()]
    for rate in (2, 4, 6):
        parts.append(batch_norm(b, conv(b, x, c, d, 3, dilation=rate, bias=False), d).relu())
    y = batch_norm(b, conv(b, b.op("Concat", *parts, axis=1), 4 * d, 64, 1, bias=False), 64)
    b.output(conv(b, y, 64, 21, 1), "out")
    return b.build()


def ft_transformer() -> Graph:
    """FT-Transformer's tokeniser and one block (Gorishniy 2021): a number times a vector and a bias, per feature."""
    b, f, d = NetworkBuilder("ft_transformer"), 64, 96
    x = b.input("features", "float32", (32, f, 1)) * b.param("w", (f, d)) + b.param("c", (f, d))
    for _ in range(2):
        y = layer_norm(b, x, d)
        q, k, v = (linear(b, y, d, d) for _ in range(3))
        y = ((q @ k.transpose(0, 2, 1)) * 0.10206207261596577).softmax(-1) @ v
        x = x + linear(b, y, d, d)
        x = x + linear(b, linear(b, layer_norm(b, x, d), d, 2 * d).relu(), 2 * d, d)
    b.output(x, "out")
    return b.build()


def ghost() -> Graph:
    """GhostNet's modules (Han 2020): a convolution and a cheap depthwise one of its result, side by side."""
    b, d = NetworkBuilder("ghost"), 48
    x = conv(b, b.input("image", "float32", (1, 3, 64, 64)), 3, d, 3, stride=2)
    for _ in range(3):
        y = batch_norm(b, conv(b, x, d, d // 2, 1, bias=False), d // 2).relu()
        z = batch_norm(b, conv(b, y, d // 2, d // 2, 3, groups=d // 2, bias=False), d // 2).relu()
        x = b.op("Concat", y, z, axis=1) + x
    b.output(x, "out")
    return b.build()


def retention() -> Graph:
    """Layers of lines in rows: group norm without affine part, decay masks, a swish gate (Sun 2023)."""
    b, n, d = NetworkBuilder("retention"), 256, 128
    x = b.input("tokens", "float32", (1, n, d))
    decay = b.constant(np.tril(0.97 ** np.abs(np.subtract.outer(np.arange(n), np.arange(n)))).astype(np.float32))
    for _ in range(2):
        q, k, v, g = (x @ b.param("w", (d, d), scale=0.1) for _ in range(4))
        y = ((q @ k.transpose(0, 2, 1)) * 0.08838834764831845 * decay) @ v
        y = layer_norm(b, y, d) * (g * g.sigmoid())
        x = x + y @ b.param("w", (d, d), scale=0.1)
    b.output(x, "out")
    return b.build()


def matrix_factors() -> Graph:
    """A recommender after neural collaborative filtering (He 2017): products of two towers, biases, a common mean."""
    b, d = NetworkBuilder("matrix_factors"), 64
    user, item = (b.input(n, "float32", (512, 128)) for n in ("user", "item"))
    u, i = (linear(b, batch_norm(b, x, 128), 128, d) for x in (user, item))
    deep = batch_norm(b, linear(b, b.op("Concat", u, i, axis=1), 2 * d, d), d).relu()
    b.output(linear(b, b.op("Concat", u * i * 0.5, deep, axis=1), 2 * d, 1) * 2.0 + 3.5, "out")
    return b.build()


_FIRST: Mapping[str, Callable[[], Graph]] = {
    f.__name__: f
    for f in (
        resmlp, poolformer, edsr, r3d, convmixer, nfnet, siren, deep_cross, tcn, inpainting, autoencoder, gmlp, dlinear,
        nbeats, cait, gcn, pointnet, wavenet, highway, coupling, decoder, aspp, ft_transformer, ghost, retention,
        matrix_factors,
    )
}  # fmt: skip
NETWORKS: Mapping[str, Callable[[], Graph]] = {**_FIRST, **FURTHER, **EXPORTED}


def drawn(seed: int, count: int) -> tuple[str, ...]:
    """The names of so many networks, as a seed draws them."""
    return tuple(map(str, np.random.default_rng(seed).permutation(sorted(NETWORKS))[:count]))

"""Further networks of :mod:`lab.networks`, of other fields, each as its publication or its code wires it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from lab.layers import NetworkBuilder, batch_norm, conv, gelu, layer_norm, linear, pool
from superopt.frontend import SymbolicTensor
from superopt.ir.graph import Graph

__all__ = ["FURTHER"]


def cut(
    b: NetworkBuilder, x: SymbolicTensor, axes: Sequence[int], starts: Sequence[int], ends: Sequence[int], step: int = 1
) -> SymbolicTensor:
    """A slice along some axes."""
    values = (np.array(v, np.int64) for v in (starts, ends, axes, [step] * len(axes)))
    return b.op("Slice", x, *(b.constant(v) for v in values))


def upsampled(b: NetworkBuilder, x: SymbolicTensor, factor: int) -> SymbolicTensor:
    """Nearest neighbours."""
    scales = b.constant(np.array([1, 1, factor, factor], np.float32))
    return b.op(
        "Resize", x, None, scales, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
    )


def attention(
    b: NetworkBuilder, x: SymbolicTensor, n: int, d: int, heads: int, *, keys: int | None = None
) -> SymbolicTensor:
    """Attention of several heads; with ``keys``, keys and values are projected along the tokens to so many."""
    q, k, v = (linear(b, x, d, d) for _ in range(3))
    if keys is not None:
        k, v = (b.param("e", (keys, n), scale=0.1) @ t for t in (k, v))
    width = d // heads
    q = q.reshape(1, n, heads, width).transpose(0, 2, 1, 3)
    k = k.reshape(1, keys or n, heads, width).transpose(0, 2, 3, 1)
    v = v.reshape(1, keys or n, heads, width).transpose(0, 2, 1, 3)
    y = ((q @ k) / float(np.float32(width**0.5))).softmax(-1) @ v
    return linear(b, y.transpose(0, 2, 1, 3).reshape(1, n, d), d, d)


def linformer() -> Graph:
    """Linformer (Wang 2020): keys and values projected along the tokens."""
    b, n, d = NetworkBuilder("linformer"), 256, 192
    x = b.input("tokens", "float32", (1, n, d))
    for _ in range(2):
        x = layer_norm(b, x + attention(b, x, n, d, 3, keys=64), d)
        x = layer_norm(b, x + linear(b, gelu(linear(b, x, d, 2 * d)), 2 * d, d), d)
    b.output(x, "out")
    return b.build()


def fnet() -> Graph:
    """FNet (Lee-Thorp 2021): the real part of a Fourier transform along tokens and channels, as two products each."""
    b, n, d = NetworkBuilder("fnet"), 128, 192
    x = b.input("tokens", "float32", (1, n, d))

    def wave(size: int, function: Callable[[np.ndarray], np.ndarray]) -> SymbolicTensor:
        return b.constant(function(2 * np.pi / size * np.outer(np.arange(size), np.arange(size))).astype(np.float32))

    for _ in range(2):
        y = wave(n, np.cos) @ (x @ wave(d, np.cos)) - wave(n, np.sin) @ (x @ wave(d, np.sin))
        x = layer_norm(b, x + y, d)
        x = layer_norm(b, x + linear(b, gelu(linear(b, x, d, 4 * d)), 4 * d, d), d)
    b.output(x, "out")
    return b.build()


def focus() -> Graph:
    """YOLOv5's stem and pyramid pooling (Jocher 2020): four strided slices, SiLU, three pools in a row."""
    b, d = NetworkBuilder("focus"), 32
    x = b.input("image", "float32", (1, 3, 128, 128))
    corners = [cut(b, x, [2, 3], [i, j], [128, 128], 2) for j in (0, 1) for i in (0, 1)]
    x = conv(b, b.op("Concat", *corners, axis=1), 12, d, 3)
    x = x * x.sigmoid()
    x = conv(b, x, d, 2 * d, 3, stride=2)
    x = x * x.sigmoid()
    for _ in range(2):
        y = conv(b, x, 2 * d, d, 1)
        y = conv(b, y * y.sigmoid(), d, 2 * d, 3)
        x = x + y * y.sigmoid()
    parts = [conv(b, x, 2 * d, d, 1)]
    for _ in range(3):
        parts.append(b.op("MaxPool", parts[-1], kernel_shape=[5, 5], strides=[1, 1], pads=[2, 2, 2, 2]))
    b.output(conv(b, b.op("Concat", *parts, axis=1), 4 * d, 2 * d, 1), "out")
    return b.build()


def shuffle() -> Graph:
    """ShuffleNet (Zhang 2018): grouped 1x1 convolutions with the channels shuffled between, depthwise ones."""
    b, d, g = NetworkBuilder("shuffle"), 96, 3
    x = conv(b, b.input("image", "float32", (1, 3, 64, 64)), 3, d, 3, stride=2)
    for _ in range(3):
        y = batch_norm(b, conv(b, x, d, d, 1, groups=g, bias=False), d).relu()
        y = y.reshape(1, g, d // g, 32, 32).transpose(0, 2, 1, 3, 4).reshape(1, d, 32, 32)
        y = batch_norm(b, conv(b, y, d, d, 3, groups=d, bias=False), d)
        x = (x + batch_norm(b, conv(b, y, d, d, 1, groups=g, bias=False), d)).relu()
    b.output(x, "out")
    return b.build()


def cyclegan() -> Graph:
    """CycleGAN's generator (Zhu 2017): convolutions with biases in front of instance normalisation."""
    b, d = NetworkBuilder("cyclegan"), 32

    def normed(x: SymbolicTensor, c: int) -> SymbolicTensor:
        return b.op("InstanceNormalization", x, b.param("s", (c,)), b.param("t", (c,)), epsilon=1e-5)

    x = normed(conv(b, b.input("image", "float32", (1, 3, 64, 64)), 3, d, 7), d).relu()
    x = normed(conv(b, x, d, 2 * d, 3, stride=2), 2 * d).relu()
    for _ in range(2):
        y = normed(conv(b, x, 2 * d, 2 * d, 3), 2 * d).relu()
        x = x + normed(conv(b, y, 2 * d, 2 * d, 3), 2 * d)
    x = normed(conv(b, upsampled(b, x, 2), 2 * d, d, 3), d).relu()
    b.output(conv(b, x, d, 3, 7).tanh(), "out")
    return b.build()


def nlinear() -> Graph:
    """NLinear (Zeng 2023): the last value is taken away before a linear layer along time, and added again."""
    b, t, c = NetworkBuilder("nlinear"), 336, 32
    x = b.input("series", "float32", (8, c, t))
    last = cut(b, x, [2], [t - 1], [t])
    b.output(linear(b, x - last, t, 96) + last, "out")
    return b.build()


def sparse_tsf() -> Graph:
    """SparseTSF (Lin 2024): the mean is taken away, a convolution along time added, each phase forecast by itself."""
    b, t, c, period = NetworkBuilder("sparse_tsf"), 336, 32, 24
    x = b.input("series", "float32", (8, c, t))
    mean = x.mean([2])
    y = (x - mean).reshape(8 * c, 1, t)
    y = conv(b, y, 1, 1, 25, axes=1, bias=False) + y
    y = y.reshape(8 * c, t // period, period).transpose(0, 2, 1) @ b.param("w", (t // period, 4), scale=0.1)
    b.output(y.transpose(0, 2, 1).reshape(8, c, 4 * period) + mean, "out")
    return b.build()


def tide() -> Graph:
    """TiDE (Das 2023): residual blocks with a linear way past them, and one from the past to the forecast."""
    b, t, h, d = NetworkBuilder("tide"), 336, 96, 256
    past, covariates = b.input("past", "float32", (64, t)), b.input("covariates", "float32", (64, 128))

    def block(x: SymbolicTensor, k: int, n: int) -> SymbolicTensor:
        return layer_norm(b, linear(b, linear(b, x, k, d).relu(), d, n) + linear(b, x, k, n), n)

    x = b.op("Concat", past, block(covariates, 128, 64), axis=1)
    x = block(block(x, t + 64, d), d, d)
    b.output(block(x, d, h) + linear(b, past, t, h), "out")
    return b.build()


def shift_video() -> Graph:
    """TSM (Lin 2019): an eighth of the channels from the frame before, an eighth from the next, in residual blocks."""
    b, frames, d = NetworkBuilder("shift_video"), 8, 64
    x = conv(b, b.input("clip", "float32", (frames, 3, 56, 56)), 3, d, 3, stride=2)
    none = b.constant(np.zeros((1, d // 8, 28, 28), np.float32))
    for _ in range(2):
        before = b.op("Concat", cut(b, x, [0, 1], [1, 0], [frames, d // 8]), none, axis=0)
        after = b.op("Concat", none, cut(b, x, [0, 1], [0, d // 8], [frames - 1, d // 4]), axis=0)
        y = b.op("Concat", before, after, cut(b, x, [1], [d // 4], [d]), axis=1)
        y = batch_norm(b, conv(b, y, d, d // 2, 1, bias=False), d // 2).relu()
        x = (x + batch_norm(b, conv(b, y, d // 2, d, 3, bias=False), d)).relu()
    b.output(x.mean([2, 3]), "out")
    return b.build()


def wavelet() -> Graph:
    """MWCNN (Liu 2018): a Haar transform by slices and sums instead of pooling, and its inverse."""
    b, d = NetworkBuilder("wavelet"), 32
    image = b.input("image", "float32", (1, 1, 96, 96))
    x = conv(b, image, 1, d, 3).relu()
    even, odd = (cut(b, x, [2], [i], [96], 2) / 2.0 for i in (0, 1))
    a, c, e, f = (cut(b, y, [3], [i], [96], 2) for i in (0, 1) for y in (even, odd))
    y = b.op("Concat", a + c + e + f, e + f - a - c, c + f - a - e, a + f - c - e, axis=1)
    y = conv(b, conv(b, y, 4 * d, 2 * d, 3).relu(), 2 * d, 4 * d, 3).relu()
    y = b.op("DepthToSpace", y, blocksize=2, mode="CRD")
    b.output(conv(b, x + y, d, 1, 3) + image, "out")
    return b.build()


def deep_sets() -> Graph:
    """Deep Sets (Zaheer 2017): layers that take the mean over the set away, and a sum at the end."""
    b, n, d = NetworkBuilder("deep_sets"), 256, 128
    x = b.input("set", "float32", (8, n, 64))
    for width in (64, d, d):
        x = (linear(b, x, width, d) - x.mean([1]) @ b.param("w", (width, d), scale=0.1)).tanh()
    y = b.op("ReduceSum", x, b.constant(np.array([1], np.int64)), keepdims=0)
    b.output(linear(b, linear(b, y, d, d).tanh(), d, 40), "out")
    return b.build()


def blur_pool() -> Graph:
    """A ResNet that blurs before it takes every other pixel (Zhang 2019)."""
    b, d = NetworkBuilder("blur_pool"), 32
    x = batch_norm(b, conv(b, b.input("image", "float32", (1, 3, 96, 96)), 3, d, 3, bias=False), d).relu()
    taps = np.outer([0.25, 0.5, 0.25], [0.25, 0.5, 0.25]).astype(np.float32)
    for width in (d, 2 * d):
        blur = b.constant(np.tile(taps, (2 * width, 1, 1, 1)))
        y = batch_norm(b, conv(b, x, width, 2 * width, 3, bias=False), 2 * width).relu()
        y = b.op("Conv", y, blur, strides=[2, 2], pads=[1, 1, 1, 1], group=2 * width)
        y = batch_norm(b, conv(b, y, 2 * width, 2 * width, 3, bias=False), 2 * width)
        past = b.op("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
        x = (y + batch_norm(b, conv(b, past, width, 2 * width, 1, bias=False), 2 * width)).relu()
    b.output(x, "out")
    return b.build()


def pyramid() -> Graph:
    """A feature pyramid (Lin 2017): lateral layers, nearest neighbours added from above, smoothing."""
    b, d = NetworkBuilder("pyramid"), 64
    sizes = ((64, 48), (128, 24), (256, 12))
    levels = [b.input(f"level{n}", "float32", (1, c, s, s)) for n, (c, s) in enumerate(sizes)]
    x = conv(b, levels[2], 256, d, 1)
    results = [x]
    for level, (c, _) in ((levels[1], sizes[1]), (levels[0], sizes[0])):
        x = conv(b, level, c, d, 1) + upsampled(b, x, 2)
        results.append(x)
    for n, y in enumerate(results):
        b.output(conv(b, y, d, d, 3), f"out{n}")
    return b.build()


def st_gcn() -> Graph:
    """STGCN (Yu 2018): gated convolutions along time, and three Chebyshev polynomials of a fixed graph."""
    b, n, d = NetworkBuilder("st_gcn"), 64, 32
    x = b.input("traffic", "float32", (4, 12, n, d))
    for _ in range(2):
        y = sum_of([b.param("t", (n, n), scale=0.1) @ (x @ b.param("w", (d, d), scale=0.1)) for _ in range(3)])
        y = (y + b.param("c", (d,)) + x).relu()
        p, q = (linear(b, y, d, d) for _ in range(2))
        x = (p + y) * q.sigmoid()
    b.output(x, "out")
    return b.build()


def sum_of(parts: Sequence[SymbolicTensor]) -> SymbolicTensor:
    """From left to right."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def coord_conv() -> Graph:
    """CoordConv (Liu 2018): two planes of coordinates beside the image, which is scaled to [-1, 1]."""
    b, d, s = NetworkBuilder("coord_conv"), 32, 64
    x = b.input("image", "float32", (1, 3, s, s)) / 127.5 - 1.0
    line = np.linspace(-1, 1, s, dtype=np.float32)
    planes = b.constant(np.stack(np.meshgrid(line, line))[None])
    for width in (3, d, d):
        x = batch_norm(b, conv(b, b.op("Concat", x, planes, axis=1), width + 2, d, 3), d).relu()
    b.output(linear(b, x.mean([2, 3]).reshape(1, d), d, 10), "out")
    return b.build()


def senet() -> Graph:
    """Squeeze and excitation (Hu 2018) in bottlenecks with a pooled way past them."""
    b, d = NetworkBuilder("senet"), 64
    x = conv(b, b.input("image", "float32", (1, 3, 64, 64)), 3, d, 3, stride=2)
    for _ in range(2):
        y = batch_norm(b, conv(b, x, d, d // 2, 1, bias=False), d // 2).relu()
        y = batch_norm(b, conv(b, y, d // 2, d, 3, bias=False), d)
        gate = linear(b, linear(b, y.mean([2, 3]).reshape(1, d), d, d // 4).relu(), d // 4, d).sigmoid()
        x = (x + y * gate.reshape(1, d, 1, 1)).relu()
    b.output(conv(b, pool(b, x, 3), d, d, 1), "out")
    return b.build()


def autoformer() -> Graph:
    """Autoformer's decomposition (Wu 2021) around attention and a feed-forward part without biases."""
    b, n, d = NetworkBuilder("autoformer"), 96, 128
    x = b.input("series", "float32", (1, n, d))

    def trend(y: SymbolicTensor) -> SymbolicTensor:
        return pool(b, y.transpose(0, 2, 1), 25, axes=1).transpose(0, 2, 1)

    total: SymbolicTensor | None = None
    for _ in range(2):
        y = x + attention(b, x, n, d, 4)
        first = trend(y)
        y = y - first
        z = y + gelu(y @ b.param("w", (d, 2 * d), scale=0.1)) @ b.param("w", (2 * d, d), scale=0.1)
        second = trend(z)
        x = z - second
        part = (first + second) @ b.param("w", (d, d), scale=0.1)
        total = part if total is None else total + part
    assert total is not None
    b.output(x + total, "out")
    return b.build()


FURTHER: Mapping[str, Callable[[], Graph]] = {
    f.__name__: f
    for f in (
        linformer, fnet, focus, shuffle, cyclegan, nlinear, sparse_tsf, tide, shift_video, wavelet, deep_sets,
        blur_pool, pyramid, st_gcn, coord_conv, senet, autoformer,
    )
}  # fmt: skip

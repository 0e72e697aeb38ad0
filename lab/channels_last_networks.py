"""Networks as exporters from channels-last frameworks write them (tf2onnx, Keras, TFLite), each with its twin.

Such an exporter writes every operator as the framework has it, on tensors [n, h, w, c], with a Transpose before and
behind each operator that ONNX has for [n, c, h, w] alone: Conv, the pools, BatchNormalization, Resize. The twin has
the same weights and computes the same function on [n, c, h, w]; it has Transposes at its borders, so that both have
the same inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from lab.layers import NetworkBuilder, gelu
from superopt.frontend import SymbolicTensor
from superopt.ir.graph import Graph

__all__ = ["CHANNELS_LAST", "ImageNetworkBuilder"]

_TO_FIRST, _TO_LAST = (0, 3, 1, 2), (0, 2, 3, 1)


class ImageNetworkBuilder(NetworkBuilder):
    """A builder of networks of images, in one of two layouts.

    Args:
        name: of the graph.
        last: whether channels are the last axis, with Transposes around the operators that need them second.
    """

    def __init__(self, name: str, *, last: bool) -> None:
        super().__init__(name)
        self.last = last
        self.axis = 3 if last else 1
        self.spatial = [1, 2] if last else [2, 3]

    # -- borders -----------------------------------------------------------------------------------------------------

    def image(self, size: int, channels: int = 3) -> SymbolicTensor:
        x = self.input("image", "float32", (1, size, size, channels))
        return x if self.last else x.transpose(*_TO_FIRST)

    def result(self, x: SymbolicTensor) -> Graph:
        self.output(x.transpose(*_TO_LAST) if not self.last and x.ndim == 4 else x, "out")
        return self.build()

    def first(self, op: str, x: SymbolicTensor, *inputs: SymbolicTensor | None, **attributes: Any) -> SymbolicTensor:
        """An operator that ONNX has for channels as the second axis alone."""
        if not self.last:
            return self.op(op, x, *inputs, **attributes)
        return self.op(op, x.transpose(*_TO_FIRST), *inputs, **attributes).transpose(*_TO_LAST)

    def by_channel(self, name: str, c: int, scale: float = 1.0) -> SymbolicTensor:
        """A weight with an element for each channel."""
        return self.param(name, (c,) if self.last else (c, 1, 1), scale)

    def sizes(self, x: SymbolicTensor) -> tuple[int, int, int]:
        """Channels, height and width."""
        shape = [int(str(d)) for d in x.shape]
        return shape[self.axis], shape[self.spatial[0]], shape[self.spatial[1]]

    # -- layers ------------------------------------------------------------------------------------------------------

    def conv(
        self,
        x: SymbolicTensor,
        cout: int,
        k: int,
        stride: int = 1,
        *,
        groups: int = 1,
        bias: bool = False,
        valid: bool = False,
    ) -> SymbolicTensor:
        """A convolution, padded as TensorFlow does (more at the end), and its bias as an Add."""
        c, h, _ = self.sizes(x)
        total = 0 if valid else max(0, (-(-h // stride) - 1) * stride + k - h)
        pads = [total // 2, total // 2, total - total // 2, total - total // 2]
        kernel = self.param("k", (cout, c // groups, k, k), (c // groups * k * k) ** -0.5)
        y = self.first("Conv", x, kernel, strides=[stride] * 2, pads=pads, dilations=[1, 1], group=groups)
        return y + self.by_channel("bias", cout, 0.1) if bias else y

    def norm(self, x: SymbolicTensor) -> SymbolicTensor:
        c = self.sizes(x)[0]
        s, t, m = (self.param(n, (c,), scale=0.3) for n in ("s", "t", "m"))
        v = self.constant(np.linspace(0.5, 1.5, c).astype(np.float32))
        return self.first("BatchNormalization", x, s, t, m, v, epsilon=1e-3)

    def pool(self, op: str, x: SymbolicTensor, k: int, stride: int = 1, *, same: bool = False) -> SymbolicTensor:
        half = k // 2 if same else 0
        return self.first(op, x, kernel_shape=[k, k], strides=[stride] * 2, pads=[half] * 4)

    def padded(self, x: SymbolicTensor, before: int, after: int) -> SymbolicTensor:
        rows = [[before, after] if a in self.spatial else [0, 0] for a in range(4)]
        pads = self.constant(np.array([r[0] for r in rows] + [r[1] for r in rows], np.int64))
        return self.op("Pad", x, pads, mode="constant")

    def cropped(self, x: SymbolicTensor, size: int) -> SymbolicTensor:
        """The first rows and columns."""
        ends, axes = (self.constant(np.array(v, np.int64)) for v in ([size, size], self.spatial))
        return self.op("Slice", x, self.constant(np.array([0, 0], np.int64)), ends, axes)

    def joined(self, *parts: SymbolicTensor) -> SymbolicTensor:
        return self.op("Concat", *parts, axis=self.axis)

    def parts(self, x: SymbolicTensor, count: int) -> tuple[SymbolicTensor, ...]:
        return self.ops("Split", x, outputs=count, axis=self.axis, num_outputs=count)

    def enlarged(self, x: SymbolicTensor, mode: str) -> SymbolicTensor:
        scales = self.constant(np.array([1, 1, 2, 2], np.float32))
        how = "asymmetric" if mode == "nearest" else "half_pixel"
        nearest = {"nearest_mode": "floor"} if mode == "nearest" else {}
        return self.first("Resize", x, None, scales, mode=mode, coordinate_transformation_mode=how, **nearest)

    def prelu(self, x: SymbolicTensor) -> SymbolicTensor:
        return self.op("PRelu", x, self.by_channel("slope", self.sizes(x)[0], 0.2))

    def pooled(self, x: SymbolicTensor) -> SymbolicTensor:
        """The mean over the image, as a row."""
        return x.mean(self.spatial, keepdims=False)

    def dense(self, x: SymbolicTensor, k: int, n: int) -> SymbolicTensor:
        return x @ self.param("w", (k, n), k**-0.5) + self.param("c", (n,), 0.1)

    def excited(self, x: SymbolicTensor, inner: int) -> SymbolicTensor:
        """Squeeze and excitation, as Keras writes it: the mean as a row, reshaped to an image of one pixel."""
        c = self.sizes(x)[0]
        y = self.pooled(x).reshape(*((1, 1, 1, c) if self.last else (1, c, 1, 1)))
        y = swish(self.conv(y, inner, 1, bias=True))
        return x * self.conv(y, c, 1, bias=True).sigmoid()

    def layer_norm(self, x: SymbolicTensor) -> SymbolicTensor:
        """Over channels. The twin is as PyTorch has it, with a Transpose before and behind."""
        c = self.sizes(x)[0]
        y = x if self.last else x.transpose(*_TO_LAST)
        y = self.op("LayerNormalization", y, self.param("s", (c,)), self.param("t", (c,)), axis=-1, epsilon=1e-6)
        return y if self.last else y.transpose(*_TO_FIRST)

    def softmax(self, x: SymbolicTensor) -> SymbolicTensor:
        return self.op("Softmax", x, axis=self.axis)


def relu6(x: SymbolicTensor) -> SymbolicTensor:
    return x.builder.op("Clip", x, 0.0, 6.0)


def swish(x: SymbolicTensor) -> SymbolicTensor:
    return x * x.sigmoid()


# -- networks --------------------------------------------------------------------------------------------------------
#
# Published wiring, fewer blocks. ``size`` is that of the image, ``width`` a factor of the channels in eighths.


def mobilenet_v2(last: bool, size: int = 224, width: int = 8) -> Graph:
    """Inverted residuals (Sandler 2018)."""
    b = ImageNetworkBuilder("mobilenet_v2", last=last)
    x = relu6(b.norm(b.conv(b.image(size), 4 * width, 3, 2)))
    for cout, stride, factor in ((2, 1, 1), (3, 2, 6), (3, 1, 6), (4, 2, 6), (4, 1, 6), (8, 2, 6), (8, 1, 6)):
        c = b.sizes(x)[0]
        y = x if factor == 1 else relu6(b.norm(b.conv(x, c * factor, 1)))
        if stride == 2:
            y = b.padded(y, 0, 1)
        y = relu6(b.norm(b.conv(y, c * factor, 3, stride, groups=c * factor, valid=stride == 2)))
        y = b.norm(b.conv(y, cout * width, 1))
        x = x + y if stride == 1 and c == cout * width else y
    x = relu6(b.norm(b.conv(x, 40 * width, 1)))
    return b.result(b.dense(b.pooled(x), 40 * width, 100).softmax(-1))


def efficientnet(last: bool, size: int = 224, width: int = 8) -> Graph:
    """Inverted residuals with squeeze and excitation (Tan 2019), pixels scaled and shifted by the model."""
    b = ImageNetworkBuilder("efficientnet", last=last)
    image = b.image(size) * float(np.float32(1 / 255)) - b.by_channel("mean", 3, 0.4)
    x = swish(b.norm(b.conv(b.padded(image, 0, 1), 4 * width, 3, 2, valid=True)))
    for cout, k, stride, factor in (
        (2, 3, 1, 1),
        (3, 3, 2, 6),
        (3, 3, 1, 6),
        (5, 5, 2, 6),
        (5, 5, 1, 6),
        (10, 3, 2, 6),
    ):
        c = b.sizes(x)[0]
        y = x if factor == 1 else swish(b.norm(b.conv(x, c * factor, 1)))
        if stride == 2:
            y = b.padded(y, k // 2 - 1, k // 2)
        y = swish(b.norm(b.conv(y, c * factor, k, stride, groups=c * factor, valid=stride == 2)))
        y = b.norm(b.conv(b.excited(y, max(1, c // 4)), cout * width, 1))
        x = x + y if stride == 1 and c == cout * width else y
    x = swish(b.norm(b.conv(x, 40 * width, 1)))
    return b.result(b.dense(b.pooled(x), 40 * width, 100).softmax(-1))


def resnet(last: bool, size: int = 224, width: int = 8) -> Graph:
    """Bottlenecks (He 2016), with biases, as Keras has them; the flat last image goes to the head."""
    b = ImageNetworkBuilder("resnet", last=last)
    x = b.norm(b.conv(b.padded(b.image(size), 3, 3), 8 * width, 7, 2, bias=True, valid=True)).relu()
    x = b.pool("MaxPool", b.padded(x, 1, 1), 3, 2)
    for cout, stride in ((8, 1), (8, 1), (16, 2), (16, 1), (32, 2), (32, 1)):
        c, wide = b.sizes(x)[0], 4 * cout * width
        short = x if stride == 1 and c == wide else b.norm(b.conv(x, wide, 1, stride, bias=True))
        y = b.norm(b.conv(x, cout * width, 1, stride, bias=True)).relu()
        y = b.norm(b.conv(y, cout * width, 3, bias=True)).relu()
        x = (b.norm(b.conv(y, wide, 1, bias=True)) + short).relu()
    c, h, _ = b.sizes(x)
    y = b.pool("AveragePool", x, h)
    return b.result(b.dense(b.op("Flatten", y, axis=1), c, 100))


def unet(last: bool, size: int = 128, width: int = 8) -> Graph:
    """An encoder and a decoder joined at each size (Ronneberger 2015), PReLU, a class for each pixel."""
    b = ImageNetworkBuilder("unet", last=last)
    x, skips = b.image(size), []
    for c in (4, 8, 16):
        for _ in range(2):
            x = b.prelu(b.conv(x, c * width, 3, bias=True))
        skips.append(x)
        x = b.pool("MaxPool", x, 2, 2)
    x = b.prelu(b.conv(x, 32 * width, 3, bias=True))
    for c, skip in zip((16, 8, 4), reversed(skips), strict=True):
        x = b.joined(b.enlarged(x, "linear" if c == 16 else "nearest"), skip)
        for _ in range(2):
            x = b.prelu(b.conv(x, c * width, 3, bias=True))
    return b.result(b.softmax(b.conv(x, 6, 1, bias=True)))


def ssd(last: bool, size: int = 160, width: int = 8) -> Graph:
    """Boxes and classes of three sizes (Liu 2016) behind a small separable network."""
    b, anchors, classes = ImageNetworkBuilder("ssd", last=last), 6, 20
    x = relu6(b.norm(b.conv(b.image(size), 2 * width, 3, 2)))
    levels = []
    for cout in (4, 8, 16, 32):
        c = b.sizes(x)[0]
        x = relu6(b.norm(b.conv(x, c, 3, 2, groups=c)))
        x = relu6(b.norm(b.conv(x, cout * width, 1)))
        levels.append(x)

    def rows(y: SymbolicTensor, n: int) -> SymbolicTensor:
        y = y if last else y.transpose(*_TO_LAST)
        return y.reshape(1, -1, n)

    boxes = [rows(b.conv(y, anchors * 4, 3, bias=True), 4) for y in levels[1:]]
    scores = [rows(b.conv(y, anchors * classes, 3, bias=True), classes) for y in levels[1:]]
    b.output(b.op("Concat", *boxes, axis=1), "boxes")
    b.output(b.op("Concat", *scores, axis=1).softmax(-1), "scores")
    return b.build()


def inception(last: bool, size: int = 96, width: int = 8) -> Graph:
    """Branches of several windows and pools, joined (Szegedy 2015)."""
    b = ImageNetworkBuilder("inception", last=last)

    def layer(y: SymbolicTensor, c: int, k: int, stride: int = 1) -> SymbolicTensor:
        return b.norm(b.conv(y, c * width, k, stride)).relu()

    x = b.pool("MaxPool", layer(layer(b.image(size), 4, 3, 2), 8, 3), 3, 2)
    for _ in range(3):
        near, far = layer(layer(x, 6, 1), 8, 5), layer(layer(layer(x, 8, 1), 12, 3), 12, 3)
        mean = layer(b.pool("AveragePool", x, 3, same=True), 4, 1)
        x = b.joined(layer(x, 8, 1), near, far, mean)
    half, rest = b.parts(x, 2)
    x = b.joined(b.pool("MaxPool", half, 3, 2), layer(b.cropped(rest, b.sizes(rest)[1] - 1), 12, 3, 2))
    return b.result(b.dense(b.pooled(x), b.sizes(x)[0], 100))


def densenet(last: bool, size: int = 112, width: int = 8) -> Graph:
    """Each layer reads all before it (Huang 2017)."""
    b, growth = ImageNetworkBuilder("densenet", last=last), 4 * width
    x = b.norm(b.conv(b.image(size), 8 * width, 7, 2)).relu()
    x = b.pool("MaxPool", b.padded(x, 0, 1), 3, 2)
    for stage in range(2):
        for _ in range(4):
            y = b.conv(b.norm(x).relu(), 4 * growth, 1)
            x = b.joined(x, b.conv(b.norm(y).relu(), growth, 3))
        if stage == 0:
            x = b.pool("AveragePool", b.conv(b.norm(x).relu(), b.sizes(x)[0] // 2, 1), 2, 2)
    x = b.norm(x).relu()
    return b.result(b.dense(b.pooled(x), b.sizes(x)[0], 100))


def convnext(last: bool, size: int = 128, width: int = 8) -> Graph:
    """Depthwise windows, LayerNormalization over channels, two dense layers, a scale (Liu 2022)."""
    b = ImageNetworkBuilder("convnext", last=last)
    x = b.layer_norm(b.conv(b.image(size), 12 * width, 4, 4, bias=True))
    for previous, c in pairwise((12, 12, 24)):
        if c != previous:
            x = b.conv(b.layer_norm(x), c * width, 2, 2, bias=True)
        for _ in range(2):
            n = c * width
            y = b.conv(x, n, 7, groups=n, bias=True)
            y = y if last else y.transpose(*_TO_LAST)
            y = b.op("LayerNormalization", y, b.param("s", (n,)), b.param("t", (n,)), axis=-1, epsilon=1e-6)
            y = b.dense(gelu(b.dense(y, n, 4 * n)), 4 * n, n) * b.param("gamma", (n,), 0.1)
            x = x + (y if last else y.transpose(*_TO_FIRST))
    return b.result(b.dense(b.pooled(x), b.sizes(x)[0], 100))


CHANNELS_LAST: Mapping[str, Callable[..., Graph]] = {
    f.__name__: f for f in (mobilenet_v2, efficientnet, resnet, unet, ssd, inception, densenet, convnext)
}

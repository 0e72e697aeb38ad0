"""Dense prediction: segmentation, detection, windows."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np

from corpus.models.layers import concat, conv, conv_bn, gelu, layer_norm, linear, max_pool
from superopt.frontend import GraphBuilder, SymbolicTensor
from superopt.ir.graph import Graph


def segformer(
    name: str, *, widths: Sequence[int] = (32, 64, 160, 256), embed: int = 256, size: int = 512, classes: int = 150
) -> Graph:
    """SegFormer-B0's decode head: a linear layer per scale, upsampling, concat, 1×1 fuse, BN, ReLU, classes."""
    b = GraphBuilder(name)
    side = size // 4
    parts = []
    for scale, width in enumerate(widths):
        s = side >> scale
        x = b.input(f"features_{scale}", "float32", (1, width, s, s)).reshape(1, width, s * s).transpose(0, 2, 1)
        x = linear(b, x, f"linear_c{scale}", width, embed).transpose(0, 2, 1).reshape(1, embed, s, s)
        parts.append(resize(b, x, (1, embed, side, side)) if scale else x)
    x = conv_bn(b, concat(b, parts[::-1]), "fuse", len(widths) * embed, embed, 1)
    x = conv(b, x, "classifier", embed, classes, 1, bias=True, gain=1.0)
    b.output(x, "logits", shape=(1, classes, side, side))
    return b.build()


def resize(b: GraphBuilder, x: SymbolicTensor, shape: Sequence[int], mode: str = "linear") -> SymbolicTensor:
    """Resize to a size; "linear" is PyTorch's bilinear with align_corners=False, "nearest" its nearest."""
    sizes = np.array(shape, np.int64)
    if mode == "linear":
        return b.op("Resize", x, None, None, sizes, mode=mode, coordinate_transformation_mode="half_pixel")
    return b.op("Resize", x, None, None, sizes, mode=mode, coordinate_transformation_mode="asymmetric",
                nearest_mode="floor")  # fmt: skip


def unet(name: str, *, base: int = 64, depth: int = 4, size: int = 128, classes: int = 2) -> Graph:
    """U-Net with BN: two 3×3 convolutions a level, transposed convolutions up, skips by concatenation."""
    b = GraphBuilder(name)

    def double(x: SymbolicTensor, label: str, cin: int, cout: int) -> SymbolicTensor:
        return conv_bn(b, conv_bn(b, x, f"{label}.1", cin, cout, 3), f"{label}.2", cout, cout, 3)

    x, cin, skips = b.input("image", "float32", (1, 3, size, size)), 3, []
    for level in range(depth):
        x, cin = double(x, f"down{level}", cin, base << level), base << level
        skips.append(x)
        x = max_pool(b, x, 2, 2)
    x, cin = double(x, "bottom", cin, 2 * cin), 2 * cin
    for level, skip in reversed(list(enumerate(skips))):
        cout = base << level
        w = b.weight(f"up{level}.weight", (cin, cout, 2, 2), scale=1 / sqrt(cin))
        x = b.op("ConvTranspose", x, w, b.weight(f"up{level}.bias", (cout,), scale=0.05), kernel_shape=[2, 2],
                 strides=[2, 2], pads=[0] * 4, dilations=[1, 1], group=1)  # fmt: skip
        x, cin = double(concat(b, [skip, x]), f"up{level}", 2 * cout, cout), cout
    b.output(conv(b, x, "head", cin, classes, 1, bias=True, gain=1.0), "mask", shape=(1, classes, size, size))
    return b.build()


def ssd_head(
    name: str, *, widths: Sequence[int] = (512, 1024, 512, 256, 256, 256), sides: Sequence[int] = (38, 19, 10, 5, 3, 1),
    anchors: Sequence[int] = (4, 6, 6, 6, 4, 4), classes: int = 21,
) -> Graph:  # fmt: skip
    """SSD300's head: a class and a box 3×3 convolution on each of six scales, flattened and concatenated."""
    b = GraphBuilder(name)
    scores: list[SymbolicTensor] = []
    boxes: list[SymbolicTensor] = []
    total = 0
    for level, (width, side, count) in enumerate(zip(widths, sides, anchors, strict=True)):
        x, cells = b.input(f"features_{level}", "float32", (1, width, side, side)), side * side * count
        for parts, label, per in ((scores, "class", classes), (boxes, "box", 4)):
            y = conv(b, x, f"{label}{level}", width, count * per, 3, bias=True, gain=1.0)
            parts.append(y.transpose(0, 2, 3, 1).reshape(1, cells, per))
        total += cells
    b.output(concat(b, scores).softmax(), "scores", shape=(1, total, classes))
    b.output(concat(b, boxes), "boxes", shape=(1, total, 4))
    return b.build()


def yolo_head(
    name: str, *, widths: Sequence[int] = (64, 128, 256), sides: Sequence[int] = (80, 40, 20), classes: int = 80,
    bins: int = 16,
) -> Graph:  # fmt: skip
    """YOLOv8-n's decoupled head: per scale a box and a class branch; boxes as expectations over distance bins."""
    b = GraphBuilder(name)
    box_width, class_width = max(16, widths[0] // 4, 4 * bins), max(widths[0], min(classes, 100))
    parts = []
    for level, (width, side) in enumerate(zip(widths, sides, strict=True)):
        x = b.input(f"features_{level}", "float32", (1, width, side, side))
        with b.scope(f"level{level}"):
            ends = []
            for label, mid, cout in (("box", box_width, 4 * bins), ("class", class_width, classes)):
                y = conv_bn(b, x, f"{label}.0", width, mid, 3, act="SiLU")
                y = conv_bn(b, y, f"{label}.1", mid, mid, 3, act="SiLU")
                ends.append(conv(b, y, f"{label}.2", mid, cout, 1, bias=True, gain=1.0))
            parts.append(concat(b, ends).reshape(1, 4 * bins + classes, side * side))
    box, score = concat(b, parts, 2).split([4 * bins, classes], 1)
    total = sum(s * s for s in sides)
    box = box.reshape(1, 4, bins, total).transpose(0, 2, 1, 3).softmax(1)
    weights = b.constant(np.arange(bins, dtype=np.float32).reshape(1, bins, 1, 1), name="bins")
    box = b.op("Conv", box, weights, kernel_shape=[1, 1]).reshape(1, 4, total)
    b.output(concat(b, [box, score.sigmoid()]), "predictions", shape=(1, 4 + classes, total))
    return b.build()


def _windows(x: SymbolicTensor, side: int, window: int, width: int) -> SymbolicTensor:
    """[1, side, side, width] → [windows, window², width]."""
    n = side // window
    x = x.reshape(1, n, window, n, window, width).transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(n * n, window * window, width)


def _merge(x: SymbolicTensor, side: int, window: int, width: int) -> SymbolicTensor:
    """The inverse of :func:`_windows`."""
    n = side // window
    x = x.reshape(1, n, n, window, window, width).transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(1, side, side, width)


def _roll(b: GraphBuilder, x: SymbolicTensor, shift: int, side: int) -> SymbolicTensor:
    """Rotate both spatial axes by ``shift`` towards the origin: slices and concatenations, as exported."""
    for axis in (1, 2):
        x = concat(b, [x.slice(axis, shift, side), x.slice(axis, 0, shift)], axis)
    return x


def _shift_mask(b: GraphBuilder, side: int, window: int, shift: int) -> SymbolicTensor:
    """[windows, 1, window², window²]: -100 between tokens that the roll brought together."""
    region = np.zeros((side, side), np.int64)
    edges = (slice(0, -window), slice(-window, -shift), slice(-shift, None))
    for i, rows in enumerate(edges):
        for j, columns in enumerate(edges):
            region[rows, columns] = 3 * i + j
    n = side // window
    tiles = region.reshape(n, window, n, window).transpose(0, 2, 1, 3).reshape(n * n, window * window)
    same = b.op("Equal", b.constant(tiles[:, None, None, :]), b.constant(tiles[:, None, :, None]))
    return b.op("Where", same, np.float32(0), np.float32(-100))


def _window_attention(
    b: GraphBuilder,
    x: SymbolicTensor,
    width: int,
    count: int,
    mask: SymbolicTensor | None,
    n: int,
    area: int,
    gain: float,
) -> SymbolicTensor:
    """Attention within windows, one fused QKV projection split by Gather, plus a learned position bias."""
    size = width // count
    qkv = linear(b, x, "qkv", width, 3 * width).reshape(n, area, 3, count, size).transpose(2, 0, 3, 1, 4)
    q, k, v = qkv.take(0, 0) * size**-0.5, qkv.take(0, 1), qkv.take(0, 2)
    scores = q @ k.transpose(0, 1, 3, 2) + b.weight("position", (1, count, area, area), scale=0.3)
    if mask is not None:
        scores = scores + mask
    y = (scores.softmax() @ v).transpose(0, 2, 1, 3).reshape(n, area, width)
    return linear(b, y, "proj", width, width, gain=gain)


def swin(
    name: str, *, width: int = 96, depths: Sequence[int] = (2, 2, 6, 2), head: int = 32, window: int = 7,
    size: int = 224, classes: int = 1000,
) -> Graph:  # fmt: skip
    """Swin-T: attention in windows, shifted in every other block; patches merged between stages."""
    b = GraphBuilder(name)
    side, gain = size // 4, 1 / sqrt(2 * sum(depths))
    x = conv(b, b.input("image", "float32", (1, 3, size, size)), "patches", 3, width, 4, stride=4, pad=0, bias=True)
    x = layer_norm(b, x.transpose(0, 2, 3, 1), "norm0", width)
    for stage, depth in enumerate(depths):
        for block in range(depth):
            shift = window // 2 if block % 2 and side > window else 0
            n, area = (side // window) ** 2, window * window
            with b.scope(f"stage{stage}.{block}"):
                mask = _shift_mask(b, side, window, shift) if shift else None
                y = layer_norm(b, x, "norm1", width)
                y = _windows(_roll(b, y, shift, side) if shift else y, side, window, width)
                y = _window_attention(b, y, width, width // head, mask, n, area, gain)
                y = _merge(y, side, window, width)
                x = x + (_roll(b, y, side - shift, side) if shift else y)
                y = gelu(linear(b, layer_norm(b, x, "norm2", width), "fc1", width, 4 * width, gain=sqrt(2)))
                x = x + linear(b, y, "fc2", 4 * width, width, gain=gain)
        if stage + 1 < len(depths):
            with b.scope(f"merge{stage}"):
                corners = [x.slice(1, i, side, 2).slice(2, j, side, 2) for j in (0, 1) for i in (0, 1)]
                x = layer_norm(b, concat(b, corners, 3), "norm", 4 * width)
                x = linear(b, x, "reduction", 4 * width, 2 * width, bias=False)
            side, width = side // 2, 2 * width
    x = layer_norm(b, x, "norm", width).mean([1, 2], keepdims=False)
    b.output(linear(b, x, "head", width, classes), "logits", shape=(1, classes))
    return b.build()

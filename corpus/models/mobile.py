"""Efficient convolutional networks: depthwise, grouped and inverted bottlenecks."""

from __future__ import annotations

from collections.abc import Sequence

from corpus.models.layers import (
    average_pool,
    batch_norm,
    channels,
    concat,
    conv,
    conv_bn,
    gelu,
    gemm,
    global_pool,
    layer_norm,
    linear,
    max_pool,
    squeeze_excite,
)  # fmt: skip
from superopt.frontend import GraphBuilder, SymbolicTensor
from superopt.ir.graph import Graph


def _inverted(
    b: GraphBuilder, x: SymbolicTensor, cin: int, mid: int, cout: int, *, kernel: int, stride: int, act: str,
    se: int = 0,
    gates: tuple[str, str] = ("Relu", "Sigmoid"),
) -> SymbolicTensor:  # fmt: skip
    """Expand 1×1, depthwise k×k, optional squeeze-excite, project 1×1; residual where shapes allow."""
    y = conv_bn(b, x, "expand", cin, mid, 1, act=act) if mid != cin else x
    y = conv_bn(b, y, "depthwise", mid, mid, kernel, stride=stride, groups=mid, act=act)
    if se:
        y = squeeze_excite(b, y, mid, se, inner=gates[0], gate=gates[1])
    same = stride == 1 and cin == cout
    gate_gain = 2.0 if se else 1.0  # the gate halves its input
    y = conv_bn(b, y, "project", mid, cout, 1, act="", bn_gain=gate_gain * (0.5 if same else 1.0))
    return x + y if same else y


def mobilenet_v2(name: str, *, width: float = 1.0, depth: float = 1.0, size: int = 224, classes: int = 1000) -> Graph:
    """MobileNetV2: inverted residuals with ReLU6."""
    b = GraphBuilder(name)
    cin = channels(32 * width)
    x = conv_bn(b, b.input("image", "float32", (1, 3, size, size)), "stem", 3, cin, 3, stride=2, act="Relu6")
    plan = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    for stage, (ratio, cout, repeats, stride) in enumerate(plan):
        for block in range(max(1, int(repeats * depth))):
            with b.scope(f"features.{stage}.{block}"):
                target = channels(cout * width)
                x = _inverted(b, x, cin, cin * ratio, target, kernel=3, stride=1 if block else stride, act="Relu6")
            cin = target
    last = max(1280, channels(1280 * width)) if width >= 1 else channels(1280 * width)
    x = conv_bn(b, x, "last", cin, last, 1, act="Relu6")
    b.output(gemm(b, global_pool(b, x), "classifier", last, classes), "logits", shape=(1, classes))
    return b.build()


# kernel, expanded, out, squeeze-excite, activation, stride
_MOBILENET_V3_SMALL = (
    (3, 16, 16, True, "Relu", 2), (3, 72, 24, False, "Relu", 2), (3, 88, 24, False, "Relu", 1),
    (5, 96, 40, True, "HardSwish", 2), (5, 240, 40, True, "HardSwish", 1), (5, 240, 40, True, "HardSwish", 1),
    (5, 120, 48, True, "HardSwish", 1), (5, 144, 48, True, "HardSwish", 1), (5, 288, 96, True, "HardSwish", 2),
    (5, 576, 96, True, "HardSwish", 1), (5, 576, 96, True, "HardSwish", 1),
)  # fmt: skip


def mobilenet_v3_small(
    name: str, *, blocks: int = 11, size: int = 224, hidden: int = 1024, classes: int = 1000
) -> Graph:
    """MobileNetV3-Small: hard swish and squeeze-excite gated by the hard sigmoid max(0, min(1, x/6 + 1/2))."""
    b = GraphBuilder(name)
    x, cin = b.input("image", "float32", (1, 3, size, size)), 16
    x = conv_bn(b, x, "stem", 3, cin, 3, stride=2, act="HardSwish")
    mid = cin
    for index, (kernel, mid, cout, se, act, stride) in enumerate(_MOBILENET_V3_SMALL[:blocks]):
        with b.scope(f"features.{index}"):
            squeezed = channels(mid / 4) if se else 0
            x = _inverted(b, x, cin, mid, cout, kernel=kernel, stride=stride, act=act, se=squeezed,
                          gates=("Relu", "HardSigmoid"))  # fmt: skip
        cin = cout
    x = conv_bn(b, x, "last", cin, mid, 1, act="HardSwish")
    x = b.op("HardSwish", gemm(b, global_pool(b, x), "classifier.0", mid, hidden, gain=2**0.5))
    b.output(gemm(b, x, "classifier.1", hidden, classes), "logits", shape=(1, classes))
    return b.build()


def efficientnet(
    name: str, *, repeats: Sequence[int] = (1, 2, 2, 3, 3, 4, 1), size: int = 224, classes: int = 1000
) -> Graph:
    """EfficientNet-B0: inverted residuals with SiLU and squeeze-excite (a quarter of the block's input)."""
    b = GraphBuilder(name)
    x, cin = b.input("image", "float32", (1, 3, size, size)), 32
    x = conv_bn(b, x, "stem", 3, cin, 3, stride=2, act="SiLU")
    plan = [(1, 3, 1, 16), (6, 3, 2, 24), (6, 5, 2, 40), (6, 3, 2, 80), (6, 5, 1, 112), (6, 5, 2, 192), (6, 3, 1, 320)]
    for stage, ((ratio, kernel, stride, cout), count) in enumerate(zip(plan, repeats, strict=True)):
        for block in range(count):
            with b.scope(f"blocks.{stage}.{block}"):
                x = _inverted(b, x, cin, cin * ratio, cout, kernel=kernel, stride=1 if block else stride, act="SiLU",
                              se=max(1, cin // 4), gates=("SiLU", "Sigmoid"))  # fmt: skip
            cin = cout
    x = conv_bn(b, x, "head", cin, 4 * cin, 1, act="SiLU")
    b.output(gemm(b, global_pool(b, x), "classifier", 4 * cin, classes), "logits", shape=(1, classes))
    return b.build()


def _shuffle(x: SymbolicTensor, width: int, side: int) -> SymbolicTensor:
    """Channels of two groups interleaved: Reshape, Transpose, Reshape."""
    return x.reshape(1, 2, width // 2, side, side).transpose(0, 2, 1, 3, 4).reshape(1, width, side, side)


def shufflenet_v2(
    name: str, *, widths: Sequence[int] = (24, 116, 232, 464, 1024), depths: Sequence[int] = (4, 8, 4), size: int = 224,
    classes: int = 1000,
) -> Graph:  # fmt: skip
    """ShuffleNetV2 ×1.0: half of the channels pass through, then channels are shuffled."""
    b = GraphBuilder(name)
    x = conv_bn(b, b.input("image", "float32", (1, 3, size, size)), "stem", 3, widths[0], 3, stride=2)
    x, cin, side = max_pool(b, x, 3, 2, 1), widths[0], size // 4
    for stage, (width, depth) in enumerate(zip(widths[1:-1], depths, strict=True)):
        half, side = width // 2, side // 2
        for block in range(depth):
            stride = 1 if block else 2
            with b.scope(f"stage{stage + 2}.{block}"):
                if block:
                    left, right = x.split([half, half], 1)
                else:
                    left = conv_bn(b, x, "left.dw", cin, cin, 3, stride=2, groups=cin, act="")
                    left, right = conv_bn(b, left, "left.pw", cin, half, 1), x
                y = conv_bn(b, right, "right.pw1", half if block else cin, half, 1)
                y = conv_bn(b, y, "right.dw", half, half, 3, stride=stride, groups=half, act="")
                x = _shuffle(concat(b, [left, conv_bn(b, y, "right.pw2", half, half, 1)]), width, side)
        cin = width
    x = conv_bn(b, x, "last", cin, widths[-1], 1)
    b.output(gemm(b, global_pool(b, x), "fc", widths[-1], classes), "logits", shape=(1, classes))
    return b.build()


def regnet_y(
    name: str, *, widths: Sequence[int] = (48, 104, 208, 440), depths: Sequence[int] = (1, 3, 6, 6), group: int = 8,
    size: int = 224, classes: int = 1000,
) -> Graph:  # fmt: skip
    """RegNetY-400MF: grouped bottlenecks of ratio 1 with squeeze-excite (a quarter of the block's input)."""
    b = GraphBuilder(name)
    x, cin = conv_bn(b, b.input("image", "float32", (1, 3, size, size)), "stem", 3, 32, 3, stride=2), 32
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        for block in range(depth):
            stride = 1 if block else 2
            with b.scope(f"block{stage + 1}.{block}"):
                y = conv_bn(b, x, "a", cin, width, 1)
                y = conv_bn(b, y, "b", width, width, 3, stride=stride, groups=width // group)
                y = squeeze_excite(b, y, width, cin // 4)
                y = conv_bn(b, y, "c", width, width, 1, act="", bn_gain=0.5)
                if not block:
                    x = conv_bn(b, x, "proj", cin, width, 1, stride=stride, act="")
                x = (x + y).relu()
            cin = width
    b.output(gemm(b, global_pool(b, x), "fc", cin, classes), "logits", shape=(1, classes))
    return b.build()


def convnext(
    name: str, *, widths: Sequence[int] = (96, 192, 384, 768), depths: Sequence[int] = (3, 3, 9, 3), size: int = 224,
    classes: int = 1000,
) -> Graph:  # fmt: skip
    """ConvNeXt-T: depthwise 7×7, channels-last LayerNorm and MLP, layer scale; transposes as exported."""
    b = GraphBuilder(name)

    def norm(x: SymbolicTensor, label: str, width: int) -> SymbolicTensor:
        return layer_norm(b, x.transpose(0, 2, 3, 1), label, width, epsilon=1e-6).transpose(0, 3, 1, 2)

    x = b.input("image", "float32", (1, 3, size, size))
    x = norm(conv(b, x, "stem", 3, widths[0], 4, stride=4, pad=0, bias=True, gain=1.0), "stem.norm", widths[0])
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        if stage:
            x = norm(x, f"down{stage}.norm", widths[stage - 1])
            x = conv(b, x, f"down{stage}", widths[stage - 1], width, 2, stride=2, pad=0, bias=True, gain=1.0)
        for block in range(depth):
            with b.scope(f"stage{stage}.{block}"):
                y = conv(b, x, "dw", width, width, 7, groups=width, bias=True, gain=1.0).transpose(0, 2, 3, 1)
                y = layer_norm(b, y, "norm", width, epsilon=1e-6)
                y = linear(b, gelu(linear(b, y, "pw1", width, 4 * width, gain=2**0.5)), "pw2", 4 * width, width)
                y = y * b.weight("layer_scale", (width,), scale=0.05, offset=0.3)
                x = x + y.transpose(0, 3, 1, 2)
    x = layer_norm(b, global_pool(b, x), "norm", widths[-1], epsilon=1e-6)
    b.output(gemm(b, x, "head", widths[-1], classes), "logits", shape=(1, classes))
    return b.build()


def _separable(
    b: GraphBuilder, x: SymbolicTensor, name: str, cin: int, cout: int, kernel: int, stride: int
) -> SymbolicTensor:
    """ReLU, depthwise, pointwise, BN; twice, the stride in the first."""
    with b.scope(name):
        for index, (n_in, s) in enumerate(((cin, stride), (cout, 1))):
            y = conv(b, x.relu(), f"dw{index}", n_in, n_in, kernel, stride=s, groups=n_in, gain=1.0)
            y = conv(b, y, f"pw{index}", n_in, cout, 1)
            x = batch_norm(b, y, f"bn{index}", cout, gain=0.8, epsilon=1e-3)
    return x


def _fit(b: GraphBuilder, x: SymbolicTensor, name: str, cin: int, cout: int, stride: int = 1) -> SymbolicTensor:
    """ReLU, 1×1, BN: brings a cell's input to its width (after a pool where the earlier cell was twice as large)."""
    if stride == 2:
        x = average_pool(b, x, 1, 2)
    with b.scope(name):
        return batch_norm(b, conv(b, x.relu(), "conv", cin, cout, 1), "bn", cout, epsilon=1e-3)


def _normal_cell(b: GraphBuilder, h: SymbolicTensor, p: SymbolicTensor, w: int) -> list[SymbolicTensor]:
    """NASNet-A's normal cell on this (h) and the previous (p) state, both of width w."""
    return [
        p,
        _separable(b, h, "s3_h", w, w, 3, 1) + h,
        _separable(b, p, "s3_p", w, w, 3, 1) + _separable(b, h, "s5_h", w, w, 5, 1),
        average_pool(b, h, 3, 1, 1) + p,
        average_pool(b, p, 3, 1, 1) + average_pool(b, p, 3, 1, 1),
        _separable(b, p, "s5_p2", w, w, 5, 1) + _separable(b, p, "s3_p2", w, w, 3, 1),
    ]


def _reduction_cell(b: GraphBuilder, h: SymbolicTensor, p: SymbolicTensor, w: int) -> list[SymbolicTensor]:
    one = _separable(b, p, "s7_p", w, w, 7, 2) + _separable(b, h, "s5_h", w, w, 5, 2)
    two = max_pool(b, h, 3, 2, 1) + _separable(b, p, "s7_p2", w, w, 7, 2)
    three = average_pool(b, h, 3, 2, 1) + _separable(b, p, "s5_p", w, w, 5, 2)
    four = max_pool(b, h, 3, 2, 1) + _separable(b, one, "s3_1", w, w, 3, 1)
    return [two, three, average_pool(b, one, 3, 1, 1) + two, four]


def nasnet_a(name: str, *, width: int = 44, repeats: int = 4, size: int = 224, classes: int = 1000) -> Graph:
    """NASNet-A (4 @ 1056): three stacks of normal cells with a reduction cell before each of the last two."""
    b = GraphBuilder(name)
    h = conv(b, b.input("image", "float32", (1, 3, size, size)), "stem", 3, 32, 3, stride=2)
    h = batch_norm(b, h, "stem.bn", 32, epsilon=1e-3)
    p, wide, past, ratio = h, 32, 32, 1  # past: width of p; ratio: p's side over h's
    for index, reduce in enumerate([1, 1, *[0] * repeats, 1, *[0] * repeats, 1, *[0] * repeats]):
        width = width * 2 if reduce and index > 1 else width
        cell_width = width // (4 if index == 0 else 2 if index == 1 else 1)
        with b.scope(f"cell{index}"):
            here = _fit(b, h, "fit_h", wide, cell_width)
            before = _fit(b, p, "fit_p", past, cell_width, stride=ratio)
            parts = (_reduction_cell if reduce else _normal_cell)(b, here, before, cell_width)
            p, past, ratio = h, wide, 2 if reduce else 1
            h, wide = concat(b, parts), cell_width * len(parts)
    b.output(gemm(b, global_pool(b, h.relu()), "fc", wide, classes), "logits", shape=(1, classes))
    return b.build()

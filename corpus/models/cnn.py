"""Classic convolutional networks, with their BatchNormalization nodes as exported for inference."""

from __future__ import annotations

from collections.abc import Sequence

from corpus.models.layers import average_pool, concat, conv, conv_bn, gemm, global_pool, max_pool
from superopt.frontend import GraphBuilder, SymbolicTensor
from superopt.ir.graph import Graph


def _finish(b: GraphBuilder, x: SymbolicTensor, width: int, classes: int) -> Graph:
    b.output(gemm(b, global_pool(b, x), "fc", width, classes), "logits", shape=(1, classes))
    return b.build()


def resnet(
    name: str,
    depths: Sequence[int] = (3, 4, 6, 3),
    *,
    bottleneck: bool = True,
    groups: int = 1,
    group_width: int = 64,
    base: int = 64,
    size: int = 224,
    classes: int = 1000,
) -> Graph:
    """ResNet (v1.5: the stride is on the 3×3) and ResNeXt: torchvision's resnet18/50, resnext50_32x4d."""
    b = GraphBuilder(name)
    x = conv_bn(b, b.input("image", "float32", (1, 3, size, size)), "stem", 3, base, 7, stride=2)
    x = max_pool(b, x, 3, 2, 1)
    cin = base
    for stage, depth in enumerate(depths):
        planes = base << stage
        for block in range(depth):
            stride = 2 if stage and not block else 1
            with b.scope(f"layer{stage + 1}.{block}"):
                width = planes * group_width * groups // base if bottleneck else planes
                cout = planes * 4 if bottleneck else planes
                if bottleneck:
                    y = conv_bn(b, x, "1", cin, width, 1)
                    y = conv_bn(b, y, "2", width, width, 3, stride=stride, groups=groups)
                    y = conv_bn(b, y, "3", width, cout, 1, act="", bn_gain=0.5)
                else:
                    y = conv_bn(b, x, "1", cin, planes, 3, stride=stride)
                    y = conv_bn(b, y, "2", planes, planes, 3, act="", bn_gain=0.5)
                if stride != 1 or cin != cout:
                    x = conv_bn(b, x, "downsample", cin, cout, 1, stride=stride, act="")
                x = (y + x).relu()
                cin = cout
    return _finish(b, x, cin, classes)


def vgg(name: str, plan: Sequence[Sequence[int]], *, hidden: int = 4096, size: int = 224, classes: int = 1000) -> Graph:
    """VGG: ``plan`` lists the widths of each stage; a max pool ends a stage."""
    b = GraphBuilder(name)
    x, cin = b.input("image", "float32", (1, 3, size, size)), 3
    for stage, widths in enumerate(plan):
        for layer, width in enumerate(widths):
            x = conv(b, x, f"features.{stage}.{layer}", cin, width, 3, bias=True).relu()
            cin = width
        x = max_pool(b, x, 2, 2)
    features = cin * (size >> len(plan)) ** 2
    x = gemm(b, x.flatten(), "classifier.0", features, hidden, gain=2**0.5).relu()
    x = gemm(b, x, "classifier.1", hidden, hidden, gain=2**0.5).relu()
    b.output(gemm(b, x, "classifier.2", hidden, classes), "logits", shape=(1, classes))
    return b.build()


def squeezenet(name: str, *, scale: int = 16, size: int = 224, classes: int = 1000) -> Graph:
    """SqueezeNet 1.1: fire modules squeeze to ``s`` channels and expand by parallel 1×1 and 3×3 convolutions."""
    b = GraphBuilder(name)
    x = conv(b, b.input("image", "float32", (1, 3, size, size)), "stem", 3, 4 * scale, 3, stride=2, pad=0, bias=True)
    x, cin = max_pool(b, x.relu(), 3, 2, ceil=True), 4 * scale
    for index, (squeeze, expand) in enumerate([(1, 4), (1, 4), (2, 8), (2, 8), (3, 12), (3, 12), (4, 16), (4, 16)]):
        if index in (2, 4):
            x = max_pool(b, x, 3, 2, ceil=True)
        s, e = squeeze * scale, expand * scale
        with b.scope(f"fire{index + 2}"):
            x = conv(b, x, "squeeze", cin, s, 1, bias=True).relu()
            one = conv(b, x, "expand1x1", s, e, 1, bias=True).relu()
            x = concat(b, [one, conv(b, x, "expand3x3", s, e, 3, bias=True).relu()])
        cin = 2 * e
    x = conv(b, x, "classifier", cin, classes, 1, bias=True).relu()
    b.output(global_pool(b, x), "logits", shape=(1, classes))
    return b.build()


def densenet(
    name: str, blocks: Sequence[int] = (6, 12, 24, 16), *, growth: int = 32, size: int = 224, classes: int = 1000
) -> Graph:
    """DenseNet-BC: BN → ReLU → 1×1 → BN → ReLU → 3×3, concatenated to all that came before in the block."""
    from corpus.models.layers import batch_norm

    b = GraphBuilder(name)
    width = 2 * growth
    x = conv_bn(b, b.input("image", "float32", (1, 3, size, size)), "stem", 3, width, 7, stride=2)
    x = max_pool(b, x, 3, 2, 1)
    for stage, depth in enumerate(blocks):
        parts = [x]
        for layer in range(depth):
            with b.scope(f"block{stage}.{layer}"):
                y = concat(b, parts) if len(parts) > 1 else parts[0]
                y = conv(b, batch_norm(b, y, "norm1", width).relu(), "conv1", width, 4 * growth, 1)
                y = conv(b, batch_norm(b, y, "norm2", 4 * growth).relu(), "conv2", 4 * growth, growth, 3)
            parts.append(y)
            width += growth
        x = batch_norm(b, concat(b, parts), f"transition{stage}.norm", width).relu()
        if stage + 1 < len(blocks):
            x = average_pool(b, conv(b, x, f"transition{stage}.conv", width, width // 2, 1), 2, 2)
            width //= 2
    return _finish(b, x, width, classes)


# Each row: 1×1; 3×3 reduce, 3×3; "5×5" reduce, "5×5" (a 3×3 in torchvision, as here); projection after the pool.
_GOOGLENET = (
    (64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64),
    (192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64), (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    (256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128),
)  # fmt: skip


def googlenet(name: str, *, divide: int = 1, size: int = 224, classes: int = 1000) -> Graph:
    """GoogLeNet (Inception v1) with BatchNorm, as torchvision has it; ``divide`` makes every width smaller."""
    b = GraphBuilder(name)
    w0, w1 = 64 // divide, 192 // divide
    x = conv_bn(b, b.input("image", "float32", (1, 3, size, size)), "conv1", 3, w0, 7, stride=2)
    x = conv_bn(b, max_pool(b, x, 3, 2, ceil=True), "conv2", w0, w0, 1)
    x, cin = max_pool(b, conv_bn(b, x, "conv3", w0, w1, 3), 3, 2, ceil=True), w1
    for index, row in enumerate(_GOOGLENET):
        if index in (2, 7):
            x = max_pool(b, x, 3, 2, ceil=True)
        p1, r3, p3, r5, p5, pp = (width // divide for width in row)
        with b.scope(f"inception{index}"):
            branches = [
                conv_bn(b, x, "b1", cin, p1, 1),
                conv_bn(b, conv_bn(b, x, "b2.0", cin, r3, 1), "b2.1", r3, p3, 3),
                conv_bn(b, conv_bn(b, x, "b3.0", cin, r5, 1), "b3.1", r5, p5, 3),
                conv_bn(b, max_pool(b, x, 3, 1, 1), "b4", cin, pp, 1),
            ]
            x, cin = concat(b, branches), p1 + p3 + p5 + pp
    return _finish(b, x, cin, classes)

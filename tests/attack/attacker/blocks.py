"""Ordinary blocks of networks, so that what is usually rewritten is attacked too."""

from __future__ import annotations

import numpy as np

from attacker.build import Build
from attacker.registry import motif

block = motif("blocks")
layers = motif("blocks", single=True)
INPUTS = ("normal", "unit", "offset", "medium", "zeros", "special", "log")


def conv(b: Build, x: str, c: int, o: int, k: int = 3, *, bias: bool = True, group: int = 1, stride: int = 1) -> str:
    """A convolution that keeps the size but for its stride."""
    p = k // 2
    parts = [x, b.weight(o, c // group, k, k, scale=0.5), *([b.weight(o)] if bias else [])]
    return b.op("Conv", *parts, kernel_shape=[k, k], pads=[p] * 4, strides=[stride] * 2, group=group)


def bn(b: Build, x: str, c: int) -> str:
    """A batch normalisation."""
    return b.op("BatchNormalization", x, b.weight(c), b.weight(c), b.weight(c), b.const(b.rng.uniform(0.2, 2, size=c)))


def linear(b: Build, x: str, n: int, m: int) -> str:
    """x·W + c as MatMul and Add, or as Gemm of a matrix."""
    return b.op("Add", b.op("MatMul", x, b.weight(n, m, scale=0.5)), b.weight(m))


def image(b: Build, c: int, size: int = 6) -> str:
    """An image input of one or two samples."""
    b.size(1, 2)
    return b.input("N", c, size, size, families=INPUTS)


@layers
def conv_bn_relu(b: Build) -> None:
    """Conv + BN + Relu, twice."""
    c = int(b.rng.integers(1, 4))
    y = b.op("Relu", bn(b, conv(b, image(b, c), c, 4, bias=b.maybe()), 4))
    b.output(b.op(str(b.pick("Relu", "Sigmoid", "Identity")), bn(b, conv(b, y, 4, 2, 1), 2)))


@layers
def repvgg(b: Build) -> None:
    """3×3, 1×1 and identity branches, each normalised, added."""
    c = int(b.rng.integers(2, 4))
    x = image(b, c)
    parts = [bn(b, conv(b, x, c, c, k, bias=False), c) for k in (3, 1)]
    total = b.op("Add", b.op("Add", *parts), bn(b, x, c))
    b.output(b.op("Relu", total))


@layers
def inverted_residual(b: Build) -> None:
    """Expand, depthwise, project, with ReLU6 and a residual."""
    c = 2
    x = image(b, c)
    y = b.op("Clip", bn(b, conv(b, x, c, 4, 1, bias=False), 4), 0.0, 6.0)
    y = b.op("Clip", bn(b, conv(b, y, 4, 4, 3, bias=False, group=4), 4), 0.0, 6.0)
    b.output(b.op("Add", x, bn(b, conv(b, y, 4, c, 1, bias=False), c)))


@layers
def squeeze_excite(b: Build) -> None:
    """Global pooling, two 1×1 convolutions, a gate."""
    c = 4
    x = image(b, c)
    s = b.op("GlobalAveragePool", x) if b.maybe() else b.reduce("ReduceMean", x, [2, 3])
    s = conv(b, b.op("Relu", conv(b, s, c, 2, 1)), 2, c, 1)
    b.output(b.op("Mul", x, b.op(str(b.pick("Sigmoid", "HardSigmoid")), s)))


@layers
def parallel_convolutions(b: Build) -> None:
    """Sibling convolutions of one input, of equal and unlike kernels, concatenated or added."""
    x = image(b, 3)
    sizes = [3, 3, 1] if b.maybe() else [1, 1, 3]
    parts = [conv(b, x, 3, 2, k) for k in sizes]
    b.output(b.op("Concat", *parts, axis=1) if b.maybe() else b.op("Add", b.op("Add", *parts[:2]), parts[2]))


@layers
def grouped_and_shuffled(b: Build) -> None:
    """A grouped convolution, a channel shuffle, another."""
    x = image(b, 4, 4)
    y = conv(b, x, 4, 4, 1, group=2)
    y = b.op("Reshape", y, b.ints(-1, 2, 2, 4, 4))
    y = b.op("Reshape", b.op("Transpose", y, perm=[0, 2, 1, 3, 4]), b.ints(-1, 4, 4, 4))
    b.output(conv(b, y, 4, 4, 3, group=4))


@layers
def pooled(b: Build) -> None:
    """Convolutions before and behind pooling, padding included or not."""
    x = image(b, 2)
    inside = int(b.rng.integers(2))
    y = b.op("AveragePool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2], count_include_pad=inside)
    y = b.op("MaxPool", b.op("Relu", conv(b, y, 2, 3)), kernel_shape=[2, 2])
    b.output(b.op("Add", y, b.weight(3, 1, 1)))


@layers
def padded_convolution(b: Build) -> None:
    """Pad, also with another value or mode, then a convolution."""
    x = image(b, 2)
    mode = str(b.pick("constant", "constant", "reflect", "edge"))
    value = [float(b.pick(0.0, 0.0, 1.0))] if mode == "constant" else []
    y = b.op("Pad", x, b.ints(0, 0, 1, 1, 0, 0, 1, 1), *value, mode=mode)
    b.output(b.op("Conv", y, b.weight(2, 2, 3, 3), b.weight(2), kernel_shape=[3, 3]))


@layers
def upsampled(b: Build) -> None:
    """Resize by two (nearest or linear) between convolutions, or pixel shuffling."""
    x = conv(b, image(b, 2, 4), 2, 4, 1)
    kind = str(b.pick("nearest", "linear", "shuffle"))
    if kind == "shuffle":
        y = b.op("DepthToSpace", x, blocksize=2, mode=str(b.pick("DCR", "CRD")))
        b.output(conv(b, y, 1, 2, 1))
    else:
        n = b.op("Slice", b.op("Shape", x), b.ints(0), b.ints(1))
        y = b.op("Resize", x, None, None, b.op("Concat", n, b.ints(4, 8, 8), axis=0), mode=kind)
        b.output(conv(b, y, 4, 2, 1))


@block
def attention(b: Build) -> None:
    """Single-head self-attention with scaled scores."""
    b.dtype = "float32" if b.dtype == "float16" else b.dtype
    d = 4
    x = b.input("N", 3, d, families=INPUTS)
    b.size(1, 2)
    q, k, v = (linear(b, x, d, d) for _ in range(3))
    scores = b.op("MatMul", q, b.op("Transpose", k, perm=[0, 2, 1]))
    scores = b.op("Div", scores, 2.0) if b.maybe() else b.op("Mul", scores, 0.5)
    b.output(linear(b, b.op("MatMul", b.op("Softmax", scores, axis=-1), v), d, d))


@block
def feed_forward(b: Build) -> None:
    """Linear, Gelu by hand, linear, residual."""
    b.dtype = "float32" if b.dtype == "float16" else b.dtype
    x = b.input(2, 3, 4, families=INPUTS)
    h = linear(b, x, 4, 6)
    e = b.op("Add", b.op("Erf", b.op("Div", h, float(np.sqrt(2)))), 1.0)
    g = b.op("Mul", b.op("Mul", h, e), 0.5) if b.maybe() else b.op("Mul", b.op("Mul", h, 0.5), e)
    b.output(b.op("Add", linear(b, g, 6, 4), x))


@block
def tanh_gelu(b: Build) -> None:
    """The tanh form of Gelu."""
    x = b.input(2, 4, families=INPUTS)
    cube = b.op("Pow", x, 3.0) if b.maybe() else b.op("Mul", b.op("Mul", x, x), x)
    inner = b.op("Mul", b.op("Add", x, b.op("Mul", cube, 0.044715)), float(np.sqrt(2 / np.pi)))
    b.output(b.op("Mul", b.op("Mul", x, 0.5), b.op("Add", b.op("Tanh", inner), 1.0)))


@block
def lora(b: Build) -> None:
    """x·W + s·(x·A)·B."""
    b.dtype = "float32" if b.dtype == "float16" else b.dtype
    x = b.input("N", 6, families=INPUTS)
    b.size(1, 3)
    low = b.op("MatMul", b.op("MatMul", x, b.weight(6, 2)), b.weight(2, 5))
    b.output(b.op("Add", b.op("MatMul", x, b.weight(6, 5)), b.op("Mul", low, float(b.pick(0.5, 2.0, 1e-3)))))


@block
def deep_linear(b: Build) -> None:
    """Linear layers without anything between."""
    b.dtype = "float32" if b.dtype == "float16" else b.dtype
    x = b.input(2, 5, families=INPUTS)
    for n, m in ((5, 4), (4, 6), (6, 2)):
        x = linear(b, x, n, m)
    b.output(x)


@block
def gemms(b: Build) -> None:
    """Gemm with every flag, then scalings that could go in."""
    b.dtype = "float32" if b.dtype == "float16" else b.dtype
    ta, tb = (int(v) for v in b.rng.integers(2, size=2))
    x = b.input(*((4, 2) if ta else (2, 4)), families=INPUTS)
    w = b.weight(*((3, 4) if tb else (4, 3)))
    y = b.op(
        "Gemm",
        x,
        w,
        b.weight(3),
        transA=ta,
        transB=tb,
        alpha=float(b.pick(1.0, 0.5, 2.0)),
        beta=float(b.pick(1.0, 0.0, 0.5)),
    )
    b.output(b.op("Relu", b.op("Add", b.op("Mul", y, b.weight(3)), b.weight(3))))


@block
def lstm_cell(b: Build) -> None:
    """An LSTM step by hand."""
    b.dtype = "float32" if b.dtype == "float16" else b.dtype
    x, h, c = (
        b.input(2, 3, families=INPUTS),
        b.input(2, 4, families=("normal", "unit")),
        b.input(2, 4, families=("normal", "unit")),
    )
    gates = [b.op("Add", linear(b, x, 3, 4), linear(b, h, 4, 4)) for _ in range(4)]
    i, f, o = (b.op("Sigmoid", g) for g in gates[:3])
    new = b.op("Add", b.op("Mul", f, c), b.op("Mul", i, b.op("Tanh", gates[3])))
    b.output(b.op("Mul", o, b.op("Tanh", new)), new)


@layers
def recurrent(b: Build) -> None:
    """GRU or LSTM as nodes, behind a projection."""
    x = b.op("Add", b.op("MatMul", b.input(3, 2, 4, families=("normal", "unit")), b.weight(4, 3)), b.weight(3))
    gates = {"GRU": 3, "LSTM": 4, "RNN": 1}
    kind = str(b.pick(*gates))
    n = gates[kind] * 2
    y = b.op(kind, x, b.weight(1, n, 3), b.weight(1, n, 2), hidden_size=2)
    b.output(b.op("Squeeze", y, b.ints(1)))


@block
def layer_norm_by_hand(b: Build) -> None:
    """Mean, deviation, scale and bias, then a linear layer."""
    b.dtype = "float32" if b.dtype == "float16" else b.dtype
    x = b.input(2, 6, families=INPUTS)
    d = b.op("Sub", x, b.reduce("ReduceMean", x, [-1]))
    v = b.reduce("ReduceMean", b.op("Pow", d, 2.0), [-1])
    y = b.op("Div", d, b.op("Sqrt", b.op("Add", v, 1e-5)))
    b.output(linear(b, b.op("Add", b.op("Mul", y, b.weight(6)), b.weight(6)), 6, 3))


@block
def siamese(b: Build) -> None:
    """One layer over two inputs, compared."""
    b.dtype = "float32" if b.dtype == "float16" else b.dtype
    w, c = b.weight(4, 3), b.weight(3)
    sides = [b.op("Relu", b.op("Add", b.op("MatMul", b.input(2, 4, families=INPUTS), w), c)) for _ in range(2)]
    b.output(b.op("Abs", b.op("Sub", *sides)) if b.maybe() else b.op("Concat", *sides, axis=0))


@block
def heads(b: Build) -> None:
    """Split into heads and joined again, by Reshape and Transpose."""
    b.dtype = "float32" if b.dtype == "float16" else b.dtype
    x = b.input(2, 3, 4, families=INPUTS)
    y = b.op("Transpose", b.op("Reshape", linear(b, x, 4, 4), b.ints(2, 3, 2, 2)), perm=[0, 2, 1, 3])
    y = b.op("Mul", y, 0.7)
    b.output(b.op("Reshape", b.op("Transpose", y, perm=[0, 2, 1, 3]), b.ints(2, 3, 4)))

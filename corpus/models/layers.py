"""Layers that the models share. Activations keep a variance near 1 through any depth, so float checks mean something.

Image tensors are NCHW, sequences [batch, time, features]. Weights follow He: a layer before a ReLU has gain √2.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt

import numpy as np

from superopt.frontend import GraphBuilder, SymbolicTensor

RELU_GAIN = sqrt(2.0)


def conv(
    b: GraphBuilder,
    x: SymbolicTensor,
    name: str,
    cin: int,
    cout: int,
    kernel: int | tuple[int, ...],
    *,
    stride: int | tuple[int, ...] = 1,
    pad: int | tuple[int, ...] | None = None,
    groups: int = 1,
    dilation: int = 1,
    bias: bool = False,
    gain: float = RELU_GAIN,
    spatial: int = 2,
) -> SymbolicTensor:
    """Convolution as PyTorch exports it; ``pad`` defaults to "same". The weight is [cout, cin / groups, *kernel]."""
    ks = (kernel,) * spatial if isinstance(kernel, int) else kernel
    strides = (stride,) * len(ks) if isinstance(stride, int) else stride
    if pad is None:
        pads = tuple(dilation * (k - 1) // 2 for k in ks)
    else:
        pads = (pad,) * len(ks) if isinstance(pad, int) else pad
    fan_in = cin // groups * prod(ks)
    w = b.weight(f"{name}.weight", (cout, cin // groups, *ks), scale=gain / sqrt(fan_in))
    operands = [x, w, b.weight(f"{name}.bias", (cout,), scale=0.05)] if bias else [x, w]
    return b.op("Conv", *operands, name=name, dilations=[dilation] * len(ks), group=groups, kernel_shape=ks,
                pads=pads + pads, strides=strides)  # fmt: skip


def batch_norm(
    b: GraphBuilder, x: SymbolicTensor, name: str, channels: int, *, gain: float = 1.0, epsilon: float = 1e-5
) -> SymbolicTensor:
    """BatchNormalization at inference. ``gain`` < 1 keeps residual sums from growing."""
    parts = [
        b.weight(f"{name}.weight", (channels,), scale=0.05 * gain, offset=gain),
        b.weight(f"{name}.bias", (channels,), scale=0.05),
        b.weight(f"{name}.running_mean", (channels,), scale=0.05),
        b.weight(f"{name}.running_var", (channels,), scale=1.0, offset=0.6, distribution="uniform"),
    ]
    return b.op("BatchNormalization", x, *parts, name=name, epsilon=epsilon)


def conv_bn(
    b: GraphBuilder,
    x: SymbolicTensor,
    name: str,
    cin: int,
    cout: int,
    kernel: int | tuple[int, ...],
    *,
    stride: int = 1,
    pad: int | tuple[int, ...] | None = None,
    groups: int = 1,
    act: str = "Relu",
    bn_gain: float = 1.0,
    epsilon: float = 1e-5,
) -> SymbolicTensor:
    """Conv, BatchNormalization and an activation ("" for none)."""
    with b.scope(name):
        gain = RELU_GAIN if act else 1.0
        y = conv(b, x, "conv", cin, cout, kernel, stride=stride, pad=pad, groups=groups, gain=gain)
        y = batch_norm(b, y, "bn", cout, gain=bn_gain, epsilon=epsilon)
        return activation(b, y, act)


def activation(b: GraphBuilder, x: SymbolicTensor, kind: str) -> SymbolicTensor:
    """An activation by name; "SiLU" and "Relu6" are written out as exporters write them; "" is none."""
    if kind == "":
        return x
    if kind == "SiLU":
        return x * x.sigmoid()
    if kind == "Relu6":
        return b.op("Clip", x, 0.0, 6.0)
    if kind == "Gelu":
        return gelu(x)
    return b.op(kind, x)


def gelu(x: SymbolicTensor) -> SymbolicTensor:
    """x · (1 + erf(x / √2)) / 2, as PyTorch exports the exact form."""
    return x * ((x / sqrt(2.0)).erf() + 1.0) * 0.5


def gelu_tanh(x: SymbolicTensor) -> SymbolicTensor:
    """The tanh form of GPT-2: 0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³)))."""
    inner = (x + x**3.0 * 0.044715) * sqrt(2.0 / np.pi)
    return x * 0.5 * (inner.tanh() + 1.0)


def linear(
    b: GraphBuilder, x: SymbolicTensor, name: str, n_in: int, n_out: int, *, bias: bool = True, gain: float = 1.0
) -> SymbolicTensor:
    """MatMul by a [n_in, n_out] weight and Add, on the last axis of any rank."""
    with b.scope(name):
        y = x @ b.weight("weight", (n_in, n_out), scale=gain / sqrt(n_in))
        return y + b.weight("bias", (n_out,), scale=0.02) if bias else y


def gemm(b: GraphBuilder, x: SymbolicTensor, name: str, n_in: int, n_out: int, *, gain: float = 1.0) -> SymbolicTensor:
    """A fully connected layer on [batch, n_in] as PyTorch exports it: Gemm with transB=1."""
    w = b.weight(f"{name}.weight", (n_out, n_in), scale=gain / sqrt(n_in))
    return b.op("Gemm", x, w, b.weight(f"{name}.bias", (n_out,), scale=0.02), name=name, transB=1)


def layer_norm(b: GraphBuilder, x: SymbolicTensor, name: str, width: int, *, epsilon: float = 1e-5) -> SymbolicTensor:
    """LayerNormalization over the last axis."""
    scale = b.weight(f"{name}.weight", (width,), scale=0.05, offset=1.0)
    return b.op("LayerNormalization", x, scale, b.weight(f"{name}.bias", (width,), scale=0.05), name=name, axis=-1,
                epsilon=epsilon)  # fmt: skip


def rms_norm(b: GraphBuilder, x: SymbolicTensor, name: str, width: int, *, epsilon: float = 1e-6) -> SymbolicTensor:
    """x / √(mean(x²) + ε) · weight, written out as exporters write it."""
    with b.scope(name):
        inverse = 1.0 / ((x**2.0).mean([-1]) + epsilon).sqrt()
        return x * inverse * b.weight("weight", (width,), scale=0.05, offset=1.0)


def heads(x: SymbolicTensor, batch: int, time: int, count: int, width: int) -> SymbolicTensor:
    """[batch, time, count·width] → [batch, count, time, width]; -1 leaves a symbolic size to Reshape."""
    return x.reshape(batch, time, count, width).transpose(0, 2, 1, 3)


def attention(
    b: GraphBuilder,
    x: SymbolicTensor,
    name: str,
    width: int,
    count: int,
    *,
    batch: int = 1,
    time: int,
    mask: SymbolicTensor | None = None,
    bias: bool = True,
    scaled: bool = True,
    gain: float = 1.0,
) -> SymbolicTensor:
    """Multi-head self-attention with separate Q, K, V projections, written out: softmax(QKᵀ/√d + mask) V."""
    size = width // count
    with b.scope(name):
        q = heads(linear(b, x, "query", width, width, bias=bias), batch, time, count, size)
        k = linear(b, x, "key", width, width, bias=bias).reshape(batch, time, count, size).transpose(0, 2, 3, 1)
        v = heads(linear(b, x, "value", width, width, bias=bias), batch, time, count, size)
        scores = q @ k
        if scaled:
            scores = scores / sqrt(size)
        if mask is not None:
            scores = scores + mask
        mixed = (scores.softmax() @ v).transpose(0, 2, 1, 3).reshape(batch, time, width)
        return linear(b, mixed, "output", width, width, bias=bias, gain=gain)


def causal_mask(b: GraphBuilder, time: int) -> SymbolicTensor:
    """[1, 1, time, time]: 0 where a position may look, -10000 where it may not."""
    return b.constant(np.triu(np.full((1, 1, time, time), -1e4, np.float32), 1), name="causal_mask")


def global_pool(b: GraphBuilder, x: SymbolicTensor) -> SymbolicTensor:
    """[n, c, h, w] → [n, c]."""
    return b.op("GlobalAveragePool", x).flatten()


def concat(b: GraphBuilder, parts: Sequence[SymbolicTensor], axis: int = 1) -> SymbolicTensor:
    return b.op("Concat", *parts, axis=axis)


def max_pool(
    b: GraphBuilder, x: SymbolicTensor, kernel: int, stride: int, pad: int = 0, *, ceil: bool = False
) -> SymbolicTensor:
    return b.op("MaxPool", x, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4, ceil_mode=int(ceil))


def average_pool(b: GraphBuilder, x: SymbolicTensor, kernel: int, stride: int, pad: int = 0) -> SymbolicTensor:
    return b.op("AveragePool", x, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4, count_include_pad=1)


def channels(width: float, divisor: int = 8) -> int:
    """MobileNet's rounding of a channel count to a multiple of ``divisor``, at most 10 % down."""
    rounded = max(divisor, int(width + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * width else rounded


def squeeze_excite(
    b: GraphBuilder, x: SymbolicTensor, width: int, squeezed: int, *, inner: str = "Relu", gate: str = "Sigmoid"
) -> SymbolicTensor:
    """x · gate(W₂ act(W₁ mean(x))): channel attention."""
    with b.scope("se"):
        s = b.op("GlobalAveragePool", x)
        s = activation(b, conv(b, s, "fc1", width, squeezed, 1, bias=True), inner)
        s = conv(b, s, "fc2", squeezed, width, 1, bias=True, gain=1.0)
        return x * activation(b, s, gate)

"""Layers of the networks of :mod:`lab.networks`, with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import numpy as np

from superopt.frontend import GraphBuilder, SymbolicTensor

__all__ = ["NetworkBuilder", "batch_norm", "conv", "gelu", "layer_norm", "linear", "pool"]


class NetworkBuilder(GraphBuilder):
    """A builder that numbers its weights."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.numbers = count()

    def param(self, name: str, shape: Sequence[int], scale: float = 1.0) -> SymbolicTensor:
        """A random weight."""
        return self.weight(f"{name}{next(self.numbers)}", shape, scale=scale)


def conv(
    b: NetworkBuilder,
    x: SymbolicTensor,
    cin: int,
    cout: int,
    k: int,
    *,
    stride: int = 1,
    groups: int = 1,
    axes: int = 2,
    pad: int | None = None,
    bias: bool = True,
    dilation: int = 1,
) -> SymbolicTensor:
    half = dilation * (k // 2) if pad is None else pad
    kernel = b.param("k", (cout, cin // groups, *(k,) * axes), scale=0.1)
    return b.op(
        "Conv", x, kernel, *([b.param("c", (cout,), scale=0.1)] if bias else []), strides=[stride] * axes,
        pads=[half] * 2 * axes, dilations=[dilation] * axes, group=groups,
    )  # fmt: skip


def batch_norm(b: NetworkBuilder, x: SymbolicTensor, c: int) -> SymbolicTensor:
    s, t, m = (b.param(n, (c,), scale=0.3) for n in ("s", "t", "m"))
    v = b.constant(np.linspace(0.5, 1.5, c).astype(np.float32))
    return b.op("BatchNormalization", x, s, t, m, v, epsilon=1e-5)


def gelu(x: SymbolicTensor) -> SymbolicTensor:
    return x * ((x / float(np.float32(2**0.5))).erf() + 1.0) * 0.5


def linear(b: NetworkBuilder, x: SymbolicTensor, k: int, n: int) -> SymbolicTensor:
    return x @ b.param("w", (k, n), scale=0.1) + b.param("c", (n,), scale=0.1)


def layer_norm(b: NetworkBuilder, x: SymbolicTensor, d: int) -> SymbolicTensor:
    return b.op("LayerNormalization", x, b.param("s", (d,)), b.param("t", (d,)), axis=-1, epsilon=1e-5)


def pool(b: NetworkBuilder, x: SymbolicTensor, k: int, *, axes: int = 2) -> SymbolicTensor:
    """A mean over a window of stride 1 that keeps sizes."""
    return b.op(
        "AveragePool", x, kernel_shape=[k] * axes, strides=[1] * axes, pads=[k // 2] * 2 * axes, count_include_pad=1
    )

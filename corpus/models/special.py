"""Models that are no plain float32 inference: quantised, and a step of training."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt

import numpy as np

from corpus.models.layers import max_pool
from superopt.frontend import GraphBuilder, SymbolicTensor
from superopt.ir.graph import Graph


def quantised(
    name: str, *, widths: Sequence[int] = (32, 64, 128), hidden: int = 256, size: int = 64, classes: int = 10
) -> Graph:
    """A small convolutional classifier in QDQ form: int8 weights per channel, uint8 activations per tensor."""
    b = GraphBuilder(name)

    def requantised(x: SymbolicTensor, scale: float, zero: int) -> SymbolicTensor:
        s, z = np.float32(scale), np.uint8(zero)
        return b.op("DequantizeLinear", b.op("QuantizeLinear", x, s, z), s, z)

    def weights(label: str, shape: tuple[int, ...], fan_in: int) -> SymbolicTensor:
        q = b.weight(f"{label}.weight_q", shape, scale=40.0, dtype="int8")
        scale = b.weight(f"{label}.weight_scale", shape[:1], scale=0.01 / sqrt(fan_in), offset=sqrt(2 / fan_in) / 40,
                         distribution="uniform")  # fmt: skip
        return b.op("DequantizeLinear", q, scale, b.constant(np.zeros(shape[0], np.int8)), axis=0)

    x, cin = requantised(b.input("image", "float32", (1, 3, size, size)), 0.03, 128), 3
    for index, width in enumerate(widths):
        w = weights(f"conv{index}", (width, cin, 3, 3), 9 * cin)
        bias = b.weight(f"conv{index}.bias", (width,), scale=0.05)
        x = b.op("Conv", x, w, bias, kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1])
        x, cin = max_pool(b, requantised(x.relu(), 0.03, 0), 2, 2), width
    features = cin * (size >> len(widths)) ** 2
    x = x.flatten()
    for index, (n_in, n_out) in enumerate(((features, hidden), (hidden, classes))):
        w = weights(f"fc{index}", (n_out, n_in), n_in)
        x = b.op("Gemm", x, w, b.weight(f"fc{index}.bias", (n_out,), scale=0.05), transB=1)
        x = requantised(x.relu(), 0.03, 0) if not index else x
    b.output(x, "logits", shape=(1, classes))
    return b.build()


def train_step_mlp(
    name: str, *, widths: Sequence[int] = (784, 512, 256, 10), rows: int = 128, rate: float = 0.01
) -> Graph:
    """One step of gradient descent as a graph: forward, softmax cross-entropy, backward by hand, and new parameters.

    Parameters are inputs and outputs, as in a training loop, in the NTK parametrisation (unit-variance parameters, a
    factor 1/√n_in on every product); labels come one-hot.
    """
    b = GraphBuilder(name)
    x, labels = b.input("x", "float32", (rows, widths[0])), b.input("labels", "float32", (rows, widths[-1]))
    layers = []
    for index, (n_in, n_out) in enumerate(pairwise(widths)):
        w, bias = b.input(f"w{index}", "float32", (n_in, n_out)), b.input(f"b{index}", "float32", (n_out,))
        layers.append((w, bias, 1 / sqrt(n_in)))
    activations: list[SymbolicTensor] = [x]
    for index, (w, bias, factor) in enumerate(layers):
        z = (activations[-1] @ w) * factor + bias
        activations.append(z.relu() if index + 1 < len(layers) else z)
    probabilities = activations[-1].softmax()
    loss = -(labels * b.op("Log", probabilities + 1e-7)).sum([1], keepdims=False)
    b.output(loss.mean([0], keepdims=False), "loss", shape=())
    gradient = (probabilities - labels) / float(rows)
    for index in reversed(range(len(layers))):
        (w, bias, factor), before = layers[index], activations[index]
        step = (before.transpose(1, 0) @ gradient) * factor * rate
        b.output(w - step, f"w{index}_next", shape=widths[index : index + 2])
        b.output(bias - gradient.sum([0], keepdims=False) * rate, f"b{index}_next", shape=widths[index + 1 : index + 2])
        if index:
            alive = b.op("Cast", b.op("Greater", before, 0.0), to=1)
            gradient = (gradient @ w.transpose(1, 0)) * factor * alive
    return b.build()

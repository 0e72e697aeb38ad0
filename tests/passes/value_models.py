"""Models whose weights' elements make a part of them superfluous, drawn by a seed: what is dead is drawn as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from superopt.frontend import GraphBuilder
from superopt.frontend.symbolic_tensor import SymbolicTensor
from superopt.ir.graph import Graph

__all__ = ["MODELS", "STILL", "Drawn", "Made"]


class Drawn:
    """Weights and choices of a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def normal(self, *shape: int) -> np.ndarray:
        return (self.rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) or 1)).astype(np.float32)

    def some(self, length: int, count: int) -> list[int]:
        return sorted(self.rng.choice(length, count, replace=False).tolist())


@dataclass(frozen=True)
class Made:
    """A model; ``left`` is how long axes of values of these operators have to be in the result."""

    graph: Graph
    left: Mapping[str, int]
    feeds: Mapping[str, tuple[int, ...]]


def pruned_cnn(d: Drawn) -> Made:
    """Dead filters through BatchNormalization, Relu and a depthwise Conv, to a dense layer; a symbolic batch."""
    b = GraphBuilder("cnn")
    x = b.input("x", "float32", ("N", 3, 10, 10))
    dead, scale = d.some(16, 5), d.normal(16)
    w = d.normal(16, 3, 3, 3)
    w[dead] = 0
    bias, mean = d.normal(16), d.normal(16)
    shift = -np.abs(d.normal(16)) - 1
    bias[dead], mean[dead], scale = 0, np.abs(mean[dead]), np.abs(scale) + np.float32(0.1)
    y = b.op("Conv", x, b.constant(w), b.constant(bias), pads=[1, 1, 1, 1])
    parts = [scale, shift.astype(np.float32), mean, np.abs(d.normal(16)) + np.float32(0.5)]
    y = b.op("Relu", b.op("BatchNormalization", y, *map(b.constant, parts)))
    y = b.op("Conv", y, b.constant(d.normal(16, 1, 3, 3)), pads=[1, 1, 1, 1], group=16)
    y = b.op("Relu", b.op("Conv", y, b.constant(d.normal(12, 16, 1, 1)), b.constant(d.normal(12))))
    y = b.op("Flatten", b.op("GlobalAveragePool", y))
    b.output(b.op("Gemm", y, b.constant(d.normal(12, 5)), b.constant(d.normal(5))), "y")
    return Made(b.build(), {"BatchNormalization": 11}, {"x": (2, 3, 10, 10)})


def beside_zeros(b: GraphBuilder, d: Drawn) -> SymbolicTensor:
    """A product with a weight of 20 columns, some of whose rows are 0."""
    w = d.normal(12, 20)
    w[d.some(12, 2)] = 0
    return b.op("MatMul", b.input("x", "float32", ("N", 12)), b.constant(w))


def read_in_part(d: Drawn) -> Graph:
    """Columns that a Slice does not read, beside rows that are 0: without them it would have to count others."""
    b = GraphBuilder("parts")
    y = b.op("Relu", beside_zeros(b, d))
    y = b.op("Slice", y, *(b.constant(np.array([n], np.int64)) for n in (3, 17, 1)))
    b.output(b.op("MatMul", y, b.constant(d.normal(14, 3))), "y")
    return b.build()


def cut_off(d: Drawn) -> Graph:
    """The same, of what a Pad cuts off."""
    b = GraphBuilder("cut")
    b.output(b.op("Pad", b.op("Tanh", beside_zeros(b, d)), b.constant(np.array([0, -3, 0, -2], np.int64))), "y")
    return b.build()


def twins(d: Drawn) -> Made:
    """Neurons of a dense layer that repeat others, and some that are constant and not 0."""
    b = GraphBuilder("mlp")
    x = b.input("x", "float32", ("N", 12))
    w, bias = d.normal(12, 40), d.normal(40)
    first, second, third = d.some(40, 3)
    w[:, second], bias[second] = w[:, first], bias[first]
    w[:, third] = 0
    y = b.op("Tanh", b.op("Add", b.op("MatMul", x, b.constant(w)), b.constant(bias)))
    y = b.op("Relu", b.op("Gemm", y, b.constant(d.normal(40, 24)), b.constant(d.normal(24))))
    b.output(b.op("MatMul", y, b.constant(d.normal(24, 6))), "y")
    return Made(b.build(), {"Tanh": 38}, {"x": (7, 12)})


def transformer(d: Drawn) -> Made:
    """A head that the output projection ignores, and units of the feed-forward part; symbolic batch and length."""
    b = GraphBuilder("block")
    width, heads, size = 24, 4, 6
    x = b.input("x", "float32", ("N", "S", width))
    out, narrow = d.normal(width, width), d.normal(40, width)
    head = int(d.rng.integers(heads))
    out[head * size : (head + 1) * size] = 0
    narrow[d.some(40, 7)] = 0
    n = b.op("LayerNormalization", x, b.constant(d.normal(width)), b.constant(d.normal(width)))
    shape = b.constant(np.array([0, -1, heads, size], np.int64))

    def projected() -> SymbolicTensor:
        made = b.op("Add", b.op("MatMul", n, b.constant(d.normal(width, width))), b.constant(d.normal(width)))
        return b.op("Transpose", b.op("Reshape", made, shape), perm=[0, 2, 1, 3])

    q, k, v = projected(), projected(), projected()
    scores = b.op("Softmax", b.op("MatMul", q, b.op("Transpose", k, perm=[0, 1, 3, 2])), axis=-1)
    y = b.op("Transpose", b.op("MatMul", scores, v), perm=[0, 2, 1, 3])
    y = b.op("Reshape", y, b.constant(np.array([0, -1, width], np.int64)))
    x = b.op("Add", x, b.op("MatMul", y, b.constant(out)))
    y = b.op("LayerNormalization", x, b.constant(d.normal(width)), b.constant(d.normal(width)))
    y = b.op("Add", b.op("MatMul", y, b.constant(d.normal(width, 40))), b.constant(d.normal(40)))
    y = b.op("MatMul", b.op("Mul", y, b.op("Sigmoid", y)), b.constant(narrow))
    b.output(b.op("Add", x, y), "y")
    return Made(b.build(), {"Softmax": 3, "Sigmoid": 33}, {"x": (2, 5, width)})


def deconvolution(d: Drawn) -> Made:
    """Dead channels on both sides of a ConvTranspose with a stride."""
    b = GraphBuilder("up")
    x = b.input("x", "float32", ("N", 3, 6, 6))
    w, bias, ignored, dead = d.normal(8, 6, 2, 2), d.normal(6), d.some(8, 2), d.some(6, 1)
    w[ignored], w[:, dead], bias[dead] = 0, 0, -1
    y = b.op("Relu", b.op("Conv", x, b.constant(d.normal(8, 3, 3, 3)), b.constant(d.normal(8)), pads=[1, 1, 1, 1]))
    y = b.op("LeakyRelu", b.op("Relu", b.op("ConvTranspose", y, b.constant(w), b.constant(bias), strides=[2, 2])))
    b.output(b.op("Conv", y, b.constant(d.normal(5, 6, 3, 3))), "y")
    return Made(b.build(), {"Conv": 6, "ConvTranspose": 5}, {"x": (2, 3, 6, 6)})


def groups(d: Drawn) -> Made:
    """A group of a grouped Conv whose filters are all 0: it and what only it reads go."""
    b = GraphBuilder("groups")
    x = b.input("x", "float32", ("N", 3, 6, 6))
    w, group = d.normal(8, 4, 3, 3), int(d.rng.integers(4))
    w[2 * group : 2 * group + 2] = 0
    y = b.op("Relu", b.op("Conv", x, b.constant(d.normal(16, 3, 1, 1)), b.constant(d.normal(16))))
    y = b.op("Elu", b.op("Conv", y, b.constant(w), group=4))
    b.output(b.op("Conv", y, b.constant(d.normal(5, 8, 1, 1))), "y")
    return Made(b.build(), {"Relu": 12, "Elu": 6}, {"x": (2, 3, 6, 6)})


def residual(d: Drawn) -> Made:
    """Channels of a residual stream that one branch leaves at what they were: they stay; those inside the branch go."""
    b = GraphBuilder("residual")
    x = b.input("x", "float32", ("N", 8, 6, 6))
    w, inner = d.normal(8, 12, 1, 1), d.normal(12, 8, 1, 1)
    w[d.some(8, 2)] = 0
    inner[d.some(12, 4)] = 0
    y = b.op("Relu", b.op("Conv", x, b.constant(inner)))
    x = b.op("Add", x, b.op("Conv", y, b.constant(w)))
    b.output(b.op("Conv", b.op("Sigmoid", x), b.constant(d.normal(4, 8, 1, 1))), "y")
    return Made(b.build(), {"Relu": 8, "Sigmoid": 8}, {"x": (2, 8, 6, 6)})


def joined(d: Drawn) -> Made:
    """Dead channels of branches that are concatenated, or of a value that is split."""
    b = GraphBuilder("joined")
    x = b.input("x", "float32", ("N", 4, 5, 5))
    one, two, last = d.normal(8, 4, 1, 1), d.normal(6, 4, 1, 1), d.normal(10, 14, 1, 1)
    one[d.some(8, 3)], two[d.some(6, 1)] = 0, 0
    y = b.op("Concat", *(b.op("Relu", b.op("Conv", x, b.constant(w))) for w in (one, two)), axis=1)
    last[d.some(5, 2)] = 0
    y = b.op("Conv", y, b.constant(last))
    left, right = b.ops("Split", y, b.constant(np.array([5, 5], np.int64)), axis=1, outputs=2)
    y = b.op("Conv", b.op("Mul", b.op("Sigmoid", right), left), b.constant(d.normal(4, 5, 1, 1)))
    b.output(y, "y")
    return Made(b.build(), {"Relu": 5, "Sigmoid": 3}, {"x": (2, 4, 5, 5)})


def constants(d: Drawn) -> Made:
    """Ones, an identity matrix, a full mask, a branch of zeros and one that is constant: one product is left."""
    b = GraphBuilder("constants")
    x = b.input("x", "float32", ("N", 8, 6, 6))
    y = b.op("Mul", x, b.constant(np.ones((8, 1, 1), np.float32)))
    zeros = b.constant(np.zeros((8, 8, 3, 3), np.float32))
    y = b.op("Add", y, b.op("Relu", b.op("Conv", y, zeros, b.constant(-np.ones(8, np.float32)), pads=[1, 1, 1, 1])))
    y = b.op("Conv", y, b.constant(np.eye(8, dtype=np.float32).reshape(8, 8, 1, 1)))
    y = b.op("Where", b.constant(np.ones((1, 8, 6, 6), bool)), y, b.op("Neg", y))
    b.output(b.op("Conv", y, b.constant(d.normal(8, 8, 1, 1))), "y")
    return Made(b.build(), {}, {"x": (2, 8, 6, 6)})


def nearly(d: Drawn) -> Graph:
    """Elements that are nearly 0, and nearly equal."""
    b = GraphBuilder("nearly")
    x = b.input("x", "float32", ("N", 8, 6, 6))
    w, other = d.normal(8, 8, 1, 1), d.normal(8, 8, 1, 1)
    w[2], w[5] = d.normal(8, 1, 1) * np.float32(1e-30), np.nextafter(w[4], np.float32(9))
    other[:, 3] = np.float32(1e-38)
    b.output(b.op("Conv", b.op("Relu", b.op("Conv", x, b.constant(w))), b.constant(other)), "y")
    return b.build()


def masked(d: Drawn) -> Graph:
    """A mask of −∞ in front of weights that are 0: 0 · −∞ is NaN, and the model says so."""
    b = GraphBuilder("masked")
    x = b.input("x", "float32", ("N", 8))
    mask = np.where(np.arange(8) % 3, 0, -np.inf).astype(np.float32)
    w = d.normal(8, 6)
    w[d.some(8, 3)] = 0
    y = b.op("Relu", b.op("MatMul", x, b.constant(d.normal(8, 8))))
    b.output(b.op("MatMul", b.op("Add", y, b.constant(mask)), b.constant(w)), "y")
    return b.build()


def outputs_of_the_model(d: Drawn) -> Graph:
    """Dead channels that the model hands out, or reads from outside."""
    b = GraphBuilder("outputs")
    x = b.input("x", "float32", ("N", 6, 4, 4))
    w, other = d.normal(8, 6, 1, 1), d.normal(5, 8, 1, 1)
    w[:, d.some(6, 2)], other[:, d.some(8, 2)] = 0, 0
    y = b.op("Relu", b.op("Conv", x, b.constant(w)))
    b.output(y, "y")
    b.output(b.op("Conv", y, b.constant(other)), "z")
    return b.build()


def normalised(d: Drawn) -> Graph:
    """A dead column in front of a normalisation, which divides by how many there are."""
    b = GraphBuilder("normalised")
    x = b.input("x", "float32", ("N", 6))
    w = d.normal(6, 10)
    w[:, d.some(10, 3)] = 0
    y = b.op("MatMul", x, b.constant(w))
    y = b.op("LayerNormalization", y, b.constant(d.normal(10)), b.constant(d.normal(10)))
    b.output(b.op("MatMul", y, b.constant(d.normal(10, 4))), "y")
    return b.build()


def padded(d: Drawn) -> Graph:
    """A channel that is constant and not 0, in front of a padded Conv: at the border it is 0."""
    b = GraphBuilder("padded")
    x = b.input("x", "float32", ("N", 3, 6, 6))
    w, bias = d.normal(5, 3, 1, 1), d.normal(5)
    w[2], bias[2] = 0, 0.7
    y = b.op("Relu", b.op("Conv", x, b.constant(w), b.constant(bias)))
    b.output(b.op("Conv", y, b.constant(d.normal(4, 5, 3, 3)), pads=[1, 1, 1, 1]), "y")
    return b.build()


MODELS: Mapping[str, Callable[[Drawn], Made]] = {
    f.__name__: f for f in (pruned_cnn, twins, transformer, deconvolution, groups, residual, joined, constants)
}
STILL: Mapping[str, Callable[[Drawn], Graph]] = {
    f.__name__: f for f in (nearly, masked, outputs_of_the_model, normalised, padded, read_in_part, cut_off)
}

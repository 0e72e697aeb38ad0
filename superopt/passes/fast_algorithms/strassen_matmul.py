"""A matrix product with fixed weights by a block algorithm (Strassen 1969), as a graph of ONNX operators.

The data are cut into blocks; sums of blocks are multiplied by sums of the weights' blocks, which are computed
beforehand in float64; and the products are added up to the blocks of the result. Sums that several rows of a transform
share are computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial

import numpy as np

from superopt.passes.fast_algorithms.sites import NodeBuilder
from superopt.passes.fast_algorithms.winograd_convolution import array_of
from superopt.rules.bilinear import BilinearAlgorithm, Matrix, shared_sums
from superopt.runtime.comprehension_evaluation import Array

__all__ = ["StrassenMatMul", "write_matmul"]


@dataclass(frozen=True)
class StrassenMatMul:
    """A product [rows, inner] · [inner, columns] in blocks; what does not fit is padded with zeros, and cut off."""

    rows: int
    inner: int
    columns: int
    algorithm: BilinearAlgorithm

    @property
    def grown(self) -> float:
        """Weights afterwards ÷ weights before."""
        return self.algorithm.rank / (self.parts[1] * self.parts[2])

    @property
    def parts(self) -> tuple[int, int, int]:
        """Blocks along rows, inner size and columns."""
        (p, q), (_, s) = self.algorithm.tile.shapes.values()
        return p, q, s

    @property
    def block(self) -> tuple[int, int, int]:
        """Sizes of a block along rows, inner size and columns."""
        sizes = self.rows, self.inner, self.columns
        return (
            -(-sizes[0] // self.parts[0]), -(-sizes[1] // self.parts[1]), -(-sizes[2] // self.parts[2])
        )  # fmt: skip


def write_matmul(
    writer: NodeBuilder,
    form: StrassenMatMul,
    data: str,
    name: str,
    kind: np.dtype[np.generic],
    weights: Callable[[], Array],
    output: str,
) -> None:
    """Append the form's nodes.

    Args:
        writer: of the graph.
        form: how.
        data: name of the left operand [rows, inner].
        name: of the weights.
        kind: element type.
        weights: the elements [inner, columns]; asked for only where they are needed.
        output: name that the product [rows, columns] gets.
    """
    (p, q, s), (high, deep, wide) = form.parts, form.block
    spare = p * high - form.rows, q * deep - form.inner, s * wide - form.columns
    if spare[0] or spare[1]:
        data = writer.padded(data, 0, 0, spare[0], spare[1])
    blocks = [
        writer.sliced(data, {0: (i * high, (i + 1) * high), 1: (j * deep, (j + 1) * deep)})
        for i in range(p)
        for j in range(q)
    ]
    matrix = array_of(form.algorithm.weights)

    @cache
    def parts() -> Array:
        held = np.pad(weights().astype(np.float64), ((0, spare[1]), (0, spare[2])))
        return held.reshape(q, deep, s, wide).transpose(0, 2, 1, 3).reshape(q * s, deep * wide)

    def fixed(number: int) -> Array:
        made: Array = (matrix[number] @ parts()).reshape(deep, wide)
        return made

    products: list[str] = []
    for number, value in enumerate(_sums(writer, form.algorithm.data, blocks, kind)):
        key = name, form.algorithm.tile.name, number
        products.append(writer.op("MatMul", value, writer.computed(key, (deep, wide), kind, partial(fixed, number))))
    made = _sums(writer, form.algorithm.outputs, products, kind)
    lines = [writer.op("Concat", *made[i * s : (i + 1) * s], axis=1) if s > 1 else made[i] for i in range(p)]
    last = () if spare[0] or spare[2] else (output,)
    value = writer.op("Concat", *lines, outputs=last, axis=0)
    if not last:
        writer.sliced(value, {0: (0, form.rows), 1: (0, form.columns)}, outputs=(output,))


def _sums(writer: NodeBuilder, matrix: Matrix, values: Sequence[str], kind: np.dtype[np.generic]) -> list[str]:
    """For every row of a matrix, the sum of its coefficients times the values."""
    plan = shared_sums(matrix)
    names = list(values)
    for i, j, factor in plan.shared:
        names.append(_added(writer, [(names[i], Fraction(1)), (names[j], factor)], kind))
    return [_added(writer, [(names[i], c) for i, c in row.items()], kind) for row in plan.rows]


def _added(writer: NodeBuilder, terms: Sequence[tuple[str, Fraction]], kind: np.dtype[np.generic]) -> str:
    """A sum of multiples, a positive one first."""
    ordered = sorted(terms, key=lambda term: term[1] < 0)
    total = ""
    for name, factor in ordered:
        size = abs(factor)
        part = name if size == 1 else writer.op("Mul", name, writer.constant(np.array(float(size), dtype=kind)))
        if total:
            total = writer.op("Add" if factor > 0 else "Sub", total, part)
        else:
            total = part if factor > 0 else writer.op("Neg", part)
    return total

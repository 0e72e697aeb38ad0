"""Tensors of tiles: read off meanings, nested in blocks, and solved for exactly.

A tile's tensor of coefficients is read off the operators' meanings by evaluating them over formal bilinear forms.

Algorithms for products of large blocks are nested from those for small ones: blocks of blocks (Strassen 1969). Linear
algebra is exact, over small rationals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from math import gcd, isfinite, lcm, prod
from typing import Any

import numpy as np

from superopt.ir.errors import UsageError
from superopt.ir.terms import OperatorTerm, computed
from superopt.ir.types import DType, TensorType
from superopt.rules.bilinear import BilinearAlgorithm, BilinearTile, Matrix, matmul_tile
from superopt.rules.typing import type_terms
from superopt.runtime.comprehension_evaluation import Array, evaluate

__all__ = ["halves", "normal_form", "nested", "solved", "tensor_of", "transposed"]

_Monomial = tuple[int, int]  # element of the data and of the weights, or -1 for neither


class _Form:
    """A polynomial that has at most one factor of the data and one of the weights in each term."""

    __slots__ = ("terms",)

    def __init__(self, terms: Mapping[_Monomial, Fraction]) -> None:
        self.terms = {m: c for m, c in terms.items() if c}

    def __add__(self, other: _Form) -> _Form:
        fractions = dict(self.terms)
        for monomial, value in other.terms.items():
            fractions[monomial] = fractions.get(monomial, Fraction(0)) + value
        return _Form(fractions)

    def __mul__(self, other: _Form) -> _Form:
        fractions: dict[_Monomial, Fraction] = {}
        for (i, j), p in self.terms.items():
            for (k, l), q in other.terms.items():
                if (i >= 0 and k >= 0) or (j >= 0 and l >= 0):
                    raise UsageError("it multiplies data by data, or weights by weights, so it is not bilinear")
                monomial = max(i, k), max(j, l)
                fractions[monomial] = fractions.get(monomial, Fraction(0)) + p * q
        return _Form(fractions)


class _Forms:
    """The algebra of such polynomials, for :func:`superopt.runtime.comprehension_evaluation.evaluate`."""

    logarithmic = False

    def constant(self, value: Fraction | float) -> Array:
        if not isfinite(value):
            raise UsageError("an infinite constant is no bilinear form")
        return _objects(np.asarray(value, dtype=object), lambda v: _Form({(-1, -1): Fraction(v)}))

    def integers(self, values: Array) -> Array:
        return _objects(values, lambda v: _Form({(-1, -1): Fraction(int(v))}))

    def positions(self, values: Array) -> Array:
        raise UsageError("it reads where its data say, so it is not bilinear")

    def function(self, name: str, *arrays: Array) -> Array:
        if name not in ("add", "mul"):
            raise UsageError(f"{name} is not bilinear")
        return np.asarray(arrays[0] + arrays[1] if name == "add" else arrays[0] * arrays[1], dtype=object)

    def reduce(self, kind: str, array: Array, axes: tuple[int, ...]) -> Array:
        if kind != "sum":
            raise UsageError(f"{kind} is not bilinear")
        for axis in sorted(axes, reverse=True):
            parts = np.moveaxis(array, axis, 0)
            total = _objects(np.zeros(parts.shape[1:], dtype=object), lambda _: _Form({}))
            for part in parts:
                total = np.asarray(total + part, dtype=object)
            array = total
        return array

    def matmul(self, a: Array, b: Array) -> Array:
        return self.reduce("sum", self.function("mul", a[..., :, :, None], b[..., None, :, :]), (a.ndim - 1,))


def _objects(values: Array, normal_form: Callable[[Any], _Form]) -> Array:
    array = np.empty(values.shape, dtype=object)
    for place in np.ndindex(values.shape):
        array[place] = normal_form(values[place])
    return array


def tensor_of(tile: BilinearTile) -> Array:
    """``T[i, j, k]``, the coefficient of ``x[i]·w[j]`` in ``z[k]``, as Fractions in an object array.

    Raises:
        UsageError: the terms are not bilinear in data and weights.
    """
    types = {name: TensorType(DType.FLOAT32, shape) for name, shape in tile.shapes.items()}
    _, meanings = type_terms(tile.terms, types)
    given_arrays = {**_symbols(tile, tile.data, 0), **_symbols(tile, tile.weights, 1)}

    def outputs(app: OperatorTerm, operands: list[Array | None]) -> list[Array]:
        return [evaluate(c, operands, _Forms(), {}) for c in meanings[app].outputs]

    arrays = computed(tile.terms, given_arrays, outputs)
    forms: list[_Form] = [form for root in tile.terms for form in np.ravel(arrays[root])]
    shape = tile.elements(tile.data), tile.elements(tile.weights), len(forms)
    tensor = np.full(shape, Fraction(0), dtype=object)
    for k, form in enumerate(forms):
        for (i, j), value in form.terms.items():
            if i < 0 or j < 0:
                raise UsageError("it has a term without data or without weights, so it is not bilinear")
            tensor[i, j, k] = value
    return tensor


def _symbols(tile: BilinearTile, names: Mapping[str, str], side: int) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    start = 0
    for name in names:
        shape = tile.shapes[name]
        numbers = start + np.arange(prod(shape)).reshape(shape)
        arrays[name] = _objects(numbers, lambda n: _Form({((int(n), -1) if side == 0 else (-1, int(n))): Fraction(1)}))
        start += prod(shape)
    return arrays


_Grid = tuple[int, int]  # rows and columns of blocks


def halves(tile: BilinearTile) -> Iterator[tuple[BilinearTile, BilinearTile]]:
    """Two smaller products of matrices that make up one, every size of both at least 2."""
    if tile.roots != ("MatMul(x, w)",):
        return
    (rows, inner), (_, columns) = (tile.shapes[name] for name in ("x", "w"))
    for p in _factors(rows):
        for q in _factors(inner):
            for s in _factors(columns):
                yield matmul_tile(p, q, s), matmul_tile(rows // p, inner // q, columns // s)


def _factors(size: int) -> list[int]:
    return [n for n in range(2, size // 2 + 1) if size % n == 0]


def nested(tile: BilinearTile, outer: BilinearAlgorithm, inner: BilinearAlgorithm) -> BilinearAlgorithm:
    """The outer algorithm on blocks, whose products the inner one takes."""
    (p, q), (_, s) = outer.tile.shapes.values()
    (a, b), (_, c) = inner.tile.shapes.values()
    outputs = _kronecker(transposed(outer.outputs), transposed(inner.outputs), (p, s), (a, c))
    return BilinearAlgorithm(
        tile, _kronecker(outer.data, inner.data, (p, q), (a, b)),
        _kronecker(outer.weights, inner.weights, (q, s), (b, c)), transposed(outputs),
        {"finder": "nested", "of": [outer.tile.name, inner.tile.name]},
    )  # fmt: skip


def _kronecker(first: Matrix, second: Matrix, outer: _Grid, inner: _Grid) -> Matrix:
    """Products of rows; each is over the elements of a matrix of blocks, and then of one block, row by row."""
    return tuple(_product(one, two, outer, inner) for one in first for two in second)


def _product(one: Sequence[Fraction], two: Sequence[Fraction], outer: _Grid, inner: _Grid) -> tuple[Fraction, ...]:
    wide = outer[1] * inner[1]
    normal_form = [Fraction(0)] * (len(one) * len(two))
    for i, p in enumerate(one):
        for j, q in enumerate(two):
            (row, column), (within, across) = divmod(i, outer[1]), divmod(j, inner[1])
            normal_form[(row * inner[0] + within) * wide + column * inner[1] + across] = p * q
    return tuple(normal_form)


def solved(columns: Sequence[Sequence[Fraction]], targets: Sequence[Sequence[Fraction]]) -> Matrix | None:
    """For every target, its coefficients as a sum of the columns; ``None`` where one is no such sum.

    Free coefficients, where the columns depend on each other, are 0.
    """
    rows = len(columns[0])
    table = [[c[i] for c in columns] + [t[i] for t in targets] for i in range(rows)]
    pivots: list[int] = []
    for column in range(len(columns)):
        at = len(pivots)
        chosen = next((i for i in range(at, rows) if table[i][column]), None)
        if chosen is None:
            continue
        table[at], table[chosen] = table[chosen], table[at]
        head = table[at][column]
        table[at] = [v / head for v in table[at]]
        for i in range(rows):
            if i != at and (factor := table[i][column]):
                table[i] = [v - factor * u for v, u in zip(table[i], table[at], strict=True)]
        pivots.append(column)
    if any(v for row in table[len(pivots) :] for v in row[len(columns) :]):
        return None
    found = []
    for number in range(len(targets)):
        coefficients = [Fraction(0)] * len(columns)
        for at, column in enumerate(pivots):
            coefficients[column] = table[at][len(columns) + number]
        found.append(tuple(coefficients))
    return tuple(found)


def normal_form(
    tile: BilinearTile, data: Matrix, weights: Matrix, outputs: Matrix, origin: dict[str, object]
) -> BilinearAlgorithm:
    """An algorithm in a normal form: the factors that scale a product to and fro are with the weights.

    What runs at inference, the transforms of data and outputs, has coprime integers in every product (the first of a
    row of the data positive); what that takes is left to the weights, which are transformed beforehand in more bits.
    """
    columns = list(zip(*outputs, strict=True))
    rows_a, rows_b, columns_g = [], [], []
    for a, b, g in zip(data, weights, columns, strict=True):
        p, q = _content(a), _content(g)
        rows_a.append(tuple(v / p for v in a))
        columns_g.append(tuple(v / q for v in g))
        rows_b.append(tuple(v * p * q for v in b))
    return BilinearAlgorithm(tile, tuple(rows_a), tuple(rows_b), tuple(zip(*columns_g, strict=True)), origin)


def _content(row: Sequence[Fraction]) -> Fraction:
    """What a row of rationals is a multiple of, so that coprime integers are left; the sign is the first element's."""
    some = [v for v in row if v]
    fraction = Fraction(gcd(*(v.numerator for v in some)), lcm(*(v.denominator for v in some)))
    return -fraction if some[0] < 0 else fraction


def transposed(matrix: Matrix) -> Matrix:
    """Rows as columns."""
    return tuple(zip(*matrix, strict=True))

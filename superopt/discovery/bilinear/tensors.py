"""A tile's tensor of coefficients, read off the operators' meanings by evaluating them over formal bilinear forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import isfinite, prod
from typing import Any

import numpy as np

from superopt.ir.errors import UsageError
from superopt.ir.terms import App, computed
from superopt.ir.types import DType, TensorType
from superopt.rules.bilinear import Tile
from superopt.rules.typing import type_terms
from superopt.runtime.evaluate import Array, evaluate

__all__ = ["tensor_of"]

_Monomial = tuple[int, int]  # element of the data and of the weights, or -1 for neither


class _Form:
    """A polynomial that has at most one factor of the data and one of the weights in each term."""

    __slots__ = ("terms",)

    def __init__(self, terms: Mapping[_Monomial, Fraction]) -> None:
        self.terms = {m: c for m, c in terms.items() if c}

    def __add__(self, other: _Form) -> _Form:
        found = dict(self.terms)
        for monomial, value in other.terms.items():
            found[monomial] = found.get(monomial, Fraction(0)) + value
        return _Form(found)

    def __mul__(self, other: _Form) -> _Form:
        found: dict[_Monomial, Fraction] = {}
        for (i, j), p in self.terms.items():
            for (k, l), q in other.terms.items():
                if (i >= 0 and k >= 0) or (j >= 0 and l >= 0):
                    raise UsageError("it multiplies data by data, or weights by weights, so it is not bilinear")
                monomial = max(i, k), max(j, l)
                found[monomial] = found.get(monomial, Fraction(0)) + p * q
        return _Form(found)


class _Forms:
    """The algebra of such polynomials, for :func:`superopt.runtime.evaluate.evaluate`."""

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


def _objects(values: Array, made: Callable[[Any], _Form]) -> Array:
    found = np.empty(values.shape, dtype=object)
    for place in np.ndindex(values.shape):
        found[place] = made(values[place])
    return found


def tensor_of(tile: Tile) -> Array:
    """``T[i, j, k]``, the coefficient of ``x[i]·w[j]`` in ``z[k]``, as Fractions in an object array.

    Raises:
        UsageError: the terms are not bilinear in data and weights.
    """
    types = {name: TensorType(DType.FLOAT32, shape) for name, shape in tile.shapes.items()}
    _, meanings = type_terms(tile.terms, types)
    given = {**_symbols(tile, tile.data, 0), **_symbols(tile, tile.weights, 1)}

    def outputs(app: App, operands: list[Array | None]) -> list[Array]:
        return [evaluate(c, operands, _Forms(), {}) for c in meanings[app].outputs]

    found = computed(tile.terms, given, outputs)
    forms: list[_Form] = [form for root in tile.terms for form in np.ravel(found[root])]
    shape = tile.elements(tile.data), tile.elements(tile.weights), len(forms)
    tensor = np.full(shape, Fraction(0), dtype=object)
    for k, form in enumerate(forms):
        for (i, j), value in form.terms.items():
            if i < 0 or j < 0:
                raise UsageError("it has a term without data or without weights, so it is not bilinear")
            tensor[i, j, k] = value
    return tensor


def _symbols(tile: Tile, names: Mapping[str, str], side: int) -> dict[str, Array]:
    found: dict[str, Array] = {}
    start = 0
    for name in names:
        shape = tile.shapes[name]
        numbers = start + np.arange(prod(shape)).reshape(shape)
        found[name] = _objects(numbers, lambda n: _Form({((int(n), -1) if side == 0 else (-1, int(n))): Fraction(1)}))
        start += prod(shape)
    return found

"""Number systems of an evaluation, and arrays whose axes are named by index variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import erf, prod
from typing import Any, Protocol

import numpy as np

__all__ = [
    "ArrayArithmetic",
    "Array",
    "FLOAT64",
    "Float64Arithmetic",
    "IndexVariableArray",
    "aligned",
    "broadcast",
    "folded",
    "product_sum",
]


Array = np.ndarray[Any, np.dtype[Any]]


class ArrayArithmetic(Protocol):
    """Arithmetic on arrays of elements; everything broadcasts as NumPy does, and returns a new array (or a view).

    Attributes:
        logarithmic: keep ``exp(b)`` as its exponent until its value is needed, so that quotients and logarithms of sums
            of exponentials do not overflow (floating point: True; exact algebras: False). With True, ``function``
            must know "exp", "log", "max", "add", "mul", "inv", "div", and "finite" (x where it is finite, else 0).
    """

    @property
    def logarithmic(self) -> bool: ...

    def constant(self, value: Fraction | float) -> Array:
        """A constant as a 0-d array. A float is ±infinity or NaN, which an exact algebra may refuse."""
        ...

    def integers(self, values: Array) -> Array:
        """int64 values (sizes, index variables, the truth of conditions as 0 and 1) as elements."""
        ...

    def positions(self, values: Array) -> Array:
        """Elements as int64 positions (an index that depends on data)."""
        ...

    def function(self, name: str, *arrays: Array) -> Array:
        """A function of ``superopt.ops.operator_semantics.FUNCTIONS``, "add" and "mul" included, elementwise with
        broadcasting."""
        ...

    def reduce(self, kind: str, array: Array, axes: tuple[int, ...]) -> Array:
        """ "sum", "max", "min" or "prod" over axes (removed). Over an empty axis: 0, −infinity, +infinity, 1."""
        ...

    def matmul(self, a: Array, b: Array) -> Array:
        """Sums of products ``[*batch, m, k] · [*batch, k, n] → [*batch, m, n]``: any number of equal leading axes."""
        ...


def _erf(x: Array) -> Array:
    """The C library's error function, element by element (NumPy has none): about 60 ns each."""
    values = np.asarray(x, dtype=np.float64)
    return np.fromiter(map(erf, values.ravel().tolist()), np.float64, values.size).reshape(values.shape)


class Float64Arithmetic:
    """NumPy numbers as they are: float64 for reals, int64 for integers and truth values, mixed as NumPy promotes them.

    NaN propagates through max, min and their reductions. Division by zero and overflow give infinities in silence.
    """

    logarithmic = True

    def constant(self, value: Fraction | float) -> Array:
        if isinstance(value, Fraction) and value.denominator == 1 and -(2**63) <= value.numerator < 2**63:
            return np.asarray(value.numerator, dtype=np.int64)
        return np.asarray(float(value), dtype=np.float64)

    def integers(self, values: Array) -> Array:
        return values

    def positions(self, values: Array) -> Array:
        return values.astype(np.int64, copy=False)

    def function(self, name: str, *arrays: Array) -> Array:
        result: Array = _FUNCTIONS[name](*arrays)
        return result

    def reduce(self, kind: str, array: Array, axes: tuple[int, ...]) -> Array:
        if kind == "sum":
            return np.asarray(array.sum(axis=axes))
        if kind == "prod":
            return np.asarray(array.prod(axis=axes))
        beyond = -np.inf if kind == "max" else np.inf
        if any(array.shape[axis] == 0 for axis in axes):
            shape = [n for axis, n in enumerate(array.shape) if axis not in axes]
            return np.full(shape, beyond)
        return np.asarray(array.max(axis=axes) if kind == "max" else array.min(axis=axes))

    def matmul(self, a: Array, b: Array) -> Array:
        product: Array = np.matmul(a, b)
        return product


def _truth(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda *arrays: function(*arrays).astype(np.int64)


def _power(base: Array, exponent: Array) -> Array:
    if base.dtype.kind == "i" and exponent.dtype.kind == "i" and (exponent >= 0).all():
        return np.power(base, exponent)
    return np.power(base.astype(np.float64), exponent)


def _truncated_division(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f" or b.dtype.kind == "f":
        return np.trunc(a / b)
    safe = np.where(b == 0, 1, b)
    quotient = np.abs(a) // np.abs(safe)
    return np.where((a < 0) != (b < 0), -quotient, quotient)


def _select(condition: Array, then: Array, otherwise: Array) -> Array:
    return np.where(condition != 0, then, otherwise)


def _finite(x: Array) -> Array:
    return np.where(np.isfinite(x), x, 0.0)


FLOAT64 = Float64Arithmetic()

_FUNCTIONS: Mapping[str, Callable[..., Array]] = {
    "add": np.add, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum,
    "inv": lambda x: np.divide(1.0, x), "pow": _power, "exp": np.exp, "log": np.log, "sqrt": np.sqrt,
    "erf": _erf, "tanh": np.tanh, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "floor": np.floor, "ceil": np.ceil, "round": np.rint, "abs": np.abs, "sign": np.sign,
    "less": _truth(np.less), "equal": _truth(np.equal), "not": _truth(np.logical_not), "and": _truth(np.logical_and),
    "or": _truth(np.logical_or), "xor": _truth(np.logical_xor), "select": _select,
    "truncdiv": _truncated_division, "floormod": np.mod, "truncmod": np.fmod, "cast_int": np.trunc,
    "isnan": _truth(np.isnan), "isinf": _truth(np.isinf), "finite": _finite,
}  # fmt: skip


# -- Arrays with named axes ----------------------------------------------------------------------------------------
#
# Arrays whose axes are named by index variables, and their products summed over some of them.


_PIECE = 1 << 25  # bytes of a factor that are packed at once: the windows of an image are many times its size


@dataclass(frozen=True, slots=True, eq=False)
class IndexVariableArray:
    """An array with one axis per index variable it depends on; axes are in the program's order of variables."""

    array: Array
    axes: tuple[str, ...]

    def size(self, axis: str) -> int:
        return int(self.array.shape[self.axes.index(axis)])


def aligned(values: Sequence[IndexVariableArray], rank: Mapping[str, int]) -> tuple[list[Array], tuple[str, ...]]:
    """The arrays with axes of size 1 put in, so that they broadcast, and the union of the axes."""
    axes = values[0].axes
    if all(v.axes == axes for v in values):
        return [v.array for v in values], axes
    axes = tuple(sorted({a for v in values for a in v.axes}, key=rank.__getitem__))
    arrays = []
    for value in values:
        own = iter(value.array.shape)
        have = set(value.axes)
        arrays.append(value.array.reshape([next(own) if a in have else 1 for a in axes]))
    return arrays, axes


def broadcast(value: IndexVariableArray, axes: Sequence[str], extents: Mapping[str, int]) -> Array:
    """The value over exactly these axes (in any order), repeated along those it lacks; a view."""
    present = [a for a in axes if a in value.axes]
    array = value.array.transpose([value.axes.index(a) for a in present])
    array = array.reshape([extents[a] if a in value.axes else 1 for a in axes]) if len(present) < len(axes) else array
    return np.broadcast_to(array, [extents[a] for a in axes])


def folded(
    algebra: ArrayArithmetic, kind: str, value: IndexVariableArray, reduced: Sequence[str]
) -> IndexVariableArray:
    """The reduction of a value over axes that it has.

    A window of few positions is folded position by position: NumPy is slow at reducing short strided axes.
    """
    axes = tuple(value.axes.index(v) for v in reduced)
    rest = tuple(a for a in value.axes if a not in reduced)
    if not axes:
        return value
    count = prod(value.array.shape[a] for a in axes)
    if kind == "sum" or not 0 < count <= 64 or value.array.size < 4096 * count:
        return IndexVariableArray(algebra.reduce(kind, value.array, axes), rest)
    moved = np.moveaxis(value.array, axes, range(len(axes)))
    positions = iter(np.ndindex(*moved.shape[: len(axes)]))
    result = moved[next(positions)]
    for position in positions:
        result = algebra.function("mul" if kind == "prod" else kind, result, moved[position])
    return IndexVariableArray(result, rest)


def product_sum(
    algebra: ArrayArithmetic,
    factors: Sequence[IndexVariableArray],
    reduced: Sequence[str],
    extents: Mapping[str, int],
    rank: Mapping[str, int],
    piece: int = _PIECE,
) -> IndexVariableArray:
    """``Σ over reduced of Π factors``: pairs are contracted by matrix products, the cheapest result first.

    Args:
        algebra: of the elements.
        factors: with axes.
        reduced: the axes that are summed over.
        extents: of the axes.
        rank: the order of the axes.
        piece: bytes of a factor that are packed at once.
    """
    left = list(factors)
    repeated = prod(extents[v] for v in reduced if not any(v in f.axes for f in left))
    if repeated != 1:
        left.append(IndexVariableArray(algebra.integers(np.asarray(repeated, dtype=np.int64)), ()))
    if not left:
        return IndexVariableArray(algebra.integers(np.asarray(1, dtype=np.int64)), ())
    while True:
        for position, factor in enumerate(left):
            others = {a for f in (*left[:position], *left[position + 1 :]) for a in f.axes}
            own = [v for v in reduced if v in factor.axes and v not in others]
            left[position] = folded(algebra, "sum", factor, own)
        if len(left) == 1:
            return left[0]
        i, j = _cheapest(left, reduced, extents)
        pair = left[i], left[j]
        left = [f for position, f in enumerate(left) if position not in (i, j)]
        kept = {a for f in left for a in f.axes}
        both = set(pair[0].axes) & set(pair[1].axes)
        inner = [v for v in reduced if v in both and v not in kept]
        left.append(_contracted(algebra, *pair, inner, extents, rank, piece))


def _cheapest(
    factors: Sequence[IndexVariableArray], reduced: Sequence[str], extents: Mapping[str, int]
) -> tuple[int, int]:
    if len(factors) == 2:
        return 0, 1
    best = (-1.0, 0, 1)
    for i in range(len(factors)):
        for j in range(i + 1, len(factors)):
            kept = {a for k, f in enumerate(factors) if k not in (i, j) for a in f.axes}
            union = {*factors[i].axes, *factors[j].axes}
            cost = float(prod(extents[a] for a in union if a not in reduced or a in kept))
            if best[0] < 0 or cost < best[0]:
                best = (cost, i, j)
    return best[1], best[2]


def _contracted(
    algebra: ArrayArithmetic,
    a: IndexVariableArray,
    b: IndexVariableArray,
    inner: Sequence[str],
    extents: Mapping[str, int],
    rank: Mapping[str, int],
    piece: int,
) -> IndexVariableArray:
    """``Σ over inner of a · b``; every axis of ``inner`` is in both."""
    if not inner:
        arrays, axes = aligned([a, b], rank)
        return IndexVariableArray(algebra.function("mul", *arrays), axes)
    axis, count = _cut(a, b, inner, piece)
    if count > 1:
        return _piecewise(algebra, a, b, inner, extents, rank, piece, axis, count)
    batch = [v for v in a.axes if v in b.axes and v not in inner]
    if _nearest(b, inner) < _nearest(b, [v for v in b.axes if v not in a.axes]):
        a, b = b, a  # BLAS is fastest when the left factor runs along the sum in memory and the right one across it
    rows = [v for v in a.axes if v not in b.axes]
    columns = [v for v in b.axes if v not in a.axes]
    left = _packed(a, batch, rows, inner)
    right = _packed(b, batch, columns, inner).swapaxes(-1, -2)
    product = algebra.matmul(left, right)
    axes = (*batch, *rows, *columns)
    product = product.reshape([extents[v] for v in axes])
    order = sorted(range(len(axes)), key=lambda p: rank[axes[p]])
    return IndexVariableArray(product.transpose(order), tuple(axes[p] for p in order))


def _cut(a: IndexVariableArray, b: IndexVariableArray, inner: Sequence[str], piece: int) -> tuple[str, int]:
    """The axis along which the larger factor is taken in pieces, and in how many."""
    value = max(a, b, key=lambda v: v.array.nbytes)
    outer = [v for v in value.axes if v not in inner and value.size(v) > 1]
    if value.array.nbytes < 2 * piece or not outer:
        return "", 1
    axis = max(outer, key=lambda v: abs(value.array.strides[value.axes.index(v)]))
    return axis, min(value.size(axis), -(-value.array.nbytes // piece))


def _piecewise(
    algebra: ArrayArithmetic,
    a: IndexVariableArray,
    b: IndexVariableArray,
    inner: Sequence[str],
    extents: Mapping[str, int],
    rank: Mapping[str, int],
    piece: int,
    axis: str,
    count: int,
) -> IndexVariableArray:
    """:func:`_contracted`, for so many pieces of an axis that is not summed over."""
    ends = [extents[axis] * number // count for number in range(count + 1)]
    parts: list[IndexVariableArray] = []
    for start, end in pairwise(ends):
        left, right = (_part(v, axis, slice(start, end)) for v in (a, b))
        parts.append(_contracted(algebra, left, right, inner, {**extents, axis: end - start}, rank, piece))
    axes = parts[0].axes
    return IndexVariableArray(np.concatenate([p.array for p in parts], axes.index(axis)), axes)


def _part(value: IndexVariableArray, axis: str, part: slice) -> IndexVariableArray:
    if axis not in value.axes:
        return value
    return IndexVariableArray(value.array[(slice(None),) * value.axes.index(axis) + (part,)], value.axes)


def _packed(value: IndexVariableArray, batch: Sequence[str], outer: Sequence[str], inner: Sequence[str]) -> Array:
    """The value as ``[*batch, outer, inner]``, copied only where BLAS could not read it in place.

    The copy keeps in the innermost place the axis that moves fastest in memory, on whichever side it is.
    """
    inner_last = _nearest(value, inner) < _nearest(value, outer)
    groups = (outer, inner) if inner_last else (inner, outer)
    array = value.array.transpose([value.axes.index(v) for v in (*batch, *groups[0], *groups[1])])
    lead = array.shape[: len(batch)]
    shape = [prod(value.size(v) for v in group) for group in groups]
    array = array.reshape(*lead, *shape)
    if array.itemsize not in array.strides[-2:] and min(shape) > 1:
        array = np.ascontiguousarray(array)
    return array if inner_last else array.swapaxes(-1, -2)


def _nearest(value: IndexVariableArray, axes: Sequence[str]) -> tuple[float, int]:
    """The smallest step in memory along any of the axes; of equal ones (a window), the longer axis is nearer."""
    steps = ((abs(value.array.strides[value.axes.index(v)]), -value.size(v)) for v in axes if value.size(v) > 1)
    return min(steps, default=(float("inf"), 0))

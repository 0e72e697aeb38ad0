"""What numbers a comprehension is evaluated over: the protocol, and the algebra of NumPy's own numbers.

The evaluator moves elements about by itself (indexing, transposing, reshaping, padding, ``numpy.where``,
``numpy.concatenate``) and asks the algebra for all arithmetic. So an element may be anything one array entry can hold:
a float, a residue in an int64, two residues packed into one int64, a Fraction in an object array.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import erf
from typing import Any, Protocol

import numpy as np

__all__ = ["FLOAT64", "Algebra", "Array", "Float64"]

Array = np.ndarray[Any, np.dtype[Any]]


class Algebra(Protocol):
    """Arithmetic on arrays of elements; everything broadcasts as NumPy does, and returns a new array (or a view).

    Attributes:
        logarithmic: keep ``exp(b)`` as its exponent until its value is needed, so that quotients and logarithms of sums
            of exponentials do not overflow (floating point: True; exact algebras: False). With True, ``function``
            must know "exp", "log", "max", "add", "mul", "inv", and "finite" (x where it is finite, else 0).
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
        """A function of ``superopt.ops.meaning.FUNCTIONS``, "add" and "mul" included, elementwise with broadcasting."""
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


class Float64:
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


FLOAT64 = Float64()

_FUNCTIONS: Mapping[str, Callable[..., Array]] = {
    "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
    "inv": lambda x: np.divide(1.0, x), "pow": _power, "exp": np.exp, "log": np.log, "sqrt": np.sqrt,
    "erf": _erf, "tanh": np.tanh, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "floor": np.floor, "ceil": np.ceil, "round": np.rint, "abs": np.abs, "sign": np.sign,
    "less": _truth(np.less), "equal": _truth(np.equal), "not": _truth(np.logical_not), "and": _truth(np.logical_and),
    "or": _truth(np.logical_or), "xor": _truth(np.logical_xor), "select": _select,
    "truncdiv": _truncated_division, "floormod": np.mod, "truncmod": np.fmod, "cast_int": np.trunc,
    "isnan": _truth(np.isnan), "isinf": _truth(np.isinf), "finite": _finite,
}  # fmt: skip

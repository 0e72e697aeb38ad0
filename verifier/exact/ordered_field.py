"""An exact algebra with an order: a residue for equality beside a float for comparisons.

Equality of fingerprints must be exact, and relu or max need to know which of two numbers is larger. Rationals give both
but are a thousand times slower in NumPy. Here an element is a pair: the residue of :class:`PrimeField` decides equality
and the float, close to the same number, decides order. A comparison of numbers that are equal as reals picks either;
their residues agree, so the choice does not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import isfinite

import numpy as np

from superopt.runtime.comprehension_evaluation import FLOAT64, Array
from superopt.verifier.exact.algebra import PrimeField

__all__ = ["OrderedPrimeField"]

PAIR = np.dtype([("r", "<i8"), ("f", "<f8")])
_SELECTING = {"max": np.greater_equal, "min": np.less_equal}
_CLOSE = 1e-9
_SMALL = 256  # 64ths: up to 4, where floats of different numbers differ under exp, tanh, erf and a sigmoid


def pair(residue: Array, number: Array) -> Array:
    """Elements from residues and floats."""
    first, second = np.broadcast_arrays(residue, number)
    array = np.empty(first.shape, PAIR)
    array["r"], array["f"] = first, second
    return array


def _nonzero(x: Array) -> Array:
    """The floats, 1 where one is as good as 0: what is divided by 0 has no remainder, and the same one every time."""
    return np.where(np.abs(x["f"]) < _CLOSE, 1.0, x["f"])


class OrderedPrimeField:
    """See the module. Elements are 64ths in [−64, 64] and never 0; half of them lie between −1 and 1.

    There ``x²`` is below ``|x|``, and maxima of polynomials part that agree at all larger numbers.
    """

    logarithmic = False
    choices = 2 * _SMALL

    def __init__(self) -> None:
        self.field = PrimeField()

    def random(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        count = int(np.prod(shape, dtype=np.int64))
        stratum = rng.permutation(count) % 4  # every sign and magnitude occurs in four elements
        size = np.where(stratum < 2, rng.integers(1, 64, size=count), rng.integers(65, 4097, size=count))
        drawn = (np.where(stratum % 2 == 0, -1, 1) * size).reshape(shape)
        part = self.field.constant(Fraction(1, 64))
        return pair(self.field.function("mul", self.field.integers(drawn), part), drawn / 64.0)

    def small(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """64ths in [−4, 4)."""
        drawn = rng.integers(-_SMALL, _SMALL, size=shape)
        return pair(self.field.floats(drawn / 64.0), drawn / 64.0)

    def equal(self, a: Array, b: Array) -> Array:
        """Where two arrays of elements are equal."""
        return self.field.equal(a["r"], b["r"])

    def show(self, x: Array) -> list[str]:
        """Elements as text: the floats."""
        return [str(v) for v in np.asarray(x["f"]).ravel().tolist()]

    def constant(self, value: Fraction | float) -> Array:
        if isinstance(value, float) and not isfinite(value):
            return pair(np.asarray(0, np.int64), np.asarray(value))
        return pair(self.field.constant(value), np.asarray(float(value)))

    def integers(self, values: Array) -> Array:
        return pair(self.field.integers(values), np.asarray(values).astype(np.float64))

    def positions(self, values: Array) -> Array:
        return np.asarray(np.rint(values["f"]).astype(np.int64))

    def function(self, name: str, *arrays: Array) -> Array:
        special: Callable[..., Array] | None = getattr(self, f"_{name}", None)
        if special is not None:
            return special(*arrays)
        if name in _SELECTING:
            a, b = np.broadcast_arrays(*arrays)
            return np.where(_SELECTING[name](a["f"], b["f"]), a, b)
        if name in ("sqrt", "log"):
            # of what is negative here: a fixed function of the residue; the float only has to be the same every time
            number = np.asarray(FLOAT64.function(name, np.abs(arrays[0]["f"])))
        else:
            number = np.asarray(FLOAT64.function(name, *(a["f"] for a in arrays)))
        return pair(self.field.function(name, *(a["r"] for a in arrays)), number)

    def _abs(self, x: Array) -> Array:
        return np.where(x["f"] < 0, self._negated(x), x)

    def _negated(self, x: Array) -> Array:
        return self.function("mul", x, self.integers(np.asarray(-1)))

    def _sign(self, x: Array) -> Array:
        return self.integers(np.where(np.abs(x["f"]) < _CLOSE, 0, np.sign(x["f"])).astype(np.int64))

    def _less(self, a: Array, b: Array) -> Array:
        return self.integers((a["f"] < b["f"] - _CLOSE).astype(np.int64))

    def _cast_int(self, x: Array) -> Array:
        return self.integers(np.trunc(x["f"] + _CLOSE * np.sign(x["f"])).astype(np.int64))

    def _truncdiv(self, x: Array, y: Array) -> Array:
        return self._cast_int(pair(x["r"], x["f"] / _nonzero(y)))

    def _isnan(self, x: Array) -> Array:
        return self.integers(np.isnan(x["f"]).astype(np.int64))

    def _isinf(self, x: Array) -> Array:
        return self.integers(np.isinf(x["f"]).astype(np.int64))

    def _floor(self, x: Array) -> Array:
        return self.integers(np.floor(x["f"] + _CLOSE).astype(np.int64))

    def _ceil(self, x: Array) -> Array:
        return self.integers(np.ceil(x["f"] - _CLOSE).astype(np.int64))

    def _round(self, x: Array) -> Array:
        return self.integers(np.rint(x["f"]).astype(np.int64))

    def _floormod(self, x: Array, y: Array) -> Array:
        return self._remainder(x, y, np.floor(x["f"] / _nonzero(y) + _CLOSE))

    def _truncmod(self, x: Array, y: Array) -> Array:
        quotient = x["f"] / _nonzero(y)
        return self._remainder(x, y, np.trunc(quotient + _CLOSE * np.sign(quotient)))

    def _remainder(self, x: Array, y: Array, quotient: Array) -> Array:
        """``x − y · quotient``."""
        whole = self.integers(np.where(np.isfinite(quotient), quotient, 0).astype(np.int64))
        return self.function("add", x, self._negated(self.function("mul", y, whole)))

    def _select(self, c: Array, a: Array, b: Array) -> Array:
        return np.where(np.abs(c["f"]) > _CLOSE, a, b)

    def reduce(self, kind: str, array: Array, axes: tuple[int, ...]) -> Array:
        if kind in _SELECTING:
            kept = [n for axis, n in enumerate(array.shape) if axis not in axes]
            order = [a for a in range(array.ndim) if a not in axes] + list(axes)
            flat = array.transpose(order).reshape(*kept, -1)
            if not flat.shape[-1]:
                return np.broadcast_to(self.constant(float("-inf" if kind == "max" else "inf")), kept)
            place = (np.argmax if kind == "max" else np.argmin)(flat["f"], axis=-1)
            return np.asarray(np.take_along_axis(flat, place[..., None], axis=-1)[..., 0])
        number = array["f"].sum(axis=axes) if kind == "sum" else array["f"].prod(axis=axes)
        return pair(self.field.reduce(kind, np.ascontiguousarray(array["r"]), axes), np.asarray(number))

    def matmul(self, a: Array, b: Array) -> Array:
        residue = self.field.matmul(np.ascontiguousarray(a["r"]), np.ascontiguousarray(b["r"]))
        return pair(residue, np.matmul(a["f"], b["f"]))

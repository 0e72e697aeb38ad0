"""Exact arithmetic for testing equalities: a prime field (with exponentials), and the rationals (with an order).

The field is Z_p with p = 2q + 1, both prime. An element is a residue mod p together with one mod q, packed into one
int64, so that ``exp`` can be a homomorphism Z_q → Z_p: exp(x + y) = exp(x)·exp(y) holds exactly. The result of
``exp`` (and of any hashed function) has no q-part; ``exp`` of that is a keyed hash.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from math import isfinite, isqrt
from typing import Any
from zlib import crc32

import numpy as np

from superopt.runtime.comprehension_evaluation import Array
from superopt.verifier.check.tolerance import pieces

__all__ = ["MODULUS", "ORDERED", "NeedsOrder", "PrimeField", "Rationals", "InverseOfZero"]

# The largest safe prime below 2^26 of which -1 is no square and every number up to 30 is one: so √(a²x) is |a|·√x for
# all quotients of such numbers, as it is of reals, and a rule that is wrong by the sign of a root is told.
MODULUS = 67058879
_HALF = MODULUS // 2  # q, prime
_BITS = 26
_NO_Q = 1 << 25  # > q: "this element has no q-part"
_GENERATOR = 4  # a square, hence of order q
_BLOCK = 1024  # products below 2^52 that an int64 can sum without overflow
_LEAST_POWER, _MOST_POWER = -1074 - 53, 1024  # of two, that the parts of a float64 are multiples of


class InverseOfZero(Exception):
    """An inverse of zero was met: draw other values."""


class NeedsOrder(Exception):
    """A function that depends on the order of numbers, which a field does not have."""


def _pack(p: Array, q: Array) -> Array:
    return np.asarray(np.asarray(p) | (np.asarray(q) << _BITS))


def _p(x: Array) -> Array:
    return np.asarray(x & ((1 << _BITS) - 1))


def _q(x: Array) -> Array:
    return np.asarray(x >> _BITS)


def _both(a: Array, b: Array, value: Array) -> Array:
    """A q-part where both operands have one."""
    return np.where((a == _NO_Q) | (b == _NO_Q), _NO_Q, value)


def _power(base: Array, exponent: Array, modulus: int) -> Array:
    """Square and multiply, elementwise; exponents at least 0."""
    base, exponent = np.broadcast_arrays(np.asarray(base) % modulus, np.asarray(exponent))
    result = np.ones_like(base)
    base, exponent = base.copy(), exponent.copy()
    while exponent.any():
        result = np.where(exponent & 1, result * base % modulus, result)
        base = base * base % modulus
        exponent >>= 1
    return result


def signed(x: Array) -> Array:
    """The integer in (−p/2, p/2) that an element stands for."""
    value = _p(x)
    return np.where(value > _HALF, value - MODULUS, value)


def _modular(value: Fraction, modulus: int) -> int:
    return value.numerator * pow(value.denominator, -1, modulus) % modulus


@lru_cache(maxsize=2)
def _powers_of_two(modulus: int) -> Array:
    return np.array([pow(2, power, modulus) for power in range(_LEAST_POWER, _MOST_POWER + 1)])


class PrimeField:
    """The algebra of packed residue pairs. ``key`` seeds the functions that are hashes.

    Raises :class:`InverseOfZero` for the inverse of zero and :class:`NeedsOrder` for max, abs, floor and the like.
    """

    logarithmic = False
    name = f"prime field of {MODULUS}"
    choices = _HALF  # how many values random elements are drawn from

    def __init__(self, key: int = 0, *, odd: bool = False) -> None:
        self.key = np.uint64(key * 0x9E3779B97F4A7C15 + 0x1234567 & (1 << 64) - 1)
        self.odd = odd

    def random(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Uniform elements; with ``odd`` small ones, so that some are equal, some opposite and some 0."""
        return self.integers(rng.integers(*((-2, 3) if self.odd else (0, _HALF)), size=shape))

    def constant(self, value: Fraction | float) -> Array:
        if isinstance(value, float):
            if not isfinite(value):
                raise NeedsOrder(str(value))
            value = Fraction(value)
        return _pack(np.asarray(_modular(value, MODULUS)), np.asarray(_modular(value, _HALF)))

    def integers(self, values: Array) -> Array:
        wide = np.asarray(values).astype(np.int64)
        return _pack(wide % MODULUS, wide % _HALF)

    def floats(self, values: Array) -> Array:
        """Finite floats as what they are exactly, m · 2ᵉ: part by part, as large weights would be copied ten times."""
        flat, array = np.ascontiguousarray(values).ravel(), np.empty(np.shape(values), np.int64)
        for part in pieces(flat.size):
            array.reshape(-1)[part] = self._floats(flat[part].astype(np.float64), flat.itemsize > 4)
        return array

    @staticmethod
    def _floats(values: Array, long: bool) -> Array:
        fraction, exponent = np.frexp(values)
        wide = np.ldexp(fraction, 24)  # whole, but for those with more digits than float32 has
        high, at = wide.astype(np.int64), exponent - 24 - _LEAST_POWER
        low = np.ldexp(wide - high, 29).astype(np.int64) if long else None
        parts = []
        for modulus in (MODULUS, _HALF):
            powers = _powers_of_two(modulus)
            array = high * powers.take(at)  # below 2^50, and what low makes below 2^55
            parts.append((array if low is None else array + low * powers.take(at - 29)) % modulus)
        return _pack(*parts)

    def positions(self, values: Array) -> Array:
        return signed(values)

    def equal(self, a: Array, b: Array) -> Array:
        """Where two arrays of elements are equal."""
        return np.asarray(_p(a) == _p(b))

    def show(self, x: Array) -> list[str]:
        """Elements as text: the integers they stand for."""
        return [str(v) for v in signed(np.asarray(x)).ravel().tolist()]

    def function(self, name: str, *arrays: Array) -> Array:
        method: Callable[..., Array] | None = getattr(self, f"_{name}", None)
        if method is not None:
            return method(*(np.asarray(a) for a in arrays))
        if name in ORDERED:
            raise NeedsOrder(name)
        return self._hash(name, *(_p(np.asarray(a)) for a in arrays))

    def reduce(self, kind: str, array: Array, axes: tuple[int, ...]) -> Array:
        if kind == "sum":
            q = _q(array)
            missing = (q == _NO_Q).any(axis=axes)
            return _pack(
                _p(array).sum(axis=axes) % MODULUS, np.where(missing, _NO_Q, (q % _NO_Q).sum(axis=axes) % _HALF)
            )
        if kind != "prod":
            raise NeedsOrder(kind)
        kept = [n for axis, n in enumerate(array.shape) if axis not in axes]
        order = [a for a in range(array.ndim) if a not in axes] + list(axes)
        flat = array.transpose(order).reshape(*kept, -1)
        result = self.integers(np.ones(kept, dtype=np.int64))
        for i in range(flat.shape[-1]):
            result = self._mul(result, flat[..., i])
        return result

    def matmul(self, a: Array, b: Array) -> Array:
        missing = self._lacking(a, -1)[..., :, None] | self._lacking(b, -2)[..., None, :]
        p = q = np.zeros(missing.shape, np.int64)
        for start in range(0, a.shape[-1], _BLOCK):
            left, right = a[..., start : start + _BLOCK], b[..., start : start + _BLOCK, :]
            p = (p + np.matmul(_p(left), _p(right))) % MODULUS
            q = (q + np.matmul(_q(left) % _NO_Q, _q(right) % _NO_Q)) % _HALF
        return _pack(p, np.where(missing, _NO_Q, q))

    @staticmethod
    def _lacking(x: Array, axis: int) -> Array:
        """Where a row has an element without a q-part."""
        return np.asarray(x.max(axis=axis, initial=0) >= _NO_Q << _BITS)

    # ---- functions, by their names in the meaning language --------------------------------------------------------
    def _add(self, a: Array, b: Array) -> Array:
        return _pack((_p(a) + _p(b)) % MODULUS, _both(_q(a), _q(b), (_q(a) + _q(b)) % _HALF))

    def _mul(self, a: Array, b: Array) -> Array:
        return _pack(_p(a) * _p(b) % MODULUS, _both(_q(a), _q(b), _q(a) * _q(b) % _HALF))

    def _inv(self, x: Array) -> Array:
        p, q = _p(x), _q(x)
        if (p == 0).any():
            raise InverseOfZero("inverse of 0")
        inverse = _power(q % _NO_Q, np.asarray(_HALF - 2), _HALF)
        return _pack(_power(p, np.asarray(MODULUS - 2), MODULUS), np.where((q == _NO_Q) | (q == 0), _NO_Q, inverse))

    def _div(self, a: Array, b: Array) -> Array:
        return self._mul(a, self._inv(b))

    def _exp(self, x: Array) -> Array:
        q = _q(x)
        hashed = _p(self._hash("exp", _p(x)))
        powers = _power(np.asarray(_GENERATOR), q % _NO_Q, MODULUS)
        return _pack(np.where(q == _NO_Q, hashed, powers), np.asarray(_NO_Q))

    def _sqrt(self, x: Array) -> Array:
        return _pack(_power(_p(x), np.asarray((MODULUS + 1) // 4), MODULUS), np.full(np.shape(x), _NO_Q))

    def _pow(self, base: Array, exponent: Array) -> Array:
        if (exponent == self.constant(Fraction(1, 2))).all():
            return self._sqrt(base)
        if (exponent == self.constant(Fraction(-1, 2))).all():
            return self._inv(self._sqrt(base))
        power = signed(exponent)
        if (np.abs(power) > 64).any():
            return self._hash("pow", _p(base), _p(exponent))
        size = np.abs(power)
        q = np.where(_q(base) == _NO_Q, _NO_Q, _power(_q(base) % _NO_Q, size, _HALF))
        result = _pack(_power(_p(base), size, MODULUS), q)
        return result if (power >= 0).all() else np.where(power < 0, self._inv(result), result)

    def _tanh(self, x: Array) -> Array:
        double = self._exp(self._add(x, x))
        one = self.constant(Fraction(1))
        return self._mul(self._add(double, self.constant(Fraction(-1))), self._inv(self._add(double, one)))

    def _sinh(self, x: Array) -> Array:
        e = self._exp(x)
        minus = self._mul(self.constant(Fraction(-1)), self._inv(e))
        return self._mul(self._add(e, minus), self.constant(Fraction(1, 2)))

    def _cosh(self, x: Array) -> Array:
        e = self._exp(x)
        return self._mul(self._add(e, self._inv(e)), self.constant(Fraction(1, 2)))

    def _erf(self, x: Array) -> Array:
        """A hash made odd, as erf is."""
        p = _p(x)
        odd = (_p(self._hash("erf", p)) - _p(self._hash("erf", (MODULUS - p) % MODULUS))) % MODULUS
        return _pack(odd, np.asarray(_NO_Q))

    def _equal(self, a: Array, b: Array) -> Array:
        return self.integers((_p(a) == _p(b)).astype(np.int64))

    def _select(self, c: Array, a: Array, b: Array) -> Array:
        return np.where(_p(c) != 0, a, b)

    def _not(self, a: Array) -> Array:
        return self.integers((_p(a) == 0).astype(np.int64))

    def _and(self, a: Array, b: Array) -> Array:
        return self.integers(((_p(a) != 0) & (_p(b) != 0)).astype(np.int64))

    def _or(self, a: Array, b: Array) -> Array:
        return self.integers(((_p(a) != 0) | (_p(b) != 0)).astype(np.int64))

    def _xor(self, a: Array, b: Array) -> Array:
        return self.integers(((_p(a) != 0) ^ (_p(b) != 0)).astype(np.int64))

    def _hash(self, name: str, *residues: Array) -> Array:
        """A keyed hash (splitmix64) of residues mod p, as an element without a q-part."""
        state = np.zeros(np.broadcast_shapes(*(r.shape for r in residues)), np.uint64) + self.key
        seed = np.uint64(int.from_bytes(name.encode()[:7], "little"))
        with np.errstate(over="ignore"):
            for residue in residues:
                state = (state ^ (residue.astype(np.uint64) + seed)) * np.uint64(0xBF58476D1CE4E5B9)
                state ^= state >> np.uint64(27)
                state = state * np.uint64(0x94D049BB133111EB)
                state ^= state >> np.uint64(31)
        return _pack((state % np.uint64(MODULUS)).astype(np.int64), np.asarray(_NO_Q))


ORDERED = frozenset(
    {"max", "min", "abs", "sign", "floor", "ceil", "round", "less", "truncdiv", "floormod", "truncmod", "cast_int",
     "isnan", "isinf"}
)  # fmt: skip


def _each(function: Callable[..., Any]) -> Callable[..., Array]:
    """A function of Python numbers, elementwise over object arrays."""
    wrapped = np.frompyfunc(function, function.__code__.co_argcount, 1)
    return lambda *arrays: np.asarray(wrapped(*arrays), dtype=object)


def _truth(value: bool) -> Fraction:
    return Fraction(int(value))


def _inverse(x: Any) -> Any:
    if x == 0:
        raise InverseOfZero("inverse of 0")
    return Fraction(0) if isinstance(x, float) else 1 / x


def _truncate(x: Any) -> Any:
    return Fraction(int(x))


def _round(x: Any) -> Any:
    return Fraction(round(x))


class Rationals:
    """Fractions in object arrays, for what depends on order. Other functions are keyed hashes into the rationals.

    ±infinity is a float; it occurs only under max and min.
    """

    logarithmic = False
    name = "rationals"
    choices = 8193

    def __init__(self, key: int = 0, *, odd: bool = False) -> None:
        self.key = key
        self.odd = odd

    def random(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Eighths in [−512, 512], all alike likely: what error bounds count on.

        With ``odd``, one of: small integers (ties, zeros), fractions inside (−1, 1), magnitudes from 2⁻¹⁹ to 512
        side by side, one sign only, or one number everywhere.
        """
        drawn = rng.integers(-4096, 4097, size=shape)
        below = np.full(shape, 3)
        style = rng.integers(0, 5) if self.odd else 5
        if style == 0:
            drawn, below = rng.integers(-2, 3, size=shape), np.zeros(shape, dtype=int)
        elif style == 1:
            below = np.full(shape, 12)
        elif style == 2:
            below = rng.choice([3, 6, 10, 12, 13, 16, 19], size=shape)
        elif style == 3:
            drawn, below = np.abs(drawn) * int(rng.choice([-1, 1])), rng.choice([3, 10, 13], size=shape)
        elif style == 4:
            drawn = np.full(shape, int(rng.integers(-4096, 4097)))
            below = np.full(shape, int(rng.choice([3, 12, 14])))
        pairs = zip(np.ravel(drawn), np.ravel(below), strict=True)
        return self._objects(Fraction(int(v), 1 << int(b)) for v, b in pairs).reshape(shape)

    @staticmethod
    def _objects(values: Any) -> Array:
        listed = list(values)
        array = np.empty(len(listed), dtype=object)
        array[:] = listed
        return array

    def constant(self, value: Fraction | float) -> Array:
        exact = value if isinstance(value, Fraction) or not isfinite(value) else Fraction(value)
        return self._objects([exact]).reshape(())

    def integers(self, values: Array) -> Array:
        wide = np.asarray(values)
        return self._objects(Fraction(int(v)) for v in wide.ravel()).reshape(wide.shape)

    def positions(self, values: Array) -> Array:
        return np.asarray(values).astype(np.int64)

    def equal(self, a: Array, b: Array) -> Array:
        """Where two arrays of elements are equal."""
        return np.asarray(a == b, dtype=bool)

    def show(self, x: Array) -> list[str]:
        """Elements as text: ``3/8``."""
        return [str(v) for v in np.asarray(x, dtype=object).ravel()]

    def function(self, name: str, *arrays: Array) -> Array:
        if name in _EXACT:
            return _EXACT[name](*arrays)
        wrapped = np.frompyfunc(lambda *xs: self._hash(name, xs), len(arrays), 1)
        return np.asarray(wrapped(*arrays), dtype=object)

    def _hash(self, name: str, values: tuple[Any, ...]) -> Fraction:
        if name == "pow" and values[1].denominator == 1 and abs(values[1]) <= 16:
            if values[0] == 0 and values[1] < 0:
                raise InverseOfZero("inverse of 0")
            return Fraction(values[0] ** int(values[1]))
        first = values[0]
        if name in ("tanh", "sinh", "cosh"):
            return _hyperbolic(name, self._hash("exp", (first,)))
        if name == "exp":  # above 1, 1 or below 1 where the true one is, and exp(-x) = 1/exp(x)
            return (
                Fraction(1)
                if first == 0
                else 1 / self._hash(name, (-first,))
                if first < 0
                else 1 + self._raw(name, values)
            )
        if name == "erf" and first <= 0:
            return Fraction(0) if first == 0 else -self._hash(name, (-first,))
        if name == "erf":
            return 1 / (1 + self._raw(name, values))
        if name == "sqrt" and isinstance(first, Fraction) and first >= 0:
            roots = isqrt(first.numerator), isqrt(first.denominator)
            if roots[0] ** 2 == first.numerator and roots[1] ** 2 == first.denominator:
                return Fraction(*roots)
        return self._raw(name, values)

    def _raw(self, name: str, values: tuple[Any, ...]) -> Fraction:
        """Above 0 and at most 128."""
        return Fraction(hash((self.key, crc32(name.encode()), values)) % 8191 + 1, 64)

    def reduce(self, kind: str, array: Array, axes: tuple[int, ...]) -> Array:
        operation, first = _REDUCTIONS[kind]
        kept = [n for axis, n in enumerate(array.shape) if axis not in axes]
        order = [a for a in range(array.ndim) if a not in axes] + list(axes)
        flat = np.asarray(array, dtype=object).transpose(order).reshape(int(np.prod(kept, initial=1)), -1)
        values = []
        for row in flat:
            value: Any = first
            for item in row:
                value = operation(value, item)
            values.append(value)
        return self._objects(values).reshape(kept)

    def matmul(self, a: Array, b: Array) -> Array:
        return np.asarray(np.matmul(np.asarray(a, dtype=object), np.asarray(b, dtype=object)), dtype=object)


def _hyperbolic(name: str, grown: Fraction) -> Fraction:
    """From ``exp(x)``."""
    sinh, cosh = (grown - 1 / grown) / 2, (grown + 1 / grown) / 2
    return sinh if name == "sinh" else cosh if name == "cosh" else sinh / cosh


def _maximum(a: Any, b: Any) -> Any:
    return a if a >= b else b


def _minimum(a: Any, b: Any) -> Any:
    return a if a <= b else b


_REDUCTIONS: dict[str, tuple[Callable[[Any, Any], Any], Any]] = {
    "sum": (lambda a, b: a + b, Fraction(0)), "prod": (lambda a, b: a * b, Fraction(1)),
    "max": (_maximum, float("-inf")), "min": (_minimum, float("inf")),
}  # fmt: skip
_EXACT: dict[str, Callable[..., Array]] = {
    "add": _each(lambda a, b: a + b), "mul": _each(lambda a, b: a * b), "inv": _each(_inverse),
    "div": _each(lambda a, b: a * _inverse(b)), "max": _each(_maximum), "min": _each(_minimum),
    "abs": _each(lambda x: abs(x)), "sign": _each(lambda x: Fraction((x > 0) - (x < 0))),
    "floor": _each(lambda x: Fraction(x // 1)), "ceil": _each(lambda x: Fraction(-(-x // 1))), "round": _each(_round),
    "less": _each(lambda a, b: _truth(a < b)), "equal": _each(lambda a, b: _truth(a == b)),
    "not": _each(lambda a: _truth(a == 0)), "and": _each(lambda a, b: _truth(a != 0 and b != 0)),
    "or": _each(lambda a, b: _truth(a != 0 or b != 0)), "xor": _each(lambda a, b: _truth((a != 0) != (b != 0))),
    "select": _each(lambda c, a, b: a if c != 0 else b), "truncdiv": _each(lambda a, b: _truncate(a * _inverse(b))),
    "floormod": _each(lambda a, b: a - b * (a * _inverse(b) // 1)),
    "truncmod": _each(lambda a, b: a - b * _truncate(a * _inverse(b))), "cast_int": _each(_truncate),
    "isnan": _each(lambda x: Fraction(int(x != x))), "isinf": _each(lambda x: _truth(isinstance(x, float))),
}  # fmt: skip

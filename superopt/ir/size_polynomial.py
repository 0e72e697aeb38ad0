"""Integer polynomials: tensor sizes, attributes and index variables share this one normal form.

A *dimension* (``Dim``) is a plain ``int`` when it is known and a ``SizePolynomial`` when it is not. A
``SizePolynomial`` is a sum of monomials with integer coefficients over *atoms*: a name, or a ``FloorQuotient`` (floor
division). Constant polynomials collapse to ``int``, so ``==`` on ``Dim`` is equality of normal forms.

>>> n, k = sym("n"), sym("k")
>>> (n + 1) * (n - 1) - n * n
-1
>>> (4 * n + 6) // 2
2*n + 3
>>> (n + 2 * k - 3) // k
floor((n - 3) / k) + 2
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

__all__ = [
    "Atom",
    "Dim",
    "SizePolynomial",
    "FloorQuotient",
    "atoms",
    "mapped",
    "substitute",
    "sym",
    "symbols",
    "value_at",
]


@dataclass(frozen=True)
class FloorQuotient:
    """``floor(numerator / denominator)``, kept as an atom; the denominator is positive."""

    numerator: Dim
    denominator: Dim

    def __str__(self) -> str:
        return f"floor(({self.numerator}) / {_factor(self.denominator)})"


Atom = str | FloorQuotient
Monomial = tuple[Atom, ...]  # sorted; a power is a repeated atom


def _atom_key(atom: Atom) -> tuple[int, str]:
    return (0, atom) if isinstance(atom, str) else (1, str(atom))


@lru_cache(maxsize=1 << 14)  # a sum is put in order each time that something is added
def _monomial_key(monomial: Monomial) -> tuple[int, tuple[tuple[int, str], ...]]:
    return (-len(monomial), tuple(map(_atom_key, monomial)))


class SizePolynomial:
    """A non-constant integer polynomial in normal form; immutable and hashable.

    Build one with :func:`sym` and arithmetic; never call the constructor with constants.
    """

    __slots__ = ("__dict__", "terms")

    terms: tuple[tuple[Monomial, int], ...]

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms

    @staticmethod
    def make(terms: Mapping[Monomial, int]) -> Dim:
        """The dimension with these coefficients: zeros dropped, a constant collapsed to ``int``."""
        kept = [(m, c) for m, c in terms.items() if c]
        if not kept:
            return 0
        if len(kept) == 1 and not kept[0][0]:
            return kept[0][1]
        if len(kept) > 1:
            kept.sort(key=lambda term: _monomial_key(term[0]))
        return SizePolynomial(tuple(kept))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SizePolynomial) and self.terms == other.terms

    @cached_property
    def _hash(self) -> int:
        return hash(self.terms)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _atoms(self) -> frozenset[Atom]:
        return frozenset(a for m, _ in self.terms for a in m)

    @cached_property
    def _symbols(self) -> frozenset[str]:
        found: set[str] = set()
        for atom in self._atoms:
            if isinstance(atom, str):
                found.add(atom)
            else:
                found |= symbols(atom.numerator) | symbols(atom.denominator)
        return frozenset(found)

    def __reduce__(self) -> tuple[type[SizePolynomial], tuple[object, ...]]:
        return SizePolynomial, (self.terms,)  # without what is cached: the hash is another in another process

    def __add__(self, other: Dim) -> Dim:
        if not isinstance(other, int | SizePolynomial):
            return NotImplemented
        terms = _terms(other)
        if not terms:
            return self
        total = dict(self.terms)
        for monomial, coefficient in terms:
            total[monomial] = total.get(monomial, 0) + coefficient
        return SizePolynomial.make(total)

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return SizePolynomial(tuple((m, -c) for m, c in self.terms))

    def __sub__(self, other: Dim) -> Dim:
        if not isinstance(other, int | SizePolynomial):
            return NotImplemented
        return self + -other

    def __rsub__(self, other: Dim) -> Dim:
        return -self + other

    def __mul__(self, other: Dim) -> Dim:
        if not isinstance(other, int | SizePolynomial):
            return NotImplemented
        if isinstance(other, int):
            return self if other == 1 else SizePolynomial(tuple((m, c * other) for m, c in self.terms)) if other else 0
        total: dict[Monomial, int] = {}
        for m1, c1 in self.terms:
            for m2, c2 in other.terms:
                monomial = tuple(sorted(m1 + m2, key=_atom_key)) if m1 and m2 else m1 or m2
                total[monomial] = total.get(monomial, 0) + c1 * c2
        return SizePolynomial.make(total)

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return _floor_divide(self, other)

    def __rfloordiv__(self, other: int) -> Dim:
        return _floor_divide(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return self - other * (self // other)

    def __rmod__(self, other: int) -> Dim:
        return other - self * (other // self)

    def __bool__(self) -> bool:
        raise TypeError(f"the truth of the symbolic size {self} is not known; compare normal forms with ==")

    def __str__(self) -> str:
        parts: list[str] = []
        for monomial, coefficient in self.terms:
            body = "*".join(map(str, monomial))
            magnitude = abs(coefficient)
            text = body if magnitude == 1 and body else f"{magnitude}*{body}" if body else str(magnitude)
            if not parts:
                parts.append(f"-{text}" if coefficient < 0 else text)
            else:
                parts.append(f" - {text}" if coefficient < 0 else f" + {text}")
        return "".join(parts)

    __repr__ = __str__


Dim = int | SizePolynomial


def _factor(value: Dim) -> str:
    return f"({value})" if isinstance(value, SizePolynomial) and len(value.terms) > 1 else str(value)


def _terms(value: Dim) -> tuple[tuple[Monomial, int], ...]:
    return value.terms if isinstance(value, SizePolynomial) else (((), value),) if value else ()


def sym(name: str) -> SizePolynomial:
    """The polynomial that is just the name."""
    return SizePolynomial((((name,), 1),))


def _floor_divide(numerator: Dim, denominator: Dim) -> Dim:
    """Floor division in normal form: ``b*q + r`` over ``b`` is ``q + floor(r / b)``, and ``floor(a / b) + k`` over
    ``c`` is ``floor((a + k*b) / (b*c))``."""
    if isinstance(denominator, int):
        if denominator == 0:
            raise ZeroDivisionError("a size is divided by zero")
        if isinstance(numerator, int):
            return numerator // denominator
        if denominator < 0:
            return _floor_divide(-numerator, -denominator)
        if denominator == 1:
            return numerator
    if isinstance(numerator, SizePolynomial) and (inner := _quotient_of_sum(numerator)) is not None:
        return _floor_divide(
            inner.numerator + (numerator - _of(inner)) * inner.denominator, inner.denominator * denominator
        )
    whole: Dim = 0
    rest: Dim = 0
    divisor = list(_terms(denominator))
    lead, lead_coefficient = divisor[0]
    if len(divisor) == 1:
        for monomial, coefficient in _terms(numerator):
            quotient_monomial = _divide_monomial(monomial, lead)
            if quotient_monomial is None:
                rest = rest + SizePolynomial.make({monomial: coefficient})
                continue
            quotient, remainder = divmod(coefficient, lead_coefficient)
            whole = whole + SizePolynomial.make({quotient_monomial: quotient})
            rest = rest + SizePolynomial.make({monomial: remainder})
    else:  # a sum in the denominator: long division by its leading term
        rest = numerator
        for _ in range(8):
            step = _long_division_step(rest, lead, lead_coefficient)
            if step is None:
                break
            whole = whole + step
            rest = rest - step * denominator
    if isinstance(rest, int) and rest == 0:
        return whole
    if isinstance(rest, int) and isinstance(denominator, int):
        return whole + rest // denominator
    if rest != numerator:
        return whole + _floor_divide(rest, denominator)
    return _of(FloorQuotient(rest, denominator))


def _of(quotient: FloorQuotient) -> SizePolynomial:
    return SizePolynomial((((quotient,), 1),))


def _quotient_of_sum(value: SizePolynomial) -> FloorQuotient | None:
    """The only quotient in a sum, where it stands by itself."""
    nested = [(m, c) for m, c in value.terms if any(isinstance(a, FloorQuotient) for a in m)]
    if len(nested) != 1 or len(nested[0][0]) != 1 or nested[0][1] != 1:
        return None
    (atom,) = nested[0][0]
    return atom if isinstance(atom, FloorQuotient) else None


def _divide_monomial(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    left = list(monomial)
    for atom in divisor:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def _long_division_step(rest: Dim, lead: Monomial, coefficient: int) -> Dim | None:
    for monomial, c in _terms(rest):
        quotient = _divide_monomial(monomial, lead)
        if quotient is not None and c % coefficient == 0:
            return SizePolynomial.make({quotient: c // coefficient})
    return None


def atoms(value: Dim) -> frozenset[Atom]:
    """The atoms of a dimension, outermost only (a ``FloorQuotient`` counts as one)."""
    return value._atoms if isinstance(value, SizePolynomial) else frozenset()


def symbols(value: Dim) -> frozenset[str]:
    """All names that occur in a dimension, inside quotients too."""
    return value._symbols if isinstance(value, SizePolynomial) else frozenset()


def substitute(value: Dim, binding: Mapping[str, Dim]) -> Dim:
    """Replace names by dimensions and normalise again; names not bound stay."""
    if isinstance(value, int) or (value._symbols == value._atoms and not any(n in binding for n in value._symbols)):
        return value

    def put(atom: Atom) -> Dim:
        if isinstance(atom, str):
            return binding[atom] if atom in binding else sym(atom)
        return substitute(atom.numerator, binding) // substitute(atom.denominator, binding)

    return mapped(value, put)


def mapped(value: Dim, change: Callable[[Atom], Dim]) -> Dim:
    """Replace every atom, a name or a quotient as a whole, by what ``change`` makes of it, and normalise again."""
    if isinstance(value, int):
        return value
    total: dict[Monomial, int] = {}
    for monomial, coefficient in value.terms:
        product: Dim = coefficient
        for atom in monomial:
            product = product * change(atom)
        for made, times in _terms(product):
            total[made] = total.get(made, 0) + times
    return SizePolynomial.make(total)


def value_at(value: Dim, binding: Mapping[str, int]) -> int:
    """The integer that a dimension has where every name is bound.

    Raises:
        KeyError: a name is not bound.
    """
    result = substitute(value, binding)
    if isinstance(result, SizePolynomial):
        raise KeyError(", ".join(sorted(symbols(result))))
    return result

"""What depends on order: everything piecewise linear is written with ``ramp(v) = max(v, 0)``."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from superopt.verifier.prover.factors import constant_of, content_of, dimension_of, leading, sealed, single_factor
from superopt.verifier.prover.normal import (
    ONE,
    ZERO,
    Apply,
    Element,
    Monomial,
    Value,
    add,
    atom_value,
    mul,
    scale,
    size_value,
)  # fmt: skip
from superopt.verifier.prover.signs import Signs

__all__ = ["Order"]


@dataclass
class Order(Signs):
    """Positive parts and comparisons with 0, of unguarded values."""

    def ramp(self, value: Value) -> Value:
        """``max(value, 0)`` with a leading coefficient of 1: ``ramp(-v) = ramp(v) - v``."""
        if not value:
            return ZERO
        if self.sign(value) >= 1:
            return value
        if self.sign(scale(value, -1)) >= 1:
            return ZERO
        lead = leading(value)
        if lead < 0:
            return add(self.ramp(scale(value, -1)), value)
        content, _ = content_of(value)
        outer = tuple((f, p) for f, p in content.factors if self.sign(atom_value(f, p)) >= 1)
        if outer:  # ramp(c·v) = c·ramp(v) for c ≥ 0
            inverse = Monomial(Fraction(1), (), frozenset(), tuple((f, -p) for f, p in outer))
            plain = self.ramp(add(mul(value, (inverse,))))
            return mul((Monomial(Fraction(1), (), frozenset(), outer),), plain)
        return scale(atom_value(Apply("ramp", (sealed(scale(value, 1 / lead)),))), lead)

    def positive(self, value: Value) -> Value:
        """1 where the value is above 0, else 0."""
        number = constant_of(value)
        if number is not None:
            return ONE if number > 0 else ZERO
        if self.sign(value) == 2:
            return ONE
        if self.sign(scale(value, -1)) >= 1:
            return ZERO
        return atom_value(Apply("positive", (sealed(scale(value, 1 / abs(leading(value)))),)))

    def zero(self, value: Value) -> Value:
        """1 where the value is 0, else 0."""
        number = constant_of(value)
        if number is not None:
            return ZERO if number else ONE
        if self.sign(value) == 2 or self.sign(scale(value, -1)) == 2:
            return ZERO
        return self._at_position(value) or atom_value(Apply("zero", (sealed(scale(value, 1 / leading(value))),)))

    def _at_position(self, value: Value) -> Value | None:
        """``[i - d = 0]`` for a position ``i`` that is an element of a tensor of positions: ``at(d, i)``."""
        chosen = next((m for m in value if isinstance(single_factor(m.of(coefficient=Fraction(1))), Element)), None)
        if chosen is None or abs(chosen.coefficient) != 1:
            return None
        element = single_factor(chosen.of(coefficient=Fraction(1)))
        assert isinstance(element, Element)
        place = dimension_of(scale(tuple(m for m in value if m is not chosen), -chosen.coefficient))
        below = self.naturals.get(element.tensor)
        if below is None or place is None:
            return None
        return atom_value(Apply("at", (size_value(place), atom_value(element), size_value(below))))

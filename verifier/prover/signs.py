"""Which values are surely positive, or surely not negative; which ranges surely hold something.

:class:`OrderAnalysis` writes everything piecewise linear with ``ramp(v) = max(v, 0)``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from superopt.ir.size_polynomial import Dim, SizePolynomial, substitute, sym, symbols
from superopt.ops.operator_semantics import IndexCondition
from superopt.verifier.prover.arith import IntegerFacts, ge
from superopt.verifier.prover.factor_facts import (
    BINARY_VALUED,
    constant_of,
    content_of,
    dimension_of,
    leading,
    sealed,
    single_factor,
)
from superopt.verifier.prover.monomial_simplification import coefficient_of
from superopt.verifier.prover.normal_form_arithmetic import (
    ONE,
    ZERO,
    BranchReduction,
    Factor,
    FunctionApplication,
    Monomial,
    SizeFactor,
    SumPowerBase,
    TensorElement,
    Value,
    add,
    atom_value,
    mul,
    scale,
    size_value,
)

__all__ = ["OrderAnalysis", "SignAnalysis", "absolute"]


def absolute(value: Value) -> Value | None:
    """``v`` where a value is a positive multiple of ``|v| = 2·ramp(v) - v``."""
    for m in value:
        factor = m.factors[0][0] if len(m.factors) == 1 and m.factors[0][1] == 1 else None
        plain = not m.bound and not m.guards and m.coefficient > 0
        if plain and isinstance(factor, FunctionApplication) and factor.function == "ramp":
            rest = tuple(o for o in value if o is not m)
            if add(rest, scale(factor.args[0], m.coefficient / 2)) == ():
                return factor.args[0]
    return None


@dataclass
class SignAnalysis:
    """Signs under facts. ``reals`` gives the sign of real attribute variables (2: positive).

    ``naturals`` are the tensor variables whose elements are positions, hence not negative, and what they are below.
    """

    facts: IntegerFacts
    reals: Mapping[str, int] = field(default_factory=dict)
    naturals: Mapping[str, Dim] = field(default_factory=dict)

    def sign(self, value: Value) -> int:
        """2: surely positive, 1: surely not negative, 0: not known. Guards and sums over empty ranges count."""
        if not value:
            return 1
        size = dimension_of(value)
        if (
            isinstance(size, SizePolynomial)
            and not symbols(size) & self.reals.keys()
            and self.facts.implied(ge(size), (), 0)
        ):
            return 2 if self.facts.implied(ge(size - 1), (), 0) else 1
        found = [self._monomial_sign(m) for m in value]
        if min(found) < 1:
            return 1 if absolute(value) is not None else 0
        return max(found)

    def _monomial_sign(self, m: Monomial) -> int:
        if m.coefficient < 0:
            return 0
        signs = [self._factor_sign(f, p) for f, p in m.factors]
        if any(s == 0 for s in signs):
            return 0
        if any(s == 1 for s in signs) or not self.inhabited(m.bound, m.guards):
            return 1
        return 2

    def inhabited(
        self, bound: Sequence[str], guards: frozenset[IndexCondition], given: tuple[IndexCondition, ...] = ()
    ) -> bool:
        """Whether some assignment to the bound variables satisfies the guards.

        Tried is the largest lower end of each variable, in a case for each end that may be the largest.
        """
        if not bound:
            return all(self.facts.implied(g, given, 2) for g in guards)
        name, others = bound[0], set(bound[1:])
        ends = []
        for g in sorted(guards, key=str):
            if g.kind == "ge" and coefficient_of(g.size, name) == 1 and not symbols(g.size) & others:
                ends.append(sym(name) - g.size)
        for position, end in enumerate(ends):
            case = (*given, *(ge(end - other) for i, other in enumerate(ends) if i != position))
            case = tuple(c for c in case if c.known is not True)
            if self.facts.contradictory(case, 1):
                continue
            chosen = frozenset(IndexCondition(g.kind, substitute(g.size, {name: end})) for g in guards)
            if not self.inhabited(tuple(bound[1:]), chosen, case):
                return False
        return bool(ends)

    def _factor_sign(self, factor: Factor, power: Fraction) -> int:
        match factor:
            case SizeFactor(size):
                if symbols(size) & self.reals.keys():
                    own = self.reals.get(str(size), 0)
                    return own or (1 if power % 2 == 0 else 0)
                return 2 if self.facts.implied(ge(size - 1), (), 0) else 1 if power % 2 == 0 else 0
            case SumPowerBase(value):
                own = self.sign(value)
                return 2 if own == 2 else 1 if power % 2 == 0 or own == 1 else 0
            case TensorElement(tensor, _) if tensor in self.naturals:
                return 1
            case FunctionApplication("exp", _):
                return 2
            case FunctionApplication("pow", (base, _)):
                return 2 if self.sign(base) == 2 else 0
            case FunctionApplication("sqrt", (value,)):
                return 2 if self.sign(value) == 2 else 1
            case FunctionApplication(function, _) if function in BINARY_VALUED | {"ramp"}:
                return 1
            case BranchReduction("max", branches):
                return 2 if all(self.sign(b.value) == 2 and self.inhabited(b.bound, b.guards) for b in branches) else 0
        return 1 if power % 2 == 0 else 0


@dataclass
class OrderAnalysis(SignAnalysis):
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
        return scale(atom_value(FunctionApplication("ramp", (sealed(scale(value, 1 / lead)),))), lead)

    def positive(self, value: Value) -> Value:
        """1 where the value is above 0, else 0."""
        number = constant_of(value)
        if number is not None:
            return ONE if number > 0 else ZERO
        if self.sign(value) == 2:
            return ONE
        if self.sign(scale(value, -1)) >= 1:
            return ZERO
        return atom_value(FunctionApplication("positive", (sealed(scale(value, 1 / abs(leading(value)))),)))

    def zero(self, value: Value) -> Value:
        """1 where the value is 0, else 0."""
        number = constant_of(value)
        if number is not None:
            return ZERO if number else ONE
        if self.sign(value) == 2 or self.sign(scale(value, -1)) == 2:
            return ZERO
        return self._at_position(value) or atom_value(
            FunctionApplication("zero", (sealed(scale(value, 1 / leading(value))),))
        )

    def _at_position(self, value: Value) -> Value | None:
        """``[i - d = 0]`` for a position ``i`` that is an element of a tensor of positions: ``at(d, i)``."""
        chosen = next(
            (m for m in value if isinstance(single_factor(m.of(coefficient=Fraction(1))), TensorElement)), None
        )
        if chosen is None or abs(chosen.coefficient) != 1:
            return None
        element = single_factor(chosen.of(coefficient=Fraction(1)))
        assert isinstance(element, TensorElement)
        offset = dimension_of(scale(tuple(m for m in value if m is not chosen), -chosen.coefficient))
        below = self.naturals.get(element.tensor)
        if below is None or offset is None:
            return None
        return atom_value(FunctionApplication("at", (size_value(offset), atom_value(element), size_value(below))))

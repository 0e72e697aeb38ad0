"""Which values are surely positive, or surely not negative; which ranges surely hold something."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from superopt.ir.poly import Dim, Poly, substitute, sym, symbols
from superopt.ops.meaning import Condition
from superopt.verifier.prover.arith import Facts, ge
from superopt.verifier.prover.factors import BINARY_VALUED, dimension_of
from superopt.verifier.prover.normal import (
    Apply,
    Element,
    Extreme,
    Factor,
    Monomial,
    SizeFactor,
    SumBase,
    Value,
    add,
    scale,
)
from superopt.verifier.prover.simplify import coefficient_of

__all__ = ["Signs", "absolute"]


def absolute(value: Value) -> Value | None:
    """``v`` where a value is a positive multiple of ``|v| = 2·ramp(v) - v``."""
    for m in value:
        factor = m.factors[0][0] if len(m.factors) == 1 and m.factors[0][1] == 1 else None
        plain = not m.bound and not m.guards and m.coefficient > 0
        if plain and isinstance(factor, Apply) and factor.function == "ramp":
            rest = tuple(o for o in value if o is not m)
            if add(rest, scale(factor.args[0], m.coefficient / 2)) == ():
                return factor.args[0]
    return None


@dataclass
class Signs:
    """Signs under facts. ``reals`` gives the sign of real attribute variables (2: positive).

    ``naturals`` are the tensor variables whose elements are positions, hence not negative, and what they are below.
    """

    facts: Facts
    reals: Mapping[str, int] = field(default_factory=dict)
    naturals: Mapping[str, Dim] = field(default_factory=dict)

    def sign(self, value: Value) -> int:
        """2: surely positive, 1: surely not negative, 0: not known. Guards and sums over empty ranges count."""
        if not value:
            return 1
        size = dimension_of(value)
        if isinstance(size, Poly) and not symbols(size) & self.reals.keys() and self.facts.implied(ge(size), (), 0):
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

    def inhabited(self, bound: Sequence[str], guards: frozenset[Condition], given: tuple[Condition, ...] = ()) -> bool:
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
            chosen = frozenset(Condition(g.kind, substitute(g.size, {name: end})) for g in guards)
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
            case SumBase(value):
                own = self.sign(value)
                return 2 if own == 2 else 1 if power % 2 == 0 or own == 1 else 0
            case Element(tensor, _) if tensor in self.naturals:
                return 1
            case Apply("exp", _):
                return 2
            case Apply("pow", (base, _)):
                return 2 if self.sign(base) == 2 else 0
            case Apply("sqrt", (value,)):
                return 2 if self.sign(value) == 2 else 1
            case Apply(function, _) if function in BINARY_VALUED | {"ramp"}:
                return 1
            case Extreme("max", branches):
                return 2 if all(self.sign(b.value) == 2 and self.inhabited(b.bound, b.guards) for b in branches) else 0
        return 1 if power % 2 == 0 else 0

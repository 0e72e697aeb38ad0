"""The last resort for piecewise linear functions: the rest of a difference as a formula over real numbers, for Z3."""

from __future__ import annotations

from fractions import Fraction

import z3

from superopt.ops.meaning import Condition
from superopt.verifier.prover.factors import is_binary
from superopt.verifier.prover.functions import Algebra
from superopt.verifier.prover.normal import Apply, Extreme, Factor, Monomial, SizeFactor, SumBase, Value, atom_value

__all__ = ["pointwise_zero"]

_RESOURCES = 3_000_000
_APPLIED = 8  # opaque functions of which it is said that equal arguments give equal values


def pointwise_zero(algebra: Algebra, value: Value, given: tuple[Condition, ...]) -> bool:
    """Whether the value is 0 for any real values of its atoms (elements, whole sums, opaque functions).

    Its guards are split into cases first; ``ramp``, ``positive`` and ``zero`` are read as what they are.
    """
    if not any(_piecewise(f) for m in value for f, _ in m.factors):
        return False
    for case, (plain,) in algebra.split([value]):
        if algebra.facts.contradictory((*given, *case), 2):
            continue
        algebra.facts.tick()
        if not _zero(algebra, algebra.tidy(plain)):
            return False
    return True


def _piecewise(factor: Factor) -> bool:
    return isinstance(factor, Apply) and factor.function in ("ramp", "positive", "zero", "sqrt")


def _zero(algebra: Algebra, value: Value) -> bool:
    if not value:
        return True
    problem = _Problem(algebra)
    total = problem.value(value)
    problem.solver.add(total != 0)
    return algebra.facts.budget.refuted(problem.solver, _RESOURCES)


class _Problem:
    """Values as Z3 reals; equal text is an equal real."""

    def __init__(self, algebra: Algebra) -> None:
        self.algebra = algebra
        self.context = algebra.facts.budget.context
        self.solver = z3.Solver(ctx=self.context)
        self.names: dict[str, z3.ArithRef] = {}
        self.applied: list[tuple[str, z3.ArithRef, z3.ArithRef]] = []

    def value(self, value: Value) -> z3.ArithRef:
        return z3.Sum(*(self.monomial(m) for m in value), self.number(0))

    def monomial(self, m: Monomial) -> z3.ArithRef:
        if m.bound or m.guards:
            return self.number(m.coefficient) * self.atom(
                m.key, 1 if self.algebra.sign((m.of(coefficient=Fraction(1)),)) else 0
            )
        product = self.number(m.coefficient)
        for factor, power in m.factors:
            product = product * self.power(factor, power)
        return product

    def power(self, factor: Factor, power: Fraction) -> z3.ArithRef:
        if power.denominator != 1 or abs(power) > 6:
            return self.atom(f"{factor.show({})}^{power}", 0)
        base = self.factor(factor)
        if power < 0:
            inverse = self.atom(f"1/{factor.show({})}", 0)
            self.solver.add(inverse * base == 1)
            base = inverse
        product = base
        for _ in range(abs(int(power)) - 1):
            product = product * base
        return product

    def factor(self, factor: Factor) -> z3.ArithRef:
        match factor:
            case Apply("ramp", (inner,)):
                v = self.value(inner)
                return z3.If(v >= 0, v, self.number(0))
            case Apply("positive", (inner,)):
                return z3.If(self.value(inner) > 0, self.number(1), self.number(0))
            case Apply("zero", (inner,)):
                return z3.If(self.value(inner) == 0, self.number(1), self.number(0))
            case Apply("sqrt", (inner,)):
                root = self.atom(factor.show({}), 1)
                self.solver.add(root * root == self.value(inner))
                return root
            case SumBase(value):
                return self.value(value)
            case Apply():
                return self.opaque(factor)
            case Extreme() | SizeFactor():
                sign = self.algebra.sign(((Monomial(Fraction(1), (), frozenset(), ((factor, Fraction(1)),))),))
                return self.atom(factor.show({}), sign)
        name = factor.show({})
        made = self.atom(name, 0)
        if is_binary(atom_value(factor)):
            self.solver.add(made * made == made)
        return made

    def opaque(self, factor: Apply) -> z3.ArithRef:
        """``f(v)``: equal where ``v`` is; ``exp`` is also positive, increasing, and 1 at 0."""
        name = factor.show({})
        if name in self.names:
            return self.names[name]
        sign = self.algebra.sign(((Monomial(Fraction(1), (), frozenset(), ((factor, Fraction(1)),))),))
        made = self.atom(name, sign)
        if len(factor.args) != 1 or len(self.applied) >= _APPLIED:
            return made
        v = self.value(factor.args[0])
        others = [(self.number(0), self.number(1))] if factor.function == "exp" else []
        others += [(w, other) for function, w, other in self.applied if function == factor.function]
        for w, other in others:
            self.solver.add(
                (v == w) == (made == other) if factor.function == "exp" else z3.Implies(v == w, made == other)
            )
            if factor.function == "exp":
                self.solver.add((v > w) == (made > other))
        self.applied.append((factor.function, v, made))
        return made

    def atom(self, name: str, sign: int) -> z3.ArithRef:
        if name not in self.names:
            self.names[name] = z3.Real(f"x{len(self.names)}", self.context)
            if sign:
                self.solver.add(self.names[name] >= 0 if sign == 1 else self.names[name] > 0)
        return self.names[name]

    def number(self, value: Fraction | int) -> z3.ArithRef:
        return z3.RealVal(str(value), self.context)

"""Lemmas about order: monotone functions under a maximum, and a last resort for piecewise linear values.

A maximum of an increasing function is the function of the maximum: ``max exp(x) = exp(max x)``. Where a branch depends
on the range through one element alone and is monotone in it, the maximum moves inside: over a range that is inhabited,
``max f(x) = f(max x)`` for an ``f`` that nowhere decreases, and ``f(min x)`` for one that nowhere increases. A maximum
over another axis stands for an element, so that this holds along several axes.

As a last resort, Z3 decides the rest of a difference of piecewise linear functions, as a formula over real numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import z3

from superopt.ops.operator_semantics import IndexCondition
from superopt.verifier.prover.factor_facts import is_binary, sealed
from superopt.verifier.prover.function_normalisation import ODD, NormalFormAlgebra
from superopt.verifier.prover.normal_form_arithmetic import (
    ONE,
    BranchReduction,
    Factor,
    FunctionApplication,
    GuardedBranch,
    Monomial,
    SizeFactor,
    SumPowerBase,
    TensorElement,
    Value,
    add,
    atom_value,
    mul,
    scale,
)

__all__ = ["pointwise_zero", "through_monotone"]

Core = TensorElement | BranchReduction  # what a branch depends on the range through
_INCREASING = frozenset({"exp", "floor", "round", "ramp", "positive", "erf", "atan", "asinh", "cbrt"})
_STRICTLY_INCREASING = frozenset({"exp", "erf", "atan", "asinh", "cbrt", "log"})


def through_monotone(
    algebra: NormalFormAlgebra, branch: GuardedBranch, maximum: Callable[[GuardedBranch], Value]
) -> Value | None:
    """The maximum of a branch, moved inside a monotone function of one element; ``None`` where it is not one."""
    elements = {f for m in branch.value for f in _moving(m, set(branch.bound))}
    core = next(iter(elements)) if len(elements) == 1 else None
    if core is None or branch.value == atom_value(core) or branch.value == scale(atom_value(core), -1):
        return None
    if all(len(m.factors) <= 1 and all(f == core for f, _ in m.factors) for m in branch.value):
        return None  # linear: the constants are taken out of it elsewhere
    way = _direction(algebra, branch.value, core) or _shown_direction(algebra, branch.value, core)
    if way == 0 or not algebra.inhabited(branch.bound, branch.guards):
        return None
    best = maximum(GuardedBranch(branch.bound, branch.guards, scale(atom_value(core), way)))
    if len(best) != 1 or best[0].bound or best[0].guards:
        return None
    return _with(algebra, branch.value, core, scale(best, way))


def _moving(m: Monomial, bound: set[str]) -> list[Core | None]:
    """The elements and maxima that a monomial reads in the range; ``None`` for what is not read through."""
    if m.bound or m.guards:
        return [None] if m.free & bound else []
    return [e for f, _ in m.factors if f.free & bound for e in _elements(f, bound)]


def _elements(factor: Factor, bound: set[str]) -> list[Core | None]:
    match factor:
        case TensorElement() | BranchReduction("max"):
            return [factor]
        case SumPowerBase(value):
            return [e for m in value for e in _moving(m, bound)]
        case FunctionApplication(_, (value,)):
            return [e for m in value for e in _moving(m, bound)]
    return [None]


def _direction(algebra: NormalFormAlgebra, value: Value, core: Core) -> int:
    """1 where a value nowhere decreases in an element, -1 where it nowhere increases, else 0."""
    ways = {w for m in value if (w := _of_monomial(algebra, m, core)) is not None}
    return ways.pop() if len(ways) == 1 else 0


def _shown_direction(algebra: NormalFormAlgebra, value: Value, core: Core) -> int:
    """The same, by comparing the values at two numbers: ``max(x, 0) + min(0, exp(x) - 1)`` and the like."""
    if not any(_piecewise(f) for m in value for f, _ in m.factors):
        return 0
    other = atom_value(FunctionApplication("other", (atom_value(core),)))
    shifted = _with(algebra, value, core, other)
    for way in (1, -1):
        problem = _Problem(algebra)
        problem.solver.add(problem.value(atom_value(core)) >= problem.value(other))
        problem.solver.add(problem.value(scale(add(value, scale(shifted, -1)), way)) < 0)
        if algebra.facts.budget.refuted(problem.solver, _DIRECTION_RESOURCES):
            return way
    return 0


def _of_monomial(algebra: NormalFormAlgebra, m: Monomial, core: Core) -> int | None:
    """The same of a monomial; ``None`` where it does not depend on the element."""
    own = [(f, p) for f, p in m.factors if _reads(f, core)]
    others = [(f, p) for f, p in m.factors if not _reads(f, core)]
    if not own:
        return None
    if any(algebra.sign(atom_value(f, p)) < 1 for f, p in others):
        return 0
    way = _of_factor(algebra, *own[0], core) if len(own) == 1 else _of_share(algebra, own, core)
    return way if m.coefficient > 0 else -way


def _of_share(algebra: NormalFormAlgebra, factors: list[tuple[Factor, Fraction]], core: Core) -> int:
    """The same of ``u/(u + c)``, which increases in ``u > 0`` for a fixed ``c ≥ 0``."""
    for total, power in factors:
        rest = [(f, p) for f, p in factors if f is not total]
        if not isinstance(total, SumPowerBase) or power != -1 or len(rest) != 1:
            continue
        part = next((m for m in total.value if m.factors == tuple(rest) and not m.bound and not m.guards), None)
        others = tuple(m for m in total.value if m is not part)
        fixed = not any(_reads(f, core) for m in others for f, _ in m.factors) and algebra.sign(others) >= 1
        if part is not None and part.coefficient > 0 and fixed and algebra.sign(atom_value(*rest[0])) == 2:
            return _of_factor(algebra, *rest[0], core)
    return 0


def _of_factor(algebra: NormalFormAlgebra, factor: Factor, power: Fraction, core: Core) -> int:
    match factor:
        case TensorElement() | BranchReduction("max") if power == 1:
            return 1
        case FunctionApplication("exp", (value,)):
            return _direction(algebra, value, core) * (1 if power > 0 else -1)
        case FunctionApplication(function, (value,)) if power == 1 and function in _INCREASING | {"sqrt", "log"}:
            return _direction(algebra, value, core)
        case SumPowerBase(value) if algebra.sign(value) == 2:
            return _direction(algebra, value, core) * (1 if power > 0 else -1)
    return 0


def _reads(factor: Factor, core: Core) -> bool:
    match factor:
        case SumPowerBase(value) | FunctionApplication(_, (value,)):
            return any(_reads(f, core) for m in value for f, _ in m.factors)
    return factor == core


def _with(algebra: NormalFormAlgebra, value: Value, core: Core, best: Value) -> Value:
    """A value with the element replaced, built again."""
    values: list[Value] = []
    for m in value:
        product: Value = (m.of(factors=tuple((f, p) for f, p in m.factors if not _reads(f, core))),)
        for f, p in m.factors:
            if _reads(f, core):
                product = mul(product, _factor_with(algebra, f, p, core, best))
        values.append(product)
    return algebra.tidy(add(*values))


def _factor_with(algebra: NormalFormAlgebra, factor: Factor, power: Fraction, core: Core, best: Value) -> Value:
    if factor == core:
        return best if power == 1 else algebra.power(best, int(power))
    if isinstance(factor, SumPowerBase):
        return algebra.power(algebra.tidy(_with(algebra, factor.value, core, best)), int(power))
    assert isinstance(factor, FunctionApplication)
    inner = _with(algebra, factor.args[0], core, best)
    match factor.function:
        case "exp":
            return algebra.exponential(scale(inner, power))
        case "ramp":
            value = algebra.ramp(inner)
        case "positive":
            value = algebra.positive(inner)
        case "zero":
            value = algebra.zero(inner)
        case "sqrt":
            value = algebra.root(inner)
        case "log":
            value = algebra.logarithm(inner)
        case "floor":
            value = algebra.floor(inner)
        case _:
            value = algebra.opaque(factor.function, [inner])
    result = ONE
    for _ in range(int(power)):
        result = mul(result, value)
    return result


_RESOURCES = 3_000_000
_DIRECTION_RESOURCES = 300_000  # of Z3, a tenth: the question is asked of every maximum
_APPLIED = 8  # opaque functions of which it is said that equal arguments give equal values


def pointwise_zero(algebra: NormalFormAlgebra, value: Value, given: tuple[IndexCondition, ...]) -> bool:
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
    return isinstance(factor, FunctionApplication) and factor.function in ("ramp", "positive", "zero", "sqrt")


def _zero(algebra: NormalFormAlgebra, value: Value) -> bool:
    if not value:
        return True
    problem = _Problem(algebra)
    total = problem.value(value)
    problem.solver.add(total != 0)
    return algebra.facts.budget.refuted(problem.solver, _RESOURCES)


class _Problem:
    """Values as Z3 reals; equal text is an equal real."""

    def __init__(self, algebra: NormalFormAlgebra) -> None:
        self.algebra = algebra
        self.context = algebra.facts.budget.context
        self.solver = z3.Solver(ctx=self.context)
        self.names: dict[str, z3.ArithRef] = {}
        self.applied: list[tuple[str, z3.ArithRef, z3.ArithRef, bool]] = []  # whether its order is known

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
        exponents = [
            scale(f.args[0], p) for f, p in m.factors if isinstance(f, FunctionApplication) and f.function == "exp"
        ]
        if (
            exponents
            != [f.args[0] for f, _ in m.factors if isinstance(f, FunctionApplication) and f.function == "exp"][:1]
        ):
            # exp(a)·exp(b) = exp(a + b)
            whole = self.opaque(FunctionApplication("exp", (sealed(add(*exponents)),)))
            parts = [
                self.power(f, p) for f, p in m.factors if isinstance(f, FunctionApplication) and f.function == "exp"
            ]
            self.solver.add(whole == z3.Product(*parts))
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
            case FunctionApplication("ramp", (inner,)):
                v = self.value(inner)
                return z3.If(v >= 0, v, self.number(0))
            case FunctionApplication("positive", (inner,)):
                return z3.If(self.value(inner) > 0, self.number(1), self.number(0))
            case FunctionApplication("zero", (inner,)):
                return z3.If(self.value(inner) == 0, self.number(1), self.number(0))
            case FunctionApplication("sqrt", (inner,)):
                root = self.atom(factor.show({}), 1)
                self.solver.add(root * root == self.value(inner))
                return root
            case SumPowerBase(value):
                return self.value(value)
            case FunctionApplication():
                return self.opaque(factor)
            case BranchReduction() | SizeFactor():
                sign = self.algebra.sign(((Monomial(Fraction(1), (), frozenset(), ((factor, Fraction(1)),))),))
                return self.atom(factor.show({}), sign)
        name = factor.show({})
        made = self.atom(name, 0)
        if is_binary(atom_value(factor)):
            self.solver.add(made * made == made)
        return made

    def opaque(self, factor: FunctionApplication) -> z3.ArithRef:
        """``f(v)``: equal where ``v`` is, and as large or larger where an increasing function's argument is; ``exp`` is
        also positive, and 1 at 0."""
        name = factor.show({})
        if name in self.names:
            return self.names[name]
        sign = self.algebra.sign(((Monomial(Fraction(1), (), frozenset(), ((factor, Fraction(1)),))),))
        made = self.atom(name, sign)
        if len(factor.args) != 1 or len(self.applied) >= _APPLIED:
            return made
        v = self.value(factor.args[0])
        others = [(self.number(0), self.number(1), True)] if factor.function == "exp" else []
        others += [row[1:] for row in self.applied if row[0] == factor.function]
        if factor.function in ODD:
            others += [(-w, -other, ordered) for w, other, ordered in others]
        positive = factor.function != "log" or self.algebra.sign(factor.args[0]) == 2
        for w, other, ordered in others:
            self.solver.add(z3.Implies(v == w, made == other))
            if factor.function in _STRICTLY_INCREASING and positive and ordered:
                self.solver.add((v == w) == (made == other), (v > w) == (made > other))
            elif factor.function in _INCREASING:
                self.solver.add(z3.Implies(v > w, made >= other), z3.Implies(v < w, made <= other))
        self.applied.append((factor.function, v, made, positive))
        return made

    def atom(self, name: str, sign: int) -> z3.ArithRef:
        if name not in self.names:
            self.names[name] = z3.Real(f"x{len(self.names)}", self.context)
            if sign:
                self.solver.add(self.names[name] >= 0 if sign == 1 else self.names[name] > 0)
        return self.names[name]

    def number(self, value: Fraction | int) -> z3.ArithRef:
        return z3.RealVal(str(value), self.context)

"""Maxima, minima and products over ranges, in normal form.

``max`` runs over the union of *branches*; a value of minus infinity is a branch that is left out, so that a padded
maximum is a maximum over guarded positions, and maxima of maxima are one maximum.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import permutations

from superopt.ir.size_polynomial import Dim, substitute, sym, symbols
from superopt.ops.operator_semantics import IndexCondition
from superopt.verifier.prover.arith import ge, negated, normal_condition
from superopt.verifier.prover.factor_facts import INFINITY, CannotProve, has_infinity, sealed
from superopt.verifier.prover.function_normalisation import NormalFormAlgebra
from superopt.verifier.prover.monomial_simplification import coefficient_of, exact_quotient, guarded, simplify_monomial
from superopt.verifier.prover.normal_form_arithmetic import (
    ONE,
    BranchReduction,
    Factor,
    FunctionApplication,
    GuardedBranch,
    Monomial,
    Value,
    add,
    atom_value,
    constant,
    dimensions,
    free,
    fresh,
    merge_factors,
    mul,
    rename_apart,
    replace,
    scale,
)  # fmt: skip
from superopt.verifier.prover.order_lemmas import through_monotone

__all__ = ["reduced"]

_MOST_PAIRS = 16  # of ends, where a variable of a maximum is projected out of its guards


def reduced(algebra: NormalFormAlgebra, kind: str, name: str, span: frozenset[IndexCondition], body: Value) -> Value:
    """The reduction of ``body`` over ``name`` in ``span``.

    Raises:
        CannotProve: the body is infinite in the wrong direction.
    """
    if kind == "min":
        return scale(reduced(algebra, "max", name, span, scale(body, -1)), -1)
    branches: list[GuardedBranch] = []
    for case, (value,) in algebra.split([body]):
        value = algebra.tidy(value) if not has_infinity(value) else value
        if has_infinity(value):
            if kind == "max" and len(value) == 1 and value[0].coefficient < 0:
                continue
            raise CannotProve("arithmetic with an infinite constant")
        branches.append(GuardedBranch((name,), span | frozenset(case), value))
    return extreme_of(algebra, kind, branches)


def _flat(kind: str, branch: GuardedBranch) -> list[GuardedBranch]:
    """A maximum of maxima is one maximum."""
    inner = _extreme_of(branch.value, kind)
    if inner is None:
        return [branch]
    branches = []
    for b in inner.branches:
        renamed = _branch_of(rename_apart(_carrier(b)))
        branches.append(GuardedBranch(branch.bound + renamed.bound, branch.guards | renamed.guards, renamed.value))
    return branches


def _carrier(branch: GuardedBranch) -> Monomial:
    """A monomial that binds and guards as the branch does, so that the simplifier can be used on it."""
    return Monomial(
        Fraction(1), branch.bound, branch.guards, ((FunctionApplication("branch", (branch.value,)), Fraction(1)),)
    )


def _branch_of(carrier: Monomial) -> GuardedBranch:
    ((factor, _),) = carrier.factors
    assert isinstance(factor, FunctionApplication)
    return GuardedBranch(carrier.bound, carrier.guards, factor.args[0])


def _simplified(algebra: NormalFormAlgebra, kind: str, branch: GuardedBranch) -> list[GuardedBranch]:
    """Equations solved and guards dropped; unused variables dropped from a maximum where their range is inhabited."""
    branches = [_branch_of(m) for m in simplify_monomial(_carrier(branch), algebra.facts, counting=False)]
    if kind != "max":
        return branches
    return [_without_unused(algebra, _overlapped(algebra, _merged_windows(algebra, b))) for b in branches]


def _overlapped(algebra: NormalFormAlgebra, branch: GuardedBranch) -> GuardedBranch:
    """Where the value depends on ``a + b`` alone, that sum is the variable: windows of windows, with any guards."""
    for low, high in permutations(branch.bound, 2):
        if _stride(list(dimensions(branch.value)), low, high) != 1:
            continue
        name = fresh()
        binding: dict[str, Dim] = {low: sym(name) - sym(high)}
        moved = frozenset(normal_condition(IndexCondition(g.kind, substitute(g.size, binding))) for g in branch.guards)
        value, guards = replace(branch.value, binding), _projected(moved, high)
        if guards is not None and high not in free(value):
            bound = (*(n for n in branch.bound if n not in (low, high)), name)
            return _overlapped(algebra, GuardedBranch(bound, guards, value))
    return branch


def _projected(guards: frozenset[IndexCondition], name: str) -> frozenset[IndexCondition] | None:
    """The guards under which some integer for ``name`` satisfies all (Fourier, Motzkin: exact for coefficients ±1)."""
    own = [g for g in guards if name in symbols(g.size)]
    ends: dict[Dim, list[Dim]] = {1: [], -1: []}
    for g in own:
        c = coefficient_of(g.size, name)
        if g.kind != "ge" or c not in (1, -1):
            return None
        ends[c].append(g.size - c * sym(name))
    if len(ends[1]) * len(ends[-1]) > _MOST_PAIRS:
        return None
    conditions = {normal_condition(ge(low + high)) for low in ends[1] for high in ends[-1]}
    return guards.difference(own) | {g for g in conditions if not g.known}


def _merged_windows(algebra: NormalFormAlgebra, branch: GuardedBranch) -> GuardedBranch:
    """Where only ``s·a + b`` occurs, ``0 ≤ a ≤ A``, ``0 ≤ b ≤ B``, ``s - 1 ≤ B``: these are all of ``0 … s·A + B``."""
    ranges = {n: end for n in branch.bound if (end := _upper_end(branch, n)) is not None}
    for low, high in permutations(ranges, 2):
        others = frozenset(g for g in branch.guards if not symbols(g.size) & {low, high})
        rest = [g for g in branch.guards - others if g not in _span(low, ranges[low]) | _span(high, ranges[high])]
        sizes = [g.size for g in rest] + list(dimensions(branch.value))
        stride = _stride(sizes, low, high)
        if stride is None or symbols(stride) & set(branch.bound):
            continue
        enough = algebra.facts.implied(ge(stride - 1), (), 1) and algebra.facts.implied(
            ge(ranges[low] - stride + 1), (), 1
        )
        if not enough or not all(algebra.facts.implied(ge(ranges[n]), (), 1) for n in (low, high)):
            continue
        name = fresh()
        binding: dict[str, Dim] = {low: sym(name) - stride * sym(high)}
        guards = {normal_condition(IndexCondition(g.kind, substitute(g.size, binding))) for g in rest}
        guards |= others | _span(name, stride * ranges[high] + ranges[low])
        bound = (*(n for n in branch.bound if n not in (low, high)), name)
        new_branch = GuardedBranch(bound, frozenset(guards), replace(branch.value, binding))
        if high not in new_branch.free:
            return _merged_windows(algebra, new_branch)
    return branch


def _span(name: str, end: Dim) -> frozenset[IndexCondition]:
    return frozenset((ge(sym(name)), normal_condition(ge(end - sym(name)))))


def _upper_end(branch: GuardedBranch, name: str) -> Dim | None:
    """``e`` where ``0 ≤ name ≤ e`` are guards and ``e`` has no bound variables."""
    if ge(sym(name)) not in branch.guards:
        return None
    for g in sorted(branch.guards, key=str):
        end = g.size + sym(name)
        if g.kind == "ge" and coefficient_of(g.size, name) == -1 and not symbols(end) & set(branch.bound):
            return end
    return None


def _stride(sizes: list[Dim], low: str, high: str) -> Dim | None:
    """``s`` where the two names occur only as ``c·(s·high + low)``."""
    stride: Dim | None = None
    for size in sizes:
        a, b = coefficient_of(size, low), coefficient_of(size, high)
        if a == 0 and b == 0 and a is not None and b is not None:
            continue
        ratio = None if a is None or b is None or a == 0 or b == 0 else exact_quotient(b, a)
        if ratio is None or (stride is not None and stride != ratio):
            return None
        stride = ratio
    return stride


def _without_unused(algebra: NormalFormAlgebra, branch: GuardedBranch) -> GuardedBranch:
    used = {n for m in branch.value for n in m.free}
    for name in branch.bound:
        if name in used:
            continue
        own = frozenset(g for g in branch.guards if name in symbols(g.size))
        if any(symbols(g.size) & (set(branch.bound) - {name}) for g in own) or not algebra.inhabited((name,), own):
            continue
        return _without_unused(
            algebra, GuardedBranch(tuple(n for n in branch.bound if n != name), branch.guards - own, branch.value)
        )
    return branch


def _extreme_of(value: Value, kind: str) -> BranchReduction | None:
    """The reduction that a value is, if it is exactly one of the same kind."""
    if len(value) != 1 or value[0].coefficient != 1 or value[0].bound or value[0].guards or len(value[0].factors) != 1:
        return None
    factor, power = value[0].factors[0]
    return factor if isinstance(factor, BranchReduction) and factor.kind == kind and power == 1 else None


def extreme_of(algebra: NormalFormAlgebra, kind: str, branches: list[GuardedBranch]) -> Value:
    """The reduction over branches, with what does not depend on the range taken out of it."""
    branches = [s for b in branches for f in _flat(kind, b) for s in _simplified(algebra, kind, f)]
    if kind == "max":
        through = through_monotone(algebra, branches[0], _maximum(algebra)) if len(branches) == 1 else None
        if through is not None:
            return through
        capped = _capped(algebra, branches[0]) if len(branches) == 1 else None
        if capped is not None:
            return algebra.apply("min", [extreme_of(algebra, kind, [capped[0]]), capped[1]])
        branches = [u for b in branches for u in _unfolded(algebra, b)]
    for b in branches:
        for guard in sorted(b.guards, key=str):
            if not symbols(guard.size) & set(b.bound):
                return _by_guard(algebra, kind, branches, guard)
    if not branches:
        if kind == "prod":
            return ONE
        return scale(INFINITY, -1)
    if len(branches) == 1 and not branches[0].bound and not branches[0].guards:
        return branches[0].value
    if kind == "max" and len(branches) > 1 and all(algebra.inhabited(b.bound, b.guards) for b in branches):
        parts = [extreme_of(algebra, kind, [b]) for b in branches]
        total = parts[0]
        for part in parts[1:]:
            total = algebra.apply("max", [total, part])
        return total
    if kind == "prod":
        return _product(algebra, branches)
    if len(branches) > 1:
        return atom_value(BranchReduction(kind, tuple(_sealed_branch(b) for b in branches)))
    return _extracted(algebra, branches[0])


def _maximum(algebra: NormalFormAlgebra) -> Callable[[GuardedBranch], Value]:
    return lambda branch: extreme_of(algebra, "max", [branch])


def _product(algebra: NormalFormAlgebra, branches: list[GuardedBranch]) -> Value:
    """``Π over A ∪ B = Π_A · Π_B``, ``Π a·b = Π a · Π b``, ``Π exp(v) = exp(Σ v)``."""
    total = ONE
    for b in branches:
        plain = len(b.value) == 1 and not b.value[0].bound and not b.value[0].guards
        factors = b.value[0].factors if plain else ()
        number = b.value[0].coefficient if plain else Fraction(1)
        if not plain or (number == 1 and len(factors) == 1 and factors[0][1] == 1 and not _is_exp(factors[0][0])):
            total = mul(total, _one_product(b))
            continue
        if number != 1:
            total = mul(
                total,
                atom_value(
                    BranchReduction("prod", (_sealed_branch(GuardedBranch(b.bound, b.guards, constant(number))),))
                ),
            )
        for f, p in factors:
            if isinstance(f, FunctionApplication) and f.function == "exp":
                inner = _sealed_branch(GuardedBranch(b.bound, b.guards, scale(f.args[0], p)))
                total = mul(total, algebra.exponential(algebra.tidy(guarded(inner.value, inner.guards, inner.bound))))
            else:
                total = mul(total, _one_product(GuardedBranch(b.bound, b.guards, atom_value(f)), p))
    return total


def _one_product(branch: GuardedBranch, power: Fraction | int = 1) -> Value:
    return atom_value(BranchReduction("prod", (_sealed_branch(branch),)), power)


def _is_exp(factor: Factor) -> bool:
    return isinstance(factor, FunctionApplication) and factor.function == "exp"


def _by_guard(algebra: NormalFormAlgebra, kind: str, branches: list[GuardedBranch], guard: IndexCondition) -> Value:
    """The reduction where a condition on outer names holds, and where it does not."""
    parts: list[Value] = []
    for condition in (guard, negated(guard)):
        if algebra.facts.contradictory((condition,), 1):
            continue
        kept_branches = []
        for b in branches:
            if negated(condition) in b.guards:
                continue
            left = b.guards - {condition}
            if not algebra.facts.contradictory((*left, condition), 1):
                outer = {g for g in left if not symbols(g.size) & set(b.bound)}
                implied = {g for g in outer if algebra.facts.implied(g, (condition,), 1)}
                kept_branches.append(GuardedBranch(b.bound, left - implied, b.value))
        parts.append(guarded(extreme_of(algebra, kind, kept_branches), (condition,)))
    return add(*parts)


def _extracted(algebra: NormalFormAlgebra, branch: GuardedBranch) -> Value:
    """``max(c + v) = c + max(v)``, ``max(c·v) = c·max(v)`` for ``c > 0``, and for ``c ≥ 0`` over what is not empty."""
    bound = set(branch.bound)
    fixed = tuple(m for m in branch.value if not m.free & bound)
    moving = tuple(m for m in branch.value if m.free & bound)
    if not moving:
        if not algebra.inhabited(branch.bound, branch.guards):
            return atom_value(BranchReduction("max", (_sealed_branch(branch),)))
        return fixed
    if len(moving) == 1 and not moving[0].bound and not moving[0].guards:
        m = moving[0]
        outer = tuple((f, p) for f, p in m.factors if not f.free & bound)
        inner = tuple((f, p) for f, p in m.factors if f.free & bound)
        least = min((algebra.sign(atom_value(f, p)) for f, p in outer), default=2)
        if m.coefficient > 0 and (least == 2 or (least == 1 and algebra.inhabited(branch.bound, branch.guards))):
            scaled = m.coefficient
            body: Value = (Monomial(Fraction(1), (), frozenset(), inner),)
            value = _inner(algebra, branch, body)
            if outer:
                value = tuple(v.of(factors=merge_factors(v.factors, outer)) for v in value)
            return add(fixed, scale(value, scaled))
        if m.coefficient < 0 and m.coefficient != -1:  # max(-c·v) = c·max(-v)
            return add(fixed, scale(_inner(algebra, branch, (m.of(coefficient=Fraction(-1)),)), -m.coefficient))
    return add(fixed, _inner(algebra, branch, moving))


def _inner(algebra: NormalFormAlgebra, branch: GuardedBranch, body: Value) -> Value:
    """The maximum of what is left in a branch; a maximum of maxima once more where that is what is left."""
    new_branch = GuardedBranch(branch.bound, branch.guards, body)
    if body != branch.value and _extreme_of(body, "max") is not None:
        return extreme_of(algebra, "max", [new_branch])
    return atom_value(BranchReduction("max", (_sealed_branch(new_branch),)))


def _unfolded(algebra: NormalFormAlgebra, branch: GuardedBranch) -> list[GuardedBranch]:
    """``max(w + c·ramp(u)) = max(max(w), max(w + c·u))`` for ``c > 0``, over a range that is inhabited."""
    for m in branch.value:
        factor = m.factors[0][0] if len(m.factors) == 1 and m.factors[0][1] == 1 else None
        plain = not m.bound and not m.guards and m.coefficient > 0
        if plain and isinstance(factor, FunctionApplication) and factor.function == "ramp":
            if not algebra.inhabited(branch.bound, branch.guards):
                return [branch]
            low = tuple(o for o in branch.value if o is not m)
            high = algebra.tidy(add(low, scale(factor.args[0], m.coefficient)))
            branches = [GuardedBranch(branch.bound, branch.guards, v) for v in (low, high)]
            return [u for b in branches for u in _unfolded(algebra, b)]
    return [branch]


def _capped(algebra: NormalFormAlgebra, branch: GuardedBranch) -> tuple[GuardedBranch, Value] | None:
    """``max(min(w, k)) = min(max(w), k)`` where ``k`` is fixed, over a range that is inhabited: ``w`` and ``k``."""
    bound = set(branch.bound)
    for m in branch.value:
        factor = m.factors[0][0] if len(m.factors) == 1 and m.factors[0][1] == 1 else None
        plain = not m.bound and not m.guards and m.coefficient < 0 and bool(m.free & bound)
        if plain and isinstance(factor, FunctionApplication) and factor.function == "ramp":
            uncapped = tuple(o for o in branch.value if o is not m)
            cap = algebra.tidy(add(uncapped, scale(factor.args[0], m.coefficient)))
            for moving, fixed in ((uncapped, cap), (cap, uncapped)):
                if not free(fixed) & bound and algebra.inhabited(branch.bound, branch.guards):
                    return GuardedBranch(branch.bound, branch.guards, moving), fixed
    return None


def _sealed_branch(branch: GuardedBranch) -> GuardedBranch:
    renamed = _branch_of(rename_apart(_carrier(branch)))
    return GuardedBranch(renamed.bound, renamed.guards, sealed(renamed.value))

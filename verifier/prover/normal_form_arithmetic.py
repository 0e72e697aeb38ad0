"""Arithmetic and substitution on values in normal form (:mod:`superopt.verifier.prover.normal_form_terms`)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction

from superopt.ir.size_polynomial import Dim, SizePolynomial, substitute, sym, symbols
from superopt.ops.operator_semantics import IndexCondition
from superopt.verifier.prover.arith import normal_condition
from superopt.verifier.prover.normal_form_terms import (
    ONE,
    ZERO,
    BranchReduction,
    Factor,
    Factors,
    FunctionApplication,
    GuardedBranch,
    Monomial,
    SizeFactor,
    SumPowerBase,
    TensorElement,
    Value,
    free,
    fresh,
    text,
)  # fmt: skip

__all__ = [
    "ONE", "ZERO", "FunctionApplication", "GuardedBranch", "TensorElement", "BranchReduction", "Factor", "Factors",
    "Monomial", "SizeFactor", "SumPowerBase", "Value", "add", "atom_value", "constant", "dimensions",
    "factor_dimensions", "free", "fresh", "map_monomial", "merge_factors", "mul", "rename_apart", "replace", "scale",
    "size_value", "substitute_factors", "text",
]  # fmt: skip


def constant(number: Fraction | int) -> Value:
    """A rational as a value."""
    return (Monomial(Fraction(number), (), frozenset(), ()),) if number else ZERO


def atom_value(factor: Factor, power: Fraction | int = 1) -> Value:
    """A single factor as a value."""
    return (Monomial(Fraction(1), (), frozenset(), ((factor, Fraction(power)),)),)


def size_value(size: Dim) -> Value:
    """A polynomial as a number."""
    if isinstance(size, int):
        return constant(size)
    monomials: list[Monomial] = []
    for monomial, coefficient in size.terms:
        counts: dict[Factor, Fraction] = {}
        for atom in monomial:
            factor = SizeFactor(SizePolynomial((((atom,), 1),)))
            counts[factor] = counts.get(factor, Fraction(0)) + 1
        monomials.append(Monomial(Fraction(coefficient), (), frozenset(), _sorted(counts)))
    return tuple(monomials)


def _sorted(counts: Mapping[Factor, Fraction]) -> Factors:
    kept = [(f, p) for f, p in counts.items() if p]
    return tuple(kept) if len(kept) < 2 else tuple(sorted(kept, key=lambda fp: (fp[0].show({}), fp[1])))


def merge_factors(*groups: Factors) -> Factors:
    """The product of factors: powers of equal ones added."""
    counts: dict[Factor, Fraction] = {}
    names: dict[str, Factor] = {}
    for factor, power in itertools.chain(*groups):
        factor = names.setdefault(factor.show({}), factor)  # alpha-equal factors are one
        counts[factor] = counts.get(factor, Fraction(0)) + power
    return _sorted(counts)


def add(*values: Value) -> Value:
    """The sum, with like monomials (by key) combined."""
    monomials: dict[str, Monomial] = {}
    for monomial in itertools.chain(*values):
        known_monomial = monomials.get(monomial.key)
        if known_monomial is None:
            monomials[monomial.key] = monomial
        else:
            monomials[monomial.key] = known_monomial.of(coefficient=known_monomial.coefficient + monomial.coefficient)
    return tuple(m for m in monomials.values() if m.coefficient)


def scale(value: Value, number: Fraction | int) -> Value:
    """A value times a rational."""
    return tuple(m.of(coefficient=m.coefficient * number) for m in value) if number else ZERO


def mul(left: Value, right: Value) -> Value:
    """The product, expanded; bound variables are renamed apart."""
    return add(*(((multiply(a, b)),) for a in left for b in right))


def multiply(a: Monomial, b: Monomial) -> Monomial:
    """The product of two monomials."""
    if b.bound and (set(b.bound) & (a.inner | set(a.bound))):
        b = rename_apart(b)
    if a.bound and set(a.bound) & b.inner:
        a = rename_apart(a)
    return Monomial(
        a.coefficient * b.coefficient, a.bound + b.bound, a.guards | b.guards, merge_factors(a.factors, b.factors)
    )


def rename_apart(monomial: Monomial) -> Monomial:
    """The same monomial with fresh bound variables."""
    if not monomial.bound:
        return monomial
    names: dict[str, Dim] = {n: sym(fresh()) for n in monomial.bound}
    return _rename(monomial, names)


def _rename(monomial: Monomial, names: Mapping[str, Dim]) -> Monomial:
    """Rename bound variables by variables (injectively)."""
    bound = tuple(next(iter(symbols(names[n]))) if n in names else n for n in monomial.bound)
    guards = frozenset(_condition(g, names) for g in monomial.guards)
    factors = [(_factor(f, names), p) for f, p in monomial.factors]
    return Monomial(monomial.coefficient, bound, guards, merge_factors(tuple(factors)))


def _condition(condition: IndexCondition, binding: Mapping[str, Dim]) -> IndexCondition:
    return normal_condition(IndexCondition(condition.kind, substitute(condition.size, binding)))


def _factor(factor: Factor, binding: Mapping[str, Dim]) -> Factor:
    """Substitute in a factor that stays one factor (sizes: only renaming)."""
    if not (factor.free & binding.keys()):
        return factor
    match factor:
        case TensorElement(tensor, index):
            return TensorElement(tensor, tuple(substitute(i, binding) for i in index))
        case SizeFactor(size):
            renamed = substitute(size, binding)
            if (
                not isinstance(renamed, SizePolynomial)
                or len(renamed.terms) != 1
                or renamed.terms[0][1] != 1
                or len(renamed.terms[0][0]) != 1
            ):
                raise AssertionError("a size became a sum")
            return SizeFactor(renamed)
        case FunctionApplication(function, args):
            return FunctionApplication(function, tuple(replace(a, binding) for a in args))
        case SumPowerBase(value):
            return SumPowerBase(replace(value, binding))
        case BranchReduction(kind, branches):
            return BranchReduction(kind, tuple(_branch(b, binding) for b in branches))
    raise AssertionError(factor)


def _branch(branch: GuardedBranch, binding: Mapping[str, Dim]) -> GuardedBranch:
    incoming = {n for v in binding.values() for n in symbols(v)}
    inner = {k: v for k, v in binding.items() if k not in branch.bound}
    bound = branch.bound
    if incoming & set(bound):
        names = {n: fresh() for n in bound}
        inner |= {n: sym(v) for n, v in names.items()}
        bound = tuple(names[n] for n in bound)
    return GuardedBranch(bound, frozenset(_condition(g, inner) for g in branch.guards), replace(branch.value, inner))


def replace(value: Value, binding: Mapping[str, Dim]) -> Value:
    """Substitute dimensions for free names, without capture; false guards drop their monomials."""
    if not binding:
        return value
    values: list[Value] = []
    for monomial in value:
        if not (monomial.free & binding.keys()):
            values.append((monomial,))
            continue
        values.append(tuple(_replace_monomial(monomial, binding)))
    return add(*values)


def _replace_monomial(monomial: Monomial, binding: Mapping[str, Dim]) -> Iterator[Monomial]:
    used = {k: v for k, v in binding.items() if k in monomial.free}
    incoming = {n for v in used.values() for n in symbols(v)}
    if incoming & set(monomial.bound):
        monomial = rename_apart(monomial)
    guards = _undecided_guards(_condition(g, used) for g in monomial.guards)
    if guards is None:
        return
    yield from substitute_factors(monomial.of(guards=guards), used)


def _undecided_guards(guards: Iterable[IndexCondition]) -> frozenset[IndexCondition] | None:
    kept_conditions = set()
    for guard in guards:
        if guard.known is False:
            return None
        if guard.known is None:
            kept_conditions.add(guard)
    return frozenset(kept_conditions)


def substitute_factors(monomial: Monomial, binding: Mapping[str, Dim]) -> Iterator[Monomial]:
    """Substitute in the factors alone; a size that becomes a polynomial is expanded."""
    sums: list[Value] = []
    kept: list[tuple[Factor, Fraction]] = []
    for factor, power in monomial.factors:
        if isinstance(factor, SizeFactor) and factor.free & binding.keys():
            value = size_value(substitute(factor.size, binding))
            if len(value) == 1 and not (power < 0 and value[0].coefficient not in (1, -1) and power.denominator != 1):
                base = value[0]
                raised = tuple((f, p * power) for f, p in base.factors)
                sums.append((base.of(coefficient=base.coefficient ** int(power), factors=raised),))
            elif power > 0:
                sums.extend([value] * int(power))
            else:
                kept.append((SumPowerBase(value) if value else SumPowerBase(ZERO), power))
        else:
            kept.append((_factor(factor, binding), power))
    base_monomial = monomial.of(factors=merge_factors(tuple(kept)))
    product: Value = (base_monomial,)
    for value in sums:
        product = tuple(
            m.of(coefficient=m.coefficient * v.coefficient, factors=merge_factors(m.factors, v.factors))
            for m in product
            for v in value
        )
    yield from product


def map_dimensions(value: Value, change: Callable[[Dim], Dim]) -> Value:
    """Apply a function to every dimension in a value, at all depths; it must not mention variables bound inside."""
    return add(*(tuple(map_monomial(m, change)) for m in value))


def map_monomial(monomial: Monomial, change: Callable[[Dim], Dim]) -> Iterator[Monomial]:
    """:func:`map_dimensions` for one monomial; it may become none or several."""
    guards = _undecided_guards(normal_condition(IndexCondition(g.kind, change(g.size))) for g in monomial.guards)
    if guards is None:
        return
    product: Value = (monomial.of(guards=guards, factors=()),)
    for factor, power in monomial.factors:
        if isinstance(factor, SizeFactor) and power > 0:
            for _ in range(int(power)):
                product = mul(product, size_value(change(factor.size)))
        else:
            product = tuple(
                m.of(factors=merge_factors(m.factors, ((_map_factor(factor, change), power),))) for m in product
            )
    yield from product


def _map_factor(factor: Factor, change: Callable[[Dim], Dim]) -> Factor:
    match factor:
        case TensorElement(tensor, index):
            return TensorElement(tensor, tuple(change(i) for i in index))
        case FunctionApplication(function, args):
            return FunctionApplication(function, tuple(map_dimensions(a, change) for a in args))
        case SumPowerBase(value):
            return SumPowerBase(map_dimensions(value, change))
        case BranchReduction(kind, branches):
            new_branches = []
            for b in branches:
                guards = frozenset(normal_condition(IndexCondition(g.kind, change(g.size))) for g in b.guards)
                new_branches.append(GuardedBranch(b.bound, guards, map_dimensions(b.value, change)))
            return BranchReduction(kind, tuple(new_branches))
    return factor


def dimensions(value: Value) -> Iterator[Dim]:
    """Every dimension in a value, at all depths."""
    for monomial in value:
        yield from (g.size for g in sorted(monomial.guards, key=str))
        for factor, _ in monomial.factors:
            yield from factor_dimensions(factor)


def factor_dimensions(factor: Factor) -> Iterator[Dim]:
    """Every dimension in a factor, at all depths."""
    match factor:
        case TensorElement(_, index):
            yield from index
        case SizeFactor(size):
            yield size
        case FunctionApplication(_, args):
            for a in args:
                yield from dimensions(a)
        case SumPowerBase(value):
            yield from dimensions(value)
        case BranchReduction(_, branches):
            for b in branches:
                yield from (g.size for g in sorted(b.guards, key=str))
                yield from dimensions(b.value)

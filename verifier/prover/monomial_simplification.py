"""Simplification of one monomial: equations solved, ranges merged and counted, implied guards dropped.

Every step keeps the value of ``Σ bound | guards · factors`` exactly, at all sizes that satisfy the facts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from superopt.ir.size_polynomial import (
    Atom,
    Dim,
    FloorQuotient,
    SizePolynomial,
    atoms,
    mapped,
    substitute,
    sym,
    symbols,
)
from superopt.ops.operator_semantics import IndexCondition
from superopt.verifier.prover.arith import IntegerFacts, ge, normal_condition
from superopt.verifier.prover.normal_form_arithmetic import (
    Monomial,
    Value,
    add,
    factor_dimensions,
    fresh,
    map_monomial,
    mul,
    size_value,
    substitute_factors,
)  # fmt: skip

__all__ = [
    "by_digits", "coefficient_of", "digit_size", "exact_quotient", "guarded", "simplified", "simplify_monomial",
]  # fmt: skip


def by_digits(condition: IndexCondition, facts: IntegerFacts, given: Iterable[IndexCondition] = ()) -> IndexCondition:
    """``d·e + r ≥ 0`` with ``0 ≤ r < d`` is ``e ≥ 0``: the same condition, without the less significant digit."""
    size = condition.size
    if condition.kind != "ge" or not isinstance(size, SizePolynomial):
        return condition
    for divisor in _divisors(size, facts):
        whole: Dim = 0
        for monomial, number in size.terms:
            part = SizePolynomial.make({monomial: number})
            exact = exact_quotient(part, divisor)
            whole = whole + exact if exact is not None else whole
        rest = size - whole * divisor
        if rest == 0:
            continue
        for shift in (0, 1):
            low = rest + shift * divisor
            if facts.implied(ge(low), given, 0) and facts.implied(ge(divisor - 1 - low), given, 0):
                return normal_condition(ge(whole - shift))
    return condition


def _divisors(size: SizePolynomial, facts: IntegerFacts) -> list[Dim]:
    """Positive sizes by which some term that depends on an index is divisible."""
    found: dict[Dim, None] = {}
    for monomial, _ in size.terms:
        for k, atom in enumerate(monomial):
            rest = SizePolynomial.make({monomial[:k] + monomial[k + 1 :]: 1})
            if isinstance(rest, SizePolynomial) and isinstance(atom, str) and facts.positive(rest):
                found[rest] = None
    return list(found)


def guarded(value: Value, guards: Iterable[IndexCondition], bound: tuple[str, ...] = ()) -> Value:
    """``Σ bound | guards · value``. The caller renames apart: the names must not be bound in the value."""
    extra = frozenset(normal_condition(g) for g in guards)
    if any(g.known is False for g in extra):
        return ()
    extra = frozenset(g for g in extra if g.known is None)
    return add(*((m.of(bound=m.bound + bound, guards=m.guards | extra),) for m in value))


def simplified(value: Value, facts: IntegerFacts) -> Value:
    """Every monomial simplified, and like ones combined."""
    return add(*(simplify_monomial(m, facts) for m in value))


def simplify_monomial(monomial: Monomial, facts: IntegerFacts, *, counting: bool = True) -> Value:
    """An equal sum of simpler monomials. ``counting``: an unused variable multiplies by the size of its range."""
    pending, done = [monomial], []
    for _ in range(200):
        if not pending:
            break
        facts.tick()
        current = pending.pop()
        monomials = _simplified_once(current, facts, counting)
        if monomials is None:
            done.append(current)
        else:
            pending.extend(monomials)
    return add(*((m,) for m in (*done, *pending)))


def _simplified_once(m: Monomial, facts: IntegerFacts, counting: bool) -> list[Monomial] | None:
    """One simplification, or ``None`` where nothing applies."""
    if not m.coefficient or any(g.known is False for g in m.guards):
        return []
    if any(g.known for g in m.guards):
        return [m.of(guards=frozenset(g for g in m.guards if not g.known))]
    if m.guards and facts.contradictory(m.guards, 0):
        return []
    for rule in (_equations, _multiples, _split_digits, _solve, _quotients, _drop_implied, _merge_digits, _shift):
        monomials = rule(m, facts)
        if monomials is not None:
            return monomials
    return _count(m, facts) if counting else None


def _equations(m: Monomial, facts: IntegerFacts) -> list[Monomial] | None:
    """``p ≥ 0`` and ``-p ≥ 0`` are ``p = 0``."""
    for g in sorted(m.guards, key=str):
        if g.kind == "ge" and (opposite := ge(-g.size)) in m.guards:
            rest = m.guards - {g, opposite}
            return [m.of(guards=rest | {normal_condition(IndexCondition("eq", g.size))})]
    return None


def _split_digits(m: Monomial, facts: IntegerFacts) -> list[Monomial] | None:
    """``d·e + r = 0`` with ``-d < r < d`` is ``e = 0`` and ``r = 0``: places are equal where all their digits are."""
    for g in sorted((g for g in m.guards if g.kind == "eq"), key=str):
        assert isinstance(g.size, SizePolynomial)
        radices = {SizePolynomial.make({a[:k] + a[k + 1 :]: abs(c)}) for a, c in g.size.terms for k in range(len(a))}
        for d in sorted((d for d in radices if d != 1 and facts.positive(d)), key=str):
            terms = [SizePolynomial.make({a: c}) for a, c in g.size.terms]
            whole = sum(q for t in terms if (q := exact_quotient(t, d)) is not None)
            rest = g.size - whole * d
            if whole == 0 or rest == 0 or not all(facts.implied(ge(d - 1 + s * rest), m.guards, 0) for s in (1, -1)):
                continue
            both = [normal_condition(IndexCondition("eq", e)) for e in (whole, rest)]
            left = m.guards - {g}
            return [] if any(c.known is False for c in both) else [m.of(guards=left | {c for c in both if not c.known})]
    return None


def coefficient_of(size: Dim, name: str) -> Dim | None:
    """The coefficient of a name that occurs linearly and outside quotients (0 where it does not occur), else None."""
    if not isinstance(size, SizePolynomial) or name not in symbols(size):
        return 0
    total: Dim = 0
    for monomial, number in size.terms:
        if any(isinstance(a, FloorQuotient) and name in symbols(SizePolynomial((((a,), 1),))) for a in monomial):
            return None
        if monomial.count(name) > 1:
            return None
        if name in monomial:
            left = list(monomial)
            left.remove(name)
            total = total + SizePolynomial.make({tuple(left): number})
    return total


def exact_quotient(size: Dim, divisor: Dim) -> Dim | None:
    """``size / divisor`` where the division has no rest as polynomials, else ``None``."""
    if isinstance(divisor, int) and divisor == 0:
        return None
    quotient = size // divisor
    return quotient if quotient * divisor - size == 0 and not _new_quotients(quotient, size) else None


def _new_quotients(quotient: Dim, size: Dim) -> bool:
    return any(isinstance(a, FloorQuotient) for a in atoms(quotient) - atoms(size))


def _solve(m: Monomial, facts: IntegerFacts) -> list[Monomial] | None:
    """An equation that determines a bound variable removes it."""
    for g in sorted((g for g in m.guards if g.kind == "eq"), key=lambda g: str(g)):
        for name in m.bound:
            c = coefficient_of(g.size, name)
            if c is None or c == 0 or (symbols(c) & set(m.bound)):
                continue
            rest = c * sym(name) - g.size
            if c in (1, -1):
                solution: Dim | None = rest * c
            elif facts.positive(c) or facts.positive(-c):
                solution = exact_quotient(rest, c)
            else:
                solution = None
            if solution is not None and name not in symbols(solution):
                return _eliminate(m, name, solution, g)
    return None


def _eliminate(m: Monomial, name: str, solution: Dim, used: IndexCondition) -> list[Monomial]:
    binding = {name: solution}
    guards = frozenset(normal_condition(IndexCondition(g.kind, substitute(g.size, binding))) for g in m.guards - {used})
    if any(g.known is False for g in guards):
        return []
    bound = tuple(n for n in m.bound if n != name)
    kept_monomial = m.of(bound=bound, guards=frozenset(g for g in guards if g.known is None))
    return list(substitute_factors(kept_monomial, binding))


def _quotients(m: Monomial, facts: IntegerFacts) -> list[Monomial] | None:
    """``⌊n/d⌋`` is 0 where ``0 ≤ n < d``; a bound ``t`` inside ``⌊(t + r)/d⌋`` becomes digits, ``t + r = h·d + l``."""
    found: dict[FloorQuotient, None] = {}
    for size in (
        *(g.size for g in sorted(m.guards, key=str)),
        *(d for f, _ in m.factors for d in factor_dimensions(f)),
    ):
        found.update(dict.fromkeys(_quotient_atoms(size)))
    for atom in found:
        names = symbols(atom.numerator)
        if not names & (set(m.bound) | _ranged(m, facts)):
            continue
        n, d = atom.numerator, atom.denominator
        if facts.implied(ge(n), m.guards, 0) and facts.implied(ge(d - 1 - n), m.guards, 0):
            return list(map_monomial(m, lambda size, a=atom: _without(size, a)))  # type: ignore[misc]
        for name in m.bound if facts.positive(d) and not symbols(d) & set(m.bound) else ():
            number = coefficient_of(n, name)
            if number == 1 or (isinstance(d, int) and number == d - 1):
                sign = 1 if number == 1 else -1
                rest = n - sym(name) if sign == 1 else n - (d - 1) * sym(name)
                digit = {ge(sym(name)), normal_condition(ge(d - 1 - sym(name)))}
                if rest != 0 or not digit <= m.guards:  # a digit below d would split into itself, for ever
                    return _split(m, name, d, rest, sign)
    return None


def _ranged(m: Monomial, facts: IntegerFacts) -> set[str]:
    names = {n for g in (*m.guards, *facts.hypotheses) for n in symbols(g.size)}
    return names - set(facts.least)


def _quotient_atoms(size: Dim) -> Iterator[FloorQuotient]:
    for atom in sorted(atoms(size), key=str):
        if isinstance(atom, FloorQuotient):
            yield from _quotient_atoms(atom.numerator)
            yield atom


def _multiples(m: Monomial, facts: IntegerFacts) -> list[Monomial] | None:
    """Where a guard says ``n = d·⌊n/d⌋`` and ``n`` has a bound name: ``Σ_q [n = d·q]``, with ``q`` for the quotient."""
    for g in sorted((g for g in m.guards if g.kind == "eq"), key=str):
        for atom in _quotient_atoms(g.size):
            n, d = atom.numerator, atom.denominator
            whole = d * SizePolynomial((((atom,), 1),))
            if not symbols(n) & set(m.bound) or symbols(d) & set(m.bound) or not facts.positive(d):
                continue
            if g.size - (n - whole) == 0 or g.size + (n - whole) == 0:
                name = fresh()
                less = [sym(b) for b in m.bound if isinstance(d, int) and coefficient_of(n, b) == d - 1 > 1]
                q = sym(name) + sum(less[:1])  # (d - 1)·b + … = d·(q + b) gives b
                monomials = map_monomial(m, lambda size, a=atom, q=q: _without(size, a, q))  # type: ignore[misc]
                return [r.of(bound=(*r.bound, name)) for r in monomials]
    return None


def _without(size: Dim, quotient: FloorQuotient, value: Dim = 0) -> Dim:
    """The dimension with a quotient replaced by a value."""

    def put(atom: Atom) -> Dim:
        if atom == quotient:
            return value
        if isinstance(atom, str):
            return sym(atom)
        return _without(atom.numerator, quotient, value) // _without(atom.denominator, quotient, value)

    return mapped(size, put)


def _split(m: Monomial, name: str, divisor: Dim, rest: Dim, sign: int) -> list[Monomial]:
    """``Σ_t`` as a sum over quotient and remainder of ``sign·t + rest``: every integer has one of either."""
    high, low = fresh(), fresh()
    bound = (*(n for n in m.bound if n != name), high, low)
    binding = {name: sign * (sym(high) * divisor + sym(low) - rest)}
    guards = {normal_condition(IndexCondition(g.kind, substitute(g.size, binding))) for g in m.guards}
    guards |= {ge(sym(low)), ge(divisor - 1 - sym(low))}
    for g in m.guards if rest == 0 and sign == 1 else ():
        # name ≥ 0 gives high ≥ 0, name < a·divisor gives high < a: the same sets, easier to use
        if g.size == sym(name):
            guards.add(ge(sym(high)))
        elif isinstance(g.size, SizePolynomial) and coefficient_of(g.size, name) == -1:
            count = exact_quotient(g.size + sym(name) + 1, divisor)
            if count is not None:
                guards.add(ge(count - 1 - sym(high)))
    return list(substitute_factors(m.of(bound=bound, guards=frozenset(guards)), binding))


def _drop_implied(m: Monomial, facts: IntegerFacts) -> list[Monomial] | None:
    """A guard that the others imply is dropped, the most complicated first."""
    for g in sorted(m.guards, key=lambda g: (-len(str(g.size)), str(g))):
        if facts.implied(g, m.guards - {g}, 0):
            return [m.of(guards=m.guards - {g})]
    return None


def _ends(m: Monomial, name: str) -> tuple[Dim, Dim] | None:
    """The range ``low ≤ name ≤ high`` where exactly these two guards mention the name."""
    low: Dim | None = None
    high: Dim | None = None
    for g in m.guards:
        c = coefficient_of(g.size, name)
        if c == 0 and c is not None and name not in symbols(g.size):
            continue
        if g.kind != "ge" or c not in (1, -1):
            return None
        rest = g.size - c * sym(name)
        if c == 1 and low is None:
            low = -rest
        elif c == -1 and high is None:
            high = rest
        else:
            return None
    return None if low is None or high is None else (low, high)


def _merge_digits(m: Monomial, facts: IntegerFacts) -> list[Monomial] | None:
    """Digits that occur only as ``h·d + l`` are one variable."""
    for low in m.bound:
        range_low = digit_size(m, low)
        if range_low is None or not facts.positive(range_low):
            continue
        for high in m.bound:
            if high != low and high not in symbols(range_low):
                monomials = _merged(m, high, low, range_low)
                if monomials is not None:
                    return monomials
    return None


def digit_size(m: Monomial, name: str) -> Dim | None:
    """``d`` where ``0 ≤ name`` and ``name < d`` are guards and ``d`` is free of bound variables."""
    if ge(sym(name)) not in m.guards:
        return None
    for g in sorted(m.guards, key=str):
        if g.kind == "ge" and coefficient_of(g.size, name) == -1:
            size = g.size + sym(name) + 1
            if not symbols(size) & set(m.bound):
                return size
    return None


def _merged(m: Monomial, high: str, low: str, size: Dim) -> list[Monomial] | None:
    merged = fresh()
    binding = {low: sym(merged) - sym(high) * size}
    own = {ge(sym(low)), ge(size - 1 - sym(low))}
    guards: set[IndexCondition] = set()
    for g in m.guards - own:
        bound_size = substitute(g.size, binding)
        if high in symbols(bound_size):
            c = coefficient_of(g.size, high)
            if low in symbols(g.size) or g.kind != "ge" or c not in (1, -1):
                return None
            rest = g.size - c * sym(high)  # high ≥ -rest, or high ≤ rest
            bound_size = sym(merged) + rest * size if c == 1 else rest * size + size - 1 - sym(merged)
            if high in symbols(bound_size):
                return None
        guards.add(normal_condition(IndexCondition(g.kind, bound_size)))
    if not any(low in f.free or high in f.free for f, _ in m.factors):
        return None
    if any(
        high in symbols(substitute(d, binding)) for f, _ in m.factors for d in factor_dimensions(f) if low in symbols(d)
    ) or any(high in symbols(d) and low not in symbols(d) for f, _ in m.factors for d in factor_dimensions(f)):
        return None
    bound = (*(n for n in m.bound if n not in (high, low)), merged)
    return list(substitute_factors(m.of(bound=bound, guards=frozenset(guards)), binding))


def _shift(m: Monomial, facts: IntegerFacts) -> list[Monomial] | None:
    """A variable whose only lower end is ``l ≠ 0`` starts from 0 instead, so that shifted sums look alike."""
    bound = set(m.bound)
    for name in m.bound:
        lower = [
            sym(name) - g.size
            for g in m.guards
            if g.kind == "ge" and coefficient_of(g.size, name) == 1 and len(symbols(g.size) & bound) == 1
        ]
        if len(lower) == 1 and lower[0] != 0:
            moved = fresh()
            binding = {name: sym(moved) + lower[0]}
            guards = frozenset(normal_condition(IndexCondition(g.kind, substitute(g.size, binding))) for g in m.guards)
            names = tuple(moved if n == name else n for n in m.bound)
            return list(substitute_factors(m.of(bound=names, guards=guards), binding))
    return None


def _count(m: Monomial, facts: IntegerFacts) -> list[Monomial] | None:
    """``Σ_{low ≤ v ≤ high} c = (high - low + 1)·c`` where ``v`` does not occur in ``c``."""
    for name in m.bound:
        if any(name in f.free for f, _ in m.factors):
            continue
        ends = _ends(m, name)
        if ends is None:
            continue
        count = ends[1] - ends[0] + 1
        others = frozenset(g for g in m.guards if name not in symbols(g.size))
        if not facts.implied(ge(count), others, 1):
            continue
        left = m.of(bound=tuple(n for n in m.bound if n != name), guards=others)
        return list(mul((left,), size_value(count)))
    return None

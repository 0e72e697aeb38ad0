"""Index arithmetic: does a set of conditions on integers imply another?

A ladder, cheapest first: interval elimination on polynomials; then Z3 on linear integer arithmetic with non-linear
monomials as fresh integers; then with pairwise products of the non-negative hypotheses; then non-linear arithmetic.
Every rung only ever answers "implied" when it is; a rung that cannot tell passes on, and the last answers ``False``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd

import z3

from superopt.ir.size_polynomial import (
    Atom,
    Dim,
    FloorQuotient,
    Monomial,
    SizePolynomial,
    atoms,
    mapped,
    substitute,
    sym,
    symbols,
)
from superopt.ops.operator_semantics import IndexCondition
from superopt.verifier.prover.budget import ProofBudget, ProofBudgetExceeded

__all__ = ["IntegerFacts", "ProofBudgetExceeded", "ge", "negated", "normal_condition"]

_ELIMINATIONS = 20  # that are a unit of the budget
_TRIED = 150  # sizes that one elimination may go through
_Z3_RESOURCES = 2_000_000  # Z3's own count of steps per query, so that results do not depend on the machine


def ge(size: Dim) -> IndexCondition:
    """The condition ``size >= 0``."""
    return IndexCondition("ge", size)


def negated(condition: IndexCondition) -> IndexCondition:
    """The condition that holds exactly where this one does not."""
    if condition.kind == "ge":
        return normal_condition(ge(-condition.size - 1))
    return IndexCondition("ne" if condition.kind == "eq" else "eq", condition.size)


def normal_condition(condition: IndexCondition) -> IndexCondition:
    """Divide by the content of the non-constant part, tightening the constant; orient equalities."""
    size = condition.size
    if not isinstance(size, SizePolynomial):
        return condition
    constant = size.terms[-1][1] if not size.terms[-1][0] else 0
    content = gcd(*(c for m, c in size.terms if m))
    if condition.kind == "ge":
        return ge(_scaled(size, constant, content)) if content > 1 else condition
    if content > 1:
        if constant % content:
            return IndexCondition("ge", -1 if condition.kind == "eq" else 0)
        size = _scaled(size, constant, content)
    assert isinstance(size, SizePolynomial)
    if size.terms[0][1] < 0:
        size = -size
    return IndexCondition(condition.kind, size)


def _scaled(size: SizePolynomial, constant: int, content: int) -> Dim:
    return SizePolynomial.make({m: (c // content) for m, c in size.terms if m} | {(): constant // content})


@dataclass
class IntegerFacts:
    """What is known of the sizes of a rule, and questions about it.

    Attributes:
        hypotheses: conditions over sizes, attribute variables and output indices.
        least: the least value of each size symbol (1 for sizes); others are unbounded unless a hypothesis bounds them.
        budget: of the proof, which questions spend; they raise :class:`ProofBudgetExceeded` when it is used up.
    """

    hypotheses: tuple[IndexCondition, ...]
    least: Mapping[str, int]
    budget: ProofBudget = field(default_factory=ProofBudget)
    _memo: dict[tuple[frozenset[IndexCondition], IndexCondition | None, int], bool] = field(default_factory=dict)

    @property
    def established(self) -> tuple[tuple[frozenset[IndexCondition], IndexCondition | None], ...]:
        """What was answered "yes" so far: given conditions, and what they imply (``None``: they contradict)."""
        return tuple(dict.fromkeys((g, c) for (g, c, _), yes in self._memo.items() if yes))

    def tick(self) -> None:
        """Count a step; raise :class:`ProofBudgetExceeded` when the budget is used up."""
        self.budget.spend()

    def implied(self, condition: IndexCondition, given: Iterable[IndexCondition] = (), effort: int = 3) -> bool:
        """Whether the hypotheses and ``given`` imply the condition. ``False`` means "not shown"."""
        known = condition.known
        if known is not None and (known or effort == 0):
            return known
        extra = frozenset(given)
        if condition in extra or condition in self.hypotheses:
            return True
        key = (extra, condition, effort)
        if key not in self._memo:
            self._memo[key] = self._implied(condition, extra, effort)
        return self._memo[key]

    def _implied(self, condition: IndexCondition, extra: frozenset[IndexCondition], effort: int) -> bool:
        self.tick()
        if condition.kind == "eq" and isinstance(condition.size, SizePolynomial):
            both = (ge(condition.size), ge(-condition.size))
            if all(self._fast(c, extra) for c in both):
                return True
        elif condition.kind == "ne":
            if self._fast(ge(condition.size - 1), extra) or self._fast(ge(-condition.size - 1), extra):
                return True
        elif self._fast(condition, extra):
            return True
        return effort > 0 and self._solve(sorted(extra, key=str), condition, effort)

    def contradictory(self, given: Iterable[IndexCondition], effort: int = 3) -> bool:
        """Whether the hypotheses and ``given`` cannot hold together. ``False`` means "not shown"."""
        extra = frozenset(given)
        if any(c.known is False for c in extra):
            return True
        key = (extra, None, effort)
        if key not in self._memo:
            self.tick()
            found = any(c.kind == "ge" and self._fast(ge(-c.size - 1), extra - {c}) for c in extra)
            found = found or any(
                c.kind == "ne" and self._fast(IndexCondition("eq", c.size), extra - {c}) for c in extra
            )
            found = found or any(
                c.kind == "eq" and (self._fast(ge(c.size - 1), extra - {c}) or self._fast(ge(-c.size - 1), extra - {c}))
                for c in extra
            )
            self._memo[key] = found or (effort > 0 and self._solve(sorted(extra, key=str), None, effort))
        return self._memo[key]

    def positive(self, size: Dim) -> bool:
        """Whether a size is at least 1, by the cheap rung alone."""
        return self.implied(ge(size - 1), (), 0)

    # Rung 0: replace each bounded variable by the end of its interval that is worst, then compare coefficients.

    def _fast(self, condition: IndexCondition, extra: frozenset[IndexCondition]) -> bool:
        if condition.known is not None:
            return condition.known
        if condition.kind == "eq":
            return self._fast(ge(condition.size), extra) and self._fast(ge(-condition.size), extra)
        if condition.kind != "ge":
            return False
        rest = [c for c in (*extra, *self.hypotheses) if c.kind != "ne"]
        if any(self._sum_nonnegative(condition.size - c.size) for c in rest if c.kind == "ge"):
            return True
        tried: set[Dim] = set()
        found = self._eliminate(condition.size, _intervals(rest, set(self.least)), 12, tried)
        self.budget.spend(len(tried) / _ELIMINATIONS)
        return found

    def _eliminate(
        self, size: Dim, intervals: Mapping[str, tuple[list[Dim], list[Dim]]], fuel: int, tried: set[Dim]
    ) -> bool:
        if self._sum_nonnegative(size):
            return True
        if fuel == 0 or not isinstance(size, SizePolynomial) or size in tried or len(tried) > _TRIED:
            return False
        tried.add(size)
        for name in sorted(symbols(size) & intervals.keys()):
            coefficient = _linear_in(size, name)
            if coefficient is None:
                continue
            lower, upper = intervals[name]
            rest = size - coefficient * sym(name)
            if self._sum_nonnegative(coefficient):
                ends = lower
            elif self._sum_nonnegative(-coefficient):
                ends = upper
            else:
                continue
            return any(self._eliminate(rest + coefficient * end, intervals, fuel - 1, tried) for end in ends[:3])
        return False

    def _sum_nonnegative(self, size: Dim) -> bool:
        """Whether a polynomial over sizes has only non-negative coefficients once each is shifted to its least."""
        if not isinstance(size, SizePolynomial):
            return size >= 0
        if all(c > 0 for _, c in size.terms) and self._atoms_nonnegative(size):
            return True
        names = symbols(size)
        if not names <= self.least.keys():
            return False
        size = self._without_quotients(size)
        shift = {n: sym(n) + self.least[n] for n in names if self.least[n]}
        shifted = substitute(size, shift) if shift else size
        if not isinstance(shifted, SizePolynomial):
            return shifted >= 0
        return all(c > 0 for _, c in shifted.terms) and self._atoms_nonnegative(shifted)

    def _atoms_nonnegative(self, size: Dim) -> bool:
        for atom in atoms(size):
            if isinstance(atom, str):
                if self.least.get(atom, -1) < 0:
                    return False
            elif not (self._sum_nonnegative(atom.numerator) and self._sum_nonnegative(atom.denominator)):
                return False
        return True

    def _without_quotients(self, size: Dim) -> Dim:
        """A lower bound of ``size``: ``d·⌊n/d⌋`` lies between ``n - d + 1`` and ``n``."""
        for _ in range(4):
            step = self._replace_quotient(size)
            if step is None:
                break
            size = step
        return size

    def _replace_quotient(self, size: Dim) -> Dim | None:
        if not isinstance(size, SizePolynomial):
            return None
        for monomial, coefficient in size.terms:
            for atom in monomial:
                if not isinstance(atom, FloorQuotient):
                    continue
                left = list(monomial)
                left.remove(atom)
                divisor = _single_monomial(atom.denominator)
                if divisor is None or divisor[1] <= 0 or coefficient % divisor[1]:
                    continue
                if any(left.count(a) < divisor[0].count(a) for a in divisor[0]):
                    continue
                for a in divisor[0]:
                    left.remove(a)
                cofactor = SizePolynomial.make({tuple(left): coefficient // divisor[1]})
                if not self._atoms_nonnegative(cofactor):
                    continue
                worst = atom.numerator if coefficient < 0 else atom.numerator - atom.denominator + 1
                return size - SizePolynomial.make({monomial: coefficient}) + cofactor * worst
        return None

    # Rungs 1 to 3: Z3.

    def _solve(self, extra: list[IndexCondition], goal: IndexCondition | None, effort: int) -> bool:
        conditions = [goal] if goal is not None else []
        seeds = [c.size for c in conditions] or [c.size for c in extra]
        relevant = _relevant(seeds, [*extra, *self.hypotheses])
        for rung in range(1, effort + 1):
            self.tick()
            problem = _Translation(self.least, self.budget.context, products=rung == 2, nonlinear=rung == 3)
            problem.load(relevant, goal)
            if self.budget.refuted(problem.solver, _Z3_RESOURCES):
                return True
            if not problem.has_products:
                return False
        return False


def _single_monomial(size: Dim) -> tuple[Monomial, int] | None:
    if isinstance(size, int):
        return ((), size)
    return (size.terms[0][0], size.terms[0][1]) if len(size.terms) == 1 else None


def _linear_in(size: Dim, name: str) -> Dim | None:
    """The coefficient of a name that occurs only linearly and outside quotients, else ``None``."""
    found: dict[tuple[object, ...], int] = {}
    for monomial, coefficient in size.terms if isinstance(size, SizePolynomial) else ():
        for atom in monomial:
            if isinstance(atom, FloorQuotient) and name in symbols(SizePolynomial((((atom,), 1),))):
                return None
        count = monomial.count(name)
        if count > 1:
            return None
        if count:
            left = list(monomial)
            left.remove(name)
            found[tuple(left)] = coefficient
    return SizePolynomial.make(found) if found else None  # type: ignore[arg-type]


def _intervals(conditions: Sequence[IndexCondition], sizes: set[str]) -> dict[str, tuple[list[Dim], list[Dim]]]:
    """Lower and upper ends that unit-coefficient conditions give to index variables."""
    found: dict[str, tuple[list[Dim], list[Dim]]] = {}
    for c in conditions:
        if not isinstance(c.size, SizePolynomial):
            continue
        for monomial, coefficient in c.size.terms:
            if len(monomial) != 1 or not isinstance(monomial[0], str) or abs(coefficient) != 1:
                continue
            name = monomial[0]
            if name in sizes or _linear_in(c.size, name) != coefficient:
                continue
            lower, upper = found.setdefault(name, ([], []))
            end = c.size - coefficient * sym(name)
            if coefficient > 0 or c.kind == "eq":
                lower.append(-end if coefficient > 0 else end)
            if coefficient < 0 or c.kind == "eq":
                upper.append(end if coefficient < 0 else -end)
    for lower, upper in found.values():
        lower.sort(key=_complexity)
        upper.sort(key=_complexity)
    return found


def _complexity(size: Dim) -> tuple[int, str]:
    return (len(size.terms) if isinstance(size, SizePolynomial) else 0, str(size))


def _relevant(seeds: Sequence[Dim], conditions: Sequence[IndexCondition]) -> list[IndexCondition]:
    """The conditions that share names with the seeds, transitively. Using fewer hypotheses is always sound."""
    names = {n for s in seeds for n in symbols(s)}
    pending = [(c, symbols(c.size)) for c in dict.fromkeys(conditions)]
    chosen: list[IndexCondition] = []
    changed = True
    while changed:
        changed = False
        for item in list(pending):
            if item[1] & names or not item[1]:
                chosen.append(item[0])
                names |= item[1]
                pending.remove(item)
                changed = True
    return chosen


class _Translation:
    """Conditions as a Z3 problem: monomials are fresh integers, or products under non-linear arithmetic."""

    def __init__(self, least: Mapping[str, int], context: z3.Context, *, products: bool, nonlinear: bool) -> None:
        self.least = least
        self.products = products
        self.nonlinear = nonlinear
        self.has_products = False
        self.names: dict[object, z3.ArithRef] = {}
        self.nonnegative: list[Dim] = []
        self.solver = z3.SolverFor("QF_NIA" if nonlinear else "QF_LIA", ctx=context)
        self.context = context
        self._quotients: dict[FloorQuotient, str] = {}

    def load(self, conditions: Sequence[IndexCondition], goal: IndexCondition | None) -> None:
        """Assert the conditions and the goal's negation."""
        sizes = [(c.kind, self._flat(c.size)) for c in conditions]
        if goal is not None:
            opposite = negated(goal)
            sizes.append((opposite.kind, self._flat(opposite.size)))
        for atom, name in list(self._quotients.items()):  # _flat may add nested ones: they come before their users
            n, d = self._flat(atom.numerator), self._flat(atom.denominator)
            q = sym(name)
            sizes += [("ge", n - d * q), ("ge", d * q + d - 1 - n), ("ge", d - 1)]
        names = {n for _, s in sizes for n in symbols(s)}
        sizes += [("ge", sym(n) - self.least[n]) for n in sorted(names) if n in self.least]
        products: list[tuple[str, Dim]] = []
        if self.products:
            base = [s for k, s in sizes if k == "ge" and isinstance(s, SizePolynomial)][:24]
            products = [("ge", a * b) for i, a in enumerate(base) for b in base[i:]]
            for kind, s in sizes:
                if kind == "eq":
                    products += [("eq", s * sym(n)) for n in sorted(names)]
        for kind, size in (*sizes, *products):
            term = self._term(size)
            self.solver.add(term >= 0 if kind == "ge" else term == 0 if kind == "eq" else term != 0)

    def _flat(self, size: Dim) -> Dim:
        """Quotients replaced by names."""

        def named(atom: Atom) -> Dim:
            if isinstance(atom, FloorQuotient):
                self._flat(atom.numerator)
                self._flat(atom.denominator)
                atom = self._quotients.setdefault(atom, f"?q{len(self._quotients)}")
            return sym(atom)

        return mapped(size, named)

    def _term(self, size: Dim) -> z3.ArithRef:
        parts: list[z3.ArithRef] = []
        for monomial, coefficient in size.terms if isinstance(size, SizePolynomial) else (((), size),):
            if len(monomial) > 1:
                self.has_products = True
            if len(monomial) > 1 and self.nonlinear:
                term = z3.Product(*(self._name(a) for a in monomial))
            else:
                term = self._name(monomial if len(monomial) > 1 else monomial[0]) if monomial else None
            parts.append(z3.IntVal(coefficient, self.context) if term is None else coefficient * term)
        return z3.Sum(*parts) if len(parts) > 1 else parts[0]

    def _name(self, atom: object) -> z3.ArithRef:
        if atom not in self.names:
            self.names[atom] = z3.Int(f"x{len(self.names)}", self.context)
        return self.names[atom]

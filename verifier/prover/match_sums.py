"""Whether a value in normal form is zero at all sizes: sums are matched by bijections of their bound variables.

Two monomials ``Σ_u G₁ f`` and ``Σ_v G₂ g`` with ``f = g∘σ`` for an affine bijection ``σ: u ↦ v`` of the integers are
combined on ``G₁ ∧ G₂∘σ``; the residues on ``G₁ ∧ ¬G₂∘σ`` and ``G₂∘σ ∧ ¬G₁`` stay. Range splits, shifts and the zero
extension of kernels are found by this alone. What is left goes to the pointwise lemma
(:mod:`superopt.verifier.prover.order_lemmas`).

Sums over a range of known size are written out, element by element.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from superopt.ir.size_polynomial import Dim, substitute
from superopt.ops.operator_semantics import IndexCondition
from superopt.verifier.prover.arith import negated, normal_condition
from superopt.verifier.prover.bijections import Bijection, invertible, pairings, solved
from superopt.verifier.prover.function_normalisation import NormalFormAlgebra
from superopt.verifier.prover.monomial_simplification import digit_size, simplify_monomial
from superopt.verifier.prover.normal_form_arithmetic import (
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
    mul,
    rename_apart,
    scale,
    substitute_factors,
)
from superopt.verifier.prover.order_lemmas import pointwise_zero

__all__ = ["SumMatcher", "ProofStep", "constant_range", "written_out"]

Conditions = tuple[IndexCondition, ...]


@dataclass(frozen=True)
class ProofStep:
    """``before = after`` as values (times ``factor^power`` for "multiply"), under the facts and what the proof assumes.

    Attributes:
        kind: "simplify", "match", "drop" (guards that contradict each other), "multiply" or "lemma".
        bijection: of a match, the second monomial's bound variables in terms of the first's.
        overlap, only_a, only_b: guards of the pieces of a match; ``after`` has one monomial for each, in this order,
            but for an overlap with the coefficient 0.
    """

    kind: str
    before: Value
    after: Value
    bijection: Bijection = field(default_factory=dict)
    overlap: frozenset[IndexCondition] = frozenset()
    only_a: tuple[frozenset[IndexCondition], ...] = ()
    only_b: tuple[frozenset[IndexCondition], ...] = ()
    factor: Value = ()
    power: int = 0


@dataclass
class SumMatcher:
    """Proofs that values are zero; ``steps`` records what was combined with what. Sums over at most ``unroll`` places,
    a known number, are written out."""

    algebra: NormalFormAlgebra
    unroll: int = 0
    steps: list[ProofStep] = field(default_factory=list)
    depth: int = 0

    def zero(self, value: Value, given: Conditions = ()) -> bool:
        """Whether the value is 0 wherever ``given`` and the facts hold. ``False`` means "not shown"."""
        if not value:
            return True
        if self.depth > 6:
            return False
        self.depth += 1
        try:
            tidy = self.algebra.tidy(written_out(value, self.unroll) if self.unroll else value)
            self._record(ProofStep("simplify", value, tidy))
            rest = self._cancelled(tidy, given)
            if not rest:
                return True
            cleared = self._cleared(rest)
            if cleared is not None:
                return self._continued(cleared, given)
            shown = pointwise_zero(self.algebra, rest, given)
            if shown:
                self._record(ProofStep("lemma", rest, ()))
            return shown
        finally:
            self.depth -= 1

    def _continued(self, value: Value, given_conditions: Conditions) -> bool:
        self.depth -= 1  # the multiplied value continues this proof, it is not a part of another
        try:
            return self.zero(value, given_conditions)
        finally:
            self.depth += 1

    def _record(self, step: ProofStep) -> None:
        if self.depth == 1 and step.before != step.after:
            self.steps.append(step)

    def _cancelled(self, value: Value, given_conditions: Conditions) -> Value:
        """What is left after matching."""
        facts = self.algebra.facts
        pending = sorted(value, key=lambda m: (-len(m.factors), m.key))
        stuck: list[Monomial] = []
        for _ in range(400):
            if not pending:
                break
            facts.tick()
            current = pending.pop(0)
            if facts.contradictory((*given_conditions, *current.guards), 1):
                self._record(ProofStep("drop", (current,), ()))
                continue
            partners = sorted(
                (p for p in (*pending, *stuck) if _may_be_equal(current, p)),
                key=lambda p: (current.coefficient + p.coefficient != 0, abs(len(p.guards) - len(current.guards))),
            )
            for partner in partners:
                new_value = self._combined(current, partner, given_conditions)
                if new_value is not None:
                    pending = [p for p in pending if p is not partner]
                    stuck = [p for p in stuck if p is not partner]
                    pending = sorted(add(tuple(pending), new_value), key=lambda m: (-len(m.factors), m.key))
                    break
            else:
                if current.guards and facts.contradictory((*given_conditions, *current.guards), 3):
                    self._record(ProofStep("drop", (current,), ()))
                else:
                    stuck.append(current)
        return add(tuple(stuck), tuple(pending))

    def _combined(self, a: Monomial, b: Monomial, given_conditions: Conditions) -> Value | None:
        """``a + b`` as residues and a combined overlap, if some bijection matches their factors on an overlap."""
        b = rename_apart(b)
        for bijection in self._bijections(a, b):
            moved = _moved(b, bijection, a.bound)
            if moved is None:
                continue
            facts = self.algebra.facts
            only_b = [
                g
                for g in sorted(moved.guards - a.guards, key=str)
                if not facts.implied(g, (*given_conditions, *a.guards))
            ]
            only_a = [
                g
                for g in sorted(a.guards - moved.guards, key=str)
                if not facts.implied(g, (*given_conditions, *moved.guards))
            ]
            overlap = (*given_conditions, *a.guards, *only_b)
            if facts.contradictory(overlap, 1) or not self._factors_equal(a, moved, overlap):
                continue
            both = a.of(guards=a.guards | set(only_b), coefficient=a.coefficient + b.coefficient)
            left, right = _residues(a, only_b), _residues(moved, only_a)
            parts = [p for p in (both, *left, *right) if p.coefficient]
            self._record(
                ProofStep(
                    "match", (a, b), tuple(parts), bijection, both.guards,
                    tuple(p.guards for p in left), tuple(p.guards for p in right),
                )
            )  # fmt: skip
            empty = [p for p in (*left, *right) if facts.contradictory((*given_conditions, *p.guards), 2)]
            for p in empty:
                self._record(ProofStep("drop", (p,), ()))
            kept_value = tuple(p for p in parts if not any(p is e for e in empty))
            value = add(*(simplify_monomial(p, facts) for p in kept_value))
            self._record(ProofStep("simplify", kept_value, value))
            return value
        return None

    # Bijections

    def _bijections(self, a: Monomial, b: Monomial) -> Iterator[Bijection]:
        """Affine bijections, as ``b``'s bound variables in terms of ``a``'s."""
        if not b.bound:
            yield {}
            return
        seen: set[str] = set()
        for equations in pairings(a, b):
            for bijection in solved(equations, a.bound, b.bound, self._positive):
                shown = str(sorted((k, str(v)) for k, v in bijection.items()))
                if shown not in seen and invertible(bijection, a.bound):
                    seen.add(shown)
                    yield bijection

    def _positive(self, size: Dim) -> bool:
        return self.algebra.facts.positive(size)

    # Equality of factors

    def _factors_equal(self, a: Monomial, b: Monomial, given_conditions: Conditions) -> bool:
        left = [(f, p) for f, p in a.factors]
        right = {(f.show({}), p): (f, p) for f, p in b.factors}
        unmatched: list[tuple[Factor, Fraction]] = []
        for f, p in left:
            if right.pop((f.show({}), p), None) is None:
                unmatched.append((f, p))
        others = list(right.values())
        for f, p in unmatched:
            for other in others:
                if other[1] == p and other[0].head == f.head and self._factor_equal(f, other[0], given_conditions):
                    others.remove(other)
                    break
            else:
                return False
        return not others

    def _factor_equal(self, a: Factor, b: Factor, given_conditions: Conditions) -> bool:
        facts = self.algebra.facts
        match a, b:
            case TensorElement(_, index), TensorElement(_, other):
                return all(facts.implied(_equal(i, j), given_conditions) for i, j in zip(index, other, strict=True))
            case SizeFactor(size), SizeFactor(other_size):
                return facts.implied(_equal(size, other_size), given_conditions)
            case FunctionApplication(_, args), FunctionApplication(_, others):
                return all(self.zero(add(x, scale(y, -1)), given_conditions) for x, y in zip(args, others, strict=True))
            case SumPowerBase(value), SumPowerBase(other_value):
                return self.zero(add(value, scale(other_value, -1)), given_conditions)
            case BranchReduction(_, branches), BranchReduction(_, other_branches):
                return self._branches_equal(list(branches), list(other_branches), given_conditions)
        return False

    def _branches_equal(
        self, left: list[GuardedBranch], right: list[GuardedBranch], given_conditions: Conditions
    ) -> bool:
        """Each branch is a re-indexing of one of the other side: then the families have the same values."""
        if len(left) != len(right):
            return False
        for branch in left:
            for other in right:
                if self._branch_equal(branch, other, given_conditions):
                    right.remove(other)
                    break
            else:
                return False
        return True

    def _branch_equal(self, left: GuardedBranch, right: GuardedBranch, given_conditions: Conditions) -> bool:
        if len(left.bound) != len(right.bound):
            return False
        a, b = _as_monomial(left), rename_apart(_as_monomial(right))
        for bijection in self._bijections(a, b):
            moved = _moved(b, bijection, a.bound)
            if moved is None:
                continue
            facts = self.algebra.facts
            same = all(facts.implied(g, (*given_conditions, *a.guards)) for g in moved.guards - a.guards)
            same = same and all(facts.implied(g, (*given_conditions, *moved.guards)) for g in a.guards - moved.guards)
            if same and self._factors_equal(a, moved, (*given_conditions, *a.guards)):
                return True
        return False

    # Denominators

    def _cleared(self, value: Value) -> Value | None:
        """The value times a sum that it divides by: zero exactly where the value is, since the sum is not 0."""
        for m in value:
            for f, p in m.factors:
                if not isinstance(f, SumPowerBase) or p >= 0 or p.denominator != 1 or f.free & set(m.bound):
                    continue
                shown = f.show({})
                if any(shown == g.show({}) and g.free & set(o.bound) for o in value for g, _ in o.factors):
                    continue
                values: list[Value] = []
                for o in value:
                    own = next((q for g, q in o.factors if g.show({}) == shown), Fraction(0))
                    times = -p + min(own, Fraction(0)) if own > p else Fraction(0)
                    kept = tuple((g, q) for g, q in o.factors if g.show({}) != shown)
                    power = own - p - times
                    if power:
                        kept = (*kept, (f, power))
                    product: Value = (o.of(factors=kept),)
                    for _ in range(int(times)):
                        product = mul(product, tuple(rename_apart(x) for x in f.value))
                    values.append(product)
                cleared = self.algebra.tidy(add(*values))
                self._record(ProofStep("multiply", value, cleared, factor=f.value, power=int(-p)))
                return cleared
        return None


def _equal(a: Dim, b: Dim) -> IndexCondition:
    return normal_condition(IndexCondition("eq", a - b))


def _residues(m: Monomial, conditions: Sequence[IndexCondition]) -> list[Monomial]:
    """``m`` where not all conditions hold, in disjoint pieces."""
    guards = (m.guards | set(conditions[:i]) | {negated(c)} for i, c in enumerate(conditions))
    return [m.of(guards=frozenset(g)) for g in guards]


def _may_be_equal(a: Monomial, b: Monomial) -> bool:
    """Whether two monomials could have equal factors."""
    if a is b or len(a.bound) != len(b.bound) or len(a.factors) != len(b.factors):
        return False
    return sorted((f.head, p) for f, p in a.factors) == sorted((f.head, p) for f, p in b.factors)


def _as_monomial(branch: GuardedBranch) -> Monomial:
    factor = FunctionApplication("branch", (branch.value,))
    return Monomial(Fraction(1), branch.bound, branch.guards, ((factor, Fraction(1)),))


def _moved(b: Monomial, bijection: Bijection, bound: tuple[str, ...]) -> Monomial | None:
    """``b`` with its variables expressed in ``bound``; ``None`` where a size factor stops being one factor."""
    guards = frozenset(normal_condition(IndexCondition(g.kind, substitute(g.size, bijection))) for g in b.guards)
    if any(g.known is False for g in guards):
        return None
    guards = frozenset(g for g in guards if g.known is None)
    monomials = list(substitute_factors(b.of(guards=guards), bijection))
    return monomials[0].of(bound=bound) if len(monomials) == 1 and monomials[0].coefficient == b.coefficient else None


def written_out(value: Value, most: int) -> Value:
    """Sums over a bound variable ``0 ≤ v < n`` of a known size ``n ≤ most`` written out, place by place."""
    pending, done = list(value), []
    while pending:
        m = pending.pop()
        name = next((n for n in m.bound if 1 < constant_range(m, n) <= most), None)
        if name is None:
            done.append(m)
            continue
        bound = tuple(n for n in m.bound if n != name)
        for position in range(constant_range(m, name)):
            guards = {normal_condition(IndexCondition(g.kind, substitute(g.size, {name: position}))) for g in m.guards}
            if all(g.known is not False for g in guards):
                left = m.of(bound=bound, guards=frozenset(g for g in guards if g.known is None))
                pending += substitute_factors(left, {name: position})
    return add(*((m,) for m in done))


def constant_range(m: Monomial, name: str) -> int:
    """``n`` where ``0 ≤ name < n`` is a guard of a known ``n``; else 0."""
    size = digit_size(m, name)
    return size if isinstance(size, int) else 0

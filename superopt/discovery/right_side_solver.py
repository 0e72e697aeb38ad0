"""An equal expression whose weights are solved for, not typed and not enumerated.

The left side is any expression over data and weights. For each skeleton over its data (:mod:`.skeletons`), cheapest
first, the weights in the skeleton's holes are found by comparing coefficients at concrete places
(:mod:`.weight_equations`), and expressions over the left side's weights that have these values are synthesised
(:mod:`.weight_synthesis`). What comes out is a candidate like any other: tested exactly at other sizes, generalised,
and proved for all sizes by :class:`.candidate_proofs.CandidateProver`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from superopt.discovery.candidates import operator_count, restricted, tidied, work
from superopt.discovery.config import OperatorVocabulary
from superopt.discovery.expected_rule_gains import expected
from superopt.discovery.impulse_response import response
from superopt.discovery.operator_skeletons import Skeleton
from superopt.discovery.result_cache import UNBOUNDED, ResourceBounds
from superopt.discovery.skeletons import OPERATORS, skeletons
from superopt.discovery.symbolic_generalisation import SynthesisProblem
from superopt.discovery.weight_equations import (
    MOST_UNKNOWN,
    SampledProblemInstance,
    TermEvaluator,
    TooManyUnknowns,
    WeightConstraints,
    WeightsNotSolved,
    required_weights,
)
from superopt.discovery.weight_synthesis import WeightTermTable
from superopt.ir.size_polynomial import Dim, SizePolynomial
from superopt.ir.terms import OperatorTerm, Term, VariableTerm, postorder
from superopt.ir.types import TensorType
from superopt.ops import REGISTRY
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.rules.canonical import map_terms
from superopt.rules.rule import Rule, RulePrecondition, TensorVariableType, TypeScheme
from superopt.rules.scanner import RuleError
from superopt.rules.typing import types_of
from superopt.verifier.exact.algebra import InverseOfZero, NeedsOrder, PrimeField
from superopt.verifier.exact.ordered_field import OrderedPrimeField
from superopt.verifier.exact.sampling import SizeSample, draw

__all__ = ["ASSIGNMENTS", "RightSideSolver", "assignments_of", "theme_of"]

ASSIGNMENTS = 3  # concrete assignments of sizes and attributes
_SPARE = 2  # more, in place of those at which the left side reads less than elsewhere
_DRAWS = 60
_FITTING_DRAWS = 600  # of places at which a skeleton's weights have to be few
_LARGE = 300  # elements of one tensor at a place
_MOST_ASKED = 80  # skeletons of one problem, the cheapest, whose weights are solved for
_LEVELS = 3  # of synthesis
_UNDECIDED = (WeightsNotSolved, InverseOfZero, NeedsOrder, IllTypedOperator, ZeroDivisionError, KeyError)
Key = tuple[Term, frozenset[tuple[str, TensorType]]]
Cost = Callable[[Rule], tuple[float, float] | None]


@dataclass
class RightSideSolver:
    """Looks for cheaper equals of a problem.

    Attributes:
        problem: the left side.
        cost: microseconds of a rule's two sides; a skeleton that is not cheaper is not solved.
        operators: what skeletons are made of.
        most: a skeleton is solved if it costs less than this share of the left side.
        seed: of sizes and elements.
        bounds: of time and memory.
        insoluble: skeletons that no weights make equal, with the sizes at which there are none.
        unnamed: skeletons whose weights exist, but are no expression that was built.
        places: where coefficients are compared.
        known: the left side there.
        last: the last solution.
        tables: values over the weights, by the shapes that they were made for.
        first: whether there are weights at the first place: 0 none, 1 some or too many to tell, ``None`` not decided.
        nameless: values of weights, at all places, that are no expression that was built.
        ordered: whether the left side compares numbers; what is affine around that is a smaller problem.
        alternatives: whether ways are looked for that cost more than they need to.
        simplifies: whether only right sides after which less runs are looked for.
        oversized: whether the last skeleton's weights had too many elements at a place.
        fitting: whether the places are chosen for one skeleton, whose weights have few elements there.
    """

    problem: SynthesisProblem
    cost: Cost | None = None
    operators: Sequence[str] = OPERATORS
    most: float = 1.0
    seed: int = 0
    bounds: ResourceBounds = UNBOUNDED
    insoluble: list[tuple[Skeleton, Mapping[str, int]]] = field(default_factory=list)
    unnamed: list[Skeleton] = field(default_factory=list)
    assignments: list[SampledProblemInstance] = field(default_factory=list)
    evaluated: list[TermEvaluator] = field(default_factory=list)
    last: Rule | None = None
    tables: dict[tuple[tuple[Dim, ...], ...], WeightTermTable] = field(default_factory=dict)
    first: dict[Key, int | None] = field(default_factory=dict)
    nameless: set[tuple[TensorType, bytes]] = field(default_factory=set)
    ordered: bool = False
    alternatives: bool = False
    simplifies: bool = False
    oversized: bool = False
    fitting: bool = False

    def solutions(self) -> Iterator[Rule]:
        """Candidates, cheapest right side first.

        Raises:
            IllTypedOperator: the problem is not well-formed.
            ResourceBoundsExceeded: time or memory is used up.
        """
        try:
            self.assignments = assignments_of(self.problem, ASSIGNMENTS + _SPARE, self.seed)
        except (RuleError, ZeroDivisionError):
            return
        if len(self.assignments) < ASSIGNMENTS or not self._computable():
            return
        self._choose_places()
        cheaper = self._cheaper(self.evaluated[0].needed())
        wider = {key: skeleton for skeleton in cheaper for key in _without_one(skeleton)}
        for skeleton in cheaper[:_MOST_ASKED]:
            self.bounds.check()
            more = wider.get(_key(skeleton.term, skeleton.holes))
            if more is not None and self._none(more):
                self._none(skeleton, known=True)
            for holes in (*skeleton.narrower, skeleton.holes) if self._soluble(skeleton) else ():
                rule = self._solved(Skeleton(skeleton.term, holes))
                if rule is None:
                    continue
                if rule.lhs != rule.rhs and self._pays(Skeleton(skeleton.term, holes)):
                    self.last = rule
                    yield rule
                break

    def _choose_places(self) -> None:
        """Keep as many places as are compared, first those at which the left side depends on all that it ever does.

        Padding that is as large as an image leaves nothing of it, and nothing to read off.
        """
        read = [k.needed() for k in self.evaluated]
        every = set().union(*read)
        order = sorted(range(len(read)), key=lambda n: read[n] != every)[:ASSIGNMENTS]
        self.assignments, self.evaluated = [self.assignments[n] for n in order], [self.evaluated[n] for n in order]

    def _computable(self) -> bool:
        """Whether the left side can be evaluated at the places, in a field or in one whose elements have an order."""
        for self.ordered in (False, True):
            if self.ordered:
                self.assignments = [_with_order(self.problem, p, self.seed + n) for n, p in enumerate(self.assignments)]
            rng = np.random.default_rng([self.seed, 7])
            self.evaluated = [TermEvaluator(self.problem.term, self.problem.kinds, p, rng) for p in self.assignments]
            try:
                self.evaluated[0].goal(0)
            except InverseOfZero:
                return True
            except NeedsOrder:
                continue
            return True
        return False

    def _cheaper(self, needed: Set[str] = frozenset()) -> list[Skeleton]:
        """Skeletons that read the ``needed`` data and cost less than the left side, cheapest first."""
        ranked: list[tuple[float, int, str, Skeleton]] = []
        data = frozenset(self.problem.kinds) - self.problem.weights
        most = work((self.problem.term,), data)
        for skeleton in skeletons(
            self.problem, self.operators, needed=needed, price=self._share, limit=self.most,
            affine=all(k.affine() for k in self.evaluated[:1]), rearranged_only=self.ordered,
            alternatives=self.alternatives,
        ):  # fmt: skip
            self.bounds.check()
            if self.simplifies and not work((skeleton.term,), data) < most:
                continue
            share = self._share(skeleton.least)
            if share is not None and share < self.most:
                ranked.append((share, len(skeleton.holes), str(skeleton.term), skeleton))
        return [s for *_, s in sorted(ranked, key=lambda row: row[:3])]

    def _share(self, skeleton: Skeleton) -> float | None:
        """What a skeleton costs, as a share of the left side; ``None`` where that is not known, or it is not wanted."""
        self.bounds.check()
        found = self._price(skeleton)
        return None if found is None or not found[0] else found[1] / found[0]

    def _pays(self, skeleton: Skeleton) -> bool:
        share = self._share(skeleton)
        return share is not None and share < self.most

    def _soluble(self, skeleton: Skeleton) -> bool:
        """Whether weights make the skeleton equal at the first place, where its holes are as large as they get."""
        if self._none(skeleton):
            self.insoluble.append((skeleton, self.assignments[0].point.sizes))
            return False
        return self.first[_key(skeleton.term, skeleton.holes)] == 1

    def _none(self, skeleton: Skeleton, *, known: bool = False) -> bool:
        """Whether there are no such weights at the first place; they are looked for once."""
        key = _key(skeleton.term, skeleton.holes)
        if known:
            self.first[key] = 0
        if key not in self.first:
            rng = np.random.default_rng([self.seed, 5])
            self.first[key] = None
            try:
                required = required_weights(self.evaluated[0], skeleton.term, skeleton.holes, rng)
                self.first[key] = 0 if required is None else 1
            except TooManyUnknowns:
                self.first[key] = 1  # there may be: other places will tell
            except _UNDECIDED:
                pass
        return self.first[key] == 0

    def _price(self, skeleton: Skeleton) -> tuple[float, float] | None:
        try:
            return (self.cost or self._expected)(self._rule(skeleton.term, skeleton.holes))
        except (IllTypedOperator, RuleError, ZeroDivisionError):
            return None

    def _expected(self, rule: Rule) -> tuple[float, float] | None:
        return expected(rule, frozenset(n for n in rule.tensors if n in self.problem.weights or n.startswith("?")))

    def _rule(self, term: Term, holes: Mapping[str, TensorType]) -> Rule:
        forall: dict[str, TypeScheme] = dict(self.problem.forall)
        forall |= {h: TensorVariableType("f", t.shape or ()) for h, t in holes.items()}
        return restricted(Rule("", forall, (), (self.problem.term,), (term,)))

    def _solved(self, skeleton: Skeleton) -> Rule | None:
        rng = np.random.default_rng([self.seed, 5])
        wanted: list[dict[str, WeightConstraints]] = []
        self.oversized = False
        for evaluated_term in self.evaluated:
            required = self._required_weights(skeleton, evaluated_term, rng)
            if required is None or any(not w.functionals.any() for w in required.values()):
                return self._solved_elsewhere(skeleton) if self.oversized and not self.fitting else None
            wanted.append(required)
        return self._named(skeleton, wanted)

    def _solved_elsewhere(self, skeleton: Skeleton) -> Rule | None:
        """The same at other places, where the skeleton's weights have fewer elements."""
        places = assignments_of(self.problem, ASSIGNMENTS + _SPARE, self.seed, skeleton.holes)
        if len(places) < ASSIGNMENTS:
            return None
        other = RightSideSolver(
            self.problem, self.cost, self.operators, self.most, self.seed, self.bounds, self.insoluble, self.unnamed,
            places, ordered=self.ordered, fitting=True,
        )  # fmt: skip
        if not other._computable():
            return None
        other._choose_places()
        return other._solved(skeleton)

    def _required_weights(
        self, skeleton: Skeleton, evaluated_term: TermEvaluator, rng: np.random.Generator
    ) -> dict[str, WeightConstraints] | None:
        """What the weights have to be at a place; ``None`` where there are none, which is remembered."""
        try:
            required = required_weights(evaluated_term, skeleton.term, skeleton.holes, rng)
        except TooManyUnknowns:
            self.oversized = True
            return None
        except _UNDECIDED:
            return None
        if required is None:
            self.insoluble.append((skeleton, evaluated_term.place.point.sizes))
        return required

    def _named(self, skeleton: Skeleton, wanted: Sequence[Mapping[str, WeightConstraints]]) -> Rule | None:
        """The skeleton with expressions over the left side's weights in its holes."""
        names: dict[str, Term] = {}
        values = {h: _whole([w[h] for w in wanted], k) for h, k in skeleton.holes.items()}
        if any(v in self.nameless for v in values.values()):
            self.unnamed.append(skeleton)
            return None
        shapes = tuple(t.shape or () for t in skeleton.holes.values())
        table = self.tables.setdefault(shapes, WeightTermTable(self.problem, self.assignments, shapes, self.bounds))
        for level in range(_LEVELS):
            for hole, kind in skeleton.holes.items():
                if hole not in names:
                    own = [w[hole] for w in wanted]
                    term = table.find(kind, own)
                    if term is None and level == _LEVELS - 1:
                        term = response(self.problem, skeleton, hole, own, self.assignments)
                    if term is not None:
                        names[hole] = term
            if len(names) == len(skeleton.holes) or level == _LEVELS - 1:
                break
            if len(table.level) == level + 2 and not table.grow():
                break
        if len(names) < len(skeleton.holes):
            self.nameless |= {v for h, v in values.items() if h not in names and v is not None}
            self.unnamed.append(skeleton)
            return None
        (right,) = map_terms((skeleton.term,), names, {})
        return tidied(replace(self._rule(right, {}), where=tuple(_paddings(right))))


def _paddings(term: Term) -> Iterator[RulePrecondition]:
    """That padding is none of a negative length, where it may be."""
    pads = [
        dict(t.attributes).get("pads", ()) for t in postorder(term) if isinstance(t, OperatorTerm) and t.op != "Pad"
    ]
    for size in dict.fromkeys(d for p in pads if isinstance(p, tuple) for d in p):
        if isinstance(size, SizePolynomial) and any(c < 0 for m, c in size.terms if m):
            yield RulePrecondition(size, ">=", 0)


def _key(term: Term, holes: Mapping[str, TensorType]) -> Key:
    return term, frozenset(holes.items())


def _without_one(skeleton: Skeleton) -> Iterator[Key]:
    """The skeletons that this one is at a weight of 0: without the weight that is added, inside or behind."""
    term = skeleton.term
    if (
        isinstance(term, OperatorTerm)
        and term.args
        and isinstance(last := term.args[-1], VariableTerm)
        and last.name in skeleton.holes
    ):
        holes = {h: k for h, k in skeleton.holes.items() if h != last.name}
        if term.op == "Add" and isinstance(inner := term.args[0], OperatorTerm):
            yield _key(inner, holes)
        elif len(term.args) == len(REGISTRY[term.op].inputs) and REGISTRY[term.op].inputs[-1].endswith("?"):
            yield _key(replace(term, args=term.args[:-1]), holes)


def _whole(wanted: Sequence[WeightConstraints], kind: TensorType) -> tuple[TensorType, bytes] | None:
    """A weight's values at all places; ``None`` where they are not determined."""
    values = [w.whole for w in wanted]
    return None if any(v is None for v in values) else (kind, b"".join(v.tobytes() for v in values if v is not None))


def assignments_of(
    problem: SynthesisProblem, count: int, seed: int, holes: Mapping[str, TensorType] | None = None
) -> list[SampledProblemInstance]:
    """Concrete assignments at which the expression is well-formed, as different and as small as were drawn.

    Args:
        problem: the expression.
        count: how many.
        seed: of the draws.
        holes: weights that have few enough elements to be solved for.

    Raises:
        RuleError: it is well-formed nowhere.
    """
    rule = problem.rule
    conditions = types_of(rule).lhs_obligations
    rng = np.random.default_rng([seed, 3])
    drawn: dict[tuple[tuple[str, int], ...], SizeSample] = {}
    for attempt in range(_FITTING_DRAWS if holes else _DRAWS):
        point = draw(rule, 0, rng, conditions, (2 if holes else 3) + attempt % 4)
        if point is not None and _small(problem, point) and _few(holes or {}, point):
            drawn.setdefault(tuple(point.sizes.items()), point)
    chosen: list[SampledProblemInstance] = []
    seen = {key: _alike(point) for key, point in drawn.items()}
    alike = {pair for pairs in seen.values() for pair in pairs}
    while drawn and len(chosen) < count:
        key = min(
            drawn,
            key=lambda k: (
                2 * len(alike & seen[k]) + len(seen[k]) + sum(v == 1 for _, v in k),
                sum(n for _, n in k),
                k,
            ),
        )
        point = drawn.pop(key)
        alike &= seen[key]
        algebra = PrimeField(seed + len(chosen))
        kinds = {n: t for n, t in problem.kinds.items() if n in problem.weights}
        assignment = SampledProblemInstance(point, {}, algebra)
        chosen.append(
            replace(assignment, weights={n: algebra.random(rng, assignment.shape(t)) for n, t in kinds.items()})
        )
    return chosen


def _with_order(problem: SynthesisProblem, assignment: SampledProblemInstance, seed: int) -> SampledProblemInstance:
    """The place with other elements, which have an order."""
    algebra, rng = OrderedPrimeField(), np.random.default_rng([seed, 9])
    weights = {n: algebra.random(rng, assignment.shape(k)) for n, k in problem.kinds.items() if n in problem.weights}
    return replace(assignment, weights=weights, algebra=algebra)


def _alike(point: SizeSample) -> set[tuple[str, str | int]]:
    """Names whose values are equal at a point, and all values: what one point does not tell apart, another should."""
    sizes = point.sizes
    pairs = {(a, b) for a in sizes for b in sizes if a < b and sizes[a] == sizes[b]}
    return {*pairs, *sizes.items()}


def _small(problem: SynthesisProblem, point: SizeSample) -> bool:
    assignment = SampledProblemInstance(point, {}, PrimeField())
    shapes = [assignment.shape(outputs[0]) for outputs in types_of(problem.rule).types.values()]
    return all(min(shape, default=1) > 0 and prod(shape) <= _LARGE for shape in shapes)


def _few(holes: Mapping[str, TensorType], point: SizeSample) -> bool:
    """Whether weights have few enough elements together at a point."""
    assignment = SampledProblemInstance(point, {}, PrimeField())
    return sum(prod(assignment.shape(kind)) for kind in holes.values()) <= MOST_UNKNOWN


def theme_of(problem: SynthesisProblem, name: str, *, batch: bool = True, signals: bool = False) -> OperatorVocabulary:
    """The problem's leaves and attributes as a vocabulary, for whoever generalises and proves a candidate."""
    rule = problem.rule
    return OperatorVocabulary(
        name, name, (), operator_count(problem.term), rule.tensors, problem.weights, rule.attributes, (), batch=batch,
        join=False, signals=signals,
    )  # fmt: skip

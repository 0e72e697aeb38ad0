"""Derivability: does a library derive a rule by saturation, and by which chain?

The two sides of the rule are put into an e-graph at concrete sizes that are as different as possible, the rules of
the library are applied everywhere, and the rule is derived when its sides meet. The bounds are counts (rounds and
nodes), never the clock, so that the answer is the same on every machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from superopt.egraph.egraph import ABSENT, EGraph, is_multi
from superopt.egraph.nary_rules import lift
from superopt.egraph.pattern_compiler import CompiledPattern, compile_side
from superopt.egraph.rule_compiler import compile_rewrites
from superopt.egraph.saturation import RewriteSet, SaturationLimits, saturate
from superopt.ir.graph import Graph
from superopt.ir.size_polynomial import value_at
from superopt.ir.terms import OperatorTerm, OutputTerm, Term, VariableTerm, postorder, variables
from superopt.ir.types import DType, TensorType
from superopt.ops import REGISTRY
from superopt.ops.operator_semantics import IllTypedOperator, IndexCondition
from superopt.program.graph_program import GraphProgram, ProgramStep
from superopt.rules.library import RuleLibrary, parse_file
from superopt.rules.rule import CLASSES, Rule
from superopt.rules.scanner import RuleError
from superopt.rules.typing import at_sizes, complete, instances, type_terms, types_of
from superopt.runtime.comprehension_evaluation import FLOAT64, Array, evaluate
from superopt.verifier.exact.sampling import SizeSample, draw, names_of
from superopt.verifier.exact.testing import ExactTrial, trial_at

__all__ = [
    "DerivabilityCoverage",
    "DerivabilityEGraph",
    "derive",
    "derived",
    "distinct_point",
    "rewrites_of",
    "all_rewrites_of",
    "parts_of",
    "reached",
]

_DEEPEST = 64
_RESHAPING = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Expand", "Gather"})
ARITHMETIC = "(arithmetic)"  # why two constants of equal value are one class
ROUNDS = 5
NODES = 2500
DETOURS = 2  # a rule may be left for another form of what it makes, and that for one of it: `q · 1/v` is `q ÷ v`
_DRAWS = 96  # of sizes and attributes, of which the most different are taken
_PATIENT = 600  # draws, where none did before: where windows have to fit, few do
SHORTCUT = "shortcut"  # origin of a rule that pays, and that others derive in more than QUICK_ROUNDS rounds only
QUICK_ROUNDS = 2


@dataclass(frozen=True)
class DerivabilityCoverage:
    """Which rules of a file a library derives.

    Attributes:
        chains: rule id → how often each rule of the library is used in the derivation; empty where none is needed.
        missing: ids of rules that were not derived, with the reason.
    """

    chains: Mapping[str, Mapping[str, int]]
    missing: Mapping[str, str]

    @property
    def share(self) -> float:
        """Derived ÷ all."""
        count = len(self.chains) + len(self.missing)
        return len(self.chains) / count if count else 1.0


@lru_cache(maxsize=4096)
def _rewrites(rule: Rule, parts: tuple[int, ...]) -> RewriteSet:
    if len(rule.lhs) == 2 and rule.forward:
        return RewriteSet(tuple(_several(rule, parts)))
    return _prepared((rule,), parts)


def _prepared(rules: tuple[Rule, ...], parts: tuple[int, ...]) -> RewriteSet:
    """What a search prepares of rules for a program of Concats with these arities alone."""
    steps = tuple(ProgramStep("Concat", ("",) * n, (), ("",), None, "") for n in parts)
    return compile_rewrites(rules, GraphProgram(Graph("", (), (), (), (), {}), steps, {}, frozenset(), {})).every


def rewrites_of(rules: Iterable[Rule], parts: tuple[int, ...] = ()) -> RewriteSet:
    """What saturation may do with these rules; ``parts``: arities above 2 that Concat and Split have.

    Search merges whole groups of siblings in an order of its own. Here a rule with several outputs is a pattern with
    several roots instead, for two of them and for as many as ``parts`` says.
    """
    each = [_rewrites(r, parts) for r in rules]
    return RewriteSet(tuple(p for m in each for p in m.patterns))


def all_rewrites_of(rules: Sequence[Rule], parts: tuple[int, ...] = ()) -> RewriteSet:
    """:func:`moves_of` of a whole library, in another order: what a search prepares at once is kept on disk."""
    single = tuple(r for r in rules if len(r.lhs) == 1)
    rest = rewrites_of([r for r in rules if len(r.lhs) > 1], parts)
    return RewriteSet((*_prepared(single, parts).patterns, *rest.patterns))


def _several(rule: Rule, parts: tuple[int, ...]) -> Iterator[CompiledPattern]:
    for instance in instances(rule):
        for count in (2, *parts):
            wider = instance if count == 2 else lift(instance, count)
            if wider is not None and not any(isinstance(t, VariableTerm) for t in wider.lhs):
                yield compile_side(wider, wider.lhs, wider.rhs)


def fitting(moves: RewriteSet, ranks: frozenset[int]) -> RewriteSet:
    """The moves whose tensors have ranks that occur, and those that change ranks.

    Rules for any rank are written out as several patterns, most of which have nothing to match.
    """
    return RewriteSet(tuple(p for p in moves.patterns if _ranks_of(p.rule) <= ranks or p.rule.operators & _RESHAPING))


@lru_cache(maxsize=65536)
def _ranks_of(rule: Rule) -> frozenset[int]:
    return frozenset(len(s.shape) for s in rule.tensors.values())


class DerivabilityEGraph:
    """An e-graph of terms over the leaves of one rule or theme, at one point."""

    def __init__(self, rule: Rule, point: SizeSample, weights: AbstractSet[str] = frozenset()) -> None:
        self.graph = EGraph(REGISTRY)
        self.point = point
        self.values: dict[int, Array] = {}  # of classes without leaves
        self.leaves: dict[str, int] = {}
        for number, (name, scheme) in enumerate(rule.tensors.items()):
            shape = tuple(value_at(d, point.sizes) for d in scheme.shape)
            kind = TensorType(DType(CLASSES[scheme.dtype]), shape)
            self.leaves[name] = self.graph.leaf(number, kind, name in weights)
            if scheme.below is not None:
                self.graph.ranges[number] = (0, value_at(scheme.below, point.sizes) - 1)

    def add(self, rule: Rule) -> list[tuple[int, int]]:
        """Put both sides of a rule over the universe's leaves in; the classes of each pair of terms.

        Raises:
            IllTypedOperator: a side is not well-formed at this point.
        """
        left, right = at_sizes(rule, self.point.sizes, self.point.reals)
        made: dict[Term, int] = {}
        for term in postorder(*left, *right):
            made[term] = self._added(term, made)
        return [(self._value(made[a]), self._value(made[b])) for a, b in zip(left, right, strict=True)]

    def _added(self, term: Term, made: Mapping[Term, int]) -> int:
        if isinstance(term, VariableTerm):
            return self.leaves[term.name]
        if isinstance(term, OutputTerm):
            inner = made[term.term]
            return self.graph.project(inner, term.index) if is_multi(REGISTRY[term.term.op]) else inner
        args = [ABSENT if a is None else self._value(made[a]) for a in term.args]
        while args and args[-1] == ABSENT:
            args.pop()
        return self.graph.add(term.op, tuple(sorted(complete(term).items())), tuple(args))

    def _value(self, identity: int) -> int:
        return self.graph.project(identity, 0) if isinstance(self.graph.type(identity), tuple) else identity

    def same(self, pairs: Sequence[tuple[int, int]]) -> bool:
        """Whether the two ids of every pair are one class by now."""
        return all(self.graph.find(a) == self.graph.find(b) for a, b in pairs)

    def grow(self, moves: RewriteSet, *, nodes: int, rounds: int, matches: int = 300, detours: int = 0) -> None:
        """Saturate by the moves, within bounds, and unite what is equal by arithmetic."""
        self.fold()
        self.saturate(moves, nodes=nodes, rounds=rounds, matches=matches, detours=detours)
        self.fold()

    def saturate(self, moves: RewriteSet, *, nodes: int, rounds: int, matches: int = 300, detours: int = 0) -> None:
        """Apply the moves that can match, within bounds."""
        ranks = frozenset(
            len(t.shape or ())
            for c in self.graph.classes.values()
            for t in (c.type if isinstance(c.type, tuple) else (c.type,))
        )
        limits = SaturationLimits(nodes=nodes, rounds=rounds, matches=matches, detours=detours)
        saturate(self.graph, fitting(moves, ranks), limits)

    def fold(self) -> None:
        """Unite constants of equal value: that ``Relu(1) = 1`` is arithmetic, and takes no rule.

        A number that was computed of numbers also gets the form of a number, which is what a rule's attribute matches.
        """
        graph = self.graph
        known: dict[tuple[object, bytes], int] = {}
        for identity in list(graph.classes):
            group = graph.classes.get(identity)
            if group is None or not group.constant or isinstance(group.type, tuple):
                continue
            value = self._constant(identity)
            if value is None:
                continue
            first = known.setdefault((group.type, value.tobytes()), identity)
            if graph.find(first) != identity:
                graph.union(first, identity, ARITHMETIC)
            if value.shape == () and group.type.dtype.is_float and np.isfinite(value):
                graph.union(self._literal(group.type, float(value)), identity, ARITHMETIC)
        graph.rebuild()

    def _literal(self, kind: TensorType, value: float) -> int:
        """The class of a number that is written as one."""
        attributes = (("dtype", str(kind.dtype)), ("shape", ()), ("value", value))
        return self.graph.add("ConstantOfShape", attributes, ())

    def _evaluable(self, node: tuple[int, ...]) -> bool:
        return self.graph.heads[node[0]].operator is not None and all(self.graph.constant(a) for a in node[1:])

    def _constant(self, identity: int) -> Array | None:
        """The elements of a class that has a form without leaves, in floating point; iterative."""
        wanted = [identity]
        while wanted:
            current = wanted[-1]
            if current in self.values:
                wanted.pop()
                continue
            node = next((n for n in self.graph.classes[current].nodes if self._evaluable(n)), None)
            if node is None or len(wanted) > _DEEPEST:
                return None
            below = [self.graph.find(a) for a in node[1:]]
            missing = [b for b in below if b not in self.values]
            if missing:
                if any(not self.graph.classes[b].constant or b in wanted for b in missing):
                    return None
                wanted.extend(missing)
                continue
            head = self.graph.heads[node[0]]
            assert head.operator is not None
            meaning, _ = head.operator.apply(self.graph.argument_types(node), dict(head.attributes))
            array = evaluate(meaning.outputs[0], [self.values[b] for b in below], FLOAT64, {})
            self.values[current] = np.array(array, dtype=np.float64)
        return self.values[identity]


def derived(
    rule: Rule, moves: RewriteSet, *, rounds: int = ROUNDS, nodes: int = NODES, detours: int = 0
) -> Mapping[str, int] | None:
    """Which rules derive a rule and how often each is used; ``None`` if saturation does not bring its sides together.

    A rule with ``...`` is looked at with one leading axis and with none. Discovery keeps a rule for which no sizes are
    drawn. A library that is minimised is for searches, which do not follow one move that makes more work by another;
    who asks what follows from it may, ``detours`` times.
    """
    used: dict[str, int] = {}
    try:
        plain = instances(rule, (1, 0)) if rule.lead else instances(rule)
    except RuleError:
        return None
    for instance in plain:
        point = distinct_point(instance)
        if point is None:
            return None
        universe = DerivabilityEGraph(instance, point)
        try:
            pairs = universe.add(instance)
        except (IllTypedOperator, ZeroDivisionError):
            return None
        for number, (left, _) in enumerate(pairs):
            universe.graph.input_nodes[left] = (1, 1 << number)  # siblings that do not depend on each other
        for _ in range(rounds):
            before = universe.graph.version
            if universe.same(pairs):
                break
            universe.grow(moves, nodes=nodes, rounds=1, detours=detours)
            if universe.graph.version == before:
                break
        if not universe.same(pairs):
            return None
        for why, count in universe.graph.reasons(list(pairs)).items():
            if why != ARITHMETIC:
                used[why] = max(used.get(why, 0), count)
    return used


def reached(rule: Rule, moves: RewriteSet, *, rounds: int, weights: frozenset[str] = frozenset()) -> bool:
    """Whether the right side is found from the left side alone, as a search would have to.

    ``MatMul(x, a)`` and ``Split(MatMul(x, Concat(a, c)))[0]`` are equal by rules about one of them at a time, but no
    such rule makes a search that sees ``MatMul(x, a)`` and ``MatMul(x, c)`` think of the other. Expressions over
    weights alone are not looked for: whatever equals them will do.

    Args:
        rule: whose sides are looked at.
        moves: of the rules that are known.
        rounds: of saturation.
        weights: names of the rule's tensors that are known before inference.
    """
    for instance in instances(rule, (1, 0)) if rule.lead else instances(rule):
        point = distinct_point(instance)
        if point is None:
            return False
        universe = DerivabilityEGraph(instance, point)
        try:
            left = [a for a, _ in universe.add(replace(instance, rhs=instance.lhs))]
            for number, identity in enumerate(left):
                universe.graph.input_nodes[identity] = (1, 1 << number)
            for term in postorder(*instance.rhs):
                if isinstance(term, OperatorTerm) and set(variables(term)) <= weights:
                    universe.add(replace(instance, lhs=(term,), rhs=(term,)))
            universe.grow(moves, nodes=NODES, rounds=rounds)
            right = [b for _, b in universe.add(instance)]
        except (IllTypedOperator, ZeroDivisionError):
            return False
        if not universe.same(list(zip(left, right, strict=True))):
            return False
    return True


@lru_cache(maxsize=65536)
def distinct_point(instance: Rule) -> SizeSample | None:
    """Sizes at which the rule's left side is well-formed, as different from each other and from 1 as were drawn.

    Attributes count too: where a slice begins at 0 and ends at the end, other rules derive it than of all slices. So do
    shapes of intermediate results: a slice that takes all of another one is none, and what follows for it need not
    follow wherever the rule holds.
    A rule that has no size to choose is looked at as it is, however large its tensors are: no element is computed.
    """
    fit = _fits_by_chance(instance)
    rng = np.random.default_rng(11)
    if all(scheme is not None and scheme.kind == "real" for _, scheme in names_of(instance)):
        return draw(instance, 0, rng, (), 1)
    best: tuple[int, SizeSample] | None = None
    fitted = 0
    for attempt in range(_PATIENT):
        if best is not None and (fitted if fit else attempt) >= _DRAWS:
            break
        point = draw(instance, 0, rng, fit, 6 + attempt % 5)
        if point is None and fit:
            continue
        if point is None:
            return None
        trial = trial_at(instance, point)
        if trial is None or trial.ill_typed:
            continue
        fitted += 1
        sizes = [point.sizes[n] for n in instance.sizes]
        whole = [point.sizes[n] for n in instance.attribute_atoms if n in point.sizes]
        score = 3 * len(set(sizes)) - 2 * sizes.count(1) + len(set(point.sizes.values())) - sum(v < 2 for v in whole)
        score += 3 * len(_shapes(trial))
        if fit:
            score += 3 * len(set(postorder(*itertools.chain(*at_sizes(instance, point.sizes, point.reals)))))
        if best is None or score > best[0]:
            best = (score, point)
    return None if best is None else best[1]


def _shapes(trial: ExactTrial) -> set[tuple[TensorType, ...]]:
    """The types of everything on both sides."""
    return set(type_terms((*trial.lhs, *trial.rhs), trial.variables)[0].values())


def _fits_by_chance(instance: Rule) -> tuple[IndexCondition, ...]:
    """What has to be equal for the left side to be well-formed, as where shapes have as many elements: of the few sizes
    that fit, most are equal by chance where they need not be."""
    try:
        return tuple(o for o in types_of(instance).lhs_obligations if o.kind == "eq")
    except (RuleError, IllTypedOperator):
        return ()


def derive(rules_file: Path | str, library: RuleLibrary | Iterable[Rule]) -> DerivabilityCoverage:
    """For each rule of a file: does the library derive it, and by which of its rules?

    Raises:
        RuleError: the file cannot be read or a rule does not parse.
    """
    rules = tuple(library.values() if isinstance(library, RuleLibrary) else library)
    chains: dict[str, Mapping[str, int]] = {}
    missing: dict[str, str] = {}
    for rule in parse_file(Path(rules_file)):
        if not rule.operators <= set(REGISTRY):
            missing[rule.id] = "has an operator that superopt does not know"
            continue
        parts = parts_of(rule)
        near = [r for r in rules if r.operators <= rule.operators]
        chain = derived(rule, rewrites_of(near, parts)) if near else None
        for detours in range(DETOURS + 1):  # over operators of its own first, which is quick
            if chain is None:
                chain = derived(rule, rewrites_of(rules, parts), detours=detours)
        if chain is None:
            missing[rule.id] = "saturation by the library does not bring the sides together"
        else:
            chains[rule.id] = chain
    return DerivabilityCoverage(chains, missing)


def parts_of(rule: Rule) -> tuple[int, ...]:
    """Numbers of parts above 2 of the Concats and Splits in a rule: what to lift merging rules to."""
    counts: set[int] = set()
    for term in postorder(*rule.lhs, *rule.rhs):
        if isinstance(term, OperatorTerm) and term.op == "Concat":
            counts.add(len(term.args))
        elif isinstance(term, OperatorTerm) and term.op == "Split":
            split = dict(term.attributes).get("split")
            counts.add(len(split) if isinstance(split, tuple) else 2)
    return tuple(sorted(c for c in counts if c > 2))

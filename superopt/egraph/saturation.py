"""Equality saturation (Tate et al., POPL 2009): apply every rewrite everywhere until a fixpoint or a limit.

A rule that matches too often is banned for some rounds, longer each time (egg's back-off scheduler), so one rule cannot
use up the e-node limit. A rule that asks for a union of different types is a wrong rule and is quarantined.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from operator import itemgetter
from typing import NamedTuple, Protocol, TypeVar

from superopt.egraph.egraph import ABSENT, EGraph, TypeClashError, is_multi
from superopt.egraph.nary_rules import SiblingMergeRewrite, independent, siblings
from superopt.egraph.pattern_compiler import CompiledPattern, PatternMatch, evaluate, match_of, turns
from superopt.egraph.pattern_index import EGraphDelta, PatternTrie
from superopt.ir.terms import Attributes, AttributeValue, OperatorTerm, OutputTerm, Term, VariableTerm, postorder
from superopt.ir.types import DType
from superopt.ops import REGISTRY
from superopt.ops.operator_semantics import IllTypedOperator

__all__ = [
    "SaturationLimits",
    "RewriteSet",
    "SaturationOutcome",
    "FlattenedTerms",
    "instantiate",
    "recipe_of",
    "saturate",
]


# -- Inserting terms -----------------------------------------------------------------------------------------------
#
# The terms of a rule, compiled to a list of applications that are added to the e-graph.


_REMEMBERED = 512  # bindings of a rule whose attributes are remembered


@dataclass(eq=False)
class FlattenedTerms:
    """Terms in order, operands first, by number.

    Attributes:
        variables: name, for each variable; they come first.
        rest: for each other term, its own number, the application (``None`` for a projection), numbers of the operands
            (:data:`ABSENT`: none), and the output that a projection selects.
        roots: numbers of the terms that are wanted.
        tuples: numbers of applications with several outputs, of which the first is meant where they stand as a value.
    """

    variables: tuple[str, ...]
    applications: tuple[tuple[OperatorTerm | None, tuple[int, ...], int], ...]
    roots: tuple[int, ...]
    tuples: frozenset[int]
    _known: dict[int, tuple[Mapping[str, AttributeValue], tuple[Attributes, ...]]] = field(default_factory=dict)

    def attributes(self, graph: EGraph, sizes: Mapping[str, AttributeValue]) -> tuple[Attributes, ...]:
        """The attributes of every application under a binding; patterns give equal bindings as one object.

        Raises:
            IllTypedOperator: an operator is not known, or an element type was never bound.
        """
        found = self._known.get(id(sizes))
        if found is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            made = tuple(() if app is None else _attributes(graph, app, sizes) for app, _, _ in self.applications)
            found = self._known[id(sizes)] = (sizes, made)  # holding the binding keeps its id from being reused
        return found[1]


@lru_cache(maxsize=1 << 14)
def recipe_of(targets: tuple[Term, ...]) -> FlattenedTerms:
    """The recipe of terms."""
    ordered = list(postorder(*targets))
    variables = [t for t in ordered if isinstance(t, VariableTerm)]
    number: dict[Term, int] = {t: i for i, t in enumerate(variables)}
    rest: list[tuple[OperatorTerm | None, tuple[int, ...], int]] = []
    for term in ordered:
        if isinstance(term, OutputTerm):
            rest.append((None, (number[term.term],), term.index))
        elif isinstance(term, OperatorTerm):
            args = [ABSENT if a is None else number[a] for a in term.args]
            while args and args[-1] == ABSENT:
                args.pop()
            rest.append((term, tuple(args), 0))
        else:
            continue
        number[term] = len(number)
    tuples = frozenset(
        n for t, n in number.items() if isinstance(t, OperatorTerm) and t.op in REGISTRY and is_multi(REGISTRY[t.op])
    )
    return FlattenedTerms(tuple(v.name for v in variables), tuple(rest), tuple(number[t] for t in targets), tuples)


def instantiate(graph: EGraph, recipe: FlattenedTerms, match: PatternMatch) -> list[int]:
    """Add a recipe's terms to the graph under a match and give their classes.

    Raises:
        IllTypedOperator: an application is not typed; applications below it may have been added.
    """
    classes = [graph.find(match.tensors[name]) for name in recipe.variables]
    attributes = recipe.attributes(graph, match.sizes)
    for (app, numbers, index), values in zip(recipe.applications, attributes, strict=True):
        if app is None:
            classes.append(graph.project(classes[numbers[0]], index))
            continue
        args = tuple([
            ABSENT if n == ABSENT else _single(graph, classes[n]) if n in recipe.tuples else classes[n] for n in numbers
        ])  # fmt: skip
        classes.append(graph.add(app.op, values, args))
    return [_single(graph, classes[n]) for n in recipe.roots]


def _single(graph: EGraph, identity: int) -> int:
    return graph.project(identity, 0) if isinstance(graph.type(identity), tuple) else identity


def _attributes(graph: EGraph, term: OperatorTerm, sizes: Mapping[str, AttributeValue]) -> Attributes:
    """The attributes of a rule's application under a binding; a generator gets the matched element type."""
    record = graph.operators.get(term.op)
    if record is None:
        raise IllTypedOperator(f"{term.op} is not an operator superopt knows")
    values = {name: evaluate(value, sizes) for name, value in term.attributes}
    if "dtype" in record.attributes and "dtype" not in values:
        if "dtype:f" not in sizes:
            raise IllTypedOperator("the element type of a constant is not known here")
        values["dtype"] = sizes["dtype:f"]
    for name, kind in record.attributes.items():
        if kind == "float" and isinstance(value := values.get(name), int):
            values[name] = float(value)
    return tuple(sorted(values.items()))


# -- Saturation ----------------------------------------------------------------------------------------------------


_GROWING = 4  # sides that add operators get this much less of the matches


@dataclass(frozen=True)
class RewriteSet:
    """What saturation may do: sides of rules, n-ary merges, and rules whose arity follows the graph's.

    Attributes:
        saving: sides that are only applied where fewer operators run after it: that depends on what is constant there.
    """

    patterns: tuple[CompiledPattern, ...] = ()
    groups: tuple[SiblingMergeRewrite, ...] = ()
    saving: tuple[CompiledPattern, ...] = ()

    @cached_property
    def _hash(self) -> int:
        return hash((self.patterns, self.groups, self.saving))

    def __hash__(self) -> int:
        return self._hash  # of thousands of patterns


class RewriteCosts(Protocol):
    """Microseconds of both sides of a rule at a match."""

    def of(
        self, graph: EGraph, pattern: CompiledPattern, slots: Sequence[int], values: tuple[AttributeValue, ...],
        sizes: Mapping[str, AttributeValue],
    ) -> tuple[float, float]:  # fmt: skip
        """Of the matched side and of the other one."""
        ...


@dataclass(frozen=True)
class SaturationLimits:
    """When to stop: e-nodes, rounds, and the clock (``time.monotonic`` value).

    Attributes:
        matches: per rule and round.
        detours: a move that makes more work at run time (more operators, or more arithmetic with as many) starts where
            at most so many such rewrites led. Without a limit what was made out of nothing (``x + y`` as
            ``max(x, y) + min(x, y)``) is taken apart again and again, and fills the e-graph before useful rewrites have
            their turn.
        steps: of matching (:meth:`superopt.egraph.pattern_index.Trie.walk`).
        prices: of both sides at a match, by which a rewrite is judged in place of how many operators it leaves:
            one that costs more by :attr:`dearer` is not applied, one that does not gain by as much is a detour.
        dearer: share of the matched side's price.
    """

    nodes: int = 4000
    rounds: int = 6
    deadline: float = float("inf")
    matches: int = 300
    detours: int = 0
    steps: int = sys.maxsize
    prices: RewriteCosts | None = None
    dearer: float = 0.01


@dataclass
class SaturationOutcome:
    """What happened. ``stopped``: "saturated", "nodes", "rounds", "steps" or "time"; ``quarantined``: rules and why."""

    stopped: str = "saturated"
    rounds: int = 0
    quarantined: dict[str, str] = field(default_factory=dict)


class RewriteMatch(NamedTuple):
    """A match of one round: the pattern, the terms that it adds, and how many rewrites in a row then added work."""

    pattern: CompiledPattern
    makes: FlattenedTerms
    match: PatternMatch
    detours: int


class _OutOfTimeError(Exception):
    """The clock ran out while looking for occurrences."""


@dataclass(eq=False)
class _Backoff:
    """A pattern in one saturation: what was found of it, and whether it is banned.

    Attributes:
        limit: occurrences in a round before it is banned.
        number: of the pattern: what is found is applied in the patterns' order.
        places, variables, values: what is in the slots of roots and variables, of variables, and in the registers.
        seen: places and values of the occurrences found so far, and of those that never can be one.
        behind: it has not seen all of the graph as it was in the last round.
        mode: the walk in which it takes part.
        found: in this round.
    """

    limit: int
    number: int
    places: Callable[[Sequence[int]], tuple[int, ...]]
    variables: Callable[[Sequence[int]], tuple[int, ...]]
    values: Callable[[Sequence[AttributeValue]], tuple[AttributeValue, ...]]
    recipe: FlattenedTerms
    saving: bool = False
    bans: int = 0
    until: int = 0
    behind: bool = True
    mode: int = 0
    found: int = 0
    seen: set[tuple[tuple[int, ...], tuple[AttributeValue, ...]]] = field(default_factory=set)


T = TypeVar("T")


def _items(places: Sequence[int]) -> Callable[[Sequence[T]], tuple[T, ...]]:
    """What gives the items at these places."""
    if len(places) > 1:
        return itemgetter(*places)
    return (lambda items: (items[places[0]],)) if places else lambda items: ()


_OFF, _SHARED, _ALONE = 0, 1, 2


@dataclass(frozen=True, eq=False)
class _Nets:
    """Moves as a search walks them.

    Attributes:
        one, several, first: the nets of the patterns with one root, of those with several, and of those for the first
            round.
        numbers: the place of each pattern.
        saving: patterns that are only applied where they save an operator.
    """

    one: PatternTrie[CompiledPattern]
    several: PatternTrie[CompiledPattern]
    first: PatternTrie[CompiledPattern]
    numbers: Mapping[CompiledPattern, int]
    saving: frozenset[CompiledPattern]


@lru_cache(maxsize=16)
def _nets(rewrites: RewriteSet) -> _Nets:
    """The nets of the first of all patterns that find and make the same under the same conditions."""
    patterns = tuple({p.identity: p for p in reversed((*rewrites.patterns, *rewrites.saving))}.values())[::-1]
    one, several, first = (
        PatternTrie([(p, p.steps, p.depth) for p in chosen], lambda p: p.loops) for chosen in (
            [p for p in patterns if len(p.roots) == 1],
            [p for p in patterns if len(p.roots) > 1 and not p.first_round],
            [p for p in patterns if len(p.roots) > 1 and p.first_round],
        )
    )  # fmt: skip
    saving = frozenset(rewrites.saving).difference(rewrites.patterns)
    return _Nets(one, several, first, {p: i for i, p in enumerate(patterns)}, saving)


class _Search:
    """Finds new occurrences round by round; which patterns are banned is its state."""

    def __init__(self, graph: EGraph, rewrites: RewriteSet, limits: SaturationLimits) -> None:
        self.graph, self.limits = graph, limits
        nets = _nets(rewrites)
        self.one, self.several, self.first = nets.one, nets.several, nets.first
        self.numbers, self.saving = nets.numbers, nets.saving
        self.states: dict[CompiledPattern, _Backoff] = {}  # of those found so far: most never are
        self.quarantined: Container[str] = ()
        self.found: list[tuple[int, int, RewriteMatch]] = []
        self.joined: dict[tuple[int, int], bool] = {}  # in this round
        self.mode = _SHARED
        self.number = 0
        self.asked = 0
        self.left = limits.steps

    def round(
        self, number: int, levels: Mapping[int, int] | None, news: EGraphDelta | None, quarantined: Container[str]
    ) -> tuple[list[RewriteMatch], bool]:
        """The new occurrences, what shrinks first, in case a limit is reached; and whether a pattern is banned.

        Args:
            number: of the round.
            levels: classes near what changed in the last round, by distance upwards; ``None`` for all.
            news: what changed in it.
            quarantined: rules that are out.

        Raises:
            _OutOfTimeError: the deadline has passed.
        """
        self.found, self.number, self.quarantined, banned = [], number, quarantined, False
        self.joined = {}
        alone: list[CompiledPattern] = []
        for pattern, state in self.states.items():
            state.found, state.mode = 0, _SHARED
            if state.until > number:
                banned = state.behind = True
                state.mode = _OFF
            elif self._is_out(pattern):
                state.mode = _OFF
            elif levels is not None and state.behind:
                state.mode = _ALONE
                alone.append(pattern)
            if state.mode != _OFF:
                state.behind = False
        self.mode = _SHARED
        self._walk(self.one, levels, None, news)
        places = self.graph.input_classes()  # several roots count only where all are the input's
        for net in (self.several, self.first) if number == 0 else (self.several,):
            self._walk(net, levels, places, news)
        self.mode = _ALONE
        for pattern in alone:
            self._walk(pattern.trie, None, places if len(pattern.roots) > 1 else None, None)
        banned |= any(s.until > number for s in self.states.values())
        self.found.sort(key=itemgetter(0, 1))
        return [occurrence for _, _, occurrence in self.found], banned

    def _walk(
        self,
        net: PatternTrie[CompiledPattern],
        levels: Mapping[int, int] | None,
        roots: Container[int] | None,
        news: EGraphDelta | None,
    ) -> None:
        if self.left >= 0:
            self.left = net.walk(self.graph, self._hit, levels, roots, self._independent, news, self.left)

    def _independent(self, one: int, other: int) -> bool:
        """Whether neither of two values of the input depends on the other."""
        known = self.joined.get((one, other))
        if known is None:
            known = self.joined[one, other] = independent(self.graph, (one, other))
        return known

    def _is_out(self, pattern: CompiledPattern) -> bool:
        return pattern.rule.id in self.quarantined or (pattern.first_round and self.number > 0)

    def _met(self, pattern: CompiledPattern) -> _Backoff:
        """The state of a pattern that is found for the first time."""
        most = self.limits.matches if pattern.growth <= 0 else self.limits.matches // _GROWING
        out = self._is_out(pattern)
        made = _Backoff(
            most, self.numbers[pattern], _items(pattern.places), _items(pattern.slots), _items(pattern.registers),
            recipe_of(pattern.target), pattern in self.saving, behind=out, mode=_OFF if out else _SHARED,
        )  # fmt: skip
        return self.states.setdefault(pattern, made)

    def _hit(self, pattern: CompiledPattern, slots: list[int], registers: list[AttributeValue]) -> None:
        state = self.states.get(pattern)
        if state is None:
            state = self._met(pattern)
        if state.mode != self.mode:
            return
        self.asked += 1
        if self.asked & 255 == 0 and time.monotonic() > self.limits.deadline:
            raise _OutOfTimeError
        values = state.values(registers)
        key = (state.places(slots), values)
        if key in state.seen:
            return
        classes = self.graph.classes
        before, after, apart = pattern.runtime(tuple([classes[c].constant for c in state.variables(slots)]))
        detour = max([classes[c].detours for c in slots[: pattern.width]])  # the longest that leads to what it reads
        prices = self.limits.prices
        worse = prices is None and (after > before or (after == before and pattern.heavier))
        if worse and (apart or detour > self.limits.detours):
            return  # it would take constants apart to make more work at run time, or is such a move itself
        if after >= before and state.saving:
            return  # not here; it may be once something else is known to be constant
        match = match_of(self.graph, pattern, slots, values)
        if prices is not None and match is not None:
            us, other_us = prices.of(self.graph, pattern, slots, values, match.sizes)
            margin = self.limits.dearer * us
            worse = other_us > us - margin
            if other_us > us + margin:
                state.seen.add(key)
                return
            if worse and (apart or detour > self.limits.detours):
                return
        if match is None:
            if not pattern.bounded:
                state.seen.add(key)  # the numbers say no, and always will
            return
        state.seen.add(key)
        found = RewriteMatch(pattern, state.recipe, match, detour + worse)
        self.found.append((pattern.growth, state.number, found))
        state.found += 1
        if state.found >= state.limit << state.bans:
            state.bans += 1
            state.until = self.number + 1 + state.bans
            state.behind, state.mode = True, _OFF


def saturate(graph: EGraph, rewrites: RewriteSet, limits: SaturationLimits) -> SaturationOutcome:
    """Apply the rewrites to the e-graph, in place."""
    outcome = SaturationOutcome()
    seen: set[tuple[object, ...]] = set()
    search = _Search(graph, rewrites, limits)
    graph.rebuild()
    levels: Mapping[int, int] | None = None
    news: EGraphDelta | None = None
    for number in range(limits.rounds):
        outcome.rounds = number + 1
        before = graph.version
        graph.begin_round()
        _merge_groups(graph, rewrites, limits, seen, outcome)
        if _out_of(graph, limits, outcome):
            return outcome
        try:
            found, banned = search.round(number, levels, news, outcome.quarantined)
        except _OutOfTimeError:
            outcome.stopped = "time"
            return outcome
        for pattern, makes, match, detour in found:
            if _out_of(graph, limits, outcome):
                graph.detours = 0
                graph.rebuild()
                return outcome
            if pattern.rule.id not in outcome.quarantined:
                graph.detours = detour
                _apply(graph, pattern.rule.id, match.roots, makes, match, outcome, pattern)
        graph.detours = 0
        graph.rebuild()
        if search.left < 0:
            outcome.stopped = "steps"
            return outcome
        if graph.version == before and not banned:
            outcome.stopped = "saturated"
            return outcome
        levels = _distances(graph, max(search.one.depth, search.several.depth, 1))
        news = EGraphDelta(graph.began, {graph.find(c) for c in graph.renewed})
    outcome.stopped = "rounds"
    return outcome


def _distances(graph: EGraph, most: int) -> dict[int, int]:
    """Classes within ``most`` levels above what was touched, with their distances."""
    level = {graph.find(c): None for c in sorted(graph.touched)}
    found = dict.fromkeys(level, 0)
    for distance in range(1, most + 1):
        above: dict[int, None] = {}
        for identity in level:
            for _, parent in graph.classes[identity].parents:
                root = graph.find(parent)
                if root not in found:
                    found[root] = distance
                    above[root] = None
        level = above
    return found


def _merge_groups(
    graph: EGraph,
    rewrites: RewriteSet,
    limits: SaturationLimits,
    seen: set[tuple[object, ...]],
    outcome: SaturationOutcome,
) -> None:
    groups = [g for g in rewrites.groups if g.single.operators <= graph.by_op.keys()]
    for group, occurrences in zip(groups, siblings(graph, groups), strict=True):
        if len(occurrences) < 2:
            continue
        if _out_of(graph, limits, outcome):
            break
        proposed = list(group.proposals(graph, occurrences, seen))
        for why, roots, targets, match in proposed:
            _apply(graph, why, roots, recipe_of(targets), match, outcome)
        if proposed:
            graph.rebuild()


def _out_of(graph: EGraph, limits: SaturationLimits, outcome: SaturationOutcome) -> bool:
    if len(graph) > limits.nodes:
        outcome.stopped = "nodes"
    elif time.monotonic() > limits.deadline:
        outcome.stopped = "time"
    else:
        return False
    return True


def _dtype(graph: EGraph, owner: int) -> DType | None:
    kind = graph.type(owner)
    return None if isinstance(kind, tuple) else kind.dtype


def _always() -> bool:
    return True


def _apply(
    graph: EGraph,
    why: str,
    roots: Sequence[int],
    makes: FlattenedTerms,
    match: PatternMatch,
    outcome: SaturationOutcome,
    pattern: CompiledPattern | None = None,
) -> None:
    graph.cause = why
    try:
        made = instantiate(graph, makes, match)
    except IllTypedOperator:
        return  # e.g. an axis that is 1 here broadcasts differently: the rule does not speak about these types
    if any(_dtype(graph, a) != _dtype(graph, b) for a, b in zip(roots, made, strict=True)):
        return  # a cast to the rule's type of another: the rule speaks of operands of its own type
    try:
        for root, new in zip(roots, made, strict=True):
            either = partial(turns, graph, pattern, match) if pattern is not None else _always
            if graph.may_meet(root, new, match.tensors.values(), either):
                graph.union(root, new, why)
    except TypeClashError as clash:
        outcome.quarantined[why] = str(clash)

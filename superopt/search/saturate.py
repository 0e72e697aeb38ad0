"""Equality saturation: apply every rule everywhere until nothing new appears or a limit is reached.

Rules that match too often are banned for a while, longer each time (egg's back-off scheduler), so that one explosive
rule cannot starve the others. A rule that asks to unite different types is wrong here and is quarantined.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from superopt.ir.terms import App, AttributeValue, Project, Term, Var, postorder
from superopt.ops.meaning import IllTyped
from superopt.search.egraph import ABSENT, EGraph, TypeClashError
from superopt.search.match import Match, Pattern, evaluate, matches
from superopt.search.merge import GroupMove, independent

_GROWING = 4  # sides that add operators get this much less of the matches

__all__ = ["Limits", "Moves", "Outcome", "instantiate", "saturate"]


@dataclass(frozen=True)
class Moves:
    """What saturation may do: sides of rules, n-ary merges, and rules whose arity follows the graph's."""

    patterns: tuple[Pattern, ...] = ()
    groups: tuple[GroupMove, ...] = ()


@dataclass(frozen=True)
class Limits:
    """When to stop: e-nodes, rounds, and the clock (``time.monotonic`` value). ``matches``: per rule and round."""

    nodes: int = 4000
    rounds: int = 10
    deadline: float = float("inf")
    matches: int = 300


@dataclass
class Outcome:
    """What happened. ``stopped``: "saturated", "nodes", "rounds" or "time"; ``quarantined``: rules and why."""

    stopped: str = "saturated"
    rounds: int = 0
    quarantined: dict[str, str] = field(default_factory=dict)


@dataclass
class _Backoff:
    limit: int
    bans: int = 0
    until: int = 0
    behind: bool = True  # has not seen all of the graph as it was in the last round


def saturate(graph: EGraph, moves: Moves, limits: Limits) -> Outcome:
    """Grow the e-graph by the moves, in place."""
    outcome = Outcome()
    backoff = {p: _Backoff(limits.matches if p.growth <= 0 else limits.matches // _GROWING) for p in moves.patterns}
    seen: set[tuple[object, ...]] = set()
    graph.rebuild()
    near: list[set[int]] | None = None  # classes near what changed in the last round, by distance; None: all
    for number in range(limits.rounds):
        outcome.rounds = number + 1
        before = graph.version
        graph.touched = set()
        _merge_groups(graph, moves, limits, seen, outcome)
        found: list[tuple[Pattern, Match]] = []
        banned = False
        for pattern in moves.patterns:
            if _out_of(graph, limits, outcome):
                return outcome
            state = backoff[pattern]
            if state.until > number:
                banned = state.behind = True
            elif pattern.rule.id not in outcome.quarantined:
                banned |= _search(graph, pattern, state, number, seen, found, near)
        found.sort(key=lambda f: f[0].growth)  # what shrinks comes first, in case the limit is reached
        for pattern, match in found:
            if _out_of(graph, limits, outcome):
                graph.rebuild()
                return outcome
            if pattern.rule.id not in outcome.quarantined:
                _apply(graph, pattern.rule.id, match.roots, pattern.target, match, outcome)
        graph.rebuild()
        if graph.version == before and not banned:
            outcome.stopped = "saturated"
            return outcome
        near = [graph.above(graph.touched)]
        for _ in range(max((p.depth for p in moves.patterns), default=0)):
            near.append(graph.above(near[-1]))
    outcome.stopped = "rounds"
    return outcome


def _merge_groups(graph: EGraph, moves: Moves, limits: Limits, seen: set[tuple[object, ...]], outcome: Outcome) -> None:
    for group in moves.groups:
        if _out_of(graph, limits, outcome):
            break
        for why, roots, targets, match in list(group.proposals(graph, seen)):
            _apply(graph, why, roots, targets, match, outcome)
        graph.rebuild()


def _out_of(graph: EGraph, limits: Limits, outcome: Outcome) -> bool:
    if len(graph) > limits.nodes:
        outcome.stopped = "nodes"
    elif time.monotonic() > limits.deadline:
        outcome.stopped = "time"
    else:
        return False
    return True


def _search(
    graph: EGraph, pattern: Pattern, state: _Backoff, number: int,
    seen: set[tuple[object, ...]], found: list[tuple[Pattern, Match]], near: list[set[int]] | None,
) -> bool:  # fmt: skip
    """Collect the new occurrences of a pattern; True if it was banned for having too many."""
    fresh: list[tuple[Pattern, Match]] = []
    limit = state.limit << state.bans
    if pattern.first_round and number > 0:
        return False
    within = None if near is None or state.behind or len(pattern.roots) > 1 else near[pattern.depth]
    state.behind = False
    for match in matches(graph, pattern, 8 * limit, within):
        if len(match.roots) > 1 and not independent(graph, match.roots):
            continue
        fixed = frozenset(n for n, c in match.tensors.items() if graph.constant(c))
        before, after, apart = pattern.runtime(fixed)
        if after > before and apart:
            continue  # it would take constants apart to make more work at run time
        key = (id(pattern), match.roots, *match.tensors.values(), *match.sizes.values())
        if key in seen or all(graph.constant(r) for r in match.roots):
            continue  # what is constant is computed once, whatever its form
        seen.add(key)
        fresh.append((pattern, match))
        if len(fresh) >= limit:
            state.bans += 1
            state.until = number + 1 + state.bans
            state.behind = True
            found.extend(fresh)
            return True
    found.extend(fresh)
    return False


def _apply(
    graph: EGraph, why: str, roots: Sequence[int], targets: Sequence[Term], match: Match, outcome: Outcome
) -> None:
    graph.cause = why
    try:
        made = instantiate(graph, targets, match)
    except IllTyped:
        return  # e.g. an axis that is 1 here broadcasts differently: the rule does not speak about these types
    try:
        for root, new in zip(roots, made, strict=True):
            graph.union(root, new, why)
    except TypeClashError as clash:
        outcome.quarantined[why] = str(clash)


def instantiate(graph: EGraph, targets: Sequence[Term], match: Match) -> list[int]:
    """Add terms to the graph under a match and give their classes.

    Raises:
        IllTyped: an application is not typed; applications below it may have been added.
    """
    classes: dict[Term, int] = {}
    for term in postorder(*targets):
        if isinstance(term, Var):
            classes[term] = graph.find(match.tensors[term.name])
        elif isinstance(term, Project):
            classes[term] = graph.project(classes[term.term], term.index)
        else:
            args = tuple(ABSENT if a is None else _single(graph, classes[a]) for a in term.args)
            while args and args[-1] == ABSENT:
                args = args[:-1]
            classes[term] = graph.add(term.op, attributes_of(graph, term, match.sizes), args)
    return [_single(graph, classes[t]) for t in targets]


def _single(graph: EGraph, identity: int) -> int:
    return graph.project(identity, 0) if isinstance(graph.type(identity), tuple) else identity


def attributes_of(
    graph: EGraph, term: App, sizes: Mapping[str, AttributeValue]
) -> tuple[tuple[str, AttributeValue], ...]:
    """The attributes of a rule's application under a binding; a generator gets the matched element type.

    Raises:
        IllTyped: the operator is not known, or the element type was never bound.
    """
    record = graph.operators.get(term.op)
    if record is None:
        raise IllTyped(f"{term.op} is not an operator superopt knows")
    values = {name: evaluate(value, sizes) for name, value in term.attributes}
    if "dtype" in record.attributes and "dtype" not in values:
        if "dtype:f" not in sizes:
            raise IllTyped("the element type of a constant is not known here")
        values["dtype"] = sizes["dtype:f"]
    for name, kind in record.attributes.items():
        if kind == "float" and isinstance(values.get(name), int):
            values[name] = float(values[name])  # type: ignore[arg-type]
    return tuple(sorted(values.items()))

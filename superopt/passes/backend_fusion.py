"""Groups that the backend would run as one kernel if they were written as it knows them.

A search adds up what operators cost. So it does not see that ``x · (0.5 · (1 + erf(x / √2)))``, which is five kernels
of ONNX Runtime's, is one as ``(x · 0.5) · (1 + erf(x / √2))``, and takes the 0.5 into the next weights. Here the
backend's patterns are matched in the e-graph of the operators around, before other rules have their turn: what rules
say is equal to the group's last operator is a form of it, at the price of its dearest.

The other way round where a backend's kernel is dearer than its parts: ONNX Runtime's for a sum and the normalisation
behind it takes several times what both do, and does not know the sum by another name.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import isclose

from superopt.cost.fusion import CLOSE, COMMUTE, Group, Pattern
from superopt.egraph.egraph import ABSENT, EGraph, ENode
from superopt.egraph.saturation import Limits, Moves, saturate
from superopt.extraction.dag import Choice, Problem, cost_of, problem_of, used_classes
from superopt.extraction.node_costs import Pricer
from superopt.ir.terms import AttributeValue
from superopt.ops import REGISTRY
from superopt.passes.fused_kernels import FEWEST, groups_of
from superopt.program.program import Program
from superopt.regions.lowering import Lowered, Region, lower, region_of
from superopt.regions.plan import Plan, plan_of
from superopt.regions.region_search import frame_of, incumbent_of

__all__ = ["apart", "spelled"]

_AROUND = 12  # operators of a region: the largest pattern, a normalisation with its scale and bias, has nine
_LIMITS = Limits(nodes=400, rounds=2)  # two rules in a row: a quotient for a reciprocal, and another order of factors
_FAMILIES = frozenset({"elementwise", "activation", "reduce"})
_Found = tuple[Mapping[str, int], Mapping[int, ENode]]  # what names stand for, and the group's e-nodes by class


def spelled(program: Program, moves: Moves, pricer: Pricer) -> Iterator[tuple[Region, Plan]]:
    """Plans that make groups of operators the backend's own, for disjoint regions.

    Args:
        program: as it was read, with the kernels that it has.
        moves: what may be done.
        pricer: what operators cost, and the backend.
    """
    patterns = tuple(p for p in pricer.costs.backend.patterns if _size(p) >= FEWEST)
    if not patterns:
        return
    light = _light(moves)
    last = {p.op for p in patterns}
    taken = {name for kernel in program.kernels for name in kernel.made}
    used: set[int] = set()
    known: dict[object, Plan | None] = {}
    for position in reversed(program.running):
        if time.monotonic() > pricer.deadline:
            return
        step = program.steps[position]
        if step.op not in last or step.outputs[0] in taken or position in used:
            continue
        around = _around(program, position, used)
        if len(around) < FEWEST:
            continue
        region = region_of(program, sorted(around))
        if region.signature not in known:
            known[region.signature] = _plan(region, step.outputs[0], patterns, light, pricer)
        plan = known[region.signature]
        if plan is not None:
            used |= around
            yield region, plan


def apart(program: Program, moves: Moves, pricer: Pricer) -> Iterator[tuple[Region, Plan]]:
    """Plans after which the backend runs operators by themselves that it would run as a kernel dearer than they are.

    Args:
        program: after everything else, since other rules do not speak of what these make.
        moves: what may be done.
        pricer: what operators cost, and the backend.
    """
    light = _light(moves)
    known: dict[object, Plan | None] = {}
    for group in (g for g in groups_of(program, pricer) if g.slow_ns > 0.0):
        if time.monotonic() > pricer.deadline:
            return
        names = [node.outputs[0] for node in group.nodes]
        region = region_of(program, sorted(program.maker[n] for n in names))
        if region.signature not in known:
            known[region.signature] = _plan_apart(region, names, group, light, pricer)
        plan = known[region.signature]
        if plan is not None:
            yield region, plan


def _plan_apart(region: Region, names: list[str], group: Group, moves: Moves, pricer: Pricer) -> Plan | None:
    """The cheapest way to write an operator of a group otherwise, if that is cheaper than the group's kernel."""
    lowered, problem, incumbent = _saturated(region, moves, pricer)
    graph = lowered.graph
    owners = [graph.find(lowered.classes[region.number[name]]) for name in names]
    own = [problem.candidates[incumbent[o]] for o in owners]
    kernel = group.us(max(candidate.us for candidate in own), pricer.static(region.types[names[0]]))
    best: tuple[float, Problem, Choice] | None = None
    for owner, candidate in zip(owners, own, strict=True):
        for node in sorted(graph.classes[owner].nodes, key=lambda n: graph.classes[owner].nodes[n]):
            place = problem.index.get((owner, node))
            if place is None or graph.heads[node[0]].op == graph.heads[candidate.node[0]].op:
                continue
            # a dearer form has the place of a cheaper one that needs the same
            form = replace(problem.candidates[place], node=node, us=pricer.node(graph, node, kept=False).us)
            other = replace(
                problem, candidates=(*problem.candidates[:place], form, *problem.candidates[place + 1 :])
            )  # fmt: skip
            choice = {**incumbent, owner: place}
            if any(n not in choice for n in form.needs) or used_classes(other, choice) is None:
                continue
            us = cost_of(other, choice)
            if us < kernel and (best is None or us < best[0]):
                best = us, other, choice
    return None if best is None else plan_of(region, lowered, best[1], best[2], kernel, best[0])


def _saturated(region: Region, moves: Moves, pricer: Pricer) -> tuple[Lowered, Problem, Choice]:
    """A region with its equals, what they cost, and the region as it is."""
    lowered = lower(region, REGISTRY)
    saturate(lowered.graph, moves, _LIMITS)
    problem = problem_of(lowered.graph, frame_of(region, lowered), pricer)
    return lowered, problem, incumbent_of(region, lowered, problem)


def _light(moves: Moves) -> Moves:
    return Moves(tuple(p for p in moves.patterns if all(_is_light(op) for op in p.operators)))


def _size(pattern: Pattern) -> int:
    return 1 + sum(_size(a) for a in pattern.args if isinstance(a, Pattern))


def _is_light(op: str) -> bool:
    return op == "ConstantOfShape" or (op in REGISTRY and REGISTRY[op].family in _FAMILIES)


def _around(program: Program, position: int, used: set[int]) -> set[int]:
    """A step and those before it that nobody else reads, which work element by element or along an axis."""
    found, grown = {position}, True
    while grown and len(found) < _AROUND:
        grown = False
        for name in dict.fromkeys(a for p in sorted(found) for a in program.steps[p].args if a is not None):
            maker = program.maker.get(name)
            if maker is None or maker in found or maker in used or name in program.constant or name in program.pinned:
                continue
            step = program.steps[maker]
            if _is_light(step.op) and len(step.outputs) == 1 and set(program.readers.get(name, ())) <= found:
                found.add(maker)
                grown = True
    return found


def _plan(region: Region, name: str, patterns: tuple[Pattern, ...], moves: Moves, pricer: Pricer) -> Plan | None:
    lowered, problem, incumbent = _saturated(region, moves, pricer)
    graph = lowered.graph
    owner = graph.find(lowered.classes[region.number[name]])
    best: tuple[float, Problem, Choice] | None = None
    for pattern in patterns:
        for _, members in _at(graph, pattern, owner, {}, {}):
            made = _chosen(problem, incumbent, members)
            if made is None or used_classes(*made) is None:
                continue
            us = cost_of(*made)
            if best is None or us < best[0]:
                best = us, *made
    before = cost_of(problem, incumbent)
    if best is None or best[0] >= before - 1e-9:
        return None
    return plan_of(region, lowered, best[1], best[2], before, best[0])


def _chosen(problem: Problem, incumbent: Choice, members: Mapping[int, ENode]) -> tuple[Problem, Choice] | None:
    """The problem in which a group costs what its dearest e-node does, and the incumbent with the group in it."""
    places = {owner: problem.index.get((owner, node)) for owner, node in members.items()}
    if any(place is None for place in places.values()):
        return None
    candidates, choice = list(problem.candidates), dict(incumbent)
    dearest = max(members, key=lambda owner: problem.candidates[places[owner] or 0].us)
    for owner, place in places.items():
        assert place is not None
        known = candidates[place]
        candidates[place] = replace(known, node=members[owner], us=known.us if owner == dearest else 0.0)
        choice[owner] = place
    if any(need not in choice for owner in members for need in candidates[choice[owner]].needs):
        return None
    return replace(problem, candidates=tuple(candidates)), choice


def _at(
    graph: EGraph, what: Pattern | float | str, owner: int, names: Mapping[str, int], members: Mapping[int, ENode]
) -> Iterator[_Found]:  # fmt: skip
    """The ways in which a class is what a pattern says; as deep as the pattern (see :mod:`superopt.cost.fusion`)."""
    owner = graph.find(owner)
    constant = graph.constant(owner)
    if isinstance(what, str):
        fits = constant or not what.startswith(("scalar", "constant"))
        known = not what.startswith("scalar") or _value(graph, owner) is not None
        if fits and known and names.get(what, owner) == owner:
            yield {**names, what: owner}, members
    elif isinstance(what, float):
        value = _value(graph, owner) if constant else None
        if value is not None and isclose(value, what, rel_tol=CLOSE):
            yield names, members
    elif owner in members:
        if graph.heads[members[owner][0]].op == what.op:
            yield names, members
    elif not constant:
        for node in tuple(graph.classes[owner].nodes):
            given, rest = node[1 : 1 + len(what.args)], node[1 + len(what.args) :]
            if graph.heads[node[0]].op != what.op or len(given) < len(what.args):
                continue
            if all(a == ABSENT or graph.constant(a) for a in rest) and _is_innermost(graph, node):
                for order in (given, given[::-1])[: 2 if what.op in COMMUTE else 1]:
                    yield from _arguments(graph, what.args, order, names, {**members, owner: node})


def _is_innermost(graph: EGraph, node: ENode) -> bool:
    """Whether an e-node that works along axes keeps them, and works along the last: nothing else is a kernel's."""
    attributes = dict(graph.heads[node[0]].attributes)
    if "axes" not in attributes:
        return True
    kind, axes = graph.type(node[1]), attributes["axes"]
    rank = 0 if isinstance(kind, tuple) else len(kind.shape or ())
    return axes in ((rank - 1,), (-1,)) and attributes.get("keepdims", 1) == 1


def _arguments(
    graph: EGraph, args: tuple[Pattern | float | str, ...], given: tuple[int, ...], names: Mapping[str, int],
    members: Mapping[int, ENode],
) -> Iterator[_Found]:  # fmt: skip
    if not args:
        yield names, members
        return
    for found in _at(graph, args[0], given[0], names, members):
        yield from _arguments(graph, args[1:], given[1:], *found)


def _value(graph: EGraph, owner: int) -> float | None:
    """The number that a class of one element is; a weight of one value is its generator, too."""
    kind = graph.type(owner)
    if isinstance(kind, tuple) or kind.elements != 1 or not kind.dtype.is_float:
        return None
    for node in graph.classes[owner].nodes:
        head = graph.heads[node[0]]
        if head.op == "ConstantOfShape":
            value: AttributeValue = dict(head.attributes).get("value", 0.0)
            return float(value) if isinstance(value, int | float) else None
    return None

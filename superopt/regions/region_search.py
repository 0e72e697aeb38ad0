"""Search of one region: saturation, extraction, and measurement of the predicted costs that decide it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import sqrt

from superopt.egraph.egraph import ABSENT, EGraph, ENode
from superopt.egraph.saturation import RewriteSet, SaturationLimits, SaturationOutcome, saturate
from superopt.extraction.dag import (
    Candidate,
    Choice,
    ExtractionContext,
    ExtractionProblem,
    cost_of,
    improve,
    problem_of,
    used_classes,
)
from superopt.extraction.enode_costs import ENodeCostModel
from superopt.extraction.pruning import reduced, restricted
from superopt.ops.operator_definition import Operator
from superopt.regions.boundary_cost import dominates
from superopt.regions.region_egraph import ProgramRegion, RegionEGraph, lower
from superopt.regions.region_plan import RegionPlan, plan_of
from superopt.runtime.paired_benchmark import SURELY

__all__ = ["RegionResult", "unchanged_cost", "is_simpler", "search_region"]

_Chooser = Callable[[ExtractionProblem, Choice, float], Choice]  # from an incumbent, in so many seconds


@dataclass(frozen=True)
class ExtractionPolicy:
    """How a region's plan is extracted, and how far its prices are trusted.

    Attributes:
        ilp_candidates: candidates beyond which local search extracts alone.
        extractions: at most, each measuring what the last one wanted.
        own_error: of a prediction's error, what it does not share with other predictions for its operator, at most.
        tiny_us: microseconds below which the error of a measurement is mostly that of timing, which no other
            operator shares.
        shared_error: predictions' errors are shared by both sides of a comparison; more than this is not noise.
    """

    ilp_candidates: int = 4000
    extractions: int = 6
    own_error: float = 0.25
    tiny_us: float = 1.0
    shared_error: float = 0.05


POLICY = ExtractionPolicy()
_NONE = RewriteSet()


@dataclass(frozen=True)
class RegionResult:
    """A region's plan, or ``None`` when the region is best as it is.

    Attributes:
        missed: the gain in microseconds of a plan that was not good enough, and why.
    """

    plan: RegionPlan | None
    before: float
    e_nodes: int
    stopped: str
    missed: str = ""
    quarantined: Mapping[str, str] = field(default_factory=dict)


def search_region(
    region: ProgramRegion,
    rewrites: RewriteSet,
    operators: Mapping[str, Operator],
    pricer: ENodeCostModel,
    limits: SaturationLimits,
    least_gain: float,
    seed: int,
    first: RewriteSet = _NONE,
    *,
    exact: bool = True,
) -> RegionResult:
    """The cheapest equal form of a region that the rewrites reach.

    Args:
        region: what to optimise.
        rewrites: the rewrites to apply.
        operators: records by name.
        pricer: what e-nodes cost.
        seed: of the solver.
        limits: for saturation; its deadline is that of the whole region, of which saturation takes at most half.
        first: rewrites that run to their fixpoint before the others may use up the e-nodes.
        least_gain: share of the region's cost below which a change is not worth it; with 0 costs are taken as exact.
        exact: whether an integer program chooses after local search.
    """
    start = time.monotonic()
    lowered = lower(region, operators)
    graph = lowered.graph
    before = unchanged_cost(region, lowered, pricer)  # now: later, equal values are one class and would be paid once
    half = start + (limits.deadline - start) / 2
    if first.patterns:
        saturate(graph, first, replace(limits, deadline=half))
    outcome = saturate(graph, rewrites, replace(limits, deadline=half))
    if time.monotonic() > limits.deadline:
        return RegionResult(None, before, len(graph), "time", quarantined=outcome.quarantined)
    choose = partial(_best, seed=seed, exact=exact)
    choice, problem = _extract(region, lowered, pricer, limits.deadline, choose, unsure=least_gain > 0)
    incumbent = incumbent_of(region, lowered, problem)
    after = cost_of(problem, choice) + _naming(region, lowered, pricer)
    result = RegionResult(None, before, len(graph), outcome.stopped, quarantined=outcome.quarantined)
    if not after < before - 1e-9:
        return result
    plan, needed = _priced_plan(region, lowered, problem, incumbent, choice, pricer, least_gain, before)
    if before - plan.after < needed and not is_simpler(region, plan):
        missed = _missed(result, outcome, before - after, needed, plan)
        for narrowed in (_doubted, _of_own_operators):
            choice = choose(
                narrowed(lowered, problem, incumbent, pricer), incumbent, max(0.0, limits.deadline - time.monotonic())
            )
            plan, needed = _priced_plan(region, lowered, problem, incumbent, choice, pricer, least_gain, before)
            if before - plan.after >= max(needed, 1e-9):
                break
        else:
            return missed
    return RegionResult(plan, before, len(graph), outcome.stopped, quarantined=outcome.quarantined)


def _priced_plan(
    region: ProgramRegion,
    lowered: RegionEGraph,
    problem: ExtractionProblem,
    incumbent: Choice,
    choice: Choice,
    pricer: ENodeCostModel,
    least_gain: float,
    before: float,
) -> tuple[RegionPlan, float]:
    """The plan of a choice, and what it has to gain."""
    after = cost_of(problem, choice) + _naming(region, lowered, pricer)
    plan = plan_of(region, lowered, problem, choice, before, after)
    trades = least_gain > 0 and not dominates(
        region, plan, pricer
    )  # what asks for no more of anything rests on no price
    noise = _noise(lowered, problem, incumbent, choice, pricer) if trades else 0.0
    return plan, max(least_gain * _changed(problem, incumbent, choice), noise)


def _doubted(
    lowered: RegionEGraph, problem: ExtractionProblem, incumbent: Choice, pricer: ENodeCostModel
) -> ExtractionProblem:
    """The problem where everything new costs as much more as its price may be off by.

    What is best by price may put a change that is in doubt beside one that is not; the second is worth having alone.
    """
    kept = _nodes(problem, incumbent)

    def dear(index: int, candidate: Candidate) -> Candidate:
        if index in kept:
            return candidate
        estimate = pricer.node(lowered.graph, candidate.node, kept=True, ask=False)
        known = estimate.source in ("measured", "free")
        doubt = min(estimate.sigma, POLICY.shared_error) if known else SURELY * estimate.sigma
        return replace(candidate, us=candidate.us * (1 + doubt))

    return replace(problem, candidates=tuple(dear(i, c) for i, c in enumerate(problem.candidates)))


def _of_own_operators(
    lowered: RegionEGraph, problem: ExtractionProblem, incumbent: Choice, pricer: ENodeCostModel
) -> ExtractionProblem:
    """The problem with what the region has already, the same with other weights, and what takes no time: the prices of
    these are off by the same, so that a choice of them that gains is in no doubt."""
    del pricer
    kept, graph = _nodes(problem, incumbent) | set(incumbent.values()), lowered.graph
    free = {
        i for i, c in enumerate(problem.candidates) if c.us == 0 or graph.classes[graph.find(c.owner)].constant
    }  # fmt: skip
    others = set(range(len(problem.candidates))) - kept - free
    left = kept | free | (_matching_operators(lowered, problem, kept, others, shared=True).keys() & others)
    while True:
        made = {problem.candidates[i].owner for i in left}
        usable = {i for i in left if made.issuperset(problem.candidates[i].needs)}
        if usable == left:
            return restricted(problem, left)
        left = usable


def is_simpler(region: ProgramRegion, plan: RegionPlan) -> bool:
    """Whether the same operators run but for some that are gone, over no more weights.

    That is worth having where it is as fast (it loads faster, too).
    """
    before = Counter(s.op for s in region.steps[len(region.steps) - region.running :])
    after = Counter(p.op for p in plan.nodes if not p.constant)
    return plan.grown <= 0 and after < before


def _missed(
    found: RegionResult, outcome: SaturationOutcome, gain: float, needed: float, plan: RegionPlan
) -> RegionResult:
    rules = ", ".join(sorted(plan.rules)) or "evaluating constants"
    share = 100 * gain / found.before if found.before else 0.0
    text = f"{rules} would save {gain:.1f} µs ({share:.1f} % of the region), less than the noise of {needed:.1f} µs"
    return RegionResult(None, found.before, found.e_nodes, outcome.stopped, text, outcome.quarantined)


def incumbent_of(region: ProgramRegion, lowered: RegionEGraph, problem: ExtractionProblem) -> Choice:
    """The region as it is, as a choice: the first e-node of each class that the input made."""
    graph = lowered.graph
    choice: Choice = {}
    for owner in problem.of:
        births = [(birth, node) for node, birth in graph.classes[owner].nodes.items()]
        given = [(b, n) for b, n in births if not graph.made_by[b] and (owner, n) in problem.index]
        if given:
            choice[owner] = problem.index[owner, min(given)[1]]
    if used_classes(problem, choice) is None:
        return _original(region, lowered, problem)
    return choice


def _original(region: ProgramRegion, lowered: RegionEGraph, problem: ExtractionProblem) -> Choice:
    """The first form of each class in the order of the steps, which cannot be cyclic."""
    graph = lowered.graph
    choice: Choice = {}
    owners = sorted(
        (min(b for n, b in graph.classes[o].nodes.items() if (o, n) in problem.index), o)
        for o in problem.of
        if problem.of[o]
    )
    ready: set[int] = set()
    for _ in range(len(owners)):
        grown = False
        for _, owner in owners:
            if owner in ready:
                continue
            options = sorted(
                (b, problem.index[owner, n]) for n, b in graph.classes[owner].nodes.items()
                if (owner, n) in problem.index
            )  # fmt: skip
            for _, index in options:
                if all(n in ready for n in problem.candidates[index].needs):
                    choice[owner] = index
                    ready.add(owner)
                    grown = True
                    break
        if not grown:
            break
    del region
    return choice


def _extract(
    region: ProgramRegion,
    lowered: RegionEGraph,
    pricer: ENodeCostModel,
    deadline: float,
    choose: _Chooser,
    *,
    unsure: bool,
) -> tuple[Choice, ExtractionProblem]:
    graph = lowered.graph
    frame = frame_of(region, lowered)
    problem = problem_of(graph, frame, pricer)
    choice = incumbent_of(region, lowered, problem)
    wanted: set[ENode] = set()  # by the extraction before, whose predictions were then settled
    for _ in range(POLICY.extractions):
        incumbent = incumbent_of(region, lowered, problem)
        before = choice
        choice = choose(problem, incumbent, max(0.0, deadline - time.monotonic()))
        if wanted and cost_of(problem, before) - cost_of(problem, choice) < _least_gain(
            graph, problem, before, choice, pricer
        ):
            choice = before
        chosen = {c: problem.candidates[choice[c]].node for c in used_classes(problem, choice) or ()}
        pricer.questions.changed_choice += bool(wanted) and set(chosen.values()) != wanted
        if unsure and _decided(region, lowered, problem, incumbent, choice, pricer):
            break
        if not pricer.measure_predicted(
            graph, _changed_nodes(problem, incumbent, choice)
        ):  # what both run decides nothing
            break
        problem, wanted = problem_of(graph, frame, pricer), set(chosen.values())
        choice = {c: problem.index[c, n] for c, n in chosen.items() if (c, n) in problem.index}
        if time.monotonic() > deadline:
            break
    incumbent = incumbent_of(region, lowered, problem)
    if cost_of(problem, choice) >= cost_of(problem, incumbent):
        choice = incumbent
    elif unsure:
        choice = _with_input_operators(lowered, problem, incumbent, choice, pricer)
    return choice, problem


def _decided(
    region: ProgramRegion,
    lowered: RegionEGraph,
    problem: ExtractionProblem,
    incumbent: Choice,
    choice: Choice,
    pricer: ENodeCostModel,
) -> bool:
    """Whether no answer would change what becomes of a choice: it asks for no more of anything, or gains more than its
    prices are off by."""
    before, after = cost_of(problem, incumbent), cost_of(problem, choice)
    if before - after > _noise(lowered, problem, incumbent, choice, pricer):
        return True
    return dominates(region, plan_of(region, lowered, problem, choice, before, after), pricer)


def _least_gain(
    graph: EGraph, problem: ExtractionProblem, before: Choice, after: Choice, pricer: ENodeCostModel
) -> float:
    """Microseconds that a choice has to gain over the one before answers: what a question is worth, and more than these
    answers are off by, so that it is the same on other runs."""
    error = pricer.answers_error(graph, _changed_nodes(problem, before, after))
    return max(pricer.questions.cheap_us, SURELY * error)


def _best(problem: ExtractionProblem, incumbent: Choice, seconds: float, *, seed: int, exact: bool) -> Choice:
    problem, incumbent = _without_dearer(problem, incumbent)
    problem = reduced(problem, incumbent, cost_of(problem, incumbent))
    start = improve(problem, incumbent, deadline=time.monotonic() + seconds) if seconds > 0 else incumbent
    if not exact or len(problem.candidates) > POLICY.ilp_candidates:
        return start
    from superopt.extraction.ilp import solve  # here, because HiGHS takes long to load and local search needs none

    return solve(problem, start, seconds / 2, seed)


def _without_dearer(problem: ExtractionProblem, incumbent: Choice) -> tuple[ExtractionProblem, Choice]:
    """The problem with the cheapest alone of candidates that need the same, also where another is the input's."""
    cheapest: dict[tuple[int, tuple[int, ...]], int] = {}
    for owner, options in problem.of.items():
        for index in options:
            key = (owner, problem.candidates[index].operands)
            if key not in cheapest or problem.candidates[index].us < problem.candidates[cheapest[key]].us:
                cheapest[key] = index
    left = set(cheapest.values())
    if len(left) == len(problem.candidates):
        return problem, incumbent
    return restricted(problem, left), {o: cheapest[o, problem.candidates[i].operands] for o, i in incumbent.items()}


def _with_input_operators(
    lowered: RegionEGraph, problem: ExtractionProblem, incumbent: Choice, choice: Choice, pricer: ENodeCostModel
) -> Choice:
    """The choice with the input's own operators wherever another of the same operands gains less than prices are off
    by: noise decides no such thing, and the next calibration would undo it."""
    best, after = choice, cost_of(problem, choice)
    for owner in sorted(set(incumbent) & set(choice)):
        mine, other = (problem.candidates[c[owner]] for c in (choice, incumbent))
        if mine is other or mine.operands != other.operands:
            continue
        kept = {**best, owner: incumbent[owner]}
        off = SURELY * sqrt(sum(_own_error(lowered, c.node, pricer) ** 2 for c in (mine, other)))
        us = cost_of(problem, kept)
        if us - after < off:
            best, after = kept, us
    return best


def _own_error(lowered: RegionEGraph, node: ENode, pricer: ENodeCostModel) -> float:
    """Microseconds that an e-node's price is off by, but for what is shared with others of its operator."""
    estimate = pricer.node(lowered.graph, node, kept=True, ask=False)
    known = estimate.source in ("measured", "free")
    cap = 1.0 if known and estimate.us < POLICY.tiny_us else POLICY.shared_error if known else POLICY.own_error
    return estimate.us * min(estimate.sigma, cap)


def unchanged_cost(region: ProgramRegion, lowered: RegionEGraph, pricer: ENodeCostModel) -> float:
    """The modelled cost of the region before anything was added to its e-graph; equal applications count once."""
    frame = frame_of(region, lowered)
    lowered.graph.rebuild()
    problem = problem_of(lowered.graph, frame, pricer)
    return cost_of(problem, incumbent_of(region, lowered, problem)) + _naming(region, lowered, pricer)


def _naming(region: ProgramRegion, lowered: RegionEGraph, pricer: ENodeCostModel) -> float:
    """Microseconds of naming values whose names must stay and that equal others of them."""
    us, seen = 0.0, set[int]()
    for name in region.apart:
        owner = lowered.graph.find(lowered.classes[region.number[name]])
        us += pricer.naming(region.types[name]) if owner in seen else 0.0
        seen.add(owner)
    return us


def frame_of(region: ProgramRegion, lowered: RegionEGraph) -> ExtractionContext:
    """What the region gives an extraction."""
    graph = lowered.graph
    roots = [lowered.classes[region.number[o]] for o in region.outputs]
    paid = frozenset(graph.find(lowered.classes[region.number[n]]) for n in region.leaves if n in region.constant)
    given = {
        node: lowered.origin[birth]
        for group in graph.classes.values() for node, birth in group.nodes.items() if birth in lowered.origin
    }  # fmt: skip
    within = frozenset(n for n, step in given.items() if step in region.within)
    inner = {graph.find(lowered.classes[number]): us for number, us in region.inner}
    return ExtractionContext(roots, paid, frozenset(given), within, inner)


def _changed(problem: ExtractionProblem, before: Choice, after: Choice) -> float:
    """The cost of what the incumbent computes and the choice does not."""
    old, new = _nodes(problem, before), _nodes(problem, after)
    return sum(problem.candidates[i].us for i in old - new)


def _changed_nodes(problem: ExtractionProblem, before: Choice, after: Choice) -> list[ENode]:
    """What one of two choices computes and the other does not."""
    return [problem.candidates[i].node for i in sorted(_nodes(problem, before) ^ _nodes(problem, after))]


def _nodes(problem: ExtractionProblem, choice: Choice) -> set[int]:
    return {choice[c] for c in used_classes(problem, choice) or ()}


def _noise(
    lowered: RegionEGraph, problem: ExtractionProblem, before: Choice, after: Choice, pricer: ENodeCostModel
) -> float:
    """What a gain must exceed, from what the two do not share.

    One standard deviation of the difference where all of it is measured. Else two, of which
    each prediction has an error of its own; what it has in common with those of its operator matters only for the
    operators of which there will be more.
    """
    old, new = _nodes(problem, before), _nodes(problem, after)
    guessed, total = False, 0.0
    change: dict[str, tuple[float, float]] = {}  # by operator: microseconds more than before, sigma
    matching = _matching_operators(lowered, problem, old - new, new - old)
    for index in old ^ new:
        node = problem.candidates[index].node
        estimate = pricer.node(lowered.graph, node, kept=True, ask=False)
        known = estimate.source in ("measured", "free")
        guessed |= not known
        own = _own_error(lowered, node, pricer)
        if index in matching:  # what both prices are off by is no difference
            other = pricer.node(lowered.graph, problem.candidates[matching[index]].node, kept=True, ask=False)
            own *= min(1.0, abs(estimate.us - other.us) / estimate.us) if estimate.us else 0.0
        total += own**2
        op = lowered.graph.heads[node[0]].op
        more, sigma = change.get(op, (0.0, 0.0))
        change[op] = (
            more + (estimate.us if index in new else -estimate.us),
            max(sigma, 0.0 if known else estimate.sigma),
        )
    if not guessed:
        return sqrt(total)
    return SURELY * sqrt(total + sum((more * sigma) ** 2 for more, sigma in change.values() if more > 0))


def _matching_operators(
    lowered: RegionEGraph, problem: ExtractionProblem, gone: set[int], fresh: set[int], *, shared: bool = False
) -> dict[int, int]:
    """Pairs of an application that goes and one that comes, of one operator, with equal attributes, over operands of
    equal types, as far as both have them: a layer with and without its bias, or with another weight. One that goes is
    in one pair, or in several (``shared``)."""
    graph, found = lowered.graph, dict[int, int]()
    waiting: dict[int, list[tuple[int, tuple[object, ...]]]] = {}
    for index in sorted(gone):
        node = problem.candidates[index].node
        waiting.setdefault(node[0], []).append((index, _types(graph, node)))
    for index in sorted(fresh):
        node = problem.candidates[index].node
        mine = _types(graph, node)
        for other, theirs in waiting.get(node[0], []):
            if (shared or other not in found) and all(a == b for a, b in zip(mine, theirs, strict=False)):
                found[index], found[other] = other, index
                break
    return found


def _types(graph: EGraph, node: ENode) -> tuple[object, ...]:
    return tuple(None if a == ABSENT else graph.type(a) for a in node[1:])

"""The last word on a changed region: time it whole, before and after, as the backend runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt

from superopt import formats
from superopt.cost.measure import Meter
from superopt.cost.trial import feeds_for, with_values
from superopt.ir.errors import SuperoptError
from superopt.ir.graph import Graph, Value, Weight
from superopt.ops.record import NotCovered, Operator
from superopt.runtime.limits import refuse_unbounded
from superopt.runtime.race import race
from superopt.search.emit import emit
from superopt.search.lower import Region, region_of
from superopt.search.optimise import is_simpler
from superopt.search.plan import Plan, named
from superopt.search.program import Program
from superopt.search.replay import Names, replay

__all__ = [
    "Stage",
    "Timer",
    "WholeTimer",
    "confirmed",
    "fastest",
    "program_graph",
    "region_graph",
    "timer_of",
    "whole_timer",
]

Timer = Callable[[Sequence[Graph], float], Sequence[float]]
WholeTimer = Callable[[Sequence[Graph], float], Sequence[float] | None]
_ROUNDS = 11
_LOSS = 1.01  # a model measured to take more than this share of the time is not returned
_TIE = 1.01  # times that differ by less than this share are equal: the simpler model is taken
_SIMPLER = 1e-4  # share that a region gains at least when it takes the same time with fewer operators
_LUCK = 2.0  # times the modelled gain that a measured one counts at most: beyond, where its weights lie was timed
_NOISY = 1.05  # of a region whose model says that it only gets simpler, a time this much longer is noise
_SECONDS_PER_BYTE = 1.5e-8  # to draw, write and load a weight
_LARGEST = 1 << 30  # bytes of weights of all graphs that are timed as whole models together


def timer_of(costs: object) -> Timer | None:
    """How the cost model times several graphs together (µs each), or ``None`` if it cannot."""
    graphs = getattr(costs, "graphs", None)
    if graphs is None:
        return None
    return lambda wanted, seconds: list(graphs(wanted, time_limit=seconds))


def region_graph(
    region: Region, plan: Plan | None, opset: Mapping[str, int], operators: Mapping[str, Operator]
) -> Graph | None:
    """A region alone as a graph, as it is or by a plan; constants become shape-only weights.

    Returns ``None`` where a step cannot be written anew (only its own node form carries it).
    """
    region = replace(region, steps=tuple(replace(s, node=None) for s in region.steps))
    steps = region.steps[len(region.steps) - region.running :]
    moving = [n for n in region.leaves if n not in region.constant]
    graph = Graph(
        "region", tuple(Value(n, region.types[n]) for n in moving),
        tuple(Value(n, region.types[n]) for n in region.outputs), (), (), opset,
    )  # fmt: skip
    base = Program(graph, steps, region.types, region.constant, {})
    if plan is not None:
        alone = replace(region, positions=tuple(range(len(steps))))
        base = replay(base, [(alone, plan)], Names(base))
    running = tuple(s for s in base.steps if not base.is_constant(s))
    made = {o for s in running for o in s.outputs}
    weights: dict[str, Weight] = {}
    for step in running:
        for name in step.reads:
            if name in base.constant and name not in made:
                weights.setdefault(name, Weight(name, base.types[name], None))
    for value in graph.outputs:
        if value.name in base.constant and value.name not in made:
            weights.setdefault(value.name, Weight(value.name, base.types[value.name], None))
    alone_graph = replace(graph, weights=tuple(weights.values()))
    try:
        return emit(replace(base, graph=alone_graph, steps=running), operators, 0).graph
    except NotCovered:
        return None


def whole_timer(costs: object, sizes: Mapping[str, int]) -> WholeTimer | None:
    """How whole models are timed against the first of them, warm; ``None`` if the cost model does not measure."""
    meter = getattr(costs, "meter", None)
    if not isinstance(meter, Meter):
        return None

    def ratios(graphs: Sequence[Graph], seconds: float) -> Sequence[float] | None:
        try:
            held = sum(w.type.nbytes or 0 for g in graphs for w in g.weights)
            if held > _LARGEST or held * _SECONDS_PER_BYTE > seconds:
                return None
            refuse_unbounded(graphs[0], sizes)
            models = [formats.to_onnx_bytes(with_values(g)) for g in graphs]
            found = race(
                models, feeds_for(graphs[0], sizes), rounds=_ROUNDS, burst=1, threads=meter.threads, clock=meter.clock,
                time_limit=seconds,
            )  # fmt: skip
        except (SuperoptError, NotCovered):
            return None
        return found.ratios

    return ratios


def program_graph(program: Program, operators: Mapping[str, Operator]) -> Graph | None:
    """What runs of a program as a graph over shape-only weights; ``None`` if not all of it can be written anew."""
    if any(program.steps[p].op == "" for p in program.running):
        return None
    return region_graph(region_of(program, program.running), None, program.graph.opset, operators)


def confirmed(
    region: Region, plans: Sequence[Plan], graphs: Sequence[Graph], timer: Timer, seconds: float, least_gain: float,
    *, again: bool,
) -> Plan | str:  # fmt: skip
    """The plan that is fastest when the region is timed whole; if none beats the region itself, why not.

    Args:
        region: as it is.
        plans: what may replace it.
        graphs: the region, and what each plan makes of it.
        timer: times graphs together.
        seconds: for that.
        least_gain: share of the time that must be saved.
        again: whether there is time to time a plan again that is not faster, as its parts, measured too, said.
    """
    before, *after = timer(graphs, seconds)
    if before == float("inf"):
        return plans[0]
    best, ratio = min(zip(plans, (us / before for us in after), strict=True), key=lambda p: p[1])
    simpler = is_simpler(region, best)
    limit = _NOISY if simpler else 1 - least_gain
    if again and limit < ratio < float("inf"):
        first, second = timer([graphs[0], graphs[1 + plans.index(best)]], seconds)
        ratio = sqrt(ratio * second / first) if first < float("inf") else ratio
    if ratio > limit:
        change = "cannot run" if ratio == float("inf") else f"was measured to take {100 * ratio:.0f} % of the time"
        return f"{named(best)} should save {best.gain:.1f} µs, but {change}"
    saved = min(best.before * (1.0 - ratio), _LUCK * best.gain)
    return replace(best, after=best.before - max(saved, best.before * _SIMPLER if simpler else 0.0))


@dataclass(frozen=True)
class Stage:
    """Which of several stages of a model is the one to keep, and shares of the first one's time.

    Attributes:
        stage: its number.
        least, last: shares that the fastest and the last one take.
    """

    stage: int
    least: float
    last: float


def fastest(whole: WholeTimer, stages: Sequence[Graph | None], seconds: float) -> Stage | None:
    """The last of the stages that is not clearly slower than another; ``None`` if input and result cannot be timed.

    They are timed beside a copy of the first: two sessions of one model differ by where their weights lie.

    Args:
        whole: times whole models.
        stages: the input and what came after; ``None`` where it cannot be drawn.
        seconds: for timing all; twice as many for the input and the last alone.
    """
    kept = [i for i, g in enumerate(stages) if g is not None]
    graphs = [g for g in stages if g is not None]
    if not kept or kept[0] != 0 or kept[-1] != len(stages) - 1:
        return None
    ratios, copied = whole([graphs[0], *graphs], seconds), 1.0
    if ratios is not None:
        copied, ratios = ratios[1], [1.0, *ratios[2:]]
    else:  # too much to load so often: was it worth it at all?
        kept = [0, kept[-1]]
        ratios = whole([graphs[0], graphs[-1]], 2 * seconds)
    if ratios is None:
        return None
    least, tie = min(ratios), max(_TIE, copied, 1 / copied)
    share = dict(zip(kept, ratios, strict=True))
    best = max(i for i in kept if share[i] <= least * tie)
    return Stage(best if share[best] <= _LOSS else 0, least, share[max(kept)])

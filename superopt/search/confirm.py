"""The last word on a changed region: time it whole, before and after, as the backend runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

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
from superopt.search.plan import Plan
from superopt.search.program import Program
from superopt.search.replay import Names, replay

__all__ = ["Timer", "WholeTimer", "program_graph", "region_graph", "timer_of", "whole_timer"]

Timer = Callable[[Sequence[Graph], float], Sequence[float]]
WholeTimer = Callable[[Sequence[Graph], float], Sequence[float] | None]
_ROUNDS = 11
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

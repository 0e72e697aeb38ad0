"""Costs at the boundary of a region: kernels that the backend fuses across it, before and after a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from superopt.extraction.enode_costs import Application, ENodeCostModel
from superopt.ir.types import TensorType
from superopt.ops.flops_and_bytes import InferenceWork
from superopt.program.graph_program import GraphProgram, ProgramStep
from superopt.regions.region_egraph import ProgramRegion
from superopt.regions.region_plan import OUTSIDE, RegionPlan, RegionPlanNode

__all__ = ["step_application", "node_application", "dominates", "fusions"]


Saved = Callable[[str, Application], float]  # µs, by the operator that makes the moving operand, and its only reader


def fusions(
    program: GraphProgram, region: ProgramRegion, plan: RegionPlan, saved: Saved
) -> Iterator[tuple[float, float]]:
    """Microseconds saved by each fusion over the border: as the region is, and by the plan."""
    yield from _below(program, region, plan, saved)
    yield from _above(program, region, plan, saved)


def _below(
    program: GraphProgram, region: ProgramRegion, plan: RegionPlan, saved: Saved
) -> Iterator[tuple[float, float]]:
    """Outputs whose only reader, outside, may run as one with what makes them."""
    for output, (piece, _) in zip(region.outputs, plan.results, strict=True):
        readers = program.readers.get(output, ())
        if len(readers) != 1 or output in program.pinned:
            continue
        reader = step_application(program, program.steps[readers[0]])
        before, after = program.steps[program.maker[output]].op, plan.nodes[piece].op if piece >= 0 else ""
        if before != after:
            yield saved(before, reader), saved(after, reader)


def _above(
    program: GraphProgram, region: ProgramRegion, plan: RegionPlan, saved: Saved
) -> Iterator[tuple[float, float]]:
    """Leaves made outside that only the region reads: their readers may run as one with what makes them."""
    inside = {p: program.steps[p] for p in region.positions}
    for number, leaf in enumerate(region.leaves):
        position, readers = program.maker.get(leaf), program.readers.get(leaf, ())
        if position is None or leaf in region.constant or leaf in program.pinned:
            continue
        if len(readers) != 1 or readers[0] not in inside:
            continue
        producer = _operator(program.steps[position])
        before = saved(producer, step_application(program, inside[readers[0]]))
        reading = [p for p in plan.nodes if (OUTSIDE, number) in p.args]
        after = saved(producer, node_application(region, plan, reading[0])) if len(reading) == 1 else 0.0
        yield before, after


def _operator(step: ProgramStep) -> str:
    """The name of what runs there, superopt's or a barrier's own."""
    return step.op or (step.node.op if step.node is not None and not step.node.domain else "")


def step_application(program: GraphProgram, step: ProgramStep) -> Application:
    """What a step applies, to arguments of which types, and which of them are constant."""
    types = tuple(None if a is None else program.types[a] for a in step.args)
    return step.op, step.attributes, types, tuple(a is not None and a in program.constant for a in step.args)


def node_application(region: ProgramRegion, plan: RegionPlan, piece: RegionPlanNode) -> Application:
    """What a piece of a plan applies, to arguments of which types, and which of them are constant."""
    types: list[TensorType | None] = []
    fixed: list[bool] = []
    for ref in piece.args:
        if ref is None:
            types.append(None)
            fixed.append(False)
        elif ref[0] == OUTSIDE:
            name = region.values[ref[1]]
            types.append(region.types[name])
            fixed.append(name in region.constant)
        else:
            types.append(plan.nodes[ref[0]].types[ref[1]])
            fixed.append(plan.nodes[ref[0]].constant)
    return piece.op, piece.attributes, tuple(types), tuple(fixed)


# -- Dominance -----------------------------------------------------------------------------------------------------
#
# Pareto dominance: a plan that needs no more FLOPs, bytes and kernels, and less of one of them, needs no model of time.


def dominates(region: ProgramRegion, plan: RegionPlan, pricer: ENodeCostModel) -> bool:
    """Whether a plan needs no more FLOPs, bytes moved and kernels than its region, and less of one of them.

    What the backend runs as one kernel with a neighbour counts as one of its own, in the region and in the plan. Larger
    kernels count once, as long as the plan leaves all of their steps there.
    """
    before: dict[int, InferenceWork] = {}
    for number, step in enumerate(region.steps):
        if number >= len(region.steps) - region.running:
            types = tuple(None if a is None else region.types[a] for a in step.args)
            outputs = [region.types[o] for o in step.outputs if o]
            before[number] = pricer.demand((step.op, step.attributes, types, ()), outputs)
    kept = {p.source for p in plan.nodes if p.source >= 0}
    whole = [k for k in region.kernels if k <= kept]
    after = [
        pricer.demand(node_application(region, plan, p), p.types)
        for p in plan.nodes
        if not p.constant and not any(p.source in k for k in whole)
    ]
    untouched = [_as_one(before, k) for k in whole]
    apart = [d for number, d in before.items() if not any(number in k for k in region.kernels)]
    together = [_as_one(before, k) for k in region.kernels]
    return _sum([*after, *untouched]).no_more_than(_sum([*apart, *together]))


def _as_one(each: Mapping[int, InferenceWork], kernel: Iterable[int]) -> InferenceWork:
    """What steps ask that run as one: what lies between them is not moved."""
    members = [each[i] for i in sorted(kernel) if i in each]
    most = max((m.bytes for m in members), default=0)
    return InferenceWork(sum(m.flops for m in members), most, int(bool(members)))


def _sum(demands: Iterable[InferenceWork]) -> InferenceWork:
    return sum(demands, InferenceWork())

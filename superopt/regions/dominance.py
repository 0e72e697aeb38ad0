"""Plans that ask for no more of anything, and for less of something: they need no model of time to be worth having."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from superopt.extraction.node_costs import Pricer
from superopt.ops.work import Demand
from superopt.regions.boundary_cost import applied_piece
from superopt.regions.lowering import Region
from superopt.regions.plan import Plan

__all__ = ["frugal"]


def frugal(region: Region, plan: Plan, pricer: Pricer) -> bool:
    """Whether a plan needs no more FLOPs, bytes moved and kernels than its region, and less of one of them.

    What the backend runs as one kernel with a neighbour counts as one of its own, in the region and in the plan. Larger
    kernels count once, as long as the plan leaves all of their steps there.
    """
    before: dict[int, Demand] = {}
    for number, step in enumerate(region.steps):
        if number >= len(region.steps) - region.running:
            types = tuple(None if a is None else region.types[a] for a in step.args)
            outputs = [region.types[o] for o in step.outputs if o]
            before[number] = pricer.demand((step.op, step.attributes, types, ()), outputs)
    kept = {p.source for p in plan.pieces if p.source >= 0}
    whole = [k for k in region.kernels if k <= kept]
    after = [
        pricer.demand(applied_piece(region, plan, p), p.types)
        for p in plan.pieces
        if not p.constant and not any(p.source in k for k in whole)
    ]
    untouched = [_as_one(before, k) for k in whole]
    apart = [d for number, d in before.items() if not any(number in k for k in region.kernels)]
    together = [_as_one(before, k) for k in region.kernels]
    return _sum([*after, *untouched]).no_more_than(_sum([*apart, *together]))


def _as_one(each: Mapping[int, Demand], kernel: Iterable[int]) -> Demand:
    """What steps ask that run as one: what lies between them is not moved."""
    members = [each[i] for i in sorted(kernel) if i in each]
    most = max((m.bytes for m in members), default=0)
    return Demand(sum(m.flops for m in members), most, int(bool(members)))


def _sum(demands: Iterable[Demand]) -> Demand:
    return sum(demands, Demand())

"""Plans that ask for no more of anything, and for less of something: they need no model of time to be worth having."""

from __future__ import annotations

from superopt.cost.demand import Demand
from superopt.search.borders import applied_piece
from superopt.search.costing import Pricer
from superopt.search.lower import Region
from superopt.search.plan import Plan

__all__ = ["frugal"]


def frugal(region: Region, plan: Plan, pricer: Pricer) -> bool:
    """Whether a plan needs no more FLOPs, bytes moved and kernels than its region, and less of one of them.

    What the backend runs as one kernel with a neighbour counts as one of its own, in the region and in the plan.
    """
    before = after = Demand()
    for step in region.steps[len(region.steps) - region.running :]:
        types = tuple(None if a is None else region.types[a] for a in step.args)
        outputs = [region.types[o] for o in step.outputs if o]
        before += pricer.demand((step.op, step.attributes, types, ()), outputs)
    for piece in plan.pieces:
        if not piece.constant:
            after += pricer.demand(applied_piece(region, plan, piece), piece.types)
    return after.no_more_than(before)

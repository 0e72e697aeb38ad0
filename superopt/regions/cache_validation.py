"""Whether a plan that was read fits the region it is to be replayed on.

A file is not evidence: every reference, type and constancy of a plan is computed again from the operators' records, so
what does not fit this region exactly is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from superopt.ir.types import TensorType
from superopt.ops.meaning import IllTyped
from superopt.ops.record import Operator
from superopt.regions.lowering import Region
from superopt.regions.plan import OUTSIDE, Piece, Plan, Ref

__all__ = ["problem_with"]


class _Misfit(ValueError):
    """A reference leads nowhere."""


def problem_with(plan: Plan, region: Region, operators: Mapping[str, Operator]) -> str:
    """Why a plan cannot be one of a region; empty if it can."""
    if not plan.after <= plan.before or len(plan.results) != len(region.outputs):
        return "the plan saves nothing or has other outputs"
    try:
        for number, piece in enumerate(plan.pieces):
            why = _problem_with_piece(region, plan, number, piece, operators)
            if why:
                return f"piece {number}: {why}"
        for output, ref in zip(region.outputs, plan.results, strict=True):
            if _looked_up(region, plan, len(plan.pieces), ref)[0] != region.types[output]:
                return f"the output {output} has another type"
    except (_Misfit, IllTyped, KeyError, IndexError, TypeError, AttributeError) as error:
        return str(error) or type(error).__name__
    return ""


def _problem_with_piece(
    region: Region, plan: Plan, number: int, piece: Piece, operators: Mapping[str, Operator]
) -> str:
    known = [None if a is None else _looked_up(region, plan, number, a) for a in piece.args]
    kinds = [None if k is None else k[0] for k in known]
    _, types = operators[piece.op].apply(kinds, dict(piece.attributes))
    if types != piece.types or len(piece.outputs) != len(types):
        return "its types are not those of its operator"
    static = all(t.is_static for t in types)
    if piece.constant and not (static and all(k is None or k[1] for k in known)):
        return "it is not constant"
    for named, kind in zip(piece.outputs, types, strict=True):
        if named != -1 and not (0 <= named < len(region.values) and region.types[region.values[named]] == kind):
            return "it takes the name of another value"
    if piece.source != -1:
        if not 0 <= piece.source < len(region.steps):
            return "it is no step of the region"
        step = region.steps[piece.source]
        if (step.op, step.attributes, len(step.args)) != (piece.op, piece.attributes, len(piece.args)):
            return "it is another step of the region"
    return ""


def _looked_up(region: Region, plan: Plan, number: int, ref: Ref) -> tuple[TensorType, bool]:
    """The type of what a piece reads, and whether it is constant."""
    place, index = ref
    if place == OUTSIDE:
        if not 0 <= index < len(region.values):
            raise _Misfit("there is no such value")
        name = region.values[index]
        if index >= len(region.leaves) and name not in region.constant:
            raise _Misfit("a value of the region is read from outside")
        return region.types[name], name in region.constant
    if not (0 <= place < number and 0 <= index < len(plan.pieces[place].types)):
        raise _Misfit("it reads what does not come before")
    return plan.pieces[place].types[index], plan.pieces[place].constant

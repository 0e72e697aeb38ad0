"""Plans as JSON data, and whether a plan that was read fits the region it is to be replayed on.

A file is not evidence: every reference, type and constancy of a plan is computed again from the operators' records, so
what does not fit this region exactly is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from superopt.ir.poly import Atom, Dim, Poly, Quotient
from superopt.ir.terms import AttributeValue
from superopt.ir.types import DType, TensorType
from superopt.ops.meaning import IllTyped
from superopt.ops.record import Operator
from superopt.search.lower import Region
from superopt.search.optimise import Found
from superopt.search.plan import OUTSIDE, Piece, Plan, Ref

__all__ = ["BadDataError", "found_as_data", "found_from_data", "problem_with"]

_MOST = 10_000  # pieces of a plan that is read


class BadDataError(ValueError):
    """The data are not those of a region's result."""


def found_as_data(found: Found) -> dict[str, Any]:
    """A region's result as JSON data."""
    return {
        "plan": None if found.plan is None else _plan_data(found.plan), "before": found.before,
        "e_nodes": found.e_nodes, "stopped": found.stopped, "gap": found.gap, "missed": found.missed,
        "quarantined": dict(found.quarantined),
    }  # fmt: skip


def found_from_data(data: Any) -> Found:
    """A region's result from JSON data.

    Raises:
        BadDataError: it is not that.
    """
    try:
        plan = None if data["plan"] is None else _plan(data["plan"])
        return Found(
            plan, _real(data["before"]), _whole(data["e_nodes"]), _text(data["stopped"]), _real(data["gap"]),
            _text(data["missed"]), {_text(k): _text(v) for k, v in data["quarantined"].items()},
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        raise BadDataError(f"not a region's result: {error!r}") from error


def _plan_data(plan: Plan) -> dict[str, Any]:
    return {
        "pieces": [
            [
                p.op, [[k, _value_data(v)] for k, v in p.attributes], [None if a is None else list(a) for a in p.args],
                list(p.outputs), [_type_data(t) for t in p.types], p.source, p.constant, p.rule,
            ]
            for p in plan.pieces
        ],
        "results": [list(r) for r in plan.results], "before": plan.before, "after": plan.after,
        "rules": dict(plan.rules), "grown": plan.grown,
    }  # fmt: skip


def _plan(data: Any) -> Plan:
    rows = data["pieces"]
    if not isinstance(rows, list) or len(rows) > _MOST:
        raise BadDataError("too many pieces")
    pieces = tuple(
        Piece(
            _text(op), tuple((_text(k), _value(v)) for k, v in attributes),
            tuple(None if a is None else _ref(a) for a in args), tuple(map(_whole, outputs)), tuple(map(_type, types)),
            _whole(source), bool(constant), _text(rule),
        )
        for op, attributes, args, outputs, types, source, constant, rule in rows
    )  # fmt: skip
    rules = {_text(k): _whole(v) for k, v in data["rules"].items()}
    results = tuple(map(_ref, data["results"]))
    return Plan(pieces, results, _real(data["before"]), _real(data["after"]), rules, _whole(data["grown"]))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise BadDataError(f"{value!r} is not text")
    return value


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadDataError(f"{value!r} is not an integer")
    return value


def _real(value: Any) -> float:
    if not isinstance(value, int | float) or not isfinite(value):
        raise BadDataError(f"{value!r} is not a number")
    return float(value)


def _ref(data: Any) -> Ref:
    piece, index = data
    return _whole(piece), _whole(index)


def _type_data(kind: TensorType) -> list[Any]:
    return [str(kind.dtype), [_value_data(d) for d in kind.shape or ()]]


def _type(data: Any) -> TensorType:
    dtype, shape = data
    return TensorType(DType(dtype), tuple(map(_dim, shape)))


def _dim(data: Any) -> Dim:
    size = _value(data)
    if not isinstance(size, int | Poly):
        raise BadDataError(f"{size!r} is not a size")
    return size


def _value_data(value: AttributeValue) -> Any:
    if isinstance(value, tuple):
        return [_value_data(v) for v in value]
    if isinstance(value, Poly):
        return {"sum": [[[_atom_data(a) for a in monomial], coefficient] for monomial, coefficient in value.terms]}
    return value


def _atom_data(atom: Atom) -> Any:
    return [_value_data(atom.numerator), _value_data(atom.denominator)] if isinstance(atom, Quotient) else atom


def _value(data: Any) -> AttributeValue:
    if isinstance(data, list):
        return tuple(map(_value, data))
    if isinstance(data, dict):
        return Poly.make({tuple(map(_atom, monomial)): _whole(c) for monomial, c in data["sum"]})
    if isinstance(data, bool) or not isinstance(data, int | float | str):
        raise BadDataError(f"{data!r} is not an attribute")
    return data


def _atom(data: Any) -> Atom:
    if isinstance(data, str):
        return data
    numerator, denominator = data
    return Quotient(_dim(numerator), _dim(denominator))


def problem_with(region: Region, found: Found, operators: Mapping[str, Operator]) -> str:
    """Why a result cannot be that of a region; empty if it can."""
    plan = found.plan
    if plan is None:
        return ""
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
    except (BadDataError, IllTyped, KeyError, IndexError) as error:
        return str(error)
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
            raise BadDataError("there is no such value")
        name = region.values[index]
        if index >= len(region.leaves) and name not in region.constant:
            raise BadDataError("a value of the region is read from outside")
        return region.types[name], name in region.constant
    if not (0 <= place < number and 0 <= index < len(plan.pieces[place].types)):
        raise BadDataError("it reads what does not come before")
    return plan.pieces[place].types[index], plan.pieces[place].constant

"""Constants that a plan makes and that their element type does not hold: then the plan is not taken.

``(x · 10⁻⁴) · 10⁻⁴`` in float16 has no ``x · 10⁻⁸``: the product of the constants is 0 there. Elements of the plan's
constants are computed in float64; rounding each to its type must lose no more than rounding does.
"""

from __future__ import annotations

import numpy as np

from superopt.ir.graph import WeightData
from superopt.ir.types import DType, TensorType
from superopt.ops import REGISTRY
from superopt.ops.meaning import Call, Read, Reduce, Scalar, parts
from superopt.program.constant_folding import FoldedData, data_of
from superopt.program.constants import is_moving
from superopt.program.program import Program
from superopt.program.step import Step
from superopt.regions.lowering import Region
from superopt.regions.plan import OUTSIDE, Piece, Plan, Ref
from superopt.runtime.reference import at_dtype

__all__ = ["Losses"]

_HALF = {DType.FLOAT16: 2.0**-11, DType.BFLOAT16: 2.0**-8, DType.FLOAT32: 2.0**-24}  # of a unit in the last place of 1


class Losses:
    """What plans lose by rounding their constants; each constant is computed once in a search."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, TensorType, bool], str] = {}

    def of(self, program: Program, region: Region, plan: Plan) -> str:
        """Why a plan's constants are not usable; empty where they are, or have no elements to look at."""
        pieces = plan.pieces
        if not any(p.constant for p in pieces):
            return ""
        wanted: dict[Ref, bool] = dict.fromkeys((r for r in plan.results if _is_made(plan, r)), True)
        for piece in (p for p in pieces if not p.constant):
            for position, ref in enumerate(piece.args):
                if ref is not None and _is_made(plan, ref):
                    wanted[ref] = wanted.get(ref, False) or _scales(plan, region, piece, position)
        steps = [
            Step(p.op, tuple(None if a is None else _called(region, a) for a in p.args), p.attributes,
                 tuple(_called(region, (n, i)) for i in range(len(p.types))), None, "")
            for n, p in enumerate(pieces) if p.constant
        ]  # fmt: skip
        made = {o: s for s in steps for o in s.outputs}
        types = {_called(region, (n, i)): t for n, p in enumerate(pieces) for i, t in enumerate(p.types)}
        types |= {n: region.types[n] for n in region.constant}
        for ref, alone in wanted.items():
            data = _data(program, made, types, _called(region, ref))
            why = "" if data is None else self._lost(program, data, alone)
            if why:
                return why
        return ""

    def _lost(self, program: Program, data: FoldedData, alone: bool) -> str:
        kind = data.types[data.output]
        key = (data.described(program.same), kind, alone)
        if key not in self._known:
            self._known[key] = lost(data, alone)
        return self._known[key]


def lost(data: FoldedData, alone: bool) -> str:
    """What rounding a constant to its type loses beyond rounding, in words.

    Args:
        data: how it is computed.
        alone: each element counts by itself, as a factor of one element; else it is one of the terms of a sum, where
            only errors count that are not small beside the largest.
    """
    dtype = data.types[data.output].dtype
    if dtype not in _HALF or all(s.args and is_moving(s, data.types) for s in data.steps):
        return ""
    half = _HALF[dtype]
    scale = worst = 0.0  # of all elements the largest; the largest error that an element's own size does not excuse
    for wide in data.blocks():
        with np.errstate(all="ignore"):
            rounded = at_dtype(wide, dtype).astype(np.float64)
            finite = np.isfinite(wide)
            if not finite.all():
                if all(_finite(s) for s in data.sources.values()):  # an infinite mask may stay one
                    return f"a constant leaves the range of {dtype}"
                wide, rounded = wide[finite], rounded[finite]
            if not np.isfinite(rounded).all():
                return f"a constant leaves the range of {dtype}"
            size, error = np.abs(wide), np.abs(rounded - wide)
        scale = max(scale, float(size.max(initial=0.0)))
        excused = 2 * half * size if alone else 0.0
        worst = max(worst, float(np.max(error, where=error > excused, initial=0.0)))
    # One term of a sum: an error as small as that of rounding the largest. A factor: its own rounding error, or
    # something smaller than that of an error of the largest, twice rounded away.
    if worst > 2 * half * scale * (half if alone else 1.0):
        return f"a constant of size {scale:.1e} is too small for {dtype}"
    return ""


def _finite(data: WeightData) -> bool:
    array = np.asarray(data.numpy())
    return array.dtype.kind in "biu" or bool(np.isfinite(array.astype(np.float64)).all())


def _is_made(plan: Plan, ref: Ref) -> bool:
    return ref[0] != OUTSIDE and plan.pieces[ref[0]].constant


def _called(region: Region, ref: Ref) -> str:
    """A name for what a reference is to; no value of a model is called like a piece's."""
    return region.values[ref[1]] if ref[0] == OUTSIDE else f"\0{ref[0]}.{ref[1]}"


def _data(program: Program, made: dict[str, Step], types: dict[str, TensorType], name: str) -> FoldedData | None:
    """The elements of a value that steps make of the program's constants; ``None`` where those have none."""
    needed: dict[int, Step] = {}
    sources: dict[str, WeightData] = {}
    stack = [name]
    order = {id(s): i for i, s in enumerate(dict.fromkeys(made.values()))}
    while stack:
        here = stack.pop()
        step = made.get(here)
        if step is not None:
            if order[id(step)] not in needed:
                needed[order[id(step)]] = step
                stack.extend(a for a in step.args if a is not None)
            continue
        weight = program.graph.constants.get(here)
        found = data_of(program, here) if weight is None else weight.data
        if found is None:
            return None
        sources[here] = found
    return FoldedData(tuple(needed[i] for i in sorted(needed)), sources, types, name)


def _scales(plan: Plan, region: Region, piece: Piece, position: int) -> bool:
    """Whether an operand is a factor of single elements, in no sum: one that is tiny is not lost among others."""
    given = [None if a is None else _type(plan, region, a) for a in piece.args]
    meaning, _ = REGISTRY[piece.op].apply(given, dict(piece.attributes))
    return any(_is_factor(c.body, position) for c in meaning.outputs)


def _type(plan: Plan, region: Region, ref: Ref) -> TensorType:
    return region.types[region.values[ref[1]]] if ref[0] == OUTSIDE else plan.pieces[ref[0]].types[ref[1]]


def _is_factor(body: Scalar, operand: int) -> bool:
    """Whether an element of an operand is read in a scalar under anything but sums and choices."""
    stack = [(body, False)]
    while stack:
        scalar, inside = stack.pop()
        match scalar:
            case Read(number):
                if inside and number == operand:
                    return True
            case Reduce("sum"):
                pass
            case Call(function, args):
                inside = inside or function not in ("add", "max", "min", "select")
                stack.extend((a, inside) for a in args)
            case _:
                stack.extend((p, inside) for p in parts(scalar))
    return False

"""Deliberate rounding: steps whose only effect is a rounding error. No rule may rewrite them.

``hi = a - (a - x)`` with ``a = 4097·x`` is the upper half of the bits of ``x`` (Veltkamp 1968). ``(x + C) - C`` rounds
``x`` to a multiple of C's last bit. ``(s - a) - b`` with ``s = a + b`` is the error of the sum (Møller 1965, Kahan
1965, Dekker 1971). Over the reals they are ``x``, ``x`` and 0, so rules that are proved over the reals would remove
them.

Each value is written as a linear combination of atoms; values that are equal over the reals are one atom. In all of the
above an atom enters a sum twice with coefficients that cancel, wholly or nearly, after a rounding. The same holds for a
butterfly, ``(a + b) + (a - b)``, whose rounding is not deliberate. A sum is deliberate

- where nothing is left of one of its operands: ``s - a`` removes ``a`` from a sum that contains it;
- or where the cancelling term is of the format's scale, so that adding it rounded the others: ``(x + C) - (y + C)``.

``(x + y) - x`` alone, without a constant and without an error computed from it, is the first half of Møller's and
Dekker's sums. A graph does not say whether its rounding is wanted, so it stays.

A cast to a narrower type and back is deliberate, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import ceil, frexp, inf

import ml_dtypes
import numpy as np

from superopt.ir.graph import WeightData
from superopt.ir.types import DType, TensorType
from superopt.ops import REGISTRY
from superopt.ops.operator_semantics import (
    ElementRead,
    IllTypedOperator,
    ScalarCall,
    ScalarExpression,
    ScalarReduction,
    parts,
)
from superopt.program.constant_folding import FoldedWeightData, data_of
from superopt.program.graph_program import GraphProgram, ProgramStep, only_moves_elements
from superopt.regions.region_egraph import ProgramRegion
from superopt.regions.region_plan import OUTSIDE, Ref, RegionPlan, RegionPlanNode
from superopt.runtime.reference import at_dtype

__all__ = ["ConstantRoundingErrors", "guard_deliberate_rounding", "deliberate_roundings"]


# -- Rounding ------------------------------------------------------------------------------------------------------


_NEARLY = 1 / 16  # share of the coefficients that is left at most: bfloat16, of 8 bits, is split by C = 17, 17 - 16 = 1
_MOST_TERMS = 128  # of a combination; a longer one begins anew with one atom for what was summed so far
_SMALL = 1 << 16  # elements of a constant that is looked at
_SUMS = frozenset({"Add", "Sub", "Sum", "Mean"})
_SCALES = frozenset({"Mul", "Div"})
_NO_STEP: frozenset[int] = frozenset()
_SHOWN = 6  # names in a note
_ONE = -1  # the atom of which constants of one value are multiples

Terms = Mapping[int, float]


@dataclass(frozen=True)
class _Form:
    """A value as a combination of atoms; ``rounded``: it is only so up to rounding errors."""

    terms: Terms
    rounded: bool


def guard_deliberate_rounding(program: GraphProgram) -> tuple[GraphProgram, tuple[str, ...]]:
    """The program with every step of a rounding trick as a barrier, carried through as it is; and a note of it."""
    found = sorted(deliberate_roundings(program))
    if not found:
        return program, ()
    steps = list(program.steps)
    for position in found:
        node = steps[position].node
        if node is not None:
            steps[position] = ProgramStep("", (), (), node.outputs, node, steps[position].name)
    names = ", ".join(steps[i].name for i in found[:_SHOWN]) + (" …" if len(found) > _SHOWN else "")
    return replace(program, steps=tuple(steps)), (
        f"{len(found)} operators round on purpose and stay as they are: {names}",
    )


def deliberate_roundings(program: GraphProgram) -> frozenset[int]:
    """Positions of the steps that round on purpose, of the input's own steps that run."""
    return _Sums(program).found() | _casts(program)


def _casts(program: GraphProgram) -> frozenset[int]:
    """Casts to a narrower type, and those back to a wider one that follow, nothing rounding in between."""
    narrowed: dict[str, frozenset[int]] = {}  # value → the casts that made it narrower
    found: set[int] = set()
    for position in program.running:
        step = program.steps[position]
        if step.op == "" or not any(step.outputs):
            continue
        before = _NO_STEP.union(*(narrowed.get(a, _NO_STEP) for a in step.args if a is not None))
        if step.op in ("Cast", "CastLike"):
            source, target = program.types[step.args[0] or ""].dtype, program.types[step.outputs[0]].dtype
            known = REGISTRY[step.op].rounding([program.types[step.args[0] or ""]], dict(step.attributes))
            if before and target.is_float and (not source.is_float or known.exact) and source != target:
                found |= {*before, position}
                before = _NO_STEP
            elif known.narrows:
                before = frozenset({position})
        elif not before or not _is_exact(program, step):
            continue
        narrowed.update((o, before) for o in step.outputs if o)
    return frozenset(found)


def _is_exact(program: GraphProgram, step: ProgramStep) -> bool:
    types = [None if a is None else program.types[a] for a in step.args]
    try:
        return REGISTRY[step.op].rounding(types, dict(step.attributes)).exact
    except IllTypedOperator:
        return False


class _Sums:
    """Combinations of all values of a program, in order."""

    def __init__(self, program: GraphProgram) -> None:
        self.program = program
        self.atoms: dict[object, int] = {}
        self.forms: dict[str, _Form] = {}
        self.magnitudes: dict[int, float] = {}  # of atoms that are constants: of their largest element

    def found(self) -> frozenset[int]:
        positions: set[int] = set()
        for position in self.program.running:
            step = self.program.steps[position]
            if step.op == "" or not any(step.outputs):
                continue
            parts = self._parts(step)
            if parts is not None and step.op in _SUMS:
                positions |= self._deliberate(position, parts)
            elif step.op in _SCALES and any(self._is_error(a) for a in step.args if a is not None):
                positions.add(position)
            self._define(step, parts)
        return frozenset(positions)

    def form(self, name: str) -> _Form:
        known = self.forms.get(name)
        if known is None:
            known = self.forms[name] = self._constant(name) or _Form({self._atom(("value", name)): 1.0}, False)
        return known

    def _atom(self, key: object) -> int:
        return self.atoms.setdefault(key, len(self.atoms))

    def _constant(self, name: str) -> _Form | None:
        """A constant: a number where all its elements are one, else an atom, the same for equal ones."""
        program = self.program
        if name not in program.constant or not program.types[name].dtype.is_float:
            return None
        known = program.facts.get(name)
        value = None if known is None else known.uniform
        if value is None and name in program.maker:
            data = data_of(program, name) if _is_small(program.types[name].elements) else None
            if isinstance(data, FoldedWeightData):
                elements = np.asarray(data.numpy()).reshape(-1).astype(np.float64)
                if elements.size and bool((elements == elements[0]).all()):
                    value = float(elements[0])
                else:
                    return self._of_constant(data.described(program.same), float(np.abs(elements).max(initial=0.0)))
        if value is not None and np.isfinite(value):
            return _Form({_ONE: value} if value else {}, False)
        return self._of_constant(("value", program.same.get(name, name)), inf)

    def _of_constant(self, key: object, magnitude: float) -> _Form:
        atom = self._atom(key)
        self.magnitudes[atom] = magnitude
        return _Form({atom: 1.0}, False)

    def _parts(self, step: ProgramStep) -> list[tuple[float, str]] | None:
        """The step as a sum of operands times numbers, or ``None`` if it is none."""
        args = [a for a in step.args if a is not None]
        if not args or not self.program.types[step.outputs[0]].dtype.is_float:
            return None
        if step.op in _SUMS:
            share = 1.0 / len(args) if step.op == "Mean" else 1.0
            return [(-1.0 if step.op == "Sub" and i else share, a) for i, a in enumerate(args)]
        if step.op == "Neg":
            return [(-1.0, args[0])]
        if step.op in _SCALES:
            left, right = (self._number(a) for a in args)
            if right:
                return [(right if step.op == "Mul" else 1.0 / right, args[0])]
            if left and step.op == "Mul":
                return [(left, args[1])]
        return None

    def _number(self, name: str) -> float | None:
        """The one value of a constant."""
        if name not in self.program.constant:
            return None
        terms = self.form(name).terms
        return terms.get(_ONE) if terms.keys() == {_ONE} else None

    def _is_error(self, name: str) -> bool:
        """Whether a value is 0 over the reals, and only not 0 because something was rounded."""
        form = self.forms.get(name)
        return form is not None and form.rounded and not form.terms

    def _deliberate(self, position: int, parts: list[tuple[float, str]]) -> set[int]:
        """The steps of a trick that ends in a sum; none where it is no trick."""
        forms = [(share, self.form(a)) for share, a in parts]
        seen, twice = set[int](), set[int]()
        for _, form in forms:
            twice |= form.terms.keys() & seen
            seen |= form.terms.keys()
        gone = set[int]()
        for atom in twice:
            given = [(share * f.terms[atom], f) for share, f in forms if atom in f.terms]
            left, all_ = sum(c for c, _ in given), sum(abs(c) for c, _ in given)
            if abs(left) <= _NEARLY * all_ and any(f.rounded for _, f in given):
                gone.add(atom)
        if any(f.terms and gone.issuperset(f.terms) for _, f in forms) or self._is_of_scale(position, forms, gone):
            return {position, *self._chain([a for _, a in parts], gone)}
        return {position} if any(self._is_error(a) for _, a in parts) else set()

    def _is_of_scale(self, position: int, forms: Sequence[tuple[float, _Form]], gone: AbstractSet[int]) -> bool:
        """Whether some of what cancels is so large that terms of magnitude 1 lost half of their bits beside it."""
        scale = _scale_of(self.program.types[self.program.steps[position].outputs[0]].dtype)
        return any(
            abs(share * form.terms.get(atom, 0.0)) * self.magnitudes.get(atom, 1.0) >= scale
            for share, form in forms
            for atom in gone
        )

    def _chain(self, operands: Sequence[str], gone: AbstractSet[int]) -> Iterator[int]:
        """The sums and scalings by which atoms came into the operands, up to the sum from which their ways part."""
        ways: dict[str, set[int]] = {}
        queue: list[tuple[int, str]] = []

        def reach(name: str, way: Iterable[int]) -> None:
            position = self.program.maker.get(name)
            if position is None or name in self.program.constant or gone.isdisjoint(self.form(name).terms):
                return
            if name not in ways:
                heappush(queue, (-position, name))  # latest first: all ways to it are known
            ways.setdefault(name, set()).update(way)

        for number, name in enumerate(operands):
            reach(name, [number])
        while queue:
            place, name = heappop(queue)
            step = self.program.steps[-place]
            if step.op == "" or (len(ways[name]) > 1 and step.op in _SUMS):
                continue
            sources = [a for _, a in self._parts(step) or ()] or list(self._moved(step))
            if sources:
                yield -place
            for source in sources:
                reach(source, ways[name])

    def _moved(self, step: ProgramStep) -> Iterable[str]:
        """What a step puts in other places, if it puts one value there and nothing else."""
        args = [a for a in step.args if a is not None]
        return args if len(args) == 1 and len(step.outputs) == 1 and self.program.is_drawn(step) else []

    def _define(self, step: ProgramStep, parts: list[tuple[float, str]] | None) -> None:
        if parts is not None:
            self.forms[step.outputs[0]] = self._combined(step.op, parts)
            return
        moved = list(self._moved(step))
        if moved:
            form = self.form(moved[0])
            plain = step.op in ("Identity", "Dropout")
            head = (step.op, step.attributes)
            atoms = {a: a if plain or a == _ONE else self._atom((head, a)) for a in form.terms}
            self.magnitudes.update((atoms[a], self.magnitudes[a]) for a in atoms if a in self.magnitudes)
            self.forms[step.outputs[0]] = _Form({atoms[a]: c for a, c in form.terms.items()}, form.rounded)
            return
        forms = [None if a is None else self.form(a) for a in step.args]
        rounded = any(f is not None and f.rounded for f in forms)
        zero = step.op == "Mul" and any(f is not None and not f.terms for f in forms)
        keys = [None if f is None else tuple(sorted(f.terms.items())) for f in forms]
        if REGISTRY[step.op].commutative:
            keys.sort(key=repr)
        for index, output in enumerate(step.outputs):
            if output:
                atom = self._atom((step.op, step.attributes, tuple(keys), index))
                self.forms[output] = _Form({} if zero else {atom: 1.0}, rounded)

    def _combined(self, op: str, parts: list[tuple[float, str]]) -> _Form:
        terms: dict[int, float] = {}
        largest: dict[int, float] = {}
        for share, name in parts:
            for atom, coefficient in self.form(name).terms.items():
                terms[atom] = terms.get(atom, 0.0) + share * coefficient
                largest[atom] = max(largest.get(atom, 0.0), abs(share * coefficient))
        kept = {a: c for a, c in terms.items() if abs(c) > 1e-12 * largest[a]}  # what float64 leaves of zero is zero
        if len(kept) > _MOST_TERMS:
            longest = max((a for _, a in parts), key=lambda a: len(self.form(a).terms))
            if len(self.form(longest).terms) > 1:
                self.forms[longest] = _Form({self._atom(("sum", longest)): 1.0}, self.form(longest).rounded)
                return self._combined(op, parts)
        exact = op == "Neg" or (op in _SCALES and all(abs(frexp(s)[0]) == 0.5 for s, _ in parts))
        rounded = any(self.form(a).rounded for _, a in parts)
        return _Form(kept, rounded or not (exact or not kept))  # x - x is 0, as long as nothing was rounded before


def _scale_of(dtype: DType) -> float:
    """Veltkamp's constant of a format, less one: 2 to half of its bits, rounded up."""
    bits = int(ml_dtypes.finfo(dtype.numpy).nmant) + 1  # type: ignore[no-untyped-call]
    return 2.0 ** ceil(bits / 2)


def _is_small(count: object) -> bool:
    return isinstance(count, int) and 0 < count <= _SMALL


# -- Representability ----------------------------------------------------------------------------------------------
#
# A plan is refused if the element type does not hold its constants. ``(x · 10⁻⁴) · 10⁻⁴`` in float16 has no ``x ·
# 10⁻⁸``: the product of the constants is 0. The elements of a plan's constants are computed in float64, and rounding
# them to their type must lose no more than rounding does.


_HALF = {DType.FLOAT16: 2.0**-11, DType.BFLOAT16: 2.0**-8, DType.FLOAT32: 2.0**-24}  # of a unit in the last place of 1


class ConstantRoundingErrors:
    """What plans lose by rounding their constants; each constant is computed once in a search."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, TensorType, bool], str] = {}

    def of(self, program: GraphProgram, region: ProgramRegion, plan: RegionPlan) -> str:
        """Why a plan's constants are not usable; empty where they are, or have no elements to look at."""
        pieces = plan.nodes
        if not any(p.constant for p in pieces):
            return ""
        wanted: dict[Ref, bool] = dict.fromkeys((r for r in plan.results if _is_constant(plan, r)), True)
        for piece in (p for p in pieces if not p.constant):
            for position, ref in enumerate(piece.args):
                if ref is not None and _is_constant(plan, ref):
                    wanted[ref] = wanted.get(ref, False) or _scales(plan, region, piece, position)
        steps = [
            ProgramStep(p.op, tuple(None if a is None else _called(region, a) for a in p.args), p.attributes,
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

    def _lost(self, program: GraphProgram, data: FoldedWeightData, alone: bool) -> str:
        kind = data.types[data.output]
        key = (data.described(program.same), kind, alone)
        if key not in self._known:
            self._known[key] = rounding_loss(data, alone)
        return self._known[key]


def rounding_loss(data: FoldedWeightData, alone: bool) -> str:
    """What rounding a constant to its type loses beyond rounding, in words.

    Args:
        data: how it is computed.
        alone: each element counts by itself, as a factor of one element; else it is one of the terms of a sum, where
            only errors count that are not small beside the largest.
    """
    dtype = data.types[data.output].dtype
    if dtype not in _HALF or all(s.args and only_moves_elements(s, data.types) for s in data.steps):
        return ""
    half, least = _HALF[dtype], float(ml_dtypes.finfo(dtype.numpy).smallest_normal)  # type: ignore[no-untyped-call]
    scale = worst = 0.0  # of all elements the largest; the largest error that an element's own size does not excuse
    for wide in data.blocks():
        size = np.abs(wide)
        largest = float(size.max(initial=0.0))
        if not np.isfinite(largest):
            if all(_finite(s) for s in data.sources.values()):  # an infinite mask may stay one
                return f"a constant leaves the range of {dtype}"
            finite = np.isfinite(wide)
            wide, size = wide[finite], size[finite]
            largest = float(size.max(initial=0.0))
        with np.errstate(all="ignore"):
            if not np.isfinite(at_dtype(np.asarray(largest), dtype).astype(np.float64)):
                return f"a constant leaves the range of {dtype}"
            scale = max(scale, largest)
            tiny = size < least  # others lose half a unit of their last place: less than what counts
            if tiny.any():
                error = np.abs(at_dtype(wide[tiny], dtype).astype(np.float64) - wide[tiny])
                excused = 2 * half * size[tiny] if alone else 0.0
                worst = max(worst, float(np.max(error, where=error > excused, initial=0.0)))
    # One term of a sum: an error as small as that of rounding the largest. A factor: its own rounding error, or
    # something smaller than that of an error of the largest, twice rounded away.
    if worst > 2 * half * scale * (half if alone else 1.0):
        return f"a constant of size {scale:.1e} is too small for {dtype}"
    return ""


def _finite(data: WeightData) -> bool:
    array = np.asarray(data.numpy())
    return array.dtype.kind in "biu" or bool(np.isfinite(array.astype(np.float64)).all())


def _is_constant(plan: RegionPlan, ref: Ref) -> bool:
    return ref[0] != OUTSIDE and plan.nodes[ref[0]].constant


def _called(region: ProgramRegion, ref: Ref) -> str:
    """A name for what a reference is to; no value of a model is called like a piece's."""
    return region.values[ref[1]] if ref[0] == OUTSIDE else f"\0{ref[0]}.{ref[1]}"


def _data(
    program: GraphProgram, made: dict[str, ProgramStep], types: dict[str, TensorType], name: str
) -> FoldedWeightData | None:
    """The elements of a value that steps make of the program's constants; ``None`` where those have none."""
    needed: dict[int, ProgramStep] = {}
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
    return FoldedWeightData(tuple(needed[i] for i in sorted(needed)), sources, types, name)


def _scales(plan: RegionPlan, region: ProgramRegion, piece: RegionPlanNode, position: int) -> bool:
    """Whether an operand is a factor of single elements, in no sum: one that is tiny is not lost among others."""
    given = [None if a is None else _type(plan, region, a) for a in piece.args]
    meaning, _ = REGISTRY[piece.op].apply(given, dict(piece.attributes))
    return any(_is_factor(c.body, position) for c in meaning.outputs)


def _type(plan: RegionPlan, region: ProgramRegion, ref: Ref) -> TensorType:
    return region.types[region.values[ref[1]]] if ref[0] == OUTSIDE else plan.nodes[ref[0]].types[ref[1]]


def _is_factor(body: ScalarExpression, operand: int) -> bool:
    """Whether an element of an operand is read in a scalar under anything but sums and choices."""
    stack = [(body, False)]
    while stack:
        scalar, inside = stack.pop()
        match scalar:
            case ElementRead(number):
                if inside and number == operand:
                    return True
            case ScalarReduction("sum"):
                pass
            case ScalarCall(function, args):
                inside = inside or function not in ("add", "max", "min", "select")
                stack.extend((a, inside) for a in args)
            case _:
                stack.extend((p, inside) for p in parts(scalar))
    return False

"""Axes that an index variable occurs on: in a step's results, in the indices of its operands, in its sums.

Removing positions of a variable removes slices from each axis whose index contains it. The analysis says which of them
can be removed together, as far as the meaning shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from superopt.ir.size_polynomial import Dim, SizePolynomial, sym, symbols
from superopt.ir.types import TensorType
from superopt.ops.operator_semantics import (
    ElementRead,
    IndexCondition,
    OperatorSemantics,
    ScalarCall,
    ScalarConditional,
    ScalarConstant,
    ScalarExpression,
    ScalarReduction,
    SizeExpression,
    subexpressions,
)
from superopt.passes.weights.slice_analysis import LONGEST, SliceAnalysis, extents_of, table
from superopt.program.graph_program import GraphProgram, ProgramStep

__all__ = [
    "RemovedSumTerms",
    "IndexedAxis",
    "IndexVariableAxes",
    "WeightedSum",
    "SliceRemoval",
    "step_axes",
    "products_of",
    "removal_of",
    "sums_of",
]


# -- Axes of an index ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class IndexedAxis:
    """An axis of a value and how it is indexed.

    Attributes:
        value: its name.
        axis: which.
        variables: in its index, the digits of an array.
        at: the position on the axis for every assignment of them.
        active: for which assignments it is read at all.
        injective: whether no position is there for two assignments; without, none can be removed.
        operand: of the step; ``None`` for a result.
    """

    value: str
    axis: int
    variables: tuple[str, ...]
    at: np.ndarray
    active: np.ndarray
    injective: bool
    operand: int | None

    def removed(self, removed: Mapping[str, np.ndarray]) -> np.ndarray:
        """The assignments that are gone where these positions of variables are."""
        gone = np.zeros(self.at.shape, dtype=bool)
        for place, variable in enumerate(self.variables):
            shape = [1] * self.at.ndim
            shape[place] = -1
            gone |= removed[variable].reshape(shape)
        return gone


@dataclass(frozen=True, eq=False)
class IndexVariableAxes:
    """A step's variables: their extents, the axes they index, and those that must stay as they are."""

    step: ProgramStep
    meaning: OperatorSemantics
    extents: Mapping[str, int]
    indices: tuple[IndexedAxis, ...]
    pinned: frozenset[str]
    sums: Mapping[str, ScalarReduction]


@dataclass(frozen=True)
class WeightedSum:
    """A sum ``Σ_r data[…r…] · weight[…r…]``: its terms are linear in a weight.

    Attributes:
        data, weight: the reads.
        plain: whether no condition on other variables cuts terms off.
    """

    data: ElementRead
    weight: ElementRead
    plain: bool


def step_axes(step: ProgramStep, meaning: OperatorSemantics, types: Mapping[str, TensorType]) -> IndexVariableAxes:
    """Read a step's variables off its meaning, given the types of the values that it reads."""
    every = extents_of(meaning)
    extents = {v: e for v, e in every.items() if isinstance(e, int) and 1 < e <= LONGEST}
    pinned = {v for v in every if v not in extents}
    indices: list[IndexedAxis] = []
    for output, comprehension in zip(step.outputs, meaning.outputs, strict=False):
        for axis, digits in enumerate(comprehension.axes):
            names = tuple(v for v, _ in digits)
            if output and names and all(n in extents for n in names):
                sizes = [extents[n] for n in names]
                at = np.arange(prod(sizes)).reshape(sizes)
                indices.append(IndexedAxis(output, axis, names, at, np.ones(at.shape, dtype=bool), True, None))
            else:
                pinned.update(names)
        for scalar, conditions in _walk(comprehension.body):
            match scalar:
                case SizeExpression(polynomial):
                    pinned |= symbols(polynomial)
                case ScalarReduction(kind, variable) if kind != "sum":
                    pinned.add(variable)
                case ElementRead(operand, index):
                    name = step.args[operand]
                    assert name is not None, "a meaning read an absent operand"
                    for axis, position in enumerate(index):
                        size = (types[name].shape or ())[axis]
                        found = _index(name, axis, position, conditions, extents, operand, size)
                        if isinstance(found, IndexedAxis):
                            indices.append(found)
                        elif isinstance(size, int):  # any of it may be read
                            every_one = np.ones(size, dtype=bool)
                            indices.append(IndexedAxis(name, axis, (), np.arange(size), every_one, False, operand))
                        pinned |= _stuck(position, found)
    for comprehension in meaning.outputs:
        for scalar, _ in _walk(comprehension.body):
            if isinstance(scalar, ScalarConditional):
                for condition in scalar.conditions:
                    together = symbols(condition.size)
                    pinned |= together if len(together) > 1 else frozenset()
    return IndexVariableAxes(step, meaning, extents, tuple(indices), frozenset(pinned), sums_of(step, meaning))


def sums_of(step: ProgramStep, meaning: OperatorSemantics) -> Mapping[str, ScalarReduction]:
    """A step's sums, by the variable that each is over."""
    bodies = [c.body for _, c in zip(step.outputs, meaning.outputs, strict=False)]
    every = [s for body in bodies for s, _ in _walk(body)]
    return {s.variable: s for s in every if isinstance(s, ScalarReduction) and s.kind == "sum"}


def _walk(body: ScalarExpression) -> Iterator[tuple[ScalarExpression, tuple[IndexCondition, ...]]]:
    """Every scalar with the conditions under which it counts; ``otherwise`` branches have them negated, as "not"."""
    stack: list[tuple[ScalarExpression, tuple[IndexCondition, ...]]] = [(body, ())]
    seen: set[tuple[int, tuple[IndexCondition, ...]]] = set()
    while stack:
        scalar, conditions = stack.pop()
        if (id(scalar), conditions) in seen:
            continue
        seen.add((id(scalar), conditions))
        yield scalar, conditions
        match scalar:
            case ScalarCall(_, args):
                stack += [(a, conditions) for a in args]
            case ScalarReduction(_, _, _, inner):
                stack.append((inner, conditions))
            case ScalarConditional(tests, then, otherwise):
                stack.append((then, (*conditions, *tests)))
                negated = tuple(IndexCondition(f"not {t.kind}", t.size) for t in tests) if len(tests) == 1 else ()
                stack.append((otherwise, (*conditions, *negated)))
            case ElementRead(_, index):
                stack += [(i, conditions) for i in index if isinstance(i, ScalarExpression)]


def _index(
    value: str,
    axis: int,
    position: Dim | ScalarExpression,
    conditions: Sequence[IndexCondition],
    extents: Mapping[str, int],
    operand: int,
    size: Dim,
) -> IndexedAxis | None:
    """How an axis is indexed; ``None`` where that cannot be told."""
    if isinstance(position, ScalarExpression):
        return None
    if isinstance(position, int):
        one = np.asarray(position)
        return IndexedAxis(value, axis, (), one, np.ones((), dtype=bool), True, operand)
    names = tuple(sorted(symbols(position)))
    if any(n not in extents for n in names):
        return None
    sizes = [extents[n] for n in names]
    if prod(sizes) > 1 << 22:
        return None
    grids = np.meshgrid(*(np.arange(s) for s in sizes), indexing="ij")
    found = table(position, {n: g.ravel() for n, g in zip(names, grids, strict=True)}, {})
    if found is None:
        return None
    at = found[:, 0].reshape(sizes)
    active = np.ones(at.shape, dtype=bool)
    for condition in conditions:
        inside = symbols(condition.size)
        if len(inside) == 1 and inside <= set(names):
            value_at = table(condition.size, {n: g.ravel() for n, g in zip(names, grids, strict=True)}, {})
            if value_at is not None:
                active &= _holds(condition.kind, value_at[:, 0]).reshape(sizes)
    chosen = at[active]
    last = size - 1 if isinstance(size, int) else LONGEST
    within = bool(((chosen >= 0) & (chosen <= last)).all())
    return IndexedAxis(
        value, axis, names, at.clip(0, last), active, within and np.unique(chosen).size == chosen.size, operand
    )


def _holds(kind: str, value: np.ndarray) -> np.ndarray:
    if kind.startswith("not "):
        return ~_holds(kind[4:], value)
    return value >= 0 if kind == "ge" else (value == 0) if kind == "eq" else (value != 0)


def _stuck(position: Dim | ScalarExpression, found: IndexedAxis | None) -> frozenset[str]:
    """Variables in an index that must keep all their positions."""
    if isinstance(position, ScalarExpression):
        reads = [s for s in subexpressions(position) if isinstance(s, ElementRead)]
        return frozenset(n for r in reads for i in r.index if isinstance(i, SizePolynomial) for n in symbols(i))
    if found is None or not found.injective:
        return symbols(position)
    return frozenset()


def products_of(body: ScalarExpression, variable: str, constant: Sequence[bool]) -> WeightedSum | None:
    """The product that a sum over a variable adds up, if it is one of data and of a weight that both have it."""
    plain = True
    while True:
        match body:
            case ScalarReduction("sum", _, _, inner):
                body = inner
            case ScalarConditional(_, then, ScalarConstant(value)) if value == 0:
                body, plain = then, False
            case _:
                break
    if not isinstance(body, ScalarCall) or body.function != "mul":
        return None
    first, second = body.args
    if not isinstance(first, ElementRead) or not isinstance(second, ElementRead):
        return None
    data, weight = (second, first) if constant[first.operand] else (first, second)
    if constant[data.operand] or not constant[weight.operand]:
        return None
    for read in (data, weight):
        if sum(isinstance(i, SizePolynomial) and variable in symbols(i) for i in read.index) != 1:
            return None
    return WeightedSum(data, weight, plain)


# -- Removal -------------------------------------------------------------------------------------------------------
#
# The largest set of slices that can be removed. The terms of a sum vanish where they are zero; one of two equal slices
# is removed by adding the weights that multiply them; a constant slice by adding its product with the weights to the
# result. Every other reader of a slice has to lose a slice of its own. The set is a greatest fixpoint: start with all
# slices, and keep those that some step needs.


_LEAST = 2  # positions that stay on an axis: an axis of one is another meaning, and saves hardly more
_MOST_ROUNDS = 10_000


@dataclass(frozen=True, eq=False)
class RemovedSumTerms:
    """How a sum does without terms.

    Attributes:
        product: of its terms; ``None`` where they only vanish.
        vanishing: bool[n], terms that are 0.
        merged: int64[n], the position whose data is equal, and whose weight takes on this one's; −1 for none.
        number: float64[n], of constant data; NaN for none.
    """

    product: WeightedSum | None
    vanishing: np.ndarray
    merged: np.ndarray
    number: np.ndarray

    @property
    def allowed(self) -> np.ndarray:
        return np.asarray(self.vanishing | (self.merged >= 0) | np.isfinite(self.number))


@dataclass(eq=False)
class SliceRemoval:
    """What is removed: slices of values, and positions of the variables of steps.

    Attributes:
        slices: (value, axis) → bool[n].
        variables: step → variable → bool[n].
        places, absorbed: what the steps are, and how sums do without terms.
        stuck: steps that could not be written without their slices.
    """

    program: GraphProgram
    places: Mapping[int, IndexVariableAxes]
    absorbed: Mapping[tuple[int, str], RemovedSumTerms]
    slices: dict[tuple[str, int], np.ndarray] = field(default_factory=dict)
    variables: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)
    stuck: set[int] = field(default_factory=set)

    def settle(self) -> bool:
        """Find the fixpoint; whether anything is left to remove."""
        self._assume()
        for _ in range(_MOST_ROUNDS):
            while sum(self._release(position) for position in self.places):
                pass
            if not self._keep_some():
                break
        return any(bool(gone.any()) for gone in self.slices.values())

    def _assume(self) -> None:
        self.slices.clear()
        for place in self.places.values():
            for name in place.step.outputs:
                shape = () if not name else self.program.types[name].shape or ()
                if name not in self.program.required_names:
                    self.slices.update(
                        ((name, axis), np.ones(size, dtype=bool)) for axis, size in enumerate(shape)
                        if isinstance(size, int) and size > 1
                    )  # fmt: skip
        for position, step in enumerate(self.program.steps):
            free_to_go = position in self.places and position not in self.stuck
            beside = [n for n in step.reads if n not in step.args]  # of a node that is kept as it is
            for name in beside if free_to_go else (*step.reads, *step.outputs):
                if name:
                    for axis in range(len(t.shape or ()) if (t := self.program.types.get(name)) else 0):
                        self.slices.pop((name, axis), None)
        for position, place in self.places.items():
            free: dict[str, np.ndarray] = {}
            for variable, extent in place.extents.items():
                absorbed = self.absorbed.get((position, variable))
                gone = np.full(extent, variable not in place.pinned and position not in self.stuck)
                if variable in place.sums:
                    gone = gone & (absorbed.allowed if absorbed is not None else False)
                free[variable] = gone
            self.variables[position] = free

    def _release(self, position: int) -> bool:
        """Take back what one step needs; whether that was anything."""
        place, free, changed = self.places[position], self.variables[position], False
        for index in place.indices:
            if index.value in self.program.constant:
                continue
            slices = self.slices.get((index.value, index.axis))
            missing = index.active if slices is None else index.active & ~slices[index.at]
            for digit, variable in enumerate(index.variables):
                others = tuple(d for d in range(index.at.ndim) if d != digit)
                needed = missing.any(axis=others) & free[variable]
                if needed.any():
                    free[variable] &= ~needed
                    changed = True
            if slices is not None:
                kept = index.at[index.active & ~index.removed(free)]
                if slices[kept].any():
                    slices[kept] = False
                    changed = True
        return changed

    def _keep_some(self) -> bool:
        """Leave every axis a few positions; whether that took anything back."""
        changed = False
        for gone in [*self.slices.values(), *(g for free in self.variables.values() for g in free.values())]:
            short = _LEAST - int((~gone).sum())
            if short > 0 and gone.any():
                gone[np.flatnonzero(gone)[:short]] = False
                changed = True
        return changed

    def gone(self, value: str) -> Mapping[int, np.ndarray]:
        """The axes of a value that lose slices, and which."""
        rank = len(t.shape or ()) if (t := self.program.types.get(value)) else 0
        found = {axis: self.slices.get((value, axis)) for axis in range(rank)}
        return {axis: gone for axis, gone in found.items() if gone is not None and gone.any()}


def removal_of(values: SliceAnalysis, *, sums: bool = True) -> SliceRemoval | None:
    """What sums can do without, before anything is taken back; ``None`` where that is nothing.

    Args:
        values: what is known of slices.
        sums: whether constant slices may be left out, for which something is added to the result.
    """
    program = values.program
    meanings = {p: m for p in program.running if (m := values.meaning(p)) is not None}
    absorbed = {
        (position, variable): found
        for position, meaning in meanings.items()
        for variable, reduction in sums_of(program.steps[position], meaning).items()
        if (found := _absorbed(values, program.steps[position], meaning, reduction, sums)) is not None
    }
    if not absorbed:
        return None
    return SliceRemoval(
        program, {p: step_axes(program.steps[p], m, program.types) for p, m in meanings.items()}, absorbed
    )


def _absorbed(
    values: SliceAnalysis, step: ProgramStep, meaning: OperatorSemantics, reduction: ScalarReduction, sums: bool
) -> RemovedSumTerms | None:
    kind, variable = values.program.types[step.outputs[0]].dtype, reduction.variable
    terms = values.terms(step, meaning, reduction) if kind.is_float else None
    if terms is None:
        return None
    vanishing = (terms.number == 0) & terms.exact
    merged, number = np.full(vanishing.shape, -1), np.full(vanishing.shape, np.nan)
    constant = [a is not None and a in values.program.constant for a in step.args]
    product = products_of(reduction.body, variable, constant)
    if product is not None and not _alone(product, variable):
        product = None
    if product is not None:
        data = values.slices(step.args[product.data.operand] or "", _axis(product.data.index, variable))
        if data is not None:
            if sums and product.data.outside is None and _lands(meaning, product, reduction):
                number = np.where(vanishing, np.nan, data.number)
            open_ones = np.flatnonzero(~vanishing & ~np.isfinite(number))
            first: dict[int, int] = {}
            for at in open_ones.tolist():
                representative = first.setdefault(int(data.identity[at]), at)
                if representative != at:
                    merged[at] = representative
    found = RemovedSumTerms(product, vanishing, merged, number)
    return found if bool(found.allowed.any()) else None


def _axis(index: tuple[object, ...], variable: str) -> int:
    return index.index(sym(variable))


def _alone(product: WeightedSum, variable: str) -> bool:
    """Whether the variable by itself is an index of both reads."""
    return sym(variable) in product.data.index and sym(variable) in product.weight.index


def _lands(meaning: OperatorSemantics, product: WeightedSum, reduction: ScalarReduction) -> bool:
    """Whether what constant data adds is a vector along axes of the result: the weight is indexed by single variables,
    each of a sum inside this one or an axis of the result, and the sum is a summand of the result."""
    if not product.plain or len(meaning.outputs) != 1:
        return False
    outer = meaning.outputs[0]
    own = {axis[0][0] for axis in outer.axes if len(axis) == 1}
    inner = {s.variable for s in _sums(reduction)}
    for index in product.weight.index:
        if isinstance(index, int):
            continue
        if not any(index == sym(v) for v in own | inner):
            return False
    if any(isinstance(i, ScalarExpression) for i in product.data.index):
        return False
    return _summand(outer.body, reduction)


def _sums(reduction: ScalarReduction) -> Iterator[ScalarReduction]:
    body: ScalarExpression = reduction
    while isinstance(body, ScalarReduction):
        yield body
        body = body.body


def _summand(body: ScalarExpression, reduction: ScalarReduction) -> bool:
    while body is not reduction:
        match body:
            case ScalarCall("add", (first, second)):
                if _has(first, reduction):
                    body = first
                elif _has(second, reduction):
                    body = second
                else:
                    return False
            case _:
                return False
    return True


def _has(body: ScalarExpression, reduction: ScalarReduction) -> bool:
    while body is not reduction:
        match body:
            case ScalarCall("add", (first, second)):
                return _has(first, reduction) or _has(second, reduction)
            case _:
                return False
    return True

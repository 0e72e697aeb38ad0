"""Which slices can go: the largest set of slices of all values that nothing else than vanishing terms depend on.

A sum's terms vanish where they are zero; one of two equal slices is spared by adding the weights that they meet; a
constant slice by adding its product with them to the result. Everything else that reads a slice has to lose its own
(:mod:`superopt.passes.weights.index_axes`). So the slices that can go are a greatest fixpoint: all are assumed to, and
those are taken back that something needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from superopt.ir.poly import sym
from superopt.ops.meaning import Call, Meaning, Reduce, Scalar
from superopt.passes.weights.index_axes import Place, Product, place_of, products_of, sums_of
from superopt.passes.weights.slice_analysis import Values
from superopt.program.program import Program
from superopt.program.step import Step

__all__ = ["Absorbed", "Removal", "removal_of"]

_LEAST = 2  # positions that stay on an axis: an axis of one is another meaning, and saves hardly more
_MOST_ROUNDS = 10_000


@dataclass(frozen=True, eq=False)
class Absorbed:
    """How a sum does without terms.

    Attributes:
        product: of its terms; ``None`` where they only vanish.
        vanishing: bool[n], terms that are 0.
        merged: int64[n], the position whose data is equal, and whose weight takes on this one's; −1 for none.
        number: float64[n], of constant data; NaN for none.
    """

    product: Product | None
    vanishing: np.ndarray
    merged: np.ndarray
    number: np.ndarray

    @property
    def allowed(self) -> np.ndarray:
        return np.asarray(self.vanishing | (self.merged >= 0) | np.isfinite(self.number))


@dataclass(eq=False)
class Removal:
    """What is removed: slices of values, and positions of the variables of steps.

    Attributes:
        slices: (value, axis) → bool[n].
        variables: step → variable → bool[n].
        places, absorbed: what the steps are, and how sums do without terms.
        stuck: steps that could not be written without their slices.
    """

    program: Program
    places: Mapping[int, Place]
    absorbed: Mapping[tuple[int, str], Absorbed]
    slices: dict[tuple[str, int], np.ndarray] = field(default_factory=dict)
    variables: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)
    stuck: set[int] = field(default_factory=set)

    def settle(self) -> bool:
        """Find the fixpoint; whether anything is left to remove."""
        self._assume()
        for _ in range(_MOST_ROUNDS):
            while sum(self._held(position) for position in self.places):
                pass
            if not self._keep_some():
                break
        return any(bool(gone.any()) for gone in self.slices.values())

    def _assume(self) -> None:
        self.slices.clear()
        for place in self.places.values():
            for name in place.step.outputs:
                shape = () if not name else self.program.types[name].shape or ()
                if name not in self.program.named:
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

    def _held(self, position: int) -> bool:
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


def removal_of(values: Values, *, sums: bool = True) -> Removal | None:
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
    return Removal(program, {p: place_of(program.steps[p], m, program.types) for p, m in meanings.items()}, absorbed)


def _absorbed(values: Values, step: Step, meaning: Meaning, reduction: Reduce, sums: bool) -> Absorbed | None:
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
    found = Absorbed(product, vanishing, merged, number)
    return found if bool(found.allowed.any()) else None


def _axis(index: tuple[object, ...], variable: str) -> int:
    return index.index(sym(variable))


def _alone(product: Product, variable: str) -> bool:
    """Whether the variable by itself is an index of both reads."""
    return sym(variable) in product.data.index and sym(variable) in product.weight.index


def _lands(meaning: Meaning, product: Product, reduction: Reduce) -> bool:
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
    if any(isinstance(i, Scalar) for i in product.data.index):
        return False
    return _summand(outer.body, reduction)


def _sums(reduction: Reduce) -> Iterator[Reduce]:
    body: Scalar = reduction
    while isinstance(body, Reduce):
        yield body
        body = body.body


def _summand(body: Scalar, reduction: Reduce) -> bool:
    while body is not reduction:
        match body:
            case Call("add", (first, second)):
                if _has(first, reduction):
                    body = first
                elif _has(second, reduction):
                    body = second
                else:
                    return False
            case _:
                return False
    return True


def _has(body: Scalar, reduction: Reduce) -> bool:
    while body is not reduction:
        match body:
            case Call("add", (first, second)):
                return _has(first, reduction) or _has(second, reduction)
            case _:
                return False
    return True

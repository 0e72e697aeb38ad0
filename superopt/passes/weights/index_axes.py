"""Where a step's index variables stand: on the axes of its results, in the indices of what it reads, in its sums.

Removing positions of a variable removes slices from every axis whose index it is in. :class:`Place` says which of them
can go together, as far as the meaning tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from superopt.ir.poly import Dim, Poly, symbols
from superopt.ir.types import TensorType
from superopt.ops.meaning import (
    Call,
    Condition,
    Meaning,
    Number,
    Read,
    Reduce,
    Scalar,
    SizeValue,
    Where,
    subexpressions,
)
from superopt.passes.weights.slice_analysis import LONGEST, extents_of, table
from superopt.program.step import Step

__all__ = ["Index", "Place", "Product", "place_of", "products_of", "sums_of"]


@dataclass(frozen=True, eq=False)
class Index:
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
class Place:
    """A step's variables: their extents, the axes they index, and those that must stay as they are."""

    step: Step
    meaning: Meaning
    extents: Mapping[str, int]
    indices: tuple[Index, ...]
    pinned: frozenset[str]
    sums: Mapping[str, Reduce]


@dataclass(frozen=True)
class Product:
    """A sum ``Σ_r data[…r…] · weight[…r…]``: its terms are linear in a weight.

    Attributes:
        data, weight: the reads.
        plain: whether no condition on other variables cuts terms off.
    """

    data: Read
    weight: Read
    plain: bool


def place_of(step: Step, meaning: Meaning, types: Mapping[str, TensorType]) -> Place:
    """Read a step's variables off its meaning, given the types of the values that it reads."""
    every = extents_of(meaning)
    extents = {v: e for v, e in every.items() if isinstance(e, int) and 1 < e <= LONGEST}
    pinned = {v for v in every if v not in extents}
    indices: list[Index] = []
    for output, comprehension in zip(step.outputs, meaning.outputs, strict=False):
        for axis, digits in enumerate(comprehension.axes):
            names = tuple(v for v, _ in digits)
            if output and names and all(n in extents for n in names):
                sizes = [extents[n] for n in names]
                at = np.arange(prod(sizes)).reshape(sizes)
                indices.append(Index(output, axis, names, at, np.ones(at.shape, dtype=bool), True, None))
            else:
                pinned.update(names)
        for scalar, conditions in _walk(comprehension.body):
            match scalar:
                case SizeValue(polynomial):
                    pinned |= symbols(polynomial)
                case Reduce(kind, variable) if kind != "sum":
                    pinned.add(variable)
                case Read(operand, index):
                    name = step.args[operand]
                    assert name is not None, "a meaning read an absent operand"
                    for axis, position in enumerate(index):
                        size = (types[name].shape or ())[axis]
                        found = _index(name, axis, position, conditions, extents, operand, size)
                        if isinstance(found, Index):
                            indices.append(found)
                        elif isinstance(size, int):  # any of it may be read
                            every_one = np.ones(size, dtype=bool)
                            indices.append(Index(name, axis, (), np.arange(size), every_one, False, operand))
                        pinned |= _stuck(position, found)
    for comprehension in meaning.outputs:
        for scalar, _ in _walk(comprehension.body):
            if isinstance(scalar, Where):
                for condition in scalar.conditions:
                    together = symbols(condition.size)
                    pinned |= together if len(together) > 1 else frozenset()
    return Place(step, meaning, extents, tuple(indices), frozenset(pinned), sums_of(step, meaning))


def sums_of(step: Step, meaning: Meaning) -> Mapping[str, Reduce]:
    """A step's sums, by the variable that each is over."""
    bodies = [c.body for _, c in zip(step.outputs, meaning.outputs, strict=False)]
    every = [s for body in bodies for s, _ in _walk(body)]
    return {s.variable: s for s in every if isinstance(s, Reduce) and s.kind == "sum"}


def _walk(body: Scalar) -> Iterator[tuple[Scalar, tuple[Condition, ...]]]:
    """Every scalar with the conditions under which it counts; ``otherwise`` branches have them negated, as "not"."""
    stack: list[tuple[Scalar, tuple[Condition, ...]]] = [(body, ())]
    seen: set[tuple[int, tuple[Condition, ...]]] = set()
    while stack:
        scalar, conditions = stack.pop()
        if (id(scalar), conditions) in seen:
            continue
        seen.add((id(scalar), conditions))
        yield scalar, conditions
        match scalar:
            case Call(_, args):
                stack += [(a, conditions) for a in args]
            case Reduce(_, _, _, inner):
                stack.append((inner, conditions))
            case Where(tests, then, otherwise):
                stack.append((then, (*conditions, *tests)))
                negated = tuple(Condition(f"not {t.kind}", t.size) for t in tests) if len(tests) == 1 else ()
                stack.append((otherwise, (*conditions, *negated)))
            case Read(_, index):
                stack += [(i, conditions) for i in index if isinstance(i, Scalar)]


def _index(
    value: str, axis: int, position: Dim | Scalar, conditions: Sequence[Condition], extents: Mapping[str, int],
    operand: int, size: Dim,
) -> Index | None:  # fmt: skip
    """How an axis is indexed; ``None`` where that cannot be told."""
    if isinstance(position, Scalar):
        return None
    if isinstance(position, int):
        one = np.asarray(position)
        return Index(value, axis, (), one, np.ones((), dtype=bool), True, operand)
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
    return Index(
        value, axis, names, at.clip(0, last), active, within and np.unique(chosen).size == chosen.size, operand
    )


def _holds(kind: str, value: np.ndarray) -> np.ndarray:
    if kind.startswith("not "):
        return ~_holds(kind[4:], value)
    return value >= 0 if kind == "ge" else (value == 0) if kind == "eq" else (value != 0)


def _stuck(position: Dim | Scalar, found: Index | None) -> frozenset[str]:
    """Variables in an index that must keep all their positions."""
    if isinstance(position, Scalar):
        reads = [s for s in subexpressions(position) if isinstance(s, Read)]
        return frozenset(n for r in reads for i in r.index if isinstance(i, Poly) for n in symbols(i))
    if found is None or not found.injective:
        return symbols(position)
    return frozenset()


def products_of(body: Scalar, variable: str, constant: Sequence[bool]) -> Product | None:
    """The product that a sum over a variable adds up, if it is one of data and of a weight that both have it."""
    plain = True
    while True:
        match body:
            case Reduce("sum", _, _, inner):
                body = inner
            case Where(_, then, Number(value)) if value == 0:
                body, plain = then, False
            case _:
                break
    if not isinstance(body, Call) or body.function != "mul":
        return None
    first, second = body.args
    if not isinstance(first, Read) or not isinstance(second, Read):
        return None
    data, weight = (second, first) if constant[first.operand] else (first, second)
    if constant[data.operand] or not constant[weight.operand]:
        return None
    for read in (data, weight):
        if sum(isinstance(i, Poly) and variable in symbols(i) for i in read.index) != 1:
            return None
    return Product(data, weight, plain)

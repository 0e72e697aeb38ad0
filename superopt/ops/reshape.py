"""Reshape by digit axes: how the axes of two shapes with the same elements split into common factors.

Flattening is row-major, so axes are read most significant first. Size-1 axes are left out, the rest is cut into the
shortest runs of equal products, and inside a run the axes are split into digits. Only where sizes have no common
refinement (6×2 to 4×3) is an element found by div and mod of its flat index.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from superopt.ir.poly import Dim
from superopt.ops.meaning import Comprehension, Operand, Scalar, combine, number, require, same, tensor

__all__ = ["reshaped"]

Digits = list[list[Dim]]  # per axis, most significant first


def reshaped(x: Operand, shape: Sequence[Dim]) -> Comprehension:
    """The elements of ``x`` in row-major order, in another shape."""
    require(same(prod(x.shape, start=1), prod(shape, start=1)), f"{x.type} has not the elements of {list(shape)}")
    if any(isinstance(s, int) and s == 0 for s in (*x.shape, *shape)):
        return tensor(shape, lambda *_: number(0))
    sources = [a for a, s in enumerate(x.shape) if s != 1]
    targets = [a for a, s in enumerate(shape) if s != 1]
    runs = common_runs([x.shape[a] for a in sources], [shape[a] for a in targets])
    factors: dict[int, list[Dim]] = {}
    plans: list[tuple[list[int], list[int], Digits | None]] = []
    for (s0, s1), (t0, t1) in runs:
        source, target = sources[s0:s1], targets[t0:t1]
        split = digits([x.shape[a] for a in source], [shape[a] for a in target])
        plans.append((source, target, split[0] if split else None))
        if split:
            factors.update(zip(target, split[1], strict=True))

    def value(*index: Dim | tuple[Dim, ...]) -> Scalar:
        place: list[Dim] = [0] * x.rank
        for source, target, split in plans:
            given = [index[a] for a in target]
            flat = [d for g in given for d in (g if isinstance(g, tuple) else (g,))]
            if split is None:
                found = by_division(flat, [shape[a] for a in target], [x.shape[a] for a in source])
                place_at(place, source, found)
                continue
            at = iter(flat)
            place_at(place, source, [combine([next(at) for _ in part], part) for part in split])
        return x[tuple(place)]

    return tensor([tuple(factors[a]) if len(factors.get(a, ())) > 1 else s for a, s in enumerate(shape)], value)


def place_at(place: list[Dim], axes: Sequence[int], values: Sequence[Dim]) -> None:
    for axis, value in zip(axes, values, strict=True):
        place[axis] = value


def common_runs(source: Sequence[Dim], target: Sequence[Dim]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Shortest runs of axes with equal products, as ranges of source and target axes; together they cover all."""
    products: dict[Dim, int] = {1: 0}
    running: Dim = 1
    for position, size in enumerate(source, 1):
        running = running * size
        products[running] = position
    runs: list[tuple[tuple[int, int], tuple[int, int]]] = []
    start = (0, 0)
    running = 1
    for position, size in enumerate(target, 1):
        running = running * size
        met = products.get(running)
        if met is not None and met > start[0]:
            runs.append(((start[0], met), (start[1], position)))
            start = (met, position)
    if start != (len(source), len(target)):  # equal only as an obligation: what is left is one run
        runs.append(((start[0], len(source)), (start[1], len(target))))
    return runs


def digits(source: Sequence[Dim], target: Sequence[Dim]) -> tuple[Digits, Digits] | None:
    """The common factors of both lists of sizes, as digits of each axis; ``None`` where there are none."""
    left: Digits = [[] for _ in source]
    right: Digits = [[] for _ in target]
    a = b = 0
    x: Dim = source[0] if source else 1
    y: Dim = target[0] if target else 1
    while a < len(source) and b < len(target):
        if x == y:
            digit, x, y = x, 1, 1
        elif y % x == 0:
            digit, x, y = x, 1, y // x
        elif x % y == 0:
            digit, x, y = y, x // y, 1
        else:
            return None
        left[a].append(digit)
        right[b].append(digit)
        if x == 1:
            a, x = a + 1, source[a + 1] if a + 1 < len(source) else 1
        if y == 1:
            b, y = b + 1, target[b + 1] if b + 1 < len(target) else 1
    return (left, right) if a == len(source) and b == len(target) else None


def by_division(index: Sequence[Dim], shape: Sequence[Dim], sizes: Sequence[Dim]) -> list[Dim]:
    """The position in ``sizes`` of the element that is at ``index`` of ``shape``, by its flat index."""
    flat = combine(list(index), list(shape))
    place: list[Dim] = []
    for axis, size in enumerate(sizes):
        rest = prod(sizes[axis + 1 :], start=1)
        quotient = flat // rest
        place.append(quotient if axis == 0 else quotient % size)
    return place

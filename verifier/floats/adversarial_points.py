"""Points at which rounding, cancellation and the ends of the range have large effects, and mutations of them.

A point is one number for every element of every real variable. Families: magnitudes log-uniform over all or part of the
exponents (denormals too), per element or per variable; normal data; equal, opposite and nearly equal elements; an
offset with small deviations; and ±0, 1 ± ulp, halves, the least and the largest numbers, roots of those, and the bounds
of exponentials. At some points significands are truncated, so that ties occur.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from superopt.verifier.floats.evaluation import FloatFormat, rounded

__all__ = [
    "Points", "confined", "drawn", "exponents", "flooded", "joined", "middling", "mutated", "ordinary",
    "with_specials",
]  # fmt: skip

Array = np.ndarray[Any, Any]
Points = dict[str, Array]  # variable → [element, point]
_REACHES = (None, 60.0, 24.0, 10.0, 4.0)  # exponents of a point lie within so much of 0; None: anywhere


def drawn(counts: Mapping[str, int], number: int, form: FloatFormat, rng: np.random.Generator) -> Points:
    """Points of all families, in a type.

    Args:
        counts: elements of each variable.
        number: of points.
        form: the type.
        rng: where numbers come from.
    """
    total = sum(counts.values())
    owner = np.repeat(np.arange(len(counts)), list(counts.values()))
    low, high = _range(form)
    reach = np.array([high - low if r is None else r for r in _REACHES])[rng.integers(0, len(_REACHES), number)]
    bottom, top = np.maximum(low, -reach), np.minimum(high, reach)
    shape = _Shape(owner, bottom, top)
    families = np.stack([f(shape, form, rng) for f in _FAMILIES])
    chosen = rng.integers(0, len(_FAMILIES) + 1, number)  # the last: every element from a family of its own
    mixed = rng.integers(0, len(_FAMILIES), (total, number))
    which = np.where(chosen == len(_FAMILIES), mixed, chosen)
    flat = np.take_along_axis(families, which[None], 0)[0]
    signs = rng.integers(0, 4, number)
    flat = np.where(signs == 0, np.abs(flat), flat)  # positive throughout: roots and logarithms are defined
    short = rng.integers(0, 4, number) == 0
    flat = np.where(short, _cut(flat, 2 + rng.integers(0, 11, number)), flat)
    return _split(_fit(flat, form), counts)


def mutated(points: Points, children: int, form: FloatFormat, rng: np.random.Generator) -> Points:
    """Neighbours of points: an ulp, a power of two, a sign, a zero, or another element's value further.

    Args:
        points: the parents.
        children: of each.
        form: the type.
        rng: where numbers come from.
    """
    counts = {n: len(a) for n, a in points.items()}
    flat = np.repeat(np.concatenate(list(points.values())), children, axis=1).astype(np.float64)
    total, number = flat.shape
    owner = np.repeat(np.arange(len(counts)), list(counts.values()))
    kind = rng.integers(0, 6, number)
    one = np.arange(total)[:, None] == rng.integers(0, total, number)
    group = owner[:, None] == rng.integers(0, len(counts), number)
    power = np.exp2(rng.integers(-3, 4, number))
    ulps = flat * (1 + 2 * form.unit * rng.integers(-4, 5, (total, number)))
    other = np.take_along_axis(flat, rng.integers(0, total, (1, number)), 0) * rng.choice([-1.0, 1.0], number)
    fresh = flat * rng.uniform(0.5, 2.0, (total, number))
    array = np.select(
        [kind == 0, kind == 1, kind == 2, kind == 3, kind == 4],
        [
            np.where(one, ulps, flat), np.where(group, flat * power, flat), np.where(one, other, flat),
            np.where(one, -flat, flat), np.where(group, ulps, flat),
        ],
        np.where(one, fresh, flat),
    )  # fmt: skip
    return _split(_fit(array, form), counts)


def ordinary(counts: Mapping[str, int], number: int, form: FloatFormat, rng: np.random.Generator) -> Points:
    """Points of normal data around 1."""
    return _split(_fit(rng.standard_normal((sum(counts.values()), number)) + 0.5, form), counts)


def with_specials(points: Points, rng: np.random.Generator) -> Points:
    """The points with an infinity or ``nan`` among the elements of each."""
    counts = {n: len(a) for n, a in points.items()}
    flat = np.concatenate(list(points.values()))
    total, number = flat.shape
    special = rng.choice(np.array([np.inf, -np.inf, np.nan], np.float32), number)
    one = np.arange(total)[:, None] == rng.integers(0, total, number)
    return _split(np.where(one, special, flat).astype(np.float32), counts)


def flooded(points: Points, rng: np.random.Generator) -> Points:
    """The points with an infinity or ``nan`` at one element of each, or at about half of them, or at all."""
    counts = {n: len(a) for n, a in points.items()}
    flat = np.concatenate(list(points.values()))
    total, number = flat.shape
    special = rng.choice(np.array([np.inf, -np.inf, np.nan], np.float32), number)
    one = np.arange(total)[:, None] == rng.integers(0, total, number)
    share = rng.integers(0, 4, number)
    many = rng.random((total, number)) < np.where(share == 0, 1.0, 0.5)
    return _split(np.where(np.where(share < 2, many, one), special, flat).astype(np.float32), counts)


def middling(counts: Mapping[str, int], number: int, rng: np.random.Generator) -> Points:
    """Points from 1/1000 to 100, log-uniform by element or by variable, as float32 holds them."""
    owner = np.repeat(np.arange(len(counts)), list(counts.values()))
    shared = rng.uniform(-10.0, 6.6, (len(counts), number))[owner]
    own = rng.uniform(-10.0, 6.6, shared.shape)
    power = np.where(rng.integers(0, 2, number) == 0, shared, own)
    sign = np.where(rng.integers(0, 3, number) == 0, 1.0, _signs(shared.shape, rng))
    return _split((sign * np.exp2(power)).astype(np.float32), counts)


def confined(
    points: Points, window: Mapping[str, tuple[int, int]], form: FloatFormat, rng: np.random.Generator
) -> Points:
    """Points inside a window: exponents wrapped around into it, and at half of the points each variable at one of its
    ends. The ends of a variable without a window are those of the type."""
    arrays: Points = {}
    least = int(_range(form)[0])
    for name, array in points.items():
        low, high = window.get(name, (least, form.exponents[1]))
        fraction, power = np.frexp(array)
        power = power.astype(np.int64) - 1
        if name in window:
            power = low + (power - low) % (high - low + 1)
        there = array != 0
        top = np.where(there, power, -999).max(axis=0)
        bottom = np.where(there, power, 999).min(axis=0)
        end = rng.integers(0, 4, array.shape[1])
        shift = np.where(end == 0, high - top, np.where(end == 1, low - bottom, 0))
        with np.errstate(over="ignore"):
            moved = np.ldexp(fraction.astype(np.float64), np.clip(power + shift, low, high) + 1)
        arrays[name] = np.where(there, _fit(moved, form), array)
    return arrays


def joined(batches: Sequence[Points]) -> Points:
    """The points of several batches in one."""
    return {n: np.concatenate([b[n] for b in batches], axis=1) for n in batches[0]}


def exponents(points: Points) -> tuple[Array, Array]:
    """Least and largest exponent of the nonzero elements of every variable: two arrays [variable, point]."""
    low, high = [], []
    for array in points.values():
        _, power = np.frexp(array)
        there = array != 0
        low.append(np.where(there, power - 1, 999).min(axis=0, initial=999))
        high.append(np.where(there, power - 1, -999).max(axis=0, initial=-999))
    return np.stack(low), np.stack(high)


def _range(form: FloatFormat) -> tuple[float, float]:
    """Exponents from the least denormal to the largest number."""
    return float(np.log2(form.tiny) + 1), float(np.log2(form.largest))


def _split(flat: Array, counts: Mapping[str, int]) -> Points:
    ends = np.cumsum(list(counts.values()))
    return dict(zip(counts, np.split(flat, ends[:-1]), strict=True))


def _fit(flat: Array, form: FloatFormat) -> Array:
    with np.errstate(all="ignore"):
        limited = np.clip(flat, -form.largest, form.largest).astype(np.float32)
        return np.clip(rounded(limited, form.dtype), -form.largest, form.largest).astype(np.float32)


def _cut(flat: Array, bits: Array) -> Array:
    """Significands rounded to a few bits."""
    fraction, power = np.frexp(flat)
    scale = np.exp2(bits.astype(np.float64))
    return np.asarray(np.ldexp(np.rint(fraction * scale) / scale, power))


@dataclass(frozen=True)
class _Shape:
    """How many numbers are drawn: ``owner`` is the variable of each element; exponents of each point are in a range."""

    owner: Array
    low: Array
    high: Array

    @property
    def number(self) -> int:
        return self.low.size

    @property
    def both(self) -> tuple[int, int]:
        return self.owner.size, self.low.size

    @property
    def groups(self) -> int:
        return int(self.owner.max(initial=0)) + 1


def _signs(size: tuple[int, ...], rng: np.random.Generator) -> Array:
    return rng.choice(np.array([-1.0, 1.0]), size)


def _free(shape: _Shape, form: FloatFormat, rng: np.random.Generator) -> Array:
    del form
    return _signs(shape.both, rng) * np.exp2(rng.uniform(shape.low, shape.high, shape.both))


def _grouped(shape: _Shape, form: FloatFormat, rng: np.random.Generator) -> Array:
    """Every variable has a magnitude of its own."""
    del form
    centre = rng.uniform(shape.low, shape.high, (shape.groups, shape.number))[shape.owner]
    return _signs(shape.both, rng) * np.exp2(centre + rng.normal(0.0, 1.5, shape.both))


def _normal(shape: _Shape, form: FloatFormat, rng: np.random.Generator) -> Array:
    """Ordinary data, most of it around 1."""
    del form
    near = rng.integers(0, 2, shape.number) == 0
    return rng.standard_normal(shape.both) * np.exp2(np.where(near, 0.0, rng.uniform(shape.low, shape.high)))


def _near(shape: _Shape, form: FloatFormat, rng: np.random.Generator) -> Array:
    """Equal, opposite and nearly equal elements: sums and differences cancel."""
    base = np.exp2(rng.uniform(shape.low, shape.high)) * rng.uniform(1.0, 2.0, shape.number)
    ulps = rng.integers(-2, 3, shape.both) * np.exp2(rng.integers(0, 8, shape.number))
    same = rng.integers(0, 2, shape.number) == 0
    return np.where(same, 1.0, _signs(shape.both, rng)) * base * (1 + 2 * form.unit * ulps)


def _offset(shape: _Shape, form: FloatFormat, rng: np.random.Generator) -> Array:
    """Deviations of all sizes from a value that all elements of a variable share."""
    del form
    centre = (
        _signs((shape.groups, shape.number), rng)
        * np.exp2(rng.uniform(shape.low, shape.high, (shape.groups, shape.number)))
    )[shape.owner]
    return centre * (1 + rng.standard_normal(shape.both) * np.exp2(rng.uniform(-20.0, 0.0, shape.number)))


def _special(shape: _Shape, form: FloatFormat, rng: np.random.Generator) -> Array:
    """Numbers at which something happens."""
    least, normal, unit = 2 * form.tiny, 2.0 ** form.exponents[0], form.unit
    positive = [
        0.0, 0.0, 1.0, 1 - unit, 1 + 2 * unit, 0.5, 1.5, 2.5, 3.0, 6.0, 0.1, least, normal - least, normal,
        form.largest, form.largest / 2, form.largest**0.5, normal**0.5, 11.0, 17.5, 20.0, 88.7, 89.0, 104.0, 1 / unit,
    ]  # fmt: skip
    return rng.choice(np.array([*positive, *(-p for p in positive)]), shape.both)


_FAMILIES = (_free, _grouped, _normal, _near, _offset, _special)

"""Walks on the flip graph of a tensor (Kauers & Moosbauer 2022; plus transitions: Arai, Ichikawa & Hukushima 2024).

A vertex is a way to write the tensor as a sum of rank-one tensors with coefficients in {-1, 0, 1}. Two summands that
share a factor, ``a⊗b⊗c + a⊗d⊗e``, are also ``a⊗(b ± d)⊗c + a⊗d⊗(e ∓ c)``: a flip. Where a flip makes a factor zero,
a summand is gone. A walk begins at the tensor's own terms and flips at random; where it has not lost a summand for
long, it splits one, which opens other ways. Steps are counted, so that a seed and steps determine what is found.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from superopt.discovery.bilinear.linear import made
from superopt.discovery.bilinear.points import Found, by_merit
from superopt.rules.bilinear import Algorithm, Tile
from superopt.runtime.evaluate import Array

__all__ = ["by_flips"]

_Vector = int  # bit i: element i is 1; bit _WIDE + i: it is -1; the lowest element that is not 0 is 1
_WIDE = 32
_LOW = (1 << _WIDE) - 1
_PATIENCE = 50_000  # steps without a summand less after which one is split
_APART = 1_000  # steps between two looks at what a walk has, where that has the least number of summands
_MET = 200  # such sums that are kept of a walk
_SPARE = 2  # summands above the least so far at which no more are split


def by_flips(tile: Tile, tensor: Array, *, seed: int, steps: int, walks: int) -> Found:
    """The least rank that random walks find; no rank is aimed at.

    Args:
        tile: whose tensor it is.
        tensor: of the tile; none is found unless its coefficients are -1, 0 and 1.
        seed: of all walks.
        steps: flips of one walk.
        walks: from the beginning; of all that they met with the least rank (looked at now and then), the best by growth
            of errors and operations is first.
    """
    if max(tensor.shape) > _WIDE or not all(v in (-1, 0, 1) for v in tensor.flat):
        return Found((), 0)
    found: list[Algorithm] = []
    for number in range(walks):
        walk = _Walk(tensor, random.Random(f"{seed}/{tile.name}/{number}"))
        met, reached = walk.run(steps)
        rank = len(met[0])
        if rank > min((a.rank for a in found), default=rank):
            continue
        origin: dict[str, object] = {"finder": "flips", "seed": seed, "walk": number, "steps": reached}
        found = [a for a in found if a.rank == rank]
        found += [_algorithm(tile, state, tensor.shape, origin) for state in met]
    return Found(by_merit(found), steps * walks)


def _algorithm(
    tile: Tile, summands: Sequence[tuple[int, ...]], shape: Sequence[int], origin: dict[str, object]
) -> Algorithm:
    factors = [
        tuple(_unpacked(summand[axis], shape[axis], summand[3] if axis == 1 else 1) for summand in summands)
        for axis in range(3)
    ]
    return made(tile, factors[0], factors[1], tuple(zip(*factors[2], strict=True)), origin)


def _unpacked(vector: _Vector, size: int, sign: int) -> tuple[Fraction, ...]:
    return tuple(Fraction(sign * ((vector >> i & 1) - (vector >> (_WIDE + i) & 1))) for i in range(size))


def _sum(x: _Vector, y: _Vector) -> _Vector | None:
    """``x + y``, or ``None`` where an element would be ±2."""
    if x & y:
        return None
    turned = (y >> _WIDE) | (y & _LOW) << _WIDE  # -y
    gone = x & turned
    return (x ^ gone) | (y ^ ((gone >> _WIDE) | (gone & _LOW) << _WIDE))


def _negated(x: _Vector) -> _Vector:
    return (x >> _WIDE) | (x & _LOW) << _WIDE


def _canonical(x: _Vector) -> tuple[_Vector, int]:
    """The vector or its negative, whichever has a 1 first, and the sign that was taken out."""
    some = (x | x >> _WIDE) & _LOW
    return (x, 1) if x & some & -some else (_negated(x), -1)


class _Walk:
    """Summands are lists ``[a, b, c, sign]``; ``pairs`` are the (axis, i, j) that share a factor."""

    def __init__(self, tensor: Array, rng: random.Random) -> None:
        self.rng = rng
        self.terms: list[list[int]] = []
        for place in zip(*np.nonzero(tensor), strict=True):
            self.terms.append([*(1 << int(n) for n in place), int(tensor[place])])
        self.pairs: list[tuple[int, int, int]] = []
        self._link()

    def run(self, steps: int) -> tuple[list[list[tuple[int, ...]]], int]:
        """Different sums of the least number of summands that were met, and the steps until the first of them."""
        met, reached, since = {self._state(): None}, 0, 0
        least = len(self.terms)
        for done in range(steps):
            since += 1
            if not self.pairs or (since > _PATIENCE and len(self.terms) < least + _SPARE):
                self._split()
                since = 0
                continue
            before = len(self.terms)
            self._flip()
            if len(self.terms) < least:
                least, since, reached = len(self.terms), 0, done + 1
                met = {self._state(): None}
            elif len(self.terms) == least and len(met) < _MET and (before > least or since % _APART == 0):
                met[self._state()] = None
        return [list(state) for state in met], reached

    def _state(self) -> tuple[tuple[int, ...], ...]:
        return tuple(sorted(tuple(t) for t in self.terms))

    def _link(self) -> None:
        """All pairs anew."""
        terms = self.terms
        self.pairs = [
            (axis, i, j)
            for axis in range(3)
            for i, t in enumerate(terms)
            for j in range(len(terms))
            if i != j and t[axis] == terms[j][axis]
        ]

    def _relink(self, i: int, axis: int) -> None:
        """Pairs of one summand along one axis, after that factor changed."""
        self.pairs = [p for p in self.pairs if p[0] != axis or (p[1] != i and p[2] != i)]
        value = self.terms[i][axis]
        for j, other in enumerate(self.terms):
            if j != i and other[axis] == value:
                self.pairs += [(axis, i, j), (axis, j, i)]

    def _flip(self) -> None:
        rng, terms = self.rng, self.terms
        axis, i, j = self.pairs[int(rng.random() * len(self.pairs))]
        one, two = terms[i], terms[j]
        if rng.random() < 0.5:
            b, c = (axis + 1) % 3, (axis + 2) % 3
        else:
            b, c = (axis + 2) % 3, (axis + 1) % 3
        e = 1 if rng.random() < 0.5 else -1
        first = _sum(one[b], two[b] if e > 0 else _negated(two[b]))
        if first is None:
            return
        second = _sum(two[c], _negated(one[c]) if e * one[3] * two[3] > 0 else one[c])
        if second is None:
            return
        if first == 0 or second == 0:
            gone = [n for n, v in ((i, first), (j, second)) if v == 0]
            if first:
                self._put(i, b, first)
            if second:
                self._put(j, c, second)
            for n in sorted(gone, reverse=True):
                del terms[n]
            self._link()
            return
        self._put(i, b, first)
        self._put(j, c, second)
        self._relink(i, b)
        self._relink(j, c)

    def _put(self, i: int, axis: int, vector: _Vector) -> None:
        self.terms[i][axis], sign = _canonical(vector)
        self.terms[i][3] *= sign

    def _split(self) -> None:
        """``a⊗b⊗c`` as ``a⊗(b - d)⊗c + a⊗d⊗c``, where another summand has the factor ``d``."""
        for _ in range(64):
            i, j = self.rng.sample(range(len(self.terms)), 2)
            axis = self.rng.randrange(3)
            one, d = self.terms[i], self.terms[j][axis]
            rest = _sum(one[axis], _negated(d))
            if rest:
                other = list(one)
                other[axis] = d
                self.terms.append(other)
                self._put(i, axis, rest)
                self._link()
                return

"""Searches for algorithms of a tensor: points, spans of small vectors, and walks on the flip graph.

Evaluation and interpolation at searched points (Toom 1963, Cook 1966, Winograd 1980), and spans of small vectors. Both
look for ``R`` rank-one matrices whose span holds the tensor's slices: the coefficients of a slice in that basis are
then the third factor, which is solved for exactly. What differs is where the rank-one matrices come from: from powers
of a point in both modes (the point at infinity has the last power alone), or from all vectors over {-1, 0, 1}.

Walks on the flip graph of a tensor (Kauers & Moosbauer 2022; plus transitions: Arai, Ichikawa & Hukushima 2024). A
vertex is a way to write the tensor as a sum of rank-one tensors with coefficients in {-1, 0, 1}. Two summands that
share a factor, ``a⊗b⊗c + a⊗d⊗e``, are also ``a⊗(b ± d)⊗c + a⊗d⊗(e ∓ c)``: a flip. Where a flip makes a factor zero, a
summand is gone. A walk begins at the tensor's own terms and flips at random; where it has not lost a summand for long,
it splits one, which opens other ways. Steps are counted, so that a seed and steps determine what is found.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, product

import numpy as np

from superopt.discovery.bilinear.tensors import normal_form, solved, transposed
from superopt.rules.bilinear import BilinearAlgorithm, BilinearTile
from superopt.runtime.comprehension_evaluation import Array

__all__ = ["LeastRankAlgorithms", "by_flips", "by_merit", "by_points", "by_span"]

_Vector = tuple[Fraction, ...]
_BEST = 200  # of the sets of points, by their errors in floating point, that are looked at exactly
_BATCH = 4096
_EVEN = 1e-9  # residuals below this share are exact solutions rounded; the solution is made again in rationals
_LARGEST = 4  # numerators and denominators of points
_RANKS = 12  # points, at most: with more, float32 has no bits left
_NEAR = 1.1  # noise within this factor of the least: what is cheaper comes first
_MOST_SPANS = 300_000  # sets of rank-one matrices that are tried


@dataclass(frozen=True)
class LeastRankAlgorithms:
    """Algorithms of the least rank that was found, best first, and the work: sets of rank-one matrices tried."""

    algorithms: tuple[BilinearAlgorithm, ...]
    work: int


def by_points(tile: BilinearTile, tensor: Array) -> LeastRankAlgorithms:
    """Evaluation–interpolation: fewest points first, and of these the sets with the least growth of errors."""
    tried = 0
    points: list[Fraction | None] = [None, *_small_rationals()]
    for rank in range(max(tensor.shape[1:]), sum(tensor.shape)):
        algorithms: list[BilinearAlgorithm] = []
        for mode in range(3):
            turned = np.moveaxis(tensor, mode, 0)
            if _geometric(turned) is None:
                continue
            sets = list(combinations(range(len(points)), rank))
            tried += len(sets)
            for chosen in _promising(turned, points, sets):
                vectors = [[_powers(points[n], size) for n in chosen] for size in turned.shape[1:]]
                algorithm = _interpolated(tile, turned, mode, vectors, [_named(points[n]) for n in chosen])
                algorithms += [] if algorithm is None else [algorithm]
        if algorithms:
            return LeastRankAlgorithms(by_merit(algorithms), tried)
        if rank > _RANKS:
            break
    return LeastRankAlgorithms((), tried)


def by_span(tile: BilinearTile, tensor: Array) -> LeastRankAlgorithms:
    """Rank-one matrices of vectors over {-1, 0, 1}, all sets of them, fewest first; for tensors of a few elements."""
    tried = 0
    basis = [_ternary(size) for size in tensor.shape[1:]]
    pairs = [(b, g) for b in basis[0] for g in basis[1]]
    flat = np.array([[float(p * q) for p in b for q in g] for b, g in pairs])
    slices = tensor.astype(np.float64).reshape(len(tensor), -1)
    for rank in range(1, int(np.linalg.matrix_rank(slices)) * 3):
        algorithms: list[BilinearAlgorithm] = []
        for batch in _batches(combinations(range(len(pairs)), rank), _MOST_SPANS - tried):
            tried += len(batch)
            for chosen in batch[_spanned(flat[batch], slices)]:
                vectors = [[pairs[n][side] for n in chosen] for side in range(2)]
                algorithm = _interpolated(tile, tensor, 0, vectors, [])
                algorithms += [] if algorithm is None else [algorithm]
        if algorithms or tried >= _MOST_SPANS:
            return LeastRankAlgorithms(by_merit(algorithms), tried)
    return LeastRankAlgorithms((), tried)


def by_merit(found: Sequence[BilinearAlgorithm]) -> tuple[BilinearAlgorithm, ...]:
    """Algorithms of equal rank: those near the least noise first, of these fewest operations at inference first."""
    least = min((a.noise for a in found), default=0.0)

    def merit(algorithm: BilinearAlgorithm) -> tuple[bool, int, float, int, str]:
        data, weights, outputs = algorithm.operations
        far = algorithm.noise > _NEAR * least
        text = str((algorithm.data, algorithm.weights, algorithm.outputs))
        return far, data + outputs, round(algorithm.noise, 6), weights, text

    return tuple(sorted(found, key=merit))


def _small_rationals() -> Iterator[Fraction]:
    """Rationals with small numerators and denominators, small ones first."""
    seen = dict.fromkeys(
        Fraction(sign * p, q)
        for total in range(1, 2 * _LARGEST)
        for q in range(1, _LARGEST + 1)
        for p in range(_LARGEST + 1)
        if p + q == total and q & (q - 1) == 0
        for sign in (1, -1)
    )
    yield from seen


def _named(point: Fraction | None) -> str:
    return "infinity" if point is None else str(point)


def _powers(point: Fraction | None, size: int) -> _Vector:
    if point is None:
        return (*(Fraction(0),) * (size - 1), Fraction(1))
    return tuple(point**k for k in range(size))


def _geometric(turned: Array) -> bool | None:
    """Whether products of two polynomials are what the slices take apart: they must not lie in fewer dimensions.

    (A slice that mixes products of different degrees has no coefficients at points, which solving would find too late.)
    """
    degrees = np.add.outer(np.arange(turned.shape[1]), np.arange(turned.shape[2]))
    held = [len(set(degrees[part != 0].tolist())) for part in turned]
    return True if max(held) == 1 else None


def _promising(turned: Array, points: Sequence[Fraction | None], sets: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """The sets at which interpolation works, with the least growth of errors, computed in floating point."""
    left, right = (np.array([[float(v) for v in _powers(p, size)] for p in points]) for size in turned.shape[1:])
    flat = np.einsum("pj,pk->pjk", left, right).reshape(len(points), -1)
    slices = turned.astype(np.float64).reshape(len(turned), -1)
    scored: list[tuple[float, list[int]]] = []
    for start in range(0, len(sets), _BATCH):
        batch = np.array(sets[start : start + _BATCH])
        basis = flat[batch]
        inverse = np.linalg.pinv(basis)
        coefficients = slices @ inverse  # [sets, slices, rank]
        errors = np.abs(coefficients @ basis - slices).max(axis=(1, 2))
        norms = [np.square(side[batch]).sum(axis=2) for side in (left, right)]
        whole = np.square(coefficients).sum(axis=1) * norms[0] * norms[1]
        growth = whole.sum(axis=1)
        exact = np.flatnonzero(errors < _EVEN * (1 + np.abs(coefficients).max()))
        scored += [(float(growth[n]), batch[n].tolist()) for n in exact]
    return [chosen for _, chosen in sorted(scored)[:_BEST]]


def _interpolated(
    tile: BilinearTile, turned: Array, mode: int, vectors: Sequence[Sequence[_Vector]], points: Sequence[str]
) -> BilinearAlgorithm | None:
    """The algorithm with these vectors in two modes; ``None`` where the first's slices are not in their span."""
    columns = [[b * g for b, g in product(*pair)] for pair in zip(*vectors, strict=True)]
    coefficients = solved(columns, [part.ravel().tolist() for part in turned])
    if coefficients is None:
        return None
    factors: list[Sequence[Sequence[Fraction]]] = [tuple(zip(*coefficients, strict=True)), *vectors]
    ordered: list[Sequence[Sequence[Fraction]]] = [factors[0]] * 3
    for factor, axis in zip(factors, (mode, *(m for m in range(3) if m != mode)), strict=True):
        ordered[axis] = factor
    data, weights, outputs = (tuple(tuple(row) for row in factor) for factor in ordered)
    if not all(any(row) for row in data):
        return None  # a product that nothing uses: a smaller set holds the slices
    origin: dict[str, object] = {"finder": "points", "points": list(points)} if points else {"finder": "span"}
    return normal_form(tile, data, weights, transposed(outputs), origin)


def _ternary(size: int) -> list[_Vector]:
    """All vectors over {-1, 0, 1} up to their sign, but 0."""
    found = []
    for values in product((0, 1, -1), repeat=size):
        if next((v for v in values if v), 0) == 1:
            found.append(tuple(map(Fraction, values)))
    return found


def _batches(sets: Iterator[tuple[int, ...]], most: int) -> Iterator[Array]:
    batch: list[tuple[int, ...]] = []
    for _, chosen in zip(range(most), sets, strict=False):
        batch.append(chosen)
        if len(batch) == _BATCH:
            yield np.array(batch)
            batch = []
    if batch:
        yield np.array(batch)


def _spanned(bases: Array, slices: Array) -> Array:
    """The numbers of the bases [n, rank, elements] in whose span all slices are."""
    inverse = np.linalg.pinv(bases)
    errors = np.abs(slices @ inverse @ bases - slices).max(axis=(1, 2))
    return np.flatnonzero(errors < _EVEN)


_Signs = int  # bit i: element i is 1; bit _WIDE + i: it is -1; the lowest element that is not 0 is 1
_WIDE = 32
_LOW = (1 << _WIDE) - 1
_PATIENCE = 50_000  # steps without a summand less after which one is split
_APART = 1_000  # steps between two looks at what a walk has, where that has the least number of summands
_MET = 200  # such sums that are kept of a walk
_SPARE = 2  # summands above the least so far at which no more are split


def by_flips(tile: BilinearTile, tensor: Array, *, seed: int, steps: int, walks: int) -> LeastRankAlgorithms:
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
        return LeastRankAlgorithms((), 0)
    algorithms: list[BilinearAlgorithm] = []
    for number in range(walks):
        walk = _Walk(tensor, random.Random(f"{seed}/{tile.name}/{number}"))
        met, reached = walk.run(steps)
        rank = len(met[0])
        if rank > min((a.rank for a in algorithms), default=rank):
            continue
        origin: dict[str, object] = {"finder": "flips", "seed": seed, "walk": number, "steps": reached}
        algorithms = [a for a in algorithms if a.rank == rank]
        algorithms += [_algorithm(tile, state, tensor.shape, origin) for state in met]
    return LeastRankAlgorithms(by_merit(algorithms), steps * walks)


def _algorithm(
    tile: BilinearTile, summands: Sequence[tuple[int, ...]], shape: Sequence[int], origin: dict[str, object]
) -> BilinearAlgorithm:
    factors = [
        tuple(_unpacked(summand[axis], shape[axis], summand[3] if axis == 1 else 1) for summand in summands)
        for axis in range(3)
    ]
    return normal_form(tile, factors[0], factors[1], tuple(zip(*factors[2], strict=True)), origin)


def _unpacked(vector: _Signs, size: int, sign: int) -> tuple[Fraction, ...]:
    return tuple(Fraction(sign * ((vector >> i & 1) - (vector >> (_WIDE + i) & 1))) for i in range(size))


def _sum(x: _Signs, y: _Signs) -> _Signs | None:
    """``x + y``, or ``None`` where an element would be ±2."""
    if x & y:
        return None
    turned = (y >> _WIDE) | (y & _LOW) << _WIDE  # -y
    gone = x & turned
    return (x ^ gone) | (y ^ ((gone >> _WIDE) | (gone & _LOW) << _WIDE))


def _negated(x: _Signs) -> _Signs:
    return (x >> _WIDE) | (x & _LOW) << _WIDE


def _canonical(x: _Signs) -> tuple[_Signs, int]:
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
                self._set_factor(i, b, first)
            if second:
                self._set_factor(j, c, second)
            for n in sorted(gone, reverse=True):
                del terms[n]
            self._link()
            return
        self._set_factor(i, b, first)
        self._set_factor(j, c, second)
        self._relink(i, b)
        self._relink(j, c)

    def _set_factor(self, i: int, axis: int, vector: _Signs) -> None:
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
                self._set_factor(i, axis, rest)
                self._link()
                return

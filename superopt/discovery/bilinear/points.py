"""Evaluation and interpolation at searched points (Toom 1963, Cook 1966, Winograd 1980), and spans of small vectors.

Both look for ``R`` rank-one matrices whose span holds the tensor's slices: the coefficients of a slice in that basis
are then the third factor, which is solved for exactly. What differs is where the rank-one matrices come from: from
powers of a point in both modes (the point at infinity has the last power alone), or from all vectors over {-1, 0, 1}.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, product

import numpy as np

from superopt.discovery.bilinear.linear import made, solved, transposed
from superopt.rules.bilinear import Algorithm, Tile
from superopt.runtime.evaluate import Array

__all__ = ["Found", "by_merit", "by_points", "by_span"]

_Vector = tuple[Fraction, ...]
_BEST = 200  # of the sets of points, by their errors in floating point, that are looked at exactly
_BATCH = 4096
_EVEN = 1e-9  # residuals below this share are exact solutions rounded; the solution is made again in rationals
_LARGEST = 4  # numerators and denominators of points
_RANKS = 12  # points, at most: with more, float32 has no bits left
_NEAR = 1.1  # noise within this factor of the least: what is cheaper comes first
_MOST_SPANS = 300_000  # sets of rank-one matrices that are tried


@dataclass(frozen=True)
class Found:
    """Algorithms of the least rank that was found, best first, and the work: sets of rank-one matrices tried."""

    algorithms: tuple[Algorithm, ...]
    work: int


def by_points(tile: Tile, tensor: Array) -> Found:
    """Evaluation–interpolation: fewest points first, and of these the sets with the least growth of errors."""
    tried = 0
    points: list[Fraction | None] = [None, *_points()]
    for rank in range(max(tensor.shape[1:]), sum(tensor.shape)):
        found: list[Algorithm] = []
        for mode in range(3):
            turned = np.moveaxis(tensor, mode, 0)
            if _geometric(turned) is None:
                continue
            sets = list(combinations(range(len(points)), rank))
            tried += len(sets)
            for chosen in _promising(turned, points, sets):
                vectors = [[_powers(points[n], size) for n in chosen] for size in turned.shape[1:]]
                algorithm = _interpolated(tile, turned, mode, vectors, [_named(points[n]) for n in chosen])
                found += [] if algorithm is None else [algorithm]
        if found:
            return Found(by_merit(found), tried)
        if rank > _RANKS:
            break
    return Found((), tried)


def by_span(tile: Tile, tensor: Array) -> Found:
    """Rank-one matrices of vectors over {-1, 0, 1}, all sets of them, fewest first; for tensors of a few elements."""
    tried = 0
    basis = [_ternary(size) for size in tensor.shape[1:]]
    pairs = [(b, g) for b in basis[0] for g in basis[1]]
    flat = np.array([[float(p * q) for p in b for q in g] for b, g in pairs])
    slices = tensor.astype(np.float64).reshape(len(tensor), -1)
    for rank in range(1, int(np.linalg.matrix_rank(slices)) * 3):
        found: list[Algorithm] = []
        for batch in _batches(combinations(range(len(pairs)), rank), _MOST_SPANS - tried):
            tried += len(batch)
            for chosen in batch[_spanned(flat[batch], slices)]:
                vectors = [[pairs[n][side] for n in chosen] for side in range(2)]
                algorithm = _interpolated(tile, tensor, 0, vectors, [])
                found += [] if algorithm is None else [algorithm]
        if found or tried >= _MOST_SPANS:
            return Found(by_merit(found), tried)
    return Found((), tried)


def by_merit(found: Sequence[Algorithm]) -> tuple[Algorithm, ...]:
    """Algorithms of equal rank: those near the least noise first, of these fewest operations at inference first."""
    least = min((a.noise for a in found), default=0.0)

    def merit(algorithm: Algorithm) -> tuple[bool, int, float, int, str]:
        data, weights, outputs = algorithm.operations
        far = algorithm.noise > _NEAR * least
        text = str((algorithm.data, algorithm.weights, algorithm.outputs))
        return far, data + outputs, round(algorithm.noise, 6), weights, text

    return tuple(sorted(found, key=merit))


def _points() -> Iterator[Fraction]:
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
    tile: Tile, turned: Array, mode: int, vectors: Sequence[Sequence[_Vector]], points: Sequence[str]
) -> Algorithm | None:
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
    return made(tile, data, weights, transposed(outputs), origin)


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

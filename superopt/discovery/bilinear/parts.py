"""Tensors that fall apart: data and weights that meet in no product with the rest are a smaller problem of their own.

A convolution of stride 2 multiplies the even places of its image by the even taps alone, and the odd ones by the odd
taps: two convolutions of stride 1. That is not known here, it is what the tensor's coefficients say. Where parts share
outputs, fewer products may do for all of them together (a product of matrices falls apart along its inner size).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import networkx as nx
import numpy as np

from superopt.discovery.bilinear.linear import made, transposed
from superopt.discovery.bilinear.points import Found, by_points
from superopt.rules.bilinear import Matrix, Tile
from superopt.runtime.evaluate import Array

__all__ = ["by_parts"]

_Places = tuple[list[int], list[int]]  # elements of the data and of the weights


def by_parts(tile: Tile, tensor: Array) -> Found:
    """The best algorithm of each part by points, or a product for each pair that meets where points need as many.

    Nothing is found where that takes as many products as the tensor has, as for one that does not fall apart.
    """
    work = 0
    rows: tuple[list[Sequence[Fraction]], ...] = ([], [], [])
    points: list[str] = []
    parts = _parts(tensor)
    for places in parts if len(parts) > 1 else ():
        part = tensor[np.ix_(*places)]
        read = np.flatnonzero((part != 0).any(axis=(0, 1)))
        factors, how = _direct(part), "directly"
        if _least(part) < len(factors[0]):
            found = by_points(tile, part[:, :, read])
            work += found.work
            best = next((a for a in found.algorithms if a.rank < len(factors[0])), None)
            if best is not None:
                outputs = _scattered(transposed(best.outputs), read.tolist(), tensor.shape[2])
                factors, how = (best.data, best.weights, outputs), " ".join(best.origin["points"])
        for side, size in enumerate(tensor.shape[:2]):
            rows[side].extend(_scattered(factors[side], places[side], size))
        rows[2].extend(factors[2])
        points.append(how)
    if not rows[2] or len(rows[2]) >= len(_direct(tensor)[0]):
        return Found((), work)
    data, weights, outputs = (tuple(map(tuple, side)) for side in rows)
    origin: dict[str, object] = {"finder": "parts", "points": points}
    return Found((made(tile, data, weights, transposed(outputs), origin),), work)


def _parts(tensor: Array) -> list[_Places]:
    """The elements of data and of weights that meet in products, directly or by way of others; the first ones first."""
    met: nx.Graph[tuple[str, int]] = nx.Graph()
    meets = np.argwhere((tensor != 0).any(axis=2))
    met.add_edges_from((("data", int(i)), ("weights", int(j))) for i, j in meets)
    found = [
        (sorted(n for side, n in part if side == "data"), sorted(n for side, n in part if side == "weights"))
        for part in nx.connected_components(met)
    ]
    return sorted(found)


def _least(part: Array) -> int:
    """Products that no algorithm can do without: the largest rank of the tensor as a matrix."""
    values = part.astype(np.float64)
    sides = (np.moveaxis(values, mode, 0).reshape(part.shape[mode], -1) for mode in range(3))
    return max(int(np.linalg.matrix_rank(side)) for side in sides)


def _direct(part: Array) -> tuple[Matrix, Matrix, Matrix]:
    """A product for each pair of elements that meet; outputs [R, outputs]."""
    meets = [(int(i), int(j)) for i, j in np.argwhere((part != 0).any(axis=2))]
    data, weights = (
        tuple(tuple(Fraction(n == pair[side]) for n in range(part.shape[side])) for pair in meets) for side in (0, 1)
    )
    return data, weights, tuple(tuple(Fraction(v) for v in part[i, j]) for i, j in meets)


def _scattered(rows: Matrix, places: Sequence[int], size: int) -> Matrix:
    """Rows whose elements stand at these places of longer ones."""
    found = []
    for row in rows:
        wide = [Fraction(0)] * size
        for place, value in zip(places, row, strict=True):
            wide[place] = value
        found.append(tuple(wide))
    return tuple(found)

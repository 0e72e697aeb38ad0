"""Algorithms for products of large blocks from those for small ones: blocks of blocks (Strassen 1969)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from superopt.discovery.bilinear.linear import transposed
from superopt.rules.bilinear import Algorithm, Matrix, Tile, matmul_tile

__all__ = ["halves", "nested"]

_Grid = tuple[int, int]  # rows and columns of blocks


def halves(tile: Tile) -> Iterator[tuple[Tile, Tile]]:
    """Two smaller products of matrices that make up one, every size of both at least 2."""
    if tile.roots != ("MatMul(x, w)",):
        return
    (rows, inner), (_, columns) = (tile.shapes[name] for name in ("x", "w"))
    for p in _factors(rows):
        for q in _factors(inner):
            for s in _factors(columns):
                yield matmul_tile(p, q, s), matmul_tile(rows // p, inner // q, columns // s)


def _factors(size: int) -> list[int]:
    return [n for n in range(2, size // 2 + 1) if size % n == 0]


def nested(tile: Tile, outer: Algorithm, inner: Algorithm) -> Algorithm:
    """The outer algorithm on blocks, whose products the inner one takes."""
    (p, q), (_, s) = outer.tile.shapes.values()
    (a, b), (_, c) = inner.tile.shapes.values()
    outputs = _kronecker(transposed(outer.outputs), transposed(inner.outputs), (p, s), (a, c))
    return Algorithm(
        tile, _kronecker(outer.data, inner.data, (p, q), (a, b)),
        _kronecker(outer.weights, inner.weights, (q, s), (b, c)), transposed(outputs),
        {"finder": "nested", "of": [outer.tile.name, inner.tile.name]},
    )  # fmt: skip


def _kronecker(first: Matrix, second: Matrix, outer: _Grid, inner: _Grid) -> Matrix:
    """Products of rows; each is over the elements of a matrix of blocks, and then of one block, row by row."""
    return tuple(_product(one, two, outer, inner) for one in first for two in second)


def _product(one: Sequence[Fraction], two: Sequence[Fraction], outer: _Grid, inner: _Grid) -> tuple[Fraction, ...]:
    wide = outer[1] * inner[1]
    made = [Fraction(0)] * (len(one) * len(two))
    for i, p in enumerate(one):
        for j, q in enumerate(two):
            (row, column), (within, across) = divmod(i, outer[1]), divmod(j, inner[1])
            made[(row * inner[0] + within) * wide + column * inner[1] + across] = p * q
    return tuple(made)

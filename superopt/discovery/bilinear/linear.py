"""Exact linear algebra over small rationals."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import gcd, lcm

from superopt.rules.bilinear import Algorithm, Matrix, Tile

__all__ = ["made", "solved", "transposed"]


def solved(columns: Sequence[Sequence[Fraction]], targets: Sequence[Sequence[Fraction]]) -> Matrix | None:
    """For every target, its coefficients as a sum of the columns; ``None`` where one is no such sum.

    Free coefficients, where the columns depend on each other, are 0.
    """
    rows = len(columns[0])
    table = [[c[i] for c in columns] + [t[i] for t in targets] for i in range(rows)]
    pivots: list[int] = []
    for column in range(len(columns)):
        at = len(pivots)
        chosen = next((i for i in range(at, rows) if table[i][column]), None)
        if chosen is None:
            continue
        table[at], table[chosen] = table[chosen], table[at]
        head = table[at][column]
        table[at] = [v / head for v in table[at]]
        for i in range(rows):
            if i != at and (factor := table[i][column]):
                table[i] = [v - factor * u for v, u in zip(table[i], table[at], strict=True)]
        pivots.append(column)
    if any(v for row in table[len(pivots) :] for v in row[len(columns) :]):
        return None
    found = []
    for number in range(len(targets)):
        coefficients = [Fraction(0)] * len(columns)
        for at, column in enumerate(pivots):
            coefficients[column] = table[at][len(columns) + number]
        found.append(tuple(coefficients))
    return tuple(found)


def made(tile: Tile, data: Matrix, weights: Matrix, outputs: Matrix, origin: dict[str, object]) -> Algorithm:
    """An algorithm in a normal form: the factors that scale a product to and fro are with the weights.

    What runs at inference, the transforms of data and outputs, has coprime integers in every product (the first of a
    row of the data positive); what that takes is left to the weights, which are transformed beforehand in more bits.
    """
    columns = list(zip(*outputs, strict=True))
    rows_a, rows_b, columns_g = [], [], []
    for a, b, g in zip(data, weights, columns, strict=True):
        p, q = _content(a), _content(g)
        rows_a.append(tuple(v / p for v in a))
        columns_g.append(tuple(v / q for v in g))
        rows_b.append(tuple(v * p * q for v in b))
    return Algorithm(tile, tuple(rows_a), tuple(rows_b), tuple(zip(*columns_g, strict=True)), origin)


def _content(row: Sequence[Fraction]) -> Fraction:
    """What a row of rationals is a multiple of, so that coprime integers are left; the sign is the first element's."""
    some = [v for v in row if v]
    found = Fraction(gcd(*(v.numerator for v in some)), lcm(*(v.denominator for v in some)))
    return -found if some[0] < 0 else found


def transposed(matrix: Matrix) -> Matrix:
    """Rows as columns."""
    return tuple(zip(*matrix, strict=True))

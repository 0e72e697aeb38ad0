"""Exact check of bilinear algorithms against the meanings of the operators whose tile they compute.

Two things are shown, and nothing of the finder is used. First, that the tile's terms are homogeneous of degree one in
the data and of degree one in the weights, by a walk over their meanings: so they are a bilinear map, which its values
at pairs of unit vectors determine. Second, that the algorithm has these values, as rationals, at every such pair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import prod

import numpy as np

from superopt.ir.errors import NotEquivalent
from superopt.ir.terms import OperatorTerm, OutputTerm, Term, VariableTerm, computed, postorder
from superopt.ir.types import DType, TensorType
from superopt.ops.operator_semantics import (
    ElementRead,
    OperatorSemantics,
    ScalarCall,
    ScalarConditional,
    ScalarConstant,
    ScalarExpression,
    ScalarReduction,
    subexpressions,
)
from superopt.rules.bilinear import BilinearAlgorithm, BilinearTile
from superopt.rules.typing import type_terms
from superopt.runtime.comprehension_evaluation import Array, evaluate
from superopt.verifier.exact.algebra import Rationals

__all__ = ["check_algorithm"]

_Degree = tuple[int, int] | None  # in data and in weights; None: zero, which has every degree


def check_algorithm(algorithm: BilinearAlgorithm) -> int:
    """Compare an algorithm with the meaning of its tile, exactly.

    Returns:
        The number of coefficients that were compared.

    Raises:
        NotEquivalent: the tile is not bilinear in data and weights, the matrices do not fit it, or a coefficient
            differs.
    """
    tile = algorithm.tile
    types = {name: TensorType(DType.FLOAT32, shape) for name, shape in tile.shapes.items()}
    found, meanings = type_terms(tile.terms, types)
    _must_be_bilinear(tile, meanings)
    outputs = sum(prod(_static_type(found[t][0])) for t in tile.terms)
    sizes = tile.elements(tile.data), tile.elements(tile.weights), outputs
    _must_fit(algorithm, sizes)
    for i in range(sizes[0]):
        for j in range(sizes[1]):
            given_arrays = {**_unit(tile, tile.data, i), **_unit(tile, tile.weights, j)}
            direct = _values(tile.terms, meanings, given_arrays)
            for k, value in enumerate(direct):
                terms = (g * a[i] * b[j] for g, a, b in zip(
                    algorithm.outputs[k], algorithm.data, algorithm.weights, strict=True
                ))  # fmt: skip
                if sum(terms, Fraction(0)) != value:
                    raise NotEquivalent(f"the coefficient of x[{i}]·w[{j}] in z[{k}] is not {value}", where=tile.name)
    return prod(sizes)


def _static_type(kind: TensorType) -> list[int]:
    return [d for d in kind.shape or () if isinstance(d, int)]


def _must_fit(algorithm: BilinearAlgorithm, sizes: tuple[int, int, int]) -> None:
    rank = algorithm.rank
    shapes = (
        ("data", algorithm.data, rank, sizes[0]), ("weights", algorithm.weights, rank, sizes[1]),
        ("outputs", algorithm.outputs, sizes[2], rank),
    )  # fmt: skip
    for name, matrix, rows, columns in shapes:
        if len(matrix) != rows or any(len(row) != columns for row in matrix):
            raise NotEquivalent(f"the matrix of its {name} is not {rows} × {columns}", where=algorithm.tile.name)


def _must_be_bilinear(tile: BilinearTile, meanings: Mapping[OperatorTerm, OperatorSemantics]) -> None:
    degrees: dict[Term, _Degree] = {}
    outputs: dict[OperatorTerm, list[_Degree]] = {}
    for term in postorder(*tile.terms):
        if isinstance(term, VariableTerm):
            degrees[term] = (1, 0) if term.name in tile.data else (0, 1)
        elif isinstance(term, OutputTerm):
            degrees[term] = outputs[term.term][term.index]
        else:
            operands = [(0, 0) if a is None else degrees[a] for a in term.args]
            outputs[term] = [_degree(c.body, operands, tile) for c in meanings[term].outputs]
            degrees[term] = outputs[term][0]
    for term in tile.terms:
        if degrees[term] not in ((1, 1), None):
            raise NotEquivalent(f"{term} is of degree {degrees[term]} in data and weights", where=tile.name)


def _degree(root: ScalarExpression, operands: Sequence[_Degree], tile: BilinearTile) -> _Degree:
    known: dict[int, _Degree] = {}
    for part in subexpressions(root):
        match part:
            case ScalarConstant(value):
                degree: _Degree = (0, 0) if value else None
            case ElementRead(operand, index, outside) if not any(isinstance(i, ScalarExpression) for i in index) and (
                outside is None or outside.value == 0
            ):
                degree = operands[operand]
            case ScalarCall("mul", (a, b)):
                p, q = known[id(a)], known[id(b)]
                degree = None if p is None or q is None else (p[0] + q[0], p[1] + q[1])
            case ScalarCall("add", (a, b)):
                degree = _same_degree((known[id(a)], known[id(b)]), tile)
            case ScalarReduction("sum", _, _, body):
                degree = known[id(body)]
            case ScalarConditional(_, then, otherwise):
                degree = _same_degree((known[id(then)], known[id(otherwise)]), tile)
            case _:
                raise NotEquivalent(f"{part} is not a polynomial of data and weights", where=tile.name)
        known[id(part)] = degree
    return known[id(root)]


def _same_degree(degrees: Sequence[_Degree], tile: BilinearTile) -> _Degree:
    some = {d for d in degrees if d is not None}
    if len(some) > 1:
        raise NotEquivalent(f"it adds terms of different degrees, {sorted(some)}", where=tile.name)
    return next(iter(some), None)


def _unit(tile: BilinearTile, names: Mapping[str, str], position: int) -> dict[str, Array]:
    """The unit vector of all elements of these variables that is 1 at one place."""
    arrays: dict[str, Array] = {}
    for name in names:
        count = prod(tile.shapes[name])
        array = np.full(count, Fraction(0), dtype=object)
        if 0 <= position < count:
            array[position] = Fraction(1)
        position -= count
        arrays[name] = array.reshape(tile.shapes[name])
    return arrays


def _values(
    roots: Sequence[Term], meanings: Mapping[OperatorTerm, OperatorSemantics], given_arrays: Mapping[str, Array]
) -> list[Fraction]:
    def outputs(app: OperatorTerm, operands: list[Array | None]) -> list[Array]:
        return [evaluate(c, operands, Rationals(), {}) for c in meanings[app].outputs]

    arrays = computed(roots, given_arrays, outputs)
    return [Fraction(v) for root in roots for v in np.ravel(arrays[root]).tolist()]

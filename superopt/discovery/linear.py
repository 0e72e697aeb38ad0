"""What a weight has to be: an expression with unknown weights, compared with another in a prime field, and solved.

At a concrete point (sizes and attributes), with random elements, the other side is a number for every element of the
output, and the side with unknowns is linear in these: its coefficients are read off by evaluating it, from the
operators' meanings, at each unit vector of the unknowns. Samples of the data are added until there are more equations
than unknowns. The solution, as far as the equations determine it, is kept as *fingerprints*: random linear functionals
that are known of the weight that is asked for, and that tell whether an expression over known weights is that weight.
They are linear, so the fingerprint of a sum is the sum of the fingerprints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from superopt.discovery.template import batched, concrete
from superopt.ir.terms import App, Project, Term, Var, computed, postorder
from superopt.ir.types import TensorType
from superopt.ops.meaning import Comprehension
from superopt.rules.typing import complete, operator_of
from superopt.runtime.evaluate import Array, evaluate
from superopt.verifier.algebra import MODULUS, PrimeField
from superopt.verifier.sampling import Point

__all__ = ["Place", "Wanted", "asked", "meanings_of", "residues"]

_FUNCTIONALS = 2
_SPARE = 8  # equations more than unknowns: what they add would show a right side that is no solution
_MOST = 400  # unknown elements at a point
Meanings = Mapping[App, tuple[Comprehension, ...]]


def residues(x: Array) -> Array:
    """The residues of packed elements."""
    return np.asarray(x & ((1 << 26) - 1), dtype=np.int64)


@dataclass(frozen=True)
class Place:
    """One concrete assignment of sizes and attributes, with random elements for the weights."""

    point: Point
    weights: Mapping[str, Array]
    algebra: PrimeField

    @property
    def sizes(self) -> dict[str, int | Array]:
        reals = {n: self.algebra.constant(v) for n, v in self.point.reals.items()}
        return {**self.point.sizes, **reals}

    def shape(self, kind: TensorType) -> tuple[int, ...]:
        return concrete(kind, self.point)

    def value(self, comprehension: Comprehension, operands: Sequence[Array | None]) -> Array:
        """One application at this place."""
        return evaluate(comprehension, operands, self.algebra, self.sizes)


@dataclass(frozen=True)
class Wanted:
    """What is known of an unknown weight at one place.

    Attributes:
        functionals: random linear functionals of its elements, one a row, that the equations determine.
        values: of these functionals, at the weight that is asked for.
        whole: the weight itself, where the equations determine all of it.
    """

    functionals: Array
    values: tuple[int, ...]
    whole: Array | None

    def marks(self, value: Array) -> tuple[int, ...]:
        """The functionals at a weight's elements (residues)."""
        return tuple(int(v) for v in _times(self.functionals, value.reshape(-1)))


def meanings_of(root: Term, kinds: Mapping[str, TensorType]) -> tuple[dict[App, tuple[Comprehension, ...]], TensorType]:
    """Meanings of the applications in a term, and its type.

    Raises:
        IllTyped: it is not well-formed.
    """
    types: dict[Term, tuple[TensorType, ...]] = {}
    found: dict[App, tuple[Comprehension, ...]] = {}
    for term in postorder(root):
        if isinstance(term, Var):
            types[term] = (kinds[term.name],)
        elif isinstance(term, Project):
            types[term] = (types[term.term][term.index],)
        else:
            args = [None if a is None else types[a][0] for a in term.args]
            meaning, types[term] = operator_of(term).apply(args, complete(term))
            found[term] = meaning.outputs
    return found, types[root][0]


def _evaluated(root: Term, meanings: Meanings, given: Mapping[str, Array], place: Place, count: int) -> Array:
    """The residues of a term for a batch of leaves, a row each."""

    def outputs(app: App, operands: list[Array | None]) -> list[Array]:
        return [place.value(batched(c, count), operands) for c in meanings[app]]

    values = computed((root,), given, outputs)
    return residues(values[root]).reshape(count, -1)


def asked(
    known: Term, unknown: Term, holes: Mapping[str, TensorType], kinds: Mapping[str, TensorType], place: Place,
    rng: np.random.Generator,
) -> dict[str, Wanted] | None:  # fmt: skip
    """What the holes of ``unknown`` have to be for it to equal ``known`` at a place.

    Args:
        known: an expression without holes.
        unknown: one of the same type, with holes for weights.
        holes: their types.
        kinds: types of all other leaves.
        place: sizes, and the elements of the weights.
        rng: where elements of the data come from.

    Returns:
        By hole; ``None`` where ``unknown`` is not linear in its holes, no weights make the two equal, or what they
        have to be depends on each other.

    Raises:
        Unlucky, NeedsOrder: an inverse of zero, or a function that compares numbers.
        IllTyped: one of them is not well-formed.
    """
    shapes = {h: place.shape(t) for h, t in holes.items()}
    sizes = {h: prod(s) for h, s in shapes.items()}
    count = sum(sizes.values())
    if count > _MOST:
        return None
    left, output = meanings_of(known, kinds)
    right, _ = meanings_of(unknown, {**kinds, **holes})
    rows, goals = [], []
    for _ in range((count + _SPARE) // prod(place.shape(output)) + 1):
        data = {n: place.algebra.random(rng, place.shape(t)) for n, t in kinds.items() if n not in place.weights}
        one = {n: v[None] for n, v in {**place.weights, **data}.items()}
        target = _evaluated(known, left, one, place, 1)[0]
        found = _coefficients(unknown, right, {**place.weights, **data}, shapes, place, rng)
        if found is None:
            return None
        matrix, offset = found
        rows.append(matrix)
        goals.append((target - offset) % MODULUS)
    reduced = _reduced(np.concatenate(rows), np.concatenate(goals))
    return None if reduced is None else _separated(*reduced, sizes, shapes, rng)


def _coefficients(
    unknown: Term, meanings: Meanings, given: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]], place: Place,
    rng: np.random.Generator,
) -> tuple[Array, Array] | None:  # fmt: skip
    """Outputs by unknowns, and the output where all unknowns are 0; ``None`` where the outputs are not linear."""
    count = sum(prod(s) for s in shapes.values())
    probe = rng.integers(0, MODULUS // 2, size=count)
    units = np.concatenate([np.zeros((1, count), dtype=np.int64), np.eye(count, dtype=np.int64), probe[None]])
    batch, start = len(units), 0
    leaves = {n: np.broadcast_to(v, (batch, *v.shape)) for n, v in given.items()}
    for hole, shape in shapes.items():
        width = prod(shape)
        leaves[hole] = place.algebra.integers(units[:, start : start + width]).reshape(batch, *shape)
        start += width
    out = _evaluated(unknown, meanings, leaves, place, batch)
    offset = out[0]
    matrix = (out[1:-1] - offset).T % MODULUS
    if not np.array_equal((_times(matrix, probe) + offset) % MODULUS, out[-1]):
        return None
    return matrix, offset


def _times(matrix: Array, vector: Array) -> Array:
    """A product in the field."""
    return np.asarray((matrix * vector % MODULUS).sum(axis=-1) % MODULUS)


def _reduced(matrix: Array, goals: Array) -> tuple[Array, Array, list[int]] | None:
    """The equations in reduced row echelon form, and the columns of their leading ones; ``None``: no solution."""
    table = np.concatenate([matrix, goals[:, None]], axis=1).astype(np.int64)
    pivots: list[int] = []
    for column in range(table.shape[1] - 1):
        row = len(pivots)
        below = np.flatnonzero(table[row:, column])
        if not below.size:
            continue
        table[[row, row + below[0]]] = table[[row + below[0], row]]
        table[row] = table[row] * pow(int(table[row, column]), -1, MODULUS) % MODULUS
        factors = table[:, column].copy()
        factors[row] = 0
        some = np.flatnonzero(factors)
        table[some] = (table[some] - factors[some, None] * table[row]) % MODULUS
        pivots.append(column)
        if len(pivots) == len(table):
            break
    if table[len(pivots) :, -1].any():
        return None
    return table[: len(pivots), :-1], table[: len(pivots), -1], pivots


def _separated(
    rows: Array, goals: Array, pivots: list[int], sizes: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]],
    rng: np.random.Generator,
) -> dict[str, Wanted] | None:  # fmt: skip
    """The equations of each unknown by itself; ``None`` where one speaks of several."""
    found: dict[str, Wanted] = {}
    start = 0
    for hole, width in sizes.items():
        inside = range(start, start + width)
        mine = [i for i, p in enumerate(pivots) if p in inside]
        outside = np.delete(rows[mine], np.arange(start, start + width), axis=1)
        if outside.any():
            return None
        own = rows[mine][:, start : start + width]
        mixed = rng.integers(1, MODULUS, size=(_FUNCTIONALS, len(mine)))
        functionals = np.stack([_times(own.T, m) for m in mixed]) if mine else np.zeros((_FUNCTIONALS, width), np.int64)
        values = tuple(int(_times(m, goals[mine])) for m in mixed)
        whole = goals[mine].reshape(shapes[hole]) if len(mine) == width else None
        found[hole] = Wanted(functionals, values, whole)
        start += width
    return found

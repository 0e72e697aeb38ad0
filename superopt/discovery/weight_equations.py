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
from contextlib import suppress
from dataclasses import dataclass
from math import prod

import numpy as np

from superopt.discovery.template import batched, concrete
from superopt.ir.terms import OperatorTerm, OutputTerm, Term, VariableTerm, postorder
from superopt.ir.types import TensorType
from superopt.ops.operator_semantics import TensorComprehension
from superopt.rules.typing import type_terms
from superopt.runtime.comprehension_evaluation import Array, evaluate
from superopt.verifier.exact.algebra import MODULUS, InverseOfZero, PrimeField
from superopt.verifier.exact.ordered_field import OrderedPrimeField
from superopt.verifier.exact.sampling import SizeSample

__all__ = [
    "MOST_UNKNOWN", "TermEvaluator", "SampledProblemInstance", "WeightConstraints", "TooManyUnknowns",
    "WeightsNotSolved", "meanings_of", "required_weights", "residues",
]  # fmt: skip

_FUNCTIONALS = 2
_SPARE = 8  # equations more than unknowns: what they add would show a right side that is no solution
MOST_UNKNOWN = 400  # unknown elements at a point
_DRAWS = 5  # of a sample that meets an inverse of zero
Meanings = Mapping[OperatorTerm, tuple[TensorComprehension, ...]]


class WeightsNotSolved(Exception):
    """Whether there are weights is not looked at here."""


class TooManyUnknowns(WeightsNotSolved):
    """The weights have more elements at a place than are solved for."""


def residues(x: Array) -> Array:
    """The residues of packed elements, of those with an order too."""
    packed = x["r"] if x.dtype.names else x
    return np.asarray(packed & ((1 << 26) - 1), dtype=np.int64)


@dataclass(frozen=True)
class SampledProblemInstance:
    """One concrete assignment of sizes and attributes, with random elements for the weights."""

    point: SizeSample
    weights: Mapping[str, Array]
    algebra: PrimeField | OrderedPrimeField

    @property
    def sizes(self) -> dict[str, int | Array]:
        reals = {n: self.algebra.constant(v) for n, v in self.point.reals.items()}
        return {**self.point.sizes, **reals}

    def shape(self, kind: TensorType) -> tuple[int, ...]:
        return concrete(kind, self.point)

    def value(self, comprehension: TensorComprehension, operands: Sequence[Array | None]) -> Array:
        """One application at this place."""
        return evaluate(comprehension, operands, self.algebra, self.sizes)


@dataclass(frozen=True)
class WeightConstraints:
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


def meanings_of(
    root: Term, kinds: Mapping[str, TensorType]
) -> tuple[dict[OperatorTerm, tuple[TensorComprehension, ...]], TensorType]:
    """Meanings of the applications in a term, and its type.

    Raises:
        IllTypedOperator: it is not well-formed.
    """
    types, meanings = type_terms([root], kinds)
    return {term: meaning.outputs for term, meaning in meanings.items()}, types[root][0]


class TermEvaluator:
    """An expression without unknowns at a place, and every term over its leaves, at samples of the data drawn once.

    Args:
        term: the expression.
        kinds: types of its leaves; those that are no weights of the place are data.
        place: sizes, and the elements of the weights.
        rng: where elements of the data come from.

    Raises:
        IllTypedOperator: the expression is not well-formed.
    """

    def __init__(
        self, term: Term, kinds: Mapping[str, TensorType], place: SampledProblemInstance, rng: np.random.Generator
    ) -> None:
        self.term = term
        self.kinds = kinds
        self.place = place
        self.rng = rng
        meanings, output = meanings_of(term, kinds)
        self.width = prod(place.shape(output))  # elements of the output
        self.samples: list[dict[Term, Array]] = []
        self._single = {app: tuple(batched(c, 1) for c in some) for app, some in meanings.items()}

    def goal(self, sample: int) -> Array:
        """The expression's elements, as residues.

        Raises:
            InverseOfZero, NeedsOrder: an inverse of zero in every draw, or a function that the place's algebra does not
                have.
        """
        while len(self.samples) <= sample:
            self.samples.append(self._drawn())
        return residues(self.samples[sample][self.term]).reshape(-1)

    def needed(self) -> frozenset[str]:
        """Data on which the expression's value is seen to depend: another draw of one of them changes it.

        Empty where nothing can be told, for an inverse of zero in every draw.
        """
        found: set[str] = set()
        with suppress(InverseOfZero):
            goal = self.goal(0)
            for name, kind in self.kinds.items():
                if name not in self.place.weights:
                    values: dict[Term, Array] = {
                        k: v for k, v in self.samples[0].items() if isinstance(k, VariableTerm)
                    }
                    values[VariableTerm(name)] = self.place.algebra.random(self.rng, self.place.shape(kind))[None]
                    self._fill(self.term, values)
                    if not np.array_equal(residues(values[self.term]).reshape(-1), goal):
                        found.add(name)
        return frozenset(found)

    def affine(self) -> bool:
        """Whether the expression is not seen to be other than affine in its data.

        Asked is whether ``f(p) + f(q) = f(r) + f(p + q - r)`` at random points; true where nothing can be told, for an
        inverse of zero in every draw.
        """
        algebra = self.place.algebra
        with suppress(InverseOfZero):
            p, q, r = (self._drawn() for _ in range(3))
            last: dict[Term, Array] = {VariableTerm(n): v[None] for n, v in self.place.weights.items()}
            for name in self.kinds.keys() - self.place.weights.keys():
                back = algebra.function("mul", r[VariableTerm(name)], algebra.integers(np.asarray(-1)))
                last[VariableTerm(name)] = algebra.function(
                    "add", algebra.function("add", p[VariableTerm(name)], q[VariableTerm(name)]), back
                )
            self._fill(self.term, last)
            one, two = (residues(a[self.term]) + residues(b[self.term]) for a, b in ((p, q), (r, last)))
            return not ((one - two) % MODULUS).any()
        return True

    def _drawn(self) -> dict[Term, Array]:
        for attempt in range(_DRAWS):
            values: dict[Term, Array] = {VariableTerm(n): v[None] for n, v in self.place.weights.items()}
            for name, kind in self.kinds.items():
                if name not in self.place.weights:
                    values[VariableTerm(name)] = self.place.algebra.random(self.rng, self.place.shape(kind))[None]
            try:
                self._fill(self.term, values)
            except InverseOfZero:
                if attempt == _DRAWS - 1:
                    raise
            else:
                break
        return values

    def value(self, term: Term, sample: int, meanings: Meanings) -> Array:
        """A term over the leaves at a sample, in a batch of one; each is computed once.

        Raises:
            InverseOfZero, NeedsOrder: as above.
        """
        self.goal(sample)
        values = self.samples[sample]
        if term not in values:
            for app, some in meanings.items():
                if app not in self._single:
                    self._single[app] = tuple(batched(c, 1) for c in some)
            self._fill(term, values)
        return values[term]

    def _fill(self, root: Term, values: dict[Term, Array]) -> None:
        for term in postorder(root):
            if isinstance(term, OperatorTerm) and term not in values:
                operands = [None if a is None else values[a] for a in term.args]
                values[term] = self.place.value(self._single[term][0], operands)
            elif isinstance(term, OutputTerm) and term not in values:
                operands = [None if a is None else values[a] for a in term.term.args]
                values[term] = self.place.value(self._single[term.term][term.index], operands)


def required_weights(
    known: TermEvaluator, unknown: Term, holes: Mapping[str, TensorType], rng: np.random.Generator
) -> dict[str, WeightConstraints] | None:
    """What the holes of ``unknown`` have to be for it to equal ``known`` at its place.

    Args:
        known: an expression without holes.
        unknown: one of the same type, with holes for weights.
        holes: their types.
        rng: of the functionals.

    Returns:
        By hole; ``None`` where no weights make the two equal.

    Raises:
        WeightsNotSolved: ``unknown`` is not linear in its holes, has too many, or what they have to be depends on each
            other.
        InverseOfZero, NeedsOrder: an inverse of zero, or a function that compares numbers.
        IllTypedOperator: one of them is not well-formed.
    """
    shapes = {h: known.place.shape(t) for h, t in holes.items()}
    sizes = {h: prod(s) for h, s in shapes.items()}
    count = sum(sizes.values())
    if count > MOST_UNKNOWN:
        raise TooManyUnknowns(f"{count} unknown elements")
    meanings, _ = meanings_of(unknown, {**known.kinds, **holes})
    skeleton = _Linear(known, unknown, meanings, shapes)
    rows, goals = list[Array](), list[Array]()
    batch, rank = (count + _SPARE) // known.width + 1, -1
    while True:  # a product of data says less in one sample than it has elements
        for sample in range(len(rows), len(rows) + batch):
            matrix, offset = skeleton.coefficients(sample, rng)
            rows.append(matrix)
            goals.append((known.goal(sample) - offset) % MODULUS)
        reduced = _reduced(np.concatenate(rows), np.concatenate(goals))
        if reduced is None:
            return None
        if len(reduced[2]) in (rank, count):
            return _separated(*reduced, sizes, shapes, rng)
        rank = len(reduced[2])


class _Linear:
    """A term with holes, evaluated at all unit vectors of its holes at once; what has no hole is evaluated once."""

    def __init__(
        self, known: TermEvaluator, root: Term, meanings: Meanings, shapes: Mapping[str, tuple[int, ...]]
    ) -> None:
        self.known = known
        self.root = root
        self.meanings = meanings
        self.shapes = shapes
        self.count = sum(prod(s) for s in shapes.values())
        self.batch = self.count + 2
        self.open: dict[Term, None] = {}  # terms with holes, parts first
        for term in postorder(root):
            if isinstance(term, VariableTerm):
                inside = term.name in shapes
            elif isinstance(term, OutputTerm):
                inside = term.term in self.open
            else:
                inside = any(a in self.open for a in term.args if a is not None)
            if inside:
                self.open[term] = None
        self.batches = {
            t: tuple(batched(c, self.batch) for c in meanings[t]) for t in self.open if isinstance(t, OperatorTerm)
        }  # fmt: skip

    def coefficients(self, sample: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Outputs by unknowns, and the output where all unknowns are 0.

        Raises:
            WeightsNotSolved: the outputs are not linear in the unknowns.
        """
        assignment, count = self.known.place, self.count
        probe = rng.integers(0, MODULUS // 2, size=count)
        units = np.concatenate([np.zeros((1, count), dtype=np.int64), np.eye(count, dtype=np.int64), probe[None]])
        values: dict[Term, Array] = {}
        start = 0
        for hole, shape in self.shapes.items():
            width = prod(shape)
            part = units[:, start : start + width]
            values[VariableTerm(hole)] = assignment.algebra.integers(part).reshape(self.batch, *shape)
            start += width
        for term in self.open:
            if isinstance(term, VariableTerm):
                continue
            app = term.term if isinstance(term, OutputTerm) else term
            operands = [None if a is None else self._operand(a, values, sample) for a in app.args]
            index = term.index if isinstance(term, OutputTerm) else 0
            values[term] = assignment.value(self.batches[app][index], operands)
        out = residues(self._operand(self.root, values, sample)).reshape(self.batch, -1)
        offset = out[0]
        matrix = (out[1:-1] - offset).T % MODULUS
        if not np.array_equal((_times(matrix, probe) + offset) % MODULUS, out[-1]):
            raise WeightsNotSolved("not linear")
        return matrix, offset

    def _operand(self, term: Term, values: Mapping[Term, Array], sample: int) -> Array:
        if term in self.open:
            return values[term]
        one = self.known.value(term, sample, self.meanings)
        return np.broadcast_to(one, (self.batch, *one.shape[1:]))


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
) -> dict[str, WeightConstraints]:  # fmt: skip
    """The equations of each unknown by itself.

    Raises:
        WeightsNotSolved: one speaks of several.
    """
    found_required_weights: dict[str, WeightConstraints] = {}
    start = 0
    for hole, width in sizes.items():
        inside = range(start, start + width)
        mine = [i for i, p in enumerate(pivots) if p in inside]
        outside = np.delete(rows[mine], np.arange(start, start + width), axis=1)
        if outside.any():
            raise WeightsNotSolved("what weights have to be depends on each other")
        own = rows[mine][:, start : start + width]
        mixed = rng.integers(1, MODULUS, size=(_FUNCTIONALS, len(mine)))
        functionals = np.stack([_times(own.T, m) for m in mixed]) if mine else np.zeros((_FUNCTIONALS, width), np.int64)
        values = tuple(int(_times(m, goals[mine])) for m in mixed)
        whole = goals[mine].reshape(shapes[hole]) if len(mine) == width else None
        found_required_weights[hole] = WeightConstraints(functionals, values, whole)
        start += width
    return found_required_weights

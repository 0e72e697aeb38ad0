"""Terms bottom-up by size, one representative per class of equal values.

A bigger term is built only from representatives, so growth is by distinct values and not by terms (Ruler, OOPSLA 2021).
Two terms are in one class when they have the same symbolic type and the same exact value at several concrete
assignments of sizes and attributes, at random elements: a coincidence of one shape is not a class. All applications
of one template to operands of the same types are evaluated at once, through the operators' meanings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product

import numpy as np

from superopt.discovery.config import OperatorVocabulary, Template
from superopt.discovery.equal_term_pairs import EqualTermPairs, TemplateApplication
from superopt.discovery.template import TypedTemplate, batched, concrete, obligations_of, size_at, typed, variants
from superopt.ir.size_polynomial import substitute, sym
from superopt.ir.terms import OperatorTerm, Term, VariableTerm, postorder, variables
from superopt.ir.types import DType, TensorType
from superopt.ops.operator_semantics import (
    IllTypedOperator,
    IndexCondition,
    ScalarCall,
    ScalarConstant,
    ScalarReduction,
    TensorComprehension,
    subexpressions,
)
from superopt.rules.rule import CLASSES, TensorVariableType
from superopt.rules.typing import complete, operator_of
from superopt.runtime.comprehension_evaluation import Array, evaluate
from superopt.verifier.exact.algebra import ORDERED, InverseOfZero, PrimeField
from superopt.verifier.exact.ordered_field import OrderedPrimeField
from superopt.verifier.exact.sampling import SizeSample, allowed

__all__ = ["Enumeration", "EnumerationCounts", "enumerate_terms", "points_of"]

BATCH = 2048
_ELEMENTS = 1 << 21  # of one operand batch
_CALLS = 1 << 16  # combinations of operands that are made at once
Algebra = PrimeField | OrderedPrimeField
Key = tuple[TensorType, bytes]


@dataclass(frozen=True)
class EnumerationCounts:
    """Counts after all terms of one size: how many were built, how many values they have."""

    size: int
    terms: int
    classes: int
    coincidences: int

    def __str__(self) -> str:
        return f"size {self.size}: {self.terms} terms, {self.classes} classes, {self.coincidences} coincidences"


@dataclass
class TermEquivalenceClass:
    term: Term
    type: TensorType
    size: int
    values: tuple[Array, ...]
    constant: bool = False  # depends on weights alone


@dataclass
class Enumeration:
    """All classes of a theme and the terms that fell into a class that was already there.

    Attributes:
        pairs: (member, representative): equal at all fingerprints.
        complete: whether the bound on the number of terms was not met.
    """

    theme: OperatorVocabulary
    classes: list[TermEquivalenceClass] = field(default_factory=list)
    pairs: EqualTermPairs = ()
    levels: list[EnumerationCounts] = field(default_factory=list)
    complete: bool = True


def points_of(theme: OperatorVocabulary, count: int, rng: np.random.Generator) -> list[SizeSample]:
    """Concrete sizes and attributes, in range, as different from each other as was drawn in a few hundred attempts.

    Raises:
        ValueError: no assignment satisfies the theme's types.
    """
    frame = theme.frame()
    wanted = _first_obligations(theme)
    chosen: list[SizeSample] = []
    for number in range(count):
        best: tuple[int, SizeSample] | None = None
        for _ in range(300):
            sizes = {n: int(rng.integers(lo, hi + 1)) for n in frame.sizes for lo, hi in [theme.sizes.get(n, (2, 4))]}
            reals: dict[str, float] = {}
            for name, scheme in frame.attribute_atoms.items():
                if scheme.kind == "real":
                    reals[name] = float(rng.integers(1, 25)) / 8
                else:
                    low = {">=": scheme.bound, ">": scheme.bound + 1}.get(scheme.relation, 0)
                    first, last = theme.sizes.get(name, (low, low + 1 + number % 2))
                    sizes[name] = int(rng.integers(first, last + 1))
            if not allowed(frame, sizes, ()):
                continue
            plain = [sizes[n] for n in frame.sizes]
            attributes = [v for n, v in sizes.items() if n in frame.attribute_atoms]
            fitting = sum(_holds(c, sizes) for c in wanted)
            score = (
                fitting * 100
                + len(set(plain)) * 4
                + len(set(attributes))
                + 2 * (not any(p.sizes == sizes for p in chosen))
            )
            if best is None or score > best[0]:
                best = (score, SizeSample(sizes, reals))
        if best is None:
            raise ValueError(f"no sizes satisfy the types of theme {theme.name}")
        chosen.append(best[1])
    return chosen


def _first_obligations(theme: OperatorVocabulary) -> list[IndexCondition]:
    """Inequalities under which the templates apply to leaves (windows that fit): points should satisfy them."""
    kinds = {n: TensorType(DType(CLASSES[s.dtype]), s.shape) for n, s in theme.leaves.items()}
    found: dict[IndexCondition, None] = {}
    for template in theme.vocabulary:
        if template.split:
            continue
        fitting = [[n for n in kinds if template.takes(h, theme.is_weight(n))] for h in template.holes]
        for names in product(*fitting):
            found.update(dict.fromkeys(obligations_of(template, tuple(kinds[n] for n in names), theme)))
    return list(found)


def _holds(condition: IndexCondition, sizes: Mapping[str, int]) -> bool:
    return IndexCondition(condition.kind, substitute(condition.size, sizes)).known is True


class TermEnumerator:
    def __init__(
        self, theme: OperatorVocabulary, points: Sequence[SizeSample], rng: np.random.Generator, most: int
    ) -> None:
        self.theme = theme
        self.points = points
        self.most = most
        self.pairs: list[tuple[Term, Term]] = []
        self.found = Enumeration(theme, pairs=self.pairs)
        self.index: dict[Key, int] = {}
        self.by_size: dict[int, list[int]] = {}
        self.typed: dict[tuple[int, tuple[TensorType, ...]], TypedTemplate | None] = {}
        self.terms = 0
        self.mixers: dict[int, Array] = {}
        self.algebra: Algebra = PrimeField()
        self.reals: list[dict[str, Array]] = []
        self.rng = rng

    def start(self, algebra: Algebra) -> None:
        """Leaves and constants, with random elements."""
        self.use(algebra)
        scalars = 0
        for name, scheme in self.theme.leaves.items():
            kind = TensorType(DType(CLASSES[scheme.dtype]), scheme.shape)
            values = tuple(self._random(scheme, kind, p) for p in self.points)
            if kind.shape == () and scheme.dtype == "f":
                scalars += 1
                values = tuple(self._signed(v, number >> (scalars - 1) & 1) for number, v in enumerate(values))
            self.add_term(VariableTerm(name), kind, 0, values, keep=True)
        for number, template in enumerate(self.theme.vocabulary):
            if not template.holes:
                self.apply_all(number, (), np.empty((1, 0), np.int32), 0, keep=True)
        self.count(0)

    def use(self, algebra: Algebra) -> None:
        """Evaluate in an algebra."""
        self.algebra = algebra
        self.reals = [{n: algebra.constant(Fraction(v)) for n, v in point.reals.items()} for point in self.points]

    def _random(self, scheme: TensorVariableType, kind: TensorType, point: SizeSample) -> Array:
        shape = concrete(kind, point)
        if scheme.dtype == "f":
            if self.theme.small and isinstance(self.algebra, OrderedPrimeField):
                return self.algebra.small(self.rng, shape)
            return self.algebra.random(self.rng, shape)
        top = 2 if scheme.below is None else size_at(scheme.below, point)
        return self.algebra.integers(self.rng.integers(0, top, size=shape))

    def _signed(self, value: Array, negative: int) -> Array:
        """A scalar with a chosen sign: a single number is not both positive and negative somewhere in itself."""
        if not isinstance(self.algebra, OrderedPrimeField):
            return value
        absolute = self.algebra.function("abs", value)
        return self.algebra.function("mul", absolute, self.algebra.integers(np.asarray(-1 if negative else 1)))

    def grow(self, size: int, last: bool) -> None:
        """All terms of a size."""
        for number, types, calls in self.groups(size):
            if self.terms > self.most:
                self.found.complete = False
                return
            self.apply_all(number, types, calls, size, keep=not last)
        self.count(size)

    def groups(self, size: int) -> Iterator[tuple[int, tuple[TensorType, ...], Array]]:
        """Applications that make terms of a size, by template and types of the operands, which are classes (rows)."""
        numbers: dict[TensorType, int] = {}
        kinds = np.array([numbers.setdefault(c.type, len(numbers)) for c in self.found.classes], np.int64)
        types = list(numbers)
        for number, template in enumerate(self.theme.vocabulary):
            groups: dict[int, list[Array]] = {}
            for operands in self._operands(template, size - 1):
                for alike, part in _parted(operands, kinds, len(types)):
                    groups.setdefault(alike, []).append(part)
            for parts in groups.values():
                calls = np.concatenate(parts)
                yield number, tuple(types[k] for k in kinds[calls[0]].tolist()), calls

    def count(self, size: int) -> None:
        self.found.levels.append(EnumerationCounts(size, self.terms, len(self.index), len(self.found.pairs)))

    def _operands(self, template: Template, budget: int) -> Iterator[Array]:
        """Operands whose sizes sum to a budget, in order, a row each; so many at once."""
        for split in product(range(budget + 1), repeat=len(template.holes)):
            if not split or sum(split) != budget or (template.commutative and split[0] > split[1]):
                continue
            first, *others = (
                np.array(self._fitting(h, s), np.int32) for h, s in zip(template.holes, split, strict=True)
            )
            step = max(1, _CALLS // max(1, int(np.prod([len(o) for o in others]))))
            for start in range(0, len(first), step):
                grid = np.meshgrid(first[start : start + step], *others, indexing="ij")
                operands = np.stack([axis.ravel() for axis in grid], axis=1)
                if template.commutative:
                    operands = operands[operands[:, 0] <= operands[:, 1]]
                if len(operands):
                    yield operands

    def _fitting(self, hole: str, size: int) -> Sequence[int]:
        """Classes of a size that may stand in a hole."""
        return [c for c in self.by_size.get(size, ()) if Template.takes(hole, self.found.classes[c].constant)]

    def apply_all(self, number: int, types: tuple[TensorType, ...], calls: Array, size: int, *, keep: bool) -> None:
        for form in self.typing(number, types):
            step = self.batch_size(form)
            for start in range(0, len(calls), step):
                self._apply(form, calls[start : start + step], size, keep=keep)

    def batch_size(self, form: TypedTemplate) -> int:
        """Calls that are evaluated at once."""
        widths = [int(np.prod(concrete(t, p), initial=1)) for t in form.outputs for p in self.points]
        return max(1, min(BATCH, _ELEMENTS // max(widths, default=1)))

    def _apply(self, form: TypedTemplate, calls: Array, size: int, *, keep: bool) -> None:
        try:
            batches = [self._evaluate(form, calls, i) for i in range(len(self.points))]
        except InverseOfZero:
            if len(calls) > 1:
                middle = len(calls) // 2
                self._apply(form, calls[:middle], size, keep=keep)
                self._apply(form, calls[middle:], size, keep=keep)
            return
        for output, kind in enumerate(form.outputs):
            marks = [self._marks(b[output]) for b in batches]
            joined = np.concatenate(marks, axis=1)
            for row, operands in enumerate(calls.tolist()):
                self.terms += 1
                values = tuple(b[output][row] for b in batches) if keep else ()
                self.add_term(None, kind, size, values, keep=keep, mark=joined[row].tobytes(),
                            make=(form, operands, output))  # fmt: skip

    def _evaluate(self, form: TypedTemplate, calls: Array, place: int) -> list[Array]:
        """The outputs of all calls at one point, batch axis first; intermediate applications of a template too."""
        point = self.points[place]
        sizes: dict[str, int | Array] = {**point.sizes, **self.reals[place]}
        given_arrays: dict[Term, Array] = {}
        for position, hole in enumerate(form.holes):
            given_arrays[VariableTerm(hole)] = np.stack([self.values_of(c)[place] for c in calls[:, position].tolist()])
        results: list[Array] = []
        for term in postorder(form.term):
            if isinstance(term, VariableTerm):
                if term not in given_arrays:
                    leaf = self.values_of(self.leaf_class(term.name))[place]
                    given_arrays[term] = np.broadcast_to(leaf, (len(calls), *leaf.shape))
                continue
            assert isinstance(term, OperatorTerm)
            operands = [None if a is None else given_arrays[a] for a in term.args]
            results = [evaluate(batched(c, len(calls)), operands, self.algebra, sizes) for c in form.meanings[term]]
            given_arrays[term] = results[0]
        return results

    def values_of(self, number: int) -> tuple[Array, ...]:
        """The values of a class at the points."""
        return self.found.classes[number].values

    def leaf_class(self, name: str) -> int:
        return list(self.theme.leaves).index(name)

    def _marks(self, batch: Array) -> Array:
        """Two 64-bit hashes of the residues of each row."""
        flat = np.ascontiguousarray(batch["r"] if batch.dtype.names else batch).reshape(len(batch), -1)
        residues = (flat & ((1 << 26) - 1)).astype(np.uint64)
        width = residues.shape[1]
        if width not in self.mixers:
            own = np.random.default_rng([20, width])
            self.mixers[width] = own.integers(1, 1 << 63, size=(2, width), dtype=np.uint64) * np.uint64(2) + np.uint64(
                1
            )
        mixed = residues * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
        return np.stack([(mixed * m).sum(axis=1, dtype=np.uint64) for m in self.mixers[width]], axis=1)

    def add_term(
        self, term: Term | None, kind: TensorType, size: int, values: tuple[Array, ...], *, keep: bool,
        mark: bytes | None = None, make: tuple[TypedTemplate, Sequence[int], int] | None = None,
    ) -> None:  # fmt: skip
        if mark is None:
            mark = np.concatenate([self._marks(v[None]) for v in values], axis=1).tobytes()
        key = (kind, mark)
        known = self.index.get(key)
        if known is not None:
            if term is None and make is not None:
                self.pairs.append((self.term_of(*make), self.found.classes[known].term))
            return
        self.index[key] = len(self.found.classes)
        if term is None:
            assert make is not None
            term = self.term_of(*make) if keep or make else VariableTerm("?")
        constant = all(self.theme.is_weight(n) for n in variables(term))
        self.found.classes.append(TermEquivalenceClass(term, kind, size, values, constant))
        if keep:
            self.by_size.setdefault(size, []).append(len(self.found.classes) - 1)

    def term_of(self, form: TypedTemplate, operands: Sequence[int], output: int) -> Term:
        return written_as(form).applied([self.found.classes[c].term for c in operands], output)

    def typing(self, number: int, types: tuple[TensorType, ...]) -> list[TypedTemplate]:
        template = self.theme.vocabulary[number]
        found = []
        for term in variants(template, types):
            key = (number, (*types, TensorType(DType.FLOAT32, ())) if template.split else types)
            if template.split:
                made = typed(template, term, types, self.theme, self.points)
            else:
                if key not in self.typed:
                    self.typed[key] = typed(template, term, types, self.theme, self.points)
                made = self.typed[key]
            if made is not None:
                found.append(made)
        return found


def _parted(operands: Array, kinds: Array, types: int) -> Iterator[tuple[int, Array]]:
    """Rows of operands by their types, in the order in which those come, with a number for the types."""
    key = np.zeros(len(operands), np.int64)
    for column in operands.T:
        key = key * types + kinds[column]
    alike, first, inverse, counts = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    parts = np.split(operands[np.argsort(inverse.ravel(), kind="stable")], np.cumsum(counts)[:-1])
    for which in np.argsort(first).tolist():
        yield int(alike[which]), parts[which]


def written_as(form: TypedTemplate) -> TemplateApplication:
    """How a typed template is applied."""
    return TemplateApplication(form.term, form.holes, form.several)


def _needs_order(theme: OperatorVocabulary) -> bool:
    """Whether some operator of the vocabulary compares numbers (relu, max), which a field does not."""
    return any(
        _orders(meaning)
        for template in theme.vocabulary
        for term in postorder(template.term)
        if isinstance(term, OperatorTerm)
        for meaning in _sample_meanings(term)
    )


def _sample_meanings(term: OperatorTerm) -> Sequence[TensorComprehension]:
    """Meanings of an operator at some ranks, to see which functions it calls; the last operand may be positions."""
    record, values = operator_of(term), complete(term)
    for rank, last in product((2, 4, 3, 1, 0), (DType.FLOAT32, DType.INT64)):
        shape = tuple(sym(f"s{i}") for i in range(rank))
        kinds = [None if a is None else TensorType(DType.FLOAT32, shape) for a in term.args]
        if kinds and kinds[-1] is not None:
            kinds[-1] = TensorType(last, shape)
        try:
            return record.apply(kinds, values)[0].outputs
        except (IllTypedOperator, ZeroDivisionError):
            continue
    return ()


def _orders(output: TensorComprehension) -> bool:
    for part in subexpressions(output.body):
        name = part.function if isinstance(part, ScalarCall) else part.kind if isinstance(part, ScalarReduction) else ""
        if name in ORDERED or (isinstance(part, ScalarConstant) and isinstance(part.value, float)):
            return True
    return False


def algebra_of(theme: OperatorVocabulary) -> Algebra:
    """In which the theme's terms are compared."""
    return OrderedPrimeField() if _needs_order(theme) else PrimeField()


def begun(theme: OperatorVocabulary, points: Sequence[SizeSample], seed: int, most: int) -> TermEnumerator:
    """A builder with the leaves and constants of a theme."""
    builder = TermEnumerator(theme, points, np.random.default_rng([seed, 77]), most)
    builder.start(algebra_of(theme))
    return builder


def enumerate_terms(
    theme: OperatorVocabulary, points: Sequence[SizeSample], seed: int, most: int,
    progress: Callable[[EnumerationCounts], None] | None = None,
) -> Enumeration:  # fmt: skip
    """All terms of a theme up to its size; see the module.

    Args:
        theme: the vocabulary.
        points: concrete sizes and attributes at which values are compared.
        seed: of the elements.
        most: stop beyond this many terms.
        progress: called after each size.
    """
    builder = begun(theme, points, seed, most)
    for size in range(1, theme.operators + 1):
        builder.grow(size, last=size == theme.operators)
        if progress is not None:
            progress(builder.found.levels[-1] if builder.found.levels else EnumerationCounts(size, 0, 0, 0))
        if not builder.found.complete:
            break
    return builder.found

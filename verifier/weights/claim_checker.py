"""Checks rewrites that depend on the elements of weights: every claim, and every rewritten value, at drawn values.

The argument is an induction over the model. A claim about a value is checked at the one node that produces it, whose
operands are drawn at random *as far as the claims about them allow*. A value of the result is checked at the nodes that
produce it from other values of the result, whose operands are the kept slices of the same draws. So the checks of
single nodes compose to the whole.

Numbers are residues of a prime field where the node is a rational function. Weights are exact there: an element of
10⁻³⁰ is not 0, and dropping it is detected but for a probability of degree / 2²⁶. Other functions are hashes of their
arguments, and comparisons are float64. Sums of weights are rounded once. So where claims of equal or constant slices
meet, the result is compared in float64, within a few units of the weights' rounding.

Nothing of the finder (:mod:`superopt.passes.weights`) is used: this module evaluates, and the finder reasons.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import TypeVar

import numpy as np

from superopt.ir.errors import NotEquivalent, OutOfTime
from superopt.ir.graph import Graph
from superopt.ir.size_polynomial import symbols
from superopt.ir.types import DType, TensorType
from superopt.rules.weight_claims import KeptSlices, UniformSlices, WeightRewriteCertificate
from superopt.runtime.comprehension_evaluation import Array
from superopt.verifier.exact.algebra import InverseOfZero, NeedsOrder, PrimeField
from superopt.verifier.weights.draws import (
    ConstrainedDraws,
    DrawnShapes,
    DrawnValueEvaluator,
    SizedGraph,
    ValueClaims,
    weight_named,
)
from superopt.verifier.weights.nan_test_draws import check_answer, leaves_of_test
from superopt.verifier.weights.tabulated import check_tabulated

__all__ = ["ClaimCheckCounts", "check_values"]

_T = TypeVar("_T")

# Sizes that axes without claims are tried at before their own, the first two that all operators take: convolutions of
# images take too long. Two, because 3 is the last position of an axis of 4, and of no other.
_SMALL = (4, 9, 13)
_EXACT_ENOUGH, _NUMBER = 1e-10, 1e-5  # of the largest element: float64's own noise, and constants computed in float32
_ROUNDING = {DType.FLOAT16: 2.0**-8, DType.BFLOAT16: 2.0**-5}  # of sums of weights, of the result's largest element
_FACTORED = 4.0  # times the stated error of a factored weight, that its product's result may be off
_LENGTHS = 2
_DRAWS = 3  # that may meet an inverse of zero
_FEW = 64  # nodes that one value of the result may be made by


@dataclass(frozen=True)
class ClaimCheckCounts:
    """How many claims and rewritten values were checked, and how many of them hold exactly in the field."""

    claims: int
    sites: int
    exact: int

    def __str__(self) -> str:
        return f"{self.claims} claims and {self.sites} places checked, {self.exact} exactly"


def check_values(
    before: Graph, after: Graph, certificate: WeightRewriteCertificate, *, seed: int = 0, deadline: float = float("inf")
) -> ClaimCheckCounts:  # fmt: skip
    """Check a certificate against a model and its result.

    Args:
        before: the model.
        after: the rewritten model; values that keep their names are the same values.
        certificate: what is claimed.
        seed: of the draws.
        deadline: ``time.monotonic`` value after which no more is looked at.

    Raises:
        NotEquivalent: a claim or a place does not hold, or could not be looked at; the message says which.
        OutOfTime: the deadline passed.
    """
    for name, digest in certificate.weights:
        weight = weight_named(before, name)
        if weight is None or weight.data is None or weight.data.digest != digest:
            raise NotEquivalent(f"weight {name!r} is not the one that the certificate is about")
    return _Check(before, after, certificate, seed, deadline).run()


@dataclass(frozen=True)
class _Site:
    """A value of the result, and the value of the model whose slices it has."""

    after: str
    before: str
    slices: KeptSlices | None


class _Check:
    """One certificate against its model and result; :meth:`run` looks at every claim, then at every place."""

    def __init__(
        self, before: Graph, after: Graph, certificate: WeightRewriteCertificate, seed: int, deadline: float
    ) -> None:
        names = sorted({s for g in (before, after) for v in g.inputs for s in _symbols(v.type)})
        sizes = {name: 2 + at % 3 for at, name in enumerate(names)}
        sized = bool(certificate.moved)
        self.before, self.after = SizedGraph(before, sizes, sized), SizedGraph(after, sizes, sized)
        self.certificate, self.seed, self.deadline = certificate, seed, deadline
        self.claims: dict[str, ValueClaims] = {}
        for u in certificate.uniform:
            known_claims = self.claims.get(u.value, ValueClaims())
            self.claims[u.value] = ValueClaims((*known_claims.uniform, u), known_claims.equal)
        for e in certificate.equal:
            known_claims = self.claims.get(e.value, ValueClaims())
            self.claims[e.value] = ValueClaims(known_claims.uniform, (*known_claims.equal, e))
        self.answers = {d.value: d.answer for d in certificate.decided}
        self.claims.update(
            (name, replace(self.claims.get(name, ValueClaims()), answer=a)) for name, a in self.answers.items()
        )
        self.tabulated = {t.value: t for t in certificate.tabulated}
        self.same = {s.value: s.other for s in certificate.same}
        self.shapes = DrawnShapes(self.before, certificate, self.claims)
        self.values = DrawnValueEvaluator(self.before, self.claims, self.same)
        self.moved = frozenset(m.value for m in certificate.moved)
        self.holds: dict[str, _Site] = {k.becomes: _Site(k.becomes, k.value, k) for k in certificate.kept}
        for name in [*self.after.nodes, *(v.name for v in after.inputs)]:
            if name not in self.holds and (name in self.before.nodes or name in {v.name for v in before.inputs}):
                self.holds[name] = _Site(name, name, None)

    def run(self) -> ClaimCheckCounts:
        for name, claims in self.claims.items():
            if claims.axes:
                self.claim(name, claims)
        for name, answer in self.answers.items():
            leaves = leaves_of_test(self.before, name)
            self.tried([name], leaves, partial(check_answer, self.values, name, answer, leaves, seed=self.seed))
        for name, other in self.same.items():
            self.sameness(name, other)
        places = exact = 0
        moved = set(self.moved)
        for output in [v.name for v in self.after.graph.outputs]:
            if output in self.after.nodes and output not in self.holds:
                raise NotEquivalent(f"output {output!r} is none of the model's")
        for node in self.after.graph.nodes:
            for name in node.outputs:
                if name in self.holds and not self.untouched(name):
                    places += 1
                    holds = self.read_from_table(name) or self.check_site(self.holds[name])
                    exact += holds
                    if holds:
                        moved.discard(name)
        if moved:
            raise NotEquivalent(f"{min(moved)!r} is not shown to be exactly what other movements of elements make")
        return ClaimCheckCounts(
            len(self.claims) + len(self.same) + len(self.moved) + len(self.tabulated), places, exact
        )

    # ---- claims -----------------------------------------------------------------------------------------------------
    def claim(self, name: str, claims: ValueClaims) -> None:
        """Check the claims about a value at the node that produces it.

        Raises:
            NotEquivalent: it does not hold.
        """
        node = self.before.node(name)
        if node is None:
            raise NotEquivalent(f"nothing makes {name!r}, so nothing is known of it")
        operands = [a for a in self.before.applied(name).args if a is not None]
        self.tried([name], operands, lambda shapes: self.claimed(name, claims, operands, shapes))

    def tried(
        self, wanted: Sequence[str], sources: Sequence[str], check: Callable[[Mapping[str, tuple[int, ...]]], _T]
    ) -> _T:
        """A check at short axes of two lengths; at the model's own, where there are none or it fails: a mean depends on
        how many there are.

        Raises:
            NotEquivalent: it does not hold. OutOfTime: the deadline has passed.
        """
        if time.monotonic() > self.deadline:
            raise OutOfTime("there was no time left to check it")
        for side in (self.before, self.after):
            side.residues.clear()
        short = [s for length in _SMALL if (s := self.shapes.small(wanted, sources, length)) is not None][:_LENGTHS]
        if len(short) == _LENGTHS:
            try:
                return min(map(check, short), key=bool)
            except NotEquivalent:
                pass
        return check(self.shapes.drawn_shapes(sources))

    def claimed(
        self, name: str, claims: ValueClaims, operands: Sequence[str], shapes: Mapping[str, tuple[int, ...]]
    ) -> None:
        real = self.computed(name, operands, None, shapes)
        try:
            exact: Array | None = self.computed(name, operands, PrimeField(self.seed), shapes)
        except NeedsOrder:
            exact = None
        for u in claims.uniform:
            self.is_uniform(u, real, exact)
        field_of = PrimeField(self.seed)
        for e in claims.equal:
            for at, earlier in e.pairs:
                if not _close(real.take(at, e.axis), real.take(earlier, e.axis), _EXACT_ENOUGH):
                    raise NotEquivalent(f"slices {at} and {earlier} of {name!r} along axis {e.axis} differ")
                if exact is not None and not field_of.equal(exact.take(at, e.axis), exact.take(earlier, e.axis)).all():
                    raise NotEquivalent(f"slices {at} and {earlier} of {name!r} along axis {e.axis} are not equal")

    def is_uniform(self, claim: UniformSlices, real: Array, exact: Array | None) -> None:
        field_of = PrimeField(self.seed)
        for at, number in zip(claim.indices, claim.numbers, strict=True):
            where = f"slice {at} of {claim.value!r} along axis {claim.axis}"
            values = real.take(at, claim.axis)
            if not _close(values, np.full_like(values, number), 0.0 if number == 0 else _NUMBER):
                raise NotEquivalent(f"{where} is not {number}")
            if exact is None:
                continue
            slices = exact.take(at, claim.axis).ravel()
            zero = number == 0 and not field_of.equal(slices, field_of.constant(0.0)).all()
            if zero or not field_of.equal(slices, slices[:1]).all():
                raise NotEquivalent(f"{where} is not {number} exactly")

    def sameness(self, name: str, other: str) -> None:
        """Check that a value is another one."""
        if self.before.node(name) is None:
            raise NotEquivalent(f"nothing makes {name!r}")
        operands = [a for a in self.before.applied(name).args if a is not None]
        self.tried([name], operands, lambda shapes: self.the_same(name, other, shapes))

    def the_same(self, name: str, other: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        for algebra in (None, PrimeField(self.seed)):
            draws = ConstrainedDraws(self.before, self.claims, algebra, np.random.default_rng(self.seed), shapes)
            try:
                for operand in self.before.applied(name).args:
                    if operand is not None and not self.before.constant(operand):
                        draws.value(operand)
                array = self.values.evaluated(self.before, [name], draws.drawn, draws)[name]
            except NeedsOrder:
                continue
            wanted = draws.value(other)
            alike = _close(array, wanted, _EXACT_ENOUGH) if algebra is None else algebra.equal(array, wanted).all()
            if not alike:
                raise NotEquivalent(f"{name!r} is not {other!r}")

    # ---- places -----------------------------------------------------------------------------------------------------
    def untouched(self, name: str) -> bool:
        """Whether the same node makes a value from the same values."""
        old, new, site = self.before.node(name), self.after.node(name), self.holds[name]
        if old is None or new is None or site.slices is not None:
            return False
        alike = (old.op, old.domain, old.overload, old.outputs, dict(old.attributes), len(old.inputs)) == (
            new.op, new.domain, new.overload, new.outputs, dict(new.attributes), len(new.inputs)
        )  # fmt: skip
        if not alike or old.captures != new.captures:
            return False
        return all(self._same_inputs(a, b) for a, b in zip(old.inputs, new.inputs, strict=True) if a or b) and all(
            self._same_inputs(name, name) for name in old.captures
        )

    def _same_inputs(self, name: str, other: str) -> bool:
        """Whether what a node of the model reads is what one of the result reads: where one is claimed to be the other,
        that is looked at by itself, and here only that the other is not broadcast."""
        if name != other and (
            not other or self.same.get(name) != other or self.before.kind(name) != self.before.kind(other)
        ):
            return False
        old, new = self.before.graph.weight.get(name), self.after.graph.weight.get(other)
        if old is None and new is None:
            return other in self.holds and self.holds[other].slices is None
        if old is None and new is not None and name in self.before.size_values:
            known_array, data = self.before.size_values[name], None if new.data is None else new.data.numpy()
            return data is not None and data.dtype == known_array.dtype and np.array_equal(data, known_array)
        return old is new or (
            old is not None and new is not None and old.type == new.type and old.data is not None
            and new.data is not None and old.data.digest == new.data.digest
        )  # fmt: skip

    def read_from_table(self, name: str) -> bool:
        """Check a value of the result that is claimed to be read from a table; false where it is not claimed."""
        claim = self.tabulated.get(name)
        if claim is None:
            return False
        if time.monotonic() > self.deadline:
            raise OutOfTime("there was no time left to check it")
        if not set(self.leaves(name)) <= {claim.index}:
            raise NotEquivalent(f"{name!r} is made of more than {claim.index!r}")
        check_tabulated(claim, self.before, self.after, self.values, self.seed)
        return True

    def check_site(self, place: _Site) -> bool:
        """Check a value of the result; whether it holds exactly.

        Raises:
            NotEquivalent: it does not hold.
        """
        leaves = self.leaves(place.after)
        sources = [self.holds[n].before for n in leaves]
        if place.before in self.moved:  # a position may be one of a short axis, and none of the model's
            drawn = [*sources, *self.operands(place, leaves)]
            return self.holding(place, leaves, self.shapes.drawn_shapes(drawn))
        drawn = [*sources, *self.values.static_values_between(place.before, set(sources))]
        return self.tried([place.before], drawn, lambda shapes: self.holding(place, leaves, shapes))

    def holding(self, place: _Site, leaves: Sequence[str], shapes: Mapping[str, tuple[int, ...]]) -> bool:
        for algebra in (PrimeField(self.seed), None):
            try:
                array, wanted, drawn = self.both(place, leaves, algebra, shapes)
            except NeedsOrder:
                continue
            if array.shape != wanted.shape:
                raise NotEquivalent(f"{place.after!r} has the shape {array.shape}, and not {wanted.shape}")
            if algebra is not None:
                if algebra.equal(array, wanted).all():
                    return True
                if not self.rounded(place, drawn):
                    raise NotEquivalent(f"{place.after!r} does not hold what it keeps of {place.before!r}")
                continue
            plain = place.before in self.moved and self.claims.keys().isdisjoint(drawn)
            plain = plain and all(self.before.kind(n).dtype.is_float for n in drawn)
            if plain and array.dtype == wanted.dtype and array.tobytes() == wanted.tobytes():
                return True  # of what is drawn no two elements are equal, so each comes from its own place
            if not _close(array, wanted, self.rounded(place, drawn) or _EXACT_ENOUGH):
                raise NotEquivalent(f"{place.after!r} does not hold what it keeps of {place.before!r}")
        return False

    def rounded(self, place: _Site, drawn: Iterable[str]) -> float:
        """The share of the largest element by which sums of weights and factors may be off; 0 where there are none."""
        factored = [f for f in self.certificate.factored if f.value == place.before]
        claims = [self.claims[n] for n in drawn if n in self.claims]
        if not factored and not any(c.equal or any(any(u.numbers) for u in c.uniform) for c in claims):
            return 0.0
        own = _ROUNDING.get(self.before.kind(place.before).dtype, 2.0**-20)
        return max([own, *(_FACTORED * f.error for f in factored)])

    def both(
        self, place: _Site, leaves: Sequence[str], algebra: PrimeField | None, shapes: Mapping[str, tuple[int, ...]]
    ) -> tuple[Array, Array, Sequence[str]]:
        for attempt in range(_DRAWS):
            rng = np.random.default_rng((self.seed, attempt))
            draws = ConstrainedDraws(self.before, self.claims, algebra, rng, shapes)
            try:
                given_arrays = {n: _cut(draws.value(self.holds[n].before), self.holds[n].slices) for n in leaves}
                if place.before in self.moved:
                    for operand in self.operands(place, leaves):
                        draws.value(operand)
                wanted = self.values.evaluated(self.before, [place.before], draws.drawn, draws)[place.before]
                array = self.values.evaluated(self.after, [place.after], given_arrays, draws)[place.after]
                return array, _cut(wanted, place.slices), tuple(draws.drawn)
            except InverseOfZero:
                continue
        raise NotEquivalent(f"no draw for {place.before!r} has an inverse where one is needed")

    def operands(self, place: _Site, leaves: Sequence[str]) -> list[str]:
        """What is drawn for a value that is moved, beside what the result makes it of: what its node reads; and where
        it is written into what others are, of which the result takes something, what these read."""
        used = self._used(place.after)
        found: dict[str, None] = {}
        stack, seen = [place.before], {place.before, *(self.holds[n].before for n in leaves)}
        while stack:
            node = self.before.node(stack.pop())
            for read in node.reads if node is not None else ():
                if read not in seen and not self.before.constant(read):
                    seen.add(read)
                    if self._written_of(read, used):
                        stack.append(read)
                    else:
                        found[read] = None
        return list(found)

    def _used(self, name: str) -> set[str]:
        """What the result makes a value of, values and weights, down to what is drawn."""
        stack, found = [name], set[str]()
        while stack:
            node = self.after.node(stack.pop())
            for read in node.reads if node is not None else ():
                if read not in found:
                    found.add(read)
                    if read not in self.holds or self.after.constant(read):
                        stack.append(read)
        return found

    def _written_of(self, name: str, used: set[str]) -> bool:
        """Whether a value of the model, or what it is written over, is written there of something that is used."""
        constant = name in used and self.after.constant(name)
        while (node := self.before.node(name)) is not None and self.before.overwrites(name):
            if constant or not used.isdisjoint(node.inputs):
                return True
            name = node.inputs[0]
        return False

    def leaves(self, name: str) -> list[str]:
        """The values of the result, each one of the model's, that a value is made of."""
        found: dict[str, None] = {}
        stack, seen = [name], {name}
        while stack:
            node = self.after.node(stack.pop())
            if node is None or len(seen) > _FEW:
                raise NotEquivalent(f"{name!r} is made of values that are none of the model's")
            for read in node.reads:
                if self.after.constant(read) or read in seen:
                    continue
                if read in self.holds:
                    found[read] = None
                else:
                    seen.add(read)
                    stack.append(read)
        return list(found)

    # ---- evaluation -------------------------------------------------------------------------------------------------
    def computed(
        self, name: str, operands: Sequence[str], algebra: PrimeField | None, shapes: Mapping[str, tuple[int, ...]]
    ) -> Array:
        """A value of the model from draws of the operands of its node."""
        for attempt in range(_DRAWS):
            rng = np.random.default_rng((self.seed, attempt))
            draws = ConstrainedDraws(self.before, self.claims, algebra, rng, shapes)
            try:
                for operand in operands:
                    if not self.before.constant(operand):
                        draws.value(operand)
                return self.values.evaluated(self.before, [name], draws.drawn, draws)[name]
            except InverseOfZero:
                continue
        raise NotEquivalent(f"no draw for {name!r} has an inverse where one is needed")


def _cut(array: Array, kept_slices: KeptSlices | None) -> Array:
    for axis, indices in kept_slices.axes if kept_slices is not None else ():
        array = np.take(array, np.asarray(indices, dtype=np.int64), axis=axis)
    return array


def _close(a: Array, b: Array, share: float) -> bool:
    """Whether two arrays are equal within a share of the largest element."""
    if a.shape != b.shape:
        return False
    if not prod(a.shape):
        return True
    a, b = a.astype(np.float64), b.astype(np.float64)
    if not np.isfinite(a).all() or not np.isfinite(b).all():
        return bool(np.array_equal(a, b, equal_nan=True))
    return bool(np.abs(a - b).max() <= share * max(float(np.abs(b).max()), float(np.abs(a).max())))


def _symbols(kind: object) -> frozenset[str]:
    if not isinstance(kind, TensorType):
        return frozenset()
    return frozenset(s for d in kind.shape or () for s in symbols(d))

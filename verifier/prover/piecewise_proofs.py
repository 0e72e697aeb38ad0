"""Proofs of a value that is assembled from parts: each part is a slice of the value that it should equal.

The prover reads a ``Concat`` of many parts as one expression with as many cases, which multiply where windows overlap.
Part by part there are no cases: ``x = Concat(p, q)`` if ``Slice(x, to a) = p``, ``Slice(x, from a) = q``, and the parts
are together as long as ``x``.

Each part is first followed operator by operator. ``Slice(f(x, y), from a to b) = f(p, q)`` if
``Slice(f(x, y), from a to b) = f(Slice(x, …), Slice(y, …))`` for all ``x`` and ``y`` (a *lemma*, which the prover
decides), and ``p`` and ``q`` are these slices in turn. Each lemma is about one operator, so a proof grows with the
number of operators, and not with the product of their cases. The slices are guessed from sizes alone: a wrong guess
gives a lemma without a proof, and then no proof is found.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from superopt.ir.errors import SuperoptError
from superopt.ir.terms import OperatorTerm, Term, VariableTerm
from superopt.ir.types import TensorType
from superopt.rules import Rule, RuleError, TensorVariableType
from superopt.rules.rule import CLASSES
from superopt.verifier.prover.context import context_of
from superopt.verifier.prover.prover import prove
from superopt.verifier.verdict import ProvedVerdict, UnknownVerdict

__all__ = ["SliceEqualities", "prove_joined", "slice_of"]

_LEMMA = 1.0  # seconds' work for one
_LETTERS = {dtype: letter for letter, dtype in CLASSES.items()}


@dataclass(frozen=True)
class _Span:
    """Positions ``low`` to below ``high`` of an axis."""

    axis: int
    low: int
    high: int

    def of(self, term: Term) -> OperatorTerm:
        """The slice."""
        return slice_of(term, self.axis, self.low, self.high)


def slice_of(term: Term, axis: int, low: int, high: int) -> OperatorTerm:
    """Positions ``low`` to below ``high`` of an axis of a term."""
    return OperatorTerm("Slice", (term,), (("axes", (axis,)), ("ends", (high,)), ("starts", (low,)), ("steps", (1,))))


def _slice(term: Term) -> tuple[Term, _Span] | None:
    """What a term is a slice of, along one axis, and which."""
    if not isinstance(term, OperatorTerm) or term.op != "Slice" or len(term.args) != 1 or term.args[0] is None:
        return None
    stated = dict(term.attributes)
    match stated.get("axes"), stated.get("starts"), stated.get("ends"), stated.get("steps"):
        case (int(axis),), (int(low),), (int(high),), (1,) if 0 <= low < high:
            return term.args[0], _Span(axis, low, high)
    return None


@dataclass
class SliceEqualities:
    """What is known of slices of the terms of a rule.

    Attributes:
        types: of all terms; their sizes are numbers.
    """

    types: Mapping[Term, tuple[TensorType, ...]]
    _memo: MutableMapping[tuple[Term, _Span, Term], bool] = field(default_factory=dict)

    def are(self, whole: Term, axis: int, low: int, part: Term) -> bool:
        """Whether it was shown that a term is the slice of another that begins at a position of an axis."""
        return self._is(whole, _Span(axis, low, low + self.size(part, axis)), part)

    def size(self, term: Term, axis: int) -> int:
        """Of an axis; 0 where it is no number."""
        shape = self.types[term][0].shape or ()
        size = shape[axis] if axis < len(shape) else 0
        return size if isinstance(size, int) else 0

    def _is(self, whole: Term, span: _Span, part: Term) -> bool:
        key = whole, span, part
        if key not in self._memo:
            self._memo[key] = self._slice_proved(whole, span, part)
        return self._memo[key]

    def _slice_proved(self, whole: Term, span: _Span, part: Term) -> bool:
        if (span.low, span.high) == (0, self.size(whole, span.axis)):
            return _same(whole, part)
        if span.low < 0 or span.high > self.size(whole, span.axis):
            return False
        found = _slice(part)
        if found is None:
            return self._applied(whole, span, part, None)
        inner, cut = found
        if _same(inner, whole):
            return cut == span
        if cut.axis == span.axis:
            low = span.low - cut.low
            wider = _Span(span.axis, low, low + self.size(inner, span.axis))
            if self._is(whole, wider, inner) and self._lemma(span.of(whole), cut.of(wider.of(whole)), {whole}):
                return True
        return self._applied(whole, span, inner, cut) or self._applied(whole, span, part, None)

    def _applied(self, whole: Term, span: _Span, part: Term, cut: _Span | None) -> bool:
        """Whether the part (cut, perhaps) is what the whole's operator makes of slices of what that reads."""
        if not isinstance(whole, OperatorTerm) or not isinstance(part, OperatorTerm):
            return False
        if whole.op != part.op or len(whole.args) != len(part.args):
            return False
        low = span.low - (cut.low if cut is not None and cut.axis == span.axis else 0)
        needed: list[tuple[Term, _Span, Term]] = []
        args: list[Term | None] = []
        for own, given_term in zip(whole.args, part.args, strict=True):
            if own is None or given_term is None or _same(own, given_term):
                if own is not given_term and (own is None or given_term is None):
                    return False
                args.append(own)
                continue
            at = self._guess(own, given_term, low, self.size(whole, span.axis))
            if at is None:
                return False
            needed.append((own, at, given_term))
            args.append(at.of(own))
        term: Term = OperatorTerm(part.op, tuple(args), part.attributes)
        leaves = {a for a in whole.args if a is not None}
        if not self._lemma(span.of(whole), term if cut is None else cut.of(term), leaves):
            return False
        return all(self._is(*n) for n in needed)

    def _guess(self, own: Term, given_term: Term, low: int, size: int) -> _Span | None:
        """Which slice of an operand a part reads, whose own result begins at ``low`` of ``size`` positions."""
        before, after = self.types[own][0].shape or (), self.types[given_term][0].shape or ()
        axes = [i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b]
        if len(before) != len(after) or len(axes) != 1 or not size:
            return None
        whole, part = self.size(own, axes[0]), self.size(given_term, axes[0])
        start = low * whole // size if low * whole % size == 0 else low * round(whole / size)
        return _Span(axes[0], start, start + part)

    def _lemma(self, left: Term, right: Term, leaves: set[Term]) -> bool:
        """Whether the prover shows that these are equal, whatever the leaves are."""
        renamed: dict[Term, Term] = {}
        forall: dict[str, TensorVariableType] = {}
        sides = [_over(side, leaves, renamed) for side in (left, right)]
        for leaf, name in renamed.items():
            kind = self.types[leaf][0]
            letter = _LETTERS.get(kind.dtype.value, "")
            if not letter or kind.shape is None:
                return False
            forall[str(name)] = TensorVariableType(letter, kind.shape)
        rule = Rule("slice", forall, (), (sides[0],), (sides[1],))
        return _proved(rule)


@lru_cache(1 << 16)
def _proved(rule: Rule) -> bool:
    return isinstance(prove(rule, time_limit=_LEMMA), ProvedVerdict)


def _same(a: Term, b: Term) -> bool:
    """Whether terms are equal, at a glance where they are not: what they share would be compared over and over."""
    return hash(a) == hash(b) and a == b


def _over(term: Term, leaves: set[Term], renamed: dict[Term, Term]) -> Term:
    """The term with variables for its leaves."""
    if term in leaves:
        return renamed.setdefault(term, VariableTerm(f"x{len(renamed)}"))
    if isinstance(term, OperatorTerm):
        return OperatorTerm(
            term.op, tuple(None if a is None else _over(a, leaves, renamed) for a in term.args), term.attributes
        )
    return term


_WHOLE = 1.0  # seconds' work that the whole is given before its parts


def prove_joined(rule: Rule, *, time_limit: float = 10.0) -> ProvedVerdict | UnknownVerdict:
    """:func:`~superopt.verifier.prover.prover.prove` for a rule at known sizes, by parts where its right side is a
    ``Concat``.

    Args:
        rule: with one output; its sizes are numbers.
        time_limit: seconds' work for the whole, or else for each part.
    """
    started = time.monotonic()
    parts, slices = _parts(rule)
    if parts and all(slices.are(*part) for part in parts):
        return ProvedVerdict(seconds=time.monotonic() - started)
    verdict = prove(rule, time_limit=min(time_limit, _WHOLE) if parts else time_limit)
    if isinstance(verdict, ProvedVerdict) or not parts or verdict.refused:
        return verdict
    found_verdict = verdict
    for whole, axis, low, part in parts:
        sliced = slice_of(whole, axis, low, low + slices.size(part, axis))
        verdict = prove(replace(rule, lhs=(sliced,), rhs=(part,)), time_limit=time_limit)
        if not isinstance(verdict, ProvedVerdict):
            return found_verdict
    return verdict


def _parts(rule: Rule) -> tuple[list[tuple[Term, int, int, Term]], SliceEqualities]:
    """The parts of the right side, each as what it has to be a slice of, the axis, where it begins, and it; none where
    there are none, or they are not as long as the left side."""
    (left,), (right,) = rule.lhs, rule.rhs
    nothing: tuple[list[tuple[Term, int, int, Term]], SliceEqualities] = [], SliceEqualities({})
    if not isinstance(right, OperatorTerm) or right.op != "Concat":
        return nothing
    axis = right.attribute("axis")
    try:
        types = context_of(rule).types
    except (RuleError, SuperoptError):
        return nothing
    if not isinstance(axis, int) or types[left][0].shape != types[right][0].shape:
        return nothing
    slices = SliceEqualities(types)
    found: list[tuple[Term, int, int, Term]] = []
    at = 0
    for operand in right.args:
        assert operand is not None
        found.append((left, axis, at, operand))
        at += slices.size(operand, axis)
    return (found, slices) if slices.size(left, axis) == at else nothing

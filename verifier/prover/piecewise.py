"""Proofs of a value that is put together from parts: each part is a slice of what it is to equal.

The prover takes a ``Concat`` of many parts as one expression with as many cases, which multiply where windows overlap.
Part by part there are none: ``x = Concat(p, q)`` where ``Slice(x, to a) = p``, ``Slice(x, from a) = q``, and the parts
are as long as ``x``. Each part is followed operator by operator first (:mod:`superopt.verifier.prover.slices`).
"""

from __future__ import annotations

import time
from dataclasses import replace

from superopt.ir.errors import SuperoptError
from superopt.ir.terms import App, Term
from superopt.rules import Rule, RuleError
from superopt.verifier.prover.context import context_of
from superopt.verifier.prover.prover import prove
from superopt.verifier.prover.slices import Slices, slice_of
from superopt.verifier.verdict import ProvedAllSizes, Unknown

__all__ = ["prove_joined"]

_WHOLE = 1.0  # seconds' work that the whole is given before its parts


def prove_joined(rule: Rule, *, time_limit: float = 10.0) -> ProvedAllSizes | Unknown:
    """:func:`~superopt.verifier.prover.prover.prove` for a rule at known sizes, by parts where its right side is a
    ``Concat``.

    Args:
        rule: with one output; its sizes are numbers.
        time_limit: seconds' work for the whole, or else for each part.
    """
    started = time.monotonic()
    parts, slices = _parts(rule)
    if parts and all(slices.are(*part) for part in parts):
        return ProvedAllSizes(seconds=time.monotonic() - started)
    verdict = prove(rule, time_limit=min(time_limit, _WHOLE) if parts else time_limit)
    if isinstance(verdict, ProvedAllSizes) or not parts or verdict.refused:
        return verdict
    found = verdict
    for whole, axis, low, part in parts:
        sliced = slice_of(whole, axis, low, low + slices.size(part, axis))
        verdict = prove(replace(rule, lhs=(sliced,), rhs=(part,)), time_limit=time_limit)
        if not isinstance(verdict, ProvedAllSizes):
            return found
    return verdict


def _parts(rule: Rule) -> tuple[list[tuple[Term, int, int, Term]], Slices]:
    """The parts of the right side, each as what it has to be a slice of, the axis, where it begins, and it; none where
    there are none, or they are not as long as the left side."""
    (left,), (right,) = rule.lhs, rule.rhs
    nothing: tuple[list[tuple[Term, int, int, Term]], Slices] = [], Slices({})
    if not isinstance(right, App) or right.op != "Concat":
        return nothing
    axis = right.attribute("axis")
    try:
        types = context_of(rule).types
    except (RuleError, SuperoptError):
        return nothing
    if not isinstance(axis, int) or types[left][0].shape != types[right][0].shape:
        return nothing
    slices = Slices(types)
    found: list[tuple[Term, int, int, Term]] = []
    at = 0
    for operand in right.args:
        assert operand is not None
        found.append((left, axis, at, operand))
        at += slices.size(operand, axis)
    return (found, slices) if slices.size(left, axis) == at else nothing

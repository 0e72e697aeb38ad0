"""Proofs of a value that is put together from parts: each part is a slice of what it is to equal.

The prover takes a ``Concat`` of many parts as one expression with as many cases, which multiply where windows overlap.
Part by part there are none: ``x = Concat(p, q)`` where ``Slice(x, to a) = p``, ``Slice(x, from a) = q``, and the parts
are as long as ``x``.
"""

from __future__ import annotations

from dataclasses import replace

from superopt.ir.errors import SuperoptError
from superopt.ir.terms import App
from superopt.rules import Rule, RuleError
from superopt.verifier.context import context_of
from superopt.verifier.prover import prove
from superopt.verifier.verdict import ProvedAllSizes, Unknown

__all__ = ["prove_joined"]

_WHOLE = 1.0  # seconds' work that the whole is given before its parts


def prove_joined(rule: Rule, *, time_limit: float = 10.0) -> ProvedAllSizes | Unknown:
    """:func:`~superopt.verifier.prover.prove` for a rule at known sizes, by parts where its right side is a ``Concat``.

    Args:
        rule: with one output; its sizes are numbers.
        time_limit: seconds' work for the whole, or else for each part.
    """
    parts = _parts(rule)
    verdict = prove(rule, time_limit=min(time_limit, _WHOLE) if parts else time_limit)
    if isinstance(verdict, ProvedAllSizes) or not parts or verdict.refused:
        return verdict
    found = verdict
    for part in parts:
        verdict = prove(part, time_limit=time_limit)
        if not isinstance(verdict, ProvedAllSizes):
            return found
    return verdict


def _parts(rule: Rule) -> list[Rule]:
    """A rule for each part of the right side; none where it has no parts, or they are not as long as the left side."""
    (left,), (right,) = rule.lhs, rule.rhs
    if not isinstance(right, App) or right.op != "Concat":
        return []
    axis = right.attribute("axis")
    try:
        types = context_of(rule).types
    except (RuleError, SuperoptError):
        return []
    if not isinstance(axis, int):
        return []
    found: list[Rule] = []
    at = 0
    for operand in right.args:
        size = (types[operand][0].shape or ())[axis] if operand is not None else None
        if not isinstance(size, int):
            return []
        sliced = App("Slice", (left,), (("axes", (axis,)), ("ends", (at + size,)), ("starts", (at,)), ("steps", (1,))))
        assert operand is not None
        found.append(replace(rule, lhs=(sliced,), rhs=(operand,)))
        at += size
    whole = types[left][0].shape or ()
    return found if types[left][0].shape == types[right][0].shape and whole[axis] == at else []

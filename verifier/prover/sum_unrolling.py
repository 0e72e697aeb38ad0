"""Sums over a known number of places, written out place by place."""

from __future__ import annotations

from superopt.ir.poly import substitute
from superopt.ops.meaning import Condition
from superopt.verifier.prover.arith import normal_condition
from superopt.verifier.prover.normal import Monomial, Value, add, substitute_factors
from superopt.verifier.prover.simplify import digit_size

__all__ = ["constant_range", "written_out"]


def written_out(value: Value, most: int) -> Value:
    """Sums over a bound variable ``0 ≤ v < n`` of a known size ``n ≤ most`` written out, place by place."""
    pending, done = list(value), []
    while pending:
        m = pending.pop()
        name = next((n for n in m.bound if 1 < constant_range(m, n) <= most), None)
        if name is None:
            done.append(m)
            continue
        bound = tuple(n for n in m.bound if n != name)
        for place in range(constant_range(m, name)):
            guards = {normal_condition(Condition(g.kind, substitute(g.size, {name: place}))) for g in m.guards}
            if all(g.known is not False for g in guards):
                left = m.of(bound=bound, guards=frozenset(g for g in guards if g.known is None))
                pending += substitute_factors(left, {name: place})
    return add(*((m,) for m in done))


def constant_range(m: Monomial, name: str) -> int:
    """``n`` where ``0 ≤ name < n`` is a guard of a known ``n``; else 0."""
    size = digit_size(m, name)
    return size if isinstance(size, int) else 0

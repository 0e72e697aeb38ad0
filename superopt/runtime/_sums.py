"""Reductions: sums of products as matrix products, the others by folding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from superopt.ops.meaning import Call, Reduce, Where
from superopt.runtime._guards import mask, restricted
from superopt.runtime._named import Named, aligned, broadcast, folded, product_sum
from superopt.runtime._program import Affine, Domain, Form, Step
from superopt.runtime._reads import positions
from superopt.runtime._values import Scaled, Task, Value

if TYPE_CHECKING:
    from superopt.runtime._evaluation import Evaluation

__all__ = ["reduction"]

_IDENTITY: Mapping[str, Fraction | float] = {
    "sum": Fraction(0),
    "prod": Fraction(1),
    "max": -float("inf"),
    "min": float("inf"),
}
_JOIN = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}


def reduction(run: Evaluation, step: Step, domain: Domain) -> Task:
    """``Reduce`` and the reductions of the same kind directly inside it."""
    assert isinstance(step.scalar, Reduce)
    kind = step.scalar.kind
    inner = dict(domain)
    variables: list[str] = []
    short: list[tuple[str, Form]] = []  # variables whose extent depends on others
    body = step
    while isinstance(body.scalar, Reduce) and body.scalar.kind == kind:
        assert body.extent is not None
        inner[body.scalar.variable] = (0, max(run.bound(body.extent, inner), 0))
        variables.append(body.scalar.variable)
        if not isinstance(body.extent, Affine) or body.extent.terms:
            short.append((body.scalar.variable, body.extent))
        number = body.parts[0]
        body = run.program.steps[number]
    factors: list[int] = [number]
    guards: list[tuple[str, Form]] = []
    if kind == "sum":
        factors, guards = _taken_apart(run, number)
        inner, guards = restricted(guards, inner, variables)
    if any(inner[v][0] >= inner[v][1] for v in variables):
        return Named(run.algebra.constant(_IDENTITY[kind]), ())
    total: Value | None = None
    for scope in _scopes(run, factors, variables, inner):
        values: list[Value] = []
        for factor in factors:
            values.append((yield factor, scope))
        holds = [mask([g], scope, run.program.rank) for g in guards] + [_within(run, v, e, scope) for v, e in short]
        if kind == "sum":
            part = _summed(run, values, variables, holds, scope)
        else:
            part = _folded(run, kind, run.plain(values[0]), variables, holds, scope)
        total = part if total is None else _joined(run, _JOIN[kind], total, part)
    assert total is not None
    return total


def _taken_apart(run: Evaluation, number: int) -> tuple[list[int], list[tuple[str, Form]]]:
    """The factors of a product and the conditions of guards with a 0 beyond."""
    steps = run.program.steps
    factors: list[int] = []
    guards: list[tuple[str, Form]] = []
    waiting = [number]
    while waiting:
        current = waiting.pop()
        step = steps[current]
        if step.fused and isinstance(step.scalar, Call):
            waiting.extend(reversed(step.parts))
        elif step.fused and isinstance(step.scalar, Where):
            guards.extend(step.conditions)
            waiting.append(step.parts[0])
        else:
            factors.append(current)
    return factors, guards


def _scopes(run: Evaluation, factors: Sequence[int], variables: Sequence[str], inner: Domain) -> list[Domain]:
    """The domain in pieces along a reduced variable, when a factor would be too large."""
    steps = [run.program.steps[f] for f in factors]
    size, step = max(((run.weight(s, inner), s) for s in steps), key=lambda found: found[0])
    long = next((v for v in variables if v in step.variables and inner[v][1] - inner[v][0] > 1), None)
    if size <= run.limit or long is None:
        return [inner]
    first, stop = inner[long]
    width = max(1, (stop - first) * run.limit // size)
    return [{**inner, long: (s, min(s + width, stop))} for s in range(first, stop, width)]


def _within(run: Evaluation, variable: str, extent: Form, scope: Domain) -> Named:
    rank = run.program.rank
    ends, own = positions(extent, scope, rank), positions(Affine(0, ((variable, 1),)), scope, rank)
    arrays, axes = aligned([ends, own], rank)
    return Named(np.greater(*arrays), axes)


def _summed(
    run: Evaluation, values: Sequence[Value], variables: Sequence[str], holds: Sequence[Named], scope: Domain
) -> Value:
    """A sum of products; exponentials are summed relative to the largest."""
    algebra, rank = run.algebra, run.program.rank
    factors = [v for v in values if isinstance(v, Named)]
    powers = [v for v in values if isinstance(v, Scaled)]
    peak: Named | None = None
    rest = list(holds)
    if powers:
        product = run.product(powers)
        if product.mantissa is not None:
            factors.append(product.mantissa)
        exponent = product.exponent
        own = [v for v in variables if v in exponent.axes]
        for hold in [h for h in rest if set(h.axes) <= set(exponent.axes)]:
            exponent = _masked(run, hold, exponent, -float("inf"))
            rest = [h for h in rest if h is not hold]
        peak = run.apply("finite", folded(algebra, "max", exponent, own))
        if own or len(rest) < len(holds):
            factors.append(run.apply("exp", run.apply("add", exponent, run.negated(peak))))
    for hold in rest:
        place = next((i for i, f in enumerate(factors) if set(hold.axes) <= set(f.axes)), None)
        if place is None:
            factors.append(Named(algebra.integers(hold.array.astype(np.int64)), hold.axes))
        else:
            factors[place] = _masked(run, hold, factors[place], Fraction(0))
    extents = {v: stop - first for v, (first, stop) in scope.items()}
    total = product_sum(algebra, factors, variables, extents, rank)
    return total if peak is None else Scaled(total, peak)


def _masked(run: Evaluation, hold: Named, value: Named, otherwise: Fraction | float) -> Named:
    (holds, elements), axes = aligned([hold, value], run.program.rank)
    return Named(np.where(holds, elements, run.algebra.constant(otherwise)), axes)


def _folded(
    run: Evaluation, kind: str, value: Named, variables: Sequence[str], holds: Sequence[Named], scope: Domain
) -> Named:
    for hold in holds:
        value = _masked(run, hold, value, _IDENTITY[kind])
    if kind == "prod" and any(v not in value.axes for v in variables):
        axes = run.program.sort({*value.axes, *variables})
        value = Named(broadcast(value, axes, {v: stop - first for v, (first, stop) in scope.items()}), axes)
    return folded(run.algebra, kind, value, [v for v in variables if v in value.axes])


def _joined(run: Evaluation, function: str, a: Value, b: Value) -> Value:
    if function == "add" and isinstance(a, Scaled) and isinstance(b, Scaled):
        return run.sum([a, b])
    return run.apply(function, run.plain(a), run.plain(b))

"""Conditions on indices: a range of a variable where that is what they say, a mask elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from superopt.ops.meaning import Where
from superopt.runtime._algebra import Array
from superopt.runtime._named import Named, aligned, broadcast
from superopt.runtime._program import Affine, Domain, Form, Step
from superopt.runtime._reads import positions
from superopt.runtime._values import Task

if TYPE_CHECKING:
    from superopt.runtime._evaluation import Evaluation

__all__ = ["guarded", "interval", "mask"]


def interval(kind: str, form: Form, bounds: tuple[int, int]) -> tuple[str, int, int] | None:
    """The variable and the range that satisfy a condition on one variable; ``None`` when it is not such.

    Args:
        kind: "ge" or "eq" ("ne" is no range).
        form: the index polynomial.
        bounds: the range to stay in (only used for an unsatisfiable condition, which gives an empty range).
    """
    if kind == "ne" or not isinstance(form, Affine) or len(form.terms) != 1:
        return None
    (variable, coefficient), constant = form.terms[0], form.constant
    first, stop = bounds
    if kind == "eq":
        if constant % coefficient:
            return variable, first, first
        first, stop = max(first, -constant // coefficient), min(stop, -constant // coefficient + 1)
    elif coefficient > 0:
        first = max(first, -(constant // coefficient))
    else:
        stop = min(stop, constant // -coefficient + 1)
    return variable, min(first, bounds[1]), max(min(stop, bounds[1]), min(first, bounds[1]))


def mask(conditions: Sequence[tuple[str, Form]], domain: Domain, rank: Mapping[str, int]) -> Named:
    """Where all conditions hold (booleans)."""
    result = Named(np.asarray(True), ())
    for kind, form in conditions:
        value = positions(form, domain, rank)
        holds = value.array >= 0 if kind == "ge" else (value.array == 0) == (kind == "eq")
        arrays, axes = aligned([result, Named(np.asarray(holds), value.axes)], rank)
        result = Named(np.logical_and(*arrays), axes)
    return result


def restricted(
    conditions: Sequence[tuple[str, Form]], domain: Domain, variables: Sequence[str] | None = None
) -> tuple[dict[str, tuple[int, int]], list[tuple[str, Form]]]:
    """The domain cut to the ranges that conditions say (on ``variables``, or any), and the conditions left."""
    box, rest = dict(domain), []
    for kind, form in conditions:
        name = form.terms[0][0] if isinstance(form, Affine) and form.terms else None
        found = None if name is None or (variables is not None and name not in variables) else box[name]
        cut = None if found is None else interval(kind, form, found)
        if cut is None:
            rest.append((kind, form))
        else:
            box[cut[0]] = cut[1:]
    return box, rest


def guarded(run: Evaluation, step: Step, domain: Domain) -> Task:
    """``Where``: pieces along one variable, or a box and a mask."""
    variable = _variable(step)
    if variable is not None:
        return (yield from _pieces(run, step, domain, variable))
    rank = run.program.rank
    box, rest = restricted(step.conditions, domain)
    then, otherwise = step.parts
    if any(box[v][0] >= box[v][1] for v in box if box[v] != domain[v]):
        return (yield otherwise, domain)
    outer = run.plain((yield otherwise, domain))
    inner = run.plain((yield then, box))
    holds = mask(rest, box, rank)
    if box == dict(domain):
        (truth, new, old), axes = aligned([holds, inner, outer], rank)
        return Named(np.where(truth, new, old), axes)
    cut = {v for v in box if box[v] != domain[v]}
    axes = run.program.sort({*outer.axes, *inner.axes, *holds.axes, *cut})
    result = np.array(broadcast(outer, axes, _extents(domain)), dtype=np.result_type(outer.array, inner.array))
    region = tuple(slice(box[v][0] - domain[v][0], box[v][1] - domain[v][0]) for v in axes)
    new, truth = (broadcast(x, axes, _extents(box)) for x in (inner, holds))
    result[region] = np.where(truth, new, result[region]) if rest else new
    return Named(result, axes)


def _variable(step: Step) -> str | None:
    """The variable, when all conditions are ranges of the same one."""
    names = {f.terms[0][0] if isinstance(f, Affine) and len(f.terms) == 1 else None for _, f in step.conditions}
    return next(iter(names)) if len(names) == 1 and all(k != "ne" for k, _ in step.conditions) else None


def _pieces(run: Evaluation, step: Step, domain: Domain, variable: str) -> Task:
    """A chain of guards on one variable (Concat, Pad, Slice): each branch on its own part of the range, then joined."""
    steps = run.program.steps
    number = next(n for n, s in enumerate(steps) if s is step)
    work = [(*domain[variable], number)]
    parts: list[tuple[int, int, int]] = []
    while work:
        first, stop, current = work.pop()
        branch = steps[current]
        if not isinstance(branch.scalar, Where) or _variable(branch) != variable:
            parts.append((first, stop, current))
            continue
        start, end = restricted(branch.conditions, {**domain, variable: (first, stop)})[0][variable]
        then, otherwise = branch.parts
        cuts = [(first, start, otherwise), (start, end, then), (end, stop, otherwise)]
        if start >= end:
            cuts = [(first, stop, otherwise)]
        work.extend(c for c in reversed(cuts) if c[0] < c[1])
    if len(parts) <= 1:
        return (yield (parts[0][2] if parts else step.parts[1]), domain)
    values: list[tuple[Named, Domain]] = []
    for first, stop, current in parts:
        scope = {**domain, variable: (first, stop)}
        values.append((run.plain((yield current, scope)), scope))
    axes = run.program.sort({variable, *(a for v, _ in values for a in v.axes)})
    arrays: list[Array] = [broadcast(value, axes, _extents(scope)) for value, scope in values]
    return Named(np.concatenate(arrays, axis=axes.index(variable)), axes)


def _extents(domain: Domain) -> dict[str, int]:
    return {v: stop - first for v, (first, stop) in domain.items()}

"""Reads of an operand (views where indices are affine, gathers elsewhere) and conditions on indices."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from superopt.ir.size_polynomial import Dim, FloorQuotient, SizePolynomial
from superopt.ops.operator_semantics import ScalarConditional
from superopt.runtime._array_arithmetic import Array, ArrayArithmetic, IndexVariableArray, aligned, broadcast
from superopt.runtime._comprehension_program import AffineIndex, ComprehensionStep, Domain, Form, span

if TYPE_CHECKING:
    from superopt.runtime.comprehension_evaluation import ComprehensionEvaluation

__all__ = [
    "Request",
    "MantissaExponent",
    "Task",
    "Value",
    "atom_positions",
    "guarded",
    "interval",
    "mask",
    "positions",
    "read",
]


# -- Values of subexpressions --------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class MantissaExponent:
    """``mantissa · exp(exponent)``; a mantissa of ``None`` is 1. ``number`` is the product, once computed."""

    mantissa: IndexVariableArray | None
    exponent: IndexVariableArray
    number: IndexVariableArray | None = None


Value = IndexVariableArray | MantissaExponent
Request = tuple[int, Domain]  # the number of a step, and the ranges of index variables to evaluate it over
Task = Generator[Request, Value, Value]  # yields requests, is sent their values, returns its own


# -- Reads ---------------------------------------------------------------------------------------------------------


def positions(form: Form, domain: Domain, rank: Mapping[str, int]) -> IndexVariableArray:
    """The int64 values of an index polynomial over a domain."""
    if isinstance(form, AffineIndex):
        terms = [IndexVariableArray(np.arange(*domain[v], dtype=np.int64) * c, (v,)) for v, c in form.terms]
        return _summed([IndexVariableArray(np.asarray(form.constant, dtype=np.int64), ()), *terms], rank)
    terms = []
    for monomial, coefficient in form.terms:
        product = IndexVariableArray(np.asarray(coefficient, dtype=np.int64), ())
        for atom in monomial:
            arrays, axes = aligned([product, atom_positions(atom, domain, rank)], rank)
            product = IndexVariableArray(np.multiply(*arrays), axes)
        terms.append(product)
    return _summed(terms, rank)


def atom_positions(atom: str | FloorQuotient, domain: Domain, rank: Mapping[str, int]) -> IndexVariableArray:
    if isinstance(atom, str):
        return IndexVariableArray(np.arange(*domain[atom], dtype=np.int64), (atom,))
    arrays, axes = aligned([_dim(atom.numerator, domain, rank), _dim(atom.denominator, domain, rank)], rank)
    return IndexVariableArray(np.floor_divide(*arrays), axes)


def _dim(value: Dim, domain: Domain, rank: Mapping[str, int]) -> IndexVariableArray:
    return positions(value if isinstance(value, SizePolynomial) else AffineIndex(value, ()), domain, rank)


def _summed(terms: Sequence[IndexVariableArray], rank: Mapping[str, int]) -> IndexVariableArray:
    result = terms[0]
    for term in terms[1:]:
        arrays, axes = aligned([result, term], rank)
        result = IndexVariableArray(np.add(*arrays), axes)
    return result


def read(
    array: Array,
    index: Sequence[AffineIndex | IndexVariableArray],
    outside: Fraction | float | None,
    algebra: ArrayArithmetic,
    domain: Domain,
    rank: Mapping[str, int],
) -> IndexVariableArray:
    """The elements of ``array`` at ``index`` over a domain.

    Args:
        array: the operand.
        index: per axis an affine form, or positions already computed.
        outside: the value beyond the bounds. ``None`` promises that there are none that matter: a guard around the
            read may still mask elements that are, so these read as 0.
        algebra: makes the constants.
        domain: ranges of the index variables.
        rank: order of the axes of the result.
    """
    if any(stop <= first for first, stop in _used(index, domain)):
        axes = _axes(index, rank)
        return IndexVariableArray(np.empty([max(domain[v][1] - domain[v][0], 0) for v in axes], array.dtype), axes)
    if not all(isinstance(i, AffineIndex) for i in index):
        return _gathered(array, index, outside, algebra, domain, rank)
    forms = [i for i in index if isinstance(i, AffineIndex)]
    spans = [span(form, domain) for form in forms]
    if any(low < 0 or high >= size for (low, high), size in zip(spans, array.shape, strict=True)):
        array, spans = _padded(array, spans, algebra.constant(Fraction(0) if outside is None else outside))
    axes = _axes(index, rank)
    strides = dict.fromkeys(axes, 0)
    start = []
    for form, (low, high), size, stride in zip(forms, spans, array.shape, array.strides, strict=True):
        least = form.constant - span(form, domain)[0] + low  # the constant, shifted as the padding shifted the span
        first = least + sum(c * domain[v][0] for v, c in form.terms)
        start.append(first)
        for variable, coefficient in form.terms:
            strides[variable] += coefficient * stride
        if not 0 <= low <= high < size:
            raise AssertionError("a view would leave its array")
    shape = [domain[v][1] - domain[v][0] for v in axes]
    corner = array[tuple(slice(s, s + 1) for s in start)]
    view = np.lib.stride_tricks.as_strided(corner, shape, [strides[v] for v in axes])
    return IndexVariableArray(view, axes)


def _used(index: Sequence[AffineIndex | IndexVariableArray], domain: Domain) -> list[tuple[int, int]]:
    return [
        domain[v] for i in index for v in (i.axes if isinstance(i, IndexVariableArray) else (t for t, _ in i.terms))
    ]


def _axes(index: Sequence[AffineIndex | IndexVariableArray], rank: Mapping[str, int]) -> tuple[str, ...]:
    names = {v for i in index for v in (i.axes if isinstance(i, IndexVariableArray) else (t for t, _ in i.terms))}
    return tuple(sorted(names, key=rank.__getitem__))


def _padded(array: Array, spans: Sequence[tuple[int, int]], fill: Array) -> tuple[Array, list[tuple[int, int]]]:
    """Just the positions within the spans, with ``fill`` for those outside the array; and the spans in it."""
    shape = [high - low + 1 for low, high in spans]
    result = np.full(shape, fill, dtype=np.result_type(array, fill) if fill.dtype.kind == "f" else array.dtype)
    source, target = [], []
    for (low, high), size in zip(spans, array.shape, strict=True):
        first, stop = max(low, 0), min(high + 1, size)
        stop = max(first, stop)
        source.append(slice(first, stop))
        target.append(slice(first - low, stop - low))
    inside = array[tuple(source)]
    if inside.size:
        result[tuple(target)] = inside
    return result, [(0, high - low) for low, high in spans]


def _gathered(
    array: Array,
    index: Sequence[AffineIndex | IndexVariableArray],
    outside: Fraction | float | None,
    algebra: ArrayArithmetic,
    domain: Domain,
    rank: Mapping[str, int],
) -> IndexVariableArray:
    """A read with positions that are data or not affine: those axes by NumPy's gather, the others as a view.

    An affine axis that shares a variable with a gathered one (``x[i, idx[i]]``) is gathered too.
    """
    gathered = {d for d, i in enumerate(index) if isinstance(i, IndexVariableArray)}
    while True:
        taken = {v for d in gathered for v in _names(index[d])}
        more = {d for d, i in enumerate(index) if d not in gathered and taken & set(_names(i))}
        if not more:
            break
        gathered |= more
    dims = sorted(gathered)
    pieces = [i if isinstance(i, IndexVariableArray) else positions(i, domain, rank) for i in (index[d] for d in dims)]
    if not all(array.shape[d] for d in dims):
        fill = algebra.constant(Fraction(0) if outside is None else outside)
        axes = _axes(index, rank)
        return IndexVariableArray(np.full([domain[v][1] - domain[v][0] for v in axes], fill), axes)
    # The view: gathered axes whole, under names of their own in front of all others.
    inner_rank = {**{f"@{d}": d - len(index) - len(rank) for d in dims}, **rank}
    inner_domain = {**domain, **{f"@{d}": (0, array.shape[d]) for d in dims}}
    forms = [AffineIndex(0, ((f"@{d}", 1),)) if d in gathered else index[d] for d in range(len(index))]
    view = read(array, forms, outside, algebra, inner_domain, inner_rank)
    places, axes = aligned(pieces, rank)
    sizes = [array.shape[d] for d in dims]
    inside = [(p >= 0) & (p < n) for p, n in zip(places, sizes, strict=True)]
    complete = all(bool(i.all()) for i in inside)
    if not complete:
        places = [np.clip(p, 0, n - 1) for p, n in zip(places, sizes, strict=True)]
    found = np.asarray(_gather_at(view.array, places))  # an object array of rank 0 gives its element
    rest = view.axes[len(dims) :]
    if not complete:
        shape = np.broadcast_shapes(*(p.shape for p in places))
        mask = np.broadcast_to(np.logical_and.reduce(np.broadcast_arrays(*inside)), shape)
        mask = mask.reshape(shape + (1,) * len(rest))
        found = np.where(mask, found, algebra.constant(Fraction(0) if outside is None else outside))
    order = sorted((*axes, *rest), key=rank.__getitem__)
    both = (*axes, *rest)
    return IndexVariableArray(found.transpose([both.index(v) for v in order]), tuple(order))


def _gather_at(array: Array, places: Sequence[Array]) -> Array:
    """``array[places]`` over its leading axes; separable positions (each along its own axis) one axis at a time."""
    count = len(places)
    rank = places[0].ndim
    along = [[a for a in range(rank) if p.shape[a] > 1] for p in places]
    separable = rank == count and all(own in ([], [d]) for d, own in enumerate(along))
    if not separable or prod(array.shape[:count]) > 4 * prod(np.broadcast_shapes(*(p.shape for p in places))):
        return array[tuple(places)]
    for d, place in enumerate(places):
        array = array.take(place.reshape(-1), axis=d)
    return array


def _names(index: AffineIndex | IndexVariableArray) -> tuple[str, ...]:
    return index.axes if isinstance(index, IndexVariableArray) else tuple(v for v, _ in index.terms)


# -- Guards --------------------------------------------------------------------------------------------------------
#
# A condition becomes a range of a variable where it is equivalent to one, and a mask elsewhere.


def interval(kind: str, form: Form, bounds: tuple[int, int]) -> tuple[str, int, int] | None:
    """The variable and the range that satisfy a condition on one variable; ``None`` when it is not such.

    Args:
        kind: "ge" or "eq" ("ne" is no range).
        form: the index polynomial.
        bounds: the range to stay in (only used for an unsatisfiable condition, which gives an empty range).
    """
    if kind == "ne" or not isinstance(form, AffineIndex) or len(form.terms) != 1:
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


def mask(conditions: Sequence[tuple[str, Form]], domain: Domain, rank: Mapping[str, int]) -> IndexVariableArray:
    """Where all conditions hold (booleans)."""
    result = IndexVariableArray(np.asarray(True), ())
    for kind, form in conditions:
        value = positions(form, domain, rank)
        holds = value.array >= 0 if kind == "ge" else (value.array == 0) == (kind == "eq")
        arrays, axes = aligned([result, IndexVariableArray(np.asarray(holds), value.axes)], rank)
        result = IndexVariableArray(np.logical_and(*arrays), axes)
    return result


def restricted(
    conditions: Sequence[tuple[str, Form]], domain: Domain, variables: Sequence[str] | None = None
) -> tuple[dict[str, tuple[int, int]], list[tuple[str, Form]]]:
    """The domain cut to the ranges that conditions say (on ``variables``, or any), and the conditions left."""
    box, rest = dict(domain), []
    for kind, form in conditions:
        name = form.terms[0][0] if isinstance(form, AffineIndex) and form.terms else None
        found = None if name is None or (variables is not None and name not in variables) else box[name]
        cut = None if found is None else interval(kind, form, found)
        if cut is None:
            rest.append((kind, form))
        else:
            box[cut[0]] = cut[1:]
    return box, rest


def guarded(run: ComprehensionEvaluation, step: ComprehensionStep, domain: Domain) -> Task:
    """``ScalarConditional``: pieces along one variable, or a box and a mask."""
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
        return IndexVariableArray(np.where(truth, new, old), axes)
    cut = {v for v in box if box[v] != domain[v]}
    axes = run.program.sort({*outer.axes, *inner.axes, *holds.axes, *cut})
    result = np.array(broadcast(outer, axes, _extents(domain)), dtype=np.result_type(outer.array, inner.array))
    region = tuple(slice(box[v][0] - domain[v][0], box[v][1] - domain[v][0]) for v in axes)
    new, truth = (broadcast(x, axes, _extents(box)) for x in (inner, holds))
    result[region] = np.where(truth, new, result[region]) if rest else new
    return IndexVariableArray(result, axes)


def _variable(step: ComprehensionStep) -> str | None:
    """The variable, when all conditions are ranges of the same one."""
    names = {f.terms[0][0] if isinstance(f, AffineIndex) and len(f.terms) == 1 else None for _, f in step.conditions}
    return next(iter(names)) if len(names) == 1 and all(k != "ne" for k, _ in step.conditions) else None


def _pieces(run: ComprehensionEvaluation, step: ComprehensionStep, domain: Domain, variable: str) -> Task:
    """A chain of guards on one variable (Concat, Pad, Slice): each branch on its own part of the range, then joined."""
    steps = run.program.steps
    number = next(n for n, s in enumerate(steps) if s is step)
    work = [(*domain[variable], number)]
    parts: list[tuple[int, int, int]] = []
    while work:
        first, stop, current = work.pop()
        branch = steps[current]
        if not isinstance(branch.scalar, ScalarConditional) or _variable(branch) != variable:
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
    values: list[tuple[IndexVariableArray, Domain]] = []
    for first, stop, current in parts:
        scope = {**domain, variable: (first, stop)}
        values.append((run.plain((yield current, scope)), scope))
    axes = run.program.sort({variable, *(a for v, _ in values for a in v.axes)})
    arrays: list[Array] = [broadcast(value, axes, _extents(scope)) for value, scope in values]
    return IndexVariableArray(np.concatenate(arrays, axis=axes.index(variable)), axes)


def _extents(domain: Domain) -> dict[str, int]:
    return {v: stop - first for v, (first, stop) in domain.items()}

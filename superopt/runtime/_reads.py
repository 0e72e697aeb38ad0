"""Reads of an operand at indices: views where the indices are affine, gathers where they are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import prod

import numpy as np

from superopt.ir.poly import Dim, Poly, Quotient
from superopt.runtime._algebra import Algebra, Array
from superopt.runtime._named import Named, aligned
from superopt.runtime._program import Affine, Domain, Form, span

__all__ = ["atom_positions", "positions", "read"]


def positions(form: Form, domain: Domain, rank: Mapping[str, int]) -> Named:
    """The int64 values of an index polynomial over a domain."""
    if isinstance(form, Affine):
        terms = [Named(np.arange(*domain[v], dtype=np.int64) * c, (v,)) for v, c in form.terms]
        return _summed([Named(np.asarray(form.constant, dtype=np.int64), ()), *terms], rank)
    terms = []
    for monomial, coefficient in form.terms:
        product = Named(np.asarray(coefficient, dtype=np.int64), ())
        for atom in monomial:
            arrays, axes = aligned([product, atom_positions(atom, domain, rank)], rank)
            product = Named(np.multiply(*arrays), axes)
        terms.append(product)
    return _summed(terms, rank)


def atom_positions(atom: str | Quotient, domain: Domain, rank: Mapping[str, int]) -> Named:
    if isinstance(atom, str):
        return Named(np.arange(*domain[atom], dtype=np.int64), (atom,))
    arrays, axes = aligned([_dim(atom.numerator, domain, rank), _dim(atom.denominator, domain, rank)], rank)
    return Named(np.floor_divide(*arrays), axes)


def _dim(value: Dim, domain: Domain, rank: Mapping[str, int]) -> Named:
    return positions(value if isinstance(value, Poly) else Affine(value, ()), domain, rank)


def _summed(terms: Sequence[Named], rank: Mapping[str, int]) -> Named:
    result = terms[0]
    for term in terms[1:]:
        arrays, axes = aligned([result, term], rank)
        result = Named(np.add(*arrays), axes)
    return result


def read(
    array: Array,
    index: Sequence[Affine | Named],
    outside: Fraction | float | None,
    algebra: Algebra,
    domain: Domain,
    rank: Mapping[str, int],
) -> Named:
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
        return Named(np.empty([max(domain[v][1] - domain[v][0], 0) for v in axes], array.dtype), axes)
    if not all(isinstance(i, Affine) for i in index):
        return _gathered(array, index, outside, algebra, domain, rank)
    forms = [i for i in index if isinstance(i, Affine)]
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
    return Named(view, axes)


def _used(index: Sequence[Affine | Named], domain: Domain) -> list[tuple[int, int]]:
    return [domain[v] for i in index for v in (i.axes if isinstance(i, Named) else (t for t, _ in i.terms))]


def _axes(index: Sequence[Affine | Named], rank: Mapping[str, int]) -> tuple[str, ...]:
    names = {v for i in index for v in (i.axes if isinstance(i, Named) else (t for t, _ in i.terms))}
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
    index: Sequence[Affine | Named],
    outside: Fraction | float | None,
    algebra: Algebra,
    domain: Domain,
    rank: Mapping[str, int],
) -> Named:
    """A read with positions that are data or not affine: those axes by NumPy's gather, the others as a view.

    An affine axis that shares a variable with a gathered one (``x[i, idx[i]]``) is gathered too.
    """
    gathered = {d for d, i in enumerate(index) if isinstance(i, Named)}
    while True:
        taken = {v for d in gathered for v in _names(index[d])}
        more = {d for d, i in enumerate(index) if d not in gathered and taken & set(_names(i))}
        if not more:
            break
        gathered |= more
    dims = sorted(gathered)
    pieces = [i if isinstance(i, Named) else positions(i, domain, rank) for i in (index[d] for d in dims)]
    if not all(array.shape[d] for d in dims):
        fill = algebra.constant(Fraction(0) if outside is None else outside)
        axes = _axes(index, rank)
        return Named(np.full([domain[v][1] - domain[v][0] for v in axes], fill), axes)
    # The view: gathered axes whole, under names of their own in front of all others.
    inner_rank = {**{f"@{d}": d - len(index) - len(rank) for d in dims}, **rank}
    inner_domain = {**domain, **{f"@{d}": (0, array.shape[d]) for d in dims}}
    forms = [Affine(0, ((f"@{d}", 1),)) if d in gathered else index[d] for d in range(len(index))]
    view = read(array, forms, outside, algebra, inner_domain, inner_rank)
    places, axes = aligned(pieces, rank)
    sizes = [array.shape[d] for d in dims]
    inside = [(p >= 0) & (p < n) for p, n in zip(places, sizes, strict=True)]
    complete = all(bool(i.all()) for i in inside)
    if not complete:
        places = [np.clip(p, 0, n - 1) for p, n in zip(places, sizes, strict=True)]
    found = np.asarray(_taken(view.array, places))  # an object array of rank 0 gives its element
    rest = view.axes[len(dims) :]
    if not complete:
        shape = np.broadcast_shapes(*(p.shape for p in places))
        mask = np.broadcast_to(np.logical_and.reduce(np.broadcast_arrays(*inside)), shape)
        mask = mask.reshape(shape + (1,) * len(rest))
        found = np.where(mask, found, algebra.constant(Fraction(0) if outside is None else outside))
    order = sorted((*axes, *rest), key=rank.__getitem__)
    both = (*axes, *rest)
    return Named(found.transpose([both.index(v) for v in order]), tuple(order))


def _taken(array: Array, places: Sequence[Array]) -> Array:
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


def _names(index: Affine | Named) -> tuple[str, ...]:
    return index.axes if isinstance(index, Named) else tuple(v for v, _ in index.terms)

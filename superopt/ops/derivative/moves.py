"""Derivatives of operators that move, join, cut and pick elements: each element's cotangent goes back to its place."""

from __future__ import annotations

from math import prod

from superopt.ir.poly import Dim
from superopt.ir.types import DType
from superopt.ops.derivative.declared import Cotangents, Derivative, Site, Tangents, linear_in
from superopt.ops.derivative.expressions import (
    Expr,
    added_at,
    apply,
    apply_all,
    cast,
    constant,
    reshaped,
    reversed_perm,
    transposed,
    unsqueezed,
)

__all__ = [
    "CONCAT", "CUMSUM", "DEPTH_TO_SPACE", "GATHER", "GATHER_ELEMENTS", "PAD", "RESHAPE", "RESIZE", "SCATTER_ND",
    "SLICE", "SPACE_TO_DEPTH", "SPLIT", "TILE", "TRILU",
]  # fmt: skip


def _reshape(site: Site, given: Tangents) -> Cotangents:
    return {} if given[0] is None else {0: reshaped(given[0], site.arg(0).shape)}


def _tile(site: Site, given: Tangents) -> Cotangents:
    """The sum over the copies."""
    if (g := given[0]) is None:
        return {}
    x, counts = site.arg(0), site.dims("repeats")
    digits = [d for pair in zip(counts, x.shape, strict=True) for d in pair]
    copies = tuple(2 * axis for axis, count in enumerate(counts) if count != 1)
    split = reshaped(g, digits)
    summed = apply("ReduceSum", split, axes=copies, keepdims=0) if copies else split
    return {0: reshaped(summed, x.shape)}


def _depth_to_space(site: Site, given: Tangents) -> Cotangents:
    if (g := given[0]) is None:
        return {}
    b = site.size("blocksize")
    if site.attributes["mode"] == "DCR":
        return {0: apply("SpaceToDepth", g, blocksize=b)}
    n, depth, h, w = g.shape
    blocks = transposed(reshaped(g, (n, depth, h // b, b, w // b, b)), (0, 1, 3, 5, 2, 4))
    return {0: reshaped(blocks, site.arg(0).shape)}


def _space_to_depth(site: Site, given: Tangents) -> Cotangents:
    if given[0] is None:
        return {}
    return {0: apply("DepthToSpace", given[0], blocksize=site.size("blocksize"), mode="DCR")}


def _concat(site: Site, given: Tangents) -> Cotangents:
    if (g := given[0]) is None:
        return {}
    axis = site.int("axis")
    if len(site.args) == 1:
        return {0: g}
    sizes = tuple(site.arg(p).shape[axis] for p in range(len(site.args)))
    return dict(enumerate(apply_all("Split", g, axis=axis, split=sizes)))


def _split(site: Site, given: Tangents) -> Cotangents:
    outputs = site.outputs()
    parts = [constant(0, y.dtype, y.shape) if g is None else g for g, y in zip(given, outputs, strict=True)]
    return {0: parts[0] if len(parts) == 1 else apply("Concat", *parts, axis=site.int("axis"))}


def _pad(site: Site, given: Tangents) -> Cotangents:
    if given[0] is None:
        return {}
    return {0: apply("Pad", given[0], pads=tuple(-p for p in site.dims("pads")), value=0.0)}


def _pad_push(site: Site, tangents: Tangents) -> Tangents:
    if tangents[0] is None:
        return [None]
    return [apply("Pad", tangents[0], pads=site.dims("pads"), value=0.0)]


def _slice(site: Site, given: Tangents) -> Cotangents:
    """Zeros around and, with a step, between."""
    if (g := given[0]) is None:
        return {}
    x = site.arg(0)
    before: list[Dim] = [0] * x.rank
    after: list[Dim] = [0] * x.rank
    for axis, start, step in zip(site.ints("axes"), site.dims("starts"), site.ints("steps"), strict=True):
        count = g.shape[axis]
        first = start
        if step < 0:  # the last of the slice comes first in the axis
            g = apply("Slice", g, axes=(axis,), starts=(count - 1,), ends=(-1,), steps=(-1,))
            first = start + (count - 1) * step
        width = abs(step)
        if width > 1:
            apart = unsqueezed(g, (axis + 1,))
            gaps = [0] * (2 * apart.rank)
            gaps[apart.rank + axis + 1] = width - 1
            apart = apply("Pad", apart, pads=tuple(gaps), value=0.0)
            g = reshaped(apart, (*g.shape[:axis], count * width, *g.shape[axis + 1 :]))
        before[axis], after[axis] = first, x.shape[axis] - first - count * width
    if all(p == 0 for p in (*before, *after)):
        return {0: g}
    return {0: apply("Pad", g, pads=(*before, *after), value=0.0)}


def chosen(indices: Expr, size: Dim, dtype: DType) -> Expr:
    """1 where the last axis is the index, counted from the end where it is negative, else 0: [*indices, size]."""
    places = apply("Range", start=0, limit=size, delta=1, dtype=indices.dtype.value)
    from_front = apply("Where", apply("Less", indices, indices.beside(0)), indices + size, indices)
    return apply("Cast", apply("Equal", unsqueezed(from_front, (indices.rank,)), places), to=dtype.value)


def _gather(site: Site, given: Tangents) -> Cotangents:
    """Each cotangent is added where its element was taken from: what is taken twice gets both.

    On another axis than the first it is a product with the matrix that has a 1 there.
    """
    if (g := given[0]) is None or 0 not in site.wanted:
        return {}
    data, indices, axis = site.arg(0), site.arg(1), site.int("axis")
    if axis == 0:
        return {0: added_at(unsqueezed(cast(indices, DType.INT64), (indices.rank,)), g, data.type)}
    taken = prod(indices.shape, start=1)
    lead, rest = data.shape[:axis], prod(data.shape[axis + 1 :], start=1)
    picks = transposed(chosen(reshaped(indices, (taken,)), data.shape[axis], data.dtype), (1, 0))
    whole = apply("MatMul", picks, reshaped(g, (*lead, taken, rest)))
    return {0: reshaped(whole, data.shape)}


def _scatter_nd(site: Site, given: Tangents) -> Cotangents:
    """The data's cotangent as it is; an update's is taken from where it went."""
    if (g := given[0]) is None:
        return {}
    indices = site.arg(1)
    return {0: g, 2: apply("Gather", g, reshaped(indices, indices.shape[:-1]), axis=0)}


def _scatter_nd_push(site: Site, tangents: Tangents) -> Tangents:
    moves = (*tangents, None, None)
    data, updates = moves[0], moves[2]
    if updates is None:
        return [data]
    x = site.arg(0)
    return site.again(constant(0, x.dtype, x.shape) if data is None else data, site.arg(1), updates)


def _gather_elements(site: Site, given: Tangents) -> Cotangents:
    if (g := given[0]) is None or 0 not in site.wanted:
        return {}
    data, indices, axis = site.arg(0), site.arg(1), site.int("axis")
    picks = chosen(indices, data.shape[axis], data.dtype)  # [*indices, size]
    spread = apply("ReduceSum", unsqueezed(g, (g.rank,)) * picks, axes=(axis,), keepdims=0)
    whole = transposed(spread, (*range(axis), g.rank - 1, *range(axis, g.rank - 1)))
    after = tuple(s - t for s, t in zip(data.shape, whole.shape, strict=True))
    return {
        0: whole if not any(a != 0 for a in after) else apply("Pad", whole, pads=(*(0,) * g.rank, *after), value=0.0)
    }


def _trilu(site: Site, given: Tangents) -> Cotangents:
    return {} if given[0] is None else {0: site.again(given[0])[0]}


def _cumsum(site: Site, given: Tangents) -> Cotangents:
    """The sum of everything from each position on: the other way round."""
    if given[0] is None:
        return {}
    return {0: apply("CumSum", given[0], **{**site.attributes, "reverse": 1 - site.int("reverse")})}


def _resize(site: Site, given: Tangents) -> Cotangents:
    """Along each axis the product with the matrix that the operator is: what it makes of an identity."""
    if (g := given[0]) is None:
        return {}
    x, ups, downs = site.arg(0), site.ints("scales_up"), site.ints("scales_down")
    for axis in range(x.rank):
        if ups[axis] == downs[axis]:
            continue
        size = x.shape[axis]
        unit = apply("EyeLike", shape=(size, size), k=0, dtype=x.dtype.value)
        matrix = apply(
            site.op, unit, **{**site.attributes, "scales_up": (ups[axis], 1), "scales_down": (downs[axis], 1)}
        )
        perm = (*(a for a in range(x.rank) if a != axis), axis)
        g = transposed(apply("MatMul", transposed(g, perm), matrix), reversed_perm(perm))
    return {0: g}


RESHAPE = Derivative(_reshape, linear_in(0))
TILE = Derivative(_tile, linear_in(0))
DEPTH_TO_SPACE = Derivative(_depth_to_space, linear_in(0))
SPACE_TO_DEPTH = Derivative(_space_to_depth, linear_in(0))
CONCAT = Derivative(_concat, linear_in())
SPLIT = Derivative(_split, linear_in(0))
PAD = Derivative(_pad, _pad_push)
SLICE = Derivative(_slice, linear_in(0))
GATHER = Derivative(_gather, linear_in(0))
GATHER_ELEMENTS = Derivative(_gather_elements, linear_in(0))
SCATTER_ND = Derivative(_scatter_nd, _scatter_nd_push)
TRILU = Derivative(_trilu, linear_in(0))
CUMSUM = Derivative(_cumsum, linear_in(0))
RESIZE = Derivative(_resize, linear_in(0))

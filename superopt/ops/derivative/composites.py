"""Operators by others, for those whose derivative is that of what they are made of."""

from __future__ import annotations

from superopt.ir.poly import Dim
from superopt.ops.derivative.declared import Derivative, Site
from superopt.ops.derivative.expressions import Expr, apply, constant, expanded, reshaped, unsqueezed

__all__ = ["ATTENTION", "GROUP_NORMALIZATION", "LRN"]


def _group_normalization(site: Site) -> Expr:
    x, scale, shift, groups = site.arg(0), site.arg(1), site.arg(2), site.size("num_groups")
    within = x.shape[1] // groups
    split = reshaped(x, (x.shape[0], groups, within, *x.shape[2:]))
    axes = tuple(range(2, split.rank))
    centred = split - apply("ReduceMean", split, axes=axes, keepdims=1)
    variance = apply("ReduceMean", centred * centred, axes=axes, keepdims=1)
    unit = reshaped(centred / apply("Sqrt", variance + site.number("epsilon")), x.shape)
    column = tuple(range(1, x.rank - 1))
    return unit * unsqueezed(scale, column) + unsqueezed(shift, column)


def _lrn(site: Site) -> Expr:
    """``x / (bias + alpha/size · Σ x²)^beta``, the sum as one of shifted copies."""
    x, size = site.arg(0), site.int("size")
    before = (size - 1) // 2
    pads = [0] * (2 * x.rank)
    pads[1], pads[x.rank + 1] = before, size - 1 - before
    padded = apply("Pad", x * x, pads=tuple(pads), value=0.0)
    near: Expr | None = None
    for t in range(size):
        part = apply("Slice", padded, axes=(1,), starts=(t,), ends=(x.shape[1] + t,), steps=(1,))
        near = part if near is None else near + part
    assert near is not None
    base = near * site.number("alpha") / size + site.number("bias")
    return x / apply("Pow", base, constant(site.number("beta"), x.dtype))


def _attention(site: Site) -> Expr:
    """Softmax of the scaled products of queries and keys, times values; shared heads are repeated."""
    q, k, v = site.arg(0), site.arg(1), site.arg(2)
    heads, shared = q.shape[1], k.shape[1]
    if heads != shared:
        k, v = (_repeated(x, heads // shared) for x in (k, v))
    scores = apply("MatMul", q, apply("Transpose", k, perm=(0, 1, 3, 2))) * site.number("scale")
    mask = site.args[3] if len(site.args) > 3 else None
    if mask is not None:
        scores = scores + mask
    if site.int("is_causal"):
        rows, columns = scores.shape[2:]
        ranges = [apply("Range", start=0, limit=n, delta=1, dtype="int64") for n in (rows, columns)]
        seen = apply("GreaterOrEqual", unsqueezed(ranges[0], (1,)), ranges[1])
        scores = apply("Where", seen, scores, constant(float("-inf"), q.dtype))
    return apply("MatMul", apply("Softmax", scores, axis=3), v)


def _repeated(x: Expr, times: Dim) -> Expr:
    """Each head ``times`` times in a row."""
    batch, heads, length, width = x.shape
    wide = expanded(unsqueezed(x, (2,)), (batch, heads, times, length, width))
    return reshaped(wide, (batch, heads * times, length, width))


GROUP_NORMALIZATION = Derivative(expansion=_group_normalization)
LRN = Derivative(expansion=_lrn)
ATTENTION = Derivative(expansion=_attention)

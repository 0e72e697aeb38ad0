"""Declared derivatives by operator. The derivative of every other operator follows from its meaning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from superopt.ir.size_polynomial import Dim
from superopt.ir.types import DType
from superopt.ops.derivative.convolution_and_pooling import (
    AVERAGE_POOL,
    CONV,
    CONV_TRANSPOSE,
    MAX_POOL,
    products_by_channel,
    summed,
)
from superopt.ops.derivative.typed_terms import (
    Cotangents,
    DifferentiationSite,
    OperatorDerivative,
    Tangents,
    TypedTerm,
    added_at,
    along,
    apply,
    apply_all,
    by_channel,
    cast,
    constant,
    expanded,
    is_smaller,
    linear_in,
    product,
    reshaped,
    reversed_perm,
    squeezed,
    summed_to,
    transposed,
    turned,
    unsqueezed,
)

__all__ = [
    "ATTENTION",
    "BATCH_NORMALIZATION",
    "CELU",
    "CONCAT",
    "CUMSUM",
    "DECLARED",
    "DEPTH_TO_SPACE",
    "EINSUM",
    "GATHER",
    "GATHER_ELEMENTS",
    "GEMM",
    "GROUP_NORMALIZATION",
    "LOG_SOFTMAX",
    "LOG_SUM_EXP",
    "LRN",
    "MATMUL",
    "MISH",
    "PAD",
    "RESHAPE",
    "RESIZE",
    "SCATTER_ND",
    "SIGMOID",
    "SLICE",
    "SOFTMAX",
    "SOFTPLUS",
    "SPACE_TO_DEPTH",
    "SPLIT",
    "SWISH",
    "TILE",
    "TRILU",
]


# -- Operators that move elements ----------------------------------------------------------------------------------
#
# The cotangent of an element goes back to the position that it was read from.


def _reshape(site: DifferentiationSite, given: Tangents) -> Cotangents:
    return {} if given[0] is None else {0: reshaped(given[0], site.arg(0).shape)}


def _tile(site: DifferentiationSite, given: Tangents) -> Cotangents:
    """The sum over the copies."""
    if (g := given[0]) is None:
        return {}
    x, counts = site.arg(0), site.dims("repeats")
    digits = [d for pair in zip(counts, x.shape, strict=True) for d in pair]
    copies = tuple(2 * axis for axis, count in enumerate(counts) if count != 1)
    split = reshaped(g, digits)
    summed = apply("ReduceSum", split, axes=copies, keepdims=0) if copies else split
    return {0: reshaped(summed, x.shape)}


def _depth_to_space(site: DifferentiationSite, given: Tangents) -> Cotangents:
    if (g := given[0]) is None:
        return {}
    b = site.size("blocksize")
    if site.attributes["mode"] == "DCR":
        return {0: apply("SpaceToDepth", g, blocksize=b)}
    n, depth, h, w = g.shape
    blocks = transposed(reshaped(g, (n, depth, h // b, b, w // b, b)), (0, 1, 3, 5, 2, 4))
    return {0: reshaped(blocks, site.arg(0).shape)}


def _space_to_depth(site: DifferentiationSite, given: Tangents) -> Cotangents:
    if given[0] is None:
        return {}
    return {0: apply("DepthToSpace", given[0], blocksize=site.size("blocksize"), mode="DCR")}


def _concat(site: DifferentiationSite, given: Tangents) -> Cotangents:
    if (g := given[0]) is None:
        return {}
    axis = site.int("axis")
    if len(site.args) == 1:
        return {0: g}
    sizes = tuple(site.arg(p).shape[axis] for p in range(len(site.args)))
    return dict(enumerate(apply_all("Split", g, axis=axis, split=sizes)))


def _split(site: DifferentiationSite, given: Tangents) -> Cotangents:
    outputs = site.outputs()
    parts = [constant(0, y.dtype, y.shape) if g is None else g for g, y in zip(given, outputs, strict=True)]
    return {0: parts[0] if len(parts) == 1 else apply("Concat", *parts, axis=site.int("axis"))}


def _pad(site: DifferentiationSite, given: Tangents) -> Cotangents:
    if given[0] is None:
        return {}
    return {0: apply("Pad", given[0], pads=tuple(-p for p in site.dims("pads")), value=0.0)}


def _pad_push(site: DifferentiationSite, tangents: Tangents) -> Tangents:
    if tangents[0] is None:
        return [None]
    return [apply("Pad", tangents[0], pads=site.dims("pads"), value=0.0)]


def _slice(site: DifferentiationSite, given: Tangents) -> Cotangents:
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


def chosen(indices: TypedTerm, size: Dim, dtype: DType) -> TypedTerm:
    """1 where the last axis is the index, counted from the end where it is negative, else 0: [*indices, size]."""
    places = apply("Range", start=0, limit=size, delta=1, dtype=indices.dtype.value)
    from_front = apply("Where", apply("Less", indices, indices.beside(0)), indices + size, indices)
    return apply("Cast", apply("Equal", unsqueezed(from_front, (indices.rank,)), places), to=dtype.value)


def _gather(site: DifferentiationSite, given: Tangents) -> Cotangents:
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


def _scatter_nd(site: DifferentiationSite, given: Tangents) -> Cotangents:
    """The data's cotangent as it is; an update's is taken from where it went."""
    if (g := given[0]) is None:
        return {}
    indices = site.arg(1)
    return {0: g, 2: apply("Gather", g, reshaped(indices, indices.shape[:-1]), axis=0)}


def _scatter_nd_push(site: DifferentiationSite, tangents: Tangents) -> Tangents:
    moves = (*tangents, None, None)
    data, updates = moves[0], moves[2]
    if updates is None:
        return [data]
    x = site.arg(0)
    return site.again(constant(0, x.dtype, x.shape) if data is None else data, site.arg(1), updates)


def _gather_elements(site: DifferentiationSite, given: Tangents) -> Cotangents:
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


def _trilu(site: DifferentiationSite, given: Tangents) -> Cotangents:
    return {} if given[0] is None else {0: site.again(given[0])[0]}


def _cumsum(site: DifferentiationSite, given: Tangents) -> Cotangents:
    """The sum of everything from each position on: the other way round."""
    if given[0] is None:
        return {}
    return {0: apply("CumSum", given[0], **{**site.attributes, "reverse": 1 - site.int("reverse")})}


def _resize(site: DifferentiationSite, given: Tangents) -> Cotangents:
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


RESHAPE = OperatorDerivative(_reshape, linear_in(0))
TILE = OperatorDerivative(_tile, linear_in(0))
DEPTH_TO_SPACE = OperatorDerivative(_depth_to_space, linear_in(0))
SPACE_TO_DEPTH = OperatorDerivative(_space_to_depth, linear_in(0))
CONCAT = OperatorDerivative(_concat, linear_in())
SPLIT = OperatorDerivative(_split, linear_in(0))
PAD = OperatorDerivative(_pad, _pad_push)
SLICE = OperatorDerivative(_slice, linear_in(0))
GATHER = OperatorDerivative(_gather, linear_in(0))
GATHER_ELEMENTS = OperatorDerivative(_gather_elements, linear_in(0))
SCATTER_ND = OperatorDerivative(_scatter_nd, _scatter_nd_push)
TRILU = OperatorDerivative(_trilu, linear_in(0))
CUMSUM = OperatorDerivative(_cumsum, linear_in(0))
RESIZE = OperatorDerivative(_resize, linear_in(0))


# -- Products of matrices ------------------------------------------------------------------------------------------
#
# Derivatives of matrix products: products with the other factor, transposed.


def _matmul(site: DifferentiationSite, given: Tangents) -> Cotangents:
    """``g·Bᵀ`` and ``Aᵀ·g``, summed over what broadcasting added; a vector is a row or a column."""
    if (g := given[0]) is None:
        return {}
    a, b = site.arg(0), site.arg(1)
    if b.rank == 1:
        g = unsqueezed(g, (g.rank,))
    if a.rank == 1:
        g = unsqueezed(g, (g.rank - 1,))
    left = unsqueezed(a, (0,)) if a.rank == 1 else a
    right = unsqueezed(b, (1,)) if b.rank == 1 else b
    found: dict[int, TypedTerm] = {}
    if 0 in site.wanted:
        part = summed_to(product(g, turned(right)), left.shape)
        found[0] = squeezed(part, (0,)) if a.rank == 1 else part
    if 1 in site.wanted:
        if right.rank == 2 and left.rank > 2:  # one product over all rows, instead of a sum of products
            rows = prod(left.shape[:-1], start=1)
            left, g = reshaped(left, (rows, left.shape[-1])), reshaped(g, (rows, g.shape[-1]))
        part = summed_to(product(turned(left), g), right.shape)
        found[1] = squeezed(part, (1,)) if b.rank == 1 else part
    return found


def scaled(a: TypedTerm, b: TypedTerm, site: DifferentiationSite, turn_a: int, turn_b: int) -> TypedTerm:
    """``alpha`` times a product of matrices."""
    made = apply("Gemm", a, b, alpha=site.attributes["alpha"], beta=1.0, transA=turn_a, transB=turn_b)
    if is_smaller(a, made) and (is_smaller(a, b) or not is_smaller(b, made)):
        return replace(made, multiple=lambda f: scaled(a * f, b, site, turn_a, turn_b))
    return replace(made, multiple=lambda f: scaled(a, b * f, site, turn_a, turn_b)) if is_smaller(b, made) else made


def _gemm(site: DifferentiationSite, given: Tangents) -> Cotangents:
    if (g := given[0]) is None:
        return {}
    a, b = site.arg(0), site.arg(1)
    turn_a, turn_b = site.int("transA"), site.int("transB")
    found: dict[int, TypedTerm] = {}
    if 0 in site.wanted:
        found[0] = scaled(b, g, site, turn_b, 1) if turn_a else scaled(g, b, site, 0, 1 - turn_b)
    if 1 in site.wanted:
        found[1] = scaled(g, a, site, 1, turn_a) if turn_b else scaled(a, g, site, 1 - turn_a, 0)
    if 2 in site.wanted and site.attributes["beta"] != 0:
        found[2] = summed_to(g, site.arg(2).shape) * site.number("beta")
    return found


def _gemm_push(site: DifferentiationSite, tangents: Tangents) -> Tangents:
    whole: TypedTerm | None = None
    a, b = site.arg(0), site.arg(1)
    moves = (*tangents, None, None)
    pairs = [(moves[0], b), (a, moves[1])]
    for left, right in pairs:
        if left is not None and right is not None:
            part = scaled(left, right, site, site.int("transA"), site.int("transB"))
            whole = part if whole is None else whole + part
    if (moved := moves[2]) is not None and site.attributes["beta"] != 0:
        part = moved * site.number("beta")
        whole = expanded(part, site.output().shape) if whole is None else whole + part
    return [whole]


def _einsum(site: DifferentiationSite, given: Tangents) -> Cotangents:
    """The equation with the output in an operand's place; a letter that only it has is broadcast.

    A letter twice in one operand is a diagonal: the second one is another letter, tied to the first by an identity.
    """
    if (g := given[0]) is None:
        return {}
    left, _, result = str(site.attributes["equation"]).partition("->")
    terms = left.split(",")
    found: dict[int, TypedTerm] = {}
    for place in sorted(site.wanted):
        x, own = site.arg(place), ""
        inputs, letters = [g], [result]
        for other, letter_list in enumerate(terms):
            if other != place:
                inputs.append(site.arg(other))
                letters.append(letter_list)
        spare = iter(c for c in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in left + result)
        for letter, size in zip(terms[place], x.shape, strict=True):
            if letter in own:
                again = next(spare)
                letters.append(letter + again)
                inputs.append(apply("EyeLike", shape=(size, size), k=0, dtype=x.dtype.value))
                letter = again
            own += letter
        known = set("".join(letters))
        there = "".join(c for c in own if c in known)
        whole = apply("Einsum", *inputs, equation=f"{','.join(letters)}->{there}")
        missing = [axis for axis, c in enumerate(own) if c not in known]
        found[place] = expanded(unsqueezed(whole, missing), x.shape)
    return found


def _einsum_push(site: DifferentiationSite, tangents: Tangents) -> Tangents:
    return linear_in(*range(len(site.args)))(site, tangents)


MATMUL = OperatorDerivative(_matmul, linear_in(0, 1))
GEMM = OperatorDerivative(_gemm, _gemm_push)
EINSUM = OperatorDerivative(_einsum, _einsum_push)


# -- Composites ----------------------------------------------------------------------------------------------------
#
# Operators that are defined by others have the derivative of their expansion.


def _group_normalization(site: DifferentiationSite) -> TypedTerm:
    x, scale, shift, groups = site.arg(0), site.arg(1), site.arg(2), site.size("num_groups")
    within = x.shape[1] // groups
    split = reshaped(x, (x.shape[0], groups, within, *x.shape[2:]))
    axes = tuple(range(2, split.rank))
    centred = split - apply("ReduceMean", split, axes=axes, keepdims=1)
    variance = apply("ReduceMean", centred * centred, axes=axes, keepdims=1)
    unit = reshaped(centred / apply("Sqrt", variance + site.number("epsilon")), x.shape)
    column = tuple(range(1, x.rank - 1))
    return unit * unsqueezed(scale, column) + unsqueezed(shift, column)


def _lrn(site: DifferentiationSite) -> TypedTerm:
    """``x / (bias + alpha/size · Σ x²)^beta``, the sum as one of shifted copies."""
    x, size = site.arg(0), site.int("size")
    before = (size - 1) // 2
    pads = [0] * (2 * x.rank)
    pads[1], pads[x.rank + 1] = before, size - 1 - before
    padded = apply("Pad", x * x, pads=tuple(pads), value=0.0)
    near: TypedTerm | None = None
    for t in range(size):
        part = apply("Slice", padded, axes=(1,), starts=(t,), ends=(x.shape[1] + t,), steps=(1,))
        near = part if near is None else near + part
    assert near is not None
    base = near * site.number("alpha") / size + site.number("bias")
    return x / apply("Pow", base, constant(site.number("beta"), x.dtype))


def _attention(site: DifferentiationSite) -> TypedTerm:
    """Softmax of the scaled products of queries and keys, times values; shared heads are repeated."""
    q, k, v = site.arg(0), site.arg(1), site.arg(2)
    packed = site.int("q_num_heads")
    if packed:
        counts = (packed, site.int("kv_num_heads"), site.int("kv_num_heads"))
        q, k, v = (_heads_apart(x, n) for x, n in zip((q, k, v), counts, strict=True))
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
    made = apply("MatMul", apply("Softmax", scores, axis=3), v)
    if not packed:
        return made
    batch, _, rows, width = made.shape
    return reshaped(apply("Transpose", made, perm=(0, 2, 1, 3)), (batch, rows, packed * width))


def _heads_apart(x: TypedTerm, count: int) -> TypedTerm:
    batch, length, whole = x.shape
    return apply("Transpose", reshaped(x, (batch, length, count, whole // count)), perm=(0, 2, 1, 3))


def _repeated(x: TypedTerm, times: Dim) -> TypedTerm:
    """Each head ``times`` times in a row."""
    batch, heads, length, width = x.shape
    wide = expanded(unsqueezed(x, (2,)), (batch, heads, times, length, width))
    return reshaped(wide, (batch, heads * times, length, width))


GROUP_NORMALIZATION = OperatorDerivative(expansion=_group_normalization)
LRN = OperatorDerivative(expansion=_lrn)
ATTENTION = OperatorDerivative(expansion=_attention)


# -- Functions with a derivative by their own value ----------------------------------------------------------------
#
# Equal to the derivative of the meaning, and finite where that overflows.


def symmetric(product: Callable[[DifferentiationSite, TypedTerm], TypedTerm]) -> OperatorDerivative:
    """A derivative that is its own transpose: of a function of each element, or of Softmax."""

    def pullback(site: DifferentiationSite, given: Tangents) -> Cotangents:
        return {} if given[0] is None else {0: product(site, given[0])}

    def pushforward(site: DifferentiationSite, tangents: Tangents) -> Tangents:
        return [None if tangents[0] is None else product(site, tangents[0])]

    return OperatorDerivative(pullback, pushforward)


def _sigmoid(site: DifferentiationSite, g: TypedTerm) -> TypedTerm:
    """``σ(x)·σ(-x)``: neither factor cancels."""
    return g * site.output() * apply("Sigmoid", -site.arg(0))


def _softplus(site: DifferentiationSite, g: TypedTerm) -> TypedTerm:
    return g * apply("Sigmoid", site.arg(0))


def _mish(site: DifferentiationSite, g: TypedTerm) -> TypedTerm:
    """``t + x·(1 - t²)·σ(x)`` with ``t = tanh(softplus x)``."""
    x = site.arg(0)
    t = apply("Tanh", apply("Softplus", x))
    return g * (t + x * (1 - t * t) * apply("Sigmoid", x))


def _swish(site: DifferentiationSite, g: TypedTerm) -> TypedTerm:
    """``s + αx·s·σ(-αx)`` with ``s = σ(αx)``."""
    scaled = site.arg(0) * site.number("alpha")
    s = apply("Sigmoid", scaled)
    return g * (s + scaled * s * apply("Sigmoid", -scaled))


def _celu(site: DifferentiationSite, g: TypedTerm) -> TypedTerm:
    """1 above 0, ``exp(x/α)`` below; the exponential never sees a positive number."""
    x = site.arg(0)
    zero = constant(0, x.dtype)
    below = apply("Exp", apply("Min", x, zero) / site.number("alpha"))
    return apply("Where", apply("Greater", x, zero), g, g * below)


def _softmax(site: DifferentiationSite, g: TypedTerm) -> TypedTerm:
    """``y·(g - Σ g·y)``."""
    y = site.output()
    return y * (g - apply("ReduceSum", g * y, axes=(site.int("axis"),), keepdims=1))


def _log_softmax_pull(site: DifferentiationSite, given: Tangents) -> Cotangents:
    """``g - softmax(x)·Σ g``."""
    if (g := given[0]) is None:
        return {}
    y = apply("Softmax", site.arg(0), **site.attributes)
    return {0: g - y * apply("ReduceSum", g, axes=(site.int("axis"),), keepdims=1)}


def _log_softmax_push(site: DifferentiationSite, tangents: Tangents) -> Tangents:
    """``d - Σ softmax(x)·d``."""
    if (d := tangents[0]) is None:
        return [None]
    y = apply("Softmax", site.arg(0), **site.attributes)
    return [d - apply("ReduceSum", y * d, axes=(site.int("axis"),), keepdims=1)]


def _with_reduced_axes(site: DifferentiationSite, value: TypedTerm) -> TypedTerm:
    """A result of a reduction with its axes, of size 1."""
    return value if site.attributes["keepdims"] == 1 else unsqueezed(value, site.ints("axes"))


def _log_sum_exp_pull(site: DifferentiationSite, given: Tangents) -> Cotangents:
    """``g·exp(x - y)``: no exponent is above 0."""
    if (g := given[0]) is None:
        return {}
    return {0: _with_reduced_axes(site, g) * apply("Exp", site.arg(0) - _with_reduced_axes(site, site.output()))}


def _log_sum_exp_push(site: DifferentiationSite, tangents: Tangents) -> Tangents:
    if (d := tangents[0]) is None:
        return [None]
    share = apply("Exp", site.arg(0) - _with_reduced_axes(site, site.output()))
    return [apply("ReduceSum", share * d, axes=site.ints("axes"), keepdims=site.int("keepdims"))]


def _batch_normalization(site: DifferentiationSite, given: Tangents) -> Cotangents:
    """``g·s/r`` with ``r = √(var + ε)``, and sums of ``g`` and ``g·(x - mean)``: numbers of channels stay so few."""
    if (g := given[0]) is None:
        return {}
    x, scale, mean = site.arg(0), site.arg(1), site.arg(3)
    root = apply("Sqrt", site.arg(4) + site.number("epsilon"))
    found = {0: by_channel(g, scale / root)}
    if site.wanted & {2, 3}:
        found[2] = summed(g)
        found[3] = -(found[2] * scale / root)
    if site.wanted & {1, 4}:
        products = products_by_channel(g, site.makers.get(0))
        about = summed(g * (x - along(mean, 1, x.rank))) if products is None else products - mean * summed(g)
        found[1] = about / root
        found[4] = -(found[1] * scale / (root * root) / 2)
    return found


BATCH_NORMALIZATION = OperatorDerivative(_batch_normalization, statistics=(3, 4))
SIGMOID = symmetric(_sigmoid)
SOFTPLUS = symmetric(_softplus)
MISH = symmetric(_mish)
SWISH = symmetric(_swish)
CELU = symmetric(_celu)
SOFTMAX = symmetric(_softmax)
LOG_SOFTMAX = OperatorDerivative(_log_softmax_pull, _log_softmax_push)
LOG_SUM_EXP = OperatorDerivative(_log_sum_exp_pull, _log_sum_exp_push)


QUANTISATION = OperatorDerivative(
    refused="a step from one integer to the next has no derivative that a training could follow"
)


# -- The table -----------------------------------------------------------------------------------------------------


DECLARED: dict[str, OperatorDerivative] = {
    "Attention": ATTENTION,
    "AveragePool": AVERAGE_POOL,
    "BatchNormalization": BATCH_NORMALIZATION,
    "Celu": CELU,
    "Concat": CONCAT,
    "Conv": CONV,
    "ConvTranspose": CONV_TRANSPOSE,
    "CumSum": CUMSUM,
    "DepthToSpace": DEPTH_TO_SPACE,
    "DequantizeLinear": QUANTISATION,
    "DynamicQuantizeLinear": QUANTISATION,
    "Einsum": EINSUM,
    "Flatten": RESHAPE,
    "Gather": GATHER,
    "GatherElements": GATHER_ELEMENTS,
    "Gemm": GEMM,
    "GroupNormalization": GROUP_NORMALIZATION,
    "LRN": LRN,
    "LogSoftmax": LOG_SOFTMAX,
    "MatMul": MATMUL,
    "MaxPool": MAX_POOL,
    "Mish": MISH,
    "Pad": PAD,
    "QLinearConv": QUANTISATION,
    "QLinearMatMul": QUANTISATION,
    "QuantizeLinear": QUANTISATION,
    "ReduceLogSumExp": LOG_SUM_EXP,
    "Reshape": RESHAPE,
    "Resize": RESIZE,
    "ScatterND": SCATTER_ND,
    "Sigmoid": SIGMOID,
    "Slice": SLICE,
    "Softmax": SOFTMAX,
    "Softplus": SOFTPLUS,
    "SpaceToDepth": SPACE_TO_DEPTH,
    "Split": SPLIT,
    "Swish": SWISH,
    "Tile": TILE,
    "Trilu": TRILU,
    "Upsample": RESIZE,
}

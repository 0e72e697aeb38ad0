"""Derivatives of convolutions and pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import prod

from superopt.ir.poly import Dim
from superopt.ops.derivative.declared import Cotangents, Derivative, Site, Tangents, linear_in
from superopt.ops.derivative.expressions import (
    Expr,
    apply,
    constant,
    expanded,
    is_smaller,
    reshaped,
    transposed,
    unsqueezed,
)

__all__ = ["AVERAGE_POOL", "CONV", "CONV_TRANSPOSE", "MAX_POOL"]

Settings = dict[str, tuple[Dim, ...]]

TAPS = 25  # of a kernel: more than these are not products of their own


def settings(site: Site) -> Settings:
    return {name: site.dims(name) for name in ("strides", "pads", "dilations")}


def unseen(size: Dim, kernel: Dim, axis: int, at: Settings) -> Dim:
    """Positions at the end of an axis that no window reaches, because the stride does not divide."""
    rank = len(at["strides"])
    room = size + at["pads"][axis] + at["pads"][rank + axis] - at["dilations"][axis] * (kernel - 1) - 1
    return room % at["strides"][axis]


def spread_back(g: Expr, w: Expr, sizes: Sequence[Dim], at: Settings, group: Dim) -> Expr:
    """The adjoint of a convolution in its image, whose spatial sizes are given."""
    extra = tuple(
        unseen(size, kernel, axis, at) for axis, (size, kernel) in enumerate(zip(sizes, w.shape[2:], strict=True))
    )
    return apply("ConvTranspose", g, w, group=group, output_padding=extra, **at)


def filters(image: Expr, response: Expr, kernel: Sequence[Dim], at: Settings, group: Dim) -> Expr:
    """The adjoint of a convolution in its weights: image and response correlated, at the taps' distances.

    Args:
        image: [N, G·C, …].
        response: the cotangent of the output, [N, G·O, …].
        kernel: sizes of the taps.
        at: strides, pads and dilations of the convolution.
        group: G.

    Returns:
        [G·O, C, …].
    """
    known = [k for k in kernel if isinstance(k, int)]
    if len(known) == len(kernel) and prod(known) <= TAPS:
        made = tap_by_tap(image, response, known, at, group)
        if not is_smaller(response, made):
            return made
        return replace(made, multiple=lambda f: tap_by_tap(image, response * f, known, at, group))
    return as_convolution(image, response, kernel, at, group)


def tap_by_tap(image: Expr, response: Expr, kernel: Sequence[int], at: Settings, group: Dim) -> Expr:
    """:func:`filters` as a product of matrices for each tap: responses times what the tap saw, over all windows.

    A convolution with a filter as large as an image has a few products at a time to share each of its loads.
    """
    rank = len(kernel)
    batch, channels = image.shape[:2]
    outputs, places = response.shape[1], response.shape[2:]
    within, out = channels // group, outputs // group
    image = channels_first(image)
    if any(p != 0 for p in at["pads"]):
        image = apply("Pad", image, pads=(0, 0, *at["pads"][:rank], 0, 0, *at["pads"][rank:]), value=0.0)
    windows = batch * prod(places, start=1)
    lead: tuple[Dim, ...] = () if group == 1 else (group,)
    rows = reshaped(channels_first(response), (*lead, out, windows))
    products = []
    for tap in product(*map(range, kernel)):
        starts = tuple(d * t for d, t in zip(at["dilations"], tap, strict=True))
        ends = tuple(
            start + step * (count - 1) + 1 for start, step, count in zip(starts, at["strides"], places, strict=True)
        )
        axes = tuple(range(2, rank + 2))
        seen = image
        if starts != (0,) * rank or ends != image.shape[2:]:
            seen = apply("Slice", image, axes=axes, starts=starts, ends=ends, steps=at["strides"])
        columns = reshaped(seen, (*lead, within, windows))
        if group == 1:
            products.append(apply("Gemm", rows, columns, alpha=1.0, beta=1.0, transA=0, transB=1))
        else:
            products.append(apply("MatMul", rows, transposed(columns, (0, 2, 1))))
    if len(products) == 1:
        return reshaped(products[0], (outputs, within, *kernel))
    beside = apply("Concat", *products, axis=products[0].rank - 1)
    taps = transposed(reshaped(beside, (outputs, len(products), within)), (0, 2, 1))
    return reshaped(taps, (outputs, within, *kernel))


def channels_first(x: Expr) -> Expr:
    """Channels before images; nothing moves where there is one image."""
    batch, channels, *sizes = x.shape
    return reshaped(x, (channels, 1, *sizes)) if batch == 1 else transposed(x, (1, 0, *range(2, x.rank)))


def as_convolution(image: Expr, response: Expr, kernel: Sequence[Dim], at: Settings, group: Dim) -> Expr:
    """:func:`filters` as a convolution with the response as its filter, for kernels of any size."""
    batch, channels = image.shape[:2]
    spatial = image.shape[2:]
    places = tuple(range(3, 3 + len(spatial)))
    if group == 1:
        image = transposed(image, (1, 0, *(p - 1 for p in places)))
    else:
        within = channels // group
        image = transposed(reshaped(image, (batch, group, within, *spatial)), (2, 1, 0, *places))
        image = reshaped(image, (within, group * batch, *spatial))
    response = transposed(response, (1, 0, *range(2, response.rank)))
    whole = apply(
        "Conv", image, response, strides=at["dilations"], pads=at["pads"], dilations=at["strides"], group=group
    )
    longer = [a for a, (found, size) in enumerate(zip(whole.shape[2:], kernel, strict=True)) if found != size]
    if longer:
        whole = apply(
            "Slice", whole, axes=tuple(a + 2 for a in longer), starts=(0,) * len(longer),
            ends=tuple(kernel[a] for a in longer), steps=(1,) * len(longer),
        )  # fmt: skip
    return transposed(whole, (1, 0, *range(2, whole.rank)))


def bias(site: Site, g: Expr) -> dict[int, Expr]:
    axes = (0, *range(2, g.rank))
    return {2: apply("ReduceSum", g, axes=axes, keepdims=0)} if 2 in site.wanted else {}


def _conv(site: Site, given: Tangents) -> Cotangents:
    if (g := given[0]) is None:
        return {}
    x, w, at, group = site.arg(0), site.arg(1), settings(site), site.size("group")
    found = bias(site, g)
    if 0 in site.wanted:
        found[0] = spread_back(g, w, x.shape[2:], at, group)
    if 1 in site.wanted:
        found[1] = filters(x, g, w.shape[2:], at, group)
    return found


def _conv_transpose(site: Site, given: Tangents) -> Cotangents:
    if (g := given[0]) is None:
        return {}
    x, w, at, group = site.arg(0), site.arg(1), settings(site), site.size("group")
    found = bias(site, g)
    if 0 in site.wanted:
        found[0] = apply("Conv", g, w, group=group, **at)
    if 1 in site.wanted:
        found[1] = filters(g, x, w.shape[2:], at, group)
    return found


def _affine_push(site: Site, tangents: Tangents) -> Tangents:
    """Bilinear in image and weights, plus the bias along the channels."""
    linear = linear_in(0, 1, keep=lambda _, s: (s.args[0], s.args[1]))
    (whole,) = linear(site, tangents) if any(t is not None for t in tangents[:2]) else (None,)
    moved = tangents[2] if len(tangents) > 2 else None
    if moved is None:
        return [whole]
    shape = site.output().shape
    column = unsqueezed(moved, tuple(range(1, len(shape) - 1)))
    return [expanded(column, shape) if whole is None else whole + column]


def planes(x: Expr) -> Expr:
    """Every channel of every image as an image of one channel."""
    return reshaped(x, (x.shape[0] * x.shape[1], 1, *x.shape[2:]))


def _average_pool(site: Site, given: Tangents) -> Cotangents:
    """The share of each window, put back at its places."""
    if (g := given[0]) is None:
        return {}
    x, at, kernel = site.arg(0), settings(site), site.dims("kernel_shape")
    ones = constant(1, x.dtype, (1, 1, *kernel))
    share = planes(g)
    if any(p != 0 for p in at["pads"]) and not site.int("count_include_pad"):
        inside = constant(1, x.dtype, (1, 1, *x.shape[2:]))
        share = share / apply("Conv", inside, ones, group=1, **at)
    else:
        share = share / prod(kernel, start=1)
    return {0: reshaped(spread_back(share, ones, x.shape[2:], at, 1), x.shape)}


def _max_pool(site: Site, given: Tangents) -> Cotangents:
    """Each window's cotangent to its largest elements, in equal parts.

    A convolution with an identity as its filters lays the taps of every window side by side; where they are in the
    padding, there is nothing to compare.
    """
    if (g := given[0]) is None:
        return {}
    x, at, kernel = site.arg(0), settings(site), site.ints("kernel_shape")
    taps = prod(kernel)
    unit = reshaped(apply("EyeLike", shape=(taps, taps), k=0, dtype=x.dtype.value), (taps, 1, *kernel))
    reached = apply("Equal", apply("Conv", planes(x), unit, group=1, **at), planes(site.output()))
    if any(p != 0 for p in at["pads"]):
        inside = apply("Conv", constant(1, x.dtype, (1, 1, *x.shape[2:])), unit, group=1, **at)
        reached = apply("And", reached, apply("Greater", inside, constant(0, x.dtype)))
    count = apply("ReduceSum", apply("Cast", reached, to=x.dtype.value), axes=(1,), keepdims=1)
    share = apply("Where", reached, planes(g) / count, constant(0, x.dtype))
    return {0: reshaped(spread_back(share, unit, x.shape[2:], at, 1), x.shape)}


CONV = Derivative(_conv, _affine_push)
CONV_TRANSPOSE = Derivative(_conv_transpose, _affine_push)
AVERAGE_POOL = Derivative(_average_pool, linear_in(0))
MAX_POOL = Derivative(_max_pool)

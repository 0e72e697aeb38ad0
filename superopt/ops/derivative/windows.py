"""Derivatives of convolutions and pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from superopt.ir.poly import Dim
from superopt.ops.derivative.declared import Cotangents, Derivative, Site, Tangents, linear_in
from superopt.ops.derivative.expressions import (
    Expr,
    along,
    apply,
    constant,
    expanded,
    reshaped,
    unsqueezed,
)
from superopt.ops.derivative.filters import Settings, filters
from superopt.ops.forms import surely_nonnegative

__all__ = ["AVERAGE_POOL", "CONV", "CONV_TRANSPOSE", "MAX_POOL", "products_by_channel", "summed"]


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


def bias(site: Site, g: Expr) -> dict[int, Expr]:
    return {2: summed(g)} if 2 in site.wanted else {}


def summed(g: Expr) -> Expr:
    """The sum over all but the channels."""
    return apply("ReduceSum", g, axes=(0, *range(2, g.rank)), keepdims=0)


def _conv(site: Site, given: Tangents) -> Cotangents:
    """What the cotangent has for each channel goes to the weights, where these are fewer."""
    if (g := given[0]) is None:
        return {}
    x, w, at, group = site.arg(0), site.arg(1), settings(site), site.size("group")
    numbers = None
    if g.channels is not None and no_larger(w, g):
        g, numbers = g.channels
    found = bias(site, g)
    if 0 in site.wanted:
        found[0] = spread_back(g, w if numbers is None else w * along(numbers, 0, w.rank), x.shape[2:], at, group)
    if 1 in site.wanted:
        found[1] = filters(x, g, w.shape[2:], at, group)
    if numbers is not None:
        for place in found.keys() - {0}:
            found[place] = each_times(found[place], numbers)
    return found


def each_times(x: Expr, numbers: Expr) -> Expr:
    """A number for each element of the first axis times what is there."""
    made = x * along(numbers, 0, x.rank)
    return replace(made, multiple=lambda f: each_times(x, numbers * f)) if x.rank > 1 else made


def no_larger(a: Expr, b: Expr) -> bool:
    """Whether it is known to have no more elements."""
    few, many = a.type.elements, b.type.elements
    return few is not None and many is not None and surely_nonnegative(many - few)


def products_by_channel(g: Expr, maker: Site | None) -> Expr | None:
    """For each channel, the sum of ``g`` times what a convolution makes, by its weights and their cotangent.

    ``Σ g·Conv(x, w) = Σ w·filters(x, g)``: the convolution is linear in its weights. So its result is not needed.

    Args:
        g: of the type of its result.
        maker: the application that makes it.

    Returns:
        [channels]; ``None`` where it is no convolution, or has more weights than results, or ones that stay.
    """
    if maker is None or maker.op != "Conv" or 1 not in maker.wanted or not no_larger(maker.arg(1), g):
        return None
    w = maker.arg(1)
    moved = filters(maker.arg(0), g, w.shape[2:], settings(maker), maker.size("group"))
    found = apply("ReduceSum", w * moved, axes=tuple(range(1, w.rank)), keepdims=0)
    return found if len(maker.args) < 3 or maker.args[2] is None else found + maker.arg(2) * summed(g)


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

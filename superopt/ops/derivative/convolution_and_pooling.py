"""Derivatives of convolutions and pools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from math import prod

from superopt.ir.size_polynomial import Dim
from superopt.ops.derivative.typed_terms import (
    Cotangents,
    DifferentiationSite,
    OperatorDerivative,
    Tangents,
    TypedTerm,
    along,
    apply,
    constant,
    expanded,
    is_smaller,
    linear_in,
    reshaped,
    transposed,
    turned,
    unsqueezed,
)
from superopt.ops.onnx_node_conversion import surely_nonnegative

__all__ = ["AVERAGE_POOL", "CONV", "CONV_TRANSPOSE", "MAX_POOL", "Settings", "filters", "products_by_channel", "summed"]


# -- Filters -------------------------------------------------------------------------------------------------------
#
# The adjoint of a convolution in its weights: the correlation of image and response. A convolution with a filter as
# large as an image reuses few loads, so it is written as products of matrices over all windows, in the form that moves
# least data.
#
# * :func:`stacked` where there are fewer windows than outputs: one product of all taps, in the layout of the weights.
# * :func:`by_image` for several images whose products are smaller than the images: the images stay in place.
# * :func:`tap_by_tap` otherwise: channels before images, a product for each tap.
#
# Unknown sizes are compared as polynomials; if that decides nothing, the last form is used.


Settings = dict[str, tuple[Dim, ...]]
Form = Callable[[TypedTerm, TypedTerm, Sequence[int], Settings, Dim], TypedTerm]

TAPS = 25  # of a kernel: more than these are not products of their own


def filters(image: TypedTerm, response: TypedTerm, kernel: Sequence[Dim], at: Settings, group: Dim) -> TypedTerm:
    """The weights' cotangent.

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
    if len(known) != len(kernel) or prod(known) > TAPS:
        return as_convolution(image, response, kernel, at, group)
    form = leanest(image, response, prod(known), group)
    made = form(image, response, known, at, group)
    if not is_smaller(response, made):
        return made
    return replace(made, multiple=lambda f: form(image, response.times(f), known, at, group))


def leanest(image: TypedTerm, response: TypedTerm, taps: int, group: Dim) -> Form:
    """The form that moves the fewest elements."""
    batch, channels = image.shape[:2]
    outputs, places = response.shape[1], prod(response.shape[2:], start=1)
    if surely_nonnegative(outputs // group - batch * places):
        return stacked
    if batch != 1 and surely_nonnegative((channels + outputs) * places - taps * outputs * (channels // group)):
        return by_image
    return tap_by_tap


def stacked(image: TypedTerm, response: TypedTerm, kernel: Sequence[int], at: Settings, group: Dim) -> TypedTerm:
    """One product: the responses times all that the taps saw."""
    lead, within, out, windows = _sizes(image, response, group)
    rows = reshaped(channels_first(response), (*lead, out, windows))
    seen = [
        reshaped(part, (*lead, within, 1, windows))
        for part in tap_slices(channels_first(image), kernel, at, response.shape[2:])
    ]
    columns = seen[0] if len(seen) == 1 else apply("Concat", *seen, axis=len(lead) + 1)
    whole = _times_turned(rows, reshaped(columns, (*lead, within * len(seen), windows)))
    return reshaped(whole, (response.shape[1], within, *kernel))


def tap_by_tap(image: TypedTerm, response: TypedTerm, kernel: Sequence[int], at: Settings, group: Dim) -> TypedTerm:
    """For each tap, the responses times what it saw."""
    lead, within, out, windows = _sizes(image, response, group)
    rows = reshaped(channels_first(response), (*lead, out, windows))
    products = [
        _times_turned(rows, reshaped(part, (*lead, within, windows)))
        for part in tap_slices(channels_first(image), kernel, at, response.shape[2:])
    ]
    return _beside(products, response.shape[1], within, kernel)


def by_image(image: TypedTerm, response: TypedTerm, kernel: Sequence[int], at: Settings, group: Dim) -> TypedTerm:
    """For each tap, the sum over images of each one's responses times what the tap saw of it."""
    lead, within, out, _ = _sizes(image, response, group)
    batch, places = image.shape[0], prod(response.shape[2:], start=1)
    rows = reshaped(response, (batch, *lead, out, places))
    products = [
        apply("ReduceSum", _times_turned(rows, reshaped(part, (batch, *lead, within, places))), axes=(0,), keepdims=0)
        for part in tap_slices(image, kernel, at, response.shape[2:])
    ]
    return _beside(products, response.shape[1], within, kernel)


def _sizes(image: TypedTerm, response: TypedTerm, group: Dim) -> tuple[tuple[Dim, ...], Dim, Dim, Dim]:
    """The axis of groups where there are several, channels and outputs of a group, and windows of all images."""
    lead: tuple[Dim, ...] = () if group == 1 else (group,)
    windows = image.shape[0] * prod(response.shape[2:], start=1)
    return lead, image.shape[1] // group, response.shape[1] // group, windows


def _times_turned(a: TypedTerm, b: TypedTerm) -> TypedTerm:
    if a.rank == 2:
        return apply("Gemm", a, b, alpha=1.0, beta=1.0, transA=0, transB=1)
    return apply("MatMul", a, turned(b))


def _beside(products: Sequence[TypedTerm], outputs: Dim, within: Dim, kernel: Sequence[int]) -> TypedTerm:
    """Products of the taps as one tensor of weights."""
    if len(products) == 1:
        return reshaped(products[0], (outputs, within, *kernel))
    beside = apply("Concat", *products, axis=products[0].rank - 1)
    taps = transposed(reshaped(beside, (outputs, len(products), within)), (0, 2, 1))
    return reshaped(taps, (outputs, within, *kernel))


def tap_slices(image: TypedTerm, kernel: Sequence[int], at: Settings, places: Sequence[Dim]) -> list[TypedTerm]:
    """What each tap sees of an image, whose last axes are the spatial ones; it is padded for taps that reach beyond."""
    rank = len(kernel)
    before, after = at["pads"][:rank], at["pads"][rank:]
    sizes, lead = image.shape[2:], (0, 0)
    padded = image
    if any(p != 0 for p in at["pads"]):
        padded = apply("Pad", image, pads=(*lead, *before, *lead, *after), value=0.0)
    found = []
    for tap in product(*map(range, kernel)):
        starts = tuple(d * t for d, t in zip(at["dilations"], tap, strict=True))
        ends = tuple(
            start + step * (count - 1) + 1 for start, step, count in zip(starts, at["strides"], places, strict=True)
        )
        inside = all(
            surely_nonnegative(s - p) and surely_nonnegative(size + p - e)
            for s, e, p, size in zip(starts, ends, before, sizes, strict=True)
        )
        if inside:
            starts, ends = (tuple(v - p for v, p in zip(bounds, before, strict=True)) for bounds in (starts, ends))
        source = image if inside else padded
        whole = starts == (0,) * rank and ends == source.shape[2:] and all(step == 1 for step in at["strides"])
        if not whole:
            axes = tuple(range(2, rank + 2))
            source = apply("Slice", source, axes=axes, starts=starts, ends=ends, steps=at["strides"])
        found.append(source)
    return found


def channels_first(x: TypedTerm) -> TypedTerm:
    """Channels before images; nothing moves where there is one image."""
    batch, channels, *sizes = x.shape
    return reshaped(x, (channels, 1, *sizes)) if batch == 1 else transposed(x, (1, 0, *range(2, x.rank)))


def as_convolution(image: TypedTerm, response: TypedTerm, kernel: Sequence[Dim], at: Settings, group: Dim) -> TypedTerm:
    """A convolution with the response as its filter, for kernels of any size."""
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


# -- Convolutions and pools ----------------------------------------------------------------------------------------


def settings(site: DifferentiationSite) -> Settings:
    return {name: site.dims(name) for name in ("strides", "pads", "dilations")}


def unseen(size: Dim, kernel: Dim, axis: int, at: Settings) -> Dim:
    """Positions at the end of an axis that no window reaches, because the stride does not divide."""
    rank = len(at["strides"])
    room = size + at["pads"][axis] + at["pads"][rank + axis] - at["dilations"][axis] * (kernel - 1) - 1
    return room % at["strides"][axis]


def spread_back(g: TypedTerm, w: TypedTerm, sizes: Sequence[Dim], at: Settings, group: Dim) -> TypedTerm:
    """The adjoint of a convolution in its image, whose spatial sizes are given."""
    extra = tuple(
        unseen(size, kernel, axis, at) for axis, (size, kernel) in enumerate(zip(sizes, w.shape[2:], strict=True))
    )
    return apply("ConvTranspose", g, w, group=group, output_padding=extra, **at)


def bias(site: DifferentiationSite, g: TypedTerm) -> dict[int, TypedTerm]:
    return {2: summed(g)} if 2 in site.wanted else {}


def summed(g: TypedTerm) -> TypedTerm:
    """The sum over all but the channels."""
    return apply("ReduceSum", g, axes=(0, *range(2, g.rank)), keepdims=0)


def _conv(site: DifferentiationSite, given: Tangents) -> Cotangents:
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


def each_times(x: TypedTerm, numbers: TypedTerm) -> TypedTerm:
    """A number for each element of the first axis times what is there."""
    made = x * along(numbers, 0, x.rank)
    return replace(made, multiple=lambda f: each_times(x, numbers * f)) if x.rank > 1 else made


def no_larger(a: TypedTerm, b: TypedTerm) -> bool:
    """Whether it is known to have no more elements."""
    few, many = a.type.elements, b.type.elements
    return few is not None and many is not None and surely_nonnegative(many - few)


def products_by_channel(g: TypedTerm, maker: DifferentiationSite | None) -> TypedTerm | None:
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


def _conv_transpose(site: DifferentiationSite, given: Tangents) -> Cotangents:
    if (g := given[0]) is None:
        return {}
    x, w, at, group = site.arg(0), site.arg(1), settings(site), site.size("group")
    found = bias(site, g)
    if 0 in site.wanted:
        found[0] = apply("Conv", g, w, group=group, **at)
    if 1 in site.wanted:
        found[1] = filters(g, x, w.shape[2:], at, group)
    return found


def _affine_push(site: DifferentiationSite, tangents: Tangents) -> Tangents:
    """Bilinear in image and weights, plus the bias along the channels."""
    linear = linear_in(0, 1, keep=lambda _, s: (s.args[0], s.args[1]))
    (whole,) = linear(site, tangents) if any(t is not None for t in tangents[:2]) else (None,)
    moved = tangents[2] if len(tangents) > 2 else None
    if moved is None:
        return [whole]
    shape = site.output().shape
    column = unsqueezed(moved, tuple(range(1, len(shape) - 1)))
    return [expanded(column, shape) if whole is None else whole + column]


def planes(x: TypedTerm) -> TypedTerm:
    """Every channel of every image as an image of one channel."""
    return reshaped(x, (x.shape[0] * x.shape[1], 1, *x.shape[2:]))


def _average_pool(site: DifferentiationSite, given: Tangents) -> Cotangents:
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


def _max_pool(site: DifferentiationSite, given: Tangents) -> Cotangents:
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


CONV = OperatorDerivative(_conv, _affine_push)
CONV_TRANSPOSE = OperatorDerivative(_conv_transpose, _affine_push)
AVERAGE_POOL = OperatorDerivative(_average_pool, linear_in(0))
MAX_POOL = OperatorDerivative(_max_pool)

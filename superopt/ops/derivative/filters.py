"""The adjoint of a convolution in its weights: image and response correlated, at the taps' distances.

A convolution with a filter as large as an image has a few products at a time to share each of its loads, so it is
written as products of matrices over all windows, in the form that moves the least:

* :func:`stacked` where there are fewer windows than outputs: what the taps saw one above the other, one product, whose
  result lies as the weights do;
* :func:`by_image` for several images, where the products of each are smaller than the images: they stay where they are;
* :func:`tap_by_tap` else: channels in front of images, a product for each tap.

Sizes that are not known are compared as polynomials; where that says nothing, it is the last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from math import prod

from superopt.ir.poly import Dim
from superopt.ops.derivative.expressions import Expr, apply, is_smaller, reshaped, transposed, turned
from superopt.ops.forms import surely_nonnegative

__all__ = ["Settings", "filters"]

Settings = dict[str, tuple[Dim, ...]]
Form = Callable[[Expr, Expr, Sequence[int], Settings, Dim], Expr]

TAPS = 25  # of a kernel: more than these are not products of their own


def filters(image: Expr, response: Expr, kernel: Sequence[Dim], at: Settings, group: Dim) -> Expr:
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


def leanest(image: Expr, response: Expr, taps: int, group: Dim) -> Form:
    """The form that moves the fewest elements."""
    batch, channels = image.shape[:2]
    outputs, places = response.shape[1], prod(response.shape[2:], start=1)
    if surely_nonnegative(outputs // group - batch * places):
        return stacked
    if batch != 1 and surely_nonnegative((channels + outputs) * places - taps * outputs * (channels // group)):
        return by_image
    return tap_by_tap


def stacked(image: Expr, response: Expr, kernel: Sequence[int], at: Settings, group: Dim) -> Expr:
    """One product: the responses times all that the taps saw."""
    lead, within, out, windows = _sizes(image, response, group)
    rows = reshaped(channels_first(response), (*lead, out, windows))
    seen = [
        reshaped(part, (*lead, within, 1, windows))
        for part in parts_seen(channels_first(image), kernel, at, response.shape[2:])
    ]
    columns = seen[0] if len(seen) == 1 else apply("Concat", *seen, axis=len(lead) + 1)
    whole = _times_turned(rows, reshaped(columns, (*lead, within * len(seen), windows)))
    return reshaped(whole, (response.shape[1], within, *kernel))


def tap_by_tap(image: Expr, response: Expr, kernel: Sequence[int], at: Settings, group: Dim) -> Expr:
    """For each tap, the responses times what it saw."""
    lead, within, out, windows = _sizes(image, response, group)
    rows = reshaped(channels_first(response), (*lead, out, windows))
    products = [
        _times_turned(rows, reshaped(part, (*lead, within, windows)))
        for part in parts_seen(channels_first(image), kernel, at, response.shape[2:])
    ]
    return _beside(products, response.shape[1], within, kernel)


def by_image(image: Expr, response: Expr, kernel: Sequence[int], at: Settings, group: Dim) -> Expr:
    """For each tap, the sum over images of each one's responses times what the tap saw of it."""
    lead, within, out, _ = _sizes(image, response, group)
    batch, places = image.shape[0], prod(response.shape[2:], start=1)
    rows = reshaped(response, (batch, *lead, out, places))
    products = [
        apply("ReduceSum", _times_turned(rows, reshaped(part, (batch, *lead, within, places))), axes=(0,), keepdims=0)
        for part in parts_seen(image, kernel, at, response.shape[2:])
    ]
    return _beside(products, response.shape[1], within, kernel)


def _sizes(image: Expr, response: Expr, group: Dim) -> tuple[tuple[Dim, ...], Dim, Dim, Dim]:
    """The axis of groups where there are several, channels and outputs of a group, and windows of all images."""
    lead: tuple[Dim, ...] = () if group == 1 else (group,)
    windows = image.shape[0] * prod(response.shape[2:], start=1)
    return lead, image.shape[1] // group, response.shape[1] // group, windows


def _times_turned(a: Expr, b: Expr) -> Expr:
    if a.rank == 2:
        return apply("Gemm", a, b, alpha=1.0, beta=1.0, transA=0, transB=1)
    return apply("MatMul", a, turned(b))


def _beside(products: Sequence[Expr], outputs: Dim, within: Dim, kernel: Sequence[int]) -> Expr:
    """Products of the taps as one tensor of weights."""
    if len(products) == 1:
        return reshaped(products[0], (outputs, within, *kernel))
    beside = apply("Concat", *products, axis=products[0].rank - 1)
    taps = transposed(reshaped(beside, (outputs, len(products), within)), (0, 2, 1))
    return reshaped(taps, (outputs, within, *kernel))


def parts_seen(image: Expr, kernel: Sequence[int], at: Settings, places: Sequence[Dim]) -> list[Expr]:
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


def channels_first(x: Expr) -> Expr:
    """Channels before images; nothing moves where there is one image."""
    batch, channels, *sizes = x.shape
    return reshaped(x, (channels, 1, *sizes)) if batch == 1 else transposed(x, (1, 0, *range(2, x.rank)))


def as_convolution(image: Expr, response: Expr, kernel: Sequence[Dim], at: Settings, group: Dim) -> Expr:
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

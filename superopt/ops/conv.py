"""Convolutions of any spatial rank, stride, padding, dilation and number of groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from superopt.ir.poly import Dim, Poly
from superopt.ir.terms import AttributeValue
from superopt.ir.types import TensorType
from superopt.ops.derivative import windows as derivatives
from superopt.ops.forms import arguments, integer, integers, only, onnx_value, present, since_only
from superopt.ops.meaning import (
    Comprehension,
    Contradiction,
    IllTyped,
    Operand,
    Scalar,
    combine,
    equal_to,
    require,
    same,
    tensor,
    total,
    where,
)  # fmt: skip
from superopt.ops.record import Canonical, NodeForm, NodeView, NotCovered, Operator
from superopt.ops.window import read_windows, vector, windows

__all__ = ["OPERATORS"]

WINDOW = {"strides": "ints", "pads": "ints", "dilations": "ints"}


def conv(
    x: Operand, w: Operand, b: Operand | None = None, *,
    strides: AttributeValue, pads: AttributeValue, dilations: AttributeValue, group: AttributeValue,
) -> Comprehension:  # fmt: skip
    """``Σ_{c,t} X[n, g·C+c, at·s + t·d − p] · W[g·O+o, c, t] + B[g·O+o]``, reads outside X are 0.

    X is [N, G·C, …], W is [G·O, C, …]; the output's channel axis has the digits (g < G, o < O).
    """
    groups, batch, spatial = grouped(x, w, group)
    inner, within = w.shape[1], w.shape[0] // groups
    require(same(x.shape[1], groups * inner), f"{x.type} has not {groups} × {inner} channels")
    require(same(w.shape[0], groups * within), f"{w.shape[0]} output channels do not split into {groups} groups")
    if b is not None:
        require(same(b.shape[0] if b.rank == 1 else -1, w.shape[0]), f"a bias {b.type} for weights {w.type}")
    view = windows(spatial, w.shape[2:], strides, pads, dilations)

    def value(n: Dim, channel: tuple[Dim, Dim], *at: Dim) -> Scalar:
        out = combine(channel, (groups, within))

        def term(c: Dim, *taps: Dim) -> Scalar:
            place = (n, channel[0] * inner + c, *view.positions(at, taps))
            return (x[place] if view.inside else x.padded(place)) * w[(out, c, *taps)]

        product = total((inner, *w.shape[2:]), term)
        return product if b is None else product + b[out]

    return tensor((batch, (groups, within), *view.outputs()), value)


def conv_transpose(
    x: Operand, w: Operand, b: Operand | None = None, *, strides: AttributeValue, pads: AttributeValue,
    dilations: AttributeValue, group: AttributeValue, output_padding: AttributeValue,
) -> Comprehension:  # fmt: skip
    """The adjoint of Conv in X: tap ``t`` adds ``X[i] · W[t]`` at ``i·s + t·d − p``. W is [G·C, O, …]."""
    groups, batch, spatial = grouped(x, w, group)
    inner, within = w.shape[0] // groups, w.shape[1]
    require(same(x.shape[1], w.shape[0]), f"{x.type} and {w.type} differ in channels")
    require(same(w.shape[0], groups * inner), f"{w.shape[0]} channels do not split into {groups} groups")
    if b is not None:
        require(same(b.shape[0] if b.rank == 1 else -1, groups * within), f"a bias {b.type} for weights {w.type}")
    view = windows(spatial, w.shape[2:], strides, pads, dilations)
    extra = vector(output_padding, len(spatial), "output_padding")
    outputs = tuple(
        s * (size - 1) + more + d * (k - 1) + 1 - p - q
        for size, s, more, d, k, p, q in zip(
            spatial, view.strides, extra, view.dilations, view.kernel, view.before, view.after, strict=True
        )
    )

    def value(n: Dim, channel: tuple[Dim, Dim], *at: Dim) -> Scalar:
        def term(c: Dim, *taps: Dim) -> Scalar:
            source = channel[0] * inner + c
            offsets = [o + p - t * d for o, p, t, d in zip(at, view.before, taps, view.dilations, strict=True)]
            hits = [equal_to(o % s, 0) for o, s in zip(offsets, view.strides, strict=True)]
            place = (n, source, *(o // s for o, s in zip(offsets, view.strides, strict=True)))
            return where(hits, x.padded(place) * w[(source, channel[1], *taps)], 0)

        product = total((inner, *w.shape[2:]), term)
        return product if b is None else product + b[combine(channel, (groups, within))]

    return tensor((batch, (groups, within), *outputs), value)


def grouped(x: Operand, w: Operand, group: AttributeValue) -> tuple[Dim, Dim, tuple[Dim, ...]]:
    """The number of groups, the batch size and the spatial sizes.

    Raises:
        Contradiction: ranks do not fit, or the group is not positive.
        IllTyped: the group is no number.
    """
    if x.rank < 3 or x.rank != w.rank:
        raise Contradiction(f"{x.type} and {w.type} are not an image and its filters")
    if not isinstance(group, int | Poly):
        raise IllTyped(f"group {group} is not a number")
    if isinstance(group, int) and group < 1:
        raise Contradiction(f"group {group} is not a positive integer")
    return group, x.shape[0], x.shape[2:]


def read_conv(view: NodeView) -> Canonical:
    only(view, "auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    return Canonical(arguments(view), {**read_windows(view, kernel(view)), "group": integer(view, "group", 1)})


def read_conv_transpose(view: NodeView) -> Canonical:
    only(view, "auto_pad", "dilations", "group", "kernel_shape", "pads", "strides", "output_padding")
    taps = kernel(view)
    attributes = read_windows(view, taps)
    if view.node.attributes.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        raise NotCovered("ConvTranspose with auto_pad SAME")
    attributes["group"] = integer(view, "group", 1)
    attributes["output_padding"] = integers(view, "output_padding", (0,) * len(taps))
    return Canonical(arguments(view), attributes)


def kernel(view: NodeView) -> tuple[Dim, ...]:
    """The filter's spatial sizes, which ``kernel_shape`` must repeat if it is there."""
    sizes = (view.type(1).shape or ())[2:]
    stated = integers(view, "kernel_shape", ()) if "kernel_shape" in view.node.attributes else ()
    if stated and stated != sizes:
        known = len(stated) != len(sizes) or all(isinstance(s, int) for s in sizes)
        raise (Contradiction if known else NotCovered)(
            f"kernel_shape {list(stated)} does not fit the weights {view.type(1)}"
        )
    return sizes


def write_conv(attributes: Mapping[str, AttributeValue], types: Sequence[TensorType | None], opset: int) -> NodeForm:
    since_only(opset, 1)
    written = {name: onnx_value(value) for name, value in attributes.items()}
    weights = types[1].shape if types[1] is not None else None
    if weights and all(isinstance(k, int) for k in weights[2:]):
        written["kernel_shape"] = tuple(k for k in weights[2:] if isinstance(k, int))
    return NodeForm(present(types), written)


OPERATORS = (
    Operator(
        name="Conv", inputs=("X", "W", "B?"), attributes={**WINDOW, "group": "int"}, meaning=conv, since=1,
        read=read_conv, write=write_conv, derivative=derivatives.CONV, family="conv",
    ),
    Operator(
        name="ConvTranspose", inputs=("X", "W", "B?"), attributes={**WINDOW, "group": "int", "output_padding": "ints"},
        meaning=conv_transpose, since=1, read=read_conv_transpose, write=write_conv,
        derivative=derivatives.CONV_TRANSPOSE, family="conv",
    ),
)  # fmt: skip

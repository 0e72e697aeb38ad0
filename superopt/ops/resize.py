"""Resize and Upsample by constant scales: nearest and linear interpolation.

Along an axis with scale ``a/b``, output position ``o`` looks at ``(p·o + q)/r`` of the input, all integers, by the
rule of the coordinate mode; so positions and weights are exact index arithmetic. Positions beyond the input
take its edge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from superopt.ir.size_polynomial import Dim
from superopt.ir.terms import AttributeValue
from superopt.ir.types import TensorType
from superopt.ops.onnx_node_conversion import float32, int64s, integers, only, reals, since_only, text, truth
from superopt.ops.operator_definition import (
    FLOATS,
    CanonicalNodeForm,
    OnnxNodeForm,
    OnnxNodeView,
    Operator,
    UnsupportedNodeForm,
)
from superopt.ops.operator_semantics import (
    ContradictoryShapes,
    IllTypedOperator,
    Index,
    ScalarExpression,
    SymbolicOperand,
    TensorComprehension,
    call,
    number,
    tensor,
)  # fmt: skip
from superopt.ops.reshape_and_transpose import shape_at, sizes_of

__all__ = ["OPERATORS"]

MODES = ("nearest", "linear")
COORDINATES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
FINEST = 1024  # largest denominator of a scale: beyond it, float coordinates and exact ones may round differently
Line = tuple[Dim, Dim, Dim]  # (p, q, r): the input position is (p·o + q) / r


def line(coordinates: str, size: Dim, out: Dim, up: int, down: int) -> Line:
    """Where output positions lie on an input axis scaled by ``up/down``."""
    if coordinates == "align_corners":
        if not isinstance(size, int) or not isinstance(out, int):
            raise IllTypedOperator("align_corners needs known sizes")
        return (size - 1, 0, out - 1) if out > 1 else (0, 0, 1)
    if coordinates == "asymmetric":
        return down, 0, up
    if coordinates == "pytorch_half_pixel":
        if not isinstance(out, int):
            raise IllTypedOperator("pytorch_half_pixel needs known sizes")
        if out == 1:
            return 0, 0, 1
    return 2 * down, down - up, 2 * up


def rounded(at: Line, o: Dim, rounding: str) -> Dim:
    """The input position nearest to output position ``o``."""
    p, q, r = at
    exact = p * o + q
    match rounding:
        case "floor":
            return exact // r
        case "ceil":
            return -(-exact // r)
        case "round_prefer_floor":
            return -((r - 2 * exact) // (2 * r))
        case _:
            return (2 * exact + r) // (2 * r)


def edge(position: Dim, size: Dim) -> Index:
    """The position, moved to the nearest one inside."""
    return call("max", 0, call("min", number(position), size - 1))


def resize(
    x: SymbolicOperand, *, scales_up: AttributeValue, scales_down: AttributeValue, mode: AttributeValue,
    coordinates: AttributeValue, rounding: AttributeValue,
) -> TensorComprehension:  # fmt: skip
    """Each axis scaled by ``scales_up/scales_down``; its size becomes ``size·up // down``."""
    ups, downs = scale_vector(scales_up, x.rank), scale_vector(scales_down, x.rank)
    if mode not in MODES or coordinates not in COORDINATES or rounding not in ROUNDINGS:
        raise IllTypedOperator(f"Resize has no mode {mode!r} with {coordinates!r} and {rounding!r}")
    outs = [s if u == d else s * u // d for s, u, d in zip(x.shape, ups, downs, strict=True)]
    moved = [a for a in range(x.rank) if ups[a] != downs[a]]
    lines = {a: line(str(coordinates), x.shape[a], outs[a], ups[a], downs[a]) for a in moved}

    def nearest(*index: Dim) -> ScalarExpression:
        place: list[Index] = list(index)
        for a in moved:
            place[a] = edge(rounded(lines[a], index[a], str(rounding)), x.shape[a])
        return x[tuple(place)]

    def linear(*index: Dim) -> ScalarExpression:
        def along(remaining: list[int], place: tuple[Index, ...]) -> ScalarExpression:
            if not remaining:
                return x[place]
            a, rest = remaining[0], remaining[1:]
            p, q, r = lines[a]
            exact = p * index[a] + q
            low = exact // r
            share = number(exact - r * low) * call("inv", r)
            left = along(rest, (*place[:a], edge(low, x.shape[a]), *place[a + 1 :]))
            right = along(rest, (*place[:a], edge(low + 1, x.shape[a]), *place[a + 1 :]))
            return left * (1 - share) + right * share

        return along(moved, index)

    return tensor(outs, nearest if mode == "nearest" else linear)


def scale_vector(value: AttributeValue, rank: int) -> tuple[int, ...]:
    sizes = sizes_of(value, "scales")
    known = tuple(s for s in sizes if isinstance(s, int) and s > 0)
    if len(known) != rank or len(sizes) != rank:
        raise IllTypedOperator(f"scales {value} do not fit rank {rank}")
    return known


def read_resize(view: OnnxNodeView) -> CanonicalNodeForm:
    if view.opset < 11:
        only(view, "mode")
        setting = ("asymmetric", "floor")
    else:
        only(
            view, "mode", "coordinate_transformation_mode", "nearest_mode", "cubic_coeff_a", "exclude_outside",
            "extrapolation_value", "antialias", "axes", "keep_aspect_ratio_policy",
        )  # fmt: skip
        setting = (
            text(view, "coordinate_transformation_mode", "half_pixel"),
            text(view, "nearest_mode", "round_prefer_floor"),
        )
    mode = text(view, "mode", "nearest")
    if truth(view, "antialias", 0) or text(view, "keep_aspect_ratio_policy", "stretch") != "stretch":
        raise UnsupportedNodeForm("Resize with antialias or a kept aspect ratio")
    if mode not in MODES or setting[0] not in COORDINATES or setting[1] not in ROUNDINGS:
        raise UnsupportedNodeForm(f"Resize with mode {mode}, {setting[0]}, {setting[1]}")
    fractions = resize_scales(view)
    if mode == "linear" and sum(f != 1 for f in fractions) > 3:
        raise UnsupportedNodeForm("linear interpolation over more than three axes")
    rounding = setting[1] if mode == "nearest" else "floor"
    return canonical(fractions, mode, setting[0], rounding, view)


def canonical(
    scales: Sequence[Fraction], mode: str, coordinates: str, rounding: str, view: OnnxNodeView
) -> CanonicalNodeForm:
    for scale in scales:
        if scale <= 0 or scale.denominator > FINEST or scale.numerator > FINEST * 64:
            raise UnsupportedNodeForm(f"the scale {float(scale)} is not a simple fraction")
    if coordinates in ("align_corners", "pytorch_half_pixel") and not view.type(0).is_static:
        raise UnsupportedNodeForm(f"{coordinates} needs known sizes")
    return CanonicalNodeForm((0,), {
        "scales_up": tuple(s.numerator for s in scales), "scales_down": tuple(s.denominator for s in scales),
        "mode": mode, "coordinates": coordinates, "rounding": rounding,
    })  # fmt: skip


def resize_scales(view: OnnxNodeView) -> tuple[Fraction, ...]:
    """The exact scale of each axis, from ``scales`` or from ``sizes``.

    Raises:
        UnsupportedNodeForm: neither is known.
    """
    shape = view.type(0).shape or ()
    axes = [a % len(shape) for a in integers(view, "axes", range(len(shape)))] if shape else []
    sizes = view.integers(3) if view.has(3) and view.opset >= 11 else None
    found = [Fraction(1)] * len(shape)
    if sizes is not None and len(sizes) == len(axes):
        for axis, size in zip(axes, sizes, strict=True):
            found[axis] = ratio(size, shape[axis])
        return tuple(found)
    place = 1 if view.opset < 11 else 2
    for position in (place, 3):
        kind = view.types[position] if view.has(position) else None
        count = 0 if kind is None else kind.elements
        if isinstance(count, int) and count not in (0, len(axes)):
            raise ContradictoryShapes(f"{count} scales or sizes for {len(axes)} axes")
    given = view.constant(place)
    if given is None or given.size != len(axes) or given.dtype.kind != "f":
        raise UnsupportedNodeForm("the scales are computed at run time")
    for axis, scale in zip(axes, given.reshape(-1), strict=True):
        found[axis] = Fraction(float(scale))
    return tuple(found)


def ratio(size: Dim, original: Dim) -> Fraction:
    if size == original:
        return Fraction(1)
    if isinstance(original, int) and isinstance(size, int) and original > 0 and size > 0:
        return Fraction(size, original)
    scale = size // original
    if isinstance(scale, int) and scale >= 1 and scale * original == size:
        return Fraction(scale)
    raise UnsupportedNodeForm(f"the scale from {original} to {size} is not known")


def write_resize(
    attributes: Mapping[str, AttributeValue], types: Sequence[TensorType | None], opset: int
) -> OnnxNodeForm:
    since_only(opset, 10)
    shape = shape_at(types)
    scales = written_scales(attributes, shape)
    mode, coordinates, rounding = (str(attributes[n]) for n in ("mode", "coordinates", "rounding"))
    if opset < 11:
        if (coordinates, rounding) != ("asymmetric", "floor") or isinstance(scales, tuple):
            raise UnsupportedNodeForm("below opset 11 Resize is asymmetric and rounds down")
        return OnnxNodeForm((0, scales), {"mode": mode.encode()})
    settings = {"mode": mode.encode(), "coordinate_transformation_mode": coordinates.encode()}
    if mode == "nearest":
        settings["nearest_mode"] = rounding.encode()
    empty = np.zeros(0, dtype=np.float32) if opset < 13 else None
    if isinstance(scales, tuple):
        return OnnxNodeForm((0, empty, empty, int64s(scales)), settings)
    return OnnxNodeForm((0, empty, scales), settings)


def written_scales(attributes: Mapping[str, AttributeValue], shape: Sequence[Dim]) -> np.ndarray | tuple[Dim, ...]:
    """Scales as float32 where they are exact, else the output sizes.

    Raises:
        UnsupportedNodeForm: neither can be written.
    """
    ups, downs = scale_vector(attributes["scales_up"], len(shape)), scale_vector(attributes["scales_down"], len(shape))
    if all(Fraction(float32(u / d)) == Fraction(u, d) for u, d in zip(ups, downs, strict=True)):
        return np.array([u / d for u, d in zip(ups, downs, strict=True)], dtype=np.float32)
    outs = tuple(s * u // d for s, u, d in zip(shape, ups, downs, strict=True))
    exact = all(isinstance(o, int) and o * d == s * u for o, s, u, d in zip(outs, shape, ups, downs, strict=True))
    if not exact:
        raise UnsupportedNodeForm("the scales are neither floats nor a ratio of sizes")
    return outs


def read_upsample(view: OnnxNodeView) -> CanonicalNodeForm:
    only(view, "mode", *(("scales",) if view.opset < 9 else ()))
    mode = text(view, "mode", "nearest")
    if mode not in MODES:
        raise UnsupportedNodeForm(f"Upsample with mode {mode}")
    rank = len(view.type(0).shape or ())
    given = view.constant(1) if view.opset >= 9 else np.array(reals(view, "scales"))
    if given is None or given.size != rank:
        raise UnsupportedNodeForm("the scales are computed at run time")
    return canonical([Fraction(float(s)) for s in given.reshape(-1)], mode, "asymmetric", "floor", view)


def write_upsample(
    attributes: Mapping[str, AttributeValue], types: Sequence[TensorType | None], opset: int
) -> OnnxNodeForm:
    since_only(opset, 7)
    scales = written_scales(attributes, shape_at(types))
    if opset > 9 or isinstance(scales, tuple):
        raise UnsupportedNodeForm("Upsample ended with opset 9")
    if (attributes["coordinates"], attributes["rounding"]) != ("asymmetric", "floor"):
        raise UnsupportedNodeForm("Upsample is asymmetric and rounds down")
    mode = str(attributes["mode"]).encode()
    if opset < 9:
        return OnnxNodeForm((0,), {"mode": mode, "scales": tuple(float(s) for s in scales)})
    return OnnxNodeForm((0, scales), {"mode": mode})


ATTRIBUTES = {
    "scales_up": "ints", "scales_down": "ints", "mode": "string", "coordinates": "string", "rounding": "string",
}  # fmt: skip
OPERATORS = (
    Operator(
        name="Resize", inputs=("X",), attributes=ATTRIBUTES, meaning=resize, since=10, dtypes=FLOATS, read=read_resize,
        write=write_resize, family="resize",
    ),
    Operator(
        name="Upsample", inputs=("X",), attributes=ATTRIBUTES, meaning=resize, since=7, dtypes=FLOATS,
        read=read_upsample, write=write_upsample, family="resize",
    ),
)  # fmt: skip

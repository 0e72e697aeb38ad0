"""Slice: start, end and step along axes, where sizes may be symbolic.

The canonical form is clamped and counted from the front, so it holds only what is certain for every size ≥ 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from superopt.ir.poly import Dim
from superopt.ir.terms import AttributeValue
from superopt.ir.types import TensorType
from superopt.ops.derivative import moves
from superopt.ops.forms import int64s, listed, normal_axes, only, onnx_value, surely_nonnegative
from superopt.ops.meaning import Comprehension, Contradiction, IllTyped, Operand, Scalar, at_least, require, tensor
from superopt.ops.record import ANY, Canonical, NodeForm, NodeView, NotCovered, Operator
from superopt.ops.shape import axes_of, shape_at, sizes_of

__all__ = ["FAR", "OPERATORS"]

Types = Sequence[TensorType | None]
Attributes = Mapping[str, AttributeValue]
LAST = 2**63 - 1  # what ONNX writes for "to the end"
FAR = 2**31 - 1  # from here on a position means an end of the axis, whatever its size


def slice_(
    x: Operand, *, starts: AttributeValue, ends: AttributeValue, axes: AttributeValue, steps: AttributeValue
) -> Comprehension:
    """Positions ``start, start + step, …`` before ``end`` along the axes, clamped to them as ONNX clamps.

    A position beyond a known size is clamped, a negative one counts from the end. What depends on a size that is not
    known is left as an obligation: start and end lie in order inside the axis (``superopt.rules.clamping`` writes a
    rule out for the sizes at which they do not). With a negative step ``end`` may be −1: position 0 is included.
    """
    chosen = axes_of(axes, x.rank)
    cuts = list(zip(sizes_of(starts, "starts"), sizes_of(ends, "ends"), sizes_of(steps, "steps"), strict=False))
    if not len(cuts) == len(chosen) == len(sizes_of(starts, "starts")) == len(sizes_of(steps, "steps")):
        raise IllTyped("starts, ends, axes and steps differ in length")
    shape = list(x.shape)
    origin: dict[int, tuple[Dim, int]] = {}
    for axis, (start, end, step) in zip(chosen, cuts, strict=True):
        if not isinstance(step, int) or step == 0:
            raise IllTyped(f"step {step} is not a known step")
        size = x.shape[axis]
        first, last = placed(start, end, step, size)
        low, high = (first, last) if step > 0 else (last + 1, first + 1)
        for smaller, larger in ((0, low), (low, high), (high, size)):
            require(at_least(larger, smaller), f"the slice {start}:{end}:{step} is not inside axis {axis} of {x.type}")
        shape[axis] = (high - low + abs(step) - 1) // abs(step)
        origin[axis] = (first, step)

    def value(*index: Dim) -> Scalar:
        return x[tuple(origin[a][0] + i * origin[a][1] if a in origin else i for a, i in enumerate(index))]

    return tensor(shape, value)


def placed(start: Dim, end: Dim, step: int, size: Dim) -> tuple[Dim, Dim]:
    """Start and end counted from the front, and clamped wherever that needs no size that is not known."""
    low, high = (0, size) if step > 0 else (-1, size - 1)
    if size == 0:
        return low, low
    first = _clamped(_counted(start, size), 0, high)
    last = end if step < 0 and isinstance(end, int) and end == -1 else _clamped(_counted(end, size), low, size)
    gap = last - first if step > 0 else first - last
    return (first, first) if isinstance(gap, int) and gap < 0 else (first, last)


def _counted(value: Dim, size: Dim) -> Dim:
    """A known position that is negative, from the front; the far ones mean an end whatever the size is."""
    return value + size if isinstance(value, int) and -FAR < value < 0 else value


def _clamped(value: Dim, low: Dim, high: Dim) -> Dim:
    if isinstance(value, int) and abs(value) >= FAR:
        return high if value > 0 else low
    for bound, beyond in ((low, low - value), (high, value - high)):
        if isinstance(beyond, int) and beyond > 0:
            return bound
    return value


def read_slice(view: NodeView) -> Canonical:
    only(view, *(("starts", "ends", "axes") if view.opset < 10 else ()))
    shape = view.type(0).shape or ()
    starts, ends = listed(view, "starts", 1, 10), listed(view, "ends", 2, 10)
    if starts is None or ends is None:
        raise NotCovered("Slice without starts or ends")
    if len(starts) != len(ends):
        raise Contradiction(f"{len(starts)} starts for {len(ends)} ends")
    given = listed(view, "axes", 3, 10)
    axes = normal_axes(tuple(range(len(starts))) if given is None else given, len(shape))
    steps = (listed(view, "steps", 4, 10) if view.opset >= 10 else None) or (1,) * len(starts)
    if len(axes) != len(starts) or len(steps) != len(starts):
        raise Contradiction("starts, ends, axes and steps differ in length")
    cuts = sorted(zip(axes, starts, ends, steps, strict=True), key=lambda cut: cut[0])
    clamped = [(a, *clamp(s, e, step, shape[a])) for a, s, e, step in cuts]
    return Canonical((0,), {
        "axes": tuple(c[0] for c in clamped), "starts": tuple(c[1] for c in clamped),
        "ends": tuple(c[2] for c in clamped), "steps": tuple(c[3] for c in clamped),
    })  # fmt: skip


def clamp(start: Dim, end: Dim, step: Dim, size: Dim) -> tuple[Dim, Dim, int]:
    """Start and end inside the axis and in order.

    Raises:
        NotCovered: where they lie depends on a size that is not known.
    """
    if not isinstance(step, int) or step == 0:
        raise NotCovered(f"step {step}")
    low, high = (0, size) if step > 0 else (-1, size - 1)
    first = bounded(from_front(start, size), 0, high)
    last = bounded(from_front(end, size), low, size)
    gap = last - first if step > 0 else first - last
    if surely_nonnegative(gap):
        return first, last, step
    if isinstance(gap, int):
        return first, first, step
    raise NotCovered(f"whether {first}:{last} is empty is not known")


def from_front(value: Dim, size: Dim) -> Dim:
    """A position that counts from the end where it is negative."""
    if isinstance(value, int):
        return max(value, -LAST) + size if value < 0 and value > -FAR else value
    if surely_nonnegative(value):
        return value
    if surely_nonnegative(-1 - value):
        return value + size
    raise NotCovered(f"the sign of position {value} is not known")


def bounded(value: Dim, low: Dim, high: Dim) -> Dim:
    if isinstance(value, int) and abs(value) >= FAR:  # "to the end", whatever the size
        return high if value > 0 else low
    if surely_nonnegative(value - high):
        return high
    if surely_nonnegative(low - value):
        return low
    if surely_nonnegative(high - value) and surely_nonnegative(value - low):
        return value
    raise NotCovered(f"whether position {value} lies before {high} is not known")


def write_slice(attributes: Attributes, types: Types, opset: int) -> NodeForm:
    shape = shape_at(types)
    axes, steps = axes_of(attributes["axes"], len(shape)), sizes_of(attributes["steps"], "steps")
    starts, ends = sizes_of(attributes["starts"], "starts"), sizes_of(attributes["ends"], "ends")
    starts = tuple(written(s, shape[a]) for s, a in zip(starts, axes, strict=True))
    ends = tuple(
        -LAST if e == -1 and not (isinstance(t, int) and t > 0) else written(e, shape[a])
        for e, t, a in zip(ends, steps, axes, strict=True)
    )
    if opset >= 10:
        return NodeForm((0, *(int64s(v) for v in (starts, ends, axes, steps))), {})
    if any(s != 1 for s in steps) or not axes:
        raise NotCovered("steps came with opset 10")
    return NodeForm((0,), {n: onnx_value(v) for n, v in (("starts", starts), ("ends", ends), ("axes", axes))})


def written(value: Dim, size: Dim) -> Dim:
    """A symbolic position as one that counts from the end, where that is a number."""
    if isinstance(value, int):
        return value
    back = value - size
    if isinstance(back, int) and back <= 0:
        return back if back < 0 else LAST
    raise NotCovered(f"the position {value} is not known")


OPERATORS = (
    Operator(
        name="Slice", inputs=("X",), attributes={"starts": "ints", "ends": "ints", "axes": "ints", "steps": "ints"},
        meaning=slice_, since=1, dtypes=ANY, read=read_slice, write=write_slice, derivative=moves.SLICE,
        family="slicing",
    ),
)  # fmt: skip

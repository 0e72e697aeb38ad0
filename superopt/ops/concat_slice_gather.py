"""Operators that join, cut and select: Concat, Split, Slice, Pad, Gather, Trilu."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from superopt.ir.graph import Attribute
from superopt.ir.size_polynomial import Dim, SizePolynomial
from superopt.ir.terms import AttributeValue
from superopt.ir.types import DType, TensorType
from superopt.ops.onnx_node_conversion import (
    arguments,
    first_dtype,
    flag,
    int64s,
    integer,
    listed,
    normal_axes,
    normal_axis,
    only,
    onnx_value,
    real,
    since_only,
    surely_nonnegative,
    text,
    truth,
    writer,
)
from superopt.ops.operator_definition import (
    ANY,
    FLOATS,
    NUMERIC,
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
    at_least,
    call,
    number,
    require,
    same,
    tensor,
    total,
    where,
)
from superopt.ops.reshape_and_transpose import axes_of, shape_at, sizes_of

__all__ = ["FAR", "_SELECTIONS", "_SLICES"]


# -- Slice ---------------------------------------------------------------------------------------------------------
#
# Start, end and step along axes, where sizes may be symbolic. The canonical form is clamped and counted from the front,
# so it exists only where clamping is certain for every size ≥ 1.


LAST = 2**63 - 1  # what ONNX writes for "to the end"
FAR = 2**31 - 1  # from here on a position means an end of the axis, whatever its size


def slice_(
    x: SymbolicOperand, *, starts: AttributeValue, ends: AttributeValue, axes: AttributeValue, steps: AttributeValue
) -> TensorComprehension:
    """Positions ``start, start + step, …`` before ``end`` along the axes, clamped to them as ONNX clamps.

    A position beyond a known size is clamped, a negative one counts from the end. What depends on a size that is not
    known is left as an obligation: start and end lie in order inside the axis (``superopt.rules.slice_clamping`` writes
    a rule out for the sizes at which they do not). With a negative step ``end`` may be −1: position 0 is included.
    """
    chosen = axes_of(axes, x.rank)
    cuts = list(zip(sizes_of(starts, "starts"), sizes_of(ends, "ends"), sizes_of(steps, "steps"), strict=False))
    if not len(cuts) == len(chosen) == len(sizes_of(starts, "starts")) == len(sizes_of(steps, "steps")):
        raise IllTypedOperator("starts, ends, axes and steps differ in length")
    shape = list(x.shape)
    origin: dict[int, tuple[Dim, int]] = {}
    for axis, (start, end, step) in zip(chosen, cuts, strict=True):
        if not isinstance(step, int) or step == 0:
            raise IllTypedOperator(f"step {step} is not a known step")
        size = x.shape[axis]
        first, last = placed(start, end, step, size)
        low, high = (first, last) if step > 0 else (last + 1, first + 1)
        for smaller, larger in ((0, low), (low, high), (high, size)):
            require(at_least(larger, smaller), f"the slice {start}:{end}:{step} is not inside axis {axis} of {x.type}")
        shape[axis] = (high - low + abs(step) - 1) // abs(step)
        origin[axis] = (first, step)

    def value(*index: Dim) -> ScalarExpression:
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


def read_slice(view: OnnxNodeView) -> CanonicalNodeForm:
    only(view, *(("starts", "ends", "axes") if view.opset < 10 else ()))
    shape = view.type(0).shape or ()
    starts, ends = listed(view, "starts", 1, 10), listed(view, "ends", 2, 10)
    if starts is None or ends is None:
        raise UnsupportedNodeForm("Slice without starts or ends")
    if len(starts) != len(ends):
        raise ContradictoryShapes(f"{len(starts)} starts for {len(ends)} ends")
    given = listed(view, "axes", 3, 10)
    axes = normal_axes(tuple(range(len(starts))) if given is None else given, len(shape))
    steps = (listed(view, "steps", 4, 10) if view.opset >= 10 else None) or (1,) * len(starts)
    if len(axes) != len(starts) or len(steps) != len(starts):
        raise ContradictoryShapes("starts, ends, axes and steps differ in length")
    cuts = sorted(zip(axes, starts, ends, steps, strict=True), key=lambda cut: cut[0])
    clamped = [(a, *clamp(s, e, step, shape[a])) for a, s, e, step in cuts]
    return CanonicalNodeForm((0,), {
        "axes": tuple(c[0] for c in clamped), "starts": tuple(c[1] for c in clamped),
        "ends": tuple(c[2] for c in clamped), "steps": tuple(c[3] for c in clamped),
    })  # fmt: skip


def clamp(start: Dim, end: Dim, step: Dim, size: Dim) -> tuple[Dim, Dim, int]:
    """Start and end inside the axis and in order.

    Raises:
        UnsupportedNodeForm: where they lie depends on a size that is not known.
    """
    if not isinstance(step, int) or step == 0:
        raise UnsupportedNodeForm(f"step {step}")
    low, high = (0, size) if step > 0 else (-1, size - 1)
    first = bounded(from_front(start, size), 0, high)
    last = bounded(from_front(end, size), low, size)
    gap = last - first if step > 0 else first - last
    if surely_nonnegative(gap):
        return first, last, step
    if isinstance(gap, int):
        return first, first, step
    raise UnsupportedNodeForm(f"whether {first}:{last} is empty is not known")


def from_front(value: Dim, size: Dim) -> Dim:
    """A position that counts from the end where it is negative."""
    if isinstance(value, int):
        return max(value, -LAST) + size if value < 0 and value > -FAR else value
    if surely_nonnegative(value):
        return value
    if surely_nonnegative(-1 - value):
        return value + size
    raise UnsupportedNodeForm(f"the sign of position {value} is not known")


def bounded(value: Dim, low: Dim, high: Dim) -> Dim:
    if isinstance(value, int) and abs(value) >= FAR:  # "to the end", whatever the size
        return high if value > 0 else low
    if surely_nonnegative(value - high):
        return high
    if surely_nonnegative(low - value):
        return low
    if surely_nonnegative(high - value) and surely_nonnegative(value - low):
        return value
    raise UnsupportedNodeForm(f"whether position {value} lies before {high} is not known")


def write_slice(attributes: Attributes, types: Types, opset: int) -> OnnxNodeForm:
    shape = shape_at(types)
    axes, steps = axes_of(attributes["axes"], len(shape)), sizes_of(attributes["steps"], "steps")
    starts, ends = sizes_of(attributes["starts"], "starts"), sizes_of(attributes["ends"], "ends")
    starts = tuple(written(s, shape[a]) for s, a in zip(starts, axes, strict=True))
    ends = tuple(
        -LAST if e == -1 and not (isinstance(t, int) and t > 0) else written(e, shape[a])
        for e, t, a in zip(ends, steps, axes, strict=True)
    )
    if opset >= 10:
        return OnnxNodeForm((0, *(int64s(v) for v in (starts, ends, axes, steps))), {})
    if any(s != 1 for s in steps) or not axes:
        raise UnsupportedNodeForm("steps came with opset 10")
    return OnnxNodeForm((0,), {n: onnx_value(v) for n, v in (("starts", starts), ("ends", ends), ("axes", axes))})


def written(value: Dim, size: Dim) -> Dim:
    """A symbolic position as one that counts from the end, where that is a number."""
    if isinstance(value, int):
        return value
    back = value - size
    if isinstance(back, int) and back <= 0:
        return back if back < 0 else LAST
    raise UnsupportedNodeForm(f"the position {value} is not known")


_SLICES = (
    Operator(
        name="Slice", inputs=("X",), attributes={"starts": "ints", "ends": "ints", "axes": "ints", "steps": "ints"},
        meaning=slice_, since=1, dtypes=ANY, read=read_slice, write=write_slice,
        family="slicing",
    ),
)  # fmt: skip


# -- Concat, Split, Pad, Gather, Trilu -----------------------------------------------------------------------------


Types = Sequence[TensorType | None]
Attributes = Mapping[str, AttributeValue]


def position(axis: AttributeValue, rank: int) -> int:
    return axes_of((axis,), rank)[0]


# ── Concat, Split ─────────────────────────────────────────────────────────────────────────────────────────────────────
def concat(*parts: SymbolicOperand, axis: AttributeValue) -> TensorComprehension:
    """The parts one after another along ``axis``; all other sizes are the same."""
    at = position(axis, parts[0].rank)
    for part in parts[1:]:
        if part.rank != parts[0].rank:
            raise ContradictoryShapes(f"{part.type} and {parts[0].type} differ in rank")
        for a in range(part.rank):
            if a != at:
                require(same(part.shape[a], parts[0].shape[a]), f"{part.type} and {parts[0].type} differ in axis {a}")
    ends: list[Dim] = []
    for part in parts:
        ends.append((ends[-1] if ends else 0) + part.shape[at])

    def value(*index: Dim) -> ScalarExpression:
        out: ScalarExpression | None = None
        for part, end in reversed(list(zip(parts, ends, strict=True))):
            start = end - part.shape[at]
            read = part[(*index[:at], index[at] - start, *index[at + 1 :])]
            out = read if out is None else where(at_least(end - 1, index[at]), read, out)
        return number(0) if out is None else out

    return tensor([ends[-1] if a == at else s for a, s in enumerate(parts[0].shape)], value)


def read_concat(view: OnnxNodeView) -> CanonicalNodeForm:
    only(view, "axis")
    return CanonicalNodeForm(
        arguments(view), {"axis": normal_axis(integer(view, "axis"), len(view.type(0).shape or ()))}
    )


def split(x: SymbolicOperand, *, axis: AttributeValue, split: AttributeValue) -> tuple[TensorComprehension, ...]:
    """One output per entry of ``split``, which are sizes along ``axis`` and add up."""
    at, sizes = position(axis, x.rank), sizes_of(split, "split")
    require(same(sum(sizes, start=0), x.shape[at]), f"the parts {list(sizes)} do not add up to {x.shape[at]}")

    def part(size: Dim, start: Dim) -> TensorComprehension:
        return tensor(
            [size if a == at else s for a, s in enumerate(x.shape)],
            lambda *index: x[(*index[:at], index[at] + start, *index[at + 1 :])],
        )

    outputs: list[TensorComprehension] = []
    start: Dim = 0
    for size in sizes:
        if isinstance(size, int) and size < 0:
            raise ContradictoryShapes(f"the parts {list(sizes)} are not sizes")
        outputs.append(part(size, start))
        start = start + size
    return tuple(outputs)


def read_split(view: OnnxNodeView) -> CanonicalNodeForm:
    only(view, "axis", *(("split",) if view.opset < 13 else ("num_outputs",) if view.opset >= 18 else ()))
    shape = view.type(0).shape or ()
    axis = normal_axis(integer(view, "axis", 0), len(shape))
    parts = listed(view, "split", 1, 13)
    if parts is None:
        count = integer(view, "num_outputs", len(view.node.outputs))
        if count != len(view.node.outputs):  # before any list of that length is made
            few = count < len(view.node.outputs)
            raise (ContradictoryShapes if few else UnsupportedNodeForm)(
                f"{count} parts for {len(view.node.outputs)} outputs"
            )
        parts = equal_parts(shape[axis], count, view.opset)
    if len(parts) != len(view.node.outputs):
        raise (ContradictoryShapes if "num_outputs" not in view.node.attributes else UnsupportedNodeForm)(
            f"{len(parts)} parts for {len(view.node.outputs)} outputs"
        )
    return CanonicalNodeForm((0,), {"axis": axis, "split": parts})


def equal_parts(size: Dim, count: int, opset: int) -> tuple[Dim, ...]:
    """``count`` equal parts; from opset 18 on the last may be smaller.

    Raises:
        UnsupportedNodeForm: the size does not divide, or is not known well enough.
    """
    if count < 1:
        raise UnsupportedNodeForm(f"{count} parts")
    if size % count == 0:
        return (size // count,) * count
    if isinstance(size, SizePolynomial) or opset < 18:
        raise UnsupportedNodeForm(f"size {size} does not divide into {count} equal parts")
    chunk = -(-size // count)
    rest = size - chunk * (count - 1)
    if rest < 0:
        raise UnsupportedNodeForm(f"size {size} does not divide into {count} parts of {chunk}")
    return (*(chunk,) * (count - 1), rest)


def write_split(attributes: Attributes, types: Types, opset: int) -> OnnxNodeForm:
    since_only(opset, 2)
    axis, parts = onnx_value(attributes["axis"]), sizes_of(attributes["split"], "split")
    if any(isinstance(p, SizePolynomial) for p in parts):
        if len(set(parts)) > 1:
            raise UnsupportedNodeForm(f"the parts {list(parts)} are not known and not equal")
        return OnnxNodeForm((0,), {"axis": axis, **({"num_outputs": len(parts)} if opset >= 18 else {})})
    if opset >= 13:
        return OnnxNodeForm((0, int64s(parts)), {"axis": axis})
    return OnnxNodeForm((0,), {"axis": axis, "split": onnx_value(parts)})


# ── Pad ───────────────────────────────────────────────────────────────────────────────────────────────────────────────
def pad(x: SymbolicOperand, *, pads: AttributeValue, value: AttributeValue) -> TensorComprehension:
    """``value`` around the tensor; a negative pad crops. ``pads`` are all beginnings, then all ends."""
    sizes = sizes_of(pads, "pads")
    if len(sizes) != 2 * x.rank or not isinstance(value, int | float | SizePolynomial):
        raise IllTypedOperator(f"pads {list(sizes)} with {value} do not fit rank {x.rank}")
    before, after = sizes[: x.rank], sizes[x.rank :]

    def at(*index: Dim) -> ScalarExpression:
        place = tuple(i - b for i, b in zip(index, before, strict=True))
        if all(isinstance(p, int) and p <= 0 for p in sizes):
            return x[place]
        if not isinstance(value, SizePolynomial):
            return x.padded(place, value)
        inside = [c for p, s in zip(place, x.shape, strict=True) for c in (at_least(p, 0), at_least(s - 1, p))]
        return where(inside, x[place], value)

    shape = [s + b + a for s, b, a in zip(x.shape, before, after, strict=True)]
    for size in shape:
        require(at_least(size, 0), f"{x.type} cannot be cropped by {list(sizes)}")
    return tensor(shape, at)


def read_pad(view: OnnxNodeView) -> CanonicalNodeForm:
    only(view, "mode", *(("pads", "value") if view.opset < 11 else ()))
    if text(view, "mode", "constant") != "constant":
        raise UnsupportedNodeForm(f"Pad with mode {text(view, 'mode')}")
    rank = len(view.type(0).shape or ())
    pads = listed(view, "pads", 1, 11)
    chosen = normal_axes(listed(view, "axes", 3, 18) or tuple(range(rank)), rank) if view.opset >= 18 else range(rank)
    if pads is None or len(pads) != 2 * len(chosen):
        raise UnsupportedNodeForm(f"pads {pads} do not fit rank {rank}")
    sizes: list[Dim] = [0] * (2 * rank)
    for position_, axis in enumerate(chosen):
        sizes[axis], sizes[rank + axis] = pads[position_], pads[len(chosen) + position_]
    return CanonicalNodeForm((0,), {"pads": tuple(sizes), "value": pad_value(view)})


def pad_value(view: OnnxNodeView) -> float | int:
    """The constant around the tensor.

    Raises:
        UnsupportedNodeForm: it is computed at run time.
    """
    if view.opset < 11:
        return real(view, "value", 0.0)
    if not view.has(2):
        return 0.0
    array = view.constant(2)
    if array is None or array.size != 1:
        raise UnsupportedNodeForm("the padding value is computed at run time")
    return int(array.item()) if array.dtype.kind in "iub" else float(array.astype(np.float64).item())


def write_pad(attributes: Attributes, types: Types, opset: int) -> OnnxNodeForm:
    since_only(opset, 2)
    value = attributes["value"]
    if not isinstance(value, int | float) or types[0] is None:
        raise UnsupportedNodeForm(f"the padding value {value} is not known")
    if opset < 11:
        return OnnxNodeForm((0,), {"pads": onnx_value(attributes["pads"]), "value": float(value), "mode": b"constant"})
    filler = np.array(value, dtype=types[0].dtype.numpy)
    return OnnxNodeForm((0, int64s(attributes["pads"], "pads"), filler), {})


# ── Gather ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def wrapped(index: ScalarExpression, size: Dim) -> Index:
    """A position read from data, counted from the end where it is negative."""
    return call("select", call("less", index, 0), index + size, index)


def gather(data: SymbolicOperand, indices: SymbolicOperand, *, axis: AttributeValue) -> TensorComprehension:
    """The axis is replaced by the axes of ``indices``, whose values are positions on it."""
    at = position(axis, data.rank)
    if indices.type.dtype not in (DType.INT32, DType.INT64):
        raise IllTypedOperator("indices are int32 or int64")

    def value(*index: Dim) -> ScalarExpression:
        chosen = wrapped(indices[index[at : at + indices.rank]], data.shape[at])
        return data[(*index[:at], chosen, *index[at + indices.rank :])]

    return tensor((*data.shape[:at], *indices.shape, *data.shape[at + 1 :]), value)


def gather_elements(data: SymbolicOperand, indices: SymbolicOperand, *, axis: AttributeValue) -> TensorComprehension:
    """The position on ``axis`` comes from ``indices`` at the same place."""
    at = position(axis, data.rank)
    if indices.type.dtype not in (DType.INT32, DType.INT64):
        raise IllTypedOperator("indices are int32 or int64")
    if indices.rank != data.rank:
        raise ContradictoryShapes(f"indices {indices.type} do not fit {data.type}")
    for a in range(data.rank):
        if a != at:
            require(at_least(data.shape[a], indices.shape[a]), f"indices {indices.type} leave {data.type}")

    def value(*index: Dim) -> ScalarExpression:
        return data[(*index[:at], wrapped(indices[index], data.shape[at]), *index[at + 1 :])]

    return tensor(indices.shape, value)


def read_gather(view: OnnxNodeView) -> CanonicalNodeForm:
    """Indices that are known must lie on the axis, counted from either end."""
    only(view, "axis")
    shape = view.type(0).shape or ()
    axis = normal_axis(integer(view, "axis", 0), len(shape))
    indices, size = view.constant(1), shape[axis]
    if indices is not None and indices.size and indices.dtype.kind == "i" and isinstance(size, int):
        low, high = int(indices.min()), int(indices.max())
        if low < -size or high >= size:
            raise ContradictoryShapes(f"index {low if low < -size else high} is not on axis {axis} of {view.type(0)}")
    return CanonicalNodeForm((0, 1), {"axis": axis})


def scatter_nd(data: SymbolicOperand, indices: SymbolicOperand, updates: SymbolicOperand) -> TensorComprehension:
    """Each update is added to the element of axis 0 that its index names; ``indices`` end in an axis of size 1."""
    if indices.type.dtype is not DType.INT64:
        raise IllTypedOperator("indices are int64")
    if not indices.rank or not data.rank:
        raise ContradictoryShapes(f"indices {indices.type} do not fit {data.type}")
    require(same(indices.shape[-1], 1), f"indices {indices.type} name several axes")
    batch, size = indices.rank - 1, data.shape[0]
    wanted = (*indices.shape[:-1], *data.shape[1:])
    if updates.rank != len(wanted):
        raise ContradictoryShapes(f"updates {updates.type} do not fit {data.type} and indices {indices.type}")
    for a, expected in enumerate(wanted):
        require(same(updates.shape[a], expected), f"updates {updates.type} differ in axis {a}")
    if updates.type.dtype is not data.type.dtype:
        raise IllTypedOperator(f"{updates.type} and {data.type} differ")

    def value(*index: Dim) -> ScalarExpression:
        def part(*place: Dim) -> ScalarExpression:
            here = call("equal", wrapped(indices[(*place, 0)], size), number(index[0]))
            return here * updates[(*place, *index[1:])]

        return data[index] + (total(indices.shape[:-1], part) if batch else part())

    return tensor(data.shape, value)


def read_scatter_nd(view: OnnxNodeView) -> CanonicalNodeForm:
    """Only sums: an order of writes to one place is no function of the operands."""
    only(view, "reduction")
    data, indices, updates = (view.type(p).shape or () for p in range(3))
    named = indices[-1] if indices else 0
    if isinstance(named, int):
        wanted = (*indices[:-1], *data[named:])
        if named > len(data) or not indices or len(updates) != len(wanted):
            raise ContradictoryShapes(f"updates {view.type(2)} do not fit {view.type(0)} at indices {view.type(1)}")
        for a, size in enumerate(wanted):
            require(same(updates[a], size), f"updates {view.type(2)} differ in axis {a}")
    if text(view, "reduction", "none") != "add":
        raise UnsupportedNodeForm(f"ScatterND with reduction {text(view, 'reduction', 'none')}")
    if named != 1:
        raise UnsupportedNodeForm("indices that name several axes")
    return CanonicalNodeForm((0, 1, 2), {})


def write_scatter_nd(attributes: Attributes, types: Types, opset: int) -> OnnxNodeForm:
    since_only(opset, 16)
    return OnnxNodeForm((0, 1, 2), {"reduction": b"add"})


# ── Trilu, CumSum ─────────────────────────────────────────────────────────────────────────────────────────────────────
def trilu(x: SymbolicOperand, *, upper: AttributeValue, k: AttributeValue) -> TensorComprehension:
    """The upper (lower) triangle from (up to) diagonal ``k`` of the last two axes; 0 elsewhere."""
    if x.rank < 2 or not isinstance(k, int | SizePolynomial):
        raise IllTypedOperator(f"{x.type} has no diagonal {k}")
    above = flag(upper, "upper")

    def value(*index: Dim) -> ScalarExpression:
        offset = index[-1] - index[-2] - k
        return where(at_least(offset, 0) if above else at_least(0, offset), x[index], 0)

    return tensor(x.shape, value)


def read_trilu(view: OnnxNodeView) -> CanonicalNodeForm:
    only(view, "upper")
    k = view.integers(1) if view.has(1) else (0,)
    if k is None or len(k) != 1:
        raise UnsupportedNodeForm("the diagonal is computed at run time")
    return CanonicalNodeForm((0,), {"upper": truth(view, "upper", 1), "k": k[0]})


def write_trilu(attributes: Attributes, types: Types, opset: int) -> OnnxNodeForm:
    since_only(opset, 14)
    k = int64s(attributes["k"], "the diagonal").reshape(())
    return OnnxNodeForm((0, k), {"upper": onnx_value(attributes["upper"])})


def cumsum(
    x: SymbolicOperand, *, axis: AttributeValue, exclusive: AttributeValue, reverse: AttributeValue
) -> TensorComprehension:
    """Sums of everything up to (``reverse``: from) each position, itself left out if ``exclusive``."""
    at = position(axis, x.rank)
    backwards, skip = flag(reverse, "reverse"), int(flag(exclusive, "exclusive"))

    def value(*index: Dim) -> ScalarExpression:
        def term(t: Dim) -> ScalarExpression:
            distance = (t - index[at] if backwards else index[at] - t) - skip
            return where(at_least(distance, 0), x[(*index[:at], t, *index[at + 1 :])], 0)

        return total(x.shape[at], term)

    return tensor(x.shape, value)


def read_cumsum(view: OnnxNodeView) -> CanonicalNodeForm:
    only(view, "exclusive", "reverse")
    axis = view.integers(1)
    if axis is None or len(axis) != 1:
        raise UnsupportedNodeForm("the axis is computed at run time")
    (at,) = normal_axes(axis, len(view.type(0).shape or ()))
    flags = {name: truth(view, name, 0) for name in ("exclusive", "reverse")}
    return CanonicalNodeForm((0,), {"axis": at, **flags})


def write_cumsum(attributes: Attributes, types: Types, opset: int) -> OnnxNodeForm:
    since_only(opset, 11)
    flags: dict[str, Attribute] = {n: onnx_value(attributes[n]) for n in ("exclusive", "reverse")}
    return OnnxNodeForm((0, int64s(attributes["axis"]).reshape(())), flags)


_SELECTIONS = (
    Operator(
        name="Concat", inputs=("inputs*",), attributes={"axis": "int"}, meaning=concat, since=4, dtypes=ANY,
        read=read_concat, write=writer(4), family="selection",
    ),
    Operator(
        name="Split", inputs=("X",), outputs=("outputs*",), attributes={"axis": "int", "split": "ints"}, meaning=split,
        since=2, dtypes=ANY, read=read_split, write=write_split, family="selection",
    ),
    Operator(
        name="Pad", inputs=("X",), attributes={"pads": "ints", "value": "float"}, meaning=pad, since=2, dtypes=NUMERIC,
        read=read_pad, write=write_pad, family="selection",
    ),
    Operator(
        name="Gather", inputs=("data", "indices"), attributes={"axis": "int"}, meaning=gather, since=1, dtypes=ANY,
        result=first_dtype, read=read_gather, write=writer(1), family="selection",
    ),
    Operator(
        name="GatherElements", inputs=("data", "indices"), attributes={"axis": "int"}, meaning=gather_elements,
        since=11, dtypes=ANY, result=first_dtype, read=read_gather, write=writer(11),
        family="selection",
    ),
    Operator(
        name="ScatterND", inputs=("data", "indices", "updates"), meaning=scatter_nd, since=16,
        dtypes=FLOATS | {DType.INT32, DType.INT64}, result=first_dtype, read=read_scatter_nd, write=write_scatter_nd,
        family="selection",
    ),
    Operator(
        name="Trilu", inputs=("X",), attributes={"upper": "int", "k": "int"}, meaning=trilu, since=14, dtypes=NUMERIC,
        read=read_trilu, write=write_trilu, family="selection",
    ),
    Operator(
        name="CumSum", inputs=("X",), attributes={"axis": "int", "exclusive": "int", "reverse": "int"}, meaning=cumsum,
        since=11, dtypes=FLOATS | {DType.INT32, DType.INT64}, read=read_cumsum, write=write_cumsum,
        family="selection",
    ),
)  # fmt: skip

OPERATORS = (*_SLICES, *_SELECTIONS)

"""Operators over sliding windows: convolutions of any rank, and pools.

Along one spatial axis, output position ``y`` and tap ``t`` read input position ``y·stride + t·dilation − before``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from superopt.ir.graph import Attribute
from superopt.ir.size_polynomial import Dim, SizePolynomial
from superopt.ir.terms import AttributeValue
from superopt.ir.types import TensorType
from superopt.ops.onnx_node_conversion import (
    arguments,
    flag,
    integer,
    integers,
    known_ints,
    only,
    onnx_value,
    present,
    reader,
    since_only,
    text,
    truth,
    writer,
)
from superopt.ops.operator_definition import (
    CanonicalNodeForm,
    OnnxNodeForm,
    OnnxNodeView,
    Operator,
    UnsupportedNodeForm,
)
from superopt.ops.operator_semantics import (
    ContradictoryShapes,
    IllTypedOperator,
    IndexCondition,
    ScalarExpression,
    SymbolicOperand,
    TensorComprehension,
    at_least,
    call,
    combine,
    equal_to,
    inverse,
    largest,
    require,
    same,
    tensor,
    total,
    where,
)

__all__ = ["SlidingWindows", "_CONVOLUTIONS", "_POOLS", "read_windows", "vector", "windows"]


@dataclass(frozen=True)
class SlidingWindows:
    """Windows over the spatial axes, with one entry per axis in each field."""

    sizes: tuple[Dim, ...]
    kernel: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    dilations: tuple[Dim, ...]
    before: tuple[Dim, ...]
    after: tuple[Dim, ...]

    @property
    def inside(self) -> bool:
        """Whether no window leaves the input."""
        return all(isinstance(p, int) and p <= 0 for p in (*self.before, *self.after))

    def outputs(self) -> tuple[Dim, ...]:
        """Number of windows along each axis: ``(size + before + after − dilation (kernel − 1) − 1) // stride + 1``."""
        found: list[Dim] = []
        for axis, size in enumerate(self.sizes):
            spanned = self.dilations[axis] * (self.kernel[axis] - 1) + 1
            room = size + self.before[axis] + self.after[axis] - spanned
            require(at_least(room, 0), f"a window that spans {spanned} does not fit into {size} and its padding")
            found.append(room // self.strides[axis] + 1)
        return tuple(found)

    def positions(self, at: Sequence[Dim], taps: Sequence[Dim]) -> tuple[Dim, ...]:
        """Input positions that the taps of a window look at."""
        return tuple(
            y * s + t * d - p for y, t, s, d, p in zip(at, taps, self.strides, self.dilations, self.before, strict=True)
        )

    def bounds(self, positions: Sequence[Dim]) -> tuple[IndexCondition, ...]:
        """Conditions that positions are inside the input; none for an axis that is not padded."""
        found: list[IndexCondition] = []
        for axis, position in enumerate(positions):
            padding = (self.before[axis], self.after[axis])
            if not all(isinstance(p, int) and p <= 0 for p in padding):
                found += [at_least(position, 0), at_least(self.sizes[axis] - 1, position)]
        return tuple(found)


def vector(value: AttributeValue, length: int, name: str) -> tuple[Dim, ...]:
    """A list attribute of sizes with a known length.

    Raises:
        IllTypedOperator: it is not a list of that many sizes.
    """
    if not isinstance(value, tuple) or len(value) != length:
        raise IllTypedOperator(f"{name} needs {length} entries, not {value}")
    if not all(isinstance(v, int | SizePolynomial) for v in value):
        raise IllTypedOperator(f"{name} {value} must be integers")
    return tuple(v for v in value if isinstance(v, int | SizePolynomial))


def windows(
    sizes: Sequence[Dim], kernel: Sequence[Dim], strides: AttributeValue, pads: AttributeValue,
    dilations: AttributeValue,
) -> SlidingWindows:  # fmt: skip
    """Windows from canonical attributes; strides, dilations and kernel must be at least 1."""
    rank = len(sizes)
    padding = vector(pads, 2 * rank, "pads")
    steps, gaps = vector(strides, rank, "strides"), vector(dilations, rank, "dilations")
    for value in (*steps, *gaps, *kernel):
        require(at_least(value, 1), "strides, dilations and kernel sizes must be at least 1")
    return SlidingWindows(tuple(sizes), tuple(kernel), steps, gaps, padding[:rank], padding[rank:])


def read_windows(view: OnnxNodeView, kernel: Sequence[Dim]) -> dict[str, AttributeValue]:
    """Strides, pads and dilations of a node; ``auto_pad`` and ``ceil_mode`` are resolved into pads.

    Raises:
        UnsupportedNodeForm: the padding depends on a size that is not known.
        ContradictoryShapes: there are not as many as the input has spatial axes.
    """
    sizes = view.type(0).shape or ()
    rank = len(sizes) - 2
    if rank < 1 or len(kernel) != rank:
        raise ContradictoryShapes(f"a kernel with {len(kernel)} axes on an input of rank {len(sizes)}")
    strides, dilations = integers(view, "strides", (1,) * rank), integers(view, "dilations", (1,) * rank)
    pads = integers(view, "pads", (0,) * (2 * rank))
    if len(strides) != rank or len(dilations) != rank or len(pads) != 2 * rank or min((*strides, *dilations)) < 1:
        raise ContradictoryShapes(
            f"strides {strides}, dilations {dilations} or pads {pads} are not positive or do not fit {rank} axes"
        )
    mode = text(view, "auto_pad", "NOTSET")
    if mode.startswith("SAME"):
        pairs = [
            same_padding(*axis, upper=mode == "SAME_UPPER")
            for axis in zip(sizes[2:], kernel, strides, dilations, strict=True)
        ]
        pads = (*(a for a, _ in pairs), *(b for _, b in pairs))
    elif mode == "VALID":
        pads = (0,) * (2 * rank)
    elif mode != "NOTSET":
        raise UnsupportedNodeForm(f"auto_pad {mode!r} is not known")
    if truth(view, "ceil_mode", 0):
        extra = [
            ceil_padding(*axis)
            for axis in zip(sizes[2:], kernel, strides, dilations, pads[:rank], pads[rank:], strict=True)
        ]
        if any(extra) and truth(view, "count_include_pad", 0):
            raise UnsupportedNodeForm("ceil_mode that adds a window, with count_include_pad")
        pads = (*pads[:rank], *(p + e for p, e in zip(pads[rank:], extra, strict=True)))
    return {"strides": strides, "pads": pads, "dilations": dilations}


def same_padding(size: Dim, kernel: Dim, stride: int, dilation: int, *, upper: bool) -> tuple[int, int]:
    """Padding with which there are ``ceil(size / stride)`` windows."""
    (taps,) = known_ints((kernel,), "the kernel of an auto-padded window")
    if stride == 1:
        needed = dilation * (taps - 1)
    else:
        (known,) = known_ints((size,), "a size with auto_pad")
        needed = max((-(-known // stride) - 1) * stride + dilation * (taps - 1) + 1 - known, 0)
    small = needed // 2
    return (small, needed - small) if upper else (needed - small, small)


def ceil_padding(size: Dim, kernel: Dim, stride: int, dilation: int, before: int, after: int) -> int:
    """Padding to add behind so that rounding down gives the windows that ``ceil_mode`` asks for.

    A window that would start in the padding behind is left out, as ONNX Runtime does.
    """
    if stride == 1:
        return 0
    known, taps = known_ints((size, kernel), "a size with ceil_mode")
    room = known + before + after - dilation * (taps - 1) - 1
    count = -(-room // stride) + 1
    if (count - 1) * stride >= known + before:
        count -= 1
    extra = max((count - 1) * stride - room, 0)
    if after + extra >= taps and extra:
        raise UnsupportedNodeForm("ceil_mode makes a window of padding alone")
    return extra


# -- Convolutions --------------------------------------------------------------------------------------------------
#
# Convolutions of any spatial rank, stride, padding, dilation and number of groups.


_CONV_WINDOW = {"strides": "ints", "pads": "ints", "dilations": "ints"}


def conv(
    x: SymbolicOperand, w: SymbolicOperand, b: SymbolicOperand | None = None, *,
    strides: AttributeValue, pads: AttributeValue, dilations: AttributeValue, group: AttributeValue,
) -> TensorComprehension:  # fmt: skip
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

    def value(n: Dim, channel: tuple[Dim, Dim], *at: Dim) -> ScalarExpression:
        out = combine(channel, (groups, within))

        def term(c: Dim, *taps: Dim) -> ScalarExpression:
            place = (n, channel[0] * inner + c, *view.positions(at, taps))
            return (x[place] if view.inside else x.padded(place)) * w[(out, c, *taps)]

        product = total((inner, *w.shape[2:]), term)
        return product if b is None else product + b[out]

    return tensor((batch, (groups, within), *view.outputs()), value)


def conv_transpose(
    x: SymbolicOperand,
    w: SymbolicOperand,
    b: SymbolicOperand | None = None,
    *,
    strides: AttributeValue,
    pads: AttributeValue,
    dilations: AttributeValue,
    group: AttributeValue,
    output_padding: AttributeValue,
) -> TensorComprehension:
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

    def value(n: Dim, channel: tuple[Dim, Dim], *at: Dim) -> ScalarExpression:
        def term(c: Dim, *taps: Dim) -> ScalarExpression:
            source = channel[0] * inner + c
            offsets = [o + p - t * d for o, p, t, d in zip(at, view.before, taps, view.dilations, strict=True)]
            hits = [equal_to(o % s, 0) for o, s in zip(offsets, view.strides, strict=True)]
            place = (n, source, *(o // s for o, s in zip(offsets, view.strides, strict=True)))
            return where(hits, x.padded(place) * w[(source, channel[1], *taps)], 0)

        product = total((inner, *w.shape[2:]), term)
        return product if b is None else product + b[combine(channel, (groups, within))]

    return tensor((batch, (groups, within), *outputs), value)


def grouped(x: SymbolicOperand, w: SymbolicOperand, group: AttributeValue) -> tuple[Dim, Dim, tuple[Dim, ...]]:
    """The number of groups, the batch size and the spatial sizes.

    Raises:
        ContradictoryShapes: ranks do not fit, or the group is not positive.
        IllTypedOperator: the group is no number.
    """
    if x.rank < 3 or x.rank != w.rank:
        raise ContradictoryShapes(f"{x.type} and {w.type} are not an image and its filters")
    if not isinstance(group, int | SizePolynomial):
        raise IllTypedOperator(f"group {group} is not a number")
    if isinstance(group, int) and group < 1:
        raise ContradictoryShapes(f"group {group} is not a positive integer")
    return group, x.shape[0], x.shape[2:]


def read_conv(view: OnnxNodeView) -> CanonicalNodeForm:
    only(view, "auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    return CanonicalNodeForm(arguments(view), {**read_windows(view, kernel(view)), "group": integer(view, "group", 1)})


def read_conv_transpose(view: OnnxNodeView) -> CanonicalNodeForm:
    only(view, "auto_pad", "dilations", "group", "kernel_shape", "pads", "strides", "output_padding")
    taps = kernel(view)
    attributes = read_windows(view, taps)
    if view.node.attributes.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        raise UnsupportedNodeForm("ConvTranspose with auto_pad SAME")
    attributes["group"] = integer(view, "group", 1)
    attributes["output_padding"] = integers(view, "output_padding", (0,) * len(taps))
    return CanonicalNodeForm(arguments(view), attributes)


def kernel(view: OnnxNodeView) -> tuple[Dim, ...]:
    """The filter's spatial sizes, which ``kernel_shape`` must repeat if it is there."""
    sizes = (view.type(1).shape or ())[2:]
    stated = integers(view, "kernel_shape", ()) if "kernel_shape" in view.node.attributes else ()
    if stated and stated != sizes:
        known = len(stated) != len(sizes) or all(isinstance(s, int) for s in sizes)
        raise (ContradictoryShapes if known else UnsupportedNodeForm)(
            f"kernel_shape {list(stated)} does not fit the weights {view.type(1)}"
        )
    return sizes


def write_conv(
    attributes: Mapping[str, AttributeValue], types: Sequence[TensorType | None], opset: int
) -> OnnxNodeForm:
    since_only(opset, 1)
    written = {name: onnx_value(value) for name, value in attributes.items()}
    weights = types[1].shape if types[1] is not None else None
    if weights and all(isinstance(k, int) for k in weights[2:]):
        written["kernel_shape"] = tuple(k for k in weights[2:] if isinstance(k, int))
    return OnnxNodeForm(present(types), written)


_CONVOLUTIONS = (
    Operator(
        name="Conv", inputs=("X", "W", "B?"), attributes={**_CONV_WINDOW, "group": "int"}, meaning=conv, since=1,
        read=read_conv, write=write_conv, family="conv",
    ),
    Operator(
        name="ConvTranspose", inputs=("X", "W", "B?"),
        attributes={**_CONV_WINDOW, "group": "int", "output_padding": "ints"},
        meaning=conv_transpose, since=1, read=read_conv_transpose, write=write_conv,
        family="conv",
    ),
)  # fmt: skip


# -- Pools ---------------------------------------------------------------------------------------------------------
#
# Pools: the largest or the mean element of sliding windows, or of all spatial positions.


_POOL_WINDOW = {"kernel_shape": "ints", "strides": "ints", "pads": "ints", "dilations": "ints"}


def pool_windows(
    x: SymbolicOperand,
    kernel_shape: AttributeValue,
    strides: AttributeValue,
    pads: AttributeValue,
    dilations: AttributeValue,
) -> SlidingWindows:
    """The windows, with every pad smaller than the kernel so that none is padding alone."""
    if x.rank < 3:
        raise IllTypedOperator(f"{x.type} has no spatial axes")
    kernel = vector(kernel_shape, x.rank - 2, "kernel_shape")
    view = windows(x.shape[2:], kernel, strides, pads, dilations)
    for axis, (taps, before, after) in enumerate(zip(kernel, view.before, view.after, strict=True)):
        room = view.sizes[axis] + before + after - view.dilations[axis] * (taps - 1) - 1
        if isinstance(room, int) and room < 0:  # ONNX Runtime's pools then have outputs without elements
            raise IllTypedOperator(f"a window of {taps} does not fit into a padded {view.sizes[axis]}")
        for pad in (before, after):
            if not (isinstance(pad, int) and pad == 0):
                require(at_least(taps - 1, pad), "a pad must be smaller than the kernel")
    return view


def max_pool(
    x: SymbolicOperand, *, kernel_shape: AttributeValue, strides: AttributeValue, pads: AttributeValue,
    dilations: AttributeValue,
) -> TensorComprehension:  # fmt: skip
    view = pool_windows(x, kernel_shape, strides, pads, dilations)

    def value(n: Dim, c: Dim, *at: Dim) -> ScalarExpression:
        def tap(*taps: Dim) -> ScalarExpression:
            place = (n, c, *view.positions(at, taps))
            return x[place] if view.inside else x.padded(place, float("-inf"))

        return largest(view.kernel, tap)

    return tensor((*x.shape[:2], *view.outputs()), value)


def average_pool(
    x: SymbolicOperand, *, kernel_shape: AttributeValue, strides: AttributeValue, pads: AttributeValue,
    dilations: AttributeValue, count_include_pad: AttributeValue,
) -> TensorComprehension:  # fmt: skip
    """The window's sum over its number of elements, or over those inside the input (``count_include_pad=0``)."""
    view = pool_windows(x, kernel_shape, strides, pads, dilations)
    count_all = view.inside or flag(count_include_pad, "count_include_pad")

    def value(n: Dim, c: Dim, *at: Dim) -> ScalarExpression:
        def tap(*taps: Dim) -> ScalarExpression:
            place = (n, c, *view.positions(at, taps))
            return x[place] if view.inside else x.padded(place)

        summed = total(view.kernel, tap)
        if count_all:
            return summed * inverse(prod(view.kernel, start=1))
        count = total(view.kernel, lambda *taps: where(view.bounds(view.positions(at, taps)), 1, 0))
        return summed * call("inv", count)

    return tensor((*x.shape[:2], *view.outputs()), value)


def spatial(
    reduce: Callable[[SymbolicOperand, Dim, Dim], ScalarExpression],
) -> Callable[[SymbolicOperand], TensorComprehension]:
    """The meaning that reduces all spatial axes to size 1."""

    def meaning(x: SymbolicOperand) -> TensorComprehension:
        if x.rank < 3:
            raise ContradictoryShapes(f"{x.type} has no spatial axes")
        return tensor((*x.shape[:2], *(1,) * (x.rank - 2)), lambda n, c, *_: reduce(x, n, c))

    return meaning


def mean_at(x: SymbolicOperand, n: Dim, c: Dim) -> ScalarExpression:
    return total(x.shape[2:], lambda *at: x[(n, c, *at)]) * inverse(prod(x.shape[2:], start=1))


def max_at(x: SymbolicOperand, n: Dim, c: Dim) -> ScalarExpression:
    return largest(x.shape[2:], lambda *at: x[(n, c, *at)])


def read_pool(view: OnnxNodeView) -> CanonicalNodeForm:
    only(
        view,
        "auto_pad",
        "ceil_mode",
        "count_include_pad",
        "dilations",
        "kernel_shape",
        "pads",
        "storage_order",
        "strides",
    )
    if any(view.node.outputs[1:]):
        raise UnsupportedNodeForm("the indices of MaxPool are used")
    kernel = integers(view, "kernel_shape")
    if min(kernel, default=0) < 1:
        raise ContradictoryShapes(f"kernel_shape {list(kernel)} has a size that is not positive, or none")
    attributes: dict[str, AttributeValue] = {"kernel_shape": kernel, **read_windows(view, kernel)}
    if view.node.op == "AveragePool":
        attributes["count_include_pad"] = truth(view, "count_include_pad", 0)
    return CanonicalNodeForm(arguments(view), attributes)


def write_pool(
    attributes: Mapping[str, AttributeValue], types: Sequence[TensorType | None], opset: int
) -> OnnxNodeForm:
    average = "count_include_pad" in attributes
    since_only(opset, 7 if average else 1)
    written: dict[str, Attribute] = {name: onnx_value(value) for name, value in attributes.items()}
    if written["dilations"] == (1,) * len(vector_of(written["dilations"])):
        del written["dilations"]
    else:
        since_only(opset, 19 if average else 10)
    return OnnxNodeForm(present(types), written)


def vector_of(value: Attribute) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else ()


_POOLS = (
    Operator(
        name="MaxPool", inputs=("X",), attributes=_POOL_WINDOW, meaning=max_pool,
        since=1, read=read_pool, write=write_pool,
        family="pooling",
    ),
    Operator(
        name="AveragePool", inputs=("X",), attributes={**_POOL_WINDOW, "count_include_pad": "int"},
        meaning=average_pool, since=7, read=read_pool, write=write_pool, family="pooling",
    ),
    Operator(
        name="GlobalAveragePool", inputs=("X",), meaning=spatial(mean_at), since=1, read=reader(), write=writer(1),
        family="pooling",
    ),
    Operator(
        name="GlobalMaxPool", inputs=("X",), meaning=spatial(max_at), since=1, read=reader(), write=writer(1),
        family="pooling",
    ),
)  # fmt: skip

OPERATORS = (*_CONVOLUTIONS, *_POOLS)

"""Reductions, Softmax and the normalisations.

A mean is a sum times the inverse of a size, so that rules can move scales and sums. A meaning is over the reals: an
evaluation in floats may subtract the maximum inside Softmax.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod

from superopt.ir.graph import Attribute
from superopt.ir.size_polynomial import Dim, SizePolynomial
from superopt.ir.terms import AttributeValue
from superopt.ir.types import DType, TensorType
from superopt.ops.elementwise import element
from superopt.ops.onnx_node_conversion import (
    arguments,
    flag,
    int64s,
    integer,
    integers,
    listed,
    normal_axes,
    normal_axis,
    only,
    onnx_value,
    present,
    reader,
    real,
    since_only,
    truth,
    writer,
)
from superopt.ops.operator_definition import (
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
    Operandlike,
    ScalarExpression,
    SymbolicOperand,
    TensorComprehension,
    broadcast_into,
    call,
    combine,
    inverse,
    largest,
    least,
    number,
    product,
    require,
    same,
    tensor,
    total,
)
from superopt.ops.reshape_and_transpose import axes_of

__all__ = ["_NORMALISATIONS", "_REDUCTIONS"]


# -- Reductions ----------------------------------------------------------------------------------------------------


Reduction = Callable[[tuple[Dim, ...], Callable[..., ScalarExpression]], ScalarExpression]
INTEGER_SUMS = FLOATS | {DType.INT32, DType.INT64}


def reducing(reduction: Reduction) -> Callable[..., TensorComprehension]:
    """The meaning that reduces the axes, which stay as size 1 (``keepdims``) or go. No axes: each element alone."""

    def meaning(x: SymbolicOperand, *, axes: AttributeValue, keepdims: AttributeValue) -> TensorComprehension:
        chosen = axes_of(axes, x.rank)
        kept = [a for a in range(x.rank) if a not in chosen]
        keep = flag(keepdims, "keepdims")

        def value(*index: Dim) -> ScalarExpression:
            at = dict(zip(range(x.rank) if keep else kept, index, strict=True))

            def element(*inner: Dim) -> ScalarExpression:
                place = {**at, **dict(zip(chosen, inner, strict=True))}
                return x[tuple(place[a] for a in range(x.rank))]

            return reduction(tuple(x.shape[a] for a in chosen), element)

        shape = [1 if a in chosen else x.shape[a] for a in range(x.rank)] if keep else [x.shape[a] for a in kept]
        return tensor(shape, value)

    return meaning


def mean(sizes: Sequence[Dim], body: Callable[..., Operandlike]) -> ScalarExpression:
    return total(sizes, body) * inverse(prod(sizes, start=1))


def square(at: Callable[..., ScalarExpression]) -> Callable[..., ScalarExpression]:
    return lambda *inner: at(*inner) * at(*inner)


def magnitude(at: Callable[..., ScalarExpression]) -> Callable[..., ScalarExpression]:
    return lambda *inner: call("abs", at(*inner))


def exponential(at: Callable[..., ScalarExpression]) -> Callable[..., ScalarExpression]:
    return lambda *inner: call("exp", at(*inner))


def moved(name: str) -> int:
    """The opset version at which the axes became an input."""
    return 13 if name == "ReduceSum" else 18


def read_reduce(view: OnnxNodeView) -> CanonicalNodeForm:
    late = view.opset >= moved(view.node.op)
    only(view, "keepdims", "noop_with_empty_axes" if late else "axes")
    rank = len(view.type(0).shape or ())
    axes = listed(view, "axes", 1, moved(view.node.op))
    if not axes:
        if late and truth(view, "noop_with_empty_axes", 0):
            if view.node.op not in SIMPLE:
                raise UnsupportedNodeForm(f"{view.node.op} with noop_with_empty_axes")
            axes = ()
        else:
            axes = tuple(range(rank))
    return CanonicalNodeForm((0,), {
        "axes": tuple(sorted(normal_axes(axes, rank))), "keepdims": truth(view, "keepdims", 1),
    })  # fmt: skip


def node_writer(name: str) -> Callable[[Mapping[str, AttributeValue], Sequence[TensorType | None], int], OnnxNodeForm]:
    def write(attributes: Mapping[str, AttributeValue], types: Sequence[TensorType | None], opset: int) -> OnnxNodeForm:
        since_only(opset, 1)
        axes = attributes["axes"]
        form: dict[str, Attribute] = {"keepdims": onnx_value(attributes["keepdims"])}
        if axes == () and types[0] is not None and types[0].rank != 0:
            if opset < moved(name) or name not in SIMPLE:
                raise UnsupportedNodeForm("a reduction over no axes cannot be written")
            return OnnxNodeForm((0,), {**form, "noop_with_empty_axes": 1})
        if axes == ():
            return OnnxNodeForm((0,), form)
        if opset >= moved(name):
            return OnnxNodeForm((0, int64s(axes)), form)
        return OnnxNodeForm((0,), {**form, "axes": onnx_value(axes)})

    return write


def operator(
    name: str, reduction: Reduction, dtypes: frozenset[DType] = FLOATS
) -> Operator:  # fmt: skip
    return Operator(
        name=name, inputs=("X",), attributes={"axes": "ints", "keepdims": "int"}, meaning=reducing(reduction), since=1,
        dtypes=dtypes, read=read_reduce, write=node_writer(name), family="reduce",
    )  # fmt: skip


SIMPLE = frozenset({"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"})
_REDUCTIONS = (
    operator("ReduceSum", total, INTEGER_SUMS),
    operator("ReduceMean", mean),
    operator("ReduceMax", largest, NUMERIC),
    operator("ReduceMin", least, NUMERIC),
    operator("ReduceProd", product, INTEGER_SUMS),
    operator("ReduceL1", lambda sizes, at: total(sizes, magnitude(at)), INTEGER_SUMS),
    operator("ReduceL2", lambda sizes, at: call("sqrt", total(sizes, square(at)))),
    operator("ReduceSumSquare", lambda sizes, at: total(sizes, square(at)), INTEGER_SUMS),
    operator("ReduceLogSum", lambda sizes, at: call("log", total(sizes, at))),
    operator("ReduceLogSumExp", lambda sizes, at: call("log", total(sizes, exponential(at)))),
)


# -- Normalisations ------------------------------------------------------------------------------------------------


Index = tuple[Dim, ...]


def amount(value: AttributeValue) -> Operandlike:
    """A real attribute as a number.

    Raises:
        IllTypedOperator: it is none.
    """
    if not isinstance(value, int | float | SizePolynomial):
        raise IllTypedOperator(f"{value!r} is not a number")
    return value


def position(axis: AttributeValue, rank: int) -> int:
    """A canonical axis attribute.

    Raises:
        IllTypedOperator: it is symbolic or outside the rank.
    """
    if not isinstance(axis, int) or not 0 <= axis < rank:
        raise IllTypedOperator(f"axis {axis} is not an axis of rank {rank}")
    return axis


def standardised(
    value: ScalarExpression, sizes: Sequence[Dim], at: Callable[..., ScalarExpression], epsilon: AttributeValue
) -> ScalarExpression:
    """``(value − μ) / √(σ² + ε)`` with mean and variance of ``at`` over ``sizes``."""
    centre = mean(sizes, at)

    def squared(*inner: Dim) -> ScalarExpression:
        deviation = at(*inner) - centre
        return deviation * deviation

    return (value - centre) * inverse_root(mean(sizes, squared), epsilon)


def standardised_once(
    value: ScalarExpression, sizes: Sequence[Dim], at: Callable[..., ScalarExpression], epsilon: AttributeValue
) -> ScalarExpression:  # fmt: skip
    """The same with ``σ² = E x² − μ²``, in one pass over the elements: it cancels where they are far from 0."""
    centre = mean(sizes, at)
    square = mean(sizes, lambda *inner: at(*inner) * at(*inner))
    return (value - centre) * inverse_root(square - centre * centre, epsilon)


def inverse_root(variance: ScalarExpression, epsilon: AttributeValue) -> ScalarExpression:
    return call("inv", call("sqrt", variance + amount(epsilon)))


def softmax(x: SymbolicOperand, *, axis: AttributeValue) -> TensorComprehension:
    at = position(axis, x.rank)

    def value(*index: Dim) -> ScalarExpression:
        return call("exp", x[index]) * call("inv", exponentials(x, index, at))

    return tensor(x.shape, value)


def exponentials(x: SymbolicOperand, index: Index, axis: int) -> ScalarExpression:
    return total(x.shape[axis], lambda t: call("exp", x[(*index[:axis], t, *index[axis + 1 :])]))


def log_softmax(x: SymbolicOperand, *, axis: AttributeValue) -> TensorComprehension:
    at = position(axis, x.rank)
    return tensor(x.shape, lambda *index: x[index] - call("log", exponentials(x, index, at)))


def read_softmax(view: OnnxNodeView) -> CanonicalNodeForm:
    """Below opset 13 all axes from ``axis`` on are one: the same thing only where those behind it have size 1."""
    only(view, "axis")
    shape = view.type(0).shape or ()
    axis = normal_axis(integer(view, "axis", 1 if view.opset < 13 else -1), len(shape))
    if view.opset < 13:
        wide = [a for a in range(axis, len(shape)) if shape[a] != 1]
        if len(wide) > 1:
            raise UnsupportedNodeForm("below opset 13 Softmax runs over several axes at once")
        axis = wide[0] if wide else axis
    return CanonicalNodeForm((0,), {"axis": axis})


def write_softmax(
    attributes: Mapping[str, AttributeValue], types: Sequence[TensorType | None], opset: int
) -> OnnxNodeForm:
    shape = types[0].shape if types[0] is not None else None
    axis = attributes["axis"]
    if opset < 13 and (shape is None or not isinstance(axis, int) or any(s != 1 for s in shape[axis + 1 :])):
        raise UnsupportedNodeForm("below opset 13 Softmax runs over all axes behind its own too")
    return writer(1)(attributes, types, opset)


def batch_normalization(
    x: SymbolicOperand,
    scale: SymbolicOperand,
    b: SymbolicOperand,
    mu: SymbolicOperand,
    var: SymbolicOperand,
    *,
    epsilon: AttributeValue,
) -> TensorComprehension:
    """Inference: ``(X − mean) · scale / √(var + ε) + B``, per channel (axis 1)."""
    if x.rank < 2:
        raise ContradictoryShapes(f"{x.type} has no channel axis")
    per_channel(x, scale, b, mu, var)

    def value(*index: Dim) -> ScalarExpression:
        c = index[1]
        return (x[index] - mu[c]) * (scale[c] * inverse_root(var[c], epsilon)) + b[c]

    return tensor(x.shape, value)


def per_channel(x: SymbolicOperand, *parameters: SymbolicOperand) -> None:
    """Demand one number a channel of ``x`` in each parameter."""
    for parameter in parameters:
        found = parameter.shape[0] if parameter.rank == 1 else -1
        require(
            same(found, x.shape[1]), f"a parameter {parameter.type} does not fit the {x.shape[1]} channels of {x.type}"
        )


def read_batch_normalization(view: OnnxNodeView) -> CanonicalNodeForm:
    only(view, "epsilon", "momentum", "spatial", "training_mode")
    if truth(view, "training_mode", 0) or any(view.node.outputs[1:]):
        raise UnsupportedNodeForm("BatchNormalization in training mode")
    if not truth(view, "spatial", 1):
        raise UnsupportedNodeForm("BatchNormalization with a mean per position")
    return CanonicalNodeForm(arguments(view), {"epsilon": real(view, "epsilon", 1e-5)})


def instance_normalization(
    x: SymbolicOperand, scale: SymbolicOperand, b: SymbolicOperand, *, epsilon: AttributeValue
) -> TensorComprehension:
    """Each channel of each image to mean 0 and variance 1, then scaled and shifted per channel."""
    if x.rank < 3:
        raise ContradictoryShapes(f"{x.type} has no spatial axes")
    per_channel(x, scale, b)

    def value(n: Dim, c: Dim, *at: Dim) -> ScalarExpression:
        unit = standardised(x[(n, c, *at)], x.shape[2:], lambda *inner: x[(n, c, *inner)], epsilon)
        return unit * scale[c] + b[c]

    return tensor(x.shape, value)


def layer_normalization(
    x: SymbolicOperand,
    scale: SymbolicOperand,
    b: SymbolicOperand | None = None,
    *,
    axis: AttributeValue,
    epsilon: AttributeValue,
    standard: Callable[..., ScalarExpression] = standardised,
) -> TensorComprehension:
    """The axes from ``axis`` on to mean 0 and variance 1, then scaled and shifted."""
    at = position(axis, x.rank)
    fits(x, scale, b)

    def value(*index: Dim) -> ScalarExpression:
        unit = standard(x[index], x.shape[at:], lambda *inner: x[(*index[:at], *inner)], epsilon)
        scaled = unit * element(scale, index)
        return scaled if b is None else scaled + element(b, index)

    return tensor(x.shape, value)


def rms_normalization(
    x: SymbolicOperand, scale: SymbolicOperand, *, axis: AttributeValue, epsilon: AttributeValue
) -> TensorComprehension:
    """``X / √(mean X² + ε) · scale`` over the axes from ``axis`` on (Zhang and Sennrich, arXiv:1910.07467)."""
    at = position(axis, x.rank)
    fits(x, scale)

    def value(*index: Dim) -> ScalarExpression:
        square = mean(x.shape[at:], lambda *inner: x[(*index[:at], *inner)] * x[(*index[:at], *inner)])
        return x[index] * inverse_root(square, epsilon) * element(scale, index)

    return tensor(x.shape, value)


def fits(x: SymbolicOperand, *parameters: SymbolicOperand | None) -> None:
    """Demand that scale and shift broadcast to ``x`` and do not widen it."""
    for parameter in parameters:
        if parameter is not None:
            broadcast_into(parameter.shape, x.shape, f"{parameter.type} does not broadcast to {x.type}")


def group_normalization(
    x: SymbolicOperand,
    scale: SymbolicOperand,
    b: SymbolicOperand,
    *,
    num_groups: AttributeValue,
    epsilon: AttributeValue,
) -> TensorComprehension:
    """Each group of channels of each image to mean 0 and variance 1, then scaled and shifted per channel."""
    if (
        x.rank < 2
        or not isinstance(num_groups, int | SizePolynomial)
        or (isinstance(num_groups, int) and num_groups < 1)
    ):
        raise IllTypedOperator(f"{x.type} does not split into {num_groups} groups")
    within = x.shape[1] // num_groups
    require(same(x.shape[1], num_groups * within), f"{x.shape[1]} channels do not split into {num_groups} groups")
    for parameter in (scale, b):
        if parameter.rank != 1 or parameter.shape[0] == 1 != x.shape[1]:
            # ONNX Runtime's expansion of the operator lets it.
            raise IllTypedOperator(f"{parameter.type} would have to broadcast")
    per_channel(x, scale, b)

    def value(n: Dim, channel: tuple[Dim, Dim], *at: Dim) -> ScalarExpression:
        def member(c: Dim, *inner: Dim) -> ScalarExpression:
            return x[(n, channel[0] * within + c, *inner)]

        out = combine(channel, (num_groups, within))
        return standardised(x[(n, out, *at)], (within, *x.shape[2:]), member, epsilon) * scale[out] + b[out]

    return tensor((x.shape[0], (num_groups, within), *x.shape[2:]), value)


def read_axis_normalization(view: OnnxNodeView) -> CanonicalNodeForm:
    only(view, "axis", "epsilon", "stash_type")
    if any(view.node.outputs[1:]):
        raise UnsupportedNodeForm("the mean or deviation that the normalisation also gives is used")
    axis = normal_axis(integer(view, "axis", -1), len(view.type(0).shape or ()))
    return CanonicalNodeForm(arguments(view), {"axis": axis, "epsilon": real(view, "epsilon", 1e-5)})


def mean_variance_normalization(x: SymbolicOperand, *, axes: AttributeValue) -> TensorComprehension:
    """``(X − μ) / (σ + 1e-9)`` over the axes, with ONNX's constant."""
    chosen = tuple(position(a, x.rank) for a in axes) if isinstance(axes, tuple) else ()

    def value(*index: Dim) -> ScalarExpression:
        def at(*inner: Dim) -> ScalarExpression:
            place = dict(zip(chosen, inner, strict=True))
            return x[tuple(place.get(a, i) for a, i in enumerate(index))]

        sizes = [x.shape[a] for a in chosen]
        centre = mean(sizes, at)
        square = mean(sizes, lambda *inner: at(*inner) * at(*inner))
        return (x[index] - centre) * call("inv", call("sqrt", square - centre * centre) + 1e-9)

    return tensor(x.shape, value)


def read_mean_variance(view: OnnxNodeView) -> CanonicalNodeForm:
    only(view, "axes")
    rank, given = len(view.type(0).shape or ()), integers(view, "axes", (0, 2, 3))
    if any(not -rank <= a < rank for a in given):
        raise UnsupportedNodeForm(f"axes {given} are not all axes of rank {rank}, which ONNX Runtime lets pass")
    axes = normal_axes(given, rank)
    return CanonicalNodeForm((0,), {"axes": tuple(sorted(axes))})


def lrn(
    x: SymbolicOperand, *, alpha: AttributeValue, beta: AttributeValue, bias: AttributeValue, size: AttributeValue
) -> TensorComprehension:
    """Divide by ``(bias + alpha/size · Σ x²)^beta`` over ``size`` neighbouring channels."""
    if x.rank < 2 or not isinstance(size, int) or size < 1:
        raise IllTypedOperator(f"LRN of {size} channels of {x.type}")
    before = (size - 1) // 2

    def value(n: Dim, c: Dim, *at: Dim) -> ScalarExpression:
        near = total(size, lambda t: x.padded((n, c + t - before, *at)) * x.padded((n, c + t - before, *at)))
        base = amount(bias) + number(amount(alpha)) * inverse(size) * near
        return x[(n, c, *at)] * call("inv", call("pow", base, amount(beta)))

    return tensor(x.shape, value)


def write_axes(
    attributes: Mapping[str, AttributeValue], types: Sequence[TensorType | None], opset: int
) -> OnnxNodeForm:
    since_only(opset, 9)
    if not attributes["axes"]:
        raise UnsupportedNodeForm("MeanVarianceNormalization over no axes")
    return OnnxNodeForm(present(types), {"axes": onnx_value(attributes["axes"])})


def norm(
    name: str, since: int, inputs: tuple[str, ...], meaning: Callable[..., TensorComprehension],
    attributes: Mapping[str, str], read: Callable[[OnnxNodeView], CanonicalNodeForm],
    kernel: Callable[..., TensorComprehension] | None = None,
) -> Operator:  # fmt: skip
    return Operator(
        name=name, inputs=inputs, attributes=attributes, meaning=meaning, kernel=kernel, since=since, read=read,
        write=write_softmax if name.endswith("Softmax") else writer(since),
        family="normalisation",
    )  # fmt: skip


EPSILON = {"epsilon": "float"}
AXIS_EPSILON = {"axis": "int", "epsilon": "float"}
_NORMALISATIONS = (
    norm("Softmax", 1, ("X",), softmax, {"axis": "int"}, read_softmax),
    norm("LogSoftmax", 1, ("X",), log_softmax, {"axis": "int"}, read_softmax),
    norm(
        "BatchNormalization", 7, ("X", "scale", "B", "mean", "var"), batch_normalization, EPSILON,
        read_batch_normalization,
    ),
    norm("InstanceNormalization", 6, ("X", "scale", "B"), instance_normalization, EPSILON, reader(epsilon=1e-5)),
    norm(
        "LayerNormalization", 17, ("X", "scale", "B?"), layer_normalization, AXIS_EPSILON, read_axis_normalization,
        kernel=partial(layer_normalization, standard=standardised_once),
    ),
    norm("RMSNormalization", 23, ("X", "scale"), rms_normalization, AXIS_EPSILON, read_axis_normalization),
    norm(
        "GroupNormalization", 21, ("X", "scale", "B"), group_normalization, {"num_groups": "int", **EPSILON},
        reader(num_groups=int, epsilon=1e-5, ignored=("stash_type",)),
    ),
    norm(
        "LRN", 1, ("X",), lrn, {"alpha": "float", "beta": "float", "bias": "float", "size": "int"},
        reader(alpha=1e-4, beta=0.75, bias=1.0, size=int),
    ),
    Operator(
        name="MeanVarianceNormalization", inputs=("X",), attributes={"axes": "ints"},
        meaning=mean_variance_normalization, since=9, read=read_mean_variance, write=write_axes,
        family="normalisation",
    ),
)  # fmt: skip

OPERATORS = (*_REDUCTIONS, *_NORMALISATIONS)

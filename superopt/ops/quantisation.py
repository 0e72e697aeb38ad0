"""QuantizeLinear and DequantizeLinear: reals to integers of few bits, and back; one scale for all, or one an axis.
DynamicQuantizeLinear finds the scale itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from superopt.ir.graph import Attribute
from superopt.ir.size_polynomial import Dim
from superopt.ir.terms import AttributeValue
from superopt.ir.types import DType, TensorType
from superopt.ops.onnx_node_conversion import (
    arguments,
    dtype_code,
    dtype_from_code,
    integer,
    normal_axis,
    only,
    present,
    reader,
    since_only,
    typed,
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
    ElementTypeMismatch,
    IllTypedOperator,
    ScalarExpression,
    SymbolicOperand,
    TensorComprehension,
    call,
    largest,
    least,
    number,
    require,
    same,
    tensor,
)

__all__ = ["OPERATORS", "Parameter", "is_of_all", "parameter", "saturated"]

Attributes = Mapping[str, AttributeValue]
Types = Sequence[TensorType | None]

_REALS = frozenset({DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16})
_STORED = frozenset({DType.INT8, DType.UINT8, DType.INT16, DType.UINT16})
_DEQUANTISED = _STORED | {DType.INT32}  # the sums of products of stored numbers, as a bias
_SPAN = 255  # from the least to the largest integer of eight bits
_PER_AXIS = 13  # the opset that has an axis, …
_OUTPUT_TYPE = 21  # … blocks and the type of the result …
_ANY_OUTPUT = 23  # … and a result whose type is not that of the scale


Parameter = Callable[[tuple[Dim, ...]], ScalarExpression]


def _parameters(
    x: SymbolicOperand, scale: SymbolicOperand, zero_point: SymbolicOperand | None, axis: AttributeValue
) -> tuple[Parameter, Parameter]:
    """Scale and zero point as functions of the index of an element."""
    step = parameter(x, scale, axis)
    if zero_point is None:
        return step, lambda index: number(0)
    return step, parameter(x, zero_point, axis)


def parameter(data: SymbolicOperand, given: SymbolicOperand, axis: AttributeValue) -> Parameter:
    """A scale or zero point as a function of the index of an element of the data: one for all, or one for each position
    of an axis."""
    if is_of_all(given.type):
        return lambda index: given[(0,) * given.rank]
    if given.rank != 1:
        raise ContradictoryShapes(f"{given.type} is neither one number nor one for each position of an axis")
    if not isinstance(axis, int) or not 0 <= axis < data.rank:
        raise IllTypedOperator(f"axis {axis} is not one of {data.type}")
    require(
        same(given.shape[0], data.shape[axis]), f"{given.type} is not one number for each of axis {axis} of {data.type}"
    )
    return lambda index: given[index[axis]]


def is_of_all(kind: TensorType) -> bool:
    """Whether there is one element, of a tensor without axes or with one."""
    return kind.shape in ((), (1,))


def quantize(
    x: SymbolicOperand,
    scale: SymbolicOperand,
    zero_point: SymbolicOperand | None,
    *,
    axis: AttributeValue,
    to: AttributeValue,
) -> TensorComprehension:
    """The quotient, rounded half to even, and the zero point; what the type cannot hold becomes its limit."""
    target = typed(to)
    if target not in _STORED:
        raise IllTypedOperator(f"quantisation to {target} is not covered")
    step, zero = _parameters(x, scale, zero_point, axis)
    return tensor(x.shape, lambda *i: saturated(call("round", x[i] / step(i)) + zero(i), target))


def saturated(value: ScalarExpression, target: DType) -> ScalarExpression:
    """The value, or the limit of the type that cannot hold it."""
    limits = np.iinfo(target.numpy)
    return call("max", call("min", value, int(limits.max)), int(limits.min))


def dynamic_quantize(x: SymbolicOperand) -> tuple[TensorComprehension, ...]:
    """Integers of eight bits, the scale that spans from the least to the largest element and 0, and the zero point.

    Without a distance between those the scale is 1, as in ONNX Runtime.
    """
    high = call("max", largest(x.shape, lambda *i: x[i]), 0)
    low = call("min", least(x.shape, lambda *i: x[i]), 0)
    step = call("select", call("equal", high, low), 1, (high - low) / _SPAN)
    zero = saturated(call("round", -low / step), DType.UINT8)

    def element(*index: Dim) -> ScalarExpression:
        return saturated(call("round", x[index] / step) + zero, DType.UINT8)

    return tensor(x.shape, element), tensor((), lambda: step), tensor((), lambda: zero)


def dequantize(
    x: SymbolicOperand, scale: SymbolicOperand, zero_point: SymbolicOperand | None, *, axis: AttributeValue
) -> TensorComprehension:
    """The distance from the zero point, times the scale."""
    step, zero = _parameters(x, scale, zero_point, axis)
    return tensor(x.shape, lambda *index: (x[index] - zero(index)) * step(index))


def _quantized(types: Types, attributes: Attributes) -> DType:
    x, scale, zero_point = (*types, None)[:3]
    target = typed(attributes["to"])
    if x is not None and scale is not None and scale.dtype != x.dtype:
        raise ElementTypeMismatch(f"a scale {scale.dtype} of data {x.dtype} is not covered")
    if zero_point is not None and zero_point.dtype != target:
        raise ElementTypeMismatch(f"a zero point {zero_point.dtype} of a result {target}")
    return target


def _dequantized(types: Types, attributes: Attributes) -> DType:
    x, scale, zero_point = (*types, None)[:3]
    if scale is None or scale.dtype not in _REALS:
        raise IllTypedOperator("the scale is no real number")
    if x is not None and zero_point is not None and zero_point.dtype != x.dtype:
        raise ElementTypeMismatch(f"a zero point {zero_point.dtype} of data {x.dtype}")
    return scale.dtype


def _axis(view: OnnxNodeView) -> int:
    """The axis that scales belong to; 0 where there is one for all."""
    only(view, "axis", "block_size", "output_dtype", "precision", "saturate")
    if integer(view, "block_size", 0) or integer(view, "precision", 0):
        raise UnsupportedNodeForm("scales of blocks, and quotients of another precision, are not covered")
    if is_of_all(view.type(1)):
        return 0
    if view.opset < _PER_AXIS:
        raise UnsupportedNodeForm(f"scales of an axis came with opset {_PER_AXIS}")
    return normal_axis(integer(view, "axis", 1), view.type(0).rank or 0)


def _read_quantize(view: OnnxNodeView) -> CanonicalNodeForm:
    stated = integer(view, "output_dtype", 0)
    to = view.type(2).dtype if view.has(2) else dtype_from_code(stated) if stated else DType.UINT8
    return CanonicalNodeForm(arguments(view), {"axis": _axis(view), "to": to.value})


def _read_dequantize(view: OnnxNodeView) -> CanonicalNodeForm:
    stated = integer(view, "output_dtype", 0)
    if stated and dtype_from_code(stated) != view.type(1).dtype:
        raise UnsupportedNodeForm("a result whose element type is not that of the scale is not covered")
    return CanonicalNodeForm(arguments(view), {"axis": _axis(view)})


def _writer(quantizes: bool) -> Callable[[Attributes, Types, int], OnnxNodeForm]:
    def write(attributes: Attributes, types: Types, opset: int) -> OnnxNodeForm:
        since_only(opset, 10)
        stated: dict[str, Attribute] = {}
        scale = types[1]
        if scale is not None and not is_of_all(scale):
            since_only(opset, _PER_AXIS)
            stated["axis"] = int(str(attributes["axis"]))
        moved = types[0] if quantizes else scale
        if moved is not None and moved.dtype != DType.FLOAT32:
            since_only(opset, _ANY_OUTPUT if moved.dtype == DType.BFLOAT16 else 19)
        stored = typed(attributes["to"]) if quantizes else None if types[0] is None else types[0].dtype
        if stored in (DType.INT16, DType.UINT16):
            since_only(opset, _OUTPUT_TYPE)
        if quantizes and len(types) < 3 and stored != DType.UINT8:
            since_only(opset, _OUTPUT_TYPE)
            stated["output_dtype"] = dtype_code(attributes["to"])
        return OnnxNodeForm(present(types), stated)

    return write


OPERATORS = (
    Operator(
        name="QuantizeLinear", inputs=("x", "y_scale", "y_zero_point?"), attributes={"axis": "int", "to": "dtype"},
        meaning=quantize, since=10, dtypes=_REALS, result=_quantized, read=_read_quantize, write=_writer(True),
        family="quantisation",
    ),
    Operator(
        name="DequantizeLinear", inputs=("x", "x_scale", "x_zero_point?"), attributes={"axis": "int"},
        meaning=dequantize, since=10, dtypes=_DEQUANTISED, result=_dequantized, read=_read_dequantize,
        write=_writer(False), family="quantisation",
    ),
    Operator(
        name="DynamicQuantizeLinear", inputs=("x",), outputs=("y", "y_scale", "y_zero_point"),
        meaning=dynamic_quantize, since=11, dtypes=frozenset({DType.FLOAT32}),
        result=lambda types, attributes: DType.UINT8, later=(DType.FLOAT32, DType.UINT8), read=reader(),
        write=writer(11), family="quantisation",
    ),
)  # fmt: skip

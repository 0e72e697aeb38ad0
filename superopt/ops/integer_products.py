"""Products and convolutions of integers of eight bits: MatMulInteger, ConvInteger, QLinearMatMul, QLinearConv.

Elements count from zero points; sums of products are integers of 32 bits. ``QLinear…`` takes them to eight bits again:
times the operands' scales by the result's, rounded half to even, and what eight bits cannot hold becomes the limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from superopt.ir.size_polynomial import Dim, sym
from superopt.ir.terms import AttributeValue
from superopt.ir.types import DType, TensorType
from superopt.ops.convolution_and_pooling import conv, read_conv, write_conv
from superopt.ops.matmul_and_attention import matmul
from superopt.ops.onnx_node_conversion import arguments, present, reader, since_only, writer
from superopt.ops.operator_definition import CanonicalNodeForm, OnnxNodeForm, OnnxNodeView, Operator
from superopt.ops.operator_semantics import (
    Axis,
    ContradictoryShapes,
    ElementTypeMismatch,
    IllTypedOperator,
    Index,
    Operandlike,
    ScalarExpression,
    SymbolicOperand,
    TensorComprehension,
    at_least,
    call,
    combine,
    require,
    same,
    where,
)
from superopt.ops.quantisation import Parameter, is_of_all, parameter, saturated

__all__ = ["OPERATORS"]

Attributes = Mapping[str, AttributeValue]
Types = Sequence[TensorType | None]

_STORED = frozenset({DType.INT8, DType.UINT8})
_CONVOLVED = {"strides": "ints", "pads": "ints", "dilations": "ints", "group": "int"}


@dataclass(frozen=True)
class _Shifted(SymbolicOperand):
    """An operand whose elements count from a zero point."""

    zero: Parameter

    def padded(self, index: Index | tuple[Index, ...], outside: Operandlike | None = 0) -> ScalarExpression:
        """The distance from the zero point, or ``outside`` beyond the bounds of an image."""
        # products and convolutions read at no position that depends on data; a scalar would fail as a missing index
        place = tuple(
            i for i in (index if isinstance(index, tuple) else (index,)) if not isinstance(i, ScalarExpression)
        )
        value = super().padded(place, None) - self.zero(place)
        if outside is None:
            return value
        spatial = zip(place[2:], self.shape[2:], strict=True)
        return where([c for i, size in spatial for c in (at_least(i, 0), at_least(size - 1, i))], value, outside)


def _of_all(x: SymbolicOperand, zero_point: SymbolicOperand | None) -> SymbolicOperand:
    """With a zero point for all elements: ONNX Runtime has no kernel for another."""
    if zero_point is not None and not is_of_all(zero_point.type):
        raise IllTypedOperator(f"a zero point {zero_point.type} of {x.type} is not one number")
    return _shifted(x, zero_point, 0)


def _shifted(x: SymbolicOperand, zero_point: SymbolicOperand | None, axis: int) -> SymbolicOperand:
    return x if zero_point is None else _Shifted(x.position, x.type, parameter(x, zero_point, axis))


def _of_columns(b: SymbolicOperand, given: SymbolicOperand) -> None:
    """Refuse numbers for the columns of what is no matrix, as ONNX Runtime does.

    Raises:
        ContradictoryShapes: ``b`` is none, or the numbers are not those of columns.
        IllTypedOperator: they are those of each of several matrices, which is not covered.
    """
    if given.rank > 1:
        require(same(given.shape[-2], 1), f"{given.type} for the columns of {b.type}")
        raise IllTypedOperator(f"numbers {given.type} for the columns of each of {b.type} are not covered")
    if not is_of_all(given.type) and b.rank != 2:
        raise ContradictoryShapes(f"{given.type} for the columns of {b.type}")


def matmul_integer(
    a: SymbolicOperand,
    b: SymbolicOperand,
    a_zero_point: SymbolicOperand | None = None,
    b_zero_point: SymbolicOperand | None = None,
) -> TensorComprehension:
    """The product of the distances from the zero points; a matrix ``b`` may have one for each column."""
    if b_zero_point is not None:
        _of_columns(b, b_zero_point)
    return matmul(_of_all(a, a_zero_point), _shifted(b, b_zero_point, b.rank - 1))


def conv_integer(
    x: SymbolicOperand,
    w: SymbolicOperand,
    x_zero_point: SymbolicOperand | None = None,
    w_zero_point: SymbolicOperand | None = None,
    *,
    strides: AttributeValue,
    pads: AttributeValue,
    dilations: AttributeValue,
    group: AttributeValue,
) -> TensorComprehension:
    """The convolution of the distances from the zero points; what is padded has none."""
    shifted = _of_all(x, x_zero_point), _of_all(w, w_zero_point)
    return conv(*shifted, strides=strides, pads=pads, dilations=dilations, group=group)


def qlinear_matmul(
    a: SymbolicOperand,
    a_scale: SymbolicOperand,
    a_zero_point: SymbolicOperand,
    b: SymbolicOperand,
    b_scale: SymbolicOperand,
    b_zero_point: SymbolicOperand,
    y_scale: SymbolicOperand,
    y_zero_point: SymbolicOperand,
) -> TensorComprehension:
    """The product of the reals that both stand for, quantised; a matrix ``b`` may have a scale for each column."""
    _of_columns(b, b_scale)
    product = matmul_integer(a, b, a_zero_point, b_zero_point)
    column = (*(0,) * (b.rank - 1), _position(product.axes[-1]) if b.rank > 1 else 0)
    return _quantised(
        product, product.body, _number(a_scale) * parameter(b, b_scale, b.rank - 1)(column), y_scale, y_zero_point
    )


def qlinear_conv(
    x: SymbolicOperand,
    x_scale: SymbolicOperand,
    x_zero_point: SymbolicOperand,
    w: SymbolicOperand,
    w_scale: SymbolicOperand,
    w_zero_point: SymbolicOperand,
    y_scale: SymbolicOperand,
    y_zero_point: SymbolicOperand,
    b: SymbolicOperand | None = None,
    **attributes: AttributeValue,
) -> TensorComprehension:
    """The convolution of the reals that both stand for, quantised; each output channel may have a scale.

    The bias is in units of the product of the operands' scales.
    """
    product = conv(_of_all(x, x_zero_point), _shifted(w, w_zero_point, 0), b, **attributes)
    channel = (_position(product.axes[1]), *(0,) * (w.rank - 1))
    scale = _number(x_scale) * parameter(w, w_scale, 0)(channel)
    return _quantised(product, product.body, scale, y_scale, y_zero_point)


def _quantised(
    product: TensorComprehension,
    body: ScalarExpression,
    scale: ScalarExpression,
    y_scale: SymbolicOperand,
    y_zero_point: SymbolicOperand,
) -> TensorComprehension:
    shifted = call("round", body * (scale / _number(y_scale))) + _number(y_zero_point)
    return TensorComprehension(product.axes, saturated(shifted, y_zero_point.type.dtype))


def _number(given: SymbolicOperand) -> ScalarExpression:
    """The only element."""
    if not is_of_all(given.type):
        raise IllTypedOperator(f"{given.type} is not one number")
    return given[(0,) * given.rank]


def _position(axis: Axis) -> Dim:
    """Where an element is along an axis."""
    return combine([sym(v) for v, _ in axis], [extent for _, extent in axis])


# -- Types, and what kernels take ----------------------------------------------------------------------------------


def _summed(types: Types, attributes: Attributes) -> DType:
    a, b, a_zero_point, b_zero_point = (*types, None, None)[:4]
    _stored(a, a_zero_point)
    _stored(b, b_zero_point)
    return DType.INT32


def _requantised(types: Types, attributes: Attributes) -> DType:
    a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point, bias = (*types, None)[:9]
    _stored(a, a_zero_point)
    _stored(b, b_zero_point)
    _stored(y_zero_point, y_zero_point)
    if any(s is not None and s.dtype != DType.FLOAT32 for s in (a_scale, b_scale, y_scale)):
        raise ElementTypeMismatch("a scale that is not float32 is not covered")
    if bias is not None and bias.dtype != DType.INT32:
        raise ElementTypeMismatch(f"a bias {bias.dtype}, which is not int32")
    assert y_zero_point is not None
    return y_zero_point.dtype


def _stored(data: TensorType | None, zero_point: TensorType | None) -> None:
    if data is not None and data.dtype not in _STORED:
        raise ElementTypeMismatch(f"{data.dtype} is not an integer of eight bits")
    if data is not None and zero_point is not None and zero_point.dtype != data.dtype:
        raise ElementTypeMismatch(f"a zero point {zero_point.dtype} of data {data.dtype}")


def _read_qlinear_conv(view: OnnxNodeView) -> CanonicalNodeForm:
    filters = replace(view, types=(view.type(0), view.type(3)))
    return CanonicalNodeForm(arguments(view), read_conv(filters).attributes)


def _write_conv(attributes: Attributes, types: Types, opset: int) -> OnnxNodeForm:
    """The filters are the fourth argument of QLinearConv, the second of ConvInteger."""
    since_only(opset, 10)
    filters = types[3 if len(types) > 4 else 1]
    return replace(write_conv(attributes, [types[0], filters], opset), inputs=present(types))


OPERATORS = (
    Operator(
        name="MatMulInteger", inputs=("A", "B", "a_zero_point?", "b_zero_point?"), meaning=matmul_integer, since=10,
        dtypes=_STORED, result=_summed, read=reader(), write=writer(10), family="quantised product",
    ),
    Operator(
        name="ConvInteger", inputs=("x", "w", "x_zero_point?", "w_zero_point?"), attributes=_CONVOLVED,
        meaning=conv_integer, since=10, dtypes=_STORED, result=_summed, read=read_conv, write=_write_conv,
        family="quantised product",
    ),
    Operator(
        name="QLinearMatMul",
        inputs=("a", "a_scale", "a_zero_point", "b", "b_scale", "b_zero_point", "y_scale", "y_zero_point"),
        meaning=qlinear_matmul, since=10, dtypes=_STORED, result=_requantised, read=reader(), write=writer(10),
        family="quantised product",
    ),
    Operator(
        name="QLinearConv",
        inputs=("x", "x_scale", "x_zero_point", "w", "w_scale", "w_zero_point", "y_scale", "y_zero_point", "B?"),
        attributes=_CONVOLVED, meaning=qlinear_conv, since=10, dtypes=_STORED, result=_requantised,
        read=_read_qlinear_conv, write=_write_conv, family="quantised product",
    ),
)  # fmt: skip

"""Operators that write integers as vectors: OneHot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from superopt.ir.size_polynomial import Dim
from superopt.ir.terms import AttributeValue
from superopt.ir.types import TensorType
from superopt.ops.concat_slice_gather import wrapped
from superopt.ops.onnx_node_conversion import integer, listed, normal_axis, only, since_only, typed
from superopt.ops.operator_definition import (
    INTEGERS,
    CanonicalNodeForm,
    OnnxNodeForm,
    OnnxNodeView,
    Operator,
    UnsupportedNodeForm,
)
from superopt.ops.operator_semantics import (
    ContradictoryShapes,
    IllTypedOperator,
    ScalarExpression,
    SymbolicOperand,
    TensorComprehension,
    call,
    number,
    tensor,
)

__all__ = ["OPERATORS"]


def one_hot(
    indices: SymbolicOperand, *, axis: AttributeValue, depth: AttributeValue, off: AttributeValue, on: AttributeValue,
    dtype: AttributeValue,
) -> TensorComprehension:  # fmt: skip
    """A new axis of ``depth`` positions: ``on`` at the index, counted from the end where it is negative, and ``off``
    elsewhere. An index outside is nowhere."""
    if not isinstance(axis, int) or not isinstance(depth, int) or depth < 1:
        raise IllTypedOperator(f"OneHot of depth {depth}")
    if not isinstance(off, int | float) or not isinstance(on, int | float):
        raise IllTypedOperator(f"OneHot of {off} and {on}")

    def value(*index: Dim) -> ScalarExpression:
        chosen = wrapped(indices[(*index[:axis], *index[axis + 1 :])], depth)
        assert isinstance(chosen, ScalarExpression)
        return call("select", call("equal", chosen, number(index[axis])), on, off)

    return tensor((*indices.shape[:axis], depth, *indices.shape[axis:]), value)


def read_one_hot(view: OnnxNodeView) -> CanonicalNodeForm:
    """The depth and the two values have to be known."""
    only(view, "axis")
    depth, values = listed(view, "depth", 1, 9), view.constant(2)
    if depth is None or len(depth) != 1 or not isinstance(depth[0], int) or depth[0] < 1:
        raise UnsupportedNodeForm("the depth of OneHot is computed at run time")
    if values is None or values.dtype.kind not in "iuf":
        raise UnsupportedNodeForm("the values of OneHot are computed at run time, or no numbers")
    if values.shape != (2,):
        raise ContradictoryShapes(f"the values of OneHot are two, not {values.size}")
    off, on = values.tolist()
    rank = view.type(0).rank
    assert rank is not None
    axis = normal_axis(integer(view, "axis", -1), rank + 1)
    return CanonicalNodeForm(
        (0,), {"axis": axis, "depth": depth[0], "off": off, "on": on, "dtype": view.type(2).dtype.value}
    )


def write_one_hot(
    attributes: Mapping[str, AttributeValue], types: Sequence[TensorType | None], opset: int
) -> OnnxNodeForm:
    since_only(opset, 9)
    axis, dtype = attributes["axis"], typed(attributes["dtype"])
    assert isinstance(axis, int)
    values = np.array([attributes["off"], attributes["on"]], dtype=dtype.numpy)
    return OnnxNodeForm((0, np.array([attributes["depth"]], dtype=np.int64), values), {"axis": axis})


OPERATORS = (
    Operator(
        name="OneHot", inputs=("indices",), meaning=one_hot, since=9, dtypes=INTEGERS,
        attributes={"axis": "int", "depth": "int", "off": "float", "on": "float", "dtype": "dtype"},
        result=lambda types, attributes: typed(attributes["dtype"]), read=read_one_hot, write=write_one_hot,
        family="selection",
    ),
)  # fmt: skip

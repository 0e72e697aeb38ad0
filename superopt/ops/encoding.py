"""Operators that write integers as vectors: OneHot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from superopt.ir.poly import Dim
from superopt.ir.terms import AttributeValue
from superopt.ir.types import DType, TensorType
from superopt.ops.forms import integer, listed, normal_axis, only, since_only
from superopt.ops.meaning import Comprehension, Contradiction, IllTyped, Operand, Scalar, call, number, tensor
from superopt.ops.record import ANY, INTEGERS, Canonical, NodeForm, NodeView, NotCovered, Operator
from superopt.ops.selection import wrapped

__all__ = ["OPERATORS"]


def one_hot(indices: Operand, values: Operand, *, axis: AttributeValue, depth: AttributeValue) -> Comprehension:
    """A new axis of ``depth`` positions: ``values[1]`` at the index, counted from the end where it is negative, and
    ``values[0]`` elsewhere. An index outside is nowhere."""
    if not isinstance(axis, int) or not isinstance(depth, int) or depth < 1:
        raise IllTyped(f"OneHot of depth {depth}")
    if values.shape != (2,):
        raise Contradiction(f"the values of OneHot are two, not {values.type}")

    def value(*index: Dim) -> Scalar:
        chosen = wrapped(indices[(*index[:axis], *index[axis + 1 :])], depth)
        assert isinstance(chosen, Scalar)
        return call("select", call("equal", chosen, number(index[axis])), values[1], values[0])

    return tensor((*indices.shape[:axis], depth, *indices.shape[axis:]), value)


def values_dtype(types: Sequence[TensorType | None], attributes: Mapping[str, AttributeValue]) -> DType:
    """The element type of the two values."""
    if types[1] is None:
        raise IllTyped("OneHot needs values")
    if types[1].dtype not in ANY:
        raise IllTyped(f"OneHot of {types[1].dtype}")
    return types[1].dtype


def read_one_hot(view: NodeView) -> Canonical:
    """The depth has to be known."""
    only(view, "axis")
    depth = listed(view, "depth", 1, 9)
    if depth is None or len(depth) != 1 or not isinstance(depth[0], int) or depth[0] < 1:
        raise NotCovered("the depth of OneHot is computed at run time")
    axis = normal_axis(integer(view, "axis", -1), view.type(0).rank + 1)  # type: ignore[operator]
    return Canonical((0, 2), {"axis": axis, "depth": depth[0]})


def write_one_hot(attributes: Mapping[str, AttributeValue], types: Sequence[TensorType | None], opset: int) -> NodeForm:
    since_only(opset, 9)
    axis = attributes["axis"]
    assert isinstance(axis, int)
    return NodeForm((0, np.array([attributes["depth"]], dtype=np.int64), 1), {"axis": axis})


OPERATORS = (
    Operator(
        name="OneHot", inputs=("indices", "values"), attributes={"axis": "int", "depth": "int"}, meaning=one_hot,
        since=9, dtypes=INTEGERS, result=values_dtype, read=read_one_hot, write=write_one_hot, family="selection",
    ),
)  # fmt: skip

"""Reductions over axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from superopt.ir.graph import Attribute
from superopt.ir.poly import Dim
from superopt.ir.terms import AttributeValue
from superopt.ir.types import DType, TensorType
from superopt.ops.derivative.declared import Derivative
from superopt.ops.derivative.smooth import LOG_SUM_EXP
from superopt.ops.forms import flag, int64s, listed, normal_axes, only, onnx_value, since_only, truth
from superopt.ops.meaning import (
    Comprehension,
    Operand,
    Scalar,
    call,
    inverse,
    largest,
    least,
    product,
    tensor,
    total,
)  # fmt: skip
from superopt.ops.record import FLOATS, NUMERIC, Canonical, NodeForm, NodeView, NotCovered, Operator
from superopt.ops.shape import axes_of

__all__ = ["OPERATORS"]

Reduction = Callable[[tuple[Dim, ...], Callable[..., Scalar]], Scalar]
INTEGER_SUMS = FLOATS | {DType.INT32, DType.INT64}


def reducing(reduction: Reduction) -> Callable[..., Comprehension]:
    """The meaning that reduces the axes, which stay as size 1 (``keepdims``) or go. No axes: each element alone."""

    def meaning(x: Operand, *, axes: AttributeValue, keepdims: AttributeValue) -> Comprehension:
        chosen = axes_of(axes, x.rank)
        kept = [a for a in range(x.rank) if a not in chosen]
        keep = flag(keepdims, "keepdims")

        def value(*index: Dim) -> Scalar:
            at = dict(zip(range(x.rank) if keep else kept, index, strict=True))

            def element(*inner: Dim) -> Scalar:
                place = {**at, **dict(zip(chosen, inner, strict=True))}
                return x[tuple(place[a] for a in range(x.rank))]

            return reduction(tuple(x.shape[a] for a in chosen), element)

        shape = [1 if a in chosen else x.shape[a] for a in range(x.rank)] if keep else [x.shape[a] for a in kept]
        return tensor(shape, value)

    return meaning


def mean(sizes: tuple[Dim, ...], at: Callable[..., Scalar]) -> Scalar:
    return total(sizes, at) * inverse(prod(sizes, start=1))


def square(at: Callable[..., Scalar]) -> Callable[..., Scalar]:
    return lambda *inner: at(*inner) * at(*inner)


def magnitude(at: Callable[..., Scalar]) -> Callable[..., Scalar]:
    return lambda *inner: call("abs", at(*inner))


def exponential(at: Callable[..., Scalar]) -> Callable[..., Scalar]:
    return lambda *inner: call("exp", at(*inner))


def moved(name: str) -> int:
    """The opset version at which the axes became an input."""
    return 13 if name == "ReduceSum" else 18


def read_reduce(view: NodeView) -> Canonical:
    late = view.opset >= moved(view.node.op)
    only(view, "keepdims", "noop_with_empty_axes" if late else "axes")
    rank = len(view.type(0).shape or ())
    axes = listed(view, "axes", 1, moved(view.node.op))
    if not axes:
        if late and truth(view, "noop_with_empty_axes", 0):
            if view.node.op not in SIMPLE:
                raise NotCovered(f"{view.node.op} with noop_with_empty_axes")
            axes = ()
        else:
            axes = tuple(range(rank))
    return Canonical((0,), {
        "axes": tuple(sorted(normal_axes(axes, rank))), "keepdims": truth(view, "keepdims", 1),
    })  # fmt: skip


def writing(name: str) -> Callable[[Mapping[str, AttributeValue], Sequence[TensorType | None], int], NodeForm]:
    def write(attributes: Mapping[str, AttributeValue], types: Sequence[TensorType | None], opset: int) -> NodeForm:
        since_only(opset, 1)
        axes = attributes["axes"]
        form: dict[str, Attribute] = {"keepdims": onnx_value(attributes["keepdims"])}
        if axes == () and types[0] is not None and types[0].rank != 0:
            if opset < moved(name) or name not in SIMPLE:
                raise NotCovered("a reduction over no axes cannot be written")
            return NodeForm((0,), {**form, "noop_with_empty_axes": 1})
        if axes == ():
            return NodeForm((0,), form)
        if opset >= moved(name):
            return NodeForm((0, int64s(axes)), form)
        return NodeForm((0,), {**form, "axes": onnx_value(axes)})

    return write


def operator(
    name: str, reduction: Reduction, dtypes: frozenset[DType] = FLOATS, derivative: Derivative | None = None
) -> Operator:  # fmt: skip
    return Operator(
        name=name, inputs=("X",), attributes={"axes": "ints", "keepdims": "int"}, meaning=reducing(reduction), since=1,
        dtypes=dtypes, read=read_reduce, write=writing(name), derivative=derivative, family="reduce",
    )  # fmt: skip


SIMPLE = frozenset({"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"})
OPERATORS = (
    operator("ReduceSum", total, INTEGER_SUMS),
    operator("ReduceMean", mean),
    operator("ReduceMax", largest, NUMERIC),
    operator("ReduceMin", least, NUMERIC),
    operator("ReduceProd", product, INTEGER_SUMS),
    operator("ReduceL1", lambda sizes, at: total(sizes, magnitude(at)), INTEGER_SUMS),
    operator("ReduceL2", lambda sizes, at: call("sqrt", total(sizes, square(at)))),
    operator("ReduceSumSquare", lambda sizes, at: total(sizes, square(at)), INTEGER_SUMS),
    operator("ReduceLogSum", lambda sizes, at: call("log", total(sizes, at))),
    operator("ReduceLogSumExp", lambda sizes, at: call("log", total(sizes, exponential(at))), derivative=LOG_SUM_EXP),
)

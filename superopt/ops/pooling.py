"""Pools: the largest or the mean element of sliding windows, or of all spatial positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from superopt.ir.graph import Attribute
from superopt.ir.poly import Dim
from superopt.ir.terms import AttributeValue
from superopt.ir.types import TensorType
from superopt.ops.derivative import windows as derivatives
from superopt.ops.forms import arguments, flag, integers, only, onnx_value, present, reader, since_only, truth, writer
from superopt.ops.meaning import (
    Comprehension,
    Contradiction,
    IllTyped,
    Operand,
    Scalar,
    at_least,
    call,
    inverse,
    largest,
    require,
    tensor,
    total,
    where,
)  # fmt: skip
from superopt.ops.record import Canonical, NodeForm, NodeView, NotCovered, Operator
from superopt.ops.window import Windows, read_windows, vector, windows

__all__ = ["OPERATORS"]

WINDOW = {"kernel_shape": "ints", "strides": "ints", "pads": "ints", "dilations": "ints"}


def pool_windows(
    x: Operand, kernel_shape: AttributeValue, strides: AttributeValue, pads: AttributeValue, dilations: AttributeValue
) -> Windows:
    """The windows, with every pad smaller than the kernel so that none is padding alone."""
    if x.rank < 3:
        raise IllTyped(f"{x.type} has no spatial axes")
    kernel = vector(kernel_shape, x.rank - 2, "kernel_shape")
    view = windows(x.shape[2:], kernel, strides, pads, dilations)
    for axis, (taps, before, after) in enumerate(zip(kernel, view.before, view.after, strict=True)):
        room = view.sizes[axis] + before + after - view.dilations[axis] * (taps - 1) - 1
        if isinstance(room, int) and room < 0:  # ONNX Runtime's pools then have outputs without elements
            raise IllTyped(f"a window of {taps} does not fit into a padded {view.sizes[axis]}")
        for pad in (before, after):
            if not (isinstance(pad, int) and pad == 0):
                require(at_least(taps - 1, pad), "a pad must be smaller than the kernel")
    return view


def max_pool(
    x: Operand, *, kernel_shape: AttributeValue, strides: AttributeValue, pads: AttributeValue,
    dilations: AttributeValue,
) -> Comprehension:  # fmt: skip
    view = pool_windows(x, kernel_shape, strides, pads, dilations)

    def value(n: Dim, c: Dim, *at: Dim) -> Scalar:
        def tap(*taps: Dim) -> Scalar:
            place = (n, c, *view.positions(at, taps))
            return x[place] if view.inside else x.padded(place, float("-inf"))

        return largest(view.kernel, tap)

    return tensor((*x.shape[:2], *view.outputs()), value)


def average_pool(
    x: Operand, *, kernel_shape: AttributeValue, strides: AttributeValue, pads: AttributeValue,
    dilations: AttributeValue, count_include_pad: AttributeValue,
) -> Comprehension:  # fmt: skip
    """The window's sum over its number of elements, or over those inside the input (``count_include_pad=0``)."""
    view = pool_windows(x, kernel_shape, strides, pads, dilations)
    count_all = view.inside or flag(count_include_pad, "count_include_pad")

    def value(n: Dim, c: Dim, *at: Dim) -> Scalar:
        def tap(*taps: Dim) -> Scalar:
            place = (n, c, *view.positions(at, taps))
            return x[place] if view.inside else x.padded(place)

        summed = total(view.kernel, tap)
        if count_all:
            return summed * inverse(prod(view.kernel, start=1))
        count = total(view.kernel, lambda *taps: where(view.bounds(view.positions(at, taps)), 1, 0))
        return summed * call("inv", count)

    return tensor((*x.shape[:2], *view.outputs()), value)


def spatial(reduce: Callable[[Operand, Dim, Dim], Scalar]) -> Callable[[Operand], Comprehension]:
    """The meaning that reduces all spatial axes to size 1."""

    def meaning(x: Operand) -> Comprehension:
        if x.rank < 3:
            raise Contradiction(f"{x.type} has no spatial axes")
        return tensor((*x.shape[:2], *(1,) * (x.rank - 2)), lambda n, c, *_: reduce(x, n, c))

    return meaning


def mean_at(x: Operand, n: Dim, c: Dim) -> Scalar:
    return total(x.shape[2:], lambda *at: x[(n, c, *at)]) * inverse(prod(x.shape[2:], start=1))


def max_at(x: Operand, n: Dim, c: Dim) -> Scalar:
    return largest(x.shape[2:], lambda *at: x[(n, c, *at)])


def read_pool(view: NodeView) -> Canonical:
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
        raise NotCovered("the indices of MaxPool are used")
    kernel = integers(view, "kernel_shape")
    if min(kernel, default=0) < 1:
        raise Contradiction(f"kernel_shape {list(kernel)} has a size that is not positive, or none")
    attributes: dict[str, AttributeValue] = {"kernel_shape": kernel, **read_windows(view, kernel)}
    if view.node.op == "AveragePool":
        attributes["count_include_pad"] = truth(view, "count_include_pad", 0)
    return Canonical(arguments(view), attributes)


def write_pool(attributes: Mapping[str, AttributeValue], types: Sequence[TensorType | None], opset: int) -> NodeForm:
    average = "count_include_pad" in attributes
    since_only(opset, 7 if average else 1)
    written: dict[str, Attribute] = {name: onnx_value(value) for name, value in attributes.items()}
    if written["dilations"] == (1,) * len(vector_of(written["dilations"])):
        del written["dilations"]
    else:
        since_only(opset, 19 if average else 10)
    return NodeForm(present(types), written)


def vector_of(value: Attribute) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else ()


OPERATORS = (
    Operator(
        name="MaxPool", inputs=("X",), attributes=WINDOW, meaning=max_pool, since=1, read=read_pool, write=write_pool,
        derivative=derivatives.MAX_POOL, family="pooling",
    ),
    Operator(
        name="AveragePool", inputs=("X",), attributes={**WINDOW, "count_include_pad": "int"}, meaning=average_pool,
        since=7, read=read_pool, write=write_pool, derivative=derivatives.AVERAGE_POOL, family="pooling",
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

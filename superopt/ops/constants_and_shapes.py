"""Tensors from attributes alone, and the sizes of a tensor as a tensor. None is ever materialised here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from superopt.ir.graph import ArrayWeightData, Attribute, Node, Weight, constant
from superopt.ir.size_polynomial import Dim, SizePolynomial
from superopt.ir.terms import AttributeValue
from superopt.ir.types import DType, TensorType
from superopt.ops.onnx_node_conversion import (
    dtype_code,
    dtype_from_code,
    int64s,
    integer,
    only,
    onnx_value,
    product,
    since_only,
    typed,
)
from superopt.ops.operator_definition import (
    ANY,
    NUMERIC,
    CanonicalNodeForm,
    OnnxNodeForm,
    OnnxNodeView,
    Operator,
    UnsupportedNodeForm,
)
from superopt.ops.operator_semantics import (
    IllTypedOperator,
    ScalarExpression,
    SymbolicOperand,
    TensorComprehension,
    at_least,
    combine,
    equal_to,
    number,
    require,
    same,
    tensor,
    where,
)  # fmt: skip
from superopt.ops.reshape_and_transpose import sizes_of

__all__ = ["OPERATORS", "SMALL", "attribute_array", "constant_array", "constant_attribute", "weight_of"]

SMALL = 64  # elements of a Constant that become part of a meaning
LARGEST_LITERAL = 2**20  # elements of an array that writing may create
Types = Sequence[TensorType | None]
Attributes = Mapping[str, AttributeValue]


def stated_dtype(types: Types, attributes: Attributes) -> DType:
    """The element type that the attribute ``dtype`` names."""
    return typed(attributes["dtype"])


def filled(*, shape: AttributeValue, value: AttributeValue, dtype: AttributeValue) -> TensorComprehension:
    """One number everywhere."""
    if not isinstance(value, int | float | SizePolynomial):
        raise IllTypedOperator(f"the value {value!r} is not a number")
    return tensor(checked(shape), lambda *_: number(value))


def checked(shape: AttributeValue) -> tuple[Dim, ...]:
    sizes = sizes_of(shape, "shape")
    for size in sizes:
        require(at_least(size, 0), f"shape {list(sizes)} has a negative size")
    return sizes


def read_filled(view: OnnxNodeView) -> CanonicalNodeForm:
    only(view, "value")
    shape = view.integers(0)
    if shape is None:
        raise UnsupportedNodeForm("the shape is computed at run time")
    given = view.node.attributes.get("value")
    if given is None:
        return CanonicalNodeForm((), {"shape": shape, "value": 0.0, "dtype": "float32"})
    array = constant_array(given)
    if array is None or array.size != 1 or array.dtype.kind not in "fiubV":
        raise UnsupportedNodeForm("the value is not one number")
    return CanonicalNodeForm((), {"shape": shape, "value": scalar(array), "dtype": DType.of(array.dtype).value})


def scalar(array: np.ndarray) -> int | float:
    """The only element as a Python number, exact."""
    return int(array.item()) if array.dtype.kind in "iub" else float(array.astype(np.float64).item())


def write_filled(attributes: Attributes, types: Types, opset: int) -> OnnxNodeForm:
    since_only(opset, 9)
    value = attributes["value"]
    if not isinstance(value, int | float):
        raise UnsupportedNodeForm(f"the value {value} is not known")
    array = np.array([value], dtype=typed(attributes["dtype"]).numpy)
    return OnnxNodeForm((int64s(attributes["shape"], "the shape"),), {"value": tensor_attribute(array)})


def tensor_attribute(array: np.ndarray) -> Weight:
    return Weight("", TensorType(DType.of(array.dtype), tuple(map(int, array.shape))), ArrayWeightData(array))


def constant_array(value: Attribute) -> np.ndarray | None:
    """The array of a tensor attribute that carries one."""
    return value.data.numpy() if isinstance(value, Weight) and value.data is not None else None


# ── EyeLike ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def eye(*, shape: AttributeValue, k: AttributeValue, dtype: AttributeValue) -> TensorComprehension:
    """Ones on diagonal ``k`` of a matrix, else zeros."""
    sizes = checked(shape)
    if len(sizes) != 2 or not isinstance(k, int | SizePolynomial):
        raise IllTypedOperator(f"EyeLike makes matrices, not {list(sizes)}")
    return tensor(sizes, lambda i, j: where(equal_to(j - i, k), 1, 0))


def read_eye(view: OnnxNodeView) -> CanonicalNodeForm:
    only(view, "dtype", "k")
    like = view.type(0)
    given = view.node.attributes.get("dtype")
    dtype = like.dtype if given is None else dtype_from_code(integer(view, "dtype"))
    return CanonicalNodeForm((), {"shape": like.shape or (), "k": integer(view, "k", 0), "dtype": dtype.value})


def write_eye(attributes: Attributes, types: Types, opset: int) -> OnnxNodeForm:
    """Its input, of which only the shape counts, is written as a literal."""
    since_only(opset, 9)
    sizes = int64s(attributes["shape"], "the shape")
    if int(np.prod(sizes.astype(object), initial=1)) > LARGEST_LITERAL:
        raise UnsupportedNodeForm("too large to write its input as a literal")
    like = np.zeros(tuple(sizes.tolist()), dtype=np.float32)
    return OnnxNodeForm((like,), {"k": onnx_value(attributes["k"]), "dtype": dtype_code(attributes["dtype"])})


# ── Range ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def range_(
    *, start: AttributeValue, limit: AttributeValue, delta: AttributeValue, dtype: AttributeValue
) -> TensorComprehension:
    """``start, start + delta, …`` before ``limit``; integers."""
    if (
        not isinstance(start, int | SizePolynomial)
        or not isinstance(limit, int | SizePolynomial)
        or not isinstance(delta, int)
        or not delta
    ):
        raise IllTypedOperator(f"Range from {start} to {limit} by {delta}")
    room = limit - start if delta > 0 else start - limit
    if isinstance(room, int):
        room = max(room, 0)
    require(at_least(room, 0), "a negative range")
    return tensor([(room + abs(delta) - 1) // abs(delta)], lambda i: number(start + i * delta))


def read_range(view: OnnxNodeView) -> CanonicalNodeForm:
    only(view)
    dtype = view.type(0).dtype
    if not dtype.is_integer:
        raise UnsupportedNodeForm("Range of floats")
    values = [view.integers(p) for p in range(3)]
    if any(v is None or len(v) != 1 for v in values):
        raise UnsupportedNodeForm("the bounds are computed at run time")
    start, limit, delta = (v[0] for v in values if v)
    return CanonicalNodeForm((), {"start": start, "limit": limit, "delta": delta, "dtype": dtype.value})


def write_range(attributes: Attributes, types: Types, opset: int) -> OnnxNodeForm:
    since_only(opset, 11)
    dtype = typed(attributes["dtype"]).numpy
    bounds = (int64s(attributes[n], n).reshape(()).astype(dtype) for n in ("start", "limit", "delta"))
    return OnnxNodeForm(tuple(bounds), {})


# ── Constant ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def literal(*, shape: AttributeValue, values: AttributeValue, dtype: AttributeValue) -> TensorComprehension:
    """The listed numbers, row-major."""
    sizes = sizes_of(shape, "shape")
    if not isinstance(values, tuple) or not all(isinstance(v, int | float | SizePolynomial) for v in values):
        raise IllTypedOperator("the values of a Constant are a list of numbers")
    require(same(product(sizes), len(values)), f"{len(values)} values for shape {list(sizes)}")
    numbers = [v for v in values if isinstance(v, int | float | SizePolynomial)]

    def value(*index: Dim) -> ScalarExpression:
        flat = combine(list(index), list(sizes))
        out = number(numbers[-1] if numbers else 0)
        for place in range(len(numbers) - 2, -1, -1):
            if numbers[place] != numbers[place + 1] or out != number(numbers[place]):
                out = where(at_least(place, flat), numbers[place], out)
        return out

    return tensor(sizes, value)


def read_constant(view: OnnxNodeView) -> CanonicalNodeForm:
    """Small numeric constants; larger ones, strings and sparse tensors are data, not meaning."""
    only(view, "value", "value_float", "value_floats", "value_int", "value_ints")
    if len(view.node.attributes) != 1:
        raise UnsupportedNodeForm("Constant has exactly one value")
    ((name, given),) = view.node.attributes.items()
    array = attribute_array(name, given)
    if array is None or array.size > SMALL or array.dtype.kind not in "fiubV":
        raise UnsupportedNodeForm("a constant tensor, kept as data")
    flat = array.reshape(-1)
    return CanonicalNodeForm((), {
        "shape": tuple(map(int, array.shape)), "values": tuple(scalar(flat[p]) for p in range(flat.size)),
        "dtype": DType.of(array.dtype).value,
    })  # fmt: skip


def constant_attribute(node: Node) -> tuple[str, Attribute] | None:
    """The attribute of a Constant that says what it is, with its name; ``None`` for any other node."""
    if node.op != "Constant" or node.domain not in ("", "ai.onnx") or len(node.attributes) != 1:
        return None
    return next(iter(node.attributes.items()))


def weight_of(node: Node) -> Weight | None:
    """The tensor that a Constant makes, as a weight of the name that it gives it; ``None`` for any other node, and
    where it is not numeric."""
    said = constant_attribute(node)
    if said is None or len(node.outputs) != 1:
        return None
    if isinstance(said[1], Weight):
        return replace(said[1], name=node.outputs[0]) if said[0] == "value" and said[1].type.dtype in ANY else None
    array = attribute_array(*said)
    return None if array is None else constant(node.outputs[0], array)


def attribute_array(name: str, given: Attribute) -> np.ndarray | None:
    """The tensor that an attribute of Constant stands for, if it is numeric."""
    if isinstance(given, Weight):
        return constant_array(given) if name == "value" and given.type.dtype in ANY else None
    numbers = given if isinstance(given, tuple) else (given,)
    if name in ("value_int", "value_ints") and all(isinstance(v, int) and abs(v) < 2**63 for v in numbers):
        return np.array(given, dtype=np.int64)
    if name in ("value_float", "value_floats") and all(isinstance(v, int | float) for v in numbers):
        return np.array(given, dtype=np.float32)
    return None


def write_constant(attributes: Attributes, types: Types, opset: int) -> OnnxNodeForm:
    since_only(opset, 1)
    values, sizes = attributes["values"], int64s(attributes["shape"], "the shape")
    if not isinstance(values, tuple) or not all(isinstance(v, int | float) for v in values):
        raise UnsupportedNodeForm("the values are not known")
    array = np.array(values, dtype=typed(attributes["dtype"]).numpy).reshape(tuple(sizes.tolist()))
    return OnnxNodeForm((), {"value": tensor_attribute(array)})


# ── Shape, Size ───────────────────────────────────────────────────────────────────────────────────────────────────────


def shape_of(x: SymbolicOperand, *, start: AttributeValue, end: AttributeValue) -> TensorComprehension:
    """The sizes of axes ``start`` to ``end`` as int64."""
    if not isinstance(start, int) or not isinstance(end, int) or not 0 <= start <= end <= x.rank:
        raise IllTypedOperator(f"axes {start}:{end} of {x.type}")
    sizes = x.shape[start:end]

    def value(i: Dim) -> ScalarExpression:
        out = number(sizes[-1]) if sizes else number(0)
        for place in range(len(sizes) - 2, -1, -1):
            out = where(at_least(place, i), sizes[place], out)
        return out

    return tensor([len(sizes)], value)


def read_shape(view: OnnxNodeView) -> CanonicalNodeForm:
    only(view, *(("start", "end") if view.opset >= 15 else ()))
    rank = len(view.type(0).shape or ())
    start, end = integer(view, "start", 0), integer(view, "end", rank)
    start, end = (min(max(p + rank if p < 0 else p, 0), rank) for p in (start, end))
    return CanonicalNodeForm((0,), {"start": start, "end": max(start, end)})


def write_shape(attributes: Attributes, types: Types, opset: int) -> OnnxNodeForm:
    start, end = attributes["start"], attributes["end"]
    whole = start == 0 and types[0] is not None and types[0].rank == end
    if not whole:
        since_only(opset, 15)
    return OnnxNodeForm((0,), {} if whole else {"start": onnx_value(start), "end": onnx_value(end)})


def size_of(x: SymbolicOperand) -> TensorComprehension:
    return tensor([], lambda: number(product(x.shape)))


def read_size(view: OnnxNodeView) -> CanonicalNodeForm:
    only(view)
    return CanonicalNodeForm((0,), {})


OPERATORS = (
    Operator(
        name="ConstantOfShape", inputs=(), attributes={"shape": "ints", "value": "float", "dtype": "dtype"},
        meaning=filled, since=9, dtypes=ANY, result=stated_dtype, read=read_filled, write=write_filled,
        family="generators",
    ),
    Operator(
        name="EyeLike", inputs=(), attributes={"shape": "ints", "k": "int", "dtype": "dtype"}, meaning=eye, since=9,
        dtypes=NUMERIC, result=stated_dtype, read=read_eye, write=write_eye, family="generators",
    ),
    Operator(
        name="Range", inputs=(), attributes={"start": "int", "limit": "int", "delta": "int", "dtype": "dtype"},
        meaning=range_, since=11, dtypes=NUMERIC, result=stated_dtype, read=read_range, write=write_range,
        family="generators",
    ),
    Operator(
        name="Constant", inputs=(), attributes={"shape": "ints", "values": "floats", "dtype": "dtype"},
        meaning=literal, since=1, dtypes=ANY, result=stated_dtype, read=read_constant, write=write_constant,
        family="generators",
    ),
    Operator(
        name="Shape", inputs=("X",), attributes={"start": "int", "end": "int"}, meaning=shape_of, since=1,
        dtypes=frozenset(DType), result=lambda types, attributes: DType.INT64, read=read_shape, write=write_shape,
        family="generators",
    ),
    Operator(
        name="Size", inputs=("X",), meaning=size_of, since=1, dtypes=frozenset(DType),
        result=lambda types, attributes: DType.INT64, read=read_size,
        write=lambda attributes, types, opset: OnnxNodeForm((0,), {}), family="generators",
    ),
)  # fmt: skip

"""Types of what superopt does not read, from ONNX's own inference for one node at a time.

A barrier (a product of integers, an LSTM, a Slice whose bounds nobody knows) would otherwise leave everything after it
without types. Only operators of ONNX's own domains are asked, only with small known inputs, and never with a weight's
elements, so that nothing is folded and no time is lost. What the operator leaves open is a fresh symbolic size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from google.protobuf.message import DecodeError, EncodeError
from onnx import AttributeProto, NodeProto, TensorProto, TypeProto, defs, helper, numpy_helper
from onnx.checker import ValidationError
from onnx.shape_inference import InferenceError, infer_node_outputs

from superopt.ir.graph import Node, OpaqueAttribute, Weight
from superopt.ir.size_polynomial import Dim, SizePolynomial, sym
from superopt.ir.types import DType, TensorType
from superopt.ops.small_tensor_values import SmallTensorValue

__all__ = ["fresh_size", "inputs_of_type", "schema_defaults", "schema_types", "type_conflict"]

_RAISED = (
    InferenceError, ValidationError, defs.SchemaError, DecodeError, EncodeError, ValueError, TypeError, RuntimeError,
    KeyError,
)  # fmt: skip
_MOST_AXES = 64
_HUGE = 1 << 40  # sizes from which products could overflow inside ONNX's inference
_LARGEST = 1 << 20  # bytes of a subgraph that is looked into
_ODD = frozenset({"Constant", "Identity"})  # nothing to learn that declared types do not say
_POSITIVE = frozenset({"strides", "dilations", "kernel_shape", "group", "hidden_size", "num_groups", "block_size"})
_REFUSED = "[ShapeInferenceError]"  # how ONNX's inference marks shapes that exclude each other; ORT runs the same
_RENAMED = {"float": "float32", "double": "float64"}
_NAMES: dict[int, str] = {n: str(helper.tensor_dtype_to_string(n)).rpartition(".")[2].lower()
                          for n in helper.get_all_tensor_dtypes()}  # fmt: skip
_DTYPE = {n: DType(_RENAMED.get(s, s)) for n, s in _NAMES.items() if _RENAMED.get(s, s) in {d.value for d in DType}}
_SPELT = {d: f"tensor({ {v: k for k, v in _RENAMED.items()}.get(d.value, d.value) })" for d in DType}
_ELEMENT = {dtype: number for number, dtype in _DTYPE.items()}

Types = Sequence[TensorType | None]


@lru_cache(maxsize=4096)
def type_conflict(op: str, opset: int, dtypes: tuple[DType | None, ...]) -> str:
    """Why an operator of ONNX's own domain does not take inputs of these element types; "" where it does.

    Args:
        op: the operator.
        opset: the version of its domain.
        dtypes: of the inputs in order; ``None`` for one that is absent, no dense tensor, or not known.
    """
    try:
        schema = defs.get_schema(op, opset, "")
    except defs.SchemaError:
        return ""
    bound: dict[str, tuple[DType, int]] = {}
    for position, dtype in enumerate(dtypes):
        if dtype is None or not schema.inputs:
            continue
        formal = schema.inputs[min(position, len(schema.inputs) - 1)]
        name = _SPELT.get(dtype)
        if name is not None and formal.types and name not in formal.types:
            return f"its input {position} is {dtype}, which {op} of opset {opset} does not take there"
        if not formal.is_homogeneous:
            continue
        first, place = bound.setdefault(formal.type_str, (dtype, position))
        if first != dtype:
            return f"its inputs {place} and {position} are {first} and {dtype}, which {op} takes only alike"
    return ""


@lru_cache(maxsize=4096)
def inputs_of_type(op: str, opset: int, dtype: DType, count: int) -> frozenset[int] | None:
    """Which inputs of an operator of ONNX's own domain may be of an element type, where its first output may be, too.

    Args:
        op: the operator.
        opset: the version of its domain.
        dtype: the element type.
        count: how many inputs the node has.

    Returns:
        ``None`` where there is no such operator, or its output is never of the type.
    """
    try:
        schema = defs.get_schema(op, opset, "")
    except defs.SchemaError:
        return None
    name = _SPELT[dtype]
    if not schema.inputs or name not in schema.outputs[0].types:
        return None
    formal = (schema.inputs[min(i, len(schema.inputs) - 1)] for i in range(count))
    return frozenset(i for i, each in enumerate(formal) if name in each.types)


def schema_types(
    node: Node,
    opset: int,
    types: Types,
    values: Sequence[SmallTensorValue | None],
    outer: Mapping[str, TensorType | None],
) -> dict[str, TensorType] | str:
    """Types of a barrier's outputs, as far as ONNX's inference knows them; or why it refuses the node.

    Args:
        node: of ONNX's own domain.
        opset: the version of that domain.
        types: of its inputs; ``None`` where it is absent or not known.
        values: of its inputs, where they are known.
        outer: types of the values that its subgraphs may capture.
    """
    if (
        node.domain not in ("", "ai.onnx")
        or node.op in _ODD
        or any(t is None for n, t in zip(node.inputs, types, strict=True) if n)
    ):
        return {}
    attributes = tuple(_attribute(k, v) for k, v in sorted(node.attributes.items()))
    if None in attributes:
        return {}
    captures: tuple[tuple[str, TensorType], ...] = ()
    if node.captures:
        known = {n: t for n in node.captures if (t := outer.get(n)) is not None}
        if len(known) < len(set(node.captures)):
            return {}
        captures = tuple(sorted(known.items()))
    given = tuple(_integers(v) for v in values)
    found = _infer(
        node.op, opset, tuple(a for a in attributes if a is not None), tuple(types), given,
        tuple(map(bool, node.outputs)), captures,
    )  # fmt: skip
    if isinstance(found, str):
        return found
    if len(found) == 1 and (found[0] is None or found[0][1] is None or None in found[0][1]):
        found = (_by_hand(node, types, values) or found[0],)
    return {o: _fresh(o, kind) for o, kind in zip(node.outputs, found, strict=True) if o and kind is not None}


def _by_hand(node: Node, types: Types, values: Sequence[SmallTensorValue | None]) -> Found | None:
    """What a Slice of unknown bounds leaves alone, and the rank that a Reshape or Expand to unknown sizes makes."""
    data = types[0] if types else None
    if data is None or data.shape is None or len(types) < 2 or (operand := types[1]) is None or not operand.shape:
        return None
    count = operand.shape[0]
    if not isinstance(count, int) or count > _MOST_AXES or len(operand.shape) != 1:
        return None
    if node.op in ("Reshape", "Expand"):
        wanted = values[1].elements if values[1] is not None else (None,) * count
        sure = tuple(d if node.op == "Reshape" and isinstance(d, int) and d > 0 else None for d in wanted)
        return data.dtype, sure if node.op == "Reshape" else (None,) * max(count, len(data.shape))
    if node.op != "Slice":
        return None
    axes: Sequence[object] = range(count)
    if len(types) > 3 and types[3] is not None:
        known = values[3]
        if known is None:
            return data.dtype, (None,) * len(data.shape)
        axes = known.elements
    cut = {a % len(data.shape) for a in axes if isinstance(a, int) and data.shape}
    return data.dtype, tuple(None if i in cut else d for i, d in enumerate(data.shape))


def _attribute(name: str, value: object) -> bytes | None:
    """An AttributeProto; ``None`` for one that is not shown to the inference."""
    if isinstance(value, OpaqueAttribute):
        return value.payload if len(value.payload) <= _LARGEST else None
    if isinstance(value, Weight):
        return None
    numbers = value if isinstance(value, tuple) else (value,)
    if name in _POSITIVE and not all(isinstance(n, int) and 0 < n < 2**31 for n in numbers):
        return None
    try:
        made: bytes = helper.make_attribute(name, value).SerializeToString()
    except (ValueError, TypeError, EncodeError):
        return None
    return made


def _integers(value: SmallTensorValue | None) -> tuple[DType, tuple[int, ...], tuple[int, ...]] | None:
    """A value as its type, shape and elements, where all are whole numbers."""
    if value is None or not all(isinstance(e, int) and abs(e) < _HUGE for e in value.elements):
        return None
    return value.dtype, value.shape, tuple(e for e in value.elements if isinstance(e, int))


Given = tuple[DType, tuple[int, ...], tuple[int, ...]]
# A dimension that the inference leaves open is ``None``.
Found = tuple[DType, tuple[Dim | None, ...] | None]


@lru_cache(maxsize=1024)
def schema_defaults(op: str, opset: int) -> Mapping[str, object]:
    """Attributes that an operator of ONNX's own domain has when a node does not state them, as Python values."""
    try:
        schema = defs.get_schema(op, opset)
    except defs.SchemaError:
        return {}
    stated = {k: a.default_value for k, a in schema.attributes.items()}
    return {k: helper.get_attribute_value(v) for k, v in stated.items() if v.type != AttributeProto.UNDEFINED}


@lru_cache(maxsize=4096)
def _infer(
    op: str, opset: int, attributes: tuple[bytes, ...], types: tuple[TensorType | None, ...],
    values: tuple[Given | None, ...], outputs: tuple[bool, ...], captures: tuple[tuple[str, TensorType], ...],
) -> tuple[Found | None, ...] | str:  # fmt: skip
    nothing = (None,) * len(outputs)
    if op == "Split" and any(AttributeProto.FromString(a).i < len(outputs) for a in attributes if b"num_outputs" in a):
        return nothing  # ONNX's inference ends the process there
    names: dict[str, SizePolynomial] = {}
    proto = NodeProto(op_type=op)
    proto.input.extend("" if t is None else f"\x01i{i}" for i, t in enumerate(types))
    proto.output.extend(f"\x01o{i}" if wanted else "" for i, wanted in enumerate(outputs))
    try:
        proto.attribute.extend(AttributeProto.FromString(a) for a in attributes)
        schema = defs.get_schema(op, opset, "")
        shown = {f"\x01i{i}": _proto(t, names) for i, t in enumerate(types) if t is not None}
        shown.update((n, _proto(t, names)) for n, t in captures)
        data = {f"\x01i{i}": _tensor(v) for i, v in enumerate(values) if v is not None}
        found = infer_node_outputs(schema, proto, shown, data, opset_imports=[helper.make_opsetid("", opset)])
    except InferenceError as error:
        text = str(error)
        return text.partition(_REFUSED)[2].strip().splitlines()[0] if _REFUSED in text else nothing
    except _RAISED:
        return nothing
    return tuple(_read(found.get(f"\x01o{i}"), names) for i in range(len(outputs)))


def _proto(kind: TensorType, names: dict[str, SizePolynomial]) -> TypeProto:
    shape: list[int | str] | None = None
    if kind.shape is not None:
        shape = []
        for dim in kind.shape:
            if isinstance(dim, SizePolynomial):
                key = f"\x01{dim}"
                names[key] = dim
                shape.append(key)
            else:
                shape.append(dim)
    return helper.make_tensor_type_proto(_ELEMENT[kind.dtype], shape)


def _tensor(value: Given) -> TensorProto:
    dtype, shape, elements = value
    return numpy_helper.from_array(np.array(elements, dtype=dtype.numpy).reshape(shape))


def _read(proto: TypeProto | None, names: Mapping[str, SizePolynomial]) -> Found | None:
    if proto is None or proto.WhichOneof("value") != "tensor_type" or not proto.tensor_type.elem_type:
        return None
    tensor = proto.tensor_type
    dtype = _DTYPE.get(tensor.elem_type)
    if dtype is None:
        return None
    if not tensor.HasField("shape"):
        return dtype, None
    dims: list[Dim | None] = []
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value"):
            if not 0 <= dim.dim_value < 2**62:
                return dtype, None
            dims.append(dim.dim_value)
        else:
            dims.append(names.get(dim.dim_param) if dim.HasField("dim_param") else None)
    return dtype, tuple(dims)


def _fresh(name: str, found: Found) -> TensorType:
    dtype, dims = found
    if dims is None:
        return TensorType(dtype, None)
    return TensorType(dtype, tuple(fresh_size(name, i) if d is None else d for i, d in enumerate(dims)))


def fresh_size(name: str, axis: int) -> SizePolynomial:
    """What stands for a size of a value that is not known."""
    return sym(f"?{name}.{axis}")

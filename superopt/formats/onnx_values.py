"""ValueInfoProto to values and back.

A dimension without a size gets a symbol of its own, ``?NAME.AXIS``: two unknown sizes are never taken to be equal.
Symbols that begin with ``?`` are written as dimensions without a size.
"""

from __future__ import annotations

from onnx import TensorShapeProto, TypeProto, ValueInfoProto

from superopt.formats.onnx_tensors import DTYPES, ELEMENT_TYPES
from superopt.ir.errors import InvalidModel, printable
from superopt.ir.graph import Value
from superopt.ir.poly import Dim, sym
from superopt.ir.types import OpaqueType, TensorType, ValueType

__all__ = ["is_anonymous", "type_proto", "unknown_dim", "value", "value_info", "value_type"]


def unknown_dim(name: str, axis: int) -> Dim:
    """The symbol of a size that the model does not state."""
    return sym(f"?{name}.{axis}")


def is_anonymous(dim: Dim) -> bool:
    """Whether the dimension is one made by :func:`unknown_dim`."""
    return not isinstance(dim, int) and str(dim).startswith("?")


def value(proto: ValueInfoProto) -> Value:
    """The typed name that a ValueInfoProto states.

    Raises:
        InvalidModel: it has no name, or a dimension below -1 (-1 is read as "not known", as ONNX Runtime does).
    """
    if not proto.name:
        raise InvalidModel("an input, output or value_info has no name")
    kind = value_type(proto.type, proto.name) if proto.HasField("type") else None
    return Value(proto.name, kind, proto.doc_string, {e.key: e.value for e in proto.metadata_props})


def value_type(proto: TypeProto, name: str) -> ValueType | None:
    """Its type: a tensor's, one carried as bytes (sequence, map, optional …), or ``None`` where it says nothing."""
    which = proto.WhichOneof("value")
    if which is None:
        return None
    if which != "tensor_type":
        return OpaqueType(proto.SerializeToString(deterministic=True))
    tensor = proto.tensor_type
    if tensor.elem_type == 0:
        return None
    if tensor.elem_type not in DTYPES:
        raise InvalidModel(f"unknown element type {tensor.elem_type}", where=f"value {printable(name)!r}")
    shape = None
    if tensor.HasField("shape"):
        shape = tuple(_dim(d, name, axis) for axis, d in enumerate(tensor.shape.dim))
    return TensorType(DTYPES[tensor.elem_type], shape)


def _dim(dim: TensorShapeProto.Dimension, name: str, axis: int) -> Dim:
    which = dim.WhichOneof("value")
    if which == "dim_value":
        if dim.dim_value < -1:
            raise InvalidModel(f"has the negative dimension {dim.dim_value}", where=f"value {printable(name)!r}")
        return dim.dim_value if dim.dim_value >= 0 else unknown_dim(name, axis)
    if which == "dim_param" and dim.dim_param and not dim.dim_param.startswith("?"):
        return sym(dim.dim_param)
    return unknown_dim(name, axis)


def value_info(v: Value) -> ValueInfoProto:
    """The ValueInfoProto of a value."""
    proto = ValueInfoProto(name=v.name)
    if v.type is not None:
        proto.type.CopyFrom(type_proto(v.type))
    if v.doc:
        proto.doc_string = v.doc
    for key, text in v.metadata.items():
        proto.metadata_props.add(key=key, value=text)
    return proto


def type_proto(kind: ValueType) -> TypeProto:
    """The TypeProto of a type."""
    proto = TypeProto()
    if isinstance(kind, OpaqueType):
        proto.ParseFromString(kind.payload)
        return proto
    proto.tensor_type.elem_type = ELEMENT_TYPES[kind.dtype]
    if kind.shape is not None:
        proto.tensor_type.shape.SetInParent()
        for dim in kind.shape:
            if is_anonymous(dim):
                proto.tensor_type.shape.dim.add()
            elif isinstance(dim, int):
                proto.tensor_type.shape.dim.add(dim_value=dim)
            else:
                proto.tensor_type.shape.dim.add(dim_param=str(dim))
    return proto

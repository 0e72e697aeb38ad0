"""The JSON graph (docs/usage.md) to Graph: strict, so that a slip of the pen is an error that says where.

Keys that begin with ``x-`` are carried: an object's ``x-key: value`` becomes its metadata ``x-key`` with the
value's JSON text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import numpy as np
from google.protobuf.message import DecodeError, Message
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
)

from superopt.formats.function_inlining import calls_in
from superopt.formats.json_weights import (
    DTYPE_NAMES,
    SOURCES,
    JsonCursor,
    SafetensorsFiles,
    decode,
    parse_json,
    tensor_type,
    weight_data,
)
from superopt.formats.onnx_nodes import (
    attribute_from_payload,
    attribute_kind,
    check_functions,
    check_nodes,
    check_opset,
    check_text,
    nested_tensors,
)
from superopt.formats.onnx_tensors import ExternalFiles, unknown_dim, value_type
from superopt.ir.errors import InvalidModel, printable
from superopt.ir.graph import Attribute, Graph, Node, OpaqueAttribute, Value, Weight
from superopt.ir.size_polynomial import Dim, sym
from superopt.ir.types import DType, OpaqueType, TensorType, ValueType

__all__ = ["FORMAT", "VERSION", "read_json"]

FORMAT, VERSION = "superopt.graph", 1
_NONE: frozenset[str] = frozenset()
_GRAPH = frozenset({
    "format", "version", "name", "opset", "inputs", "weights", "nodes", "outputs", "values", "doc", "metadata",
    "extras",
})  # fmt: skip
_GRAPH_REQUIRED = frozenset({"format", "version", "opset", "inputs", "nodes", "outputs"})
_VALUE = frozenset({"name", "dtype", "shape", "type", "doc", "metadata"})
_WEIGHT = frozenset({"name", "dtype", "shape", "doc", "metadata", "tensor", *SOURCES})
_NODE = frozenset({"name", "op", "domain", "overload", "inputs", "outputs", "attributes", "doc", "metadata"})
_TAGGED = frozenset({"float", "floats", "bytes", "tensor", "opaque"})
_P = AttributeProto
_EXTRAS: Mapping[str, tuple[type[Message], frozenset[str]]] = {
    "onnx.model": (ModelProto, frozenset({
        "ir_version", "producer_name", "producer_version", "domain", "model_version", "functions", "training_info",
        "configuration",
    })),
    "onnx.graph": (GraphProto, frozenset({"doc_string", "metadata_props", "quantization_annotation", "input"})),
    "onnx.input": (ValueInfoProto, _NONE), "onnx.output": (ValueInfoProto, _NONE),
    "onnx.value": (ValueInfoProto, _NONE),
    "onnx.node": (NodeProto, _NONE),
}  # fmt: skip


def read_json(data: bytes, files: ExternalFiles | None = None) -> Graph:
    """The graph of a JSON document.

    Args:
        data: UTF-8 text.
        files: where safetensors files may be read from; none by default.

    Raises:
        InvalidModel: it is not JSON, or not a valid graph; the message holds the JSON pointer.
        ResourceLimit: its functions would expand without bound.
    """
    root = JsonCursor(parse_json(data))
    members = root.members(_GRAPH | {"$schema"}, _GRAPH_REQUIRED)
    if members["format"].string() != FORMAT:
        members["format"].fail(f"is not {FORMAT!r}")
    if members["version"].integer() != VERSION:
        members["version"].fail(f"is {members['version'].value}; this superopt reads version {VERSION}")
    opset = {k if k != "ai.onnx" else "": v.integer() for k, v in members["opset"].mapping().items()}
    sidecars = SafetensorsFiles(files or ExternalFiles(None))
    outputs = tuple(_value(v) for v in members["outputs"].items())
    if not outputs:
        members["outputs"].fail("is empty, so there is nothing to compute")
    cursors = list(members["nodes"].items())
    extras = _extras(members["extras"]) if "extras" in members else {}
    graph = Graph(
        name=_text(members, "name"),
        inputs=tuple(_value(v) for v in members["inputs"].items()),
        outputs=outputs,
        weights=tuple(_weight(w, sidecars) for w in members["weights"].items()) if "weights" in members else (),
        nodes=tuple(_node(n, opset, sidecars) for n in cursors),
        opset=opset,
        values=tuple(_value(v) for v in members["values"].items()) if "values" in members else (),
        doc=_text(members, "doc"),
        metadata=_metadata(members),
        extras=extras,
    )
    check_opset(opset, graph.nodes)
    local = check_functions(_functions(extras), calls_in(graph))
    for cursor, node in zip(cursors, graph.nodes, strict=True):
        try:
            check_nodes([node], opset, local)
        except InvalidModel as error:
            raise error.within(cursor.pointer) from error
    _check_reads(graph, cursors)
    return graph.checked()


def _text(members: Mapping[str, JsonCursor], key: str) -> str:
    return members[key].string() if key in members else ""


def _metadata(members: Mapping[str, JsonCursor]) -> dict[str, str]:
    metadata = {k: v.string() for k, v in members["metadata"].mapping().items()} if "metadata" in members else {}
    for key, cursor in members.items():
        if key.startswith("x-"):
            metadata[key] = json.dumps(cursor.value)
    return metadata


def _value(cursor: JsonCursor) -> Value:
    members = cursor.members(_VALUE, frozenset({"name"}))
    name = members["name"].string()
    if not name:
        members["name"].fail("is empty")
    return Value(name, _value_type(members, name), _text(members, "doc"), _metadata(members))


def _value_type(members: Mapping[str, JsonCursor], name: str) -> ValueType | None:
    if "type" in members:
        if "dtype" in members or "shape" in members:
            members["type"].fail("is given beside dtype or shape")
        payload = decode(members["type"])
        _parsed(TypeProto, payload, members["type"])
        kind = value_type(TypeProto.FromString(payload), name)
        return OpaqueType(payload) if isinstance(kind, OpaqueType) else members["type"].fail("is a tensor's type")
    if "dtype" not in members:
        return members["shape"].fail("is given without a dtype") if "shape" in members else None
    text = members["dtype"].string()
    if text not in DTYPE_NAMES:
        members["dtype"].fail("is not an element type", f"known are {', '.join(DType)}")
    shape = None
    if "shape" in members:
        shape = tuple(_dim(d, name, axis) for axis, d in enumerate(members["shape"].items()))
    return TensorType(DType(text), shape)


def _dim(cursor: JsonCursor, name: str, axis: int) -> Dim:
    if cursor.value is None:
        return unknown_dim(name, axis)
    if isinstance(cursor.value, str):
        text = cursor.string()
        return sym(text) if text and not text.startswith("?") else cursor.fail("is not a name; null means not known")
    return cursor.integer(0)


def _weight(cursor: JsonCursor, sidecars: SafetensorsFiles, *, needs_values: bool = False) -> Weight:
    required = frozenset({"dtype", "shape"} if needs_values else {"name", "dtype", "shape"})
    members = cursor.members(_WEIGHT, required)
    name = _text(members, "name")
    if not name and not needs_values:
        members["name"].fail("is empty")
    kind = tensor_type(members, cursor)
    data = weight_data(name, members, kind, sidecars)
    if data is None and needs_values:
        cursor.fail("is a tensor without values")
    return Weight(name, kind, data, _text(members, "doc"), _metadata(members))


def _node(cursor: JsonCursor, opset: Mapping[str, int], sidecars: SafetensorsFiles) -> Node:
    members = cursor.members(_NODE, frozenset({"op", "inputs", "outputs"}))
    op, domain = members["op"].string(), _text(members, "domain")
    domain = "" if domain == "ai.onnx" else domain
    if not op:
        members["op"].fail("is empty")
    attributes: dict[str, Attribute] = {}
    for key, found in members["attributes"].mapping().items() if "attributes" in members else ():
        attributes[key] = _attribute(key, found, attribute_kind(op, domain, opset.get(domain, 0), key), sidecars)
    return Node(
        name=_text(members, "name"),
        op=op,
        inputs=tuple(i.string() for i in members["inputs"].items()),
        outputs=tuple(o.string() for o in members["outputs"].items()),
        attributes=attributes,
        domain=domain,
        overload=_text(members, "overload"),
        doc=_text(members, "doc"),
        metadata=_metadata(members),
    )


def _attribute(name: str, cursor: JsonCursor, kind: int, sidecars: SafetensorsFiles) -> Attribute:
    """An attribute's value; ``kind`` (its type by the operator's schema, 0: not known) settles whether 1 means 1.0."""
    found = cursor.value
    if isinstance(found, dict):
        return _tagged(name, cursor, sidecars)
    if isinstance(found, list):
        items = list(cursor.items())
        if not items:
            return OpaqueAttribute(_P(name=name, type=kind or _P.INTS).SerializeToString(deterministic=True))  # type: ignore[arg-type]
        if any(isinstance(i.value, str) for i in items):
            return tuple(i.string().encode() for i in items)
        if kind == _P.FLOATS or any(isinstance(i.value, float) for i in items):
            return tuple(_float32(i) for i in items)
        return tuple(i.integer() for i in items)
    if isinstance(found, str):
        return cursor.string().encode()
    if kind == _P.FLOAT or isinstance(found, float):
        return _float32(cursor)
    return cursor.integer()


def _tagged(name: str, cursor: JsonCursor, sidecars: SafetensorsFiles) -> Attribute:
    members = cursor.members(_TAGGED)
    if len(members) != 1 or not members.keys() <= _TAGGED:
        cursor.fail(f"is an object; exactly one of {', '.join(sorted(_TAGGED))} is expected in it")
    ((tag, inner),) = members.items()
    match tag:
        case "float":
            return _float32(inner)
        case "floats":
            return tuple(_float32(i) for i in inner.items()) or inner.fail("is empty; write [] for an empty list")
        case "bytes" if isinstance(inner.value, list):
            return tuple(decode(i) for i in inner.items()) or inner.fail("is empty; write [] for an empty list")
        case "bytes":
            return decode(inner)
        case "tensor":
            return _weight(inner, sidecars, needs_values=True)
    payload = decode(inner)
    _parsed(AttributeProto, payload, inner)
    proto = AttributeProto.FromString(payload)
    if proto.name != name:
        inner.fail("is the serialised attribute of another name")
    _refuse_external(nested_tensors([*([proto.g] if proto.HasField("g") else []), *proto.graphs], proto), inner)
    return attribute_from_payload(payload)


def _float32(cursor: JsonCursor) -> float:
    """An ONNX float attribute: rounded to float32 here, as any file would do."""
    exact = cursor.number()
    with np.errstate(over="ignore"):
        found = float(np.float32(exact))
    if np.isfinite(exact) and not np.isfinite(found):
        cursor.fail("is too large for a float32, which ONNX attributes are")
    return found


def _refuse_external(tensors: Iterable[TensorProto], cursor: JsonCursor) -> None:
    if any(t.data_location == TensorProto.EXTERNAL or t.external_data for t in tensors):
        cursor.fail("holds a tensor whose data is in another file, which is not accepted here")


def _parsed(message: type[Message], payload: bytes, cursor: JsonCursor) -> Message:
    found = message()
    try:
        found.ParseFromString(payload)
        check_text(found)
    except (DecodeError, InvalidModel):
        cursor.fail(f"is not a serialised {message.__name__}")
    return found


def _extras(cursor: JsonCursor) -> dict[str, bytes]:
    """Parts of an ONNX file that ride along; each may hold only what superopt itself puts there."""
    extras: dict[str, bytes] = {}
    for key, found in cursor.mapping().items():
        extras[key] = payload = decode(found)
        kind = key.split(":", 1)[0]
        if kind not in _EXTRAS:
            found.fail("is not a part that superopt knows", f"known are {', '.join(_EXTRAS)}")
        message, allowed = _EXTRAS[kind]
        proto = _parsed(message, payload, found)
        if allowed and (odd := [f.name for f, _ in proto.ListFields() if f.name not in allowed]):
            found.fail(f"holds the field {odd[0]!r}, which belongs elsewhere")
        if isinstance(proto, ModelProto):
            graphs = [g for t in proto.training_info for g in (t.initialization, t.algorithm)]
            top = [a for f in proto.functions for n in f.node for a in n.attribute]
            _refuse_external(nested_tensors([*graphs, *(g for a in top for g in (a.g, *a.graphs))], *top), found)
    return extras


def _functions(extras: Mapping[str, bytes]) -> list[FunctionProto]:
    return list(ModelProto.FromString(extras.get("onnx.model", b"")).functions)


def _check_reads(graph: Graph, cursors: list[JsonCursor]) -> None:
    """What :meth:`Graph.checked` refuses about one node's wiring, here with the JSON pointer."""
    known = {v.name for v in graph.inputs} | graph.weight.keys() | graph.producer.keys()
    for cursor, node in zip(cursors, graph.nodes, strict=True):
        for position, name in enumerate(node.inputs):
            if name and name not in known:
                hint = "it must be an input, a weight or an output of another node"
                where = f"{cursor.pointer}/inputs/{position}"
                raise InvalidModel(f"reads value {printable(name)!r}, which nothing defines", where=where, hint=hint)

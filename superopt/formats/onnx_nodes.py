"""NodeProto and AttributeProto to nodes and back; what a subgraph captures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from onnx import AttributeProto, GraphProto, NodeProto, TensorProto

from superopt.formats.onnx_tensors import ExternalFiles, internalise, tensor_proto, weight
from superopt.ir.errors import InvalidModel, ResourceLimit, printable
from superopt.ir.graph import Attribute, Node, OpaqueAttribute, Weight

__all__ = ["attribute_from_payload", "attribute_proto", "captures", "nested_tensors", "node", "node_proto", "subgraphs"]

MAX_INTERNALISED = 256 << 20  # bytes of external data inside subgraphs and functions, which are carried as bytes
_LONG = 1 << 16  # elements of a list from which it is carried as bytes: a number by itself takes ten times as much
_P = AttributeProto
_GUESS = (
    ("g", _P.GRAPH), ("t", _P.TENSOR), ("s", _P.STRING), ("floats", _P.FLOATS), ("ints", _P.INTS),
    ("strings", _P.STRINGS), ("f", _P.FLOAT), ("i", _P.INT),
)  # fmt: skip


def node(proto: NodeProto, files: ExternalFiles) -> Node:
    """A node; attributes that superopt does not read become opaque.

    Raises:
        InvalidModel: it names no operator, repeats an attribute, or holds a bad tensor.
    """
    attributes: dict[str, Attribute] = {}
    for item in proto.attribute:
        if item.name in attributes:
            raise InvalidModel(f"attribute {printable(item.name)!r} is given twice", where=_label(proto))
        try:
            attributes[item.name] = attribute(item, files, read=proto.op_type == "Constant")
        except InvalidModel as error:
            raise error.within(f"{_label(proto)}, attribute {printable(item.name)!r}") from error
    if not proto.op_type:
        raise InvalidModel("names no operator", where=_label(proto))
    domain = "" if proto.domain == "ai.onnx" else proto.domain
    metadata = {e.key: e.value for e in proto.metadata_props} if proto.metadata_props else {}
    return Node(
        proto.name, proto.op_type, tuple(proto.input), tuple(proto.output), attributes, domain, proto.overload,
        proto.doc_string, metadata,
    )  # fmt: skip


def _label(proto: NodeProto) -> str:
    name = proto.name or next((o for o in proto.output if o), "?")
    return f'node "{printable(name)}" ({printable(proto.op_type)})'


def attribute(proto: AttributeProto, files: ExternalFiles, *, read: bool = False) -> Attribute:
    """The attribute's value; references, graphs, sparse tensors, types, lists of tensors and empty lists are opaque.

    So are lists as long as those of ensembles of trees and of vocabularies, unless something may ``read`` them.
    """
    kind = proto.type or _guess(proto)
    long = not read and max(len(proto.ints), len(proto.floats), len(proto.strings)) > _LONG
    if not proto.ref_attr_name and not long:
        match kind:
            case _P.INT:
                return proto.i
            case _P.FLOAT:
                return proto.f
            case _P.STRING:
                return proto.s
            case _P.TENSOR:
                return weight(proto.t, files)
            case _P.INTS if proto.ints:
                return tuple(proto.ints)
            case _P.FLOATS if proto.floats:
                return tuple(proto.floats)
            case _P.STRINGS if proto.strings:
                return tuple(proto.strings)
    if long:
        return OpaqueAttribute(proto.SerializeToString(deterministic=True))
    carried = AttributeProto()
    carried.CopyFrom(proto)
    moved = 0
    for tensor in nested_tensors(_graphs(carried), carried):
        moved += internalise(tensor, files)
        if moved > MAX_INTERNALISED:
            raise ResourceLimit("subgraphs hold more than 256 MiB of external data; move it to the main graph")
    return OpaqueAttribute(carried.SerializeToString(deterministic=True), captures(_graphs(carried)))


def _guess(proto: AttributeProto) -> int:
    """The kind of an attribute of a file from before attributes said it (IR version 1)."""
    for name, kind in _GUESS:
        if len(getattr(proto, name)) if name.endswith("s") and name != "s" else proto.HasField(name):
            return kind
    return 0


def attribute_from_payload(payload: bytes) -> OpaqueAttribute:
    """An opaque attribute from its serialised AttributeProto, its captures read from the subgraphs inside."""
    return OpaqueAttribute(payload, captures(_graphs(AttributeProto.FromString(payload))))


def _graphs(proto: AttributeProto) -> list[GraphProto]:
    return [*([proto.g] if proto.HasField("g") else ()), *proto.graphs]


def subgraphs(roots: Iterable[GraphProto]) -> Iterator[GraphProto]:
    """The graphs and all graphs nested in them, outer before inner; iterative."""
    stack = list(roots)
    while stack:
        graph = stack.pop()
        yield graph
        for item in graph.node:
            for value in item.attribute:
                stack.extend(_graphs(value))


def nested_tensors(roots: Iterable[GraphProto], *extra: AttributeProto) -> Iterator[TensorProto]:
    """Every tensor in the graphs, in graphs nested in them, and in the attributes given."""
    attributes: list[AttributeProto] = list(extra)
    for graph in subgraphs(roots):
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
        attributes.extend(a for n in graph.node for a in n.attribute)
    for value in attributes:
        yield from ([value.t] if value.HasField("t") else [])
        yield from value.tensors
        for sparse in ([value.sparse_tensor] if value.HasField("sparse_tensor") else []) + list(value.sparse_tensors):
            yield from (sparse.values, sparse.indices)


def captures(roots: list[GraphProto]) -> tuple[str, ...]:
    """Names that the graphs read and do not define: what they take from the graph around them. Iterative."""
    found: dict[str, None] = {}
    stack: list[tuple[GraphProto, frozenset[str]]] = [(g, frozenset()) for g in reversed(roots)]
    while stack:
        graph, outer = stack.pop()
        known = outer | {v.name for v in graph.input} | {t.name for t in graph.initializer}
        known |= {s.values.name for s in graph.sparse_initializer} | {o for n in graph.node for o in n.output}
        reads = [name for item in graph.node for name in item.input] + [v.name for v in graph.output]
        found.update((name, None) for name in reads if name and name not in known)
        inner = [g for item in graph.node for value in item.attribute for g in _graphs(value)]
        stack.extend((g, known) for g in reversed(inner))
    return tuple(found)


def node_proto(n: Node) -> NodeProto:
    """The NodeProto of a node."""
    proto = NodeProto(op_type=n.op, input=n.inputs, output=n.outputs)
    if n.name:
        proto.name = n.name
    if n.domain:
        proto.domain = n.domain
    if n.overload:
        proto.overload = n.overload
    if n.doc:
        proto.doc_string = n.doc
    for key, value in n.attributes.items():
        proto.attribute.append(attribute_proto(key, value))
    for key, text in n.metadata.items():
        proto.metadata_props.add(key=key, value=text)
    return proto


def attribute_proto(name: str, value: Attribute) -> AttributeProto:
    """The AttributeProto of a value; an empty tuple (whose kind is unknown) is written as empty INTS."""
    if isinstance(value, OpaqueAttribute):
        carried = AttributeProto()
        carried.ParseFromString(value.payload)
        if carried.name != name:
            carried.name = name
        return carried
    if isinstance(value, Weight):
        return _P(name=name, type=_P.TENSOR, t=tensor_proto(value))
    if isinstance(value, int):
        return _P(name=name, type=_P.INT, i=value)
    if isinstance(value, float):
        return _P(name=name, type=_P.FLOAT, f=value)
    if isinstance(value, bytes):
        return _P(name=name, type=_P.STRING, s=value)
    if any(isinstance(v, float) for v in value):
        return _P(name=name, type=_P.FLOATS, floats=[float(v) for v in value])
    if any(isinstance(v, bytes) for v in value):
        return _P(name=name, type=_P.STRINGS, strings=[v for v in value if isinstance(v, bytes)])
    return _P(name=name, type=_P.INTS, ints=[int(v) for v in value])

"""NodeProto and AttributeProto to nodes and back; what a subgraph captures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice

import onnx
from google.protobuf.message import Message
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from superopt.formats.onnx_tensors import ExternalFiles, internalise, tensor_proto, weight
from superopt.ir.errors import InvalidModel, ResourceLimit, printable
from superopt.ir.graph import Attribute, Node, OpaqueAttribute, Weight, label

__all__ = [
    "attribute_from_payload",
    "attribute_kind",
    "attribute_proto",
    "captures",
    "check_functions",
    "check_model",
    "check_nodes",
    "check_opset",
    "check_text",
    "expanded_nodes",
    "expanded_sizes",
    "minimum_ir_version",
    "nested_tensors",
    "node",
    "node_keys",
    "node_proto",
    "more_subgraphs",
    "subgraphs",
]


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


def more_subgraphs(roots: Iterable[GraphProto], most: int) -> bool:
    """Whether the graphs and all graphs nested in them are more than so many; no more of them are counted."""
    return any(True for _ in islice(subgraphs(roots), most, None))


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


# -- Checks of a model ---------------------------------------------------------------------------------------------
#
# What an ONNX model must satisfy before anything else reads it: versions, operator signatures, bounded functions.


MAX_EXPANDED_NODES = 10_000_000
_Single = onnx.defs.OpSchema.FormalParameterOption.Single


def check_model(model: ModelProto) -> None:
    """The parts of a file that tell a model from noise.

    Raises:
        InvalidModel: there is no IR version or it is newer than known, or there is no graph.
    """
    if not model.HasField("graph"):
        raise InvalidModel("is not an ONNX model: it holds no graph")
    if model.ir_version < 1:
        raise InvalidModel("is not an ONNX model: it states no IR version")
    if model.ir_version > onnx.IR_VERSION:
        raise InvalidModel(f"has IR version {model.ir_version}; the newest known is {onnx.IR_VERSION}")


def check_text(root: Message) -> None:
    """Every string in a message is UTF-8 (the parser lets others pass, as bytes). Tensors' elements are not read.

    Raises:
        InvalidModel: one is not.
    """
    stack: list[Message] = [root]
    while stack:
        message = stack.pop()
        if isinstance(message, TensorProto):
            _text(message.name, message.doc_string)
            stack += [*message.external_data, *message.metadata_props]
            continue
        for field, value in message.ListFields():
            if field.type == field.TYPE_MESSAGE:
                stack.extend([value] if isinstance(value, Message) else value)
            elif field.type == field.TYPE_STRING:
                _text(*([value] if isinstance(value, str | bytes) else value))


def _text(*values: str | bytes) -> None:
    for value in values:
        if isinstance(value, bytes):
            raise InvalidModel(f"the name or text {printable(repr(value))} in it is not UTF-8")


def check_opset(opset: Mapping[str, int], nodes: Sequence[Node]) -> None:
    """Refuse operator set versions that cannot be, and nodes of ONNX's own domain without one.

    Raises:
        InvalidModel: a version is below 1 or newer than known, or is missing.
    """
    newest = onnx.defs.onnx_opset_version()
    for domain, version in opset.items():
        name = printable(domain or "ai.onnx")
        if version < 1 or version > (newest if domain == "" else 2**31 - 1):
            raise InvalidModel(
                f"opset version {version} of {name} does not exist", hint=f"ai.onnx goes from 1 to {newest}"
            )
    if "" not in opset:
        for n in nodes:
            if n.domain == "":
                raise InvalidModel("no opset version is stated for ai.onnx, the operator's domain", where=label(n))


@lru_cache(maxsize=4096)
def _signature(
    op: str, domain: str, version: int
) -> tuple[int, int, int, int, tuple[int, ...], tuple[str, ...]] | None:
    """Least and most inputs and outputs, positions of required inputs, required attributes; ``None`` if not known."""
    try:
        schema = onnx.defs.get_schema(op, version, domain)
    except onnx.defs.SchemaError:
        return None
    if schema.deprecated:
        return None
    required = tuple(i for i, p in enumerate(schema.inputs) if p.option == _Single and i < schema.min_input)
    attributes = tuple(name for name, a in schema.attributes.items() if a.required)
    return schema.min_input, schema.max_input, schema.min_output, schema.max_output, required, attributes


def check_nodes(nodes: Sequence[Node], opset: Mapping[str, int], local: frozenset[tuple[str, str]]) -> None:
    """Every node has the inputs, outputs and attributes that its operator requires. Operators not known pass.

    Args:
        nodes: of the main graph.
        opset: versions by domain.
        local: (domain, name) of the model's own functions.

    Raises:
        InvalidModel: a node lacks an input or attribute, or has too many inputs or outputs.
    """
    for n in nodes:
        version = opset.get(n.domain)
        if version is None or (n.domain, n.op) in local:
            continue
        known = _signature(n.op, n.domain, version)
        if known is None:
            continue
        least_in, most_in, least_out, most_out, required, attributes = known
        if not least_in <= len(n.inputs) <= most_in:
            raise InvalidModel(f"has {len(n.inputs)} inputs; {_range(least_in, most_in)} are needed", where=label(n))
        if not least_out <= len(n.outputs) <= most_out:
            raise InvalidModel(
                f"has {len(n.outputs)} outputs; {_range(least_out, most_out)} are needed", where=label(n)
            )
        for position in required:
            if n.inputs[position] == "":
                raise InvalidModel(f"input {position} is required but left out", where=label(n))
        for name in attributes:
            if name not in n.attributes:
                raise InvalidModel(f"attribute {name!r} is required but missing", where=label(n))


def _range(least: int, most: int) -> str:
    return f"{least}" if least == most else f"at least {least}" if most >= 2**31 - 1 else f"{least} to {most}"


_Key = tuple[str, str, str]


def check_functions(functions: Sequence[FunctionProto], calls: Iterable[_Key]) -> frozenset[tuple[str, str]]:
    """Bound what the model's functions expand to, without expanding them; gives their (domain, name) pairs.

    Args:
        functions: the model's own.
        calls: (domain, operator, overload) of every node outside them; read only where there are functions.

    Raises:
        InvalidModel: two functions have one name, one calls itself (through others too), or one takes the name of an
            operator of ONNX's own domain.
        ResourceLimit: inlining would give more than ten million nodes.
    """
    if not functions:
        return frozenset()
    bodies = {(_domain(f.domain), f.name, f.overload): f for f in functions}
    if len(bodies) != len(functions):
        raise InvalidModel("two functions of the model have the same domain and name")
    newest = onnx.defs.onnx_opset_version()
    for domain, name, _ in bodies:
        if domain == "" and _signature(name, "", newest) is not None:
            raise InvalidModel(f"the model's function {printable(name)!r} takes the name of an ONNX operator")
    total = expanded_nodes(functions, calls)
    if total > MAX_EXPANDED_NODES:
        raise ResourceLimit(f"the model's functions expand to {total:.3g} nodes; the limit is {MAX_EXPANDED_NODES}")
    return frozenset((domain, name) for domain, name, _ in bodies)


def expanded_nodes(functions: Sequence[FunctionProto], calls: Iterable[_Key]) -> int:
    """How many nodes the calls are when the model's functions are put in their places; nothing is expanded.

    Raises:
        InvalidModel: a function calls itself.
    """
    size = expanded_sizes(functions)
    return sum(size.get(key, 1) for key in calls)


def expanded_sizes(functions: Sequence[FunctionProto]) -> dict[_Key, int]:
    """By (domain, name, overload): how many nodes a call of the function is, those of its calls included.

    Raises:
        InvalidModel: a function calls itself.
    """
    bodies = {(_domain(f.domain), f.name, f.overload): f for f in functions}
    inner: dict[_Key, list[_Key]] = {}
    own: dict[_Key, int] = {}
    for key, body in bodies.items():
        items = list(node_keys(body.node, (g for n in body.node for a in n.attribute for g in (a.g, *a.graphs))))
        inner[key] = [t for t in items if t in bodies]
        own[key] = len(items)
    return _expanded(inner, own)


def node_keys(nodes: Iterable[NodeProto], graphs: Iterable[GraphProto]) -> Iterator[_Key]:
    """(domain, operator, overload) of the nodes, and of those in the graphs and in graphs nested in them."""
    nested = (n for g in subgraphs(graphs) for n in g.node)
    return ((_domain(n.domain), n.op_type, n.overload) for n in chain(nodes, nested))


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


@lru_cache(maxsize=4096)
def attribute_kind(op: str, domain: str, version: int, name: str) -> int:
    """The AttributeProto type that the operator's schema gives an attribute; 0 where it is not known."""
    try:
        found = onnx.defs.get_schema(op, version, domain).attributes.get(name)
    except onnx.defs.SchemaError:
        return 0
    return 0 if found is None else getattr(AttributeProto, str(found.type).rpartition(".")[2], 0)


def _expanded(calls: Mapping[_Key, list[_Key]], own: Mapping[_Key, int]) -> dict[_Key, int]:
    """Nodes of each function with its calls replaced by bodies; iterative depth-first search that finds cycles."""
    size: dict[_Key, int] = {}
    active: set[_Key] = set()
    for root in calls:
        stack = [(root, False)]
        while stack:
            key, leaving = stack.pop()
            if leaving:
                active.discard(key)
                size[key] = own[key] + sum(size[c] for c in calls[key])
            elif key in active:
                raise InvalidModel(f"the model's function {printable(key[1])!r} calls itself")
            elif key not in size:
                active.add(key)
                stack.append((key, True))
                stack.extend((c, False) for c in dict.fromkeys(calls[key]) if c not in size)
    return size


def minimum_ir_version(opset: Mapping[str, int], dtypes: frozenset[str], metadata: bool) -> int:
    """The IR version to write when the file did not state one: the oldest that can hold the graph, at least 8.

    Args:
        opset: versions by domain.
        dtypes: element types that occur.
        metadata: whether nodes, values or weights carry metadata (IR version 10).
    """
    needed = [8, 10 if metadata else 8]
    needed += [n for n, kinds in _IR_TYPES if dtypes & kinds]
    if "" in opset:
        rows = [row for row in onnx.helper.VERSION_TABLE if row[2] >= opset[""]]
        needed.append(min((row[1] for row in rows), default=onnx.IR_VERSION))
    return min(max(needed), onnx.IR_VERSION)


_IR_TYPES = (
    (9, {"float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"}),
    (10, {"int4", "uint4"}),
    (11, {"float4e2m1"}),
    (12, {"float8e8m0"}),
    (13, {"int2", "uint2"}),
)

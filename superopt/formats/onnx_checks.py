"""What an ONNX model must satisfy before anything else reads it: versions, operator signatures, bounded functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain

import onnx
from google.protobuf.message import Message
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from superopt.formats.onnx_nodes import subgraphs
from superopt.ir.errors import InvalidModel, ResourceLimit, printable
from superopt.ir.graph import Node, label

__all__ = [
    "attribute_kind", "check_functions", "check_model", "check_nodes", "check_opset", "check_text", "expanded_nodes",
    "expanded_sizes", "minimum_ir_version", "node_keys",
]  # fmt: skip

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

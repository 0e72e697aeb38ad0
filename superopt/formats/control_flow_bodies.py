"""Graphs inside nodes: the branches of an If and the bodies of Loop and Scan, as graphs of their own, and back.

A body is a graph whose inputs are its own and the values that it captures; constants that it captures are weights of
it. What is carried from one turn of a Loop to the next may change its shape: a size is known only where the body gives
back what it was given (by induction over turns).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from onnx import AttributeProto, GraphProto, NodeProto, TensorProto

from superopt.formats.function_inlining import MODEL
from superopt.formats.onnx_nodes import attribute_from_payload, more_subgraphs, node_proto, subgraphs
from superopt.formats.onnx_nodes import node as read_node
from superopt.formats.onnx_tensors import ExternalFiles, tensor_proto, unknown_dim, value, value_info, weight
from superopt.ir.errors import InvalidModel, ResourceLimit
from superopt.ir.graph import Graph, Node, OpaqueAttribute, Value, Weight, unused_name
from superopt.ir.types import DType, TensorType
from superopt.ops.shape_inference import InferredTypes, infer

__all__ = [
    "CONTROL_FLOW", "ControlFlowBody", "all_names", "bodies", "count_nodes", "names_read", "nested_operators",
    "places_read", "read_parts", "with_body",
]  # fmt: skip

_OWN_DOMAINS = ("", "ai.onnx")
CONTROL_FLOW = ("If", "Loop", "Scan")  # operators with bodies
_MOST_NESTED = 1_000  # graphs in a body that is read: each takes a millisecond, four times in an optimisation
_LARGEST = 64 << 20  # bytes of a body that is read: with more in it, it is weights that would be copied


@dataclass(frozen=True)
class ControlFlowBody:
    """A graph inside a node.

    Attributes:
        place: the node's position in the graph around it.
        attribute: the node's attribute that holds it.
        graph: it, as a graph of its own. Its inputs are its own, and then the values that it captures.
        own: how many of the inputs are its own.
    """

    place: int
    attribute: str
    graph: Graph
    own: int


def bodies(graph: Graph, typing: InferredTypes) -> Iterator[ControlFlowBody]:
    """The bodies that can be read and whose inputs have known types, those inside bodies not included.

    A body with more than 1,000 graphs, itself and those inside it, is none of them: its node is carried through.

    Args:
        graph: the graph around them.
        typing: its types.
    """
    for place, node in enumerate(graph.nodes):
        for name, held in _held(node):
            proto = AttributeProto.FromString(held.payload)
            if proto.ref_attr_name or not proto.HasField("g") or more_subgraphs([proto.g], _MOST_NESTED):
                continue
            body = _Reader(graph, typing, node, proto.g, held.captures).read()
            if body is not None:
                yield ControlFlowBody(place, name, *body)


def read_parts(
    initializers: Iterable[TensorProto], nodes: Iterable[NodeProto]
) -> tuple[tuple[Weight, ...], tuple[Node, ...]] | None:
    """Weights and nodes of a graph inside the model; ``None`` where one of them cannot be read."""
    files = ExternalFiles(None)
    try:
        return tuple(weight(t, files) for t in initializers), tuple(read_node(n, files) for n in nodes)
    except (InvalidModel, ResourceLimit):
        return None


def places_read(graph: Graph, found: Sequence[ControlFlowBody]) -> frozenset[int]:
    """The positions of the nodes whose bodies are all among those that were found."""
    held = Counter(place for place, node in enumerate(graph.nodes) for _ in _held(node))
    return frozenset(place for place, count in Counter(b.place for b in found).items() if count == held[place])


def _held(node: Node) -> Iterator[tuple[str, OpaqueAttribute]]:
    if node.op not in CONTROL_FLOW or node.domain not in _OWN_DOMAINS:
        return
    for name, given in sorted(node.attributes.items()):
        if isinstance(given, OpaqueAttribute) and 0 < len(given.payload) <= _LARGEST:
            yield name, given


@dataclass(frozen=True)
class _Reader:
    """Reads one body."""

    graph: Graph
    typing: InferredTypes
    node: Node
    proto: GraphProto
    captures: tuple[str, ...]

    def read(self) -> tuple[Graph, int] | None:
        """The graph and how many inputs are its own; ``None`` where something in it is not understood."""
        proto = self.proto
        outputs = [v.name for v in proto.output]
        if proto.sparse_initializer or len(set(outputs)) < len(outputs) or not outputs:
            return None
        captured = [Value(n, self.typing.types.get(n)) for n in self.captures if n not in self.graph.constants]
        constants = [self.graph.constants[n] for n in self.captures if n in self.graph.constants]
        own = self._own_types()
        if own is None or not all(_known(v) for v in captured) or any(w.data is None for w in constants):
            return None
        parts = read_parts(proto.initializer, proto.node)
        if parts is None:
            return None
        weights, nodes = (*parts[0], *constants), parts[1]
        names = [v.name for v in proto.input]
        inside = {*names, *(t.name for t in proto.initializer), *(o for n in nodes for o in n.outputs if o)}
        if inside & self.graph.names:
            return None  # ONNX does not allow it, and runtimes differ in what they read
        extras = {k: v for k, v in self.graph.extras.items() if k == MODEL}
        found = Graph(
            proto.name, (), tuple(Value(o, None) for o in outputs), weights, nodes, self.graph.opset, extras=extras
        )
        if set(names) & {w.name for w in weights}:
            return None  # an input with a default
        typed = self._invariant(found, names, own, captured)
        if typed is None:
            return None
        try:
            return typed.checked(), len(names)
        except InvalidModel:
            return None

    def _own_types(self) -> list[TensorType] | None:
        """What the first turn feeds; ``None`` where a type or the count is not known."""
        given = [self.typing.types.get(n) if n else None for n in self.node.inputs]
        if self.node.op == "If":
            return [] if not self.proto.input else None
        if self.node.op == "Loop":
            steering = [value(v).type for v in self.proto.input[:2]]
            wanted = (DType.INT64, DType.BOOL)
            own = [t for t, d in zip(steering, wanted, strict=False) if isinstance(t, TensorType) and t.dtype is d]
            if len(own) < len(wanted) or any(t.shape not in ((), (1,)) for t in own):
                return None
            carried = given[2:]
        else:
            scanned = self.node.attributes.get("num_scan_inputs")
            if not isinstance(scanned, int) or self.graph.opset.get("", 0) < 9 or not 0 < scanned <= len(given):
                return None
            own, first = [], len(given) - scanned
            axes = self.node.attributes.get("scan_input_axes", (0,) * scanned)
            pairs = zip(given[first:], axes if isinstance(axes, tuple) else (), strict=False)
            slices = [_slice(kind, axis) for kind, axis in pairs]
            carried = [*given[:first], *slices]
        types = [*own, *(t for t in carried if t is not None and t.shape is not None)]
        return types if len(types) == len(self.proto.input) == len(own) + len(carried) else None

    def _invariant(
        self, found: Graph, names: Sequence[str], types: list[TensorType], captured: Sequence[Value]
    ) -> Graph | None:
        """The graph with the types that its inputs have at every turn; ``None`` where a rank changes."""
        back = self._carried()
        while True:
            inputs = (*(Value(n, t) for n, t in zip(names, types, strict=True)), *captured)
            typed = replace(found, inputs=inputs)
            known = infer(typed).types
            changed = False
            for position, output in back.items():
                was, after = types[position], known.get(found.outputs[output].name)
                if after is None or after.shape is None or after.dtype is not was.dtype:
                    return None
                if len(after.shape) != len(was.shape or ()):
                    return None
                shape = tuple(
                    a if a == b or a == unknown_dim(names[position], axis) else unknown_dim(names[position], axis)
                    for axis, (a, b) in enumerate(zip(was.shape or (), after.shape, strict=True))
                )
                changed |= shape != was.shape
                types[position] = TensorType(was.dtype, shape)
            if not changed:
                outputs = tuple(Value(v.name, known.get(v.name)) for v in found.outputs)
                return replace(typed, outputs=outputs)

    def _carried(self) -> dict[int, int]:
        """For inputs that a turn leaves to the next, by position: the position of the output."""
        if self.node.op == "Loop":
            return {i: i - 1 for i in range(2, len(self.proto.input))}
        if self.node.op == "Scan":
            scanned = self.node.attributes["num_scan_inputs"]
            assert isinstance(scanned, int)
            return {i: i for i in range(len(self.proto.input) - scanned)}
        return {}


def _known(item: Value) -> bool:
    return isinstance(item.type, TensorType) and item.type.shape is not None


def _slice(kind: TensorType | None, axis: object) -> TensorType | None:
    """What a Scan feeds of a value in one turn."""
    shape = None if kind is None else kind.shape
    if kind is None or not shape or not isinstance(axis, int) or not -len(shape) <= axis < len(shape):
        return None
    at = axis % len(shape)
    return TensorType(kind.dtype, (*shape[:at], *shape[at + 1 :]))


def with_body(graph: Graph, body: ControlFlowBody, made: Graph) -> Graph:
    """The graph with another body in the place of one.

    Weights that the new body has and the old one had not become weights of the graph around it, under unused names: a
    file keeps them outside of the node.

    Args:
        graph: the graph around them.
        body: one of :func:`bodies` of it.
        made: what computes the same, with the inputs and outputs of the body's graph by name; it may have further
            outputs, which the caller gives the node, too.
    """
    node = graph.nodes[body.place]
    held = node.attributes[body.attribute]
    assert isinstance(held, OpaqueAttribute)
    proto = AttributeProto.FromString(held.payload)
    inside = {t.name for t in proto.g.initializer}
    was = body.graph.weight
    new: list[Weight] = []
    kept: list[Weight] = []
    captured = {n for item in made.nodes for n in item.captures}  # what nested bodies read keeps its name
    for item in made.weights:
        unchanged = (old := was.get(item.name)) is not None and _same(old, item)
        if unchanged or item.name in captured:
            kept += [item] if item.name in inside or not unchanged else []
            continue
        new.append(item)
    taken = set(all_names(graph)) if new else set[str]()
    names = {item.name: unused_name(item.name, taken) for item in new}
    added = [replace(item, name=names[item.name]) for item in new]
    nodes = [replace(n, inputs=tuple(names.get(i, i) for i in n.inputs)) for n in made.nodes]
    del proto.g.node[:], proto.g.initializer[:]
    proto.g.output.extend(value_info(v) for v in made.outputs[len(body.graph.outputs) :])
    proto.g.node.extend(node_proto(n) for n in nodes)
    proto.g.initializer.extend(tensor_proto(w) for w in kept)
    there = {o for n in nodes for o in n.outputs} | {w.name for w in kept} | {v.name for v in proto.g.input}
    declared = [v for v in proto.g.value_info if v.name in there]
    del proto.g.value_info[:]
    proto.g.value_info.extend(declared)
    written = attribute_from_payload(proto.SerializeToString(deterministic=True))
    changed = replace(node, attributes={**node.attributes, body.attribute: written})
    around = replace(graph, nodes=(*graph.nodes[: body.place], changed, *graph.nodes[body.place + 1 :]))
    return replace(around, weights=(*_read(around, set(held.captures) - set(written.captures)), *added))


def _read(graph: Graph, unsure: set[str]) -> tuple[Weight, ...]:
    """The graph's weights, without those of the names that nothing reads."""
    read = names_read(graph)
    return tuple(w for w in graph.weights if w.name not in unsure or w.name in read)


def names_read(graph: Graph) -> set[str]:
    """What nodes read, and the inputs and outputs."""
    return {n for node in graph.nodes for n in node.reads} | {v.name for v in (*graph.inputs, *graph.outputs)}


def _same(a: Weight, b: Weight) -> bool:
    if a is b:
        return True
    return a.type == b.type and a.data is not None and b.data is not None and a.data.digest == b.data.digest


def all_names(graph: Graph) -> frozenset[str]:
    """Of all values, those inside bodies included."""
    inner: set[str] = set()
    for body in subgraphs(_protos(graph.nodes)):
        inner.update(v.name for v in body.input)
        inner.update(t.name for t in body.initializer)
        inner.update(s.values.name for s in body.sparse_initializer)
        inner.update(o for n in body.node for o in n.output)
    return graph.names | inner - {""}


def nested_operators(graph: Graph) -> list[str]:
    """The operators (``domain.op`` outside ONNX's own domain) that stand inside bodies, each as often as it does."""
    return [
        f"{item.domain}.{item.op_type}" if item.domain not in _OWN_DOMAINS else item.op_type
        for body in subgraphs(_protos(graph.nodes)) for item in body.node
    ]  # fmt: skip


def count_nodes(graph: Graph) -> int:
    """Nodes of the graph and of the bodies inside it."""
    return len(graph.nodes) + len(nested_operators(graph))


def _protos(nodes: Sequence[Node]) -> Iterator[GraphProto]:
    for node in nodes:
        for _, held in _held(node):
            proto = AttributeProto.FromString(held.payload)
            yield from ([proto.g] if proto.HasField("g") else [])

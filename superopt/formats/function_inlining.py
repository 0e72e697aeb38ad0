"""A model's own functions: bodies in place of calls.

A call means its function's body with the call's operands and attributes put in (ONNX, "Functions"). So types, rules and
prices go through a call once the body stands in its place. Which nodes came from which call is remembered, so that
:func:`superopt.pipeline.function_inlining.restore_calls` can undo it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from superopt.formats.onnx_nodes import attribute_proto, expanded_sizes, node_keys, subgraphs
from superopt.formats.onnx_nodes import node as read_node
from superopt.formats.onnx_tensors import ExternalFiles
from superopt.ir.errors import InvalidModel, ResourceLimit, printable
from superopt.ir.graph import Graph, Node, OpaqueAttribute, attribute_key, unused_name
from superopt.ops.constants_and_shapes import weight_of

__all__ = [
    "InlinedFunctionCall",
    "Functions",
    "InlinedGraph",
    "MODEL",
    "bound_body",
    "calls_in",
    "function_names",
    "functions_in",
    "inlined",
    "with_calls",
    "without_functions",
]


MOST_NODES = 50_000  # that calls expand to: as many as the largest graphs that exporters write; a search takes minutes
MOST_BYTES = 64 << 20  # of bodies, each as often as it is called: tensors inside them are copied
MOST_DEPTH = 64  # of calls inside bodies
_RUNTIMES_OWN = ("ai.onnx", "com.microsoft", "com.ms")  # domains with operators that a runtime takes before a function
MODEL = "onnx.model"  # the part of the file that functions are in

Key = tuple[str, str, str]  # domain, name and overload
Functions = Mapping[Key, FunctionProto]


@dataclass(frozen=True)
class InlinedFunctionCall:
    """A call, and what stands in its place: nodes, and calls of other functions in whose places stand others again."""

    node: Node
    body: tuple[Node | InlinedFunctionCall, ...]

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes that stand in its place, in order."""
        return tuple(
            n for part in self.body for n in (part.nodes if isinstance(part, InlinedFunctionCall) else (part,))
        )


@dataclass(frozen=True)
class InlinedGraph:
    """A graph with bodies in place of calls.

    Attributes:
        graph: it; the model's own graph where nothing is called.
        calls: those that have been replaced.
        refused: functions whose calls stay, and why.
    """

    graph: Graph
    calls: tuple[InlinedFunctionCall, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


def functions_in(graph: Graph) -> dict[Key, FunctionProto]:
    """The model's own functions by domain, name and overload."""
    payload = graph.extras.get(MODEL)
    if not payload:
        return {}
    return {(_domain(f.domain), f.name, f.overload): f for f in ModelProto.FromString(payload).functions}


def function_names(graph: Graph) -> tuple[str, ...]:
    """How messages name the model's own functions, sorted."""
    return tuple(sorted(map(_name, functions_in(graph))))


def calls_in(graph: Graph) -> Iterator[Key]:
    """Every operator that is applied, in subgraphs too."""
    yield from (_key(n) for n in graph.nodes)
    opaque = (a for n in graph.nodes for a in n.attributes.values() if isinstance(a, OpaqueAttribute))
    for proto in (AttributeProto.FromString(a.payload) for a in opaque):
        yield from node_keys((), (proto.g, *proto.graphs))


def bound_body(function: FunctionProto, call: Node) -> list[NodeProto]:
    """The nodes of a function's body with a call's attributes, or the defaults, in place of references to them.

    An attribute that refers to one which the call leaves out, and which has no default, is left out, too.
    """
    given = {a.name: a for a in function.attribute_proto}
    given |= {name: attribute_proto(name, value) for name, value in call.attributes.items()}
    return [_bound(proto, given) for proto in function.node]


def _bound(proto: NodeProto, given: Mapping[str, AttributeProto]) -> NodeProto:
    made = NodeProto()
    made.CopyFrom(proto)
    del made.attribute[:]
    for item in proto.attribute:
        if item.ref_attr_name:
            if item.ref_attr_name in given:
                made.attribute.append(given[item.ref_attr_name])
                made.attribute[-1].name = item.name
            continue
        made.attribute.append(item)
        for graph in _graphs(made.attribute[-1]):
            inner = [_bound(n, given) for n in graph.node]
            del graph.node[:]
            graph.node.extend(inner)
    return made


def inlined(graph: Graph) -> InlinedGraph:
    """The graph with bodies in place of calls, those inside bodies included, as far as that is bounded.

    Calls inside subgraphs (the branches of an If) stay, as subgraphs do. So does a call whose function may have another
    meaning for a runtime, or whose operators have in the model's opset.
    """
    functions = functions_in(graph)
    if not any(_key(n) in functions for n in graph.nodes):
        return InlinedGraph(graph)
    run = _Inlining(graph, functions)
    parts = [run.call(n, 0) or n if _key(n) in functions else n for n in graph.nodes]
    calls = tuple(p for p in parts if isinstance(p, InlinedFunctionCall))
    nodes = tuple(n for p in parts for n in (p.nodes if isinstance(p, InlinedFunctionCall) else (p,)))
    gone = {f"onnx.node:{o}" for c in calls for o in c.node.outputs}
    extras = {k: v for k, v in graph.extras.items() if k not in gone}
    made = replace(graph, nodes=nodes, opset=run.opset, extras=extras)
    try:
        made = made.checked()
    except InvalidModel as error:  # a body that no rule of ONNX's allows: as it came, then
        return InlinedGraph(graph, (), {"of the model": f"bodies in place of the calls make no valid graph: {error}"})
    return InlinedGraph(without_functions(made, functions) if calls else graph, calls, run.refused)


class _Inlining:
    """Bodies in place of a graph's calls, in progress."""

    def __init__(self, graph: Graph, functions: Functions) -> None:
        self.functions = functions
        self.sizes = expanded_sizes(tuple(functions.values()))
        self.taken = set(graph.names) | {n.name for n in graph.nodes}
        self.opset = dict(graph.opset)
        self.nodes, self.bytes = MOST_NODES, MOST_BYTES
        self.refused: dict[str, str] = {}

    def call(self, node: Node, depth: int) -> InlinedFunctionCall | None:
        """What stands in a call's place; ``None`` where it stays."""
        key = _key(node)
        function = self.functions[key]
        why = self._refusal(function, node, depth)
        if not why:
            try:
                return self._expanded(function, node, depth)
            except (InvalidModel, ResourceLimit) as error:
                why = f"its body cannot be read: {error}"
        self.refused.setdefault(_name(key), why)
        return None

    def _refusal(self, function: FunctionProto, node: Node, depth: int) -> str:
        key, size = _key(node), function.ByteSize()
        if any(key[0] == d or key[0].startswith(f"{d}.") for d in _RUNTIMES_OWN):
            return "a runtime may have an operator of this name, which it takes before the model's function"
        if depth > MOST_DEPTH or (depth == 0 and self.sizes[key] > self.nodes) or size > self.bytes:
            return f"its call stands for {self.sizes[key]:.6g} nodes: calls are followed to {MOST_NODES} in all, " \
                   f"{MOST_BYTES >> 20} MiB of bodies, and {MOST_DEPTH} calls inside each other"  # fmt: skip
        if why := _malformed(function, node):
            return why
        versions = {_domain(o.domain): o.version for o in function.opset_import}
        added: dict[str, int] = {}
        for inner in _all_nodes(function.node):
            domain = _domain(inner.domain)
            if (domain, inner.op_type, inner.overload) in self.functions:
                continue
            own, here = versions.get(domain), self.opset.get(domain, added.get(domain))
            if own is None:
                return f"it applies {printable(inner.op_type)} and imports no opset of its domain"
            if here is None:
                added[domain] = own
            elif not _same_operator(inner.op_type, domain, own, here):
                return f"{printable(inner.op_type)} of its opset {own} is another in the model's opset {here}"
        self.opset |= added
        if depth == 0:
            self.nodes -= self.sizes[key]
        self.bytes -= size
        return ""

    def _expanded(self, function: FunctionProto, node: Node, depth: int) -> InlinedFunctionCall:
        prefix = node.name or next((o for o in node.outputs if o), node.op)
        names = {"": ""} | dict.fromkeys(function.input, "")
        names |= dict(zip(function.input, node.inputs, strict=False))
        given = {n for n in node.outputs if n}
        names |= {n: o for n, o in zip(function.output, node.outputs, strict=False) if o}
        nodes: list[Node] = []
        for proto in bound_body(function, node):
            renamed = self._renamed(proto, names, prefix)
            renamed.name = unused_name(f"{prefix}/{proto.name or proto.op_type}", self.taken)
            nodes.append(read_node(renamed, ExternalFiles(None)))
        body: list[Node | InlinedFunctionCall] = []
        for inner in reversed(nodes):  # what nothing reads is not computed
            if given.intersection(inner.outputs):
                given.update(inner.reads)
                made = self.call(inner, depth + 1) if _key(inner) in self.functions else None
                body.append(made or inner)
        return InlinedFunctionCall(node, tuple(reversed(body)))

    def _renamed(self, proto: NodeProto, names: dict[str, str], prefix: str) -> NodeProto:
        """A node with the values outside in place of those of the body; of a subgraph, its own get names of their own,
        as none may hide one outside."""
        for output in proto.output:
            if output not in names:
                names[output] = unused_name(f"{prefix}/{output}", self.taken)
        proto.input[:] = [names[n] for n in proto.input]
        proto.output[:] = [names[n] for n in proto.output]
        for graph in (g for a in proto.attribute for g in _graphs(a)):
            self._rename_subgraph(graph, dict(names), prefix)
        return proto

    def _rename_subgraph(self, graph: GraphProto, names: dict[str, str], prefix: str) -> None:
        tensors: list[TensorProto] = [*graph.initializer, *(s.values for s in graph.sparse_initializer)]
        own = [*(v.name for v in graph.input), *(t.name for t in tensors), *(o for n in graph.node for o in n.output)]
        names |= {n: unused_name(f"{prefix}/{n}", self.taken) for n in own if n}
        for value in (*graph.input, *graph.output, *graph.value_info):
            value.name = names[value.name]
        for tensor in tensors:
            tensor.name = names[tensor.name]
        for inner in graph.node:
            self._renamed(inner, names, prefix)


def _malformed(function: FunctionProto, node: Node) -> str:
    """Why a call cannot be told from its function: names that are given twice, or that nothing defines."""
    inputs, outputs = list(function.input), list(function.output)
    if len(node.inputs) > len(inputs) or len(node.outputs) > len(outputs):
        return "it is called with more inputs or outputs than it has"
    defined = set(inputs)
    for inner in function.node:
        if not defined.issuperset(n for n in inner.input if n) or not defined.isdisjoint(o for o in inner.output if o):
            return "its body reads what nothing before defines, or defines something twice"
        defined.update(o for o in inner.output if o)
    if len({*inputs, *outputs}) < len(inputs) + len(outputs) or not defined.issuperset(outputs):
        return "an output of it is an input, or another output, or is not defined"
    return ""


def _same_operator(op: str, domain: str, version: int, other: int) -> bool:
    """Whether an operator is the same in two versions of its domain, but for the element types that it takes."""
    if version == other:
        return True
    try:
        a, b = (onnx.defs.get_schema(op, v, domain) for v in (version, other))
    except onnx.defs.SchemaError:
        return False
    return a.since_version == b.since_version or (not a.deprecated and not b.deprecated and _form(a) == _form(b))


def _form(schema: onnx.defs.OpSchema) -> tuple[object, ...]:
    attributes = {
        n: (str(a.type), a.required, a.default_value.SerializeToString()) for n, a in schema.attributes.items()
    }
    operands = [[(f.name, str(f.option)) for f in fs] for fs in (schema.inputs, schema.outputs)]
    return attributes, operands


def without_functions(graph: Graph, functions: Functions) -> Graph:
    """The graph without the functions that it calls nowhere, and without opsets that only calls of them needed."""
    called, stack = set[Key](), [k for k in calls_in(graph) if k in functions]
    while stack:
        key = stack.pop()
        if key not in called:
            called.add(key)
            stack += [_proto_key(n) for n in _all_nodes(functions[key].node) if _proto_key(n) in functions]
    model = ModelProto.FromString(graph.extras.get(MODEL, b""))
    kept = [f for f in model.functions if (_domain(f.domain), f.name, f.overload) in called]
    del model.functions[:]
    model.functions.extend(kept)
    payload = model.SerializeToString(deterministic=True)
    extras = {k: v for k, v in graph.extras.items() if k != MODEL} | ({MODEL: payload} if payload else {})
    read = {k[0] for k in calls_in(graph)} | {k[0] for k in called}
    gone = {k[0] for k in functions} - read - {""}
    return replace(graph, extras=extras, opset={d: v for d, v in graph.opset.items() if d not in gone})


def _all_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Nodes, and those of all graphs inside them."""
    top = list(nodes)
    yield from top
    for graph in subgraphs(g for n in top for a in n.attribute for g in _graphs(a)):
        yield from graph.node


def _graphs(item: AttributeProto) -> list[GraphProto]:
    return [*([item.g] if item.HasField("g") else ()), *item.graphs]


def _key(node: Node) -> Key:
    return _domain(node.domain), node.op, node.overload


def _proto_key(proto: NodeProto) -> Key:
    return _domain(proto.domain), proto.op_type, proto.overload


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _name(key: Key) -> str:
    domain, name, overload = map(printable, key)
    return f"{domain}.{name}" + (f":{overload}" if overload else "")


# -- Calls of functions --------------------------------------------------------------------------------------------
#
# Writes calls of a model's functions again, where the rewritten graph still contains their bodies unchanged.


def with_calls(graph: Graph, before: InlinedGraph, given: Graph) -> Graph:
    """A rewritten graph with calls again where the bodies still stand as they were, and nothing else reads inside.

    Args:
        graph: what was made of ``before.graph``.
        before: the model, bodies in place of calls.
        given: the model.
    """
    intact = list(_intact(graph, before.calls))
    made = _folded(graph, intact)
    if made is None:  # a call reads what another makes of it: as many as there can be, one by one
        made, several = graph, intact
        intact = []
        for call in several:
            more = _folded(made, [call])
            made, intact = (made, intact) if more is None else (more, [*intact, call])
    if not intact:
        return graph
    functions = functions_in(given)
    model = ModelProto.FromString(made.extras.get(MODEL, b""))
    del model.functions[:]
    model.functions.extend(functions.values())
    carried = {f"onnx.node:{o}" for c in intact for o in c.node.outputs}
    extras = {**made.extras, **{k: given.extras[k] for k in carried & given.extras.keys()}}
    extras[MODEL] = model.SerializeToString(deterministic=True)
    read = {domain for domain, _, _ in calls_in(made)}
    opset = {d: made.opset.get(d, v) for d, v in given.opset.items()}
    opset |= {d: v for d, v in made.opset.items() if d in read}
    return without_functions(replace(made, extras=extras, opset=opset), functions)


def _intact(graph: Graph, calls: Iterable[InlinedFunctionCall]) -> Iterator[InlinedFunctionCall]:
    """The outermost calls whose bodies stand in a graph as they were, with the operands that these read now."""
    standing = {n.outputs: n for n in graph.nodes}
    ends = {v.name for v in graph.outputs}
    stack = list(reversed(list(calls)))
    while stack:
        call = stack.pop()
        operands = _operands(graph, call, standing, ends)
        if operands is not None:
            yield replace(call, node=replace(call.node, inputs=tuple(operands.get(n, n) for n in call.node.inputs)))
        else:
            stack += [part for part in reversed(call.body) if isinstance(part, InlinedFunctionCall)]


def _operands(
    graph: Graph, call: InlinedFunctionCall, standing: Mapping[tuple[str, ...], Node], ends: set[str]
) -> dict[str, str] | None:
    """By operand of a call, what its body reads in its place; ``None`` where the body does not stand as it was, or
    something else reads what is inside."""
    within, inside = {n.outputs for n in call.nodes}, {o for n in call.nodes for o in n.outputs if o}
    operands: dict[str, str] = {}
    for node in call.nodes:
        found = standing.get(node.outputs)
        if found is None and not _is_weight(graph, node):
            return None
        if found is not None and not _reads(found, node, inside, operands):
            return None
        for name in node.outputs:
            read = name in ends or any(r.outputs not in within for r in graph.consumers.get(name, ()))
            if read and name not in call.node.outputs:
                return None
    there = graph.names.issuperset(operands.get(n, n) for n in call.node.reads)
    return operands if there and not within.isdisjoint(standing) else None


def _reads(found: Node, was: Node, inside: set[str], operands: dict[str, str]) -> bool:
    """Whether a node is as it was, but for what it reads from outside of the body: that is put among the operands."""
    if (found.op, found.domain, found.overload, found.attributes.keys(), len(found.inputs)) != (
        was.op, was.domain, was.overload, was.attributes.keys(), len(was.inputs),
    ):  # fmt: skip
        return False
    if any(attribute_key(found.attributes[k]) != attribute_key(was.attributes[k]) for k in was.attributes):
        return False
    pairs = [*zip(was.inputs, found.inputs, strict=True), *((n, n) for n in was.captures)]
    return all((a == b) if not a or a in inside else bool(b) and operands.setdefault(a, b) == b for a, b in pairs)


def _is_weight(graph: Graph, node: Node) -> bool:
    """Whether a Constant's tensor is a weight of the same name now."""
    weight = graph.constants.get(node.outputs[0])
    if weight is None or weight.data is None or (node.op, node.domain) != ("Constant", ""):
        return False
    was = weight_of(node)
    if was is None or was.data is None or was.type != weight.type:
        return False
    return was.data.digest == weight.data.digest or was.data.numpy().tobytes() == weight.data.numpy().tobytes()


def _folded(graph: Graph, calls: Sequence[InlinedFunctionCall]) -> Graph | None:
    """The graph with calls in place of their nodes; ``None`` where one would read what it makes itself."""
    place = {n.outputs: i for i, n in enumerate(graph.nodes)}
    nodes: list[Node | None] = list(graph.nodes)
    for call in calls:
        places = [place[n.outputs] for n in call.nodes if n.outputs in place]
        for position in places:
            nodes[position] = None
        nodes[max(places)] = call.node
    inside = {o for call in calls for n in call.nodes for o in n.outputs}
    weights = tuple(w for w in graph.weights if w.name not in inside)
    try:
        return replace(graph, nodes=tuple(n for n in nodes if n is not None), weights=weights).checked()
    except InvalidModel:
        return None

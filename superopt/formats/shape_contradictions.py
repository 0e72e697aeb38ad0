"""Refuses a model that holds a node whose operands exclude each other, in subgraphs and functions too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto

from superopt.formats.control_flow_bodies import read_parts
from superopt.formats.function_inlining import Functions, bound_body, functions_in
from superopt.formats.onnx_nodes import subgraphs
from superopt.formats.onnx_tensors import value
from superopt.ir.errors import InvalidModel, printable
from superopt.ir.graph import Graph, Node, OpaqueAttribute, Value, Weight, label
from superopt.ir.size_polynomial import Dim, substitute, sym, symbols
from superopt.ir.types import TensorType
from superopt.ops.onnx_type_inference import schema_types, type_conflict
from superopt.ops.shape_inference import CanonicalNode, InferredTypes, OpaqueNode, infer

__all__ = ["exclusion", "facts", "refuse_contradictions"]


# -- Contradictions between operators ------------------------------------------------------------------------------
#
# A contradiction makes a model invalid; an operator that superopt has no record of does not. Contradictions follow from
# facts: the types of inputs and weights, which a runtime enforces, and what inference derives from them. The declared
# type of an intermediate value is no fact, because a runtime only warns. An unknown size contradicts nothing, and one
# symbol for the sizes of two inputs does not make them equal.
#
# Three kinds count, and ONNX Runtime refuses each: a record's
# :class:`~superopt.ops.operator_semantics.ContradictoryShapes`, a shape that ONNX's own inference refuses, an element
# type that the operator's schema excludes. A node of a subgraph may never run, so only the latter two count there: a
# runtime refuses them when it loads the model.


def facts(graph: Graph) -> Graph:
    """The graph without what it merely claims: declared types of intermediates and outputs, shared names of sizes."""
    shared: set[str] = set()
    seen: set[str] = set()
    for tensor in graph.inputs:
        own = {n for d in dims(tensor) for n in symbols(d)}
        shared |= own & seen
        seen |= own
    fed = {value.name for value in graph.inputs}
    return replace(
        graph,
        inputs=tuple(separated(v, shared) for v in graph.inputs),
        outputs=tuple(Value(v.name, None) for v in graph.outputs),
        weights=tuple(w for w in graph.weights if w.name not in fed),
        values=(),
    )


def separated(value: Value, shared: set[str]) -> Value:
    """The value with names of sizes of its own in place of shared ones."""
    kind = value.type
    if not isinstance(kind, TensorType) or not any(n in shared for d in dims(value) for n in symbols(d)):
        return value
    own = {name: sym(f"{name}@{value.name}") for name in shared}
    return replace(value, type=TensorType(kind.dtype, tuple(substitute(d, own) for d in dims(value))))


def dims(value: Value) -> tuple[Dim, ...]:
    return (value.type.shape or ()) if isinstance(value.type, TensorType) else ()


def exclusion(graph: Graph, typing: InferredTypes, place: int, *, certain: bool) -> str:
    """Why no runtime runs a node, "" where nothing says so.

    Args:
        graph: made by :func:`facts`.
        typing: of that graph.
        place: of the node.
        certain: whether it runs whenever the model does; else only what a runtime refuses at loading counts.
    """
    node, how = graph.nodes[place], typing.nodes[place]
    if node.domain not in ("", "ai.onnx"):
        return ""
    opset = graph.onnx_version or 1
    types = tuple(typing.types.get(n) if n else None for n in node.inputs)
    if why := type_conflict(node.op, opset, tuple(None if t is None else t.dtype for t in types)):
        return why
    if isinstance(how, OpaqueNode) and how.contradiction:
        values = tuple(typing.values.get(n) if n else None for n in node.inputs)
        if certain or isinstance(schema_types(node, opset, types, values, typing.types), str):
            return how.reason
    return ""


# -- Contradictions of a file --------------------------------------------------------------------------------------


# Nodes of subgraphs and functions that are read: 2⁴⁰ calls of functions must not take for ever. To read a subgraph is
# to read all that is nested in it, so a node counts once for each level around it that is looked at.
_NODES = 20_000
_BYTES = 64 << 20  # of one subgraph: with more in it, it is weights that would be copied
_SHOWN = 6  # inputs whose types a message lists
_HINT = "no runtime can run it; look at how the model was made or edited"


@dataclass(frozen=True)
class _Part:
    """A graph inside the model: the main one, a subgraph or the body of a function, and how messages name it."""

    graph: Graph
    where: str = ""
    certain: bool = True  # whether its nodes run whenever the model does
    nodes: int = 0  # its own and those nested in it


def refuse_contradictions(graph: Graph) -> None:
    """Raise where a node's operands exclude each other; see :mod:`superopt.formats.shape_contradictions` for what
    counts.

    Raises:
        InvalidModel: it names the node, its operator, the types of its inputs, and what is wrong with them.
    """
    functions = functions_in(graph)
    whole = facts(graph)
    stack = [_Part(whole)]
    budget = _NODES
    while stack:
        part = stack.pop()
        typing = infer(part.graph)
        if part.graph is whole:
            _refuse_claims(graph, typing)
        for place, item in enumerate(part.graph.nodes):
            if reason := exclusion(part.graph, typing, place, certain=part.certain):
                raise InvalidModel(f"{reason}{_operands(item, typing)}", where=part.where + label(item), hint=_HINT)
            for inner in _parts(part, item, typing, functions, budget):
                budget -= inner.nodes
                stack.append(inner)


def _refuse_claims(graph: Graph, typing: InferredTypes) -> None:
    """Raise where a value is declared with another element type than its operator makes. Sizes that are declared
    wrongly are only a claim: a runtime takes its own."""
    for item, how in zip(graph.nodes, typing.nodes, strict=True):
        for name in filter(None, item.outputs if isinstance(how, CanonicalNode) else ()):
            claimed, kind = graph.declared.get(name), typing.types.get(name)
            if isinstance(claimed, TensorType) and kind is not None and claimed.dtype is not kind.dtype:
                what = f"{printable(name)!r} is declared {claimed}, but the operator makes {kind}"
                raise InvalidModel(what, where=label(item), hint=_HINT)


def _operands(item: Node, typing: InferredTypes) -> str:
    """The types of a node's inputs, for a message."""
    names = [n for n in item.inputs if n]
    kinds = [typing.types.get(n) for n in names[:_SHOWN]]
    shown = ", ".join(
        f"{printable(n, 40)} {'of unknown type' if k is None else k}" for n, k in zip(names, kinds, strict=False)
    )
    more = ", …" if len(names) > _SHOWN else ""
    return f" (inputs: {shown}{more})" if names else ""


def _parts(part: _Part, item: Node, typing: InferredTypes, functions: Functions, budget: int) -> Iterator[_Part]:
    """The graphs inside a node, those of its attributes or the body of the function that it calls, as far as they
    have no more nodes than the budget."""
    where = f"{part.where}{label(item)}, "
    if called := functions.get((item.domain, item.op, item.overload)):
        size = _size(called.node)
        inner = _body(called, item, typing, part.graph.constants) if size <= budget else None
        if inner is not None:
            yield _Part(inner, where, part.certain, size)
        return
    for name, given in item.attributes.items():
        if not isinstance(given, OpaqueAttribute) or not 0 < len(given.payload) <= _BYTES:
            continue
        proto = AttributeProto.FromString(given.payload)
        if proto.ref_attr_name:
            continue
        for body in [*([proto.g] if proto.HasField("g") else ()), *proto.graphs]:
            size = _size(body.node)
            inner = _subgraph(body, given.captures, typing, part.graph.opset) if size <= budget else None
            if inner is not None:
                budget -= size
                yield _Part(inner, f"{where}{printable(name)}, ", certain=False, nodes=size)


def _size(nodes: Sequence[NodeProto]) -> int:
    """How many nodes these are, with those nested in them."""
    nested = subgraphs(g for n in nodes for a in n.attribute for g in [*([a.g] if a.HasField("g") else ()), *a.graphs])
    return len(nodes) + sum(len(g.node) for g in nested)


def _subgraph(
    proto: GraphProto, captures: tuple[str, ...], typing: InferredTypes, opset: Mapping[str, int]
) -> Graph | None:
    """A subgraph as a graph whose inputs are its own, of any shape (a Loop's may change), and what it captures."""
    own = [value(v) for v in proto.input]
    inputs = [Value(v.name, TensorType(v.type.dtype, None) if isinstance(v.type, TensorType) else None) for v in own]
    named = {v.name for v in own}
    inputs += [Value(n, typing.types.get(n)) for n in captures if n not in named]
    return _read(proto, proto.node, inputs, [v.name for v in proto.output], opset)


def _body(
    function: FunctionProto, call: Node, typing: InferredTypes, constants: Mapping[str, Weight]
) -> Graph | None:  # fmt: skip
    """A function's body with the types, attributes and constants of a call."""
    operands = [(n, given) for n, given in zip(function.input, call.inputs, strict=False) if given in constants]
    weights = tuple(replace(constants[given], name=n) for n, given in operands)
    kinds = [typing.types.get(n) if n else None for n in call.inputs]
    fixed = {w.name for w in weights}
    inputs = [Value(n, k) for n, k in zip(function.input, kinds, strict=False) if n not in fixed]
    opset = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in function.opset_import}
    made = _read(GraphProto(), bound_body(function, call), inputs, function.output, opset)
    return None if made is None else replace(made, weights=weights)


def _read(
    proto: GraphProto, nodes: Iterable[NodeProto], inputs: list[Value], outputs: Iterable[str], opset: Mapping[str, int]
) -> Graph | None:
    """A graph inside the model; ``None`` where a part of it cannot be read, which then stays opaque as it was."""
    parts = read_parts(proto.initializer, nodes)
    if parts is None:
        return None
    return Graph(proto.name, tuple(inputs), tuple(Value(o, None) for o in outputs), *parts, opset)

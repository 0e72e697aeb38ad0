"""Calls of a model's own functions again, where a rewritten graph still holds their bodies as they were."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from onnx import ModelProto

from superopt.formats.functions import MODEL, Call, Inlined, calls_in, functions_in, without_functions
from superopt.ir.errors import InvalidModel
from superopt.ir.graph import Graph, Node, attribute_key
from superopt.ops.generators import weight_of

__all__ = ["with_calls"]


def with_calls(graph: Graph, before: Inlined, given: Graph) -> Graph:
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


def _intact(graph: Graph, calls: Iterable[Call]) -> Iterator[Call]:
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
            stack += [part for part in reversed(call.body) if isinstance(part, Call)]


def _operands(
    graph: Graph, call: Call, standing: Mapping[tuple[str, ...], Node], ends: set[str]
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


def _folded(graph: Graph, calls: Sequence[Call]) -> Graph | None:
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

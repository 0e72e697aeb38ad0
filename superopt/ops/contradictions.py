"""Nodes whose operands exclude each other: what makes a model invalid, apart from what is only not understood.

Found from facts alone: the types of inputs and weights (a runtime enforces them) and what follows from these, never
a type that the model declares for an intermediate value (a runtime warns and goes on). A size that is not known
excludes nothing, and one name for sizes of two inputs does not make them equal, since no runtime holds callers to it.

Three things count, and ONNX Runtime refuses each of them: a record's :class:`~superopt.ops.meaning.Contradiction`,
shapes that ONNX's own inference refuses, element types that the operator's schema excludes. A node of a subgraph may
never run, so there only what a runtime refuses when it loads the model counts: the latter two.
"""

from __future__ import annotations

from dataclasses import replace

from superopt.ir.graph import Graph, Value
from superopt.ir.poly import Dim, substitute, sym, symbols
from superopt.ir.types import TensorType
from superopt.ops.infer import Barrier, Typing
from superopt.ops.schemas import schema_types, type_conflict

__all__ = ["exclusion", "facts"]


def facts(graph: Graph) -> Graph:
    """The graph without what it merely claims: declared types of intermediates and outputs, shared names of sizes."""
    shared: set[str] = set()
    seen: set[str] = set()
    for value in graph.inputs:
        own = {n for d in dims(value) for n in symbols(d)}
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


def exclusion(graph: Graph, typing: Typing, place: int, *, certain: bool) -> str:
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
    opset = graph.opset.get("", graph.opset.get("ai.onnx", 1))
    types = tuple(typing.types.get(n) if n else None for n in node.inputs)
    if why := type_conflict(node.op, opset, tuple(None if t is None else t.dtype for t in types)):
        return why
    if isinstance(how, Barrier) and how.contradiction:
        values = tuple(typing.values.get(n) if n else None for n in node.inputs)
        if certain or isinstance(schema_types(node, opset, types, values, typing.types), str):
            return how.reason
    return ""

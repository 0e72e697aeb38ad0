"""Whether a model says what is done with NaN and infinities, so that they are inputs like any other."""

from __future__ import annotations

import numpy as np

from superopt.ir.graph import Graph, Node, OpaqueAttribute

__all__ = ["handles_special"]

_TELL = ("IsNaN", "IsInf")
_COMPARE = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
_FEW = 16  # elements of a constant that is looked at


def handles_special(graph: Graph) -> bool:
    """Whether some node, itself or in a subgraph, asks for NaN or infinity: by name, by comparing a value with itself,
    or with a constant that is one."""
    marks = [m.encode() for m in _TELL]
    return any(
        node.op in _TELL
        or (node.op in _COMPARE and _asks(graph, node))
        or any(isinstance(a, OpaqueAttribute) and any(m in a.payload for m in marks) for a in node.attributes.values())
        for node in graph.nodes
    )


def _asks(graph: Graph, node: Node) -> bool:
    return len(set(node.inputs)) == 1 or any(_holds_special(graph, name) for name in node.inputs)


def _holds_special(graph: Graph, name: str) -> bool:
    weight = graph.constants.get(name)
    few = weight is not None and isinstance(weight.type.elements, int) and weight.type.elements <= _FEW
    if weight is None or not few or weight.data is None or not weight.type.dtype.is_float:
        return False
    return not np.isfinite(weight.data.numpy().astype(np.float64)).all()

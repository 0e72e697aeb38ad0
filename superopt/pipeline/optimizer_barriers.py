"""Copies of values between operators that a runtime's optimiser fuses or removes wrongly.

Every fusion matches a chain of operators. A ``Concat`` of one tensor copies it, bit for bit and at every element type,
and no optimiser of ONNX Runtime 1.32 looks through it; neither does it through a ``Max`` of one tensor, which copies a
scalar. So a chain with a copy in it is not matched, and the graph computes what it did.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from superopt.ir.graph import PASS, Graph, Node, unused_name
from superopt.ir.types import DType, TensorType
from superopt.ops.infer import infer

__all__ = ["fewest_copies", "with_copies"]

_MAX = frozenset({
    DType.FLOAT16, DType.FLOAT32, DType.FLOAT64, DType.INT32, DType.INT64, DType.UINT32, DType.UINT64,
})  # fmt: skip  # element types of ONNX Runtime's kernel


def fewest_copies(graph: Graph, right: Callable[[Graph], bool]) -> tuple[Graph, tuple[str, ...]] | None:
    """The graph with few copies, so that it is right, and the values that are copied; ``None`` if copies do not help.

    All values between operators are copied first. Then halves, quarters, … of the copies are left out as long as it
    stays right (Zeller's ddmin): what is left is minimal in that every single copy is needed.

    Args:
        graph: what is wrong.
        right: whether a graph runs, and right. It may give up, by saying no.
    """
    chosen = _copyable(graph)
    if not chosen or not right(with_copies(graph, chosen)):
        return None
    parts = 2
    while len(chosen) > 1:
        size = -(-len(chosen) // parts)
        pieces = [chosen[i : i + size] for i in range(0, len(chosen), size)]
        for piece in (*pieces, *([n for n in chosen if n not in p] for p in pieces if len(pieces) > 2)):
            if piece and len(piece) < len(chosen) and right(with_copies(graph, piece)):
                parts = 2 if piece in pieces else max(2, parts - 1)
                chosen = list(piece)
                break
        else:
            if parts >= len(chosen):
                break
            parts = min(len(chosen), 2 * parts)
    return with_copies(graph, chosen), tuple(chosen)


def _copyable(graph: Graph) -> list[str]:
    """Values that one operator makes and another reads, and that an operator can copy."""
    types = infer(graph).types
    read = {n for node in graph.nodes for n in node.inputs if n}
    made = [o for node in graph.nodes for o in node.outputs if o in read]
    return [n for n in made if (kind := types.get(n)) is not None and _copies(kind) is not None]


def _copies(kind: TensorType) -> str | None:
    """The operator that copies a tensor of a type."""
    if kind.shape is None:
        return None
    if kind.shape:
        return "Concat"
    return "Max" if kind.dtype in _MAX else None


def with_copies(graph: Graph, values: Collection[str]) -> Graph:
    """The graph, each operator reading a copy of these values; an output of the graph, and a subgraph, do not."""
    types = infer(graph).types
    taken = set(graph.names)
    copies: dict[str, str] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes.append(replace(node, inputs=tuple(copies.get(n, n) for n in node.inputs)))
        for name in node.outputs:
            kind = types.get(name) if name in values else None
            if kind is None or (op := _copies(kind)) is None:
                continue
            copies[name] = unused_name(f"{name}_copy", taken)
            attributes = {"axis": 0} if op == "Concat" else {}
            made_by = {PASS: "avoid runtime fault"}
            nodes.append(Node(copies[name], op, (name,), (copies[name],), attributes, metadata=made_by))
    return replace(graph, nodes=tuple(nodes))

"""The order in which ONNX Runtime executes a graph's nodes."""

from __future__ import annotations

from collections.abc import Sequence

from superopt.ir.graph import Graph, Node

__all__ = ["as_executed", "execution_order"]


def execution_order(nodes: Sequence[Node], number: Sequence[int]) -> list[int]:
    """Positions of the nodes in the order in which they are executed.

    From the nodes that no other reads, the greatest number first, back to what each reads, again the greatest first; a
    node comes after all that it reads.

    Args:
        nodes: in any order.
        number: the runtime's number of each: its place in the file, or, for what the runtime made, a greater one.
    """
    makers = {o: i for i, n in enumerate(nodes) for o in n.outputs if o}
    reads = [sorted({makers[n] for n in node.reads if n in makers}, key=number.__getitem__) for node in nodes]
    read = {i for before in reads for i in before}
    stack = [(i, False) for i in sorted(range(len(nodes)), key=number.__getitem__) if i not in read]
    found: list[int] = []
    seen: set[int] = set()
    while stack:
        node, left = stack.pop()
        if left:
            found.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(i, False) for i in reads[node] if i not in seen]
    return found


def as_executed(lowered: Graph, given: Graph) -> Sequence[Node]:
    """The nodes of a lowered graph in the order of execution.

    ONNX Runtime writes them in that order where it has made nodes of its own; else in the order of the file that it was
    given.

    Args:
        lowered: as ONNX Runtime wrote it.
        given: what it was made of.
    """
    place = {(n.op, n.domain, n.outputs): i for i, n in enumerate(given.nodes)}
    keys = [(n.op, n.domain, n.outputs) for n in lowered.nodes]
    if not all(k in place for k in keys):
        return lowered.nodes
    return [lowered.nodes[i] for i in execution_order(lowered.nodes, [place[k] for k in keys])]

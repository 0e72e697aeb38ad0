"""A graph whose operands are made in the order in which they take least, said by views
(:mod:`superopt.memory.operand_order`).

Without views, ONNX Runtime numbers the copies out of its blocked layout by chance, so that two sessions of one file run
in different orders where a node reads several of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from superopt.ir.graph import Graph
from superopt.memory import OPSET, Guards, best_walk
from superopt.pipeline.memory_timeline import Footprint

__all__ = ["walked"]


def walked(graph: Graph, found: Footprint) -> Graph | None:
    """The graph with operands read through views where the order that they say gives a smaller block; no byte moves.

    Args:
        graph: the model.
        found: its footprint.

    Returns:
        ``None`` where no order that was tried does.
    """
    free = _free(graph, found)
    if not free or graph.opset.get("", 0) < OPSET:
        return None
    chosen = best_walk(found.ran, found.types, found.known, free)
    if not chosen:
        return None
    guards = Guards.of(graph, found.types)

    def viewed(name: str) -> str:
        same = guards.zeros(len(found.types[name].shape or ()))  # all sizes are the operand's
        return guards.node("Reshape", (name, same), f"{name}_in_turn")

    for node in graph.nodes:
        operands: Sequence[str] = chosen.get(node.outputs[0], ())
        views = {name: viewed(name) for name in reversed(operands)}  # what the last is of is made first
        guards.nodes.append(replace(node, inputs=tuple(views.get(n, n) for n in node.inputs)) if views else node)
    return replace(graph, nodes=tuple(guards.nodes), weights=(*graph.weights, *guards.weights))


def _free(graph: Graph, found: Footprint) -> Mapping[str, Sequence[str]]:
    """By first result, operands of the nodes that are run as they are written, made by several other nodes."""
    ran = {n.outputs[0]: n for n in found.ran.nodes if n.outputs}
    made = found.ran.producer
    free: dict[str, Sequence[str]] = {}
    for node in graph.nodes:
        own = ran.get(node.outputs[0])
        if own is None or (own.op, own.domain, own.inputs) != (node.op, node.domain, node.inputs):
            continue
        operands = [n for n in dict.fromkeys(node.inputs) if n in made and n in found.types and found.types[n].shape]
        if len({made[n].outputs for n in operands}) > 1:
            free[node.outputs[0]] = operands
    return free

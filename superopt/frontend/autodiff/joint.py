"""A model and its backward pass as two graphs: the second gets from the first what both need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from superopt.frontend.autodiff.reverse import vjp
from superopt.ir.graph import Graph, Node, Value
from superopt.ops.infer import infer

__all__ = ["Joint", "joint"]


@dataclass(frozen=True)
class Joint:
    """Forward and backward pass.

    Attributes:
        forward: the model, with what is kept for the backward pass among its outputs, after its own.
        kept: what that is.
        backward: from inputs of the model, what was kept, and an input ``cotangent OUTPUT`` for each output to outputs
            ``d/d INPUT``.
    """

    forward: Graph
    kept: tuple[str, ...]
    backward: Graph


def joint(graph: Graph, outputs: Sequence[str], inputs: Sequence[str]) -> Joint:
    """Reverse mode without computing anything twice: :func:`vjp`, cut where the cotangents come in.

    Args:
        graph: the model.
        outputs: what has cotangents.
        inputs: with respect to what.

    Raises:
        NotDifferentiable: a node on the way has no derivative; names it.
    """
    whole = vjp(graph, outputs, inputs)
    given = {v.name for v in graph.inputs}
    moving = {v.name for v in whole.inputs} - given
    depends = set(given)
    for node in whole.nodes:
        moving.update(node.outputs if moving.intersection(node.reads) else ())
        depends.update(node.outputs if depends.intersection(node.reads) else ())

    def late(node: Node) -> bool:
        """It needs cotangents, or no input at all: then it is there wherever it is read."""
        return bool(moving.intersection(node.outputs)) or not depends.intersection(node.outputs)

    behind = tuple(n for n in whole.nodes if late(n))
    made = {o for n in behind for o in n.outputs}
    read = {name for n in behind for name in n.reads} | {v.name for v in whole.outputs}
    own = {o for n in graph.nodes for o in n.outputs}
    more = tuple(n for n in whole.nodes if not late(n) and not own.intersection(n.outputs))
    before = {o for n in (*graph.nodes, *more) for o in n.outputs}
    kept = tuple(sorted(read & before - made))
    wanted = {name for n in more for name in n.reads}
    constants: tuple[Node, ...] = ()
    for node in reversed(behind):  # also what is made of constants alone
        if not moving.intersection(node.outputs) and wanted.intersection(node.outputs):
            constants = (node, *constants)
            wanted.update(node.reads)
    weights = {w.name: w for w in (*whole.weights, *graph.weights)}
    forward = replace(
        graph, nodes=(*graph.nodes, *(n for n in constants if not own.intersection(n.outputs)), *more),
        weights=tuple(weights.values()),
    )  # fmt: skip
    types = infer(forward).types
    shown = {v.name for v in graph.outputs}
    forward = replace(forward, outputs=(*graph.outputs, *(Value(n, types[n]) for n in kept if n not in shown)))
    backward = replace(
        whole, nodes=behind, values=(),
        inputs=(*(v for v in whole.inputs if v.name in read), *(Value(n, types[n]) for n in kept)),
        weights=tuple(w for w in whole.weights if w.name in read),
    )  # fmt: skip
    return Joint(_pruned(forward), kept, backward.checked())


def _pruned(graph: Graph) -> Graph:
    """Without weights that nothing reads."""
    read = {name for n in graph.nodes for name in n.reads} | {v.name for v in graph.outputs}
    return replace(graph, weights=tuple(w for w in graph.weights if w.name in read)).checked()

"""Types of a graph under construction, by the operators' records where they exist."""

from __future__ import annotations

from collections.abc import Mapping

from superopt.ir.errors import UsageError
from superopt.ir.graph import Graph, Node, Value, Weight, label
from superopt.ir.types import TensorType
from superopt.ops.infer import Barrier, infer

__all__ = ["checked_types", "infer_types"]


def infer_types(graph: Graph) -> dict[str, TensorType | None]:
    """The type of every value that the records cover; ``None`` or absent where they do not."""
    return dict(infer(graph).types)


def checked_types(
    node: Node, types: Mapping[str, TensorType | None], weights: Mapping[str, Weight], opset: Mapping[str, int]
) -> dict[str, TensorType]:
    """Types of a node's outputs from those of its inputs, where these are known; none where they are not.

    Raises:
        UsageError: no runtime could run the node on such inputs.
    """
    kinds = {name: types.get(name) for name in node.inputs if name}
    if any(kind is None or kind.shape is None for kind in kinds.values()):
        return {}
    fed = tuple(Value(name, kind) for name, kind in kinds.items() if name not in weights)
    held = tuple(weights[name] for name in kinds if name in weights)
    outputs = tuple(Value(name, None) for name in node.outputs)
    typing = infer(Graph("", fed, outputs, held, (node,), opset))
    (found,) = typing.nodes
    if isinstance(found, Barrier) and found.contradiction:
        listing = ", ".join(str(kind) for kind in kinds.values())
        raise UsageError(f"it cannot take {listing}: {found.reason}", where=label(node))
    return {name: kind for name in node.outputs if (kind := typing.types.get(name)) is not None}

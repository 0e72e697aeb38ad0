"""Types of a graph under construction, by the operators' records where they exist."""

from __future__ import annotations

from superopt.ir.graph import Graph
from superopt.ir.types import TensorType
from superopt.ops.infer import infer

__all__ = ["infer_types"]


def infer_types(graph: Graph) -> dict[str, TensorType | None]:
    """The type of every value that the records cover; ``None`` or absent where they do not."""
    return dict(infer(graph).types)

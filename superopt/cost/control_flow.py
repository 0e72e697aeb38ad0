"""What the bodies of If, Loop and Scan take, as often as they are run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from superopt.formats.control_flow_bodies import ControlFlowBody, bodies
from superopt.ir.graph import Graph
from superopt.ir.types import TensorType
from superopt.ops.shape_inference import InferredTypes

__all__ = ["ControlFlowBodyCost", "body_costs"]


@dataclass(frozen=True)
class LoopTripCountPolicy:
    """How often bodies are taken to run.

    Attributes:
        turns: of a Loop whose number of turns the model does not state. What is gained in a body counts for more than
            what the same nodes would gain outside, and how much more is not known.
    """

    turns: int = 8


POLICY = LoopTripCountPolicy()


@dataclass(frozen=True)
class ControlFlowBodyCost:
    """What runs of bodies take: microseconds, FLOPs, bytes moved, and kernels."""

    us: float
    flops: int
    bytes: int
    kernels: float


def body_costs(
    graph: Graph, typing: InferredTypes, sizes: Mapping[str, int], cost: Callable[[Graph], ControlFlowBodyCost]
) -> dict[int, ControlFlowBodyCost]:
    """The costs of bodies, by the positions of the nodes that hold them. Each branch of an If counts half.

    Args:
        graph: the graph around them.
        typing: its types.
        sizes: what symbolic dimensions are costed at.
        cost: of one run of a body.
    """
    found: dict[int, ControlFlowBodyCost] = {}
    for body in bodies(graph, typing):
        runs, each = _runs(graph, typing, body, sizes), cost(body.graph)
        was = found.get(body.place, ControlFlowBodyCost(0.0, 0, 0, 0.0))
        found[body.place] = ControlFlowBodyCost(
            was.us + runs * each.us, was.flops + round(runs * each.flops), was.bytes + round(runs * each.bytes),
            was.kernels + runs * each.kernels,
        )  # fmt: skip
    return found


def _runs(graph: Graph, typing: InferredTypes, body: ControlFlowBody, sizes: Mapping[str, int]) -> float:
    """How often a body runs in an inference."""
    node = graph.nodes[body.place]
    if node.op == "If":
        return 0.5
    if node.op == "Loop":
        known = typing.integers.get(node.inputs[0]) if node.inputs[0] else None
        return float(POLICY.turns if known is None or known.size != 1 else max(int(known.reshape(-1)[0]), 0))
    scanned = node.attributes.get("num_scan_inputs")
    axes = node.attributes.get("scan_input_axes", (0,))
    assert isinstance(scanned, int)
    assert isinstance(axes, tuple)
    kind = typing.types.get(node.inputs[len(node.inputs) - scanned])
    length = kind.shape[int(axes[0])] if isinstance(kind, TensorType) and kind.shape else POLICY.turns
    return float(length if isinstance(length, int) else sizes.get(str(length), POLICY.turns))

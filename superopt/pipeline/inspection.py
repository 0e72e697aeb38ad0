"""What can be asked of models besides optimising them: inspect, cost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from superopt import cost as costs
from superopt.formats.functions import inlined
from superopt.ir.graph import Graph
from superopt.pipeline.optimization import load
from superopt.pipeline.options import Progress, quiet
from superopt.report.inspection import facts_of

__all__ = ["cost", "inspect"]


def inspect(model: str | Path | Graph, *, sizes: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Facts about a model, as JSON data."""
    return facts_of(load(model), sizes=sizes)


def cost(
    model: str | Path | Graph,
    *,
    target: str = "cpu",
    runtime: str = "onnxruntime",
    sizes: Mapping[str, int] | None = None,
    progress: Progress = quiet,
) -> dict[str, Any]:
    """What each operator costs on the target, in a runtime if that is the processor, as JSON data."""
    graph = inlined(load(model)).graph
    with costs.for_target(target, runtime=runtime, progress=progress, sizes=sizes) as model_costs:
        found = costs.graph_cost(graph, model_costs, sizes=sizes or {})
        peaks = model_costs.peaks()
    nodes = [
        _node(name, op, estimate, work, peaks)
        for (name, op, estimate), work in zip(found.per_node, found.per_node_work, strict=True)
    ]
    return {
        "format": "superopt.cost", "version": 1, "name": graph.name, "target": target, "runtime": runtime,
        "us": found.us,
        "measured_share": found.measured_share, "flops": found.flops, "bytes": found.bytes,
        "intensity": found.intensity, "peak_activation_bytes": found.peak_activation_bytes,
        "weight_bytes": found.weight_bytes, "memory_bytes": found.memory, "nodes": nodes,
        "roofline": costs.roofline_data(found, None, peaks),
    }  # fmt: skip


def _node(
    name: str, op: str, estimate: costs.Estimate, work: tuple[int, int], peaks: costs.Peaks | None
) -> dict[str, Any]:
    """A node's time, work and place under the roofline: ``of_roof`` is the share of what the device could reach."""
    flops, moved = work
    intensity = flops / moved if moved else None
    reached = flops / estimate.us * 1e6 if estimate.us > 0 and flops else None
    roof = peaks.attainable(flops, moved) if peaks is not None and flops else None
    return {
        "node": name, "op": op, "us": estimate.us, "source": estimate.source, "sigma": estimate.sigma, "flops": flops,
        "bytes": moved, "intensity": intensity, "flops_per_second": reached,
        "of_roof": reached / roof if reached is not None and roof else None,
    }  # fmt: skip

"""What can be asked of models besides optimising them: inspect, cost, where a rule matches."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from superopt import cost as costs
from superopt.formats.function_inlining import inlined
from superopt.ir.errors import UsageError
from superopt.ir.graph import Graph
from superopt.ir.symbolic_size_binding import sizes_fed
from superopt.ops.shape_inference import infer
from superopt.passes.rule_matches import RuleDirectionMatches, matches_of
from superopt.pipeline.optimization import chosen_rules, load
from superopt.pipeline.options import Options, Progress, quiet
from superopt.pipeline.shape_defaults import default_sizes
from superopt.report.inspection import facts_of
from superopt.rules.library import load_library

__all__ = ["cost", "inspect", "rule_matches"]


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
    """What each operator costs on the target, in a runtime if that is the processor, as JSON data.

    Args:
        model: a path or a graph.
        target: as of ``optimize``.
        runtime: likewise.
        sizes: of symbolic dimensions; the others are what :func:`default_sizes` says, as in ``optimize``.
        progress: called with (done, total, what).
    """
    graph = inlined(load(model)).graph
    known = default_sizes(graph, sizes or {})
    with costs.for_target(target, runtime=runtime, progress=progress, sizes=known) as model_costs:
        found = costs.graph_cost(graph, model_costs, sizes=known)
        peaks = model_costs.peaks()
    nodes = [
        _node(name, op, estimate, work, peaks)
        for (name, op, estimate), work in zip(found.per_node, found.per_node_work, strict=True)
    ]
    return {
        "format": "superopt.cost", "version": 1, "name": graph.name, "target": target, "runtime": runtime,
        "sizes": sizes_fed(graph, known), "us": found.us,
        "measured_share": found.measured_share, "flops": found.flops, "bytes": found.bytes,
        "intensity": found.intensity, "peak_activation_bytes": found.peak_activation_bytes,
        "weight_bytes": found.weight_bytes, "memory_bytes": found.memory, "nodes": nodes,
        "roofline": costs.roofline_data(found, None, peaks),
    }  # fmt: skip


def rule_matches(
    model: str | Path | Graph, rule: str, *, options: Options | None = None, progress: Progress = quiet
) -> dict[str, Any]:
    """Where a rule matches a model as it is written, and what refuses it elsewhere, as JSON data.

    Args:
        model: a path or a graph.
        rule: its id.
        options: the target, the sizes, the mode of floating point, the effort, and the folder of rules.
        progress: called with (done, total, what).

    Raises:
        InvalidOption: the library has no such rule.
    """
    options = Options() if options is None else options
    library = load_library(options.rules)
    if rule not in library:
        library.select(enable=(rule,))  # raises, and suggests the closest name
        raise UsageError(f"{rule} is a family of rules", hint=f"`superopt rules list --family {rule}` shows them")
    graph = inlined(load(model)).graph
    sizes = default_sizes(graph, options.sizes)
    with costs.for_target(options.target, runtime=options.runtime, progress=progress, sizes=sizes) as prices:
        found = matches_of(
            graph, infer(graph), library[rule], prices, floats=library.floats(options.floats), sizes=sizes
        )
    used = chosen_rules(options)
    searched = rule in (used if used.chosen is None else used.chosen)
    return {
        "format": "superopt.rule-matches", "version": 1, "rule": rule, "verdict": library.verdict_name(rule),
        "float": options.floats, "effort": options.effort, "searched": searched,
        "target": options.target, "directions": [_direction(d) for d in found],
    }  # fmt: skip


def _direction(found: RuleDirectionMatches) -> dict[str, Any]:
    return {
        "from": found.source, "to": found.target, "refusal": found.refusal, "matches": found.matches,
        "places": [{"node": p.node, "refusal": p.refusal, "gain_us": p.gain_us} for p in found.places],
    }  # fmt: skip


def _node(
    name: str, op: str, estimate: costs.CostEstimate, work: tuple[int, int], peaks: costs.DevicePeakPerformance | None
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

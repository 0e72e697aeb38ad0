"""What is told of an optimization: the report with its derivation, and both graphs as one with what each node costs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from superopt import cost
from superopt.server.views.union_graph import union

if TYPE_CHECKING:
    from superopt.pipeline import Derivation, Options, Result

__all__ = ["ReportPayload", "tell"]


@dataclass(frozen=True)
class ReportPayload:
    """JSON data of the report and of the comparison, and the way to the result where anything changed."""

    report: dict[str, Any]
    comparison: dict[str, Any]
    way: Derivation | None


def tell(result: Result, options: Options) -> ReportPayload:
    """Explain a result. Nothing is measured for it but the ceilings of this machine, once, where they are not known.

    Args:
        result: of an optimization.
        options: of the same.
    """
    from superopt import pipeline

    report, way = pipeline.explained(result, options)
    told = replace(report, memory=pipeline.memory_report(result.original, result.graph, options)).json()
    with cost.for_target(options.target, runtime=options.runtime, sizes=options.sizes, time_limit=0.0) as model:
        lines = [cost.timeline(graph, model, sizes=options.sizes) for graph in (result.original, result.graph)]
    told["roofline"] = _roofline(result, options)
    view = union(result.original, result.graph, sizes=options.sizes, timelines=(lines[0], lines[1]))
    return ReportPayload(told, view, way)


def _roofline(result: Result, options: Options) -> dict[str, Any]:
    """The report's roofline under the ceilings of this machine, where the job's own time was not enough to learn them:
    they are measured once, which takes seconds, and kept."""
    data = dict(result.report.roofline or {})
    if options.target != "cpu" or "flops_per_second" in data:
        return data
    with cost.for_target("cpu", runtime=options.runtime, sizes=options.sizes) as model:
        return data | cost.ceilings(model.peaks())

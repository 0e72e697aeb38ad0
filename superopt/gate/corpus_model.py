"""One model of a corpus: optimised for the target, checked, and what it costs by operator."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from superopt import cost as costs
from superopt.ir.errors import SuperoptError
from superopt.ir.graph import Graph, structural_hash
from superopt.pipeline.optimization import load, optimize
from superopt.pipeline.options import Options
from superopt.report.corpus import CorpusModelResult, Operators

__all__ = ["CorpusModelTask", "by_operator", "row_of"]


@dataclass(frozen=True)
class CorpusModelTask:
    """What a worker is given: a model, its path, and how to optimise it."""

    model: str
    path: Path
    options: Options

    @property
    def time_limit(self) -> float:
        """Seconds that optimising it may take."""
        return float("inf") if self.options.time_limit is None else self.options.time_limit


def row_of(task: CorpusModelTask) -> CorpusModelResult:
    """The row of a model; a model that cannot be optimised has one too."""
    started = time.monotonic()
    try:
        graph = load(task.path)
        result = optimize(graph, options=task.options)
        sizes = task.options.sizes
        with costs.for_target(task.options.target, sizes=sizes) as model:
            before = by_operator(costs.graph_cost(graph, model, sizes=sizes))
            changed = result.graph is not graph
            after = by_operator(costs.graph_cost(result.graph, model, sizes=sizes)) if changed else before
    except SuperoptError as error:
        return CorpusModelResult(
            task.model, error=str(error), exit_code=error.exit_code, seconds=time.monotonic() - started
        )
    found = result.report
    return CorpusModelResult(
        model=task.model, digest=digest_of(graph), status=found.status, before_us=found.cost.before_us,
        after_us=found.cost.after_us, measured_share=found.cost.measured_share,
        nodes=(found.nodes.before, found.nodes.after), check=found.check.verdict,
        rules={a.rule: a.count for a in found.rules_applied}, before=before, after=after, stopped=found.search.stopped,
        seconds=time.monotonic() - started, failures=found.check_failures,
        measured=None if found.measured is None else (found.measured.ratio, found.measured.spread),
    )  # fmt: skip


def digest_of(graph: Graph) -> str:
    """What the modelled cost depends on: operators, attributes, wiring and types, not the values of weights."""
    return structural_hash(graph, values=False)[:16]


def by_operator(found: costs.GraphCost) -> Operators:
    """Nodes and microseconds by operator, of what costs anything."""
    counts: dict[str, tuple[int, float]] = {}
    for _, op, estimate in found.per_node:
        if estimate.us > 0.0:
            count, us = counts.get(op, (0, 0.0))
            counts[op] = (count + 1, us + estimate.us)
    return dict(sorted(counts.items()))

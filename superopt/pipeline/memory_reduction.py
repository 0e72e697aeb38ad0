"""The result as it takes less memory: ``--objective memory|pareto`` and ``--memory-limit``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from superopt.pipeline.acceptance_policy import AcceptanceDecision
from superopt.pipeline.candidate import Candidate
from superopt.pipeline.optimization_context import OptimizationContext
from superopt.verifier.check.differential import EXACT, CheckResult, ErrorAllowance

if TYPE_CHECKING:
    from superopt.pipeline.rematerialization import MemoryTradeoffPoint

__all__ = ["reduce_memory"]


def reduce_memory(candidate: Candidate, context: OptimizationContext) -> Candidate:
    """Write the candidate's graph for less memory, where that is asked for; every graph that is kept passes the check.

    The graphs that trade time for memory are left in ``context.pareto``.
    """
    task, after = context.task, candidate.graph
    wanted = task.options.objective != "time" or task.options.memory_limit is not None
    if not wanted or task.budget.interrupted:
        return candidate
    from superopt.pipeline import rematerialization  # here, because few models are written for memory

    options = replace(task.options, sizes=task.sizes)
    timer = context.acceptance.time_for_memory if task.timed else None
    points = rematerialization.for_memory(
        after, options, task.costs, context.log, task.budget.left, timer, task.progress
    )
    kept: list[MemoryTradeoffPoint] = []
    for point in points:
        if not point.chosen and task.budget.left <= 0.0:
            continue
        check = candidate.check if point.graph is after else _check(point, candidate, context)
        if check is None:
            continue
        kept.append(point)
        if point.chosen and point.graph is not after:
            search = replace(candidate.search, graph=point.graph)
            candidate = replace(candidate, search=search, check=check, decision=AcceptanceDecision("memory"))
    context.pareto = tuple(kept)
    return candidate


def _check(point: MemoryTradeoffPoint, candidate: Candidate, context: OptimizationContext) -> CheckResult | None:
    """The check of a graph; ``None`` where it does not pass."""
    task, slack = context.task, EXACT
    if not task.options.check:
        return candidate.check
    if candidate.algorithms is not None:
        slack = ErrorAllowance.of_new_nodes(candidate.algorithms.slack, point.graph, task.graph)
    check = context.check(point.graph, slack, candidate.search.bodies)
    if check.verdict == "passed":
        return check
    context.log.note(
        f"what was written for memory ({point.how}) is not kept: the check {check.verdict}: {check.reason}"
    )
    return None

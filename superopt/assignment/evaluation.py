"""Cost, peak and feasibility of an assignment, by Python's integers alone: no rounding and no overflow.

Nothing here is shared with the solver, whose arithmetic is that of float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from superopt.assignment.problem import StrategyAssignmentProblem
from superopt.errors import UsageError

__all__ = ["AssignmentEvaluation", "evaluate"]


@dataclass(frozen=True)
class AssignmentEvaluation:
    """What an assignment costs.

    Attributes:
        cost: sum over nodes and edges, in the problem's unit.
        peak: bytes, the most that are held at one time.
        feasible: whether the peak is within the problem's limit.
    """

    cost: int
    peak: int
    feasible: bool


def evaluate(problem: StrategyAssignmentProblem, strategies: Sequence[int]) -> AssignmentEvaluation:
    """Evaluate one strategy for each node.

    Raises:
        UsageError: there are more or fewer strategies than nodes, or one does not exist.
    """
    chosen = [int(s) for s in strategies]
    sizes = problem.sizes.tolist()
    if len(chosen) != len(sizes):
        raise UsageError(f"{len(chosen)} strategies for {len(sizes)} nodes", hint="give one for each node")
    for node, (strategy, size) in enumerate(zip(chosen, sizes, strict=True)):
        if not 0 <= strategy < size:
            raise UsageError(f"node {node} has no strategy {strategy}", hint=f"its strategies are 0 to {size - 1}")
    peak = _peak(problem, chosen, sizes)
    return AssignmentEvaluation(_cost(problem, chosen, sizes), peak, peak <= problem.usage_limit)


def _cost(problem: StrategyAssignmentProblem, chosen: list[int], sizes: list[int]) -> int:
    total, start = 0, 0
    for strategy, size in zip(chosen, sizes, strict=True):
        total += int(problem.costs[start + strategy])
        start += size
    start = 0
    for a, b in problem.edges.tolist():
        total += int(problem.tables[start + chosen[a] * sizes[b] + chosen[b]])
        start += sizes[a] * sizes[b]
    return total


def _peak(problem: StrategyAssignmentProblem, chosen: list[int], sizes: list[int]) -> int:
    changes: dict[int, int] = {}
    start = 0
    for strategy, size, (first, end) in zip(chosen, sizes, problem.intervals.tolist(), strict=True):
        used = int(problem.usages[start + strategy])
        start += size
        if first < end:
            changes[first] = changes.get(first, 0) + used
            changes[end] = changes.get(end, 0) - used
    peak = held = 0
    for moment in sorted(changes):
        held += changes[moment]
        peak = max(peak, held)
    return peak

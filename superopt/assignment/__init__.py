"""Strategy assignment under a limit of memory: a strategy for each node, at the least cost of nodes and edges."""

from __future__ import annotations

from typing import TYPE_CHECKING

from superopt.ir.lazy_names import lazy_names

if TYPE_CHECKING:
    from superopt.assignment.evaluation import AssignmentEvaluation, evaluate
    from superopt.assignment.policy import AssignmentSolverPolicy
    from superopt.assignment.problem import StrategyAssignmentProblem, parse_problem, problem_from_json, read_problem
    from superopt.assignment.solver import StrategyAssignment, solve

__all__ = [
    "StrategyAssignment", "AssignmentEvaluation", "AssignmentSolverPolicy", "StrategyAssignmentProblem", "evaluate",
    "parse_problem", "problem_from_json", "read_problem", "solve",
]  # fmt: skip

_HOMES = {
    **dict.fromkeys(("AssignmentEvaluation", "evaluate"), "evaluation"),
    "AssignmentSolverPolicy": "policy",
    **dict.fromkeys(("StrategyAssignmentProblem", "parse_problem", "problem_from_json", "read_problem"), "problem"),
    **dict.fromkeys(("StrategyAssignment", "solve"), "solver"),
}  # few optimisations solve a problem, and the solver is large

if not TYPE_CHECKING:  # so that names that do not exist are seen
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)

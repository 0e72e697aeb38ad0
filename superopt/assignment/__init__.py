"""Strategy assignment under a limit of memory: a strategy for each node, at the least cost of nodes and edges."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from superopt.assignment.evaluation import AssignmentEvaluation, evaluate
    from superopt.assignment.policy import AssignmentSolverPolicy
    from superopt.assignment.problem import AssignmentProblem, parse_problem, problem_from_json, read_problem
    from superopt.assignment.solver import StrategyAssignment, solve

__all__ = [
    "StrategyAssignment", "AssignmentEvaluation", "AssignmentSolverPolicy", "AssignmentProblem", "evaluate",
    "parse_problem", "problem_from_json", "read_problem", "solve",
]  # fmt: skip

_MODULES = {
    **dict.fromkeys(("AssignmentEvaluation", "evaluate"), "evaluation"),
    "AssignmentSolverPolicy": "policy",
    **dict.fromkeys(("AssignmentProblem", "parse_problem", "problem_from_json", "read_problem"), "problem"),
    **dict.fromkeys(("StrategyAssignment", "solve"), "solver"),
}


if not TYPE_CHECKING:  # so that names that do not exist are seen

    def __getattr__(name: str) -> Any:
        """A name is imported when it is first used: few optimisations solve a problem, and the solver is large."""
        if name in _MODULES:
            return getattr(import_module(f"superopt.assignment.{_MODULES[name]}"), name)
        raise AttributeError(f"module 'superopt.assignment' has no attribute {name!r}")

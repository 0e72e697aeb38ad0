"""Strategy assignment under a limit of memory: a strategy for each node, at the least cost of nodes and edges."""

from superopt.assignment.evaluation import AssignmentEvaluation, evaluate
from superopt.assignment.policy import AssignmentSolverPolicy
from superopt.assignment.problem import StrategyAssignmentProblem, parse_problem, problem_from_json, read_problem
from superopt.assignment.solver import StrategyAssignment, solve

__all__ = [
    "StrategyAssignment", "AssignmentEvaluation", "AssignmentSolverPolicy", "StrategyAssignmentProblem", "evaluate",
    "parse_problem", "problem_from_json", "read_problem", "solve",
]  # fmt: skip

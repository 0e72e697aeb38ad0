"""Strategy assignment under a limit of memory: a strategy for each node, at the least cost of nodes and edges."""

from superopt.assignment.evaluation import Evaluation, evaluate
from superopt.assignment.policy import Policy
from superopt.assignment.problem import Problem, parse_problem, problem_from_json, read_problem
from superopt.assignment.solver import Assignment, solve

__all__ = [
    "Assignment", "Evaluation", "Policy", "Problem", "evaluate", "parse_problem", "problem_from_json", "read_problem",
    "solve",
]  # fmt: skip

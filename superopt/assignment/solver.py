"""Strategy assignment under a limit of memory: reduce, search, bound, evaluate."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from superopt.assignment.evaluation import evaluate
from superopt.assignment.memory import memory_of
from superopt.assignment.pairwise import pairwise_of
from superopt.assignment.policy import Policy
from superopt.assignment.problem import Problem
from superopt.assignment.reduction import Integers, Reduced, reduce_problem
from superopt.assignment.search import Search
from superopt.errors import ResourceLimit

__all__ = ["Assignment", "solve"]


@dataclass(frozen=True)
class Assignment:
    """A feasible assignment.

    Attributes:
        strategies: by node.
        cost: exact, in the problem's unit.
        bound: no feasible assignment costs less.
        peak: bytes, the most held at one time.
        steps: of the search.
        seconds: taken.
    """

    strategies: tuple[int, ...]
    cost: int
    bound: int
    peak: int
    steps: int
    seconds: float

    @property
    def gap(self) -> float:
        """(cost − bound) ÷ cost, or 0 where both are equal."""
        return 0.0 if self.cost == self.bound else (self.cost - self.bound) / max(1, abs(self.cost))


def solve(
    problem: Problem,
    *,
    time_limit: float = 60.0,
    work: int | None = None,
    seed: int = 0,
    policy: Policy | None = None,
) -> Assignment:
    """Assign a strategy to each node.

    Args:
        problem: the problem.
        time_limit: seconds; what is best by then is returned.
        work: steps of the search, after which it ends. Where this comes before the time limit, equal arguments give
            equal results.
        seed: of the random numbers.
        policy: constants of the solver.

    Raises:
        InvalidModel: forbidden costs leave no assignment.
        ResourceLimit: no feasible assignment was found within the limits.
    """
    began = time.monotonic()
    deadline = began + time_limit
    policy = policy or Policy()
    reduced = reduce_problem(problem, policy.forbidden)
    memory = memory_of(problem, reduced)
    penalty = _penalty(reduced)
    model = pairwise_of(reduced, penalty)
    search = Search(model, memory, policy, seed)
    while (work is None or search.steps < work) and (time.monotonic() < deadline):
        search.step()
    if search.best is None:
        raise ResourceLimit("no feasible assignment was found", hint="raise --time-limit or --work")
    strategies = _lifted(reduced, search.best)
    result = evaluate(problem, strategies)
    return Assignment(strategies, result.cost, 0, result.peak, search.steps, time.monotonic() - began)


def _penalty(reduced: Reduced) -> float:
    return 1e15


def _lifted(reduced: Reduced, choice: Integers) -> tuple[int, ...]:
    """Strategies of the original's nodes."""
    owners = np.concatenate([choice, [0]])[reduced.owner].tolist()  # at -1 stands the only strategy of what is decided
    return tuple(int(lift[s]) for lift, s in zip(reduced.lift, owners, strict=True))

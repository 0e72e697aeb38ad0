"""Strategy assignment under a limit of memory: reduce, search, bound, evaluate."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from superopt.assignment.block_move_search import BlockMoveSearch
from superopt.assignment.evaluation import evaluate
from superopt.assignment.lower_bound import LowerBoundResult, prove
from superopt.assignment.memory_constraints import memory_of
from superopt.assignment.pairwise import pairwise_of
from superopt.assignment.policy import AssignmentSolverPolicy
from superopt.assignment.problem import StrategyAssignmentProblem
from superopt.assignment.reduction import Integers, ReducedProblem, reduce_problem
from superopt.errors import InvalidModel, ResourceLimit, SuperoptError

__all__ = ["StrategyAssignment", "solve"]

_OPEN = 1e-6  # gap above which more time may help: that of the integer program's tolerance
_SMALL = 2  # message passing forbids about half of the entries


@dataclass(frozen=True)
class StrategyAssignment:
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
    problem: StrategyAssignmentProblem,
    *,
    time_limit: float = 60.0,
    work: int | None = None,
    seed: int = 0,
    policy: AssignmentSolverPolicy | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> StrategyAssignment:
    """Assign a strategy to each node: reduce, search by exact block moves, bound, evaluate.

    Args:
        problem: the problem.
        time_limit: seconds, by the clock; what is best by then is returned.
        work: steps of the search, after which it ends. Where this and the proof end before the time limit, equal
            arguments give equal results.
        seed: of the random numbers.
        policy: constants of the solver.
        clock: seconds since any moment, ``time.process_time`` for instance.

    Raises:
        InvalidModel: there is no feasible assignment: the message says why.
        ResourceLimit: none was found within the limits.
    """
    policy, began = policy or AssignmentSolverPolicy(), clock()
    reduced = reduce_problem(problem, policy.forbidden)
    memory = memory_of(problem, reduced)
    if memory.room.min(initial=0.0) < -memory.margin:
        raise InvalidModel(
            f"the least memory is {-memory.room.min():.0f} bytes over the limit at one moment", where="usage_limit",
            hint="no assignment fits: raise the limit",
        )  # fmt: skip
    model = pairwise_of(reduced, _penalty(reduced))
    small = len(model.tables) <= _SMALL * policy.program_entries and not memory.margin
    search = BlockMoveSearch(model, replace(memory, room=memory.room - memory.margin), policy, seed)

    def left() -> float:
        return began + policy.usable * time_limit - clock()

    share = policy.small_search if small else policy.search
    steps = policy.small_steps if small and work is None else work
    _run(search, steps, lambda: left() - (1 - share) * time_limit)
    proof = prove(model, memory, search.multipliers, search.best, policy, left, program=small, paced=work is None)
    best = search.best if proof.choice is None else proof.choice
    if work is None and (best is None or proof.bound < model.cost(best) - _OPEN * abs(model.cost(best))):
        _run(search, None, left)
        if search.best is not None and (best is None or search.best_cost < model.cost(best)):
            best = search.best
    if best is None:
        raise _none_found(proof)
    strategies = _lifted(reduced, best)
    result = evaluate(problem, strategies)
    if not result.feasible:
        raise _none_found(proof)
    bound = min(result.cost, math.ceil(proof.bound)) if math.isfinite(proof.bound) else result.cost
    return StrategyAssignment(strategies, result.cost, bound, result.peak, search.steps, clock() - began)


def _run(search: BlockMoveSearch, work: int | None, left: Callable[[], float]) -> None:
    """Search until the work is done or no time is left."""
    if search.model.nodes == 0:
        search.finish()
        return
    while (work is None or search.steps < work) and left() > 0:
        search.step()


def _none_found(proof: LowerBoundResult) -> SuperoptError:
    if proof.bound == math.inf:
        return InvalidModel(
            "no assignment is feasible: an integer program proved it", hint="raise usage_limit, or forbid less"
        )
    return ResourceLimit(
        "no feasible assignment was found; that there is none was not proved", hint="raise --time-limit or --work"
    )


def _penalty(reduced: ReducedProblem) -> float:
    """More than any choice can gain by a forbidden pair."""
    nodes = sum(float(np.ptp(c)) for c in reduced.costs)
    edges = sum(float(np.ptp(t[np.isfinite(t)])) for t in reduced.tables.values())
    return 1.0 + nodes + edges


def _lifted(reduced: ReducedProblem, choice: Integers) -> tuple[int, ...]:
    """Strategies of the original's nodes."""
    owners = np.concatenate([choice, [0]])[reduced.owner].tolist()  # at -1 stands the one strategy of what is decided
    return tuple(int(lift[s]) for lift, s in zip(reduced.lift, owners, strict=True))

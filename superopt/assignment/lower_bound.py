"""Lower bounds: of message passing for every problem, of an integer program where little is left to decide."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from superopt.assignment.dual_bound import DualBound
from superopt.assignment.integer_program import AssignmentIntegerProgram, memory_entries
from superopt.assignment.memory_constraints import MemoryConstraints
from superopt.assignment.pairwise import Mask, PairwiseModel
from superopt.assignment.policy import AssignmentSolverPolicy
from superopt.assignment.reduction import Floats, Integers

__all__ = ["AssignmentLowerBound", "prove"]

_ROUNDING = 2.0**-48  # relative error of sums of costs
_SURE = 1e-9  # share of the cost by which a choice must exceed the best one before it is left out


@dataclass(frozen=True)
class AssignmentLowerBound:
    """What is known of the optimum.

    Attributes:
        bound: no choice within the limits costs less; infinite where there is none.
        choice: one that costs less than the one that was given, or ``None``.
    """

    bound: float
    choice: Integers | None


def prove(
    model: PairwiseModel,
    memory: MemoryConstraints,
    multipliers: Floats,
    best: Integers | None,
    policy: AssignmentSolverPolicy,
    left: Callable[[], float],
    *,
    program: bool,
    paced: bool,
) -> AssignmentLowerBound:
    """A lower bound, as good as the time allows.

    Args:
        model: costs.
        memory: bytes and room.
        multipliers: prices of memory, by interval.
        best: the cheapest choice known.
        policy: constants.
        left: seconds left.
        program: whether an integer program may be solved.
        paced: whether message passing takes a share of the time; else as many sweeps as there are, within the time.
    """
    if not model.nodes:
        return AssignmentLowerBound(model.constant, None)
    cost = math.inf if best is None else model.cost(best)
    bound, strategies, entries = _bounded(model, memory, multipliers, policy, left, paced)
    known, room = math.inf, math.inf  # what the optimum is at most, and by how much more than the bound
    if best is not None:
        known, room = cost - _ROUNDING * abs(cost), cost - bound + 1 + _SURE * abs(cost)
    joint = _joint(model, strategies, entries)
    allowed, pairs = _possible(model, strategies <= room, (joint <= room) & ~model.forbidden)
    if not program or pairs.sum() > policy.program_entries or left() < policy.program_seconds:
        return AssignmentLowerBound(bound, None)
    if (np.add.reduceat(allowed.astype(np.int64), model.offsets[:-1]) == 0).any():
        return AssignmentLowerBound(max(bound, known), None)
    if memory_entries(memory, allowed) > policy.memory_entries:
        return AssignmentLowerBound(bound, None)
    outcome = AssignmentIntegerProgram(model, memory, allowed, pairs).solve(left(), policy.program_nodes, best)
    better = outcome.choice if outcome.choice is not None and model.cost(outcome.choice) < cost else None
    return AssignmentLowerBound(max(bound, min(outcome.bound, known)), better)


def _bounded(
    model: PairwiseModel,
    memory: MemoryConstraints,
    multipliers: Floats,
    policy: AssignmentSolverPolicy,
    left: Callable[[], float],
    paced: bool,
) -> tuple[float, Floats, Floats]:
    """The better bound of message passing with and without prices of memory; the excess of strategies and entries."""
    dual, whole = DualBound(model), left() if paced else 0.0
    outcomes: list[tuple[float, Floats, Floats]] = []
    for prices, share in ((multipliers, 0.5), (np.zeros(len(multipliers)), 0.25)):
        if outcomes and left() < 0.4 * whole:
            break
        costs = model.costs + memory.prices(prices, model.strategies)
        for sweep in range(policy.sweeps):
            if left() < share * whole:
                break
            dual.sweep(costs, forward=sweep % 2 == 0)
        bound, strategies, entries = dual.reduced(costs)
        paid, size = float((prices * memory.room).sum()), float((prices * np.abs(memory.room)).sum())
        outcomes.append((bound - paid - _ROUNDING * size, strategies, entries))
    return max(outcomes, key=lambda outcome: outcome[0])


def _joint(model: PairwiseModel, strategies: Floats, entries: Floats) -> Floats:
    first, second = model.ends
    return np.asarray(entries + strategies[first] + strategies[second])


def _possible(model: PairwiseModel, allowed: Mask, pairs: Mask) -> tuple[Mask, Mask]:
    """Without the strategies that have no allowed pair on some edge, and their pairs."""
    first, second = model.ends
    edge = np.repeat(np.arange(len(model.pairs)), np.diff(model.table_offsets))
    # an end of an edge and its strategy, as one number
    width = model.strategies
    rows, columns = edge * width + first, edge * width + second
    row_keys, row_at = np.unique(rows, return_inverse=True)
    column_keys, column_at = np.unique(columns, return_inverse=True)
    allowed, pairs = allowed.copy(), pairs & allowed[first] & allowed[second]
    while True:
        before = int(pairs.sum())
        allowed[row_keys[np.bincount(row_at, pairs, len(row_keys)) == 0] % width] = False
        allowed[column_keys[np.bincount(column_at, pairs, len(column_keys)) == 0] % width] = False
        pairs &= allowed[first] & allowed[second]
        if int(pairs.sum()) == before:
            return allowed, pairs

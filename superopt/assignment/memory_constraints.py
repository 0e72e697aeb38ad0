"""Memory over time of a reduced problem, on few intervals.

Nodes whose bytes do not depend on the choice are a constant profile. The others start and end at few moments; between
two of them the sum of the others does not change, so the largest constant counts. An interval is left out if a
neighbouring one holds at least the same nodes and has no more room, or if no choice exceeds its room.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from superopt.assignment.pairwise import Mask
from superopt.assignment.problem import StrategyAssignmentProblem
from superopt.assignment.reduction import Floats, Integers, ReducedProblem

__all__ = ["MemoryConstraints", "memory_of"]

_EXACT, _ROUNDING = 2**53, 2.0**-48  # bytes up to which float64 adds exactly; relative error of larger sums


@dataclass(frozen=True)
class MemoryConstraints:
    """What a choice of strategies holds in each interval of time that can be over the limit.

    Attributes:
        margin: bytes by which sums may be wrong; 0 unless the limit is beyond the integers of float64.
        room: by interval, bytes left by what does not depend on the choice.
        owner, start, end: by allocation, the node that decides it, and its life ``start <= t < end`` in intervals.
        offsets: where the bytes of an allocation begin in ``bytes``: one number for each strategy of its owner.
        bytes: above the least of the allocation.
        strategy, allocation: of each of ``bytes``, the strategy among those of all nodes, and the allocation.
    """

    margin: float
    room: Floats
    owner: Integers
    start: Integers
    end: Integers
    offsets: Integers
    bytes: Floats
    strategy: Integers
    allocation: Integers

    def held(self, choice: Integers) -> Floats:
        """Bytes by interval, of what depends on the choice."""
        return self.profile(self.bytes[self.offsets + choice[self.owner]])

    def profile(self, amounts: Floats) -> Floats:
        """Sums by interval of an amount for each allocation."""
        return _profile(amounts, self.start, self.end, len(self.room))

    def prices(self, multipliers: Floats, strategies: int) -> Floats:
        """By strategy, the price of its bytes: the sum over the intervals of its life of multiplier × bytes."""
        before = np.concatenate([[0.0], np.cumsum(multipliers)])
        rate = before[self.end] - before[self.start]
        return np.asarray(np.bincount(self.strategy, self.bytes * rate[self.allocation], strategies), dtype=np.float64)


def memory_of(problem: StrategyAssignmentProblem, reduced: ReducedProblem) -> MemoryConstraints:
    """The memory of a reduced problem."""
    live = np.flatnonzero(problem.intervals[:, 0] < problem.intervals[:, 1])
    usages = list(problem.node_usages())
    used = [usages[n][reduced.lift[n]].astype(np.float64) for n in live.tolist()]
    least = np.array([u.min() for u in used])
    most = np.array([u.max() for u in used]) - least
    starts, ends = problem.intervals[live, 0], problem.intervals[live, 1]
    varies = np.flatnonzero(most > 0)  # never of a node with one strategy
    moments = np.unique(np.concatenate([starts, ends]))
    first, last = np.searchsorted(moments, starts), np.searchsorted(moments, ends)
    room = problem.usage_limit - _profile(least, first, last, len(moments))
    first, last = first[varies], last[varies]
    margin = problem.usage_limit * _ROUNDING if problem.usage_limit >= _EXACT else 0.0
    left = _binding(room - margin, _profile(most[varies], first, last, len(moments)), first, last)
    number = np.concatenate([[0], np.cumsum(left)])
    start, end = number[first], number[last]
    alive = start < end
    rows = [used[k] - least[k] for k in varies[alive].tolist()]
    return _grouped(reduced, margin, room[left], reduced.owner[live[varies[alive]]], start[alive], end[alive], rows)


def _grouped(
    reduced: ReducedProblem,
    margin: float,
    room: Floats,
    owner: Integers,
    start: Integers,
    end: Integers,
    rows: list[Floats],
) -> MemoryConstraints:
    """The memory, with allocations of one node over the same intervals added up."""
    sizes = np.array([len(c) for c in reduced.costs], dtype=np.int64)
    keys, inverse = np.unique(np.stack([owner, start, end], axis=1), axis=0, return_inverse=True)
    count = sizes[keys[:, 0]]
    offsets = np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
    total = np.zeros(int(offsets[-1]))
    for k, row in zip(inverse.ravel().tolist(), rows, strict=True):
        total[offsets[k] : offsets[k + 1]] += row
    allocation = np.repeat(np.arange(len(keys)), count)
    begin = np.concatenate([[0], np.cumsum(sizes)])[keys[:, 0]]
    strategy = begin[allocation] + np.arange(len(total)) - offsets[allocation]
    return MemoryConstraints(
        margin, room, keys[:, 0], keys[:, 1], keys[:, 2], offsets[:-1], total, strategy.astype(np.int64), allocation
    )  # fmt: skip


def _profile(amounts: Floats, start: Integers, end: Integers, length: int) -> Floats:
    """Sums by interval of amounts that last from a start to an end."""
    change = np.bincount(start, amounts, length + 1) - np.bincount(end, amounts, length + 1)
    return np.asarray(np.cumsum(change)[:-1])


def _binding(room: Floats, most: Floats, first: Integers, last: Integers) -> Mask:
    """Which intervals to keep.

    Args:
        room: by interval, bytes left.
        most: by interval, the most that can be held.
        first: beginnings of the lives of the nodes whose bytes vary.
        last: their ends.
    """
    started = np.concatenate([[0], np.cumsum(np.bincount(first, minlength=len(room) + 1))])
    ended = np.concatenate([[0], np.cumsum(np.bincount(last, minlength=len(room) + 1))])
    kept: list[int] = []
    for t in np.flatnonzero(most > room).tolist():
        while kept and ended[t + 1] == ended[kept[-1] + 1] and room[t] <= room[kept[-1]]:
            kept.pop()  # all that it holds is held at t
        if kept and started[t + 1] == started[kept[-1] + 1] and room[kept[-1]] <= room[t]:
            continue  # all that t holds is held there
        kept.append(t)
    binding = np.zeros(len(room), dtype=bool)
    binding[kept] = True
    return binding

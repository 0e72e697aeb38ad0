"""Memory over time of a reduced problem, on few intervals.

Nodes whose bytes do not depend on the choice are a constant profile. The others start and end at few moments; between
two of them the sum of the others is constant, so the largest constant counts. An interval goes if a neighbouring one
holds at least the same nodes and has no more room, or if its room is never exceeded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from superopt.assignment.problem import Problem
from superopt.assignment.reduction import Floats, Integers, Reduced

__all__ = ["Memory", "memory_of"]


@dataclass(frozen=True)
class Memory:
    """What a choice of strategies holds in each interval of time that can be over the limit.

    Attributes:
        room: by interval, bytes left by what does not depend on the choice.
        owner, start, end: by allocation, the node that decides it and the intervals ``start <= t < end`` of its life.
        offsets: where the bytes of an allocation lie in ``bytes``: one for each strategy of its owner.
        bytes: bytes.
        strategy: for each of ``bytes``, the strategy's number among those of all nodes.
    """

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
        change = np.zeros(len(self.room) + 1)
        change += np.bincount(self.start, amounts, len(change))
        change -= np.bincount(self.end, amounts, len(change))
        return np.cumsum(change)[:-1]

    def prices(self, multipliers: Floats, strategies: int) -> Floats:
        """By strategy, the price of its bytes: the sum over the intervals of its life of multiplier × bytes."""
        before = np.concatenate([[0.0], np.cumsum(multipliers)])
        rate = before[self.end] - before[self.start]
        return np.bincount(self.strategy, self.bytes * rate[self.allocation], strategies)


def memory_of(problem: Problem, reduced: Reduced) -> Memory:
    """The memory of a reduced problem."""
    owner, usage, starts, ends = _allocations(problem, reduced)
    base = np.array([u.min() if len(u) else 0.0 for u in usage])
    peak = np.array([u.max() if len(u) else 0.0 for u in usage])
    varies = peak > base  # never of a node with one strategy
    moments = np.unique(np.concatenate([starts, ends, [0]]))
    first, last = np.searchsorted(moments, starts), np.searchsorted(moments, ends)
    def profile(w):
        return np.cumsum(np.bincount(first,w,len(moments)+1)-np.bincount(last,w,len(moments)+1))[:-1]
    room = problem.usage_limit - profile(base)
    most = profile(peak-base)
    keep = np.flatnonzero(varies)
    left = _maximal(room, most, first[keep], last[keep])
    place = np.concatenate([[0], np.cumsum(left)])
    start, end = place[first[keep]], place[last[keep]]
    alive = start < end
    keep, start, end = keep[alive], start[alive], end[alive]
    sizes = np.array([len(c) for c in reduced.costs])
    node_offsets = np.concatenate([[0], np.cumsum(sizes)])
    # allocations of one node over the same intervals are one
    key = np.stack([owner[keep], start, end], axis=1)
    unique, inverse = np.unique(key, axis=0, return_inverse=True) if len(keep) else (key, np.zeros(0, int))
    count = sizes[unique[:, 0]]
    offsets = np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
    total = np.zeros(offsets[-1])
    for k, m in zip(inverse.ravel().tolist(), keep.tolist(), strict=True):
        total[offsets[k]:offsets[k+1]] += usage[m] - base[m]
    alloc = np.repeat(np.arange(len(unique)), count)
    within = np.arange(offsets[-1]) - offsets[alloc]
    return Memory(room[left], unique[:,0], unique[:,1], unique[:,2], offsets[:-1], total, node_offsets[unique[alloc,0]]+within, alloc)

def _allocations(problem, reduced):
    live = np.flatnonzero(problem.intervals[:,0] < problem.intervals[:,1])
    usages=list(problem.node_usages())
    usage=[usages[n][reduced.lift[n]].astype(float) for n in live.tolist()]
    return reduced.owner[live], usage, problem.intervals[live,0], problem.intervals[live,1]

def _maximal(room, most, first, last):
    """Which intervals are to be kept."""
    n=len(room)
    starts=np.bincount(first,minlength=n+1); ends=np.bincount(last,minlength=n+1)
    left = most > room
    idx=np.flatnonzero(left)
    cs=np.concatenate([[0],np.cumsum(starts)]); ce=np.concatenate([[0],np.cumsum(ends)])
    # stack pass
    out=[]
    for t in idx.tolist():
        while out:
            p=out[-1]
            started=cs[t+1]-cs[p+1]; ended=ce[t+1]-ce[p+1]
            if ended==0 and room[t]<=room[p]: out.pop(); continue   # p within t
            break
        if out:
            p=out[-1]
            if cs[t+1]-cs[p+1]==0 and room[p]<=room[t]: continue
        out.append(t)
    left=np.zeros(n,bool); left[out]=True
    return left

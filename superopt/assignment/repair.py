"""Choices within the limit of memory: repair by changes of single nodes, and the union of two choices by components."""

from __future__ import annotations

import numpy as np

from superopt.assignment.memory_constraints import MemoryConstraints
from superopt.assignment.pairwise import Mask, PairwiseModel
from superopt.assignment.policy import AssignmentSolverPolicy
from superopt.assignment.reduction import Floats, Integers

__all__ = ["combine", "repair"]


def repair(
    model: PairwiseModel, memory: MemoryConstraints, choice: Integers, policy: AssignmentSolverPolicy
) -> Integers | None:
    """Change single nodes until memory fits: first those that relieve the intervals over the limit at least cost.

    Returns:
        A choice within the limit; ``None`` where single changes do not lead to one.
    """
    for _ in range(policy.repairs):
        excess = memory.held(choice) - memory.room
        if excess.max(initial=0.0) <= 0:
            return choice
        relief = memory.prices((excess > 0).astype(np.float64), model.strategies)
        current = model.offsets[:-1] + choice
        gain = relief[current][model.node_of] - relief
        costs = model.conditional(choice)
        rise = costs - costs[current][model.node_of]
        candidates = np.flatnonzero(gain > 0)
        if not len(candidates):
            return None
        score = np.where(rise[candidates] < 0, rise[candidates], rise[candidates] / gain[candidates])
        order = candidates[np.argsort(score, kind="stable")][: policy.repair_candidates]
        choice = _changed(model, choice, order, gain, policy.repair_share * float(np.maximum(excess, 0).sum()))
    return None


def _changed(model: PairwiseModel, choice: Integers, order: Integers, gain: Floats, enough: float) -> Integers:
    """The first changes in order, no two at neighbours, until they gain enough."""
    changed, gained = choice.copy(), 0.0
    blocked: set[int] = set()
    for strategy in order.tolist():
        node = int(model.node_of[strategy])
        if node in blocked:
            continue
        changed[node] = strategy - model.offsets[node]
        gained += float(gain[strategy])
        if gained > enough:
            break
        blocked |= {node, *model.neighbours[node]}
    return changed


def combine(
    model: PairwiseModel, memory: MemoryConstraints, base: Integers, other: Integers, multipliers: Floats
) -> Integers:
    """The base, which fits, with those parts of another choice that lower its cost and fit.

    A part is a connected component of the nodes at which the two differ. Parts that cost more are taken if they free
    memory that is worth it, and given up again where it turns out not to be needed.

    Args:
        model: costs.
        memory: bytes and room.
        base: a choice that fits.
        other: another choice.
        multipliers: prices of memory.

    Returns:
        A choice that fits and does not cost more than the base.
    """
    changed = base != other
    if not changed.any():
        return base
    parts = _Parts(model, memory, base, other, changed)
    priced = parts.rise + parts.priced(multipliers)
    slack = memory.room - memory.held(base)
    taken = np.zeros(parts.count, dtype=bool)
    order = np.argsort(priced, kind="stable").tolist()
    for part in order * 2:
        if not taken[part] and (parts.rise[part] < 0 or priced[part] < 0):
            taken[part] = parts.apply(slack, part, 1.0)
    for part in reversed(order):
        if taken[part] and parts.rise[part] > 0:
            taken[part] = not parts.apply(slack, part, -1.0)
    if parts.rise[taken].sum() >= 0:
        return base
    return np.where(changed & taken[np.maximum(parts.part, 0)], other, base)


class _Parts:
    """Connected components of the nodes at which two choices differ; ``rise``: what each adds to the cost."""

    def __init__(
        self, model: PairwiseModel, memory: MemoryConstraints, base: Integers, other: Integers, changed: Mask
    ) -> None:
        self.part, self.count = _components(model, changed)
        rise = model.costs[model.offsets[:-1] + other] - model.costs[model.offsets[:-1] + base]
        edges = model.tables[model.entries(other)] - model.tables[model.entries(base)]
        first, second = model.pairs[:, 0], model.pairs[:, 1]
        at = np.where(changed[first], self.part[first], self.part[second])  # no edge joins two components
        touched = changed[first] | changed[second]
        self.rise = np.bincount(self.part[changed], rise[changed], self.count)
        self.rise = self.rise + np.bincount(at[touched], edges[touched], self.count)
        allocations = np.flatnonzero(changed[memory.owner])
        owner, begin = memory.owner[allocations], memory.offsets[allocations]
        grown = memory.bytes[begin + other[owner]] - memory.bytes[begin + base[owner]]
        order = np.argsort(self.part[owner], kind="stable")
        self.grown, self.owner = grown[order], self.part[owner][order]
        self.start, self.end = memory.start[allocations][order], memory.end[allocations][order]
        self.begin = np.searchsorted(self.owner, np.arange(self.count + 1)).tolist()

    def priced(self, multipliers: Floats) -> Floats:
        """What the memory of each part is worth."""
        before = np.concatenate([[0.0], np.cumsum(multipliers)])
        return np.asarray(
            np.bincount(self.owner, self.grown * (before[self.end] - before[self.start]), self.count), dtype=np.float64
        )

    def apply(self, slack: Floats, part: int, sign: float) -> bool:
        """Take a part's memory from the slack, or give it back (sign -1), if no interval that it adds to overflows."""
        mine = slice(self.begin[part], self.begin[part + 1])
        if mine.start == mine.stop:
            return True
        low, high = int(self.start[mine].min()), int(self.end[mine].max())
        change = np.bincount(self.start[mine] - low, self.grown[mine], high - low + 1)
        change -= np.bincount(self.end[mine] - low, self.grown[mine], high - low + 1)
        used = sign * np.cumsum(change)[:-1]
        after = slack[low:high] - used
        if (after[used > 0] < 0).any():
            return False
        slack[low:high] = after
        return True


def _components(model: PairwiseModel, changed: Mask) -> tuple[Integers, int]:
    """By node, its component among the changed ones, -1 for the others; and how many there are."""
    part: list[int] = [-1] * model.nodes
    inside, count = changed.tolist(), 0
    for node in np.flatnonzero(changed).tolist():
        if part[node] >= 0:
            continue
        part[node], waiting = count, [node]
        while waiting:
            for j in model.neighbours[waiting.pop()]:
                if inside[j] and part[j] < 0:
                    part[j] = count
                    waiting.append(j)
        count += 1
    return np.array(part, dtype=np.int64), count

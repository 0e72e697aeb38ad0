"""Block moves and multipliers: the search for cheap choices within the limit of memory.

A step fixes a random cutset at the strategies that its nodes have, and minimises over all other nodes exactly, with
memory priced by Lagrange multipliers. Then the multipliers follow the memory that the choice holds. The choice is
repaired by changes of single nodes and merged, by components, into the best one that fits.
"""

from __future__ import annotations

import numpy as np

from superopt.assignment.contraction import CoarseAssignmentProblem, ContractionLevel, EdgeRegrets, regrets_of
from superopt.assignment.cutset import choose_cutset
from superopt.assignment.elimination import BucketElimination
from superopt.assignment.memory_constraints import MemoryConstraints
from superopt.assignment.pairwise import Mask, PairwiseModel
from superopt.assignment.policy import AssignmentSolverPolicy
from superopt.assignment.reduction import Floats, Integers

__all__ = ["BlockMoveSearch"]


class BlockMoveSearch:
    """The state of a search.

    Args:
        model, memory: the problem.
        policy: its constants.
        seed: of the random numbers.

    Attributes:
        choice: strategies by node; memory may be over the limit.
        best: the cheapest choice found within the limit, or ``None``.
        best_cost: its cost.
        multipliers: price of a byte, by interval.
        steps: so far.
    """

    def __init__(
        self, model: PairwiseModel, memory: MemoryConstraints, policy: AssignmentSolverPolicy, seed: int
    ) -> None:
        self.model, self.memory, self.policy = model, memory, policy
        self.generator = np.random.default_rng(seed)
        self.plans: list[BucketElimination] = []
        self.free = np.zeros(model.nodes)  # by node, the cutsets so far without it
        self.choice: Integers = np.zeros(model.nodes, dtype=np.int64)
        self.best: Integers | None = None
        self.best_cost = np.inf
        self.room = np.maximum(memory.room, 1.0)
        self.multipliers: Floats = np.zeros(len(memory.room))
        self.regrets: EdgeRegrets | None = None
        self.steps = 0
        self.progress = (0, np.inf, np.inf)  # the step of the last progress, the priced cost and the best cost then

    def step(self) -> None:
        """One step."""
        costs = self.model.costs + self.memory.prices(self.multipliers, self.model.strategies)
        self._move_coarse(costs)
        self._move_fine(costs)
        self.steps += 1
        self._keep_best()
        self._price()
        self._restart_if_stuck()

    def finish(self) -> None:
        """Take the only choice, where nothing is left to decide."""
        self._offer(self.choice)

    def _move_coarse(self, costs: Floats) -> None:
        """Minimise over a contraction."""
        cost = max(1.0, abs(self.model.cost(self.choice)))
        cap = self.policy.cap * cost
        if self.regrets is None or not 0.5 < self.regrets.cap / cap < 2:
            self.regrets = regrets_of(self.model, cap)
        coarse = CoarseAssignmentProblem(
            self.model, costs, self.choice, self.regrets, self.generator, self.policy.noise
        )
        levels: list[ContractionLevel] = []
        policy = self.policy
        target = max(self.model.nodes * policy.finest, policy.coarsest * policy.ratio)
        target *= 2 ** self.generator.uniform(-1, 1)
        while target >= policy.coarsest:
            coarse.contract(int(target))
            levels.append(coarse.level())
            target /= policy.ratio
        choice = self.choice
        for level, finer in zip(reversed(levels), [*reversed(levels[:-1]), None], strict=True):
            fixed = self._cutset(level.model, [])
            better = BucketElimination(level.model, fixed).run(choice[level.nodes], level.model.costs)
            choice = coarse.lift(level, better, 0 if finer is None else finer.merges)
        self.choice = choice

    def _cutset(self, model: PairwiseModel, free: list[int]) -> list[int]:
        """A cutset; tables may be the larger, the fewer nodes there are."""
        policy = self.policy
        entries = policy.table_entries * min(policy.most_growth, max(1.0, policy.large / max(1, model.nodes)))
        return choose_cutset(model, entries, self.generator, policy.spread, free)

    def _move_fine(self, costs: Floats) -> None:
        """Minimise over all nodes but a cutset, a new one or one of those that are kept, in turn."""
        if self.steps % 2 == 0 or len(self.plans) < 2:
            self._add_plan()
            plan = self.plans[-1]
        else:
            plan = self.plans[int(self.generator.integers(len(self.plans) - 1))]
        self.choice = plan.run(self.choice, costs)

    def _add_plan(self) -> None:
        rare = np.flatnonzero(self.free < 0.5 * self.free.max()) if self.plans else np.zeros(0, dtype=np.int64)
        count = int(np.ceil(len(rare) * self.policy.protected * 2 * self.generator.random()))
        protected = self.generator.permutation(rare)[:count].tolist()
        fixed = self._cutset(self.model, protected)
        self.free += 1
        self.free[fixed] -= 1
        self.plans = [*self.plans[1 - self.policy.plans :], BucketElimination(self.model, fixed)]

    def _keep_best(self) -> None:
        """Repair the choice if it nearly fits, and merge it with the best one."""
        model, memory = self.model, self.memory
        peak = float((memory.held(self.choice) / self.room).max(initial=0.0))
        if peak > self.policy.near or model.violations(self.choice):
            return
        repaired = repair(model, memory, self.choice, self.policy)
        if repaired is None or model.violations(repaired):
            return
        self._offer(repaired)
        if self.best is not None and self.best is not repaired:
            self._offer(combine(model, memory, self.best, repaired, self.multipliers))

    def _restart_if_stuck(self) -> None:
        """Begin elsewhere after a number of steps without a better choice: at random at some of the nodes."""
        held = self.memory.held(self.choice) - self.memory.room
        value = self.model.cost(self.choice) + float((self.multipliers * held).sum())
        last, least, best = self.progress
        small = self.policy.progress * abs(least)
        if value < least - small or self.best_cost < best - small or self.steps <= self.policy.warm:
            self.progress = (self.steps, min(value, least), self.best_cost)
        elif self.steps - last >= self.policy.patience:
            start = self.choice if self.best is None else self.best
            other = (self.generator.random(self.model.nodes) * self.model.sizes).astype(np.int64)
            share = self.generator.random()
            self.choice = np.where(self.generator.random(self.model.nodes) < share, other, start)
            self.progress = (self.steps, np.inf, self.best_cost)

    def _offer(self, choice: Integers) -> None:
        cost = self.model.cost(choice)
        if cost < self.best_cost and (self.memory.held(choice) <= self.memory.room).all():
            self.best, self.best_cost = choice, cost

    def _price(self) -> None:
        """Move the multipliers with the excess of memory."""
        policy = self.policy
        excess = self.memory.held(self.choice) / self.room - 1
        if self.steps < policy.warm:
            return
        if self.model.violations(self.choice):
            return
        if not self.multipliers.any():
            cost = max(1.0, abs(self.model.cost(self.choice)))
            self.multipliers = policy.first_price * cost / max(1, len(self.room)) / self.room
            return
        rate = max(policy.least_rate, policy.rate / (1 + (self.steps - policy.warm) / policy.halving))
        change = np.clip(rate * excess, -policy.largest_change, policy.largest_change)
        self.multipliers = self.multipliers * np.exp(change)


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

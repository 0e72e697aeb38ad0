"""What to compute again rather than keep, for less memory alive at once: plans on the front of time and bytes.

A plan is an order of execution in which nodes may stand more than once. It is made by *cuts*. Where most is alive,
what later nodes need of earlier ones is either kept, or made again right before it is needed, from what is. Which of
both costs least, bytes kept plus a price times the time of what is made again, is a minimum cut: one linear program,
whose vertices are whole numbers. Values made again stay within *segments*, between which values are kept, so that
making one segment again does not need what all of them need at once (Chen et al., arXiv 1604.06174; segments end where
least is handed on). Prices and numbers of segments span the plans of a cut; the best of them, by the peak that an exact
simulation finds, are cut again where most is alive now, until that gains nothing (compare the minimum cut of PyTorch's
partitioner, which has no segments and one cut, and Checkmate's program, arXiv 1910.02653, which is exact and quadratic
in the nodes).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

import highspy
import numpy as np

from superopt.memory.remat_ilp import expanded, least_time, plain
from superopt.memory.rematerialization_schedule import (
    RematerializationNode,
    RematerializationProblem,
    RematerializationSchedule,
    RematerializationStep,
    alive_at,
    lightened,
    original_timetable,
    patient,
    peak_of,
    polished,
)
from superopt.runtime.highs import solver

__all__ = [
    "RematerializationNode",
    "RematerializationStep",
    "RematerializationProblem",
    "RematerializationSchedule",
    "alive_at",
    "front",
    "peak_of",
]

_SEGMENTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_PRICES = 10  # prices that are tried, a factor of two apart
_BEAM = 6  # plans that are cut again
_ROUNDS = 8
ROWS = 300_000  # of linear programs, in all: some five seconds
_SMALL, _LEVELS = 400, 12  # ops up to which, and bytes within which, the least time is asked for
_WITHIN = 0.3  # rows of that, for each of the cuts': they are solved more quickly
_LOOKED = 4  # steps per row: of plans, for what is made again in vain
_STEP = 0.95  # of the bytes, between plans that are looked for between others
_PLANS = 8  # none of which looks at more than its part of them
_AHEAD = 4  # plans with more bytes, whose bytes that is tried with
_TAKEN = 1e-4  # a plan that is better by less than this share of both time and bytes is no other plan


@dataclass
class _Budget:
    """What is left: rows of linear programs, the same on every machine, and the clock, for emergencies."""

    rows: int
    deadline: float
    steps: int  # that may be looked at for what is made again in vain

    @property
    def spent(self) -> bool:
        return self.rows <= 0 or time.monotonic() > self.deadline


def front(
    task: RematerializationProblem, *, rows: int = ROWS, seconds: float = inf, enough: int | None = None
) -> list[RematerializationSchedule]:
    """Plans of which none has both a lower peak and less to compute again, by falling peak; the first is the order
    given.

    Args:
        task: the graph.
        rows: of linear programs, after which no cut is begun.
        seconds: the same, in an emergency: the plans then depend on how busy the machine is.
        enough: bytes below which a plan need not go: what has reached them is not cut again.
    """
    budget = _Budget(rows, time.monotonic() + seconds, _LOOKED * rows)
    first = patient(task, original_timetable(task))
    found, cut = [first], set[tuple[int, float]]()
    for _ in range(_ROUNDS):
        fresh = [p for p in found if (p.peak, p.us) not in cut and (enough is None or p.peak > enough)]
        if not fresh or budget.spent:
            break
        for plan in _spread(fresh, _BEAM):
            cut.add((plan.peak, plan.us))
            found = _undominated([*found, *(patient(task, p) for p in _Cut(task, plan).plans(budget))])
    return _thrifty(task, _undominated([*found, *_within(task, first, rows, budget)]), budget)


def _within(
    task: RematerializationProblem, first: RematerializationSchedule, rows: int, budget: _Budget
) -> Iterator[RematerializationSchedule]:
    """Plans within some numbers of bytes, where the graph is small enough to ask for the least time of each."""
    small = plain(task)
    least = max((sum(small.sizes[v] for v in {*op.reads, *op.makes}) for op in small.ops), default=0)
    if len(small.ops) > _SMALL or least >= first.peak:
        return
    left = int(_WITHIN * rows)
    for level in range(1, _LEVELS + 1):
        if left > 0 and time.monotonic() < budget.deadline:
            peak = int(first.peak * (max(least, 1) / first.peak) ** (level / _LEVELS))
            bound = least_time(small, peak, rows=left // (_LEVELS + 1 - level))
            left -= bound.rows
            yield from (patient(task, expanded(task, p)) for p in bound.plans)


def _thrifty(
    task: RematerializationProblem, plans: Sequence[RematerializationSchedule], budget: _Budget
) -> list[RematerializationSchedule]:
    """The plans without what they make again in vain, for their own bytes and for those of the ones before them, and
    plans between them."""
    found, most = list(plans), budget.steps // _PLANS

    def spent() -> bool:
        return budget.steps <= 0 or time.monotonic() > budget.deadline

    for wider, plan in pairwise(plans):
        peak = _STEP * wider.peak  # there is room between them
        while peak > plan.peak / _STEP and not spent():
            lean, budget.steps = lightened(task, plan, int(peak), budget.steps)
            found.append(lean)
            peak *= _STEP
    plans = _undominated(found)
    for ahead in range(_AHEAD):
        for at in range(len(plans) - 1, ahead, -1):
            if spent():
                break
            lean, left = polished(task, plans[at], plans[at - ahead].peak, min(most, budget.steps))
            budget.steps -= min(most, budget.steps) - left
            found.append(lean)
    return _undominated(found)


def _spread(plans: Sequence[RematerializationSchedule], most: int) -> list[RematerializationSchedule]:
    """At most so many plans, evenly taken."""
    if len(plans) <= most:
        return list(plans)
    return [plans[round(i * (len(plans) - 1) / (most - 1))] for i in range(most)]


def _undominated(plans: Iterable[RematerializationSchedule]) -> list[RematerializationSchedule]:
    kept: list[RematerializationSchedule] = []
    for plan in sorted(plans, key=lambda p: (p.us, p.peak)):
        if not kept or plan.peak < kept[-1].peak * (1.0 - _TAKEN):
            kept.append(plan)
    return kept


class _Cut:
    """What there is to keep or to make again after the step of a plan at which most is alive."""

    def __init__(self, task: RematerializationProblem, plan: RematerializationSchedule) -> None:
        self.task, self.plan, self.at = task, plan, plan.at
        before = plan.steps[: plan.at + 1]
        self.maker = {v: i for i, step in enumerate(before) for v in step.makes}
        self.kept = set(task.results)
        root: dict[int, int] = {}
        for step in before:
            if task.ops[step.op].view:
                root[step.makes[0]] = root.get(step.reads[0], step.reads[0])
        self.kept |= {root[v] for v in task.results if v in root}
        later = dict.fromkeys(v for s in plan.steps[plan.at + 1 :] for v in s.reads if v in self.maker)
        self.later = list(later)
        closure: dict[int, None] = {}
        stack = list(later)
        while stack:
            at = self.maker[stack.pop()]
            if at in closure or not self._repeatable(at):
                continue
            closure[at] = None
            stack += [v for v in before[at].reads if v in self.maker]
        self.closure = sorted(closure)
        self.handed = self._handed_on()

    def _repeatable(self, step: int) -> bool:
        return self.task.ops[self.plan.steps[step].op].repeatable

    def _us(self, step: int) -> float:
        return self.task.ops[self.plan.steps[step].op].us

    def _bytes(self, value: int) -> int:
        return 0 if value in self.kept else self.task.sizes[self.plan.original[value]]

    def _handed_on(self) -> np.ndarray:
        """After each step up to the cut: bytes of what is made before it and read after it, but before the cut."""
        change = np.zeros(self.at + 2, np.int64)
        last: dict[int, int] = {}
        for i, step in enumerate(self.plan.steps[: self.at + 1]):
            last.update(dict.fromkeys(step.reads, i))
        for value, maker in self.maker.items():
            end = last.get(value, maker)
            change[maker] += self._bytes(value)
            change[end] -= self._bytes(value)
        return np.cumsum(change)[: self.at + 1]

    def plans(self, budget: _Budget) -> list[RematerializationSchedule]:
        """Those of all numbers of segments and prices that the budget allows."""
        found: list[RematerializationSchedule] = []
        if not self.closure:
            return found
        seen = set[tuple[frozenset[int], frozenset[int]]]()
        total = sum(self._bytes(v) for v in self.later) or 1
        us = sum(self._us(i) for i in self.closure) or 1.0
        segments = set[tuple[int, ...]]()
        for count in _SEGMENTS:
            ends = self._segments(count)
            if count > len(self.closure) or ends in segments:
                continue
            segments.add(ends)
            for exponent in range(_PRICES):
                if budget.spent:
                    return found
                price = total / us * 4.0 / 2.0**exponent
                keep, again, rows = self._solved(price, ends)
                budget.rows -= rows
                if not again or (keep, again) in seen:
                    continue
                seen.add((keep, again))
                found.append(self._applied(keep, again))
        return found

    def _segments(self, count: int) -> tuple[int, ...]:
        """The last steps of segments that make about as many bytes each, where least is handed on."""
        if count == 1:
            return ()
        made = np.zeros(self.at + 1)
        for i in self.closure:
            made[i] = (
                0
                if self.task.ops[self.plan.steps[i].op].view
                else sum(self._bytes(v) for v in self.plan.steps[i].makes)
            )
        total = np.cumsum(made)
        ends = []
        for part in range(1, count):
            low, high = (int(np.searchsorted(total, total[-1] * (part + shift) / count)) for shift in (-0.4, 0.4))
            low, high = min(low, self.at), min(high, self.at)
            ends.append(low + int(self.handed[low : high + 1].argmin()))
        return tuple(sorted(set(ends)))

    def _solved(self, price: float, ends: tuple[int, ...]) -> tuple[frozenset[int], frozenset[int], int]:
        """Values to keep and steps to repeat: the minimum cut, as a linear program; and its rows."""
        segment = np.searchsorted(np.array(ends, np.int64), np.arange(self.at + 1), side="left")
        steps = {s: i for i, s in enumerate(self.closure)}
        values: dict[int, int] = {}
        cost = [price * (self._us(s) + 1e-3) for s in self.closure]
        rows: list[tuple[int, int, int]] = []  # variables: kept, made again (or none), needed by (or none)

        def kept(value: int) -> int:
            if value not in values:
                values[value] = len(cost)
                cost.append(float(self._bytes(value)))
            return values[value]

        for value in self.later:
            maker = steps.get(self.maker[value], -1)
            if maker >= 0:
                rows.append((self._stored(value, kept), maker, -1))
        for step in self.closure:
            for value in dict.fromkeys(self.plan.steps[step].reads):
                if value not in self.maker:
                    continue
                maker = steps.get(self.maker[value], -1)
                if maker >= 0 and segment[self.maker[value]] != segment[step] and not self._view(self.maker[value]):
                    maker = -1
                rows.append((self._stored(value, kept), maker, steps[step]))
        solution = _minimum(cost, rows)
        again = frozenset(s for s, i in steps.items() if solution[i] > 0.5)
        keep = frozenset(v for v, i in values.items() if solution[i] > 0.5)
        return keep, again, len(rows)

    def _view(self, step: int) -> bool:
        return self.task.ops[self.plan.steps[step].op].view

    def _stored(self, value: int, kept: Callable[[int], int]) -> int:
        """The variable that says that a value is kept: a view is not, its source is."""
        maker = self.maker[value]
        view = self._view(maker) and self._repeatable(maker) and value == self.plan.steps[maker].makes[0]
        return -1 if view else kept(value)

    def _applied(self, keep: frozenset[int], again: frozenset[int]) -> RematerializationSchedule:
        """The plan in which these steps are executed again right before what they make is needed."""
        plan, copies = self.plan, dict[int, int]()
        steps, original = list(plan.steps[: self.at + 1]), list(plan.original)
        us = plan.us

        def there(value: int) -> bool:
            return value in copies or value in keep or self.maker.get(value, -1) not in again

        def copied(step: int) -> None:
            nonlocal us
            own = plan.steps[step]
            reads = tuple(copies.get(v, v) for v in own.reads)
            if self._view(step) and reads == own.reads:
                copies.update(zip(own.makes, own.makes, strict=True))  # another name for what is there
                return
            makes = []
            for value in own.makes:
                makes.append(len(original))
                copies[value] = len(original)
                original.append(original[value])
            us += self._us(step)
            steps.append(RematerializationStep(own.op, reads, tuple(makes)))

        for step in plan.steps[self.at + 1 :]:
            for value in step.reads:
                stack = [] if there(value) else [value]
                while stack:
                    maker = self.maker[stack[-1]]
                    missing = [v for v in plan.steps[maker].reads if not there(v)]
                    if stack[-1] in copies:
                        stack.pop()
                    elif missing:
                        stack.append(missing[0])
                    else:
                        copied(maker)
                        stack.pop()
            steps.append(
                RematerializationStep(
                    step.op, tuple(copies.get(v, v) if v not in keep else v for v in step.reads), step.makes
                )
            )
        return RematerializationSchedule(tuple(steps), tuple(original), us, *peak_of(self.task, steps, original))


def _minimum(cost: Sequence[float], rows: Sequence[tuple[int, int, int]]) -> np.ndarray:
    """The least of the costs with variables from 0 to 1: of every row, the first two together at least the third, or 1
    where there is none (negative numbers: no variable)."""
    count = len(cost)
    starts, index, entries, lower = [0], [], [], []
    for first, second, third in rows:
        for variable, entry in ((first, 1.0), (second, 1.0), (third, -1.0)):
            if variable >= 0:
                index.append(variable)
                entries.append(entry)
        starts.append(len(index))
        lower.append(0.0 if third >= 0 else 1.0)
    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = count, len(rows)
    scale = max(cost, default=1.0) or 1.0
    program.col_cost_ = np.array(cost) / scale
    program.col_lower_, program.col_upper_ = np.zeros(count), np.ones(count)
    program.row_lower_, program.row_upper_ = np.array(lower), np.full(len(rows), inf)
    program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    program.a_matrix_.start_ = np.array(starts, np.int32)
    program.a_matrix_.index_ = np.array(index, np.int32)
    program.a_matrix_.value_ = np.array(entries)
    made = solver()
    made.passModel(program)
    made.run()
    return np.array(made.getSolution().col_value)

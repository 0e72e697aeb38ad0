"""The least that has to be computed again for a graph to run within some bytes, for graphs of some hundred nodes.

Checkmate's program (Jain et al., arXiv 1910.02653) asks for every pair of nodes whether the one is computed again, or
kept, before the first execution of the other: n² variables of each kind, beyond solvers at 300 nodes. Here only some of
the first executions are looked at, the *points*: in the *window* between two of them a node is executed again or not,
at each a value is there or not, and what is there fits. Each plan with the given order of first executions meets this,
so that the program's optimum is a bound from below, whatever the points. They are added where the schedule that a
solution amounts to exceeds its bytes: at a first execution, or, within a window that ends with the execution after the
last point's, at one that is repeated (there nodes are taken to be repeated once, in their order, as in Checkmate's
stages; with all points the programs are the same). Where it exceeds them nowhere, it is as good as the bound says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

import highspy
import numpy as np

from superopt.memory.rematerialization_schedule import (
    RematerializationNode,
    RematerializationProblem,
    RematerializationSchedule,
    RematerializationStep,
    alive_at,
    append_recomputation,
    peak_of,
)
from superopt.runtime.highs import solver

__all__ = ["RematerializationBound", "expanded", "least_time", "plain"]

_MOST_POINTS = 60
_AT_ONCE = 3  # points that are added after a solution
_KEPT = (0.999, 0.7, 0.4, 0.01)  # of a value, from which it is kept whole


def plain(task: RematerializationProblem) -> RematerializationProblem:
    """The task without views and without what is held: neither costs bytes or time, whatever the plan.

    Values keep their numbers; readers of a view read what it is a view of.
    """
    root = list(range(len(task.sizes)))
    ops = []
    for op in task.ops:
        reads = tuple(dict.fromkeys(root[v] for v in op.reads if root[v] not in task.held))
        if op.view:
            root[op.makes[0]] = root[op.reads[0]]
        else:
            ops.append(RematerializationNode(reads, op.makes, op.us, False, op.repeatable))
    return RematerializationProblem(
        tuple(ops), task.sizes, frozenset(), frozenset(root[v] for v in task.results) - task.held
    )


@dataclass(frozen=True)
class RematerializationBound:
    """What is known of the least time of a plan within some bytes.

    Attributes:
        us: microseconds of computing again that no plan goes below, in this order of first executions; infinite where
            none is within the bytes.
        plans: what the solutions on the way amount to; the last is within the bytes if any is.
        rows: of all programs.
        points: at which bytes were counted.
    """

    us: float
    plans: tuple[RematerializationSchedule, ...]
    rows: int
    points: int


@dataclass
class _Program:
    """The program of some points: variables are columns with costs and bounds, rows are sums with a lower bound."""

    task: RematerializationProblem
    points: Sequence[int]  # first executions
    inner: Sequence[tuple[int, int]]  # (first execution, op that is repeated right before it)
    cost: list[float] = field(default_factory=list)
    index: list[int] = field(default_factory=list)
    entries: list[float] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    lower: list[float] = field(default_factory=list)
    kept: dict[tuple[int, int], int] = field(default_factory=dict)  # (point, value): its column
    again: dict[tuple[int, int], int] = field(default_factory=dict)  # (window, op)

    def __post_init__(self) -> None:
        self.maker = {v: i for i, op in enumerate(self.task.ops) for v in op.makes}
        self.readers: dict[int, list[int]] = {v: [] for v in self.maker}
        for i, op in enumerate(self.task.ops):
            for value in dict.fromkeys(op.reads):
                self.readers[value].append(i)
        self.us = sum(op.us for op in self.task.ops)
        self.ends = [*self.points, len(self.task.ops) - 1]  # the last first execution of each window

    def add(self, peak: float) -> None:
        """All rows."""
        first = -1
        for window, end in enumerate(self.ends):
            for op in range(first + 1):
                if self.task.ops[op].repeatable:
                    self.again[window, op] = self._column(self.task.ops[op].us)
            for op in range(first + 1, end + 1):
                for value in self.task.ops[op].reads:
                    if self.maker[value] <= first:
                        self._row(self._sources(window, value), 1.0)
            for op in range(first + 1):
                for value in self.task.ops[op].reads if (window, op) in self.again else ():
                    self._row([*self._sources(window, value), (self.again[window, op], -1.0)], 0.0)
            self._constrain_alive(window, end, peak)
            for at, op in self.inner:
                if at == end and window < len(self.points):
                    self._within(window, end, op, peak)
            first = end

    def _within(self, window: int, end: int, op: int, peak: float) -> None:
        """What is there at the place of a repeated op, between the execution before ``end`` and that."""
        terms = []
        for value, maker in self.maker.items():
            if maker >= end:
                continue
            column = self._column(0.0)
            terms.append((column, -self.task.sizes[value] / max(peak, 1.0)))
            there = [(column, 1.0)]
            if maker > op and (window, maker) in self.again:
                there.append((self.again[window, maker], 1.0))  # it is made again later
            for reader in self.readers[value]:
                if (window, reader) in self.again and reader >= op:
                    self._row([*(there if reader > op else there[:1]), (self.again[window, reader], -1.0)], 0.0)
            self._row([*there, (self.kept[window, value], -1.0)], 0.0)
            if value in self.task.ops[end].reads:
                self._row(there, 1.0)
            if maker == op and (window, op) in self.again:
                self._row([(column, 1.0), (self.again[window, op], -1.0)], 0.0)
        self._row(terms, -1.0)

    def _constrain_alive(self, window: int, end: int, peak: float) -> None:
        """What is there at the end of a window, at the first execution of its last op; or after it, of the results."""
        before = self.ends[window - 1] if window else -1
        if window == len(self.points):
            for value in self.task.results:
                if self.maker[value] <= before:
                    self._row(self._sources(window, value), 1.0)
            return
        room, terms = peak, []
        needed = {*self.task.ops[end].reads, *self.task.ops[end].makes}
        for value, maker in self.maker.items():
            if maker > end:
                continue
            if maker == end:
                room -= self.task.sizes[value]
            kept = self.kept[window, value] = self._column(0.0)
            if maker <= before:
                self._row([*self._sources(window, value), (kept, -1.0)], 0.0)
            if value in needed:
                self._row([(kept, 1.0)], 1.0)
            if maker != end:
                terms.append((kept, -self.task.sizes[value] / max(peak, 1.0)))
        self._row(terms, -room / max(peak, 1.0))

    def _sources(self, window: int, value: int) -> list[tuple[int, float]]:
        """Where a value of an earlier window may come from: kept at the last point, or made again."""
        found = [(self.kept[window - 1, value], 1.0)]
        again = self.again.get((window, self.maker[value]))
        return found if again is None else [*found, (again, 1.0)]

    def _column(self, cost: float) -> int:
        self.cost.append(cost)
        return len(self.cost) - 1

    def _row(self, terms: Sequence[tuple[int, float]], lower: float) -> None:
        self.index += [c for c, _ in terms]
        self.entries += [e for _, e in terms]
        self.starts.append(len(self.index))
        self.lower.append(lower)

    def solved(self) -> tuple[float, np.ndarray | None]:
        """The least cost of fractions of nodes and values, and them; infinite where there is nothing within the bytes.

        All but some of them are whole, of the order of one for each point: without the sums of bytes this is a minimum
        cut.
        """
        program = highspy.HighsLp()
        count = len(self.cost)
        program.num_col_, program.num_row_ = count, len(self.lower)
        program.col_cost_, program.offset_ = np.array(self.cost) / self.us, 1.0  # gaps are of everything's time
        program.col_lower_, program.col_upper_ = np.zeros(count), np.ones(count)
        program.row_lower_, program.row_upper_ = np.array(self.lower), np.full(len(self.lower), inf)
        program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        program.a_matrix_.start_ = np.array(self.starts, np.int32)
        program.a_matrix_.index_ = np.array(self.index, np.int32)
        program.a_matrix_.value_ = np.array(self.entries)
        made = solver()
        made.passModel(program)
        made.run()
        info, status = made.getInfo(), made.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            return inf, None
        bound = max(info.objective_function_value, 1.0)
        found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        return (bound - 1.0) * self.us, np.array(made.getSolution().col_value) if found else None


def least_time(task: RematerializationProblem, peak: int, *, rows: int = 30_000) -> RematerializationBound:
    """The least that has to be computed again for a task to stay within some bytes.

    Args:
        task: without views (:func:`plain`).
        peak: bytes.
        rows: of programs, after which no further point is added.
    """
    steps = [RematerializationStep(i, op.reads, op.makes) for i, op in enumerate(task.ops)]
    places = list(_over(task, steps, range(len(task.sizes)), peak))
    first, inner = {at for at, _ in places}, set[tuple[int, int]]()
    plans: list[RematerializationSchedule] = []
    best, spent = 0.0, 0
    while first:
        program = _Program(task, sorted(first), sorted(inner))
        program.add(float(peak))
        spent += len(program.lower)
        bound, solution = program.solved()
        best = max(best, bound)
        if solution is None:
            break
        made = [_realised(program, solution, share) for share in _KEPT]
        plans += made
        plan = min(made, key=lambda p: (max(p.peak, peak), p.us))
        count = len(first) + len(inner)
        if plan.peak <= peak or spent > rows or count >= _MOST_POINTS:
            break
        for at, op in _over(task, plan.steps, plan.original, peak):
            if at != op and at in first and (at - 1 in first or not at):
                inner.add((at, op))
            else:
                first |= {at} if at == op else {at, max(at - 1, 0)}
        if len(first) + len(inner) == count:
            break
    return RematerializationBound(best, tuple(plans), spent, len(first) + len(inner))


def _over(
    task: RematerializationProblem, steps: Sequence[RematerializationStep], original: Sequence[int], peak: int
) -> Iterator[tuple[int, int]]:
    """Where more is alive than allowed: of each run of steps over it the worst, the worst runs first; as the op that is
    executed, preceded by the one whose first execution is at this step or next."""
    alive = alive_at(task, steps, original)
    runs: list[tuple[int, int]] = []  # bytes, step
    before = False
    for step, size in enumerate(alive):
        if size > peak and (not before or size > runs[-1][0]):
            runs[len(runs) - before :] = [(int(size), step)]
        before = bool(size > peak)
    for _, step in sorted(runs, reverse=True)[:_AT_ONCE]:
        later = (s.op for s in steps[step:] if s.makes == task.ops[s.op].makes)
        yield next(later, len(task.ops) - 1), steps[step].op


def _realised(program: _Program, solution: np.ndarray, share: float) -> RematerializationSchedule:
    """The plan that keeps at each point what is kept there to this share, and else makes again what is needed."""
    task = program.task
    steps: list[RematerializationStep] = []
    original = list(range(len(task.sizes)))
    there: dict[int, int] = {}  # value: the copy that is read
    us, first = 0.0, -1

    for window, end in enumerate(program.ends):
        last = window == len(program.points)
        kept = {v for (at, v), c in program.kept.items() if at == window and solution[c] >= share}
        for op in range(first + 1, end + 1):
            own = task.ops[op]
            for value in (*own.reads, *(sorted(kept) if op == end and not last else ())):
                if program.maker[value] < op:
                    us += append_recomputation(
                        task, value, makers=program.maker, there=there, steps=steps, original=original
                    )  # fmt: skip
            steps.append(RematerializationStep(op, tuple(there[v] for v in own.reads), own.makes))
            there.update(zip(own.makes, own.makes, strict=True))
        there = there if last else {v: c for v, c in there.items() if v in kept}
        first = end
    return RematerializationSchedule(tuple(steps), tuple(original), us, *peak_of(task, steps, original))


def expanded(task: RematerializationProblem, plan: RematerializationSchedule) -> RematerializationSchedule:
    """A plan of :func:`plain` as one of the task: views are made again, for nothing, of each copy that they are of.

    Args:
        task: with views.
        plan: of the task without them.
    """
    own = [i for i, op in enumerate(task.ops) if not op.view]  # of each op of the plain task
    first, original = len(task.sizes), list(plan.original)
    latest = dict[int, int]()  # of each value the copy that was made last
    views: dict[tuple[int, int], int] = {}  # (value that is a view, copy of what it is of): the view of that
    root = {v: v for v in range(first)}
    steps: list[RematerializationStep] = []
    executed = 0

    def seen(value: int, copy: int) -> int:
        """The view of a copy, made if it is not there."""
        if root[value] == value:
            return copy
        if (value, copy) not in views:
            op = maker[value]
            views[value, copy] = len(original)
            original.append(value)
            read = seen(task.ops[op].reads[0], copy)
            steps.append(RematerializationStep(op, (read, *task.ops[op].reads[1:]), (views[value, copy],)))
        return views[value, copy]

    maker = {op.makes[0]: i for i, op in enumerate(task.ops) if op.view}
    for value, op in maker.items():
        root[value] = root[task.ops[op].reads[0]]

    def first_views(end: int) -> None:
        """The first executions of views before an op's."""
        nonlocal executed
        for op in range(executed, end):
            source, value = task.ops[op].reads[0], task.ops[op].makes[0]
            copy = latest.get(root[source], root[source])
            steps.append(RematerializationStep(op, (seen(source, copy), *task.ops[op].reads[1:]), task.ops[op].makes))
            views[value, copy] = value
        executed = end

    for step in plan.steps:
        op = own[step.op]
        if step.makes == task.ops[op].makes:
            first_views(op)
            executed = op + 1
        copies = {plan.original[v]: v for v in step.reads}
        reads = tuple(seen(v, copies.get(root[v], root[v])) for v in task.ops[op].reads)
        steps.append(RematerializationStep(op, reads, step.makes))
        latest.update((plan.original[v], v) for v in step.makes)
    first_views(len(task.ops))
    return RematerializationSchedule(tuple(steps), tuple(original), plan.us, *peak_of(task, steps, original))

"""Plans of what is executed when, some of it more than once: what they are, what they take, and what is in vain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = [
    "RematerializationNode", "RematerializationStep", "RematerializationProblem", "RematerializationSchedule",
    "alive_at", "append_recomputation", "lightened", "original_timetable", "patient", "peak_of", "polished", "prompt",
    "spans",
]  # fmt: skip


@dataclass(frozen=True)
class RematerializationNode:
    """A node as the planner sees it.

    Attributes:
        reads: values, by number, that are no constants.
        makes: values.
        us: microseconds.
        view: the first value that it makes is the memory of the first that it reads.
        repeatable: it may be computed again, with the same result.
    """

    reads: tuple[int, ...]
    makes: tuple[int, ...]
    us: float
    view: bool = False
    repeatable: bool = True


@dataclass(frozen=True)
class RematerializationProblem:
    """A graph to plan.

    Attributes:
        ops: in a valid order of execution.
        sizes: bytes of each value.
        held: values that are there from beginning to end wherever they are read: inputs.
        results: values that are needed after the last node.
    """

    ops: tuple[RematerializationNode, ...]
    sizes: tuple[int, ...]
    held: frozenset[int]
    results: frozenset[int]


@dataclass(frozen=True)
class RematerializationStep:
    """An execution of a node: its position among the ops, the values that it reads and those that it makes. Numbers
    beyond those of the task are copies."""

    op: int
    reads: tuple[int, ...]
    makes: tuple[int, ...]


@dataclass(frozen=True)
class RematerializationSchedule:
    """A plan.

    Attributes:
        steps: in order of execution; each op once, and again where it is computed again.
        original: for each value which of the task's it is or repeats.
        us: what is computed again takes, in microseconds.
        peak: bytes alive at once, without what is held.
        at: the step at which.
    """

    steps: tuple[RematerializationStep, ...]
    original: tuple[int, ...]
    us: float
    peak: int
    at: int


def original_timetable(task: RematerializationProblem) -> RematerializationSchedule:
    """The plan that executes each op once, in the task's order."""
    steps = tuple(RematerializationStep(i, op.reads, op.makes) for i, op in enumerate(task.ops))
    original = tuple(range(len(task.sizes)))
    return RematerializationSchedule(steps, original, 0.0, *peak_of(task, steps, original))


def append_recomputation(
    task: RematerializationProblem, value: int, *, makers: Mapping[int, int], there: MutableMapping[int, int],
    steps: MutableSequence[RematerializationStep], original: MutableSequence[int],
) -> float:  # fmt: skip
    """Write down the steps that make a value from what is there, and nothing if it is there; their microseconds.

    Args:
        task: without views.
        value: that is wanted.
        makers: by value, the op that makes it.
        there: by value, the copy of it that is read; what is made is added.
        steps: so far, to which they are added.
        original: for each value and copy, what it is or repeats; copies are added.
    """
    us, stack = 0.0, [value]
    while stack:
        own = task.ops[makers[stack[-1]]]
        missing = [v for v in own.reads if v not in there]
        if stack[-1] in there:
            stack.pop()
        elif missing:
            stack.append(missing[0])
        else:
            makes = tuple(range(len(original), len(original) + len(own.makes)))
            steps.append(RematerializationStep(makers[stack.pop()], tuple(there[v] for v in own.reads), makes))
            there.update(zip(own.makes, makes, strict=True))
            original.extend(own.makes)
            us += own.us
    return us


def peak_of(
    task: RematerializationProblem, steps: Sequence[RematerializationStep], original: Sequence[int]
) -> tuple[int, int]:
    """Bytes alive at once while steps are executed in this order, without what is held; and at which step most."""
    alive = alive_at(task, steps, original)
    at = int(alive.argmax()) if len(alive) else 0
    return (int(alive[at]) if len(alive) else 0), at


def alive_at(
    task: RematerializationProblem, steps: Sequence[RematerializationStep], original: Sequence[int]
) -> np.ndarray:
    """Bytes alive at each step, without what is held."""
    change = np.zeros(len(steps) + 1, np.int64)
    for value, first, last in spans(task, steps, original):
        size = task.sizes[original[value]]
        change[first] += size
        change[last + 1] -= size
    return np.cumsum(change)[:-1]


def spans(
    task: RematerializationProblem, steps: Sequence[RematerializationStep], original: Sequence[int]
) -> list[tuple[int, int, int]]:
    """Values with memory of their own, by number, in the order in which they are made: each with the step that makes it
    and the last that needs it."""
    root = list(range(len(original)))
    start = dict[int, int]()
    end = [-1] * len(original)
    for at, step in enumerate(steps):
        view = task.ops[step.op].view
        for slot, value in enumerate(step.makes):
            if slot == 0 and view:
                root[value] = root[step.reads[0]]
            else:
                start[value] = end[value] = at
        for value in step.reads:
            end[root[value]] = at
    for value in task.results:
        end[root[value]] = len(steps) - 1
    return [(value, first, end[value]) for value, first in start.items()]


def polished(
    task: RematerializationProblem, plan: RematerializationSchedule, peak: int, work: int
) -> tuple[RematerializationSchedule, int]:
    """The plan without what it makes again in vain: each copy is left out, the longest first, where readers find an
    earlier one within the bytes.

    Args:
        task: the graph.
        plan: of it.
        peak: bytes that it may have alive at once.
        work: steps that may be looked at.

    Returns:
        A plan that takes no longer, and what is left of the work.
    """
    copies = [s for s in plan.steps if s.makes != task.ops[s.op].makes and task.ops[s.op].us > 0.0]
    for copy in sorted(copies, key=lambda s: -task.ops[s.op].us):
        if work <= 0:
            break
        work -= len(plan.steps)
        fewer = _without(task, plan, copy)
        if fewer is not None and fewer.peak <= peak:
            plan = fewer
    return plan, work


def lightened(
    task: RematerializationProblem, plan: RematerializationSchedule, peak: int, work: int
) -> tuple[RematerializationSchedule, int]:
    """The plan without as many of its copies, from the first on, as there is room for.

    Args:
        task: the graph.
        plan: of it, within the bytes.
        peak: bytes that it may have alive at once.
        work: steps that may be looked at.

    Returns:
        A plan that takes no longer, and what is left of the work.
    """
    copies = [s for s in plan.steps if s.makes != task.ops[s.op].makes]
    low, high, best = 0, len(copies), plan
    while low < high and work > 0:
        work -= len(plan.steps)
        middle = (low + high + 1) // 2
        fewer = _without_copies(task, plan, copies[:middle])
        if fewer.peak <= peak:
            low, best = middle, fewer
        else:
            high = middle - 1
    return best, work


def prompt(task: RematerializationProblem, plan: RematerializationSchedule) -> RematerializationSchedule:
    """The plan with results made as soon as what they need is there (a weight's update, once there is its gradient),
    where that takes no more bytes than the plan has alive at once: what they read is then free.

    Args:
        task: the graph.
        plan: of it.
    """
    readers: dict[int, set[tuple[int, ...]]] = {}
    for step in plan.steps:
        for value in step.reads:
            readers.setdefault(value, set()).add(step.makes)
    maker = {v: s for s in plan.steps for v in s.makes}
    for last in [s for s in plan.steps if not task.results.isdisjoint(s.makes)]:
        inside = _alone(task, last, maker, readers)
        own, rest, ahead = list[RematerializationStep](), list[RematerializationStep](), 0
        needed = {v for s in inside.values() for v in s.reads}
        for step in plan.steps:
            if step.makes in inside:
                own.append(step)
            else:
                rest.append(step)
                ahead = ahead if needed.isdisjoint(step.makes) else len(rest)
        steps = (*rest[:ahead], *own, *rest[ahead:])
        if steps == plan.steps:
            continue
        peak, at = peak_of(task, steps, plan.original)
        if peak <= plan.peak:
            plan = RematerializationSchedule(steps, plan.original, plan.us, peak, at)
    return plan


def _alone(
    task: RematerializationProblem,
    last: RematerializationStep,
    maker: Mapping[int, RematerializationStep],
    readers: Mapping[int, set[tuple[int, ...]]],
) -> dict[tuple[int, ...], RematerializationStep]:
    """A step, and those before it that nothing else needs, by what they make."""
    inside, edge = {last.makes: last}, [last]
    while edge:
        for step in {maker[v].makes: maker[v] for v in edge.pop().reads if v in maker}.values():
            read = [readers.get(v, set()) for v in step.makes]
            if (
                step.makes not in inside and task.results.isdisjoint(step.makes)
                and any(read) and all(r <= inside.keys() for r in read)
            ):  # fmt: skip
                inside[step.makes] = step
                edge.append(step)
    return inside


def patient(task: RematerializationProblem, plan: RematerializationSchedule) -> RematerializationSchedule:
    """The plan in which what is made before most is alive and read after it is made after it, too, where less is alive
    then: of what is made early, some is larger than all that would have to wait for it.

    Args:
        task: the graph.
        plan: of it.
    """
    while True:
        better = next(
            (p for p in _waiting(task, plan) if p.peak < plan.peak or (p.peak == plan.peak and p.at > plan.at)), None
        )
        if better is None:
            return plan
        plan = better


def _waiting(task: RematerializationProblem, plan: RematerializationSchedule) -> Iterator[RematerializationSchedule]:
    """Plans in which one step from before most is alive comes after it, with the views of what it makes, the one that
    makes most first."""
    steps, made, first = plan.steps, dict[int, int](), dict[int, int]()
    for at in range(len(steps) - 1, -1, -1):
        step = steps[at]
        until = min((first[v] for v in step.makes if v in first), default=len(steps))
        made[at] = until
        alias = task.ops[step.op].view  # who reads a view reads what it is a view of
        for value in step.reads:
            needed = until if alias and value == step.reads[0] else at
            first[value] = min(first.get(value, needed), needed)
    size = {i: sum(task.sizes[plan.original[v]] for v in steps[i].makes) for i in range(plan.at)}
    for at in sorted(size, key=lambda i: -size[i]):
        step, until = steps[at], made[at]
        if task.ops[step.op].view or not size[at] or until <= plan.at or until == len(steps):
            continue
        if not task.results.isdisjoint(step.makes):
            continue
        late, rest, known = [step], list[RematerializationStep](), set(step.makes)
        for other in steps[at + 1 : until]:
            if task.ops[other.op].view and other.reads[0] in known:
                late.append(other)
                known.update(other.makes)
            else:
                rest.append(other)
        if {s.op for s in late}.isdisjoint(s.op for s in rest):  # the first execution stays the first
            moved = (*steps[:at], *rest, *late, *steps[until:])
            yield RematerializationSchedule(moved, plan.original, plan.us, *peak_of(task, moved, plan.original))


def _without(
    task: RematerializationProblem, plan: RematerializationSchedule, copy: RematerializationStep
) -> RematerializationSchedule | None:
    """The plan without a copy, and without those that only it needed; ``None`` where the plan has it no more."""
    same = next((s for s in plan.steps if s.makes == copy.makes), None)
    return None if same is None else _without_copies(task, plan, [same])


def _without_copies(
    task: RematerializationProblem, plan: RematerializationSchedule, copies: Sequence[RematerializationStep]
) -> RematerializationSchedule:
    """The plan without these copies, whose readers find earlier ones, and without those that only they needed."""
    gone = {c.makes for c in copies}
    latest = dict[int, int]()  # of each value the copy that was made last
    renamed: dict[int, int] = {}
    steps = []
    for step in plan.steps:
        if step.makes in gone:
            renamed.update((v, latest[plan.original[v]]) for v in step.makes)
            continue
        latest.update((plan.original[v], v) for v in step.makes)
        steps.append(RematerializationStep(step.op, tuple(renamed.get(v, v) for v in step.reads), step.makes))
    kept: list[RematerializationStep] = []
    read = set[int]()
    for step in reversed(steps):
        if step.makes == task.ops[step.op].makes or not read.isdisjoint(step.makes):
            kept.append(step)
            read.update(step.reads)
    kept.reverse()
    us = sum(task.ops[s.op].us for s in kept if s.makes != task.ops[s.op].makes)
    return RematerializationSchedule(tuple(kept), plan.original, us, *peak_of(task, kept, plan.original))

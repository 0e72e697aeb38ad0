"""Made-up tasks for planners, and a simulation that shares nothing with them."""

from __future__ import annotations

import random

from superopt.memory.rematerialization_schedule import (
    RematerializationNode,
    RematerializationProblem,
    RematerializationSchedule,
)

__all__ = ["random_task", "simulated"]


def random_task(seed: int) -> RematerializationProblem:
    """A chain there and back, with skips."""
    draw = random.Random(seed)
    ops, sizes = [], [0]
    for i in range(draw.randint(3, 7)):
        reads = tuple({i, draw.randrange(i + 1)})
        ops.append(RematerializationNode(reads, (i + 1,), float(draw.randint(1, 9)), view=draw.random() < 0.1))
        sizes.append(draw.randint(1, 99))
    ahead = len(ops)
    for i in reversed(range(ahead)):
        ops.append(RematerializationNode(tuple({len(sizes) - 1, i + 1}), (len(sizes),), float(draw.randint(1, 9))))
        sizes.append(draw.randint(1, 99))
    return RematerializationProblem(tuple(ops), (*sizes[:-1], 0), frozenset({0}), frozenset({len(sizes) - 1}))


def simulated(task: RematerializationProblem, plan: RematerializationSchedule) -> int:
    """The peak, by keeping a set of what is there: every step finds what it reads."""
    last = {v: i for i, s in enumerate(plan.steps) for v in s.reads}
    memory = {v: v for v in task.held}
    there, most = set(task.held), 0
    ends: dict[int, int] = {}
    for i, step in enumerate(plan.steps):
        assert all(memory[v] in there for v in step.reads)
        for slot, made in enumerate(step.makes):
            memory[made] = memory[step.reads[0]] if slot == 0 and task.ops[step.op].view else made
            there.add(memory[made])
            ends[memory[made]] = max(ends.get(memory[made], i), last.get(made, i))
            if made in task.results:
                ends[memory[made]] = len(plan.steps)
        most = max(most, sum(task.sizes[plan.original[m]] for m in there))
        there = {m for m in there if m in task.held or ends[m] > i}
    return most

"""Plans of recomputation are what they say, and make nothing again in vain."""

from __future__ import annotations

from itertools import pairwise

import pytest
from random_tasks import random_task, simulated

from superopt.memory import Op, Task, Timetable, front, peak_of, polished
from superopt.memory.schedule_plan import lightened


def first_executions(task: Task, plan: Timetable) -> list[int]:
    return [s.op for s in plan.steps if s.makes == task.ops[s.op].makes]


def checked(task: Task, plan: Timetable) -> None:
    """A plan executes each op, reads and makes what it says, and takes what it says."""
    assert sorted(first_executions(task, plan)) == list(range(len(task.ops)))
    for step in plan.steps:
        assert tuple(plan.original[v] for v in step.reads) == task.ops[step.op].reads
        assert tuple(plan.original[v] for v in step.makes) == task.ops[step.op].makes
    again = sum(task.ops[s.op].us for s in plan.steps) - sum(op.us for op in task.ops)
    assert plan.us == pytest.approx(again)
    assert plan.peak == peak_of(task, plan.steps, plan.original)[0] == simulated(task, plan)


@pytest.mark.parametrize("seed", range(8))
def test_plans_of_a_front_are_what_they_say(seed: int) -> None:
    task = random_task(seed)
    plans = front(task)
    for plan in plans:
        checked(task, plan)
    assert all(a.peak > b.peak and a.us < b.us for a, b in pairwise(plans))


@pytest.mark.parametrize("seed", range(8))
def test_what_is_made_again_in_vain_is_left_out(seed: int) -> None:
    task = random_task(seed)
    plans = front(task)
    for plan, wider in zip(plans[1:], plans[:-1], strict=True):
        lean, _ = polished(task, plan, wider.peak, 10**6)
        checked(task, lean)
        assert lean.peak <= wider.peak
        assert wider.us <= lean.us <= plan.us
        assert polished(task, plan, wider.peak, 0) == (plan, 0)


@pytest.mark.parametrize("seed", range(4))
def test_copies_are_left_out_where_there_is_room(seed: int) -> None:
    task = random_task(seed)
    plans = front(task)
    for peak in range(plans[-1].peak, plans[0].peak, 40):
        lean, _ = lightened(task, plans[-1], peak, 10**6)
        checked(task, lean)
        assert lean.peak <= peak
        assert lean.us <= plans[-1].us


def test_a_uniform_chain_has_plans_between_all_kept_and_all_made_again() -> None:
    """A price alone keeps all of it or nothing."""
    length = 40
    ops = [Op((i - 1,) if i else (), (i,), 1.0) for i in range(length)]
    ops += [Op(tuple({length + k - 1, length - k - 1}), (length + k,), 2.0) for k in range(length)]
    task = Task(tuple(ops), (1,) * (2 * length), frozenset(), frozenset({2 * length - 1}))
    plans = front(task)
    for share in (0.8, 0.6, 0.4):
        near = [p for p in plans if share - 0.1 < p.peak / plans[0].peak <= share]
        assert near
        at_least = plans[0].peak - near[0].peak  # each value that is not kept is made again at least once
        assert at_least <= min(p.us for p in near) <= at_least + 0.05 * 3 * length

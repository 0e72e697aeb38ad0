"""The least time within some bytes: a bound that no plan goes below, and plans that are what they say."""

from __future__ import annotations

import pytest
from random_tasks import random_task, simulated

from superopt.memory import Task, Timetable, front, least_time, peak_of, plain, polished
from superopt.memory.points import expanded


def checked(task: Task, plan: Timetable) -> None:
    """A plan executes each op in the order given, reads and makes what it says, and takes what it says."""
    assert [s.op for s in plan.steps if s.makes == task.ops[s.op].makes] == list(range(len(task.ops)))
    for step in plan.steps:
        assert tuple(plan.original[v] for v in step.reads) == task.ops[step.op].reads
        assert tuple(plan.original[v] for v in step.makes) == task.ops[step.op].makes
    again = sum(task.ops[s.op].us for s in plan.steps) - sum(op.us for op in task.ops)
    assert plan.us == pytest.approx(again)
    assert plan.peak == peak_of(task, plan.steps, plan.original)[0] == simulated(task, plan)


@pytest.mark.parametrize("seed", range(8))
def test_no_plan_goes_below_the_bound_and_solutions_are_plans(seed: int) -> None:
    task = random_task(seed)
    small, whole = plain(task), front(task)
    assert not any(op.view for op in small.ops)
    assert front(small)[0].peak == whole[0].peak
    for plan in whole:
        bound = least_time(small, plan.peak)
        assert bound.us <= plan.us + 0.01 * len(task.ops)
        for made in bound.plans:
            checked(small, made)
            checked(task, expanded(task, made))
    assert least_time(small, 0).us == float("inf")


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

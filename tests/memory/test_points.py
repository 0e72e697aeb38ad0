"""The least time within some bytes: a bound that no plan goes below, and plans that are what they say."""

from __future__ import annotations

from dataclasses import replace

import pytest
from random_tasks import random_task, simulated

from superopt.memory.remat import front
from superopt.memory.remat_ilp import expanded, least_time, plain
from superopt.memory.rematerialization_schedule import (
    RematerializationNode,
    RematerializationProblem,
    RematerializationSchedule,
    lightened,
    original_timetable,
    peak_of,
    polished,
)


def first_executions(task: RematerializationProblem, plan: RematerializationSchedule) -> list[int]:
    return [s.op for s in plan.steps if s.makes == task.ops[s.op].makes]


def checked(task: RematerializationProblem, plan: RematerializationSchedule) -> None:
    """A plan executes each op, reads and makes what it says, and takes what it says."""
    assert sorted(first_executions(task, plan)) == list(range(len(task.ops)))
    for step in plan.steps:
        assert tuple(plan.original[v] for v in step.reads) == task.ops[step.op].reads
        assert tuple(plan.original[v] for v in step.makes) == task.ops[step.op].makes
    again = sum(task.ops[s.op].us for s in plan.steps) - sum(op.us for op in task.ops)
    assert plan.us == pytest.approx(again)
    assert plan.peak == peak_of(task, plan.steps, plan.original)[0] == simulated(task, plan)


@pytest.mark.parametrize("seed", range(8))
def test_no_plan_goes_below_the_bound_and_solutions_are_plans(seed: int) -> None:
    task = random_task(seed)
    assert original_timetable(plain(task)).peak == original_timetable(task).peak
    for plan in front(task):
        ordered = replace(task, ops=tuple(task.ops[i] for i in first_executions(task, plan)))
        small = plain(ordered)
        assert not any(op.view for op in small.ops)
        bound = least_time(small, plan.peak)
        assert bound.us <= plan.us + 0.01 * len(task.ops)
        for made in bound.plans:
            checked(small, made)
            checked(ordered, expanded(ordered, made))
            assert first_executions(small, made) == list(range(len(small.ops)))
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
    length = 16
    ops = [RematerializationNode((i - 1,) if i else (), (i,), 1.0) for i in range(length)]
    ops += [RematerializationNode(tuple({length + k - 1, length - k - 1}), (length + k,), 2.0) for k in range(length)]
    task = RematerializationProblem(tuple(ops), (1,) * (2 * length), frozenset(), frozenset({2 * length - 1}))
    plans = front(task)
    for share in (0.8, 0.6, 0.4):
        near = [p for p in plans if share - 0.1 < p.peak / plans[0].peak <= share]
        assert near
        assert min(p.us for p in near) <= least_time(task, near[0].peak).us + 0.05 * 3 * length

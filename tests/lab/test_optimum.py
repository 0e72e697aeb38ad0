"""Superopt's plans of recomputation beside the best, and beside MAGIS's search."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lab import magis, optimum
from lab.dimensions import regions_of
from lab.sliced import alive_in_slices
from superopt import cost as costs
from superopt import formats
from superopt.cost.graph_costs import task_of
from superopt.memory import Op, Planned, Step, Task, front, least_time, peak_of

TINY = Path(__file__).resolve().parents[2] / "corpus" / "tiny"


@pytest.mark.parametrize("task", [optimum.chain(5), optimum.u_shaped(1)], ids=["chain", "u"])
def test_plans_are_within_two_percent_of_checkmates_optimum(task: Task) -> None:
    plans, total = front(task), sum(op.us for op in task.ops)
    assert len(plans) > 2
    for plan in plans[1:]:
        best, proved = optimum.checkmate(task, plan.peak)
        assert best == pytest.approx(proved, abs=1e-3 * total)
        assert least_time(task, plan.peak).us <= best + 1e-6 * total
        assert (total + plan.us) / (total + best) <= 1.02
    none = optimum.checkmate(task, 1)
    assert none == (float("inf"), float("inf"))


def test_what_the_root_of_the_length_needs() -> None:
    task = optimum.chain(36)
    plans = {n: optimum.keeping(task, range(0, 36, n), 36) for n in (1, 6, 36)}
    for plan in plans.values():
        assert [s.op for s in plan.steps if s.makes == task.ops[s.op].makes] == list(range(len(task.ops)))
        assert plan.peak == peak_of(task, plan.steps, plan.original)[0]
    assert plans[1].us == 0.0 < plans[6].us < 36.0
    assert plans[6].peak <= 2 * 6 + 3 < plans[36].peak
    step, begins, cut = optimum.transformer_step(4)
    assert optimum.keeping(step, begins, cut).peak < front(step, rows=0)[0].peak / 2


def planned(name: str) -> Planned:
    with costs.for_target("profile:cpu-epyc-2core") as model:
        return task_of(formats.load(TINY / f"{name}.json"), model)


def test_regions_are_what_can_be_computed_slice_by_slice() -> None:
    found = planned("mlp_mixer")
    makers = {v: i for i, op in enumerate(found.task.ops) for v in op.makes}
    regions = regions_of(found)
    assert regions
    for region in regions:
        inside = set(region.ops)
        assert region.most > 1
        after = {i for i, op in enumerate(found.task.ops) if i not in inside and
                 any(makers.get(v) in inside for v in op.reads)}  # fmt: skip
        for i, op in enumerate(found.task.ops):
            if i not in inside and any(makers.get(v) in after for v in op.reads):
                after.add(i)
        assert not any(makers.get(v) in after for i in inside for v in found.task.ops[i].reads)


def test_magis_finds_less_within_its_latency_and_says_what_it_takes() -> None:
    task = optimum.u_shaped(3)
    total = sum(op.us for op in task.ops)
    state, made = magis.search(task, (), share=0.2, most=300)
    assert made >= 300
    assert state.us <= 1.2 * total
    assert state.peak == peak_of(task, state.steps, state.original)[0] < front(task, rows=0)[0].peak
    assert state.us == pytest.approx(sum(task.ops[s.op].us for s in state.steps))


def test_magis_slices_regions() -> None:
    small, regions = magis.planned_task(planned("mlp_mixer"))
    whole, _ = magis.search(small, (), share=10.0, most=100)
    sliced, _ = magis.search(small, regions, share=10.0, most=100)
    assert sliced.parts
    assert sliced.peak < whole.peak


def test_parts_that_are_joined_lie_beside_the_whole() -> None:
    """An update of a weight in four parts: written into its place, or of parts that are all there in the end."""
    ops = (Op((), (0,), 1.0), Op((0,), (1,), 1.0), Op((1,), (2,), 1.0))
    groups = [(0, 4), (0, 4), None]
    update = Task(ops, (8, 0, 0), frozenset(), frozenset({1, 2}))
    steps = [Step(i, op.reads, op.makes) for i, op in enumerate(ops)]
    assert alive_in_slices(update, steps, range(3), groups) == (2, (0, 1))
    assert alive_in_slices(update, steps, range(3), groups, [8, 8, 8]) == (6 + 2 + 2, (0, 1))
    inner = Task(ops, (8, 8, 8), frozenset(), frozenset({2}))
    assert alive_in_slices(inner, steps, range(3), groups) == (16, (2,))
    assert alive_in_slices(replace(inner, sizes=(8, 8, 1)), steps, range(3), groups) == (10, (0, 1))
    assert alive_in_slices(replace(inner, sizes=(8, 8, 1)), steps, range(3), groups, [8, 8, 1]) == (16, (0, 1))


def test_magis_has_less_alive_in_the_account_that_it_searches_in() -> None:
    found = planned("mlp_mixer")
    small, regions = magis.planned_task(found)
    whole = magis.whole_bytes(found)
    free, _ = magis.search(small, regions, share=10.0, most=100)
    joined, _ = magis.search(small, regions, share=10.0, most=100, whole=whole)
    assert free.parts
    parts = dict(free.parts)
    group = {i: (r, n) for r, n in parts.items() for i in regions[r].ops}
    groups = [group.get(s.op) for s in free.steps]
    assert alive_in_slices(small, free.steps, free.original, groups) == (free.peak, free.hot)
    assert free.peak <= joined.peak <= alive_in_slices(small, free.steps, free.original, groups, whole)[0]

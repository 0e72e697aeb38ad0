"""The simulation of the capacity plan, on cases whose answer is plain."""

from __future__ import annotations

import pytest

from lab.scaling import Cluster, Ran, accounted, predicted, scaled
from lab.speedup import Run, bound, ratio
from superopt.discovery.sharded import Cost, Step, Traffic


def step(tasks: int, seconds: float = 1.0, **client: float) -> Step:
    return Step([Cost(seconds, 1000, 1000, 10)] * tasks, [], **client)


@pytest.mark.parametrize(("workers", "expected"), [(1, 12.0), (2, 6.0), (4, 3.0), (5, 3.0), (12, 1.0), (99, 1.0)])
def test_equal_tasks_are_shared_out(workers: int, expected: float) -> None:
    where = Cluster(workers, cores=workers + 1, task=0.0, bandwidth=float("inf"))
    assert predicted([step(12)], where) == pytest.approx(expected)


def test_the_client_is_the_limit_where_it_has_more_to_do_than_a_worker() -> None:
    where = Cluster(1000, cores=2000, task=0.0, bandwidth=float("inf"))
    slow = predicted([step(1000, given=50.0, taken=50.0, ended=7.0)], where)
    assert 106.9 <= slow <= 108.1


def test_cores_are_the_limit_where_there_are_fewer_than_workers() -> None:
    assert predicted([step(12)], Cluster(4, cores=2, task=0.0)) >= 6.0
    where = Cluster(4, cores=2, task=0.25, ahead=4)  # the client takes part of a core, to make tasks and to send them
    assert predicted([step(12, given=2.0)], where) == pytest.approx((12 + 2 + 12 * 0.25) / 2, rel=0.01)


def test_the_network_is_the_limit_where_it_is_slow() -> None:
    assert predicted([step(100, seconds=0.0)], Cluster(4, 8, task=0.0, bandwidth=1000.0)) == pytest.approx(200.0)


def test_scaling_keeps_the_cost_of_a_term() -> None:
    one = Step([Cost(2.0, 100, 50, 10)] * 8, [Cost(1.0, 10, 10, 80)], 1.0, 2.0, 3.0)
    more = scaled(one, 16.0)
    assert sum(c.seconds for c in more.blocks) == pytest.approx(16 * 16.0)
    assert sum(c.rows for c in more.blocks) == 16 * 80
    assert (more.given, more.taken, more.ended) == (16.0, 32.0, 48.0)
    assert len(more.joins) == 1


def test_what_a_run_took_is_told_by_processor_time_and_order() -> None:
    """Two workers, tasks of 2 and 3 s that overlap, a client that gives (0.5 s), takes (1 s) and ends (4 s)."""
    blocks = [Cost(2.0, 0, 0, 1, worker=7), Cost(3.0, 0, 0, 1, worker=8), Cost(1.0, 0, 0, 1, worker=7)]
    order = [("blocks", n, taken) for n, taken in ((0, False), (1, False), (0, True), (2, False), (1, True), (2, True))]
    made = Step(blocks, [], given=1.5, taken=3.0, ended=4.0, order=order)
    ran = Ran(99.0, 8.5, Traffic([made]), 1, 1, (0, 0))
    # given at 0.5 and 1; taken 2.5–3.5; given by 4, done at 5; the second done at 4, taken by 5; the third by 6; ended
    assert accounted(ran, 3) == pytest.approx(10.0)
    assert accounted(ran, 1) == pytest.approx(14.5)  # all of it, one after the other
    assert (
        accounted(Ran(99.0, 8.5 + 6.0, Traffic([made]), 1, 1, (0, 0)), 3) > 12.0
    )  # sending takes the client time, too


def test_speed_up_and_what_bounds_it() -> None:
    phases = {
        "explore": {"tasks": 8.0, "own": 1.0, "seconds": 9.0},
        "write": {"tasks": 0.0, "own": 1.0, "seconds": 1.0},
    }
    one, two = Run(1, 10.0, phases), Run(2, 6.0, phases)
    assert ratio([one, one], [two, two]) == (pytest.approx(10 / 6), 0.0)
    assert ratio([one], [two])[1] == float("inf")
    assert bound(one, two) == pytest.approx(10 / 5)

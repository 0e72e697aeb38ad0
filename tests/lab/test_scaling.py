"""The simulation of the capacity plan, on cases whose answer is plain."""

from __future__ import annotations

import pytest

from superopt.discovery.sharded import Cost, Step
from superopt.lab.scaling import Cluster, predicted, scaled


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


def test_the_network_is_the_limit_where_it_is_slow() -> None:
    assert predicted([step(100, seconds=0.0)], Cluster(4, 8, task=0.0, bandwidth=1000.0)) == pytest.approx(200.0)


def test_scaling_keeps_the_cost_of_a_term() -> None:
    one = Step([Cost(2.0, 100, 50, 10)] * 8, [Cost(1.0, 10, 10, 80)], 1.0, 2.0, 3.0)
    more = scaled(one, 16.0)
    assert sum(c.seconds for c in more.blocks) == pytest.approx(16 * 16.0)
    assert sum(c.rows for c in more.blocks) == 16 * 80
    assert (more.given, more.taken, more.ended) == (16.0, 32.0, 48.0)
    assert len(more.joins) == 1

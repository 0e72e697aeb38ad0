"""The harness: what is flushed before a run, and how often it is run."""

import pytest

from superopt.cost import measure
from superopt.cost.cache import core_bytes, last_level_bytes
from superopt.cost.measure import Meter
from superopt.cost.question import question_of
from superopt.cost.record import key_of
from superopt.cost.trial import application_graph
from superopt.ir.types import DType, TensorType


def product(columns):
    kinds = [TensorType(DType.FLOAT32, s) for s in ((1, 512), (512, columns))]
    return application_graph(question_of(key_of("MatMul", {}, kinds, (False, True))))


@pytest.mark.parametrize(("share", "near"), [(0.25, True), (5, False)])
def test_weights_that_leave_the_core_by_themselves_are_not_pushed_out_of_the_last_level(monkeypatch, share, near):
    """A twin with as many weights of its own would do that: what is warm in a model would be timed cold."""
    flushed = []
    monkeypatch.setattr(measure, "_after", lambda size, *_: flushed.append(size) or 1e9)
    monkeypatch.setattr(Meter, "flushed", (0.0, 0.0))
    Meter().time(product(int(share * core_bytes()) // 2048))
    assert flushed == [*([core_bytes()] if near else []), last_level_bytes()]


class Step:
    def __init__(self, clock, times):
        self.clock, self.times, self.count = clock, times, 0

    def step(self):
        self.clock[0] += self.times[min(self.count, len(self.times) - 1)]
        self.count += 1


@pytest.mark.parametrize(
    ("times", "runs", "found"),
    [
        ([100], 5, 100),  # steady
        ([160, 100, 150, 170, 180, 101, 100, 102, 100, 100], 10, 100),  # disturbed, then steady
        ([100, 150, 160, 170, 180], 15, 170),  # never the same: all the runs, and their lower quartile
    ],
)
def test_runs_go_on_while_they_disagree(monkeypatch, times, runs, found):
    clock = [0]
    monkeypatch.setattr(measure, "evict", lambda _: None)
    bound, twin = Step(clock, times), Step(clock, [7])
    assert measure._after(1, 5, bound, twin, lambda: clock[0]) == found
    assert bound.count == twin.count == runs


def test_what_a_flush_costs_a_run_without_weights_is_not_the_weights(monkeypatch):
    graph, taken = product(256), {core_bytes(): 9e8, last_level_bytes(): 10e8}
    monkeypatch.setattr(measure, "_after", lambda size, *_: taken[size])
    meter = Meter()
    base = meter.overhead
    monkeypatch.setattr(Meter, "flushed", (2e8, 5e8))
    found = meter.time(graph)
    assert found.ns == found.ns_cold == pytest.approx(7e8 - base)  # the cold time is never below the warm one
    monkeypatch.setattr(Meter, "flushed", (2e8, 2.5e8))
    assert meter.time(graph).ns_cold == pytest.approx(7.5e8 - base)


def test_a_flush_costs_a_run_more_than_nothing():
    near, far = Meter().flushed
    assert 0.0 <= near <= far
    assert far > 0.0

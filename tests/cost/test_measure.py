"""The harness: what is flushed before a run, and how often it is run."""

from dataclasses import replace

import numpy as np
import pytest

from superopt import formats
from superopt.cost import operator_timing
from superopt.cost.cache_model import core_bytes, last_level_bytes
from superopt.cost.measurement_record import key_of, question_of
from superopt.cost.operator_timing import CpuGraphTimer, application_graph
from superopt.ir.graph import Graph, Node, Value, Weight
from superopt.ir.types import DType, TensorType
from superopt.runtime.onnx_runtime import bind, make_session
from superopt.runtime.synthetic_tensors import feeds_for


def product(columns):
    kinds = [TensorType(DType.FLOAT32, s) for s in ((1, 512), (512, columns))]
    return application_graph(question_of(key_of("MatMul", {}, kinds, (False, True))))


@pytest.mark.parametrize(("share", "near"), [(0.25, True), (5, False)])
def test_weights_that_leave_the_core_by_themselves_are_not_pushed_out_of_the_last_level(monkeypatch, share, near):
    """A twin with as many weights of its own would do that: what is warm in a model would be timed cold."""
    flushed = []
    monkeypatch.setattr(operator_timing, "_flushed_time", lambda size, *_: flushed.append(size) or 1e9)
    monkeypatch.setattr(CpuGraphTimer, "flushed_core", 0.0)
    monkeypatch.setattr(CpuGraphTimer, "flushed_all", 0.0)
    CpuGraphTimer().time(product(int(share * core_bytes()) // 2048))
    assert flushed == ([core_bytes(), last_level_bytes()] if near else 2 * [last_level_bytes()])  # in both sessions


@pytest.mark.parametrize(
    ("op", "attributes", "shapes", "signs"),
    [
        ("PRelu", {}, ((2, 64, 9), (64, 1)), 2),
        ("Shrink", {"bias": 0.1, "lambd": 0.2}, ((2, 64, 9),), 2),
        ("Sqrt", {}, ((2, 64, 9),), 1),
        ("Softmax", {"axis": 2}, ((2, 64, 9),), 1),  # divides
        ("Exp", {}, ((2, 64, 9),), 1),  # does not bend
    ],
)
def test_what_bends_is_timed_with_numbers_of_both_signs(op, attributes, shapes, signs):
    """ONNX Runtime's PRelu takes 90 µs for 200,000 numbers of one sign, and 930 where signs alternate."""
    kinds = [TensorType(DType.FLOAT32, s) for s in shapes]
    fed = feeds_for(application_graph(question_of(key_of(op, attributes, kinds, (False, True)[: len(kinds)]))))
    (x,) = fed.values()
    assert len(np.unique(np.sign(x))) == signs
    assert abs(np.sign(x).mean()) < 0.2 or signs == 1


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
    monkeypatch.setattr(operator_timing, "evict", lambda _: None)
    bound, twin = Step(clock, times), Step(clock, [7])
    assert operator_timing._flushed_time(1, 5, bound, twin, lambda: clock[0]) == found
    assert bound.count == twin.count == runs


@pytest.mark.parametrize(
    ("medians", "once", "moments", "found"),
    [
        ([2000, 400, 401], 2_000, 3, 400),  # a busy moment, then two that agree
        ([400, 404], 2_000, 2, 400),
        ([1000, 900, 800, 700, 600, 500, 400], 2_000, 7, 400),  # never the same: all of them, and the least
        ([9e6], 10_000_000, 1, 9e6),  # long enough to be one
    ],
)
def test_what_is_short_is_timed_until_two_moments_agree(monkeypatch, medians, once, moments, found):
    """One small operator in ten came out 1.5 µs high, all of whose runs lay in one fifth of a millisecond."""
    seen = []

    def moment(self, bound, once):
        seen.append(medians[min(len(seen), len(medians) - 1)])
        return [seen[-1]]

    monkeypatch.setattr(CpuGraphTimer, "_burst_times", moment)
    assert CpuGraphTimer()._repeated(None, once) == [found]
    assert len(seen) == moments


def test_what_a_flush_costs_a_run_without_weights_is_not_the_weights(monkeypatch):
    graph, taken = product(256), {core_bytes(): 9e8, last_level_bytes(): 10e8}
    monkeypatch.setattr(operator_timing, "_flushed_time", lambda size, *_: taken[size])
    meter = CpuGraphTimer()
    base = meter.overhead
    monkeypatch.setattr(CpuGraphTimer, "flushed_core", 2e8)
    monkeypatch.setattr(CpuGraphTimer, "flushed_all", 5e8)
    found = meter.time(graph)
    assert found.ns == found.ns_cold == pytest.approx(7e8 - base)  # the cold time is never below the warm one
    monkeypatch.setattr(CpuGraphTimer, "flushed_all", 2.5e8)
    assert meter.time(graph).ns_cold == pytest.approx(7.5e8 - base)


def test_a_flush_costs_a_run_more_than_nothing():
    near, far = CpuGraphTimer().flushed_core, CpuGraphTimer().flushed_all
    assert 0.0 <= near <= far
    assert far > 0.0


def test_a_residual_sum_is_added_to_where_it_is_and_the_twin_shares_outputs():
    kind, weights = TensorType(DType.FLOAT32, (1, 16, 8, 8)), TensorType(DType.FLOAT32, (16, 16, 1, 1))
    node = Node("c", "Conv", ("x", "w", "", "sum"), ("y",), {}, "com.microsoft.nchwc")
    small = Graph("g", (Value("x", kind), Value("sum", kind)), (Value("y", kind),), (Weight("w", weights, None),),
                  (node,), {"": 21, "com.microsoft.nchwc": 1})  # fmt: skip
    assert operator_timing._in_place_outputs(small) == {"y": "sum"}
    again = replace(small, nodes=(node, Node("r", "Relu", ("sum",), ("z",))))
    assert operator_timing._in_place_outputs(again) == {}  # somebody else reads the sum
    assert operator_timing._in_place_outputs(product(16)) == {}
    assert CpuGraphTimer().time(small, optimise=False).ns > 0


def test_outputs_may_lie_in_given_memory():
    graph = application_graph(question_of(key_of("Relu", {}, [TensorType(DType.FLOAT32, (4,))], (False,))))
    [source], [target] = graph.inputs, graph.outputs
    feeds = {source.name: np.array([-1, 2, -3, 4], np.float32)}
    session = make_session(formats.to_onnx_bytes(graph), threads=1)
    first = bind(session, feeds)
    second = bind(make_session(formats.to_onnx_bytes(graph), threads=1), feeds, like=first)
    assert [v.data_ptr() for v in second.outputs()] == [v.data_ptr() for v in first.outputs()]
    in_place = bind(session, {source.name: feeds[source.name].copy()}, over={target.name: source.name})
    in_place.step()
    np.testing.assert_array_equal(in_place.outputs()[0].numpy(), [0, 2, 0, 4])


def test_a_power_is_timed_as_the_square_it_nearly_always_is():
    kinds = [TensorType(DType.FLOAT32, (2, 8)), TensorType(DType.FLOAT32, ())]
    graph = application_graph(question_of(key_of("Pow", {}, kinds, (False, True))))
    assert [w.data.numpy().tolist() for w in graph.weights] == [2.0]
    fed = application_graph(question_of(key_of("Pow", {}, kinds, (False, False))))
    assert fed.weights == ()


def test_what_a_flush_costs_is_measured_once_a_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path))
    asked: list[int] = []
    monkeypatch.setattr(operator_timing, "_flushed_time", lambda size, *_: asked.append(size) or 1e9)
    first = CpuGraphTimer().flushed_core
    assert first > 0
    assert asked == 3 * [core_bytes()]
    assert CpuGraphTimer().flushed_core == first
    assert len(asked) == 3
    assert CpuGraphTimer(threads=2).flushed_core > 0
    assert len(asked) == 6  # another clock and number of threads is another fact

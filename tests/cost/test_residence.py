"""Where an inference's activations are when they are touched again, with figures that can be worked out by hand."""

import numpy as np
import pytest

from superopt.cost import DeviceProfileStore, MeasuredCpuCostModel, graph_cost, graph_costs
from superopt.cost.cache_model import ActivationCachePenalty
from superopt.cost.roofline_ceilings import DevicePeakPerformance
from superopt.ir.graph import Graph, Node, Value, constant
from superopt.ir.types import DType, TensorType

KIB, MIB = 1 << 10, 1 << 20
PEAKS = DevicePeakPerformance("d", 1e11, 20e9, 80e9, 32 * MIB)


def memory(reads, working_set=4 * MIB, share=lambda _: 0.0):
    return ActivationCachePenalty(PEAKS, share, MIB, working_set, dict(reads))


def near_us(size):
    return size / 80e9 * 1e6


def far_us(size):
    return size * (1 / 20e9 - 1 / 80e9) * 1e6


def test_what_was_just_written_is_in_the_core_and_what_was_long_ago_is_not():
    steps = memory({"x": 2, "a": 1, "b": 1, "c": 1})
    size = 128 * KIB
    steps.extra_us([("x", size)], [("a", size)], 0, in_place=False)
    assert steps.extra_us([("a", size)], [("b", size)], 0, in_place=True) == 0.0
    away = steps.extra_us([("b", size)], [("c", size)], 3 * MIB, in_place=True)
    assert away == 0.0  # so many weights push it out when it is timed alone as well
    late = steps.extra_us([("x", size), ("c", size)], [("y", size)], 0, in_place=True)
    assert late == pytest.approx(near_us(size), rel=0.3)  # x was read 3 MiB ago; c was just written


def test_memory_that_an_inference_has_not_used_yet_was_used_in_the_one_before():
    size = 256 * KIB
    small = memory({"x": 1}, working_set=size)
    large = memory({"x": 1}, working_set=64 * MIB, share=lambda since: float(since > 32 * MIB))
    assert small.extra_us([("x", size)], [("y", size)], 0, in_place=False) == 0.0
    found = large.extra_us([("x", size)], [("y", size)], 0, in_place=False)
    assert found == pytest.approx(2 * (near_us(size) + far_us(size)))


def test_what_is_too_large_for_the_caches_alone_is_not_charged_twice():
    size = 40 * MIB
    steps = memory({"x": 1}, working_set=100 * MIB, share=lambda since: float(since > 32 * MIB))
    assert steps.extra_us([("x", size)], [("y", size)], 0, in_place=False) == 0.0


def test_results_take_the_memory_that_was_freed_last_and_fits_best():
    steps = memory({"x": 1, "a": 1, "b": 1, "c": 1})
    steps.extra_us([("x", 512)], [("a", 1024)], 0, in_place=False)
    steps.extra_us([("a", 1024)], [("b", 256)], 0, in_place=False)  # takes x's
    steps.extra_us([("b", 256)], [("c", 1000)], 0, in_place=False)  # takes a's
    assert steps._piece["b"] == steps._piece["x"]
    assert steps._piece["c"] == steps._piece["a"]
    steps.extra_us([("c", 1000)], [("d", 1000)], 0, in_place=True)  # of another size than a's memory: no place
    assert steps._piece["d"] != steps._piece["c"]


def test_a_result_is_written_over_an_operand_that_nobody_reads_again():
    steps = memory({"x": 2, "a": 1})
    steps.extra_us([("x", 64)], [("a", 64)], 0, in_place=True)
    assert steps._piece["a"] != steps._piece["x"]  # somebody reads it again
    steps.extra_us([("a", 64)], [("b", 64)], 0, in_place=True)
    assert steps._piece["b"] == steps._piece["a"]
    steps.extra_us([("x", 64)], [("c", 64)], 0, in_place=True)
    assert steps._piece["c"] == steps._piece["x"]


def test_a_model_costs_more_where_its_activations_leave_the_core(tmp_path, monkeypatch):
    kind = TensorType(DType.FLOAT32, (64, 1024))  # 256 KiB
    names = [f"v{i}" for i in range(6)]
    nodes = [Node(f"n{i}", "Relu", ("x",), (n,)) for i, n in enumerate(names)]  # six results, all alive
    sums = [Node(f"s{i}", "Sum", (*names[: i + 2], "w"), (f"y{i}",)) for i in range(5)]
    graph = Graph("g", (Value("x", kind),), tuple(Value(f"y{i}", None) for i in range(5)),
                  (constant("w", np.ones(1024, np.float32)),), (*nodes, *sums), {"": 21})  # fmt: skip
    cpu = MeasuredCpuCostModel(store=DeviceProfileStore("test", {}, tmp_path))
    found = graph_cost(graph, cpu)
    monkeypatch.setattr(graph_costs, "_extra_for_activations", lambda *_: lambda *_: 0.0)
    assert graph_cost(graph, cpu).us < found.us < 3 * graph_cost(graph, cpu).us

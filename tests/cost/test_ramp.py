"""How much of what is read again and again comes from memory, and that costs go by it."""

import numpy as np
import pytest

from superopt.benchmark import cost_accuracy
from superopt.benchmark.cost_accuracy import held_out
from superopt.cost import (
    DeviceProfile,
    DeviceProfileStore,
    MeasuredCpuCostModel,
    MeasurementRecord,
    ProfileCostModel,
    graph_cost,
)
from superopt.cost.cache_model import (
    CacheMissCurve,
    default_miss_curve,
    fit_miss_curve,
    miss_curve_of_header,
    probe_sizes,
)
from superopt.cost.measurement_record import MeasurementKey, constant_bytes, key_of
from superopt.cost.operator_timing import CpuOperatorTimer, time_weight_pass
from superopt.ir.graph import Graph, Node, Value, constant
from superopt.ir.types import DType, TensorType

MIB = 1 << 20


def f(*shape):
    return TensorType(DType.FLOAT32, shape)


def line(start, full):
    return CacheMissCurve(((start * MIB, 0.0), (full * MIB, 1.0)))


def made(ramp, size, near=0.01, far=0.04):
    return {n: n * (near + ramp.share(n) * (far - near)) for n in probe_sizes(size)}


@pytest.mark.parametrize(("start", "full"), [(12, 32), (8, 20), (14, 26), (28, 36)])
def test_the_ramp_is_found_again_in_passes_over_memory(start, full):
    true = line(start, full)
    found = fit_miss_curve(made(true, 32 * MIB), 32 * MIB)
    assert all(found.share(n * MIB) == pytest.approx(true.share(n * MIB), abs=0.05) for n in (8, 12, 16, 20, 24, 48))


def test_without_a_cache_to_be_seen_the_ramp_is_the_usual_one():
    flat = {n: 0.01 * n for n in probe_sizes(32 * MIB)}
    assert fit_miss_curve(flat, 32 * MIB) == default_miss_curve(32 * MIB)


@pytest.mark.parametrize("at", range(len(probe_sizes(32 * MIB)) - 1))
def test_one_slow_reading_does_not_move_the_ramp_far_and_it_never_falls(at):
    true = line(14, 26)
    times = made(true, 32 * MIB)
    times[probe_sizes(32 * MIB)[at]] *= 1.3  # another process came in between
    found = fit_miss_curve(times, 32 * MIB)
    shares = [found.share(n * MIB) for n in range(64)]
    assert shares == sorted(shares)
    assert all(abs(share - true.share(n * MIB)) < 0.3 for n, share in enumerate(shares))
    assert sum(abs(share - true.share(n * MIB)) for n, share in enumerate(shares)) / 64 < 0.06


def test_reading_more_takes_longer():
    assert 0 < time_weight_pass(1 << 20) < time_weight_pass(1 << 23)


def test_the_ramp_is_measured_once_and_kept(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "superopt.cost.measured_cost_models.time_weight_pass", lambda size, _: asked.append(size) or 0.01 * size
    )
    first = MeasuredCpuCostModel(store=DeviceProfileStore("test", {}, tmp_path))
    assert first.in_context(1).cold == 0.0
    assert first.in_context(1 << 40).cold == 1.0
    assert asked == []  # clear without it
    assert 0.0 < first.in_context(first.cache_bytes * 3 // 4).cold < 1.0
    assert asked == list(probe_sizes(first.cache_bytes))
    again = MeasuredCpuCostModel(store=DeviceProfileStore("test", {}, tmp_path))
    assert again.miss_curve == first.miss_curve
    assert len(asked) == len(probe_sizes(first.cache_bytes))
    assert held_out(again.store.records).records == 0  # no operator's time is predicted from these
    idle = MeasuredCpuCostModel(store=DeviceProfileStore("idle", {}, tmp_path), time_limit=0.0)
    assert idle.miss_curve == default_miss_curve(idle.cache_bytes)


def test_a_recording_says_how_much_the_cache_holds(monkeypatch):
    monkeypatch.setattr("superopt.cost.operator_timing.time_weight_pass", lambda size, _: 0.01 * size)
    monkeypatch.setattr("superopt.cost.operator_timing.peaks_of_times", lambda _: {})
    facts = CpuOperatorTimer().facts()
    assert miss_curve_of_header(facts) == default_miss_curve(facts["cache_bytes"])


MATMUL = ("MatMul", {}, (f(1, 256), f(256, 1024)), (f(1, 1024),), (False, True))  # 1 MiB of weights
KEY = key_of("MatMul", {}, MATMUL[2], MATMUL[4])


def recorded(**header):
    return ProfileCostModel(
        DeviceProfile({"cache_bytes": 32 * MIB, **header}, {KEY.text: MeasurementRecord(KEY, 1000.0, 3000.0)})
    )


def test_a_recorded_ramp_decides_between_warm_and_cold():
    narrow = recorded(cache_ramp=[[8 * MIB, 0], [16 * MIB, 1]])
    assert narrow.in_context(8 * MIB).application(*MATMUL).us == 1.0
    assert narrow.in_context(12 * MIB).application(*MATMUL).us == 2.0
    assert narrow.in_context(16 * MIB).application(*MATMUL).us == 3.0
    for damaged in (None, "?", [], [1, 2], [[2, 1], [1, 0]], [["1", 0]]):
        assert recorded(cache_ramp=damaged).miss_curve == default_miss_curve(32 * MIB)


def test_weights_too_large_for_the_cache_by_themselves_are_cold_in_their_warm_time_already():
    assert constant_bytes(KEY) == MIB
    alone = recorded(cache_ramp=[[0, 0], [4 * MIB, 1]])  # a quarter of the weight is cold whenever it is read
    assert alone.in_context(MIB).application(*MATMUL).us == 1.0
    assert alone.in_context(5 * MIB // 2).application(*MATMUL).us == pytest.approx(2.0)
    assert alone.in_context(4 * MIB).application(*MATMUL).us == 3.0


def test_bytes_of_constants_are_read_off_a_key():
    shapes = ("float32[2,3]", "!float32[3,4]", "!int64[2]=[3, 4]", "", "!float32[]=0.5")
    assert constant_bytes(MeasurementKey("Op", "{}", "float32", shapes)) == 48 + 16 + 4


def twice(first, second, activation=""):
    """One matrix that two operators multiply with."""
    ops = {
        "MatMul": lambda x, y, n: [Node(n, "MatMul", (x, "w"), (y,))],
        "Gemm": lambda x, y, n: [Node(n, "Gemm", (x, "w", "b"), (y,))],
        "MatMul+Add": lambda x, y, n: [
            Node(n, "MatMul", (x, "w"), (f"{y}m",)), Node(f"{n}a", "Add", (f"{y}m", "b"), (y,)),
        ],
        "Gemm+Relu": lambda x, y, n: [
            Node(n, "Gemm", (x, "w", "b"), (f"{y}g",)), Node(f"{n}r", "Relu", (f"{y}g",), (y,)),
        ],
    }  # fmt: skip
    nodes = (*ops[first]("x", "h", "first"), *ops[second]("h", "y", "second"))
    weights = (constant("w", np.ones((64, 64), np.float32)), constant("b", np.ones(64, np.float32)))
    return Graph("twice", (Value("x", f(1, 64)),), (Value("y", f(1, 64)),), weights, nodes, {"": 21})


class Seen(ProfileCostModel):
    """Notes how much is said to be read in an inference."""

    def __init__(self):
        super().__init__(DeviceProfile({"cache_bytes": 1 << 30}, {}))
        self.sets = []

    def in_context(self, working_set):
        self.sets.append(working_set)
        return super().in_context(working_set)


@pytest.mark.parametrize(
    ("first", "second", "copies"),
    [
        ("MatMul", "MatMul", 1), ("Gemm", "Gemm", 1), ("MatMul", "Gemm", 2), ("MatMul+Add", "Gemm", 1),
        ("MatMul+Add", "MatMul", 2), ("Gemm", "Gemm+Relu", 2), ("Gemm+Relu", "Gemm+Relu", 1),
    ],
)  # fmt: skip
def test_a_weight_counts_once_for_each_kind_of_kernel_that_packs_it(first, second, copies):
    seen = Seen()
    graph_cost(twice(first, second), seen)
    assert max(seen.sets) // (64 * 64 * 4) == copies


def test_models_are_raced_in_bursts_in_which_caches_settle(monkeypatch, tmp_path):
    given = []
    monkeypatch.setattr(cost_accuracy, "time_models", lambda *_, burst, **__: given.append(burst))
    for run_us in (100.0, 10_000.0, 1e6, float("inf")):
        cost_accuracy._raced(
            [b""], {}, MeasuredCpuCostModel(store=DeviceProfileStore("test", {}, tmp_path)), 1, 1.0, run_us
        )
    assert given == [10, 5, 3, 3]


def test_the_probe_reads_memory_that_a_cache_of_the_said_size_holds_and_does_not():
    sizes = probe_sizes(32 * MIB)
    assert sizes[0] <= 8 * MIB
    assert sizes[-1] >= 48 * MIB
    assert list(sizes) == sorted(set(sizes))
    assert probe_sizes(1 << 30) == ()  # sessions of gigabytes are not made just for that
    assert fit_miss_curve({}, 1 << 30) == default_miss_curve(1 << 30)

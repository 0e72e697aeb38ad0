"""Cost models: where figures come from, what is free, and that a recorded profile always answers the same."""

import math

import pytest

from superopt.cost import (
    DeviceProfile,
    DeviceProfileStore,
    MeasuredCpuCostModel,
    MeasurementRecord,
    ProfileCostModel,
    for_target,
)  # fmt: skip
from superopt.cost.measurement_record import key_of
from superopt.ir.errors import BackendUnavailable, UsageError
from superopt.ir.size_polynomial import sym
from superopt.ir.types import DType, TensorType


def f(*shape):
    return TensorType(DType.FLOAT32, shape)


MATMUL = ("MatMul", {}, (f(8, 64), f(64, 32)), (f(8, 32),), (False, True))


@pytest.fixture
def cpu(tmp_path):
    return MeasuredCpuCostModel(store=DeviceProfileStore("test", {}, tmp_path))


@pytest.fixture
def idle(tmp_path):
    """A model that has no time to measure."""
    return MeasuredCpuCostModel(store=DeviceProfileStore("idle", {}, tmp_path), time_limit=0.0)


def test_a_measurement_is_made_once_and_kept(cpu, tmp_path):
    first = cpu.application(*MATMUL)
    assert first.source == "measured"
    assert first.us > 0
    assert cpu.measured == 1
    again = MeasuredCpuCostModel(store=DeviceProfileStore("test", {}, tmp_path))
    assert again.application(*MATMUL) == first
    assert again.measured == 0


def test_constant_weights_and_fed_ones_are_different_questions(cpu):
    op, attributes, types, outs, _ = MATMUL
    cpu.application(*MATMUL)
    cpu.application(op, attributes, types, outs, (False, False))
    assert cpu.measured == 2
    assert key_of(op, attributes, types, (False, True)) != key_of(op, attributes, types, (False, False))


def test_without_time_nothing_is_measured_and_it_says_so(idle):
    found = idle.application(*MATMUL)
    assert idle.measured == 0
    assert found.source == "roofline"
    assert found.us > 0
    assert found.sigma > 0


def test_what_depends_on_weights_alone_is_free(idle):
    assert idle.application("Relu", {}, (f(4, 4),), (f(4, 4),), (True,)).us == 0
    assert idle.application("Relu", {}, (f(4, 4),), (f(4, 4),), (True,)).source == "free"


def test_a_view_costs_no_more_than_its_dispatch(cpu):
    small = cpu.application("Reshape", {"shape": (16,)}, (f(4, 4),), (f(16),))
    large = cpu.application("Reshape", {"shape": (1 << 20,)}, (f(1024, 1024),), (f(1 << 20),))
    assert small == large
    assert cpu.measured == 0


def test_a_fused_activation_is_free_and_an_unfused_one_is_not(idle):
    relu = ("Relu", {}, (f(8, 32),), (f(8, 32),))
    assert idle.application(*relu, after="Conv").us == 0
    assert idle.application(*relu, after="Softmax") == idle.application(*relu)
    assert idle.application(*relu).us > 0


def test_a_fused_bias_costs_less_than_alone_and_a_whole_summand_is_not_fused(idle):
    bias = ("Add", {}, (f(8, 32), f(32)), (f(8, 32),), (False, True))
    alone = idle.application(*bias).us
    assert idle.application(*bias, after="MatMul").us < alone == idle.application(*bias, after="Softmax").us
    whole = ("Add", {}, (f(8, 32), f(8, 32)), (f(8, 32),), (False, True))  # not a bias: ONNX Runtime keeps the Add
    assert idle.application(*whole, after="MatMul") == idle.application(*whole)


def test_symbolic_sizes_are_costed_at_the_given_ones(tmp_path):
    store = DeviceProfileStore("sizes", {}, tmp_path)
    symbolic = (f(sym("n"), 64), f(64, 32))
    model = MeasuredCpuCostModel(store=store, sizes={"n": 8}, time_limit=0.0)
    assert model.application("MatMul", {}, symbolic, (f(sym("n"), 32),), (False, True)) == model.application(*MATMUL)


def test_what_the_runtime_cannot_run_is_dear_but_finite(cpu):
    kind = TensorType(DType.BFLOAT16, (4, 4))
    refused = cpu.application("MatMul", {}, (kind, kind), (kind,))
    fine = cpu.application("MatMul", {}, (f(4, 4), f(4, 4)), (f(4, 4),))
    assert refused.source == "roofline"
    assert math.isfinite(refused.us)
    assert refused.us > 50 * fine.us


def test_context_decides_between_warm_and_cold(tmp_path):
    key = key_of("MatMul", {}, MATMUL[2], MATMUL[4])
    profile = DeviceProfile(
        {"cache_bytes": 100_000, "dispatch_ns": 200.0}, {key.text: MeasurementRecord(key, 1000.0, 3000.0)}
    )
    model = ProfileCostModel(profile)
    assert model.application(*MATMUL).us == 3.0
    assert model.in_context(10_000).application(*MATMUL).us == 1.0
    assert 1.0 < model.in_context(70_000).application(*MATMUL).us < 3.0
    assert model.in_context(10**9).application(*MATMUL).us == 3.0


def test_a_recorded_profile_predicts_what_it_lacks_and_says_so():
    rows = [
        MeasurementRecord(key_of("Relu", {}, (f(n),)), 500.0 + n / 10, 500.0 + n / 10, 0.01, 0, n, 8 * n)
        for n in (1000, 2000, 4000, 8000)
    ]
    profile = DeviceProfile({}, {r.key.text: r for r in rows})
    first, second = (
        ProfileCostModel(profile),
        ProfileCostModel(DeviceProfile({}, dict(reversed(profile.records.items())))),
    )
    assert first.application("Relu", {}, (f(1000),), (f(1000),)).source == "measured"
    assert first.application("Relu", {}, (f(3000),), (f(3000),)).source == "interpolated"
    for n in (10, 3000, 10**7):
        assert first.application("Relu", {}, (f(n),), (f(n),)) == second.application("Relu", {}, (f(n),), (f(n),))


def test_targets():
    with pytest.raises(UsageError, match="targets"), for_target("abacus"):
        pass
    with pytest.raises(BackendUnavailable, match="profile:NAME"), for_target("cuda"):
        pass
    with pytest.raises(UsageError, match="no profile"), for_target("profile:nothing"):
        pass

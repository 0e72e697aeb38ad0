"""One piece asks devices: within a budget, once a key, and predicts the rest from what it has."""

from __future__ import annotations

import pytest

from superopt.cost import DeviceProfileStore
from superopt.cost.cost_model import refusal_cost
from superopt.cost.measured_cost_models import MeasurementCache
from superopt.cost.measurement_record import CostEstimate, MeasurementKey, MeasurementRecord, key_of
from superopt.cost.operator_time_predictor import OperatorTimePredictor
from superopt.cost.operator_timing import OperatorTiming
from superopt.ir.errors import Unsupported
from superopt.ir.types import DType, TensorType
from superopt.ops.operator_definition import UnsupportedNodeForm


def key(size: int) -> MeasurementKey:
    return key_of("Relu", {}, (TensorType(DType.FLOAT32, (size,)),))


def timed() -> OperatorTiming:
    return OperatorTiming(1000.0, 2000.0, 0.01)


def refusing() -> OperatorTiming:
    raise Unsupported("no kernel")


def inseparable() -> OperatorTiming:
    raise UnsupportedNodeForm("it cannot be written alone")


def test_a_key_is_measured_once_and_kept() -> None:
    answers = MeasurementCache(DeviceProfileStore.of(()))
    first = answers.get(key(1), timed, (1, 8))
    assert first is not None
    assert answers.get(key(1), lambda: pytest.fail("it is known"), (1, 8)) == first
    assert answers.measured == 1


def test_what_is_refused_failed_and_what_cannot_stand_alone_did_not() -> None:
    answers = MeasurementCache(DeviceProfileStore.of(()))
    asked = []

    def once(how):
        def time_it() -> OperatorTiming:
            asked.append(how)
            return how()

        return time_it

    for _ in range(3):
        assert answers.get(key(1), once(refusing), (1, 8)) is None
        assert answers.get(key(2), once(inseparable), (1, 8)) is None
    assert asked == [refusing, inseparable], "neither is tried again"
    assert answers.failed(key(1))
    assert not answers.failed(key(2))
    assert refusal_cost(CostEstimate(2.0, "interpolated")).us > 1000


def test_without_time_nothing_is_measured_but_what_is_known_is_told() -> None:
    known = MeasurementRecord(key(1), 1.0, 1.0)
    answers = MeasurementCache(DeviceProfileStore.of([known]), time_limit=0.0)
    assert answers.get(key(1), lambda: pytest.fail("no time"), (1, 8)) == known
    assert answers.get(key(2), lambda: pytest.fail("no time"), (1, 8)) is None


def test_the_predictor_is_fitted_now_and_then_not_with_every_question(monkeypatch: pytest.MonkeyPatch) -> None:
    fits = []
    real = OperatorTimePredictor.fit
    monkeypatch.setattr(OperatorTimePredictor, "fit", staticmethod(lambda *given: fits.append(1) or real(*given)))
    answers = MeasurementCache(DeviceProfileStore.of(()))
    for size in range(1, 130):
        answers.get(key(size), timed, (size, 8 * size))
        answers.predict("Relu", (size, 8 * size), key(size), 1.0)
    assert len(fits) == 17  # each time the store has grown by a quarter


def test_what_the_clock_cut_short_is_filed_apart() -> None:
    """Results that rest on predictions because the time for measuring was over are not those of a longer run."""
    late, timely = (MeasurementCache(DeviceProfileStore.of(()), time_limit=limit) for limit in (0.0, 1.0))
    assert late.out_of_time
    assert late.get(key(1), lambda: pytest.fail("there is no time"), (1, 8)) is None
    assert late.digest != timely.digest

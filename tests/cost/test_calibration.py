"""A machine against a profile: what is timed again, what factors come of it, and that prices follow them."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from sampling import slow

from superopt.cost import ONNX_RUNTIME_CPU, DeviceProfile, ProfileCostModel, for_target, load_profile
from superopt.cost.cost_model import DeviceGraphTimer
from superopt.cost.measurement_record import MeasurementKey, MeasurementRequest
from superopt.cost.operator_timing import OperatorTiming
from superopt.cost.profile_calibration import (
    _bound_of,
    cached_calibration,
    calibrated,
    calibration_of,
    scaled,
)
from superopt.cost.roofline_ceilings import ceilings_of
from superopt.ir.errors import Unsupported
from superopt.ops.operator_definition import UnsupportedNodeForm
from superopt.report.terminal_views import profile_rows, show_profiles

NAME = "cpu-epyc-2core"
STEP = 1.25


class Machine:
    """A device that takes a multiple of what a profile says, give or take some noise, and counts what it is asked."""

    backend = ONNX_RUNTIME_CPU
    name = "a machine of a test"
    device_timer: DeviceGraphTimer | None = None

    def __init__(self, profile: DeviceProfile, factor: float, noise: float = 0.0, refuses: float = 0.0) -> None:
        self.known = {r.key.question: r for r in profile.records.values()}
        self.factor, self.noise, self.refuses, self.asked, self.flushed = factor, noise, refuses, 0, 0
        self.draw = random.Random(0)

    def facts(self) -> dict[str, Any]:
        return {}

    def key(self, question: MeasurementRequest) -> MeasurementKey:
        return question.key

    def time(self, question: MeasurementRequest, *, cold: bool = True) -> OperatorTiming:
        self.asked += 1
        self.flushed += cold
        if self.draw.random() < self.refuses:
            raise Unsupported("not here") if self.asked % 2 else UnsupportedNodeForm("nor alone")
        ns = self.known[question.key.question].ns * self.factor * self.draw.lognormvariate(0.0, self.noise)
        return OperatorTiming(ns, ns, 0.0)

    def sentinels(self) -> Mapping[str, float]:
        return {}


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path))


@pytest.mark.parametrize(("factor", "steps"), [(1.0, 0), (1.1, 0), (0.91, 0), (1.25, 1), (2.0, 3), (0.5, -3)])
def test_factors_are_the_machines_in_steps(factor: float, steps: int) -> None:
    profile = load_profile(NAME)
    found = calibration_of(NAME, profile, Machine(profile, factor))
    assert found.factors == pytest.approx(dict.fromkeys(("overhead", "arithmetic", "memory"), STEP**steps), rel=1e-5)
    assert found.measured == pytest.approx(dict.fromkeys(found.factors, factor), rel=1e-3)
    assert found.sigma < 1e-3
    assert found.records == 21


def test_what_kinds_have_in_common_changes_no_choice() -> None:
    """A machine half a step slower than the profile's is told so or not, by chance; its kinds stay what they are."""
    profile = load_profile(NAME)
    machine = Machine(profile, STEP**0.5, noise=0.1)
    found = [calibration_of(NAME, profile, machine).factors for _ in range(20)]
    assert len({f["arithmetic"] for f in found}) == 2
    assert all(len(set(f.values())) == 1 for f in found)


def test_noise_seldom_changes_a_factor() -> None:
    """Records scatter by a tenth; of twenty calibrations all but a few agree, and none is further than a step."""
    profile = load_profile(NAME)
    machine = Machine(profile, 2.0, noise=0.1)
    found = [calibration_of(NAME, profile, machine).factors["arithmetic"] for _ in range(20)]
    usual = STEP**3
    assert sum(f == pytest.approx(usual, rel=1e-5) for f in found) >= 17
    assert all(f == pytest.approx(usual, rel=0.26) for f in found)


def test_what_a_runtime_refuses_is_left_out() -> None:
    profile = load_profile(NAME)
    found = calibration_of(NAME, profile, Machine(profile, 2.0, refuses=0.5))
    assert 0 < found.records < 21
    assert set(found.factors.values()) == {round(STEP**3, 6)}


def test_a_machine_is_measured_once() -> None:
    profile = load_profile(NAME)
    machine = Machine(profile, 2.0)
    assert cached_calibration(NAME, profile.header, machine) is None
    first = calibrated(NAME, profile, machine)
    asked = machine.asked
    assert calibrated(NAME, profile, machine) == first == cached_calibration(NAME, profile.header, machine)
    assert machine.asked == asked == 21
    machine.name = "another machine"
    assert cached_calibration(NAME, profile.header, machine) is None


def test_prices_follow_the_factors() -> None:
    profile = load_profile(NAME)
    twice = calibration_of(NAME, profile, Machine(profile, STEP**3))
    there, here = ProfileCostModel(profile), ProfileCostModel(scaled(profile, twice))
    records = random.Random(1).sample(sorted(profile.records), 50)
    for text in records:
        key = profile.records[text].key
        assert here.record_of(key).ns == pytest.approx(there.record_of(key).ns * STEP**3, rel=1e-5)
    peaks = here.peaks(), there.peaks()
    assert peaks[0] is not None
    assert peaks[1] is not None
    assert peaks[0].flops_per_second == pytest.approx(peaks[1].flops_per_second / STEP**3, rel=1e-5)
    assert here.digest != there.digest
    assert here.streamed == pytest.approx(there.streamed / STEP**3)
    key = MeasurementKey("Relu", "{}", "float32", ("float32[3, 5, 7]",), "ieee", "plain", "ort")
    for work in ((105, 840), (10**6, 10**6), (10**9, 10**8)):  # what is predicted, down to the least that a run costs
        expected = STEP**3 * there.predicted("Relu", work, key).us
        assert here.predicted("Relu", work, key).us == pytest.approx(expected, rel=1e-4)
    same = calibration_of(NAME, profile, Machine(profile, 1.0))
    assert scaled(profile, same) is profile


def test_the_list_says_how_this_machine_compares() -> None:
    command = [sys.executable, "-m", "superopt.cli", "profile", "--list", "--json"]
    before = json.loads(subprocess.run([*command, "-"], capture_output=True, check=True).stdout)
    assert [row["calibration"] for row in before["profiles"]] == [None] * len(before["profiles"])
    model = Path(__file__).parents[2] / "corpus" / "tiny" / "deep_linear.json"
    subprocess.run([sys.executable, "-m", "superopt.cli", "cost", str(model)], capture_output=True, check=True)
    after = json.loads(subprocess.run([*command, "-"], capture_output=True, check=True).stdout)
    assert any(set(row["calibration"]["factors"]) == {"overhead", "arithmetic", "memory"} for row in after["profiles"])
    shown = subprocess.run([*command[:-1]], capture_output=True, check=True, text=True).stdout
    assert "this machine against" in shown
    assert "arithmetic ×" in shown


@pytest.mark.parametrize(("recorded", "said"), [("onnxruntime 0.1", True), ("here", False), ("openvino 1", False)])
def test_the_list_says_that_another_version_of_the_runtime_runs_here(recorded: str, said: bool) -> None:
    row = {**profile_rows()[0], "calibration": None}
    row["runtime"] = row["runtime_here"] if recorded == "here" else recorded
    shown = io.StringIO()
    show_profiles(Console(file=shown, width=400), [row])
    assert (f"recorded with {recorded}, and onnxruntime" in shown.getvalue()) is said


def test_the_list_does_not_compare_this_processor_with_another_kind_of_device() -> None:
    rows = {row["name"]: row for row in profile_rows()}
    assert (rows["cpu-epyc-2core"]["processor"], rows["h200"]["processor"]) == (True, False)
    shown = io.StringIO()
    show_profiles(Console(file=shown, width=400), [rows["h200"]])
    assert "h200: no processor; its prices stand as they were recorded" in shown.getvalue()
    assert "not measured yet" not in shown.getvalue()


class Uneven(Machine):
    """A machine whose kinds of work differ from the profile's by factors of their own."""

    def __init__(self, profile: DeviceProfile, own: Mapping[str, float], noise: float = 0.0) -> None:
        super().__init__(profile, 1.0, noise)
        ceilings = ceilings_of(profile.header)
        self.own = own
        self.kinds = {r.key.question: _bound_of(r, ceilings) for r in profile.records.values()}

    def time(self, question: MeasurementRequest, *, cold: bool = True) -> OperatorTiming:
        ns = super().time(question, cold=cold).ns * self.own.get(self.kinds[question.key.question], 1.0)
        return OperatorTiming(ns, ns, 0.0)


@pytest.mark.parametrize(("memory", "own"), [(2.7, 1.0), (0.4, 1.0), (4.5, 9.0), (0.2, 1 / 9)])
def test_a_kind_gets_a_factor_of_its_own_only_where_it_is_far_from_the_others(memory: float, own: float) -> None:
    profile = load_profile(NAME)
    found = calibration_of(NAME, profile, Uneven(profile, {"memory": memory}))
    assert found.factors["memory"] / found.factors["arithmetic"] == pytest.approx(own, rel=1e-4)


def test_a_processor_of_another_vendor_gets_the_same_choices_from_every_calibration() -> None:
    """Measured on a Xeon against the EPYC's profile: 0.70 in arithmetic and 1.45 in memory; load scatters records."""
    profile = load_profile(NAME)
    machine = Uneven(profile, {"arithmetic": 0.70, "memory": 1.45}, noise=0.5)
    found = [calibration_of(NAME, profile, machine).factors for _ in range(20)]
    assert all(len(set(f.values())) == 1 for f in found)


@pytest.mark.parametrize("threads", [1, 2, slow(7)])
def test_prices_of_a_processor_are_a_profiles_however_many_threads_run(threads: int) -> None:
    """Where all was measured that a search asked for, noise chose the graph, and the cache kept the choice."""
    with for_target("cpu", threads=threads) as prices:
        assert isinstance(prices, ProfileCostModel)
        assert prices.measurements is None
        assert prices.measured == 0

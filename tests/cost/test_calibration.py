"""A machine against a profile: what is timed again, what factors come of it, and that prices follow them."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from superopt.cost import ONNX_RUNTIME_CPU, Profile, RecordedProfile, load_profile
from superopt.cost.calibrated import _in_steps
from superopt.cost.calibration import calibrated, calibration_at_hand, calibration_of, scaled, timed_beside
from superopt.cost.measure import Timing
from superopt.cost.model import Racing
from superopt.cost.question import Question, fixed_bytes, question_of
from superopt.cost.record import Estimate, Key
from superopt.ir.errors import Unsupported
from superopt.ops.record import NotCovered
from superopt.report.profiles import profile_rows, show_profiles

NAME = "cpu-epyc-2core"
STEP = 1.25


class Machine:
    """A device that takes a multiple of what a profile says, give or take some noise, and counts what it is asked."""

    backend = ONNX_RUNTIME_CPU
    name = "a machine of a test"
    racing: Racing | None = None

    def __init__(self, profile: Profile, factor: float, noise: float = 0.0, refuses: float = 0.0) -> None:
        self.known = {r.key.question: r for r in profile.records.values()}
        self.factor, self.noise, self.refuses, self.asked, self.flushed = factor, noise, refuses, 0, 0
        self.draw = random.Random(0)

    def facts(self) -> dict[str, Any]:
        return {}

    def key(self, question: Question) -> Key:
        return question.key

    def time(self, question: Question, *, cold: bool = True) -> Timing:
        self.asked += 1
        self.flushed += cold
        if self.draw.random() < self.refuses:
            raise Unsupported("not here") if self.asked % 2 else NotCovered("nor alone")
        ns = self.known[question.key.question].ns * self.factor * self.draw.lognormvariate(0.0, self.noise)
        return Timing(ns, ns, 0.0)

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
    assert calibration_at_hand(NAME, profile.header, machine) is None
    first = calibrated(NAME, profile, machine)
    asked = machine.asked
    assert calibrated(NAME, profile, machine) == first == calibration_at_hand(NAME, profile.header, machine)
    assert machine.asked == asked == 21
    machine.name = "another machine"
    assert calibration_at_hand(NAME, profile.header, machine) is None


def test_prices_follow_the_factors() -> None:
    profile = load_profile(NAME)
    twice = calibration_of(NAME, profile, Machine(profile, STEP**3))
    there, here = RecordedProfile(profile), RecordedProfile(scaled(profile, twice))
    records = random.Random(1).sample(sorted(profile.records), 50)
    for text in records:
        key = profile.records[text].key
        assert here._answers[key.question].ns == pytest.approx(there._answers[key.question].ns * STEP**3, rel=1e-5)
    peaks = here.peaks(), there.peaks()
    assert peaks[0] is not None
    assert peaks[1] is not None
    assert peaks[0].flops_per_second == pytest.approx(peaks[1].flops_per_second / STEP**3, rel=1e-5)
    assert here.digest != there.digest
    assert here.streamed == pytest.approx(there.streamed / STEP**3)
    key = Key("Relu", "{}", "float32", ("float32[3, 5, 7]",), "ieee", "plain", "ort")
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
    subprocess.run([sys.executable, "-m", "superopt.cli", "optimize", str(model)], capture_output=True, check=True)
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


@pytest.mark.parametrize("slower", [1.0, 1.6, 3.0])
def test_what_a_profile_lacks_is_in_its_units(slower: float) -> None:
    """However slow a machine is at the moment, an operator that the profile lacks costs as much beside the others."""
    profile = load_profile(NAME)
    text, lacking = next((t, r) for t, r in profile.records.items() if r.key.op == "Relu" and r.ns > 1e4)
    without = Profile(profile.header, {t: r for t, r in profile.records.items() if t != text})
    machine = Machine(profile, slower)
    found = timed_beside(without, machine, question_of(lacking.key))
    assert found.ns == pytest.approx(lacking.ns, rel=1e-6)
    assert machine.asked == 6  # and what is like it, three times


def test_two_measurements_of_one_operator_are_one_price() -> None:
    """A hundredth more or less decided between graphs that cost the same."""
    expected = Estimate(100.0, "interpolated", 0.3)
    near, far = (
        [_in_steps(Estimate(us, "measured", 0.03), expected) for us in row] for row in ((77.2, 78.5), (50, 60))
    )
    assert near[0].us == near[1].us == pytest.approx(78.0, rel=0.05)
    assert far[0].us == pytest.approx(50.0, rel=0.06)
    assert far[0].us < far[1].us < near[0].us
    assert {e.source for e in near} == {"measured"}


def test_no_cache_is_flushed_where_the_profile_says_what_memory_costs() -> None:
    """Half a gigabyte of cache took two seconds to be flushed once, for an operator of a millisecond."""
    profile = load_profile(NAME)
    text, lacking = next((t, r) for t, r in profile.records.items() if r.key.op == "Gemm" and r.flops > 1e6)
    without = Profile(profile.header, {t: r for t, r in profile.records.items() if t != text})
    machine, peaks = Machine(profile, 1.6), profile.header["peaks"]
    found = timed_beside(without, machine, question_of(lacking.key))
    assert machine.flushed == 0
    far = 1 / peaks["bytes_per_s"] - 1 / peaks["cache_bytes_per_s"]
    assert found.ns_cold - found.ns == pytest.approx(1e9 * far * fixed_bytes(lacking.key))
    silent = Profile({k: v for k, v in profile.header.items() if k != "peaks"}, without.records)
    timed_beside(silent, machine, question_of(lacking.key))
    assert machine.flushed == 1


@pytest.mark.parametrize("length", ["long", "short"])
@pytest.mark.parametrize("off", range(3))
def test_one_session_that_is_off_is_outvoted(off: int, length: str) -> None:
    """A kernel of 15 µs took 11, 20 and 25 in three sessions, each sure of it to 4 %, and a search took another way."""
    profile = load_profile(NAME)
    few = [(t, r) for t, r in profile.records.items() if r.key.op == "Relu" and r.ns > 2e3]
    text, lacking = next((t, r) for t, r in few if (r.ns > 2e4 if length == "long" else r.ns < 5e3))
    without = Profile(profile.header, {t: r for t, r in profile.records.items() if t != text})

    class Twice(Machine):
        """Takes twice as long for the question in one session."""

        sessions = 0

        def time(self, question: Question, *, cold: bool = True) -> Timing:
            found = super().time(question, cold=cold)
            if question.key != lacking.key:
                return found
            self.sessions += 1
            return replace(found, ns=2 * found.ns, ns_cold=2 * found.ns_cold) if self.sessions == off + 1 else found

    machine = Twice(profile, 1.0)
    found = timed_beside(without, machine, question_of(lacking.key))
    assert found.ns == pytest.approx(lacking.ns, rel=1e-6)
    asked = {"long": (machine.sessions > 3, found.iqr < 0.1), "short": (machine.sessions == 3, found.iqr >= 1.0)}
    assert asked[length] == (True, True), "it is asked in more sessions, or that it is not sure is said"


def test_what_cannot_be_compared_is_as_it_was_timed() -> None:
    profile = load_profile(NAME)
    record = next(r for r in profile.records.values() if r.key.op == "Relu")
    machine = Machine(profile, 2.0)
    assert timed_beside(Profile(profile.header, {}), machine, question_of(record.key)).ns == 2.0 * record.ns

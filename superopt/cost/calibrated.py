"""The prices of this machine: a recorded profile, scaled by a calibration; what it lacks is predicted, or measured."""

from __future__ import annotations

import difflib
import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial

from superopt.cost.answers import Answers, Progress
from superopt.cost.calibration import (
    SHORT_NS,
    Calibration,
    calibrated,
    calibration_at_hand,
    scaled,
    stepped,
    timed_beside,
)
from superopt.cost.device import CpuDevice
from superopt.cost.fusion import BACKENDS
from superopt.cost.measured import device_store
from superopt.cost.predictor import ceilings_of
from superopt.cost.profile import Profile, load_profile, profile_names, shipped_header
from superopt.cost.question import Question
from superopt.cost.record import Estimate, Key
from superopt.cost.recorded import RecordedProfile
from superopt.runtime.protocol import Runtime

__all__ = ["CalibratedCpu", "calibrated_cpu", "known_calibrations", "nearest_profile"]

_STEP = math.log(1.1)  # of a measured price: several times what two measurements of one operator differ by


class CalibratedCpu(RecordedProfile):
    """A recorded profile as this machine would have recorded it, and a few questions that it is asked itself.

    What the profile holds is answered by it, so that noise decides nothing. What it lacks is expected from its records
    until an extraction wants it; only then it is measured here, as often as ``questions`` allows, and kept.

    Args:
        profile: scaled to this machine.
        calibration: by what.
        device: this machine.
        sizes: what symbolic dimensions are costed at.
        questions: how many may be measured.
        time_limit: seconds that may be spent on them; what comes later is predicted.
        progress: called with (measured so far, None, what) before each.
    """

    answers: Answers

    def __init__(
        self,
        profile: Profile,
        calibration: Calibration,
        device: CpuDevice,
        *,
        sizes: Mapping[str, int] | None = None,
        questions: int | None = 0,
        time_limit: float = float("inf"),
        progress: Progress | None = None,
    ) -> None:
        super().__init__(profile, sizes, device.backend)
        self.calibration, self.cpu = calibration, device
        units = hashlib.sha256(str(super().digest).encode()).hexdigest()[:8]
        self.answers = Answers(
            device_store(device.meter.threads, device.meter.runtime, beside=units),
            ceilings=ceilings_of(profile.header), most=questions, time_limit=time_limit, progress=progress,
        )  # fmt: skip

    @property
    def measured(self) -> int:
        return self.answers.measured

    @cached_property
    def recorded(self) -> RecordedProfile:
        return RecordedProfile(self.profile, self.sizes, self.backend)

    @property
    def digest(self) -> str | None:
        return f"{super().digest} {self.answers.store.path.name} {self.answers.most}{' late' * self.answers.late}"

    @property
    def informed(self) -> bool:
        return True

    @property
    def shortest_us(self) -> float:
        return SHORT_NS / 1e3

    def _known(self, key: Key) -> bool:
        return key.question in self._answers or self.answers.spent or self.answers.store.get(key.text) is not None

    def _lookup(self, question: Question) -> Estimate:
        if question.key.question in self._answers:
            return super()._lookup(question)
        found = self.answers.price(self, question, question.key, partial(timed_beside, self.profile, self.cpu))
        return _in_steps(found, self._expected(question)) if found.source == "measured" else found


def _in_steps(found: Estimate, expected: Estimate) -> Estimate:
    """A measurement after what was expected, apart from it by whole steps: two measurements of one operator, which
    differ by a hundredth, are one price, so that a near tie of two graphs ends as it does on other runs."""
    made = found.beside(expected)
    if expected.us <= 0.0 or made.us <= 0.0:
        return made
    return replace(made, us=expected.us * stepped(made.us / expected.us, _STEP))


def nearest_profile(device: CpuDevice) -> tuple[str, Profile, Calibration] | None:
    """The shipped profile that is most like this machine, and its calibration; ``None`` where none is of its kind.

    Of its kind is what was recorded on a processor with the same number of threads: with the same runtime, or else with
    another. Likeness is that of the names of machine and runtime; what they differ in, the calibration measures.
    """
    found: list[tuple[bool, float, str]] = []
    for name in profile_names():
        header = shipped_header(name)
        backend = BACKENDS.get(str(header.get("backend")))
        if backend is not None and backend.processor and header.get("threads") == device.meter.threads:
            recorded = f"{header.get('device')}, {header.get('cores')} cores, {header.get('runtime')}"
            likeness = difflib.SequenceMatcher(None, recorded, device.name).ratio()
            found.append((backend is not device.backend, -likeness, name))
    if not found:
        return None
    *_, name = min(found)
    profile = load_profile(name)
    return name, profile, calibrated(name, profile, device)


def known_calibrations() -> dict[str, Calibration]:
    """By shipped profile, what is known of this machine against it: one thread, ONNX Runtime. Nothing is measured."""
    device = CpuDevice()
    found = {name: calibration_at_hand(name, shipped_header(name), device) for name in profile_names()}
    return {name: calibration for name, calibration in found.items() if calibration is not None}


def calibrated_cpu(
    *, runtime: Runtime, threads: int, sizes: Mapping[str, int] | None, questions: int | None,
    time_limit: float, progress: Progress | None,
) -> CalibratedCpu | None:  # fmt: skip
    """The cost model of this machine; ``None`` where no profile is of its kind."""
    device = CpuDevice(threads, runtime)
    found = nearest_profile(device)
    if found is None:
        return None
    _, profile, calibration = found
    return CalibratedCpu(
        scaled(profile, calibration),
        calibration,
        device,
        sizes=sizes,
        questions=questions,
        time_limit=time_limit,
        progress=progress,
    )

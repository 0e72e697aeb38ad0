"""The prices of this machine: a recorded profile, scaled by a calibration; what the profile lacks is predicted.

Nothing else is measured for a price. Which of two graphs is cheaper then follows from the graphs and the profile, and
neither from the load of the machine nor from what earlier runs left in the cache. What a measurement is for is refusing
a whole result (:mod:`superopt.pipeline.acceptance_policy`).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from superopt.cost.calibration import Calibration, calibrated, calibration_at_hand, scaled
from superopt.cost.device import CpuDevice
from superopt.cost.fusion import BACKENDS
from superopt.cost.profile import Profile, load_profile, profile_names, shipped_header
from superopt.cost.recorded import RecordedProfile
from superopt.runtime.protocol import Runtime

__all__ = ["calibrated_cpu", "known_calibrations", "nearest_profile"]


def nearest_profile(device: CpuDevice) -> tuple[str, Profile, Calibration] | None:
    """The shipped profile that is most like this machine, and its calibration; ``None`` where none is of a processor.

    Most like it is what was recorded with the same runtime; then, with as many threads; then, on a machine and a
    version whose names are most alike. What they differ in, the calibration measures.
    """
    found: list[tuple[bool, bool, float, str]] = []
    for name in profile_names():
        header = shipped_header(name)
        backend = BACKENDS.get(str(header.get("backend")))
        if backend is not None and backend.processor:
            recorded = f"{header.get('device')}, {header.get('cores')} cores, {header.get('runtime')}"
            likeness = difflib.SequenceMatcher(None, recorded, device.name).ratio()
            threads = header.get("threads") != device.meter.threads
            found.append((backend is not device.backend, threads, -likeness, name))
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


def calibrated_cpu(*, runtime: Runtime, threads: int, sizes: Mapping[str, int] | None) -> RecordedProfile | None:
    """The cost model of this machine; ``None`` where no profile is of a processor."""
    device = CpuDevice(threads, runtime)
    found = nearest_profile(device)
    if found is None:
        return None
    _, profile, calibration = found
    return RecordedProfile(scaled(profile, calibration), sizes, device.backend)

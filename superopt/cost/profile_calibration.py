"""Scales a recorded profile to this machine by three measured factors.

Prices are then a function of the profile and three factors, so they are the same on every run: neither the load of the
machine nor the contents of its cache decides which of two graphs is cheaper. (Measurements only refuse a whole result:
:mod:`superopt.pipeline.acceptance_policy`.)

A record is bound by what takes most of its roofline: arithmetic, memory, or the overhead of any operator (Williams et
al., 2009). Each bound has its factor: the median ratio over a few of the profile's own records, timed again. A factor
is a common part, on which no choice depends, times a part of its own. Both are rounded to steps, so that two
calibrations of one machine give the same prices, and a machine like the profile's gives exactly the profile's prices.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from statistics import median, pstdev
from typing import Any, Literal

from superopt.cost.backend_capabilities import BACKENDS
from superopt.cost.cost_model import ProfileCostModel
from superopt.cost.device_profile import DeviceProfile, load_profile, profile_names, shipped_header
from superopt.cost.measurement_record import NOT_OPERATORS, MeasurementRecord, question_of
from superopt.cost.operator_timing import CpuOperatorTimer, OperatorTimer
from superopt.cost.roofline_ceilings import RooflineCeilings, ceilings_of, peaks_of_header
from superopt.ir.disk_cache import load_object, store_object
from superopt.ir.errors import SuperoptError
from superopt.ops.operator_definition import UnsupportedNodeForm
from superopt.runtime.paired_benchmark import IQR_OF_NORMAL, median_error
from superopt.runtime.protocol import Runtime

__all__ = [
    "ProfileCalibration",
    "calibrated",
    "calibrated_cpu",
    "cached_calibration",
    "calibration_of",
    "list_calibrations",
    "nearest_profile",
    "scaled",
]


@dataclass(frozen=True)
class ProfileCalibrationPolicy:
    """Which records are timed again, and how factors are rounded.

    Attributes:
        samples: records of each bound: a median of seven survives three that were disturbed.
        seconds: CPU seconds for all of them; they take two or three, unless the machine is several times slower.
        fewest: with fewer records of a bound, its factor cannot be distinguished from the others'.
        shortest_ns: the clock's noise exceeds shorter records: 0.6 µs in one session was 1.1 µs in another.
        longest_ns: longer records take too long to repeat.
        common_step: step of the common factor: times are reproducible to no better than that.
        own_step: step of a bound's own factor; half of it is 3. Neighbours on both cores move the ratio of two bounds
            by 1.4, and a Xeon beside the EPYC of the profile has 0.7 in arithmetic and 1.45 in memory: within half a
            step of 1, both get the same choices.
    """

    samples: int = 7
    seconds: float = 12.0
    fewest: int = 4
    shortest_ns: float = 2e3
    longest_ns: float = 2e6
    common_step: float = math.log(1.25)
    own_step: float = math.log(9.0)


CALIBRATION = ProfileCalibrationPolicy()
Bound = Literal["overhead", "arithmetic", "memory"]
_BOUNDS: tuple[Bound, ...] = ("overhead", "arithmetic", "memory")
_FOLDER, _MOST = "calibration", 16


@dataclass(frozen=True)
class ProfileCalibration:
    """The times of this machine as multiples of a profile's recorded times.

    Attributes:
        profile: name of the recorded profile.
        device: this machine, in words.
        factors: time here ÷ time recorded, by the bound of an operator; exactly 1 if the machines are
            indistinguishable.
        measured: the same before rounding to steps.
        sigma: relative standard deviation of single records about their bound's median.
        records: how many records were timed.
        seconds: duration of the calibration.
    """

    profile: str
    device: str
    factors: Mapping[str, float]
    measured: Mapping[str, float]
    sigma: float
    records: int
    seconds: float


def calibrated(name: str, profile: DeviceProfile, device: OperatorTimer) -> ProfileCalibration:
    """The calibration of this machine against a profile: cached, or measured now in about three seconds.

    Args:
        name: of the profile.
        profile: its records.
        device: this machine.
    """
    known = cached_calibration(name, profile.header, device)
    if known is not None:
        return known
    found = calibration_of(name, profile, device)
    store_object(_FOLDER, _cache_name(name, profile.header, device), asdict(found), _MOST)
    return found


def cached_calibration(name: str, header: Mapping[str, Any], device: OperatorTimer) -> ProfileCalibration | None:
    """The calibration that an earlier run stored for the profile with this header; ``None`` if there is none."""
    known = load_object(_FOLDER, _cache_name(name, header, device), ())
    return ProfileCalibration(**known) if isinstance(known, dict) else None


def _cache_name(name: str, header: Mapping[str, Any], device: OperatorTimer) -> str:
    inputs = [name, str(header.get("sha256")), device.name, asdict(CALIBRATION)]
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()


def calibration_of(name: str, profile: DeviceProfile, device: OperatorTimer) -> ProfileCalibration:
    """Time a few of a profile's records again; a bound without a timed record gets the median of the other factors."""
    start, spent = time.monotonic(), time.process_time()
    found: dict[str, list[float]] = {bound: [] for bound in _BOUNDS}
    waiting = {bound: _samples(profile, bound) for bound in _BOUNDS}
    for turn in range(CALIBRATION.samples):
        for bound in _BOUNDS:
            if turn < len(waiting[bound]) and (time.process_time() - spent < CALIBRATION.seconds or not found[bound]):
                record = waiting[bound][turn]
                try:
                    found[bound].append(device.time(question_of(record.key), cold=False).ns / record.ns)
                except (SuperoptError, UnsupportedNodeForm):
                    continue  # this runtime refuses what the profile's ran: the other samples tell
    known = {bound: median(ratios) for bound, ratios in found.items() if ratios}
    usual = median(known.values()) if known else 1.0
    measured = {bound: known.get(bound, usual) for bound in _BOUNDS}
    off = [math.log(r / known[b]) ** 2 for b, ratios in found.items() for r in ratios]
    common = (
        1.0
        if all(_indistinguishable(ratios) for ratios in found.values())
        else _rounded(usual, CALIBRATION.common_step)
    )
    own = {
        b: _rounded(f / usual, CALIBRATION.own_step) if len(found[b]) >= CALIBRATION.fewest else 1.0
        for b, f in measured.items()
    }
    return ProfileCalibration(
        name, device.name, {b: round(common * factor, 6) for b, factor in own.items()},
        {b: round(f, 4) for b, f in measured.items()}, round(math.sqrt(sum(off) / len(off)), 4) if off else 1.0,
        len(off), round(time.monotonic() - start, 2),
    )  # fmt: skip


def _indistinguishable(ratios: Sequence[float]) -> bool:
    """Whether the two machines are indistinguishable: the median's logarithm is within two of its standard errors."""
    logs = [math.log(r) for r in ratios]
    return bool(logs) and abs(median(logs)) < 2.0 * median_error(len(logs)) * IQR_OF_NORMAL * pstdev(logs)


def _rounded(factor: float, step: float) -> float:
    """The nearest power of ``exp(step)``: every factor within half a step of 1 becomes 1."""
    return math.exp(step * round(math.log(factor) / step))


def _samples(profile: DeviceProfile, bound: Bound) -> list[MeasurementRecord]:
    """The records of one bound that are timed again: first one of each operator, then others.

    They are ordered by a digest of their keys, so the selection is arbitrary and the same everywhere.
    """
    ceilings = ceilings_of(profile.header)
    fit = [
        r for r in profile.records.values()
        if r.key.op not in NOT_OPERATORS
        and CALIBRATION.shortest_ns <= r.ns <= CALIBRATION.longest_ns
        and _bound_of(r, ceilings) == bound
    ]  # fmt: skip
    fit.sort(key=lambda r: hashlib.sha256(r.key.text.encode()).digest())
    first: dict[str, MeasurementRecord] = {}
    for record in fit:
        first.setdefault(record.key.op, record)
    others = (r for r in fit if r is not first[r.key.op])
    return [*islice(chain(first.values(), others), CALIBRATION.samples)]


def _bound_of(record: MeasurementRecord, ceilings: RooflineCeilings) -> Bound:
    """The largest term of a record's roofline."""
    parts = {
        "overhead": ceilings.least_ns,
        "arithmetic": record.flops / ceilings.flops_per_ns,
        "memory": record.bytes / ceilings.cached_bytes_per_ns,
    }
    return max(_BOUNDS, key=lambda b: parts[b])


def scaled(profile: DeviceProfile, calibration: ProfileCalibration) -> DeviceProfile:
    """The profile as this machine would have recorded it; the profile itself where every factor is 1."""
    factors = calibration.factors
    if all(f == 1.0 for f in factors.values()):
        return profile
    ceilings = ceilings_of(profile.header)
    records = {text: _scaled(r, factors[_bound_of(r, ceilings)]) for text, r in profile.records.items()}
    header: dict[str, Any] = {**profile.header, "calibration": asdict(calibration), "device": calibration.device}
    if isinstance(dispatch := header.get("dispatch_ns"), int | float):
        header["dispatch_ns"] = dispatch * factors["overhead"]
    if peaks_of_header(profile.header) is not None:
        slower = {"flops_per_s": "arithmetic", "bytes_per_s": "memory", "cache_bytes_per_s": "memory"}
        header["peaks"] = {k: v / factors[slower[k]] if k in slower else v for k, v in header["peaks"].items()}
    return DeviceProfile(header, records)


def _scaled(record: MeasurementRecord, factor: float) -> MeasurementRecord:
    return replace(record, ns=record.ns * factor, ns_cold=record.ns_cold * factor)


def nearest_profile(
    device: CpuOperatorTimer, calibrate: bool = True
) -> tuple[str, DeviceProfile, ProfileCalibration | None] | None:
    """The shipped profile nearest to this machine, and its calibration; ``None`` if no profile is of a processor.

    A profile is nearer if it was recorded with the same runtime, then with as many threads, then on a machine and with
    a version of more similar names. The calibration measures the remaining difference.

    Args:
        device: this machine.
        calibrate: measure where no earlier run has; else there may be no calibration.
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
    measured = calibrated if calibrate else _cached
    return name, profile, measured(name, profile, device)


def _cached(name: str, profile: DeviceProfile, device: OperatorTimer) -> ProfileCalibration | None:
    return cached_calibration(name, profile.header, device)


def list_calibrations() -> dict[str, ProfileCalibration]:
    """The stored calibrations of this machine by shipped profile: one thread, ONNX Runtime. Nothing is measured."""
    device = CpuOperatorTimer()
    found = {name: cached_calibration(name, shipped_header(name), device) for name in profile_names()}
    return {name: calibration for name, calibration in found.items() if calibration is not None}


def calibrated_cpu(
    *, runtime: Runtime, threads: int, sizes: Mapping[str, int] | None, calibrate: bool = True
) -> ProfileCostModel | None:  # fmt: skip
    """The cost model of this machine: the nearest profile, scaled; ``None`` if no profile is of a processor.

    Args:
        runtime: what runs models.
        threads: inside an operator.
        sizes: what symbolic dimensions are costed at.
        calibrate: measure where no earlier run has; else the profile stands as it was recorded.
    """
    device = CpuOperatorTimer(threads, runtime)
    found = nearest_profile(device, calibrate)
    if found is None:
        return None
    _, profile, calibration = found
    return ProfileCostModel(profile if calibration is None else scaled(profile, calibration), sizes, device.backend)

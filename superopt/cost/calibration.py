"""This machine as a recorded profile knows another: the same prices, scaled by what a short calibration measures.

Prices are then a function of a profile and three factors, and the same on every run. A record is bound by what takes
most of its roofline (arithmetic or memory; Williams et al., 2009), or by what any operator costs. Each kind has its
factor: the median over a few of the profile's own records that are timed again. A factor is what all kinds have in
common, which no choice depends on, times what is the kind's own. Both go in steps, so that two calibrations of one
machine give the same prices, and a machine like the profile's gives the profile's own.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from statistics import median, pstdev
from typing import Any, Literal

from superopt.cost.device import Device
from superopt.cost.measurement_request import question_of
from superopt.cost.peaks import peaks_of_header
from superopt.cost.predictor import Ceilings, ceilings_of
from superopt.cost.profile import Profile
from superopt.cost.record import APART, Record
from superopt.ir.disk_cache import keep, kept
from superopt.ir.errors import SuperoptError
from superopt.ops.record import NotCovered
from superopt.runtime.paired_benchmark import IQR_OF_NORMAL, median_error

__all__ = [
    "Calibration",
    "calibrated",
    "calibration_at_hand",
    "calibration_of",
    "scaled",
]

Bound = Literal["overhead", "arithmetic", "memory"]
_BOUNDS: tuple[Bound, ...] = ("overhead", "arithmetic", "memory")
_SAMPLES = 7  # records of each kind that are timed again: a median of seven survives three that were disturbed
# For all of them, of this process' time. They take two or three: the limit is for a machine that is several times
# slower than any profile's, and not for one that is busy.
_SECONDS = 12.0
_FEWEST = 4  # records of a kind: with fewer, its factor is not told from that of the others
# Timed again is what takes longer than the noise of the clock, and is short enough to repeat. A shorter kernel takes
# 0.6 µs in one session and 1.1 in another.
_SHORT_NS, _LONG_NS = 2e3, 2e6
_STEP = math.log(1.25)  # of what all kinds have in common: times are told to no better than that
# Of what is a kind's own: half of a step is 1.41, and a neighbour moves a kind's median by a tenth. Processors of one
# architecture are within half of a step of each other in most kinds, so that they get the same prices.
_OWN_STEP = math.log(2.0)
_FOLDER, _MOST = "calibration", 16


@dataclass(frozen=True)
class Calibration:
    """What a machine takes of the time that a profile recorded.

    Attributes:
        profile: name of the recorded profile.
        device: this machine, in words.
        factors: time here ÷ time recorded, by what bounds an operator; exactly 1 where the two cannot be told apart.
        measured: the same before it was put into steps.
        sigma: relative standard deviation of single records about their kind's median.
        records: how many were timed.
        seconds: that it took.
    """

    profile: str
    device: str
    factors: Mapping[str, float]
    measured: Mapping[str, float]
    sigma: float
    records: int
    seconds: float


def calibrated(name: str, profile: Profile, device: Device) -> Calibration:
    """This machine against a profile: what an earlier run found, or measured now, in about three seconds.

    Args:
        name: of the profile.
        profile: its records.
        device: this machine.
    """
    known = calibration_at_hand(name, profile.header, device)
    if known is not None:
        return known
    found = calibration_of(name, profile, device)
    keep(_FOLDER, _place(name, profile.header, device), asdict(found), _MOST)
    return found


def calibration_at_hand(name: str, header: Mapping[str, Any], device: Device) -> Calibration | None:
    """What an earlier run found of this machine against the profile of this header; ``None`` if there was none."""
    known = kept(_FOLDER, _place(name, header, device), ())
    return Calibration(**known) if isinstance(known, dict) else None


def _place(name: str, header: Mapping[str, Any], device: Device) -> str:
    asked = [name, str(header.get("sha256")), device.name, __doc__, _SAMPLES, _STEP, _OWN_STEP]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()


def calibration_of(name: str, profile: Profile, device: Device) -> Calibration:
    """Time a few of a profile's records again; a kind of which none can be timed takes the factor of the others."""
    start, spent = time.monotonic(), time.process_time()
    found: dict[str, list[float]] = {bound: [] for bound in _BOUNDS}
    waiting = {bound: _chosen(profile, bound) for bound in _BOUNDS}
    for turn in range(_SAMPLES):
        for bound in _BOUNDS:
            if turn < len(waiting[bound]) and (time.process_time() - spent < _SECONDS or not found[bound]):
                record = waiting[bound][turn]
                try:
                    found[bound].append(device.time(question_of(record.key), cold=False).ns / record.ns)
                except (SuperoptError, NotCovered):
                    continue  # this runtime refuses what the profile's ran: the other samples tell
    known = {bound: median(ratios) for bound, ratios in found.items() if ratios}
    usual = median(known.values()) if known else 1.0
    measured = {bound: known.get(bound, usual) for bound in _BOUNDS}
    off = [math.log(r / known[b]) ** 2 for b, ratios in found.items() for r in ratios]
    common = 1.0 if all(_alike(ratios) for ratios in found.values()) else _stepped(usual, _STEP)
    own = {b: _stepped(f / usual, _OWN_STEP) if len(found[b]) >= _FEWEST else 1.0 for b, f in measured.items()}
    return Calibration(
        name, device.name, {b: round(common * factor, 6) for b, factor in own.items()},
        {b: round(f, 4) for b, f in measured.items()}, round(math.sqrt(sum(off) / len(off)), 4) if off else 1.0,
        len(off), round(time.monotonic() - start, 2),
    )  # fmt: skip


def _alike(ratios: Sequence[float]) -> bool:
    """Whether the two machines cannot be told apart: the median's logarithm is within two of its standard errors."""
    logs = [math.log(r) for r in ratios]
    return bool(logs) and abs(median(logs)) < 2.0 * median_error(len(logs)) * IQR_OF_NORMAL * pstdev(logs)


def _stepped(factor: float, step: float) -> float:
    """The nearest power of ``exp(step)``: all that are within half a step of 1 are 1."""
    return math.exp(step * round(math.log(factor) / step))


def _chosen(profile: Profile, bound: Bound) -> list[Record]:
    """Records of a kind that are timed again, of as many operators as there are, the longest-known first.

    The order is that of a digest of their keys: no choice of ours, and the same everywhere.
    """
    ceilings = ceilings_of(profile.header)
    fit = [
        r for r in profile.records.values()
        if r.key.op not in APART and _SHORT_NS <= r.ns <= _LONG_NS and _bound_of(r, ceilings) == bound
    ]  # fmt: skip
    fit.sort(key=lambda r: hashlib.sha256(r.key.text.encode()).digest())
    first: dict[str, Record] = {}
    for record in fit:
        first.setdefault(record.key.op, record)
    others = (r for r in fit if r is not first[r.key.op])
    return [*islice(chain(first.values(), others), _SAMPLES)]


def _bound_of(record: Record, ceilings: Ceilings) -> Bound:
    """What takes most of a record's roofline."""
    parts = {
        "overhead": ceilings.least_ns,
        "arithmetic": record.flops / ceilings.flops_per_ns,
        "memory": record.bytes / ceilings.cached_bytes_per_ns,
    }
    return max(_BOUNDS, key=lambda b: parts[b])


def scaled(profile: Profile, calibration: Calibration) -> Profile:
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
    return Profile(header, records)


def _scaled(record: Record, factor: float) -> Record:
    return replace(record, ns=record.ns * factor, ns_cold=record.ns_cold * factor)

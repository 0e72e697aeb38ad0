"""Records a profile: times questions in blocks between sentinels, stores each result, writes one file.

*Planning.* The search asks a :class:`MissingMeasurementCollector` as it asks a model that measures. What the records
lack is predicted, and noted once an extraction asks for it. So the plan holds what decides, not every e-node.

*Drift.* The device's sentinels are timed before and after every block. A reading deviates if it is outside its
sentinel's usual scatter (Tukey's fences: 1.5 interquartile ranges beyond the quartiles) and more than 3 % off the
median. Then the block is timed once more, and the smaller of both times counts (noise only adds). A fixed 3 % alone
would reject nearly every block: what passes through a cache that other machines of the host share varies by a third
without drifting. The header counts what still deviates. Where most repetitions do, blocks are timed once only.

An interrupted recording continues from its ``.partial`` file if the device is the same.
"""

from __future__ import annotations

import hashlib
import json
import random
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from superopt.cost.backend_capabilities import BackendCapabilities
from superopt.cost.cost_model import ProfileCostModel
from superopt.cost.device_profile import DeviceProfile, DeviceProfileStore, write_profile
from superopt.cost.measured_cost_models import Progress
from superopt.cost.measurement_record import CostEstimate, MeasurementKey, MeasurementRecord, MeasurementRequest
from superopt.cost.operator_timing import METHOD, OperatorTimer
from superopt.ir.errors import SuperoptError, UsageError
from superopt.ops.operator_definition import UnsupportedNodeForm

__all__ = ["MissingMeasurementCollector", "ProfileRecorder"]


@dataclass(frozen=True)
class MeasurementDriftPolicy:
    """When a block of measurements is timed again.

    Attributes:
        block: questions between two readings of the sentinels.
        deviation: a relative deviation up to this is no drift.
        fence: interquartile ranges beyond the quartiles (Tukey).
        first_readings: readings before the first block, which establish the usual scatter.
        repetitions: repeated blocks before it is judged whether repetition helps.
    """

    block: int = 25
    deviation: float = 0.03
    fence: float = 1.5
    first_readings: int = 8
    repetitions: int = 4


DRIFT = MeasurementDriftPolicy()


class MissingMeasurementCollector(ProfileCostModel):
    """A recorded profile that notes in ``missing``, by key, each question that it cannot answer.

    Args:
        records: what is known already.
        header: of the profile that is being recorded.
        backend: what runs the operators.
        sizes: what symbolic dimensions are costed at.
    """

    def __init__(
        self,
        records: Iterable[MeasurementRecord],
        header: Mapping[str, Any],
        backend: BackendCapabilities,
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        known = {r.key.text: r for r in records}
        super().__init__(DeviceProfile({**header, "backend": backend.name}, known), sizes)
        self.questions: dict[tuple[object, ...], MeasurementRequest] = {}
        self.missing: dict[tuple[object, ...], MeasurementRequest] = {}

    def _has_record(self, key: MeasurementKey) -> bool:
        return self.record_of(key) is not None

    def _lookup(self, question: MeasurementRequest) -> CostEstimate:
        place = question.key.question
        self.questions.setdefault(place, question)
        if self.record_of(question.key) is None:
            self.missing.setdefault(place, question)
        return super()._lookup(question)


_ALIKE = ("backend", "clock", "layout", "method", "precision", "threads")  # of all records of one profile
_SENTINEL, _NOTE = "sentinel", "note"  # lines of the partial file that are no measurements


@dataclass
class _Drift:
    """The readings of the sentinels."""

    readings: dict[str, list[float]] = field(default_factory=dict)
    blocks: int = 0
    repeated: int = 0
    drifted: int = 0

    def medians(self) -> dict[str, float]:
        return {name: statistics.median(taken) for name, taken in self.readings.items()}

    @property
    def repetition_fails(self) -> bool:
        """Whether repeating blocks mostly did not help: the machine is always in use by others."""
        return self.repeated >= DRIFT.repetitions and 2 * self.drifted > self.repeated

    def deviates(self, *looks: Mapping[str, float]) -> bool:
        """Whether a reading is beyond its sentinel's usual scatter."""
        fences = {name: _fences(taken) for name, taken in self.readings.items()}
        return any(not fences[name][0] <= ns <= fences[name][1] for look in looks for name, ns in look.items())


def _fences(readings: Sequence[float]) -> tuple[float, float]:
    """The least and the largest usual reading."""
    low, middle, high = _quartiles(readings)
    room = DRIFT.fence * (high - low)
    return min(low - room, middle * (1 - DRIFT.deviation)), max(high + room, middle * (1 + DRIFT.deviation))


class ProfileRecorder:
    """One recording in progress.

    Args:
        device: what is timed.
        out: the profile to be written.
        deadline: ``time.monotonic()`` from which nothing is timed any more.
        progress: called with (questions answered, questions, what).
        onto: a profile that is extended: its records are taken over without being timed again, and its ceilings and
            whatever else its header says stay as they are, since its records belong to them.

    Raises:
        UsageError: the profile that is to be extended was recorded in another way.
    """

    def __init__(
        self,
        device: OperatorTimer,
        out: Path,
        deadline: float,
        progress: Progress | None = None,
        onto: DeviceProfile | None = None,
    ) -> None:
        self.device, self.out, self.deadline, self._progress = device, out, deadline, progress
        self.facts = device.facts()
        self._onto = None if onto is None else onto.header
        if self._onto is not None:
            _refuse_unlike(self._onto, {**self.facts, "method": METHOD}, out)
        who = json.dumps([METHOD, *(self.facts.get(k) for k in ("device", "cores", "threads", "clock", "runtime"))])
        name = f"{out.name}.{hashlib.sha256(who.encode()).hexdigest()[:8]}.partial"
        self.store = DeviceProfileStore(name, self.facts, out.parent)
        for record in () if onto is None else onto.records.values():
            if self.store.get(record.key.text) is None:
                self.store.add(record)
        self.measured = 0
        self.refused: set[str] = set()  # by the device, which cannot run it
        self.not_timeable: set[str] = set()  # what cannot be timed alone (too large, say): it is predicted
        self._drift = _Drift()
        for record in self.store.records:
            if record.key.op == _SENTINEL:
                self._drift.readings.setdefault(record.key.attrs, []).append(record.ns)

    @property
    def records(self) -> tuple[MeasurementRecord, ...]:
        """Everything recorded so far."""
        return tuple(r for r in self.store.records if r.key.op not in (_SENTINEL, _NOTE))

    @property
    def untimed(self) -> set[str]:
        """Keys that need not be tried again."""
        return self.refused | self.not_timeable

    def costs(self, sizes: Mapping[str, int] | None = None) -> MissingMeasurementCollector:
        """A cost model from what is recorded so far, which notes what it lacks."""
        return MissingMeasurementCollector(self.records, self.facts, self.device.backend, sizes)

    def note(self, what: str, value: float) -> None:
        """Store a figure for later calls, beside the measurements."""
        self.store.add(MeasurementRecord(MeasurementKey(_NOTE, what, "", ()), value, value))

    def noted(self, what: str) -> float | None:
        """The figure that :meth:`note` stored, in this call or an earlier one."""
        found = self.store.get(MeasurementKey(_NOTE, what, "", ()).text)
        return None if found is None else found.ns

    def over(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() >= self.deadline

    def measure(self, questions: Iterable[MeasurementRequest]) -> int:
        """Time the questions without a record until the time is over; returns how many were timed."""
        keys = {self.device.key(q).text: q for q in questions}
        left = [(k, q) for k, q in sorted(keys.items()) if self.store.get(k) is None and k not in self.untimed]
        random.Random(0).shuffle(left)  # so that drift is not a family's
        done = 0
        for start in range(0, len(left), DRIFT.block):
            if self.over():
                break
            if self._progress is not None:
                self._progress(start, len(left), "measuring")
            done += self._block([q for _, q in left[start : start + DRIFT.block]])
        self.measured += done
        return done

    def _block(self, questions: Sequence[MeasurementRequest]) -> int:
        while (
            any(len(taken) < DRIFT.first_readings for taken in self._drift.readings.values())
            or not self._drift.readings
        ):
            self._read_sentinels()
        before = self._read_sentinels()
        found = self._time(questions)
        self._drift.blocks += 1
        off = self._drift.deviates(before, self._read_sentinels())
        if off and (self._drift.repetition_fails or self.over()):
            self._drift.drifted += 1
        elif off:
            self._drift.repeated += 1
            again = self._time(questions)
            self._drift.drifted += self._drift.deviates(self._read_sentinels())
            found = {k: _fastest(r, again.get(k, r)) for k, r in found.items()}
        for record in found.values():
            self.store.add(record)
        return len(found)

    def _read_sentinels(self) -> Mapping[str, float]:
        look = self.device.sentinels()
        for name, ns in look.items():
            self._drift.readings.setdefault(name, []).append(ns)
        return look

    def _time(self, questions: Sequence[MeasurementRequest]) -> dict[str, MeasurementRecord]:
        found = {}
        self.device.prepare(questions)
        for question in questions:
            key = self.device.key(question)
            try:
                found[key.text] = self.device.time(question).record(key, *question.work)
            except UnsupportedNodeForm:
                self.not_timeable.add(key.text)
            except SuperoptError:
                self.refused.add(key.text)
        return found

    def write(self, facts: Mapping[str, Any]) -> DeviceProfile:
        """Write the profile with what else its header should say. The partial file stays until :meth:`finish`.

        Raises:
            OSError: it cannot be written.
        """
        for name, ns in self._drift.medians().items():  # so that a later call compares with this one
            self.store.add(MeasurementRecord(MeasurementKey(_SENTINEL, name, "", ()), ns, ns))
        header = {
            **self.facts, "method": METHOD, **facts, "refused": sorted(self.refused),
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "sentinels": self._sentinels(),
        }  # fmt: skip
        if self._onto is not None:
            header = self._extended(self._onto, header)
        write_profile(self.out, header, self.records)
        return DeviceProfile(header, {r.key.text: r for r in self.records})

    def _extended(self, onto: Mapping[str, Any], header: Mapping[str, Any]) -> dict[str, Any]:
        """The header of a profile that was extended, with what was added to it, and how."""
        added = list(onto.get("added", ()))
        if self.measured:
            now = {k: header[k] for k in ("device", "runtime", "date", "sentinels", "plan") if k in header}
            added.append({**now, "records": self.measured})
        refused = sorted({*onto.get("refused", ()), *self.refused})
        return {**onto, "refused": refused, **({"added": added} if added else {})}

    def _sentinels(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            name: {"ns": round(ns), "spread": round(_spread(self._drift.readings[name]), 4)}
            for name, ns in self._drift.medians().items()
        }
        drift = self._drift
        return {**found, "blocks": drift.blocks, "repeated": drift.repeated, "drifted": drift.drifted}

    def finish(self) -> None:
        """Remove the partial file: the recording is complete."""
        self.store.path.unlink(missing_ok=True)


def _refuse_unlike(onto: Mapping[str, Any], facts: Mapping[str, Any], out: Path) -> None:
    for name in _ALIKE:
        if name in onto and name in facts and onto[name] != facts[name]:
            raise UsageError(
                f"its records have {name} {onto[name]}, and what is to be added would have {facts[name]}",
                where=str(out), hint="record a profile of its own: --out FILE",
            )  # fmt: skip


def _fastest(a: MeasurementRecord, b: MeasurementRecord) -> MeasurementRecord:
    return min(a, b, key=lambda r: r.ns_cold)


def _spread(readings: Sequence[float]) -> float:
    low, middle, high = _quartiles(readings)
    return (high - low) / middle


def _quartiles(readings: Sequence[float]) -> tuple[float, float, float]:
    table = sorted(readings)
    return table[len(table) // 4], statistics.median(table), table[(3 * len(table)) // 4]

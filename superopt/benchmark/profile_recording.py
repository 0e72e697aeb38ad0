"""Recording a profile for a set of models: what the optimiser asks for is found out, timed, and asked for again.

Timing wants a quiet machine and takes one core; planning (searching without measuring) may use them all. They take
turns: first what earlier recordings hold, then slices of planning and timing, until the search of every model asks for
nothing that is not measured, or the time is up.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from superopt import cost as costs
from superopt.cost.measurement_record import MeasurementRecord, MeasurementRequest, question_of
from superopt.cost.operator_timing import OperatorTimer
from superopt.cost.profile_recorder import MissingMeasurementCollector, ProfileRecorder
from superopt.fleet import WorkerPool, WorkerTask
from superopt.ir.errors import SuperoptError, UsageError
from superopt.ir.graph import Graph, structural_hash
from superopt.ops.operator_definition import UnsupportedNodeForm
from superopt.passes import SearchOptions, search
from superopt.passes.fast_algorithms.selection import decisive
from superopt.passes.fast_algorithms.sites import possible
from superopt.pipeline.optimization import load
from superopt.pipeline.options import Progress, quiet
from superopt.rules import load_library

__all__ = ["ProfileCoverage", "ProfileRecordingSummary", "asked_by", "coverage", "profile"]

_PLANS = 4  # searches of one model, at most: each measures what the last one wanted
_SLICE = 90.0  # seconds of planning after which what is wanted so far is timed
_PLANNING = 0.7  # share of the time left that a slice of planning may take; the rest is for timing what it wants
_PATIENCE = 60.0  # seconds of one model's search
_PROFILES = (".jsonl.gz",)


@dataclass(frozen=True)
class ProfileRecordingSummary:
    """What a recording did.

    Attributes:
        records: in the profile now.
        measured: timed in this call.
        asked: distinct questions that the models searched in this call, and their optimisation, asked.
        answered: of those, how many are measured.
        planned, settled, models: models that were searched, in this call or an earlier one it goes on from; those
            whose last search asked for nothing that can be measured and is not; and all.
        rounds: turns of planning and timing.
        complete: all models were searched, and time was not up.
    """

    records: int
    measured: int
    asked: int
    answered: int
    planned: int
    settled: int
    models: int
    rounds: int
    complete: bool
    seconds: float
    header: Mapping[str, Any]

    def summary(self) -> dict[str, Any]:
        """The figures as JSON data, without the header."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "header"}


@dataclass(frozen=True)
class ProfileCoverage:
    """How much of what optimising a model asks for a profile holds as measured; the rest it predicts.

    Attributes:
        asked: distinct applications that the search settled on or weighed, and those of the model and its result.
        answered: of those, how many are measured.
        before_us, after_us: modelled cost of the model and of what the search makes of it.
        before_measured, after_measured: share of those costs that is measured.
    """

    name: str
    asked: int
    answered: int
    before_us: float
    after_us: float
    before_measured: float
    after_measured: float


def coverage(
    models: Sequence[str | Path | Graph],
    profile: str,
    *,
    sizes: Mapping[str, int] | None = None,
    progress: Progress = quiet,
) -> tuple[ProfileCoverage, ...]:
    """Optimise models for a recorded profile without measuring anything: what does it know, and what does it guess?

    Args:
        models: models.
        profile: its name, or its file.
        sizes: what symbolic dimensions are costed at.
        progress: called with (done, total, what).

    Raises:
        UsageError: there is no such profile. InvalidModel: it, or a model, is damaged.
    """
    known = costs.load_profile(profile)
    backend = str(known.header.get("backend", costs.ONNX_RUNTIME_CPU.name))
    state: _State = (tuple(known.records.values()), known.header, backend, None, dict(sizes or {}))
    rows = []
    for position, model in enumerate(models):
        name = model.name if isinstance(model, Graph) else str(model)
        progress(position, len(models), name)
        plan = _planning(state)
        before, after = _plans(load(model), plan, None, sizes or {}, _PATIENCE)
        rows.append(
            ProfileCoverage(
                name, len(plan.questions), len(plan.questions) - len(plan.missing), before.us, after.us,
                before.measured_share, after.measured_share,
            )
        )  # fmt: skip
    return tuple(rows)


def asked_by(model: str | Path | Graph, known: costs.DeviceProfile) -> list[MeasurementRequest]:
    """What optimising a model asks of a device, and what is known of it does not hold.

    Args:
        model: it.
        known: a profile, which may have no records: its header names the ``backend``, and holds ``peaks``.
    """
    state: _State = (tuple(known.records.values()), known.header, str(known.header["backend"]), None, {})
    return _search(model, state, _PATIENCE)[1]


def profile(
    models: Sequence[str | Path | Graph],
    out: Path,
    *,
    target: str = "cpu",
    runtime: str = "onnxruntime",
    threads: int = 1,
    time_limit: float = 1500.0,
    fleet: WorkerPool | None = None,
    extend: bool = False,
    rules: Path | None = None,
    sizes: Mapping[str, int] | None = None,
    progress: Progress = quiet,
) -> ProfileRecordingSummary:
    """Measure what the optimiser asks for on these models, and write the recorded profile.

    Args:
        models: models, and recorded profiles (``.jsonl.gz``), whose questions are measured again.
        out: the profile; if there is one already, its questions are measured again. What an interrupted call measured
            is in a file beside it, and is kept.
        target: the device, "cpu" or "cuda".
        runtime: what runs operators on the processor.
        threads: threads inside an operator.
        time_limit: seconds for all; the profile then holds what was measured, and another call goes on.
        fleet: what plans; timing is always done in this process, alone.
        extend: keep what the profile holds already, its header included, and add to it.
        rules: folder of a rule library used besides the built-in one.
        sizes: what symbolic dimensions are costed at.
        progress: called with (done, total, what).

    Raises:
        BackendUnavailable: the target's device is not here. UsageError: it is no device, or a name is no file.
        InvalidModel: a file is neither. OSError: the profile cannot be written.
    """
    device = costs.device_of(target, threads, runtime)
    return _Recording(device, models, out, time_limit, fleet or WorkerPool(), extend, rules, sizes, progress).run()


class _Recording:
    """One call: plans and measures in turns."""

    def __init__(
        self,
        device: OperatorTimer,
        models: Sequence[str | Path | Graph],
        out: Path,
        time_limit: float,
        fleet: WorkerPool,
        extend: bool,
        rules: Path | None,
        sizes: Mapping[str, int] | None,
        progress: Progress,
    ) -> None:
        self.start = time.monotonic()
        self.fleet, self.rules, self.sizes, self.progress = fleet, rules, dict(sizes or {}), progress
        given = [m for m in models if not isinstance(m, Graph) and str(m).endswith(_PROFILES)]
        self.models = [m for m in models if isinstance(m, Graph) or not str(m).endswith(_PROFILES)]
        earlier = [costs.read_profile(Path(p)) for p in given]
        old = costs.read_profile(out) if out.exists() else None
        if old is not None and not extend:
            earlier.append(old)
        if not self.models and not given:
            raise UsageError("nothing to measure", hint="name models: superopt profile --plan model.onnx")
        self.again = [q for p in earlier for r in p.records.values() if (q := _question(r)) is not None]
        self.recorder = ProfileRecorder(device, out, self.start + time_limit, progress, old if extend else None)
        self.asked: dict[tuple[object, ...], MeasurementRequest] = {}
        self.rounds = 0
        names = "\n".join(sorted(r.id for r in load_library(rules).admitted))
        self.library = hashlib.sha256(names.encode()).hexdigest()[:12]

    def run(self) -> ProfileRecordingSummary:
        try:
            self.recorder.measure(self.again)
            while not self.recorder.over() and (todo := self._unsettled()):
                self.rounds += 1
                self.recorder.measure(self._plan(todo))
        except KeyboardInterrupt:
            pass  # what was measured is written below, as when time is up
        return self._finish()

    def _unsettled(self) -> list[str | Path | Graph]:
        """Models whose last search asked for something that was not measured then, those never searched first."""
        plans = [(self.recorder.noted(self._name(m) + " plans") or 0.0, i, m) for i, m in enumerate(self.models)]
        left = [p for p in plans if self.recorder.noted(self._name(p[2])) != 0.0 and p[0] < _PLANS]
        return [m for _, _, m in sorted(left, key=lambda p: p[:2])]

    def _name(self, model: str | Path | Graph) -> str:
        name = structural_hash(model) if isinstance(model, Graph) else str(Path(model).resolve())
        return f"{name} by {self.library}"

    def _plan(self, models: Sequence[str | Path | Graph]) -> list[MeasurementRequest]:
        """What searching models asks for now and has no answer to."""
        wanted: dict[tuple[object, ...], MeasurementRequest] = {}
        now = time.monotonic()
        deadline = now + min(_SLICE, _PLANNING * max(0.0, self.recorder.deadline - now))
        state = (self.recorder.records, self.recorder.facts, self.recorder.device.backend.name, self.rules, self.sizes)
        for position, (model, (asked, missing)) in enumerate(self._searches(models, state, deadline)):
            possible = [q for q in missing if self.recorder.device.key(q).text not in self.recorder.untimed]
            self.asked.update((q.key.question, q) for q in asked)
            wanted.update((q.key.question, q) for q in possible)
            name = self._name(model)
            self.recorder.note(name, len(possible))
            self.recorder.note(name + " plans", (self.recorder.noted(name + " plans") or 0) + 1)
            self.progress(position + 1, len(models), f"planning: {len(wanted)} to measure")
        return list(wanted.values())

    def _searches(
        self, models: Sequence[str | Path | Graph], state: _State, deadline: float
    ) -> Iterator[tuple[str | Path | Graph, _Answer]]:
        """The models' searches; those that have not begun at the deadline are left."""
        tasks = (
            WorkerTask(_search, (model, state, self.recorder.deadline - time.monotonic()), self._name(model))
            for model in models
        )
        for outcome in self.fleet.each(tasks, until=deadline):
            yield outcome.task.arguments[0], outcome.result()

    def _finish(self) -> ProfileRecordingSummary:
        recorder = self.recorder
        settled = sum(recorder.noted(self._name(m)) == 0.0 for m in self.models)
        planned = sum(recorder.noted(self._name(m)) is not None for m in self.models)
        complete = planned == len(self.models) and not recorder.over()
        keys = [recorder.device.key(q).text for q in self.asked.values()]
        answered = sum(recorder.store.get(k) is not None for k in keys)
        made = {
            "models": len(self.models), "planned": planned, "settled": settled, "asked": len(keys),
            "answered": answered, "complete": complete,
        }  # fmt: skip
        found = recorder.write({"plan": made})
        if complete:
            recorder.finish()
        return ProfileRecordingSummary(
            len(found.records), recorder.measured, len(keys), answered, planned, settled, len(self.models), self.rounds,
            complete, time.monotonic() - self.start, found.header,
        )  # fmt: skip


def _question(record: MeasurementRecord) -> MeasurementRequest | None:
    try:
        return question_of(record.key)
    except UnsupportedNodeForm:  # recorded by another version, which had this operator
        return None


_State = tuple[Sequence[MeasurementRecord], Mapping[str, Any], str, Path | None, Mapping[str, int]]
_Answer = tuple[list[MeasurementRequest], list[MeasurementRequest]]


def _search(source: str | Path | Graph, state: _State, seconds: float) -> _Answer:
    """What searching a model asks for: everything, and what the cost model could not answer."""
    model = _planning(state)
    _plans(load(source), model, state[3], state[4], seconds)
    return list(model.questions.values()), list(model.missing.values())


def _planning(state: _State) -> MissingMeasurementCollector:
    records, facts, backend, _, sizes = state
    return MissingMeasurementCollector(records, facts, costs.BACKENDS[backend], sizes)


def _plans(
    graph: Graph, model: MissingMeasurementCollector, rules: Path | None, sizes: Mapping[str, int], seconds: float
) -> tuple[costs.GraphCost, costs.GraphCost]:
    """Costs of a graph and of what the search makes of it; ``model`` notes what it was asked, the forms with fewer
    multiplications included that an optimisation tries last."""
    before = costs.graph_cost(graph, model, sizes=sizes)
    library = load_library(rules)
    limits = SearchOptions(
        time_limit=max(0.1, min(_PATIENCE, seconds)), sizes=sizes, cache=False, floats=library.floats()
    )
    try:
        found = search(graph, library.admitted, model, limits)
        if model.backend.processor and possible(found.graph):
            unnoted = costs.ProfileCostModel(model.profile, sizes)  # what does not decide is not asked
            for form in decisive(found.graph, unnoted, sizes=sizes):
                costs.graph_cost(form, model, sizes=sizes)
        return before, costs.graph_cost(found.graph, model, sizes=sizes)
    except SuperoptError:  # what was asked until then stands; the model cannot be optimised
        return before, before

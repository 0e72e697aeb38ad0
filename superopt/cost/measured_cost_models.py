"""Cost models that measure an operator application on a device when it is first asked for.

:class:`MeasurementCache` holds what was measured: a store on disk, a limit on the time spent, a predictor for the rest.
All copies of a model share it, so that they spend one budget, remember what failed, and fit one predictor.
:class:`MeasuredCpuCostModel` times with a runtime on this machine's processor, :class:`MeasuredDeviceCostModel` on any
:class:`superopt.cost.operator_timing.OperatorTimer`.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Protocol

from superopt.cost.backend_capabilities import BackendCapabilities, cpu_backend
from superopt.cost.cache_model import CacheMissCurve, default_miss_curve, fit_miss_curve, last_level_bytes, probe_sizes
from superopt.cost.cost_model import CostModel, DeviceGraphTimer, refusal_cost
from superopt.cost.device_profile import DeviceProfileStore
from superopt.cost.graph_costs import StandaloneKernel
from superopt.cost.measurement_record import CostEstimate, MeasurementKey, MeasurementRecord, MeasurementRequest
from superopt.cost.operator_time_predictor import OperatorTimePredictor
from superopt.cost.operator_timing import (
    METHOD,
    CpuGraphTimer,
    OperatorTimer,
    OperatorTiming,
    application_graph,
    measure_graph,
    time_weight_pass,
)
from superopt.cost.roofline_ceilings import (
    PEAK_QUESTIONS,
    DevicePeakPerformance,
    RooflineCeilings,
    ceilings_of,
    peaks_of_header,
    peaks_of_times,
)
from superopt.ir.errors import SuperoptError
from superopt.ops.operator_definition import UnsupportedNodeForm
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.runtime.paired_benchmark import Clock, circumstances, cpu_name
from superopt.runtime.protocol import Runtime

__all__ = [
    "MeasuredCpuCostModel", "MeasuredDeviceCostModel", "MeasurementCache", "MeasuringCostModel",
    "ChildProcessMeasurements", "Progress", "device_store",
]  # fmt: skip

Progress = Callable[[int, int | None, str], None]
_REFIT = 1.25  # growth of the store after which the predictor is fitted again: the first records say the most


@dataclass(frozen=True)
class ChildProcessMeasurements:
    """The measurements of one child process: records, how many measurements they took, and how many seconds."""

    records: tuple[MeasurementRecord, ...]
    measured: int
    seconds: float
    failed: AbstractSet[str]
    not_timeable: AbstractSet[str]


class MeasurementCache:
    """Records by key, measured when first asked for.

    Args:
        store: where records are kept.
        ceilings: the device's, for predictions; by default the usual ones.
        time_limit: seconds that may be spent measuring; what comes later is not measured.
        progress: called with (measured so far, None, what) before each measurement.

    Attributes:
        measured: how many measurements were made (what the store held already is not counted).
    """

    def __init__(
        self,
        store: DeviceProfileStore,
        *,
        ceilings: RooflineCeilings | None = None,
        time_limit: float = float("inf"),
        progress: Progress | None = None,
    ) -> None:
        self.store = store
        self.measured = 0
        self._ceilings, self._progress, self._limit = ceilings, progress, time_limit
        self._seconds = 0.0  # that measuring took
        self._failed: set[str] = set()
        self._not_timeable: set[str] = set()  # what cannot be timed by itself
        self._fitted: tuple[int, OperatorTimePredictor] | None = None
        self._begun = (0, 0, 0.0)  # records, measurements and seconds when this process began

    def get(
        self, key: MeasurementKey, time_it: Callable[[], OperatorTiming], work: tuple[int, int]
    ) -> MeasurementRecord | None:
        """The record of a key, measured now if need be; ``None`` when it cannot be measured or time is up.

        Args:
            key: what it is filed under.
            time_it: measures it; a ``SuperoptError`` says that the device refuses it, ``UnsupportedNodeForm`` only that
                it cannot be timed by itself.
            work: FLOPs and bytes, for the record.
        """
        known = self.store.get(key.text)
        if known is not None or self.out_of_time or key.text in self._failed or key.text in self._not_timeable:
            return known
        if self._progress is not None:
            self._progress(self.measured, None, f"measuring {key.op}")
        start = time.monotonic()
        try:
            record = time_it().record(key, *work)
        except UnsupportedNodeForm:
            self._not_timeable.add(key.text)
            return None
        except SuperoptError:
            self._failed.add(key.text)
            return None
        finally:
            self._seconds += time.monotonic() - start
            self.measured += 1
        self.store.add(record)
        return record

    @property
    def out_of_time(self) -> bool:
        """Whether the time for measuring is over: from here on the clock decides what is predicted."""
        return self._seconds >= self._limit

    @property
    def digest(self) -> str:
        """An identity of the store: its name and its first record, since records are added and never changed."""
        first = next(iter(self.store.records), None)
        start = "" if first is None else json.dumps(first.as_data(), sort_keys=True)
        return f"measured {self.store.path.name} {start}{' late' * self.out_of_time}"

    def report_to(self, progress: Progress) -> None:
        """Call this before each measurement from here on."""
        self._progress = progress

    def start_counting(self) -> None:
        """Begin to count new measurements: this process is a copy of another, which has all measurements so far."""
        self._begun = (len(self.store), self.measured, self._seconds)

    def new(self) -> ChildProcessMeasurements:
        """The measurements since :meth:`start_counting`."""
        records, measured, seconds = self._begun
        return ChildProcessMeasurements(
            self.store.records[records:],
            self.measured - measured,
            self._seconds - seconds,
            self._failed,
            self._not_timeable,
        )

    def merge(self, new: ChildProcessMeasurements) -> None:
        """Add the measurements of a copy of this process; the store's file has them already."""
        self.store.know(new.records)
        self.measured += new.measured
        self._seconds += new.seconds
        self._failed |= new.failed
        self._not_timeable |= new.not_timeable

    def failed(self, key: MeasurementKey) -> bool:
        """Whether the device refused the key's application."""
        return key.text in self._failed

    def price(
        self,
        model: MeasurementPricer,
        question: MeasurementRequest,
        key: MeasurementKey,
        time_it: Callable[[MeasurementRequest], OperatorTiming],
    ) -> CostEstimate:
        """The price of a question: from its record, measured now if need be; else predicted, and very high if the
        device refuses the application."""
        record = self.get(key, partial(time_it, question), question.work)
        if record is not None:
            return model.estimate_of(record)
        found = model.predicted(question.op, question.work, question.key)
        return refusal_cost(found) if self.failed(key) else found

    def predict(self, op: str, work: tuple[int, int], key: MeasurementKey, cold: float) -> CostEstimate:
        """The predicted price of what is not measured; the predictor is fitted again as records are added."""
        if self._fitted is None or len(self.store) > _REFIT * self._fitted[0]:
            self._fitted = (len(self.store), OperatorTimePredictor.fit(self.store.records, self._ceilings))
        return self._fitted[1].predict(op, *work, key, cold)


class MeasurementPricer(Protocol):
    """A cost model as far as :meth:`MeasurementCache.price` needs it."""

    def estimate_of(self, record: MeasurementRecord) -> CostEstimate:
        """The price of a record."""

    def predicted(self, op: str, work: tuple[int, int], key: MeasurementKey) -> CostEstimate:
        """The predicted price of an application."""


class MeasuringCostModel(CostModel):
    """A cost model over the measurements of a device.

    Args:
        measurements: what was measured, and how more is.
        sizes: what symbolic dimensions are costed at.
        backend: what runs the operators.
    """

    measurements: MeasurementCache

    def __init__(
        self, measurements: MeasurementCache, sizes: Mapping[str, int] | None, backend: BackendCapabilities
    ) -> None:
        super().__init__(sizes, backend)
        self.measurements = measurements

    @property
    def recorded(self) -> CostModel | None:
        return None

    @property
    def store(self) -> DeviceProfileStore:
        """The store of the measurements."""
        return self.measurements.store

    @property
    def measured(self) -> int:
        return self.measurements.measured

    @property
    def digest(self) -> str | None:
        return f"{self.measurements.digest} {self.cold!r}"

    def _has_record(self, key: MeasurementKey) -> bool:
        return self.store.get(key.text) is not None

    def _expected(self, question: MeasurementRequest) -> CostEstimate:
        return self.predicted(question.op, question.work, question.key)

    def predicted(self, op: str, work: tuple[int, int], key: MeasurementKey) -> CostEstimate:
        """What is expected of an application that was not measured: its operator, FLOPs and bytes, and key."""
        return self.measurements.predict(op, work, key, self.cold_fraction(key))


class MeasuredCpuCostModel(MeasuringCostModel):
    """Prices measured with a runtime on this machine's processor.

    Args:
        threads: threads inside an operator. With one, thread CPU time is the clock, which other load cannot disturb.
        store: where records are kept; by default a file of the user's cache, named by device, version and threads.
        sizes: what symbolic dimensions are costed at.
        time_limit: seconds that may be spent measuring; what comes later is predicted.
        progress: called with (measured so far, None, what) before each measurement.
        runtime: what runs the operators.
    """

    def __init__(
        self,
        *,
        threads: int = 1,
        store: DeviceProfileStore | None = None,
        sizes: Mapping[str, int] | None = None,
        time_limit: float = float("inf"),
        progress: Progress | None = None,
        runtime: Runtime = ONNX_RUNTIME,
    ) -> None:
        kept = store if store is not None else device_store(threads, runtime)
        super().__init__(MeasurementCache(kept, time_limit=time_limit, progress=progress), sizes, cpu_backend(runtime))
        self.meter = CpuGraphTimer(threads, runtime)
        self.runtime = runtime
        self._lowers = runtime.lowers

    @property
    def lowered(self) -> MeasuredCpuCostModel | None:
        return self if self._lowers else None

    @property
    def cache_bytes(self) -> int:
        return last_level_bytes()

    @cached_property
    def miss_curve(self) -> CacheMissCurve:
        sizes = probe_sizes(self.cache_bytes)
        found = {
            size: self.measurements.get(_weight_pass_key(size), partial(self._pass, size), (0, size)) for size in sizes
        }
        times = {size: record.ns for size, record in found.items() if record is not None}
        return (
            fit_miss_curve(times, self.cache_bytes)
            if len(times) == len(sizes)
            else default_miss_curve(self.cache_bytes)
        )

    def _pass(self, size: int) -> OperatorTiming:
        ns = time_weight_pass(size, self.meter.clock)
        return OperatorTiming(ns, ns, 0.0)

    def cold_share(self, working_set: int) -> float:
        probed = probe_sizes(self.cache_bytes)
        if not probed or probed[0] < working_set < probed[-1]:
            return super().cold_share(working_set)
        return float(working_set >= probed[-1])  # wherever the ramp is: small models need not wait for it

    def recording(self) -> MeasuredCpuCostModel:
        """The same model, made to cost graphs by their own operators, as a recorded profile will."""
        other = copy.copy(self)  # shares the measurements, and the budget for more of them
        other._lowers = False
        return other

    def kernel(self, kernel: StandaloneKernel) -> CostEstimate:
        """The cost of one node of the runtime's own optimised graph."""
        if kernel.node.op in self.backend.views and not kernel.node.domain:
            return self._view()
        work = (kernel.flops, kernel.moved)
        record = self.measurements.get(kernel.key, lambda: self.meter.time(kernel.graph, optimise=False), work)
        if record is None:  # refused alone or not, the runtime runs its own node
            return self.predicted(kernel.key.op, work, kernel.key)
        return self.estimate_of(record)

    def overhead_us(self) -> float:
        """What a run costs before its first node."""
        return self.meter.overhead / 1e3

    def peaks(self) -> DevicePeakPerformance | None:
        known = {
            q.key.text: self.measurements.get(q.key, partial(self._time, q), q.work) for q in PEAK_QUESTIONS.values()
        }
        times = {k: record.ns for k, record in known.items() if record is not None}
        if len(times) < len(known):  # no time was left to measure them
            return None
        return peaks_of_header(
            {
                "device": cpu_name(),
                "cache_bytes": last_level_bytes(),
                "peaks": peaks_of_times(lambda q: times[q.key.text]),
            }
        )

    def _view(self) -> CostEstimate:
        return CostEstimate(self.meter.dispatch / 1e3, "measured", 0.1)

    def _lookup(self, question: MeasurementRequest) -> CostEstimate:
        return self.measurements.price(self, question, question.key, self._time)

    def _time(self, question: MeasurementRequest) -> OperatorTiming:
        return measure_graph(application_graph(question), self.meter)


def _weight_pass_key(size: int) -> MeasurementKey:
    return MeasurementKey("cache", json.dumps({"bytes": size}), "", ())


def device_store(threads: int = 1, runtime: Runtime = ONNX_RUNTIME, *, beside: str = "") -> DeviceProfileStore:
    """The user's profile of this machine: one file per device, runtime and version, threads and method of timing.

    Args:
        threads: inside an operator.
        runtime: what is timed.
        beside: whose units the times are in, if not this machine's.
    """
    clock: Clock = "cpu" if threads == 1 else "wall"
    facts = circumstances(threads, clock, runtime)
    header = {k: facts[k] for k in ("device", "cores", "threads", "clock", "runtime")}
    return DeviceProfileStore(
        f"cpu-{cpu_name()}-{facts['cores']}-{facts['runtime']}-t{threads}-m{METHOD}{beside and f'-{beside}'}", header
    )


class MeasuredDeviceCostModel(MeasuringCostModel):
    """Prices measured on any device.

    Args:
        device: what is timed.
        store: where records are kept; by default a file of the user's cache, named by device, versions and precision.
        sizes: what symbolic dimensions are costed at.
        time_limit: seconds that may be spent measuring; what comes later is predicted.
        progress: called with (measured so far, None, what) before each measurement.
    """

    def __init__(
        self,
        device: OperatorTimer,
        *,
        store: DeviceProfileStore | None = None,
        sizes: Mapping[str, int] | None = None,
        time_limit: float = float("inf"),
        progress: Progress | None = None,
    ) -> None:
        self.device, self.facts = device, device.facts()
        name = "-".join(str(self.facts[k]) for k in ("backend", "device", "runtime", "precision"))
        kept = (
            store
            if store is not None
            else DeviceProfileStore("".join(c if c.isalnum() else "-" for c in name), self.facts)
        )
        measurements = MeasurementCache(
            kept, ceilings=ceilings_of(self.facts), time_limit=time_limit, progress=progress
        )
        super().__init__(measurements, sizes, device.backend)

    @property
    def device_timer(self) -> DeviceGraphTimer | None:
        return self.device.device_timer

    @property
    def cache_bytes(self) -> int | None:
        found = self.facts.get("cache_bytes")
        return found if isinstance(found, int) else None

    def peaks(self) -> DevicePeakPerformance | None:
        return peaks_of_header(self.facts)

    def _view(self) -> CostEstimate:
        return CostEstimate(float(self.facts["dispatch_ns"]) / 1e3, "measured", 0.1)

    def _lookup(self, question: MeasurementRequest) -> CostEstimate:
        return self.measurements.price(self, question, self.device.key(question), self.device.time)

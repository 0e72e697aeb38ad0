"""Costs measured on this machine's processor when first asked for, and kept."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from functools import cached_property, partial

from superopt.cost.cache import last_level_bytes
from superopt.cost.cache_model import Ramp, fitted, pass_ns, probed_bytes, usual
from superopt.cost.fusion import cpu_backend
from superopt.cost.kernel import Kernel
from superopt.cost.measure import METHOD, Meter, Timing, measure_graph
from superopt.cost.measurement_request import Question
from superopt.cost.measurements import Answers, Progress
from superopt.cost.measuring_model import Asked
from superopt.cost.peaks import PEAK_QUESTIONS, Peaks, peaks_of_header, peaks_of_times
from superopt.cost.profile import Store
from superopt.cost.record import Estimate, Key
from superopt.cost.trial import application_graph
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.runtime.paired_benchmark import Clock, circumstances, cpu_name
from superopt.runtime.protocol import Runtime

__all__ = ["MeasuredCpu", "device_store"]


class MeasuredCpu(Asked):
    """Costs measured with a runtime on this machine's processor when first asked for, and kept.

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
        store: Store | None = None,
        sizes: Mapping[str, int] | None = None,
        time_limit: float = float("inf"),
        progress: Progress | None = None,
        runtime: Runtime = ONNX_RUNTIME,
    ) -> None:
        kept = store if store is not None else device_store(threads, runtime)
        super().__init__(Answers(kept, time_limit=time_limit, progress=progress), sizes, cpu_backend(runtime))
        self.meter = Meter(threads, runtime)
        self.runtime = runtime
        self._lowers = runtime.lowers

    @property
    def lowered(self) -> MeasuredCpu | None:
        return self if self._lowers else None

    @property
    def cache_bytes(self) -> int:
        return last_level_bytes()

    @cached_property
    def ramp(self) -> Ramp:
        sizes = probed_bytes(self.cache_bytes)
        found = {size: self.answers.get(_pass_key(size), partial(self._pass, size), (0, size)) for size in sizes}
        times = {size: record.ns for size, record in found.items() if record is not None}
        return fitted(times, self.cache_bytes) if len(times) == len(sizes) else usual(self.cache_bytes)

    def _pass(self, size: int) -> Timing:
        ns = pass_ns(size, self.meter.clock)
        return Timing(ns, ns, 0.0)

    def cold_share(self, working_set: int) -> float:
        probed = probed_bytes(self.cache_bytes)
        if not probed or probed[0] < working_set < probed[-1]:
            return super().cold_share(working_set)
        return float(working_set >= probed[-1])  # wherever the ramp is: small models need not wait for it

    def recording(self) -> MeasuredCpu:
        """The same model, made to cost graphs by their own operators, as a recorded profile will."""
        other = copy.copy(self)  # shares the answers, and the budget for more of them
        other._lowers = False
        return other

    def kernel(self, kernel: Kernel) -> Estimate:
        """The cost of one node of the runtime's own optimised graph."""
        if kernel.node.op in self.backend.views and not kernel.node.domain:
            return self._view()
        work = (kernel.flops, kernel.moved)
        record = self.answers.get(kernel.key, lambda: self.meter.time(kernel.graph, optimise=False), work)
        if record is None:  # refused alone or not, the runtime runs its own node
            return self.predicted(kernel.key.op, work, kernel.key)
        return self.estimate_of(record)

    def overhead_us(self) -> float:
        """What a run costs before its first node."""
        return self.meter.overhead / 1e3

    def peaks(self) -> Peaks | None:
        known = {q.key.text: self.answers.get(q.key, partial(self._time, q), q.work) for q in PEAK_QUESTIONS.values()}
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

    def _view(self) -> Estimate:
        return Estimate(self.meter.dispatch / 1e3, "measured", 0.1)

    def _lookup(self, question: Question) -> Estimate:
        return self.answers.price(self, question, question.key, self._time)

    def _time(self, question: Question) -> Timing:
        return measure_graph(application_graph(question), self.meter)


def _pass_key(size: int) -> Key:
    return Key("cache", json.dumps({"bytes": size}), "", ())


def device_store(threads: int = 1, runtime: Runtime = ONNX_RUNTIME, *, beside: str = "") -> Store:
    """The user's profile of this machine: one file per device, runtime and version, threads and method of timing.

    Args:
        threads: inside an operator.
        runtime: what is timed.
        beside: whose units the times are in, if not this machine's.
    """
    clock: Clock = "cpu" if threads == 1 else "wall"
    facts = circumstances(threads, clock, runtime)
    header = {k: facts[k] for k in ("device", "cores", "threads", "clock", "runtime")}
    return Store(
        f"cpu-{cpu_name()}-{facts['cores']}-{facts['runtime']}-t{threads}-m{METHOD}{beside and f'-{beside}'}", header
    )

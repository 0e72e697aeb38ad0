"""Costs measured on this machine's ONNX Runtime when first asked for, and kept."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from superopt.cost.cache import last_level_bytes
from superopt.cost.kernel import Kernel
from superopt.cost.measure import Meter, Timing, measure_graph, measure_together
from superopt.cost.model import CostModel, Progress
from superopt.cost.peaks import PEAK_QUESTIONS, Peaks, peaks_of_header, peaks_of_times
from superopt.cost.predictor import Predictor
from superopt.cost.profile import Store
from superopt.cost.question import Question
from superopt.cost.record import Estimate, Key, Record
from superopt.cost.trial import application_graph
from superopt.ir.errors import SuperoptError
from superopt.ir.graph import Graph, structural_hash
from superopt.ops.record import NotCovered
from superopt.runtime.race import circumstances, cpu_name

__all__ = ["MeasuredCpu", "device_store"]

_CANNOT_RUN = 1e3  # a form that the backend refuses is costed at this many times its roofline: finite, never chosen
_REFIT = 64  # new records after which the predictor is fitted again


class MeasuredCpu(CostModel):
    """Costs measured on this machine's ONNX Runtime when first asked for, and kept.

    Args:
        threads: threads inside an operator. With one, thread CPU time is the clock, which other load cannot disturb.
        store: where records are kept; by default a file of the user's cache, named by device, version and threads.
        sizes: what symbolic dimensions are costed at.
        time_limit: seconds that may be spent measuring; what comes later is predicted.
        progress: called with (measured so far, None, what) before each measurement.
    """

    def __init__(
        self,
        *,
        threads: int = 1,
        store: Store | None = None,
        sizes: Mapping[str, int] | None = None,
        time_limit: float = float("inf"),
        progress: Progress | None = None,
    ) -> None:
        super().__init__(sizes)
        self.meter = Meter(threads)
        self.lowers = True  # cost graphs by the nodes of ONNX Runtime's own optimised graph
        self.store = store if store is not None else device_store(threads)
        self._progress = progress
        self._budget = _Budget(time_limit)
        self._failed: set[str] = set()
        self._fitted: tuple[int, Predictor] = (0, Predictor.fit(self.store.records))

    @property
    def cache_bytes(self) -> int:
        return last_level_bytes()

    def recording(self) -> MeasuredCpu:
        """The same model, made to cost graphs by their own operators, as a recorded profile will."""
        other = copy.copy(self)  # shares the store, the budget and what is known to fail
        other.lowers = False
        return other

    @property
    def measured(self) -> int:
        """How many measurements this model has made (those found in the store are not counted)."""
        return self._budget.done

    def kernel(self, kernel: Kernel) -> Estimate:
        """The cost of one node of ONNX Runtime's own optimised graph."""
        if kernel.node.op in self.backend.views and not kernel.node.domain:
            return self._view()
        work = (kernel.flops, kernel.moved)
        record = self._measured(kernel.key, lambda: self.meter.time(kernel.graph, optimise=False), work)
        return self._estimate(record) if record else self._roofline(kernel.key, work)

    def graph(self, graph: Graph) -> Estimate:
        """The time of a small graph as ONNX Runtime runs it whole, fusions included; ``inf`` when it cannot run."""
        key = Key("graph", structural_hash(graph, values=False), "", tuple(str(v.type) for v in graph.inputs))
        record = self._measured(key, lambda: measure_graph(graph, self.meter), (0, 0))
        return self._estimate(record) if record else Estimate(float("inf"), "roofline", 1.0)

    def graphs(self, graphs: Sequence[Graph], *, time_limit: float = 5.0) -> list[float]:
        """Microseconds of several small graphs, interleaved, so that their ratios can be trusted; not kept."""
        return measure_together(graphs, self.meter, sizes=self.sizes, cold=self.cold, time_limit=time_limit)

    def overhead_us(self) -> float:
        """What a run costs before its first node."""
        return self.meter.overhead / 1e3

    def peaks(self) -> Peaks | None:
        known = {q.key.text: self._measured(q.key, partial(self._time, q), q.work) for q in PEAK_QUESTIONS.values()}
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
        record = self._measured(question.key, partial(self._time, question), question.work)
        if record is not None:
            return self._estimate(record)
        found = self._roofline(question.key, question.work)
        if question.key.text in self._failed:  # our own form of the operator cannot run: it must not be chosen
            return Estimate(found.us * _CANNOT_RUN, "roofline", 1.0)
        return found

    def _time(self, question: Question) -> Timing:
        return measure_graph(application_graph(question), self.meter)

    def _roofline(self, key: Key, work: tuple[int, int]) -> Estimate:
        """The prediction alone; a node of ONNX Runtime's own graph runs there, whether or not it can be timed alone."""
        if len(self.store) >= self._fitted[0] + _REFIT:
            self._fitted = (len(self.store), Predictor.fit(self.store.records))
        return self._fitted[1].predict(key.op, *work, key)

    def _measured(self, key: Key, time_it: Callable[[], Timing], work: tuple[int, int]) -> Record | None:
        """The record of a key, measured now if need be; ``None`` when it cannot run or time is up."""
        known = self.store.get(key.text)
        if known is not None or key.text in self._failed or self._budget.spent >= self._budget.limit:
            return known
        if self._progress is not None:
            self._progress(self._budget.done, None, f"measuring {key.op}")
        start = time.monotonic()
        try:
            timing = time_it()
        except NotCovered:  # it cannot be written alone, which says nothing against it: predict
            return None
        except SuperoptError:
            self._failed.add(key.text)
            return None
        finally:
            self._budget.spent += time.monotonic() - start
            self._budget.done += 1
        record = timing.record(key, *work)
        self.store.add(record)
        return record


class _Budget:
    """Seconds spent measuring, shared by a model and its copies in context."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.spent = 0.0
        self.done = 0


def device_store(threads: int = 1) -> Store:
    """The user's profile of this machine: one file per device, ONNX Runtime version and number of threads."""
    facts = circumstances(threads, "cpu" if threads == 1 else "wall")
    header = {k: facts[k] for k in ("device", "cores", "threads", "clock", "runtime")}
    return Store(f"cpu-{cpu_name()}-{facts['cores']}-{facts['runtime']}-t{threads}", header)

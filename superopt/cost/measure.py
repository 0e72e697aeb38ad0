"""Timing small graphs on a runtime: warm and cold, without the runtime's own overhead.

Before each run the core's own cache (*warm*: weights come from the shared last-level cache, as in a small model) or all
caches (*cold*: weights come from memory, as in a large one) are flushed. Then a twin session, the same graph with its
own weights, runs untimed, which brings back code, inputs, and the outputs' memory (in a model that of activations which
were read a moment ago). Merely repeating an operator keeps its weights in the core's cache: sums of such times were
21 % low for BERT and 30 % for NasRNN. A graph that fits the first level is timed by the median over bursts of a burst's
minimum; so is the warm time of one whose weights are much larger than the core's cache: they leave it by themselves,
and a twin's would push them out of the last level, too (10 MB of merged gates came out three times as slow as they run
in a cell).
All are less what the runtime takes to run a graph without nodes, and after a flush that is more: what a session holds
beside its weights is no longer in the cache, either (0.6 µs more after the core's, 18 µs after all: MobileOne, of 150
small kernels, came out 13 % high).
What a runtime does not hand out the optimised graph of (``Runtime.lowers``) is timed as it stands, less the share that
its own trace gives to changing layouts at the edges, which a larger model would not pay.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from superopt import formats
from superopt.cost.cache import core_bytes, evict, last_level_bytes
from superopt.cost.lowering import lowered, without_reorders
from superopt.cost.record import Key, Record
from superopt.ir.disk_cache import keep, kept
from superopt.ir.errors import InvalidModel
from superopt.ir.graph import Graph, Node, Value
from superopt.ir.types import DType, TensorType
from superopt.ops.record import NotCovered
from superopt.runtime.limits import refuse_unbounded
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.runtime.paired_benchmark import Clock, circumstances, race_bound
from superopt.runtime.protocol import Bound, Runtime
from superopt.runtime.sample_data import feeds_for, with_values

__all__ = ["METHOD", "SUMMAND", "Meter", "Timing", "measure_graph"]

METHOD = 4  # of timing: figures of different methods are not mixed in one file
_BLOCKED = frozenset({"Conv", "MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"})
_MACHINE = ("device", "cores", "threads", "clock", "runtime")  # what a fact of the machine depends on
_FOLDER, _MOST = "machine", 16
_FLUSH_FROM = 32 << 10  # bytes from which it matters where they are read from
_WARM_NS = 4_000_000  # time spent on the warm figure, beyond the first runs
_SHORT_NS = 200_000  # a run up to which it is timed in several moments, so many at most, so far apart
_MOMENTS, _APART_S = 7, 0.002
_LONG_NS = 5_000_000  # a run from which repetitions are few: caches and interruptions matter less
_FLUSHED_NS = 20_000_000  # time spent on each flushed figure, at most
_NEAR_RUNS, _COLD_RUNS = 9, 5
_AGREED, _AGAIN = 0.03, 3  # how far the flushed figure may lie above the least run; how often the runs, at most
_NEAR_AGAIN = 9  # the same for the core's cache, which is flushed in no time
_SELF_EVICTING = 4  # times the core's cache: weights that push themselves out of it from one run to the next
SUMMAND = 3  # argument of a convolution of ONNX Runtime's own
_LARGEST = 96 << 20  # bytes of weights and inputs of a graph that is timed: ONNX Runtime and the twin hold six copies


@dataclass(frozen=True)
class Timing:
    """Nanoseconds of one run: weights in the last-level cache, weights in memory; relative interquartile range."""

    ns: float
    ns_cold: float
    iqr: float

    def record(self, key: Key, flops: int, moved: int) -> Record:
        """The timing as it is kept."""
        return Record(key, round(self.ns, 1), round(self.ns_cold, 1), round(self.iqr, 4), 0, flops, moved)


@dataclass(frozen=True)
class Meter:
    """How to time: threads inside an operator, the clock (thread CPU time needs one thread), and what runs."""

    threads: int = 1
    runtime: Runtime = ONNX_RUNTIME

    @property
    def clock(self) -> Clock:
        """CPU time where it counts everything, since it is immune to preemption; else the wall clock."""
        return "cpu" if self.threads == 1 else "wall"

    @cached_property
    def overhead(self) -> float:
        """Nanoseconds that a run costs before its first node."""
        return max(self._chains[0] - self.dispatch, 0.0)

    @cached_property
    def dispatch(self) -> float:
        """Nanoseconds that a node costs before it does any work: what a view (Reshape, Squeeze …) takes."""
        return max((self._chains[1] - self._chains[0]) / 16, 50.0)

    @cached_property
    def flushed_core(self) -> float:
        """Nanoseconds that a run costs more after the core's cache was flushed."""
        return self._flushed(core_bytes())

    @cached_property
    def flushed_all(self) -> float:
        """Nanoseconds that a run costs more after all caches were flushed."""
        return max(self._flushed(last_level_bytes()), self.flushed_core)

    def _flushed(self, size: int) -> float:
        """What flushing so much costs a run: a fact of the machine, kept between runs."""
        around = circumstances(self.threads, self.clock, self.runtime)
        asked = json.dumps([METHOD, size, *(around[k] for k in _MACHINE)])
        name = hashlib.sha256(f"flushed {asked}".encode()).hexdigest()
        known = kept(_FOLDER, name, ())
        if isinstance(known, float):
            return known
        content, feeds = (
            formats.to_onnx_bytes(with_values(_chain(1, self.runtime.apart))),
            {"x": np.ones(1, np.float32)},
        )
        bound = self.runtime.load(content, threads=self.threads, optimise=False).bound(feeds)
        twin = self.runtime.load(content, threads=self.threads, optimise=False).bound(feeds, like=bound)

        after = statistics.median(_after(size, _NEAR_RUNS, bound, twin, self.now, _NEAR_AGAIN) for _ in range(3))
        found = max(after - self._chains[0], 0.0)
        keep(_FOLDER, name, found, _MOST)
        return found

    @property
    def now(self) -> Callable[[], int]:
        """Reads the clock, in nanoseconds."""
        return time.thread_time_ns if self.clock == "cpu" else time.perf_counter_ns

    @cached_property
    def _chains(self) -> tuple[float, float]:
        feeds = {"x": np.ones(1, np.float32)}
        one, many = (self._raw(_chain(n, self.runtime.apart), feeds, optimise=False).ns for n in (1, 17))
        return one, many

    def time(
        self, graph: Graph, *, optimise: bool = True, feeds: Mapping[str, np.ndarray] | None = None, cold: bool = True
    ) -> Timing:  # fmt: skip
        """The time of the graph's nodes.

        Args:
            graph: static input types; shape-only weights get random elements.
            optimise: let the runtime optimise it; off for graphs that it has optimised already.
            feeds: inputs; random by default.
            cold: with weights in memory, too (see :func:`measure_graph`).

        Raises:
            InvalidModel, Unsupported: the runtime cannot run it. NotCovered: inputs cannot be made for it, or it is
                too large to be timed.
        """
        refuse_large(graph)
        try:
            raw = self._raw(graph, feeds or feeds_for(graph), optimise=optimise, cold=cold)
        except InvalidModel:  # an integer input may be an index: 0 is valid where 1 is not
            if feeds or any(n.op in ("Div", "Mod") for n in graph.nodes):
                raise
            raw = self._raw(graph, feeds_for(graph, integer=0), optimise=optimise, cold=cold)
        warm = max(raw.ns - self.overhead, self.dispatch)
        return Timing(warm, max(raw.ns_cold - self.overhead, warm), raw.iqr)

    def _raw(
        self, graph: Graph, feeds: Mapping[str, np.ndarray], *, optimise: bool, cold: bool = True
    ) -> Timing:  # fmt: skip
        content, over = formats.to_onnx_bytes(with_values(graph)), _written_over(graph)
        bound = self.runtime.load(content, threads=self.threads, optimise=optimise).bound(feeds, over=over)
        start = time.perf_counter_ns()
        bound.step()
        once = max(time.perf_counter_ns() - start, 1)
        table = self._repeated(bound, once)
        warm = statistics.median(table)
        spread = (table[(3 * len(table)) // 4] - table[len(table) // 4]) / warm
        weights = graph.weight_bytes
        if weights + sum(a.nbytes for a in feeds.values()) < _FLUSH_FROM:
            return Timing(warm, warm, spread)
        twin = self.runtime.load(content, threads=self.threads, optimise=optimise).bound(feeds, like=bound)
        few = max(2, _FLUSHED_NS // once)
        if _leaves_the_core(graph):
            # How much stays in the last cache is up to the pages that a session was given: 240 to 440 µs for 16 MB,
            # which would tell apart what is equal.
            near = min(t[len(t) // 4] for t in (table, self._repeated(twin, once)))
        else:
            taken = _after(core_bytes(), min(few, _NEAR_RUNS), bound, twin, self.now, _NEAR_AGAIN)
            near = max(taken - self.flushed_core, table[0])
        if weights < _FLUSH_FROM or not cold:
            return Timing(near, near, spread)
        taken = _after(last_level_bytes(), min(few, _COLD_RUNS), bound, twin, self.now)
        if _leaves_the_core(graph):
            taken = (taken + _after(last_level_bytes(), min(few, _COLD_RUNS), twin, bound, self.now)) / 2
        return Timing(near, max(taken - self.flushed_all, near), spread)

    def _repeated(self, bound: Bound, once: int) -> list[float]:
        """Nanoseconds of bursts' best runs, sorted; ``once`` is about how long a run takes.

        What is short is timed in several moments, until two of them agree: all its bursts fit into a fifth of a
        millisecond, in which the machine may be busy with something else (one operator in ten came out 1.5 µs high).
        """
        found = [self._moment(bound, once)]
        while once < _SHORT_NS and len(found) < _MOMENTS and not _agree([t[len(t) // 2] for t in found]):
            time.sleep(_APART_S)
            found.append(self._moment(bound, once))
        return min(found, key=lambda t: t[len(t) // 2])

    def _moment(self, bound: Bound, once: int) -> list[float]:
        raced = race_bound(
            [bound], rounds=max(3, min(25, _WARM_NS // (3 * once))), burst=3 if once < _LONG_NS else 1,
            threads=self.threads, clock=self.clock, time_limit=0.5,
        )  # fmt: skip
        return sorted(sample[0] * 1e6 for sample in raced.samples)


def _agree(times: Sequence[float]) -> bool:
    """Whether the two least of them are about the same."""
    least = sorted(times)[:2]
    return len(least) == 2 and least[1] <= (1 + _AGREED) * least[0]


def refuse_large(graph: Graph) -> None:
    """Timing must not take more memory than optimising does: a graph of large tensors is predicted instead.

    Raises:
        NotCovered: the weights and inputs are too large. ResourceLimit: what it makes of them is.
    """
    refuse_unbounded(graph)
    inputs = (v.type for v in graph.inputs if isinstance(v.type, TensorType))
    held = sum(t.nbytes or 0 for t in (*inputs, *(w.type for w in graph.weights)))
    if held > _LARGEST:
        raise NotCovered(f"{held >> 20} MiB are too much to be timed alone")


def _after(
    size: int, runs: int, bound: Bound, twin: Bound, now: Callable[[], int], again: int = _AGAIN
) -> float:  # fmt: skip
    """The lower quartile of flushed runs; while that is still far above the least of them, as many are run again."""
    taken: list[int] = []
    while len(taken) < again * runs:
        for _ in range(runs):
            evict(size)
            twin.step()
            start = now()
            bound.step()
            taken.append(now() - start)
        if _quarter(taken) <= (1 + _AGREED) * min(taken):
            break
    return _quarter(taken)


def _chain(length: int, op: str) -> Graph:
    kind = TensorType(DType.FLOAT32, (1,))
    names = ["x", *(f"v{i}" for i in range(length))]
    nodes = tuple(Node(f"n{i}", op, (names[i],), (names[i + 1],)) for i in range(length))
    return Graph("chain", (Value("x", kind),), (Value(names[-1], kind),), (), nodes, {"": 21})


def measure_graph(graph: Graph, meter: Meter | None = None, *, cold: bool = True) -> Timing:
    """Time a small graph as the runtime runs it, fusions included; layout changes at its edges are not counted.

    Args:
        graph: what to time.
        meter: by which.
        cold: with weights in memory, too: all caches are flushed for it, which takes seconds where they are large.
            Without it, the cold time is the warm one.

    Raises:
        InvalidModel, Unsupported: the runtime cannot run it. NotCovered: inputs cannot be made for it.
    """
    meter = meter or Meter()
    if not any(n.op in _BLOCKED and not n.domain for n in graph.nodes):
        return meter.time(graph, cold=cold)
    if meter.runtime.lowers:
        return meter.time(without_reorders(lowered(graph, meter.runtime)), optimise=False, cold=cold)
    found, share = meter.time(graph, cold=cold), 1.0 - _share_of_layout(graph, meter.runtime)
    return Timing(found.ns * share, found.ns_cold * share, found.iqr)


def _share_of_layout(graph: Graph, runtime: Runtime) -> float:
    """How much of a run only changes layouts, by the runtime's own trace."""
    traced = runtime.trace(formats.to_onnx_bytes(with_values(graph)), feeds_for(graph))
    total = sum(kernel.us for kernel in traced)
    return sum(kernel.us for kernel in traced if kernel.layout) / total if total else 0.0


def _leaves_the_core(graph: Graph) -> bool:
    """Whether its weights push each other out of the core's cache from one run to the next."""
    return graph.weight_bytes >= _SELF_EVICTING * core_bytes()


def _written_over(graph: Graph) -> dict[str, str]:
    """Outputs that ONNX Runtime computes in the memory of an input: a convolution's, where it takes in a residual sum.

    It then adds to what is there; alone, it would first copy the sum to where its output is.
    """
    fed, made = {v.name for v in graph.inputs}, {v.name for v in graph.outputs}
    convolutions = [n for n in graph.nodes if n.op in ("Conv", "FusedConv") and len(n.inputs) > SUMMAND]
    found = {n.outputs[0]: n.inputs[SUMMAND] for n in convolutions}
    read = Counter(name for n in graph.nodes for name in n.inputs)
    return {o: i for o, i in found.items() if o in made and i in fed and read[i] == 1 and not graph.consumers.get(o)}


def _quarter(samples: Sequence[int]) -> float:
    return float(sorted(samples)[len(samples) // 4])  # noise only adds, as in a burst's minimum

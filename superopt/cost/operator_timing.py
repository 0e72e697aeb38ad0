"""Times one operator application, or a small graph, on this machine's processor: warm and cold.

Before each run the core's own cache (*warm*: weights come from the shared last-level cache, as in a small model) or all
caches (*cold*: weights come from memory, as in a large model) are flushed. Then a twin session, the same graph with
weights of its own, runs untimed. It brings back code, inputs and the outputs' memory, which a model has just used.
Repeating an operator without flushing keeps its weights in the core's cache: sums of such times were 21 % low for BERT
and 30 % low for NasRNN.

Two kinds of graphs are timed by the median over bursts of a burst's minimum: one that fits the first-level cache, and
the warm time of one whose weights are much larger than the core's cache. The latter evict themselves, and a twin's
weights would evict them from the last level, too (10 MB of merged gates took three times as long as in a cell).

All times are less what the runtime takes for a graph without nodes. After a flush that is more, since the session's own
data were flushed, too: 0.6 µs more after the core's cache, 18 µs after all (without this, MobileOne with its 150 small
kernels was 13 % high).

A runtime that does not export its optimised graph (``Runtime.lowers``) is timed as it stands, less the share that its
own trace attributes to layout changes at the edges, which a larger model does not pay.

:class:`OperatorTimer` is the interface from which a profile is recorded; :class:`CpuOperatorTimer` implements it here,
and :class:`superopt.cost.cuda_timing.CudaOperatorTimer` for CUDA.
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
from typing import Any, Protocol

import numpy as np

from superopt import formats
from superopt.cost.backend_capabilities import SUMMAND, BackendCapabilities, cpu_backend
from superopt.cost.cache_model import core_bytes, evict, fit_miss_curve, last_level_bytes, probe_sizes
from superopt.cost.cost_model import DeviceGraphTimer
from superopt.cost.measurement_record import MeasurementKey, MeasurementRecord, MeasurementRequest
from superopt.cost.roofline_ceilings import peaks_of_times
from superopt.ir.disk_cache import load_object, store_object
from superopt.ir.errors import InvalidModel
from superopt.ir.graph import Graph, Node, Value, Weight, constant
from superopt.ir.types import DType, TensorType
from superopt.ops import REGISTRY
from superopt.ops.operator_definition import UnsupportedNodeForm
from superopt.runtime.executed_graph import lowered, without_reorders
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.runtime.paired_benchmark import Clock, circumstances, time_bound
from superopt.runtime.protocol import InputBoundModel, Runtime
from superopt.runtime.resource_limits import refuse_unbounded
from superopt.runtime.synthetic_tensors import feeds_for, with_values

__all__ = [
    "time_weight_pass",
    "CpuOperatorTimer",
    "OperatorTimer",
    "METHOD",
    "CpuGraphTimer",
    "OperatorTiming",
    "application_graph",
    "measure_graph",
]


@dataclass(frozen=True)
class OperatorTimingPolicy:
    """How an operator is timed: how often, for how long, and which caches are flushed.

    Attributes:
        opset: of the graph that is timed, unless the operator is newer.
        chain_width: rows and columns of a product in the chain that reads weights: 1 MiB each.
        chain_rounds: rounds over that chain.
        chain_burst: runs in a round, in which the cache settles; the minimum counts.
        flush_from: bytes from which it matters which cache they are read from.
        warm_ns: time spent on the warm figure, beyond the first runs.
        short_ns: a run up to which bursts are repeated at several moments.
        moments: at most so many moments.
        pause_s: seconds between two moments.
        long_ns: a run from which repetitions are few: caches and interruptions matter less.
        flushed_ns: time spent on each flushed figure, at most.
        core_runs: runs after a flush of the core's cache.
        cold_runs: runs after a flush of all caches.
        agreement: relative distance up to which two figures agree.
        cold_repeats: how often flushed runs are repeated until they agree, at most.
        core_repeats: the same for the core's cache, which is flushed in no time.
        self_evicting: weights of so many times the core's cache evict themselves from one run to the next.
        largest: bytes of weights and inputs of a timed graph: the runtime and the twin hold six copies.
        sentinel_runs: runs of a sentinel, of which the lower quartile counts.
        sentinel_product: rows and columns of the sentinel product.
        sentinel_copy: elements that the sentinel copies.
        peak_runs: measurements of a ceiling, of which the fastest counts.
    """

    opset: int = 21
    chain_width: int = 512
    chain_rounds: int = 3
    chain_burst: int = 12
    flush_from: int = 32 << 10
    warm_ns: int = 4_000_000
    short_ns: int = 200_000
    moments: int = 7
    pause_s: float = 0.002
    long_ns: int = 5_000_000
    flushed_ns: int = 20_000_000
    core_runs: int = 9
    cold_runs: int = 5
    agreement: float = 0.03
    cold_repeats: int = 3
    core_repeats: int = 9
    self_evicting: int = 4
    largest: int = 96 << 20
    sentinel_runs: int = 9
    sentinel_product: int = 256
    sentinel_copy: int = 2 << 20
    peak_runs: int = 3


TIMING = OperatorTimingPolicy()


def application_graph(question: MeasurementRequest) -> Graph:
    """A graph of one application: constant arguments become weights, which the runtime may pack ahead of time.

    Raises:
        UnsupportedNodeForm: the operator cannot be written as an ONNX node, or a type is not static.
    """
    op, attributes, arg_types, fixed = question.op, question.attributes, question.args, question.fixed
    if op not in REGISTRY:
        raise UnsupportedNodeForm(f"superopt has no operator {op}")
    if not all(t is None or t.is_static for t in (*arg_types, *question.outs)):
        raise UnsupportedNodeForm(f"the sizes of {op}'s arguments are not known")
    operator = REGISTRY[op]
    opset = max(TIMING.opset, operator.since)
    form = operator.write(attributes, arg_types, opset)
    given = [None if t is None else f"{'w' if fixed[i] else 'a'}{i}" for i, t in enumerate(arg_types)]
    names = form.names(given, {slot: f"c{slot}" for slot in form.literals})
    weights = [constant(f"c{slot}", array) for slot, array in form.literals.items()]
    inputs: list[Value] = []
    for item in dict.fromkeys(i for i in form.inputs if isinstance(i, int)):
        kind = arg_types[item]
        if kind is not None and fixed[item]:
            weights.append(_weight(op, item, kind))
        elif kind is not None:
            inputs.append(Value(f"a{item}", kind))
    outputs = tuple(Value(f"y{i}", t) for i, t in enumerate(question.outs))
    node = Node("trial", op, names, tuple(v.name for v in outputs), dict(form.attributes), operator.domain)
    opsets = {"": opset} if not operator.domain else {"": opset, operator.domain: 1}
    return Graph("trial", tuple(inputs), outputs, tuple(weights), (node,), opsets)


def _weight(op: str, item: int, kind: TensorType) -> Weight:
    """A constant argument; its elements are drawn when it is timed, unless they decide how long that takes."""
    if (op, item) == ("Pow", 1) and kind.dtype.is_float:
        # A square, as nearly every power in a model is one: 23 µs where ONNX Runtime takes 287 for a power of 0.7.
        return constant(f"w{item}", np.full(tuple(int(str(d)) for d in kind.shape or ()), 2, kind.dtype.numpy))
    return Weight(f"w{item}", kind, None)


METHOD = 4  # of timing: figures of different methods are not mixed in one file
_BLOCKED = frozenset({"Conv", "MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"})
_MACHINE = ("device", "cores", "threads", "clock", "runtime")  # what a fact of the machine depends on
_FOLDER, _MOST = "machine", 16


@dataclass(frozen=True)
class OperatorTiming:
    """Nanoseconds of one run: weights in the last-level cache, weights in memory; relative interquartile range."""

    ns: float
    ns_cold: float
    iqr: float

    def record(self, key: MeasurementKey, flops: int, moved: int) -> MeasurementRecord:
        """The timing as it is kept."""
        return MeasurementRecord(key, round(self.ns, 1), round(self.ns_cold, 1), round(self.iqr, 4), 0, flops, moved)


@dataclass(frozen=True)
class CpuGraphTimer:
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
        known = load_object(_FOLDER, name, ())
        if isinstance(known, float):
            return known
        content, feeds = (
            formats.to_onnx_bytes(with_values(_chain(1, self.runtime.apart))),
            {"x": np.ones(1, np.float32)},
        )
        bound = self.runtime.load(content, threads=self.threads, optimise=False).bound(feeds)
        twin = self.runtime.load(content, threads=self.threads, optimise=False).bound(feeds, like=bound)

        after = statistics.median(
            _flushed_time(size, TIMING.core_runs, bound, twin, self.now, TIMING.core_repeats) for _ in range(3)
        )
        found = max(after - self._chains[0], 0.0)
        store_object(_FOLDER, name, found, _MOST)
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
    ) -> OperatorTiming:  # fmt: skip
        """The time of the graph's nodes.

        Args:
            graph: static input types; shape-only weights get random elements.
            optimise: let the runtime optimise it; off for graphs that it has optimised already.
            feeds: inputs; random by default.
            cold: with weights in memory, too (see :func:`measure_graph`).

        Raises:
            InvalidModel, Unsupported: the runtime cannot run it. UnsupportedNodeForm: inputs cannot be made for it, or
                it is too large to be timed.
        """
        refuse_large(graph)
        try:
            raw = self._raw(graph, feeds or feeds_for(graph), optimise=optimise, cold=cold)
        except InvalidModel:  # an integer input may be an index: 0 is valid where 1 is not
            if feeds or any(n.op in ("Div", "Mod") for n in graph.nodes):
                raise
            raw = self._raw(graph, feeds_for(graph, integer=0), optimise=optimise, cold=cold)
        warm = max(raw.ns - self.overhead, self.dispatch)
        return OperatorTiming(warm, max(raw.ns_cold - self.overhead, warm), raw.iqr)

    def _raw(
        self, graph: Graph, feeds: Mapping[str, np.ndarray], *, optimise: bool, cold: bool = True
    ) -> OperatorTiming:  # fmt: skip
        content, over = formats.to_onnx_bytes(with_values(graph)), _in_place_outputs(graph)
        bound = self.runtime.load(content, threads=self.threads, optimise=optimise).bound(feeds, over=over)
        start = time.perf_counter_ns()
        bound.step()
        once = max(time.perf_counter_ns() - start, 1)
        table = self._repeated(bound, once)
        warm = statistics.median(table)
        spread = (table[(3 * len(table)) // 4] - table[len(table) // 4]) / warm
        weights = graph.weight_bytes
        if weights + sum(a.nbytes for a in feeds.values()) < TIMING.flush_from:
            return OperatorTiming(warm, warm, spread)
        twin = self.runtime.load(content, threads=self.threads, optimise=optimise).bound(feeds, like=bound)
        few = max(2, TIMING.flushed_ns // once)
        if _exceeds_core_cache(graph):
            # How much stays in the last cache is up to the pages that a session was given: 240 to 440 µs for 16 MB,
            # which would tell apart what is equal.
            near = min(t[len(t) // 4] for t in (table, self._repeated(twin, once)))
        else:
            taken = _flushed_time(core_bytes(), min(few, TIMING.core_runs), bound, twin, self.now, TIMING.core_repeats)
            near = max(taken - self.flushed_core, table[0])
        if weights < TIMING.flush_from or not cold:
            return OperatorTiming(near, near, spread)
        taken = _flushed_time(last_level_bytes(), min(few, TIMING.cold_runs), bound, twin, self.now)
        if _exceeds_core_cache(graph):
            taken = (taken + _flushed_time(last_level_bytes(), min(few, TIMING.cold_runs), twin, bound, self.now)) / 2
        return OperatorTiming(near, max(taken - self.flushed_all, near), spread)

    def _repeated(self, bound: InputBoundModel, once: int) -> list[float]:
        """Nanoseconds of bursts' best runs, sorted; ``once`` is about how long a run takes.

        What is short is timed in several moments, until two of them agree: all its bursts fit into a fifth of a
        millisecond, in which the machine may be busy with something else (one operator in ten came out 1.5 µs high).
        """
        found = [self._burst_times(bound, once)]
        while once < TIMING.short_ns and len(found) < TIMING.moments and not _agree([t[len(t) // 2] for t in found]):
            time.sleep(TIMING.pause_s)
            found.append(self._burst_times(bound, once))
        return min(found, key=lambda t: t[len(t) // 2])

    def _burst_times(self, bound: InputBoundModel, once: int) -> list[float]:
        timed = time_bound(
            [bound], rounds=max(3, min(25, TIMING.warm_ns // (3 * once))), burst=3 if once < TIMING.long_ns else 1,
            threads=self.threads, clock=self.clock, time_limit=0.5,
        )  # fmt: skip
        return sorted(sample[0] * 1e6 for sample in timed.samples)


def _agree(times: Sequence[float]) -> bool:
    """Whether the two least of them are about the same."""
    least = sorted(times)[:2]
    return len(least) == 2 and least[1] <= (1 + TIMING.agreement) * least[0]


def refuse_large(graph: Graph) -> None:
    """Timing must not take more memory than optimising does: a graph of large tensors is predicted instead.

    Raises:
        UnsupportedNodeForm: the weights and inputs are too large. ResourceLimit: what it makes of them is.
    """
    refuse_unbounded(graph)
    inputs = (v.type for v in graph.inputs if isinstance(v.type, TensorType))
    held = sum(t.nbytes or 0 for t in (*inputs, *(w.type for w in graph.weights)))
    if held > TIMING.largest:
        raise UnsupportedNodeForm(f"{held >> 20} MiB are too much to be timed alone")


def _flushed_time(
    size: int,
    runs: int,
    bound: InputBoundModel,
    twin: InputBoundModel,
    now: Callable[[], int],
    again: int = TIMING.cold_repeats,
) -> float:
    """The lower quartile of flushed runs; while that is still far above the least of them, as many are run again."""
    taken: list[int] = []
    while len(taken) < again * runs:
        for _ in range(runs):
            evict(size)
            twin.step()
            start = now()
            bound.step()
            taken.append(now() - start)
        if _lower_quartile(taken) <= (1 + TIMING.agreement) * min(taken):
            break
    return _lower_quartile(taken)


def _chain(length: int, op: str) -> Graph:
    kind = TensorType(DType.FLOAT32, (1,))
    names = ["x", *(f"v{i}" for i in range(length))]
    nodes = tuple(Node(f"n{i}", op, (names[i],), (names[i + 1],)) for i in range(length))
    return Graph("chain", (Value("x", kind),), (Value(names[-1], kind),), (), nodes, {"": 21})


def measure_graph(graph: Graph, meter: CpuGraphTimer | None = None, *, cold: bool = True) -> OperatorTiming:
    """Time a small graph as the runtime runs it, fusions included; layout changes at its edges are not counted.

    Args:
        graph: what to time.
        meter: by which.
        cold: with weights in memory, too: all caches are flushed for it, which takes seconds where they are large.
            Without it, the cold time is the warm one.

    Raises:
        InvalidModel, Unsupported: the runtime cannot run it. UnsupportedNodeForm: inputs cannot be made for it.
    """
    meter = meter or CpuGraphTimer()
    if not any(n.op in _BLOCKED and not n.domain for n in graph.nodes):
        return meter.time(graph, cold=cold)
    if meter.runtime.lowers:
        return meter.time(without_reorders(lowered(graph, meter.runtime)), optimise=False, cold=cold)
    found, share = meter.time(graph, cold=cold), 1.0 - _share_of_layout(graph, meter.runtime)
    return OperatorTiming(found.ns * share, found.ns_cold * share, found.iqr)


def _share_of_layout(graph: Graph, runtime: Runtime) -> float:
    """How much of a run only changes layouts, by the runtime's own trace."""
    traced = runtime.trace(formats.to_onnx_bytes(with_values(graph)), feeds_for(graph))
    total = sum(kernel.us for kernel in traced)
    return sum(kernel.us for kernel in traced if kernel.layout) / total if total else 0.0


def _exceeds_core_cache(graph: Graph) -> bool:
    """Whether its weights push each other out of the core's cache from one run to the next."""
    return graph.weight_bytes >= TIMING.self_evicting * core_bytes()


def _in_place_outputs(graph: Graph) -> dict[str, str]:
    """Outputs that ONNX Runtime computes in the memory of an input: a convolution's, where it takes in a residual sum.

    It then adds to what is there; alone, it would first copy the sum to where its output is.
    """
    fed, made = {v.name for v in graph.inputs}, {v.name for v in graph.outputs}
    convolutions = [n for n in graph.nodes if n.op in ("Conv", "FusedConv") and len(n.inputs) > SUMMAND]
    found = {n.outputs[0]: n.inputs[SUMMAND] for n in convolutions}
    read = Counter(name for n in graph.nodes for name in n.inputs)
    return {o: i for o, i in found.items() if o in made and i in fed and read[i] == 1 and not graph.consumers.get(o)}


def _lower_quartile(samples: Sequence[int]) -> float:
    return float(sorted(samples)[len(samples) // 4])  # noise only adds, as in a burst's minimum


def time_weight_pass(size: int, clock: Clock = "cpu") -> float:
    """Nanoseconds of a chain of products that reads weights of this many bytes, run again and again."""
    content = formats.to_onnx_bytes(_weights_chain(max(1, round(size / (4 * TIMING.chain_width**2)))))
    bound = ONNX_RUNTIME.load(content, threads=1).bound(
        feeds_for(_weights_chain(1))
    )  # the machine's, whatever runs models
    timed = time_bound([bound], rounds=TIMING.chain_rounds, burst=TIMING.chain_burst, threads=1, clock=clock)
    return 1e6 * statistics.median(sample[0] for sample in timed.samples)


def _weights_chain(length: int) -> Graph:
    drawn = (
        np.random.default_rng(0).random((TIMING.chain_width, TIMING.chain_width), dtype=np.float32) / TIMING.chain_width
    )
    row = TensorType(DType.FLOAT32, (1, TIMING.chain_width))
    names = ["x", *(f"v{i}" for i in range(length))]
    weights = tuple(constant(f"w{i}", drawn + np.float32(i * 1e-6)) for i in range(length))  # equal ones would be one
    nodes = tuple(Node(f"n{i}", "MatMul", (names[i], f"w{i}"), (names[i + 1],)) for i in range(length))
    return Graph("chain", (Value("x", row),), (Value(names[-1], row),), weights, nodes, {"": 21})


class OperatorTimer(Protocol):
    """A machine that times operator applications.

    Attributes:
        backend: what it fuses by itself and what it does not execute.
        name: the machine, its runtime and how it is used, in words: equal for what times alike.
    """

    backend: BackendCapabilities

    @property
    def name(self) -> str: ...

    @property
    def device_timer(self) -> DeviceGraphTimer | None:
        """What times whole graphs against each other here; ``None``: a runtime on this machine's processor."""
        ...

    def facts(self) -> dict[str, Any]:
        """The header's part about the device: ``device``, ``runtime`` and other versions, ``backend``, ``precision``,
        ``layout``, ``cache_bytes``, ``cache_ramp`` (:class:`superopt.cost.cache_model.CacheMissCurve`; may be absent),
        ``dispatch_ns``, ``peaks`` (``flops_per_s``, ``bytes_per_s``, as measured)."""
        ...

    def key(self, question: MeasurementRequest) -> MeasurementKey:
        """What the answer is filed under: the question with the engine, precision and layout that answer it."""
        ...

    def prepare(self, questions: Sequence[MeasurementRequest]) -> None:
        """Make ready at once what can be, of questions that are timed next: kernels are compiled together, say."""
        ...

    def time(self, question: MeasurementRequest, *, cold: bool = True) -> OperatorTiming:
        """Time it; ``cold``: with weights in memory, too, else that time need not be more than the warm one.

        Raises:
            SuperoptError: the backend refuses it. UnsupportedNodeForm: it cannot be timed alone.
        """
        ...

    def sentinels(self) -> Mapping[str, float]:
        """Nanoseconds of a few fixed pieces of work, by name: their drift is the machine's."""
        ...


class CpuOperatorTimer:
    """This machine's processor, through a runtime."""

    device_timer: DeviceGraphTimer | None = None

    def __init__(self, threads: int = 1, runtime: Runtime = ONNX_RUNTIME) -> None:
        self.meter = CpuGraphTimer(threads, runtime)
        self.backend = cpu_backend(runtime)

    @property
    def name(self) -> str:
        found = circumstances(self.meter.threads, self.meter.clock, self.meter.runtime)
        return f"{found['device']}, {found['cores']} cores, {found['runtime']}, threads {found['threads']}, {METHOD}"

    def facts(self) -> dict[str, Any]:
        found = circumstances(self.meter.threads, self.meter.clock, self.meter.runtime)
        cache = last_level_bytes()
        ramp = fit_miss_curve({size: time_weight_pass(size, self.meter.clock) for size in probe_sizes(cache)}, cache)
        return {
            **{k: found[k] for k in ("device", "cores", "threads", "clock", "runtime")},
            "backend": self.backend.name, "precision": "ieee", "layout": "plain",
            "cache_bytes": cache, "cache_ramp": [[round(size), round(share, 4)] for size, share in ramp.points],
            "dispatch_ns": round(self.meter.dispatch, 1),
            "peaks": peaks_of_times(lambda q: min(self.time(q, cold=False).ns for _ in range(TIMING.peak_runs))),
        }  # fmt: skip

    def key(self, question: MeasurementRequest) -> MeasurementKey:
        return question.key

    def prepare(self, questions: Sequence[MeasurementRequest]) -> None:
        """Nothing: a runtime makes each ready in a few milliseconds."""

    def time(self, question: MeasurementRequest, *, cold: bool = True) -> OperatorTiming:
        return measure_graph(application_graph(question), self.meter, cold=cold)

    def sentinels(self) -> Mapping[str, float]:
        now = self.meter.now
        found = {}
        for name, bound in self._fixed.items():
            taken = []
            for _ in range(TIMING.sentinel_runs):
                start = now()
                bound.step()
                taken.append(now() - start)
            found[name] = float(sorted(taken)[len(taken) // 4])
        return found

    @cached_property
    def _fixed(self) -> dict[str, InputBoundModel]:
        def bound(graph: Graph) -> InputBoundModel:
            content = formats.to_onnx_bytes(with_values(graph))
            return self.meter.runtime.load(content, threads=self.meter.threads).bound(feeds_for(graph))

        return {"gemm": bound(_product(TIMING.sentinel_product)), "copy": bound(_copy(TIMING.sentinel_copy))}


def _product(size: int) -> Graph:
    kind = TensorType(DType.FLOAT32, (size, size))
    node = Node("product", "MatMul", ("x", "w"), ("y",))
    return Graph("gemm", (Value("x", kind),), (Value("y", kind),), (Weight("w", kind, None),), (node,), {"": 21})


def _copy(elements: int) -> Graph:
    kind = TensorType(DType.FLOAT32, (elements,))
    return Graph(
        "copy", (Value("x", kind),), (Value("y", kind),), (), (Node("copy", "Relu", ("x",), ("y",)),), {"": 21}
    )

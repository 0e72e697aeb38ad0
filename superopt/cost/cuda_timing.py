"""Times operators on a CUDA device, inside captured graphs.

A launch from Python takes longer than most kernels, and an event pair about a microsecond, so one launch measures
nothing. An operator is captured k and 2k times in a CUDA graph. Its time is the slope ``(t₂ₖ - t₁ₖ) / k``, with k such
that a replay takes about half a millisecond: the launch of a graph varies by a microsecond. *Warm*: all launches use
the same buffers. *Cold*: the launches rotate through copies that together exceed three L2 caches. Data are random,
never zeros: some devices draw less power for zeros and clock higher.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import Any, Protocol

import numpy as np

from superopt.cost.backend_capabilities import SUPEROPT_CUDA
from superopt.cost.measurement_record import MeasurementKey, MeasurementRequest
from superopt.cost.operator_timing import OperatorTiming, application_graph
from superopt.ir.errors import SuperoptError
from superopt.ir.graph import Graph, Node, Value
from superopt.ir.types import DType, TensorType
from superopt.runtime.cuda.device import CudaDevice
from superopt.runtime.cuda.execution_plan import Step
from superopt.runtime.cuda.session import CudaGraphSession, TimedExecutionDevice, supported, time_sessions
from superopt.runtime.paired_benchmark import PairedTimes
from superopt.runtime.synthetic_tensors import feeds_for

__all__ = ["CudaOperatorTimer", "BenchmarkDevice", "slope"]


@dataclass(frozen=True)
class CudaTimingPolicy:
    """How an operator is timed inside captured graphs.

    Attributes:
        replay_us: a replay; the launch of a graph varies by a microsecond.
        launches: launches in one captured graph, at most: each costs Python ten microseconds.
        rounds: slopes, of which the median counts.
        l2_caches: the rotated buffers exceed so many L2 caches.
        copies: sets of buffers, at most.
        sentinel_product: rows of the sentinel product.
        sentinel_copy: elements that the sentinel copies (256 MiB).
    """

    replay_us: float = 500.0
    launches: int = 1024
    rounds: int = 7
    l2_caches: int = 3
    copies: int = 64
    sentinel_product: int = 4096
    sentinel_copy: int = 1 << 26


TIMING = CudaTimingPolicy()


class BenchmarkDevice(TimedExecutionDevice, Protocol):
    """A driver with a clock that can release memory."""

    def allocated(self) -> int: ...

    def release(self, mark: int) -> None: ...


class CudaOperatorTimer:
    """A :class:`superopt.cost.operator_timing.OperatorTimer`: CUDA device 0, or what a test puts in its place.

    Raises:
        BackendUnavailable: there is none; with the reason and the next step.
    """

    backend = SUPEROPT_CUDA

    def __init__(self, precision: str = "ieee", driver: BenchmarkDevice | None = None) -> None:
        self.precision = precision
        self.driver: BenchmarkDevice = CudaDevice(precision) if driver is None else driver

    @property
    def name(self) -> str:
        """The card and its precision."""
        return f"{self.driver.facts().get('device')}, {self.precision}"

    @property
    def device_timer(self) -> CudaOperatorTimer:
        """Itself: it times captured graphs."""
        return self

    def facts(self) -> dict[str, Any]:
        """See :class:`superopt.cost.operator_timing.OperatorTimer`."""
        return {
            **self.driver.facts(), "threads": 1, "clock": "events", "backend": self.backend.name,
            "precision": self.precision, "layout": "plain", "dispatch_ns": 0.0, "peaks": self.peaks,
        }  # fmt: skip

    def key(self, question: MeasurementRequest) -> MeasurementKey:
        """The question's key with our engine and precision."""
        return replace(question.key, impl=self.backend.name, precision=self.precision)

    def prepare(self, questions: Sequence[MeasurementRequest]) -> None:
        """Compile their kernels together: one by one takes as long as timing them."""
        steps: list[Step] = []
        for question in questions:
            try:
                found = supported(application_graph(question), self.driver)
            except SuperoptError:
                continue  # it is asked once more when it is timed, and says why it cannot be
            steps += (*found.setup, *found.steps)
        self.driver.prepare(steps)

    def time(self, question: MeasurementRequest, *, cold: bool = True) -> OperatorTiming:
        """Warm and cold nanoseconds of one application, by slopes; both, since the cold one costs no more.

        Raises:
            Unsupported: the backend does not run it. UnsupportedNodeForm: it cannot be written alone.
        """
        return self.time_graph(application_graph(question))

    def time_graph(self, graph: Graph, sizes: Mapping[str, int] | None = None) -> OperatorTiming:
        """The same for a whole graph."""
        mark = self.driver.allocated()
        try:
            session = CudaGraphSession(graph, self.driver, sizes)
            if not session.plan.steps:
                return OperatorTiming(0.0, 0.0, 0.0)
            around = self._sets(session, feeds_for(graph, sizes))
            warm, spread = slope(self.driver, session, around[:1])
            cold, _ = (warm, 0.0) if len(around) == 1 else slope(self.driver, session, around)
            return OperatorTiming(warm * 1e3, max(warm, cold) * 1e3, spread)
        finally:
            self.driver.release(mark)

    def time_models(
        self,
        graphs: Sequence[Graph],
        feeds: Mapping[str, np.ndarray],
        sizes: Mapping[str, int] | None = None,
        *,
        rounds: int = 15,
        time_limit: float = 30.0,
    ) -> PairedTimes:
        """Time whole graphs against each other on the same inputs, interleaved; ratios are relative to the first.

        Raises:
            Unsupported: the backend does not run one of them; names the node.
        """
        mark = self.driver.allocated()
        try:
            sessions = [CudaGraphSession(graph, self.driver, sizes) for graph in graphs]
            for session in sessions:
                session.run(feeds)
            return time_sessions(sessions, self.driver, rounds=rounds, time_limit=time_limit)
        finally:
            self.driver.release(mark)

    def _sets(self, session: CudaGraphSession, feeds: Mapping[str, np.ndarray]) -> list[dict[str, int]]:
        """As many sets of buffers as it takes to leave the cache behind, each with its own inputs."""
        steps = session.plan.steps
        touched = {session.plan.root(n) for s in steps for n in (*s.reads, s.output)}
        nbytes = sum(session.plan.types[n].nbytes or 0 for n in touched)
        wanted = -(-TIMING.l2_caches * int(self.driver.facts()["cache_bytes"]) // max(nbytes, 1)) + 1
        return [self._fed(session, feeds) for _ in range(min(TIMING.copies, wanted))]

    def _fed(self, session: CudaGraphSession, feeds: Mapping[str, np.ndarray]) -> dict[str, int]:
        """A set of buffers with its inputs in it."""
        addresses = session.place()
        for name, array in feeds.items():
            if name in addresses:
                self.driver.upload(addresses[name], np.ascontiguousarray(array))
        return addresses

    def sentinels(self) -> Mapping[str, float]:
        """One product and one copy, in nanoseconds."""
        return {name: 1e3 * median(rate() for _ in range(TIMING.rounds)) for name, rate in self._watched.items()}

    @cached_property
    def _watched(self) -> dict[str, Callable[[], float]]:
        """What reads the sentinels, captured once: to make them ready takes a second, and they are read often."""
        graphs = {"gemm": _product(TIMING.sentinel_product), "copy": _copy(TIMING.sentinel_copy)}
        sessions = {name: CudaGraphSession(graph, self.driver) for name, graph in graphs.items()}
        return {n: _rate(self.driver, s, [self._fed(s, feeds_for(graphs[n]))]) for n, s in sessions.items()}

    @cached_property
    def peaks(self) -> dict[str, float]:
        """What the device reaches at best: the ceilings of a roofline."""
        product, far, near = (
            _product(TIMING.sentinel_product),
            self.time_graph(_copy(TIMING.sentinel_copy)),
            self.time_graph(_copy(1 << 21)),
        )
        return {
            "flops_per_s": round(2e9 * TIMING.sentinel_product**3 / self.time_graph(product).ns),
            "bytes_per_s": round(8e9 * TIMING.sentinel_copy / far.ns_cold),
            "cache_bytes_per_s": round(8e9 * (1 << 21) / near.ns),
        }  # fmt: skip


def slope(driver: BenchmarkDevice, session: CudaGraphSession, sets: Sequence[Mapping[str, int]]) -> tuple[float, float]:
    """Microseconds of one inference inside a captured graph, and its relative interquartile range over rounds."""
    rate = _rate(driver, session, sets)
    found = sorted(rate() for _ in range(TIMING.rounds))
    middle = max(median(found), 0.0)
    spread = (found[(3 * TIMING.rounds) // 4] - found[TIMING.rounds // 4]) / middle if middle else 0.0
    return middle, abs(spread)


def _rate(driver: BenchmarkDevice, session: CudaGraphSession, sets: Sequence[Mapping[str, int]]) -> Callable[[], float]:
    """What reads the microseconds of one inference off two captured graphs, which have run once."""

    def replay(count: int) -> Callable[[], None]:
        def body() -> None:
            for i in range(count):
                session.launch(sets[i % len(sets)])

        return driver.capture(body)

    trial = replay(4)
    trial()
    each = max(driver.elapsed(trial) / 4, 0.05)
    count = int(
        min(max(TIMING.replay_us / each, 1), TIMING.launches, max(1, TIMING.launches // len(session.plan.steps)))
    )
    count = -(-count // len(sets)) * len(sets)  # each set as often as any other
    one, two = replay(count), replay(2 * count)
    for body in (one, two):
        body()
    return lambda: (driver.elapsed(two) - driver.elapsed(one)) / count


def _product(size: int) -> Graph:
    kind = TensorType(DType.FLOAT32, (size, size))
    node = Node("product", "MatMul", ("x", "w"), ("y",))
    return Graph("gemm", (Value("x", kind), Value("w", kind)), (Value("y", kind),), (), (node,), {"": 21})


def _copy(elements: int) -> Graph:
    kind = TensorType(DType.FLOAT32, (elements,))
    node = Node("copy", "Relu", ("x",), ("y",))
    return Graph("copy", (Value("x", kind),), (Value("y", kind),), (), (node,), {"": 21})

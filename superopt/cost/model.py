"""Cost models: measured on this machine's ONNX Runtime, or read from a recorded profile."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from superopt.cost.cache import cold_share
from superopt.cost.fusion import ONNX_RUNTIME_CPU, Backend
from superopt.cost.kernel import Kernel
from superopt.cost.measure import Meter, Timing, measure_graph, measure_together
from superopt.cost.predictor import Predictor
from superopt.cost.profile import Profile, Store
from superopt.cost.record import FREE, Estimate, Key, Record, key_of
from superopt.cost.trial import application_graph, at_sizes, value_at_sizes
from superopt.ir.errors import SuperoptError
from superopt.ir.graph import Graph, structural_hash
from superopt.ir.terms import AttributeValue
from superopt.ir.types import TensorType
from superopt.ops import REGISTRY
from superopt.ops.meaning import IllTyped
from superopt.ops.record import NotCovered
from superopt.ops.work import flops
from superopt.runtime.race import circumstances, cpu_name

__all__ = ["Application", "Attributes", "CostModel", "MeasuredCpu", "Progress", "RecordedProfile", "work_of"]

Attributes = Mapping[str, AttributeValue] | Sequence[tuple[str, AttributeValue]]
Application = tuple[str, Attributes, Sequence[TensorType | None], Sequence[bool]]  # op, attributes, types, constant
Progress = Callable[[int, int | None, str], None]
_CANNOT_RUN = 1e3  # a form that the backend refuses is costed at this many times its roofline: finite, never chosen
_CACHED_BYTES_PER_US = 20_000.0
_REFIT = 64  # new records after which the predictor is fitted again


class CostModel(Protocol):
    """What the search asks. Costs add up over applications; ``after`` names what the backend fuses."""

    @property
    def backend(self) -> Backend:
        """What the backend fuses, and what it does not execute at all."""
        ...

    def application(
        self,
        op: str,
        attributes: Attributes,
        arg_types: Sequence[TensorType | None],
        out_types: Sequence[TensorType],
        constant_args: Sequence[bool] = (),
        *,
        after: str | None = None,
    ) -> Estimate:
        """The cost of one operator application.

        Args:
            op: operator name.
            attributes: canonical attributes.
            arg_types: argument types; symbolic sizes are costed at the model's ``sizes``.
            out_types: output types.
            constant_args: which arguments are weights. All of them: the application is folded, and free.
            after: the operator that makes the non-constant argument, when this application is its only reader and
                might be fused into it.
        """
        ...

    def fusable(self, producer: str, consumer: str, *, constant_others: bool = True, rank: int = 0) -> bool:
        """Whether the consumer is nearly free when it alone reads the producer's result."""
        ...

    def fused_saving(self, producer: Application, consumer: Application, slot: int) -> float:
        """Microseconds saved by the backend's running the two as one kernel, the consumer being the only reader.

        Args:
            producer: what makes argument ``slot`` of the consumer.
            consumer: the application that may disappear.
            slot: position of the argument.
        """
        ...

    def in_context(self, working_set: int) -> CostModel:
        """The same model for parts of a graph that reads this many bytes an inference: are its weights cached?"""
        ...


def work_of(
    op: str,
    attributes: Mapping[str, AttributeValue],
    arg_types: Sequence[TensorType | None],
    out_types: Sequence[TensorType],
) -> tuple[int, int]:
    """FLOPs and bytes of an application to static types."""
    moved = sum(t.nbytes or 0 for t in (*arg_types, *out_types) if t is not None)
    if op not in REGISTRY:
        return sum(_count(t) for t in out_types), moved
    try:
        found = flops(REGISTRY[op], tuple(arg_types), attributes)
    except IllTyped:
        found = sum(_count(t) for t in out_types)
    return found if isinstance(found, int) else sum(_count(t) for t in out_types), moved


def _count(kind: TensorType) -> int:
    return kind.elements if isinstance(kind.elements, int) else 0


class _Model:
    """What both models share: sizes, fusions, and the cost of what is not executed."""

    def __init__(self, sizes: Mapping[str, int] | None) -> None:
        self.sizes = dict(sizes or {})
        self.cold = 1.0
        self._memo: dict[tuple[object, ...], Estimate] = {}

    @property
    def backend(self) -> Backend:
        return ONNX_RUNTIME_CPU

    def fusable(self, producer: str, consumer: str, *, constant_others: bool = True, rank: int = 0) -> bool:
        return self.backend.fusable(producer, consumer, constant_others=constant_others, rank=rank)

    def fused_saving(self, producer: Application, consumer: Application, slot: int) -> float:
        op, attributes, types, fixed = consumer
        if not self._fuses(producer[0], op, types, fixed, slot) or op not in REGISTRY:
            return 0.0
        try:
            _, outs = REGISTRY[op].apply(tuple(types), dict(attributes))
        except IllTyped:
            return 0.0
        alone = self.application(op, attributes, types, outs, fixed).us
        return max(0.0, alone - self._fused(types, slot).us)

    def _fuses(
        self, producer: str, op: str, types: Sequence[TensorType | None], fixed: Sequence[bool], slot: int
    ) -> bool:
        others = [(t, c) for i, (t, c) in enumerate(zip(types, fixed, strict=True)) if i != slot and t is not None]
        rank = max((t.rank or 0 for t, _ in others), default=0)
        return self.fusable(producer, op, constant_others=all(c for _, c in others), rank=rank)

    def _fused(self, types: Sequence[TensorType | None], slot: int) -> Estimate:
        """A fused operator still reads its other arguments, which stream from the cache."""
        extra = sum(t.nbytes or 0 for i, t in enumerate(types) if t is not None and i != slot)
        return Estimate(extra / _CACHED_BYTES_PER_US, "free", 0.0)

    def application(
        self,
        op: str,
        attributes: Attributes,
        arg_types: Sequence[TensorType | None],
        out_types: Sequence[TensorType],
        constant_args: Sequence[bool] = (),
        *,
        after: str | None = None,
    ) -> Estimate:
        values = dict(attributes)
        fixed = (*constant_args, *(False,) * (len(arg_types) - len(constant_args)))
        arg_types, fixed = self.backend.as_run(op, arg_types, fixed)
        place = (op, tuple(sorted(values.items())), tuple(arg_types), fixed, after)
        found = self._memo.get(place)
        if found is None:
            args = [t if t is None else at_sizes(t, self.sizes) for t in arg_types]
            outs = [at_sizes(t, self.sizes) for t in out_types]
            at = {k: value_at_sizes(v, self.sizes) for k, v in values.items()}
            found = self._memo[place] = self._cost(op, at, args, outs, fixed, after)
        return found

    def _cost(
        self,
        op: str,
        attributes: Mapping[str, AttributeValue],
        args: Sequence[TensorType | None],
        outs: Sequence[TensorType],
        fixed: Sequence[bool],
        after: str | None,
    ) -> Estimate:
        if all(c or t is None for c, t in zip(fixed, args, strict=True)):
            return FREE
        if op in self.backend.views:
            return self._view()
        if after is not None:
            slot = next(i for i, (c, t) in enumerate(zip(fixed, args, strict=True)) if not c and t is not None)
            if self._fuses(after, op, args, fixed, slot):
                return self._fused(args, slot)
        return self._lookup(op, attributes, args, outs, fixed)

    def _view(self) -> Estimate:
        raise AssertionError("a model says what a view costs")

    def _lookup(
        self,
        op: str,
        attributes: Mapping[str, AttributeValue],
        args: Sequence[TensorType | None],
        outs: Sequence[TensorType],
        fixed: Sequence[bool],
    ) -> Estimate:
        raise AssertionError("a model looks applications up")

    def _estimate(self, record: Record) -> Estimate:
        ns = record.ns + (record.ns_cold - record.ns) * self.cold
        return Estimate(ns / 1e3, "measured", max(record.iqr / 1.35, 0.02))


class RecordedProfile(_Model):
    """Costs from a recorded profile: never measures, and gives the same answer everywhere."""

    def __init__(self, profile: Profile, sizes: Mapping[str, int] | None = None) -> None:
        super().__init__(sizes)
        self.profile = profile
        self._predictor = Predictor.fit(profile.records.values())

    def in_context(self, working_set: int) -> RecordedProfile:
        other = copy.copy(self)
        limit = self.profile.header.get("cache_bytes")
        other.cold = cold_share(working_set, int(limit)) if isinstance(limit, int) else 1.0
        other._memo = {}
        return other

    def _view(self) -> Estimate:
        dispatch = self.profile.header.get("dispatch_ns", 200.0)
        return Estimate(float(dispatch) / 1e3, "measured", 0.1)

    def _lookup(
        self,
        op: str,
        attributes: Mapping[str, AttributeValue],
        args: Sequence[TensorType | None],
        outs: Sequence[TensorType],
        fixed: Sequence[bool],
    ) -> Estimate:
        record = self.profile.records.get(key_of(op, attributes, args, fixed).text)
        if record is not None:
            return self._estimate(record)
        return self._predictor.predict(op, *work_of(op, attributes, args, outs))


class MeasuredCpu(_Model):
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

    def in_context(self, working_set: int) -> MeasuredCpu:
        other = copy.copy(self)  # shares the store, the budget and what is known to fail
        other.cold = cold_share(working_set)
        other._memo = {}
        return other

    def recording(self) -> MeasuredCpu:
        """The same model, made to cost graphs by their own operators, as a recorded profile will."""
        other = copy.copy(self)
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
        record = self._measured(
            kernel.key, lambda: self.meter.time(kernel.graph, optimise=False), kernel.flops, kernel.moved
        )
        return self._estimate(record) if record else self._roofline(kernel.key, kernel.flops, kernel.moved)

    def graph(self, graph: Graph) -> Estimate:
        """The time of a small graph as ONNX Runtime runs it whole, fusions included; ``inf`` when it cannot run."""
        key = self._graph_key(graph)
        record = self._measured(key, lambda: measure_graph(graph, self.meter), 0, 0)
        return self._estimate(record) if record else Estimate(float("inf"), "roofline", 1.0)

    def graphs(self, graphs: Sequence[Graph], *, time_limit: float = 5.0) -> list[float]:
        """Microseconds of several small graphs, interleaved, so that their ratios can be trusted; not kept."""
        return measure_together(graphs, self.meter, sizes=self.sizes, cold=self.cold, time_limit=time_limit)

    def overhead_us(self) -> float:
        """What a run costs before its first node."""
        return self.meter.overhead / 1e3

    def _graph_key(self, graph: Graph) -> Key:
        return Key("graph", structural_hash(graph, values=False), "", tuple(str(v.type) for v in graph.inputs))

    def _view(self) -> Estimate:
        return Estimate(self.meter.dispatch / 1e3, "measured", 0.1)

    def _lookup(
        self,
        op: str,
        attributes: Mapping[str, AttributeValue],
        args: Sequence[TensorType | None],
        outs: Sequence[TensorType],
        fixed: Sequence[bool],
    ) -> Estimate:
        key = key_of(op, attributes, args, fixed)
        work = work_of(op, attributes, args, outs)

        def time_it() -> Timing:
            return measure_graph(application_graph(op, attributes, args, outs, fixed), self.meter)

        record = self._measured(key, time_it, *work)
        return self._estimate(record) if record else self._predict(key, *work)

    def _predict(self, key: Key, operations: int, moved: int) -> Estimate:
        found = self._roofline(key, operations, moved)
        if key.text in self._failed:  # our own form of the operator cannot run: it must not be chosen
            return Estimate(found.us * _CANNOT_RUN, "roofline", 1.0)
        return found

    def _roofline(self, key: Key, operations: int, moved: int) -> Estimate:
        """The prediction alone; a node of ONNX Runtime's own graph runs there, whether or not it can be timed alone."""
        if len(self.store) >= self._fitted[0] + _REFIT:
            self._fitted = (len(self.store), Predictor.fit(self.store.records))
        return self._fitted[1].predict(key.op, operations, moved)

    def _measured(self, key: Key, time_it: Callable[[], Timing], operations: int, moved: int) -> Record | None:
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
        record = Record(key, round(timing.ns, 1), round(timing.ns_cold, 1), round(timing.iqr, 4), 0, operations, moved)
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

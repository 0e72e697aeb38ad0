"""The price of one operator application, fusions included, with its uncertainty.

:class:`CostModel` is what the search asks. :class:`ProfileCostModel` reads a recorded profile: it measures nothing and
gives the same answer everywhere. :mod:`superopt.cost.measured_cost_models` has the models that time a device.
"""

from __future__ import annotations

import copy
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from superopt.cost.backend_capabilities import BACKENDS, ONNX_RUNTIME_CPU, BackendCapabilities
from superopt.cost.cache_model import CacheMissCurve, default_miss_curve, miss_curve_of_header
from superopt.cost.device_profile import DeviceProfile
from superopt.cost.measurement_record import (
    FREE,
    CostEstimate,
    MeasurementKey,
    MeasurementRecord,
    MeasurementRequest,
    constant_bytes,
    key_of,
)
from superopt.cost.operator_time_predictor import OperatorTimePredictor
from superopt.cost.roofline_ceilings import DevicePeakPerformance, ceilings_of, factor_of, peaks_of_header
from superopt.ir.graph import Graph
from superopt.ir.symbolic_size_binding import at_sizes, value_at_sizes
from superopt.ir.terms import AttributeValue
from superopt.ir.types import TensorType
from superopt.runtime.paired_benchmark import IQR_OF_NORMAL, PairedTimes

if TYPE_CHECKING:
    from superopt.cost.graph_costs import StandaloneKernel
    from superopt.cost.measured_cost_models import MeasurementCache
    from superopt.runtime.protocol import Runtime

__all__ = [
    "refusal_cost",
    "Application",
    "Attributes",
    "CostModel",
    "ExecutedGraphCostModel",
    "DeviceGraphTimer",
    "ProfileCostModel",
]


@dataclass(frozen=True)
class CostModelPolicy:
    """Uncertainties and defaults of prices.

    Attributes:
        least_sigma: two runs of one measurement differ by this much, however small the spread of either is.
        least_sigma_ns: and by so many nanoseconds (operators below 1 µs in four sessions).
        refusal_factor: times its prediction: the finite price of a form that the device refuses, never chosen.
        dispatch_ns: of a view, where the profile does not say.
        integer_sigma: of a product of integers that is priced by that of reals (0.12 to 0.8 of it were measured).
    """

    least_sigma: float = 0.02
    least_sigma_ns: float = 20.0
    refusal_factor: float = 1e3
    dispatch_ns: float = 200.0
    integer_sigma: float = 0.5


PRICING = CostModelPolicy()


Attributes = Mapping[str, AttributeValue] | Sequence[tuple[str, AttributeValue]]
Application = tuple[str, Attributes, Sequence[TensorType | None], Sequence[bool]]  # op, attributes, types, constant


class DeviceGraphTimer(Protocol):
    """A device that times whole graphs by itself: :class:`superopt.cost.cuda_timing.CudaOperatorTimer`."""

    def time_models(
        self, graphs: Sequence[Graph], feeds: Mapping[str, np.ndarray[Any, Any]], sizes: Mapping[str, int] | None, *,
        rounds: int, time_limit: float,
    ) -> PairedTimes: ...  # fmt: skip


class ExecutedGraphCostModel(Protocol):
    """A cost model that prices the nodes of the runtime's own optimised graph."""

    @property
    def runtime(self) -> Runtime:
        """What optimises the graph, and runs it."""

    def kernel(self, kernel: StandaloneKernel) -> CostEstimate:
        """The cost of one node of that graph."""

    def overhead_us(self) -> float:
        """What a run costs before its first node."""


class CostModel(ABC):
    """Prices of operator applications, which add up over a graph. The search asks for nothing else.

    Beyond prices, a model declares: which prices need no measurement (:meth:`has_price`, :meth:`expected`), what its
    prices depend on (:attr:`digest`), a model of the recorded prices alone (:attr:`recorded`), prices of the runtime's
    own nodes (:attr:`lowered`), and a device that times whole graphs (:attr:`device_timer`).

    Args:
        sizes: what symbolic dimensions are costed at.
        backend: what runs the operators: what it fuses, and what it does not execute at all.
    """

    measurements: MeasurementCache | None = None  # of a device; ``None`` if nothing is measured

    def __init__(self, sizes: Mapping[str, int] | None, backend: BackendCapabilities = ONNX_RUNTIME_CPU) -> None:
        self.sizes = dict(sizes or {})
        self.backend = backend
        self.cold = 1.0
        self._memo: dict[tuple[object, ...], CostEstimate] = {}

    @property
    @abstractmethod
    def cache_bytes(self) -> int | None:
        """Size of the device's last cache; ``None`` where it is not known, so that weights count as cold."""

    @property
    def miss_curve(self) -> CacheMissCurve | None:
        """How much an inference may read until its weights are cold; ``None``: they always are."""
        return None if self.cache_bytes is None else default_miss_curve(self.cache_bytes)

    @property
    def digest(self) -> str | None:
        """What the prices depend on, as a key for cached results; ``None`` if that is unknown."""
        return None

    @property
    def measured(self) -> int:
        """How many measurements were made for prices (records that were already there do not count)."""
        return 0

    @property
    def recorded(self) -> CostModel | None:
        """A model of the prices that need no measurement, so that no noise is in them; ``None`` if there are none."""
        return self

    @property
    def lowered(self) -> ExecutedGraphCostModel | None:
        """This model, where it prices the runtime's own nodes; ``None``: graphs are costed by their own."""
        return None

    @property
    def device_timer(self) -> DeviceGraphTimer | None:
        """What times whole graphs of this target; ``None``: a runtime on this machine's processor."""
        return None

    def has_price(
        self,
        op: str,
        attributes: Attributes,
        arg_types: Sequence[TensorType | None],
        constant_args: Sequence[bool] = (),
    ) -> bool:
        """Whether :meth:`application` returns a price without measuring anything."""
        if op in self.backend.views:
            return True
        fixed = (*constant_args, *(False,) * (len(arg_types) - len(constant_args)))
        arg_types, fixed = self.backend.as_run(op, arg_types, fixed)
        args = [t if t is None else at_sizes(t, self.sizes) for t in arg_types]
        return self._has_record(
            key_of(op, {k: value_at_sizes(v, self.sizes) for k, v in dict(attributes).items()}, args, fixed)
        )

    def _has_record(self, key: MeasurementKey) -> bool:
        """Whether there is a record under the key; a model that never measures needs none."""
        return True

    def expected(
        self,
        op: str,
        attributes: Attributes,
        arg_types: Sequence[TensorType | None],
        out_types: Sequence[TensorType],
        constant_args: Sequence[bool] = (),
    ) -> CostEstimate:
        """The predicted price of an application, without measuring it."""
        return self._expected(MeasurementRequest(op, dict(attributes), arg_types, out_types, constant_args))

    def _expected(self, question: MeasurementRequest) -> CostEstimate:
        """The same for a question; a model that never measures looks it up."""
        return self._lookup(question)

    @abstractmethod
    def _view(self) -> CostEstimate:
        """What an operator costs that only renames memory."""

    @abstractmethod
    def _lookup(self, question: MeasurementRequest) -> CostEstimate:
        """What an application costs that is executed."""

    def peaks(self) -> DevicePeakPerformance | None:
        """The device's ceilings, where they are known as measured."""
        return None

    def in_context(self, working_set: int) -> Self:
        """The same model for parts of a graph that reads this many bytes an inference: are its weights cached?"""
        cold = self.cold_share(working_set)
        other = copy.copy(self)  # shares what is known of the device
        other.cold = cold
        other._memo = {}
        return other

    def cold_share(self, working_set: int) -> float:
        """Share of the weights that comes from memory, for a model that reads this many bytes an inference."""
        ramp = self.miss_curve
        return 1.0 if ramp is None else ramp.share(working_set)

    def fusable(self, producer: str, consumer: str, *, constant_others: bool = True, rank: int = 0) -> bool:
        """Whether the consumer is nearly free when it alone reads the producer's result."""
        return self.backend.fusable(producer, consumer, constant_others=constant_others, rank=rank)

    def application(
        self,
        op: str,
        attributes: Attributes,
        arg_types: Sequence[TensorType | None],
        out_types: Sequence[TensorType],
        constant_args: Sequence[bool] = (),
        *,
        after: str | None = None,
    ) -> CostEstimate:
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
        values = dict(attributes)
        fixed = (*constant_args, *(False,) * (len(arg_types) - len(constant_args)))
        arg_types, fixed = self.backend.as_run(op, arg_types, fixed)
        place = (op, tuple(sorted(values.items())), tuple(arg_types), fixed, after)
        found = self._memo.get(place)
        if found is None:
            args = [t if t is None else at_sizes(t, self.sizes) for t in arg_types]
            outs = [at_sizes(t, self.sizes) for t in out_types]
            at = {k: value_at_sizes(v, self.sizes) for k, v in values.items()}
            question = MeasurementRequest(op, at, args, outs, fixed)
            found = self._memo[place] = self._cost(question, after, self._lookup)
        return found

    def _cost(
        self, question: MeasurementRequest, after: str | None, price: Callable[[MeasurementRequest], CostEstimate]
    ) -> CostEstimate:
        slots = list(enumerate(zip(question.fixed, question.args, strict=True)))
        moving = [i for i, (constant, kind) in slots if not constant and kind is not None]
        if not moving:
            return FREE
        if question.op in self.backend.views:
            return self._view()
        if after is not None and self._fuses(after, question.op, question.args, question.fixed, moving[0]):
            return self._fused(question.args, question.outs, moving[0])
        return price(question)

    def _fuses(
        self, producer: str, op: str, types: Sequence[TensorType | None], fixed: Sequence[bool], slot: int
    ) -> bool:
        others = [(t, c) for i, (t, c) in enumerate(zip(types, fixed, strict=True)) if i != slot and t is not None]
        rank = max((t.rank or 0 for t, _ in others), default=0)
        return self.fusable(producer, op, constant_others=all(c for _, c in others), rank=rank)

    def _fused(self, types: Sequence[TensorType | None], outs: Sequence[TensorType], slot: int) -> CostEstimate:
        """A fused operator still reads its other arguments, and writes what is more than its producer would write."""
        own = types[slot]
        others = sum(t.nbytes or 0 for i, t in enumerate(types) if t is not None and i != slot)
        more = max(0, sum(t.nbytes or 0 for t in outs) - (own.nbytes or 0 if own is not None else 0))
        return CostEstimate((others + more) / self.streamed, "free", 0.0)

    @property
    def streamed(self) -> float:
        """Bytes a µs that a fused operator reads and writes besides."""
        return self.backend.streamed

    def estimate_of(self, record: MeasurementRecord) -> CostEstimate:
        """The price of a record in this context: between warm and cold, with its uncertainty."""
        ns = record.ns + (record.ns_cold - record.ns) * self.cold_fraction(record.key)
        least = max(PRICING.least_sigma, PRICING.least_sigma_ns / ns) if ns > 0 else PRICING.least_sigma
        return CostEstimate(ns / 1e3, "measured", max(record.iqr / IQR_OF_NORMAL, least))

    def cold_fraction(self, key: MeasurementKey) -> float:
        """Where the price lies between the warm time (0) and the cold one (1). Weights that are too large for the cache
        by themselves are partly cold in the warm time already."""
        if self.cold in (0.0, 1.0):
            return self.cold
        own = self.cold_share(constant_bytes(key))
        return max(0.0, (self.cold - own) / (1.0 - own)) if own < 1.0 else 1.0


def refusal_cost(prediction: CostEstimate) -> CostEstimate:
    """The price of an application that the device refuses to run: finite, and never chosen."""
    return CostEstimate(prediction.us * PRICING.refusal_factor, "roofline", 1.0)


class ProfileCostModel(CostModel):
    """Costs from a recorded profile of any device; what it lacks is predicted from its own records.

    Args:
        profile: header and records. Its header names the backend (what fuses, what is a view), the size of the last
            cache, and the measured ceilings. Of several engines that answer one question the fastest counts.
        sizes: what symbolic dimensions are costed at.
        backend: what runs the operators, if not what the profile was recorded with.
    """

    def __init__(
        self, profile: DeviceProfile, sizes: Mapping[str, int] | None = None, backend: BackendCapabilities | None = None
    ) -> None:
        super().__init__(sizes, backend or BACKENDS.get(str(profile.header.get("backend")), ONNX_RUNTIME_CPU))
        self.profile = profile
        self.predictor = OperatorTimePredictor.fit(profile.records.values(), ceilings_of(profile.header))
        self._by_operator: dict[str, list[MeasurementRecord]] = {}
        self._answers: dict[
            str, Mapping[tuple[object, ...], MeasurementRecord]
        ] = {}  # of the operators that were asked for
        self._predicted: dict[tuple[str, tuple[int, int], MeasurementKey], CostEstimate] = {}
        for _, record in sorted(profile.records.items()):
            self._by_operator.setdefault(record.key.op, []).append(record)
        refused = profile.header.get("refused")
        self._refused = frozenset(map(_question_of_key, refused)) if isinstance(refused, list) else frozenset()

    @property
    def cache_bytes(self) -> int | None:
        limit = self.profile.header.get("cache_bytes")
        return int(limit) if isinstance(limit, int) else None

    @property
    def streamed(self) -> float:
        return super().streamed / factor_of(self.profile.header, "memory")

    @cached_property
    def miss_curve(self) -> CacheMissCurve | None:
        return miss_curve_of_header(self.profile.header) or super().miss_curve

    @property
    def digest(self) -> str | None:
        profile = self.profile
        scale = json.dumps(profile.header.get("calibration", {}).get("factors"), sort_keys=True)
        return (
            f"recorded {profile.header.get('sha256')} {len(profile.records)} {scale} {self.backend.name} {self.cold!r}"
        )

    def peaks(self) -> DevicePeakPerformance | None:
        return peaks_of_header(self.profile.header)

    def predicted(self, op: str, work: tuple[int, int], key: MeasurementKey) -> CostEstimate:
        """What is expected of an application that was not measured: its operator, FLOPs and bytes, and key."""
        # Always of cold weights: no measurement corrects predictions here, and warm times scatter more, so that gains
        # are lost in the noise (MobileOne kept its branches, at 0.44 of the cost instead of 0.22).
        asked = op, work, key
        found = self._predicted.get(asked)
        if found is None:
            found = self._predicted[asked] = self.predictor.predict(op, *work, key)
        return found

    def _expected(self, question: MeasurementRequest) -> CostEstimate:
        kernels = self.backend.integers
        real = None if kernels is None else kernels.of_reals(question)
        if real is None:
            return self.predicted(question.op, question.work, question.key)
        found = self._lookup(real[0])
        return CostEstimate(found.us * real[1], "interpolated", PRICING.integer_sigma)

    def _view(self) -> CostEstimate:
        return CostEstimate(float(self.profile.header.get("dispatch_ns", PRICING.dispatch_ns)) / 1e3, "measured", 0.1)

    def record_of(self, key: MeasurementKey) -> MeasurementRecord | None:
        """What was measured of an application, by whichever engine is the fastest."""
        known = self._answers.get(key.op)
        if known is None:
            found: dict[tuple[object, ...], MeasurementRecord] = {}
            for record in self._by_operator.get(key.op, ()):
                other = found.get(record.key.question)
                if other is None or record.ns_cold < other.ns_cold:
                    found[record.key.question] = record
            known = self._answers[key.op] = found
        return known.get(key.question)

    def _lookup(self, question: MeasurementRequest) -> CostEstimate:
        record = self.record_of(question.key)
        if record is not None:
            return self.estimate_of(record)
        found = self._expected(question)
        return refusal_cost(found) if question.key.question in self._refused else found


def _question_of_key(text: object) -> tuple[object, ...]:
    """The question of a refused key, whatever engine refused it."""
    data = json.loads(str(text))
    return data["op"], data["attrs"], data["dtype"], tuple(data["shapes"])

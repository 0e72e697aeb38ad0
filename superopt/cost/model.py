"""What a cost model answers: microseconds of one operator application, fusions included, and how sure it is.

This is the part that all models share; :mod:`superopt.cost.recorded` reads a profile, :mod:`superopt.cost.measured`
asks a device.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from superopt.cost.cache_model import Ramp, usual
from superopt.cost.fusion import ONNX_RUNTIME_CPU, Backend
from superopt.cost.measurement_request import Question, fixed_bytes, work_of
from superopt.cost.peaks import Peaks
from superopt.cost.record import FREE, Estimate, Key, Record, key_of
from superopt.cost.trial import at_sizes, value_at_sizes
from superopt.ir.graph import Graph
from superopt.ir.terms import AttributeValue
from superopt.ir.types import TensorType
from superopt.runtime.paired_benchmark import RaceResult
from superopt.runtime.statistics import IQR_OF_NORMAL

if TYPE_CHECKING:
    from superopt.cost.kernel import Kernel
    from superopt.cost.measurements import Answers
    from superopt.runtime.protocol import Runtime

__all__ = ["Attributes", "CostModel", "Lowered", "Racing", "work_of"]

Attributes = Mapping[str, AttributeValue] | Sequence[tuple[str, AttributeValue]]
_LEAST_SIGMA = 0.02  # two runs of one measurement differ by this much, however narrow either's own spread is
_LEAST_SIGMA_NS = 20.0  # and by so many nanoseconds (operators below a microsecond, timed in four sessions)


class Racing(Protocol):
    """A device that times whole graphs by itself: :class:`superopt.cost.cuda.CudaDevice`."""

    def race(
        self, graphs: Sequence[Graph], feeds: Mapping[str, np.ndarray[Any, Any]], sizes: Mapping[str, int] | None, *,
        rounds: int, time_limit: float,
    ) -> RaceResult: ...  # fmt: skip


class Lowered(Protocol):
    """A cost model that prices the nodes of the runtime's own optimised graph."""

    @property
    def runtime(self) -> Runtime:
        """What optimises the graph, and runs it."""

    def kernel(self, kernel: Kernel) -> Estimate:
        """The cost of one node of that graph."""

    def overhead_us(self) -> float:
        """What a run costs before its first node."""


class CostModel(ABC):
    """What the search asks. Costs add up over applications; ``after`` names what the backend fuses.

    What a model can do beyond answering is declared here: it may know beforehand which answers would have to be
    measured (:meth:`known`, :meth:`expected`), what its answers depend on (:attr:`digest`), the prices that nobody has
    to measure (:attr:`recorded`), those of the runtime's own nodes (:attr:`lowered`), and a device that times whole
    graphs (:attr:`racing`).

    Args:
        sizes: what symbolic dimensions are costed at.
        backend: what runs the operators: what it fuses, and what it does not execute at all.
    """

    answers: Answers | None = None  # what a device was asked; ``None`` where none is

    def __init__(self, sizes: Mapping[str, int] | None, backend: Backend = ONNX_RUNTIME_CPU) -> None:
        self.sizes = dict(sizes or {})
        self.backend = backend
        self.cold = 1.0
        self._memo: dict[tuple[object, ...], Estimate] = {}

    @property
    @abstractmethod
    def cache_bytes(self) -> int | None:
        """Size of the device's last cache; ``None`` where it is not known, so that weights count as cold."""

    @property
    def ramp(self) -> Ramp | None:
        """How much an inference may read until its weights are found cold; ``None``: they always are."""
        return None if self.cache_bytes is None else usual(self.cache_bytes)

    @property
    def digest(self) -> str | None:
        """What the answers depend on, so that results may be kept under it; ``None`` where that is not known."""
        return None

    @property
    def measured(self) -> int:
        """How many measurements were made for answers (what was at hand already is not counted)."""
        return 0

    @property
    def recorded(self) -> CostModel | None:
        """The prices that are known without measuring: noise has no part in them. ``None``: none are."""
        return self

    @property
    def lowered(self) -> Lowered | None:
        """This model, where it prices the runtime's own nodes; ``None``: graphs are costed by their own."""
        return None

    @property
    def racing(self) -> Racing | None:
        """What times whole graphs of this target; ``None``: a runtime on this machine's processor."""
        return None

    def known(
        self,
        op: str,
        attributes: Attributes,
        arg_types: Sequence[TensorType | None],
        constant_args: Sequence[bool] = (),
    ) -> bool:
        """Whether :meth:`application` answers without measuring anything."""
        if op in self.backend.views:
            return True
        fixed = (*constant_args, *(False,) * (len(arg_types) - len(constant_args)))
        arg_types, fixed = self.backend.as_run(op, arg_types, fixed)
        args = [t if t is None else at_sizes(t, self.sizes) for t in arg_types]
        return self._known(
            key_of(op, {k: value_at_sizes(v, self.sizes) for k, v in dict(attributes).items()}, args, fixed)
        )

    def _known(self, key: Key) -> bool:
        """Whether what is filed under a key is at hand; a model that never measures knows everything."""
        return True

    def expected(
        self,
        op: str,
        attributes: Attributes,
        arg_types: Sequence[TensorType | None],
        out_types: Sequence[TensorType],
        constant_args: Sequence[bool] = (),
    ) -> Estimate:
        """What is expected of an application, without measuring it."""
        return self._expected(Question(op, dict(attributes), arg_types, out_types, constant_args))

    def _expected(self, question: Question) -> Estimate:
        """The same for a question; a model that never measures answers it."""
        return self._lookup(question)

    @abstractmethod
    def _view(self) -> Estimate:
        """What an operator costs that only renames memory."""

    @abstractmethod
    def _lookup(self, question: Question) -> Estimate:
        """What an application costs that is executed."""

    def peaks(self) -> Peaks | None:
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
        ramp = self.ramp
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
        values = dict(attributes)
        fixed = (*constant_args, *(False,) * (len(arg_types) - len(constant_args)))
        arg_types, fixed = self.backend.as_run(op, arg_types, fixed)
        place = (op, tuple(sorted(values.items())), tuple(arg_types), fixed, after)
        found = self._memo.get(place)
        if found is None:
            args = [t if t is None else at_sizes(t, self.sizes) for t in arg_types]
            outs = [at_sizes(t, self.sizes) for t in out_types]
            at = {k: value_at_sizes(v, self.sizes) for k, v in values.items()}
            question = Question(op, at, args, outs, fixed)
            found = self._memo[place] = self._cost(question, after, self._lookup)
        return found

    def _cost(self, question: Question, after: str | None, price: Callable[[Question], Estimate]) -> Estimate:
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

    def _fused(self, types: Sequence[TensorType | None], outs: Sequence[TensorType], slot: int) -> Estimate:
        """A fused operator still reads its other arguments, and writes what is more than its producer would write."""
        own = types[slot]
        others = sum(t.nbytes or 0 for i, t in enumerate(types) if t is not None and i != slot)
        more = max(0, sum(t.nbytes or 0 for t in outs) - (own.nbytes or 0 if own is not None else 0))
        return Estimate((others + more) / self.streamed, "free", 0.0)

    @property
    def streamed(self) -> float:
        """Bytes a µs that a fused operator reads and writes besides."""
        return self.backend.streamed

    def estimate_of(self, record: Record) -> Estimate:
        """What a record says here: warm or cold, and how sure it is."""
        ns = record.ns + (record.ns_cold - record.ns) * self.colder(record.key)
        least = max(_LEAST_SIGMA, _LEAST_SIGMA_NS / ns) if ns > 0 else _LEAST_SIGMA
        return Estimate(ns / 1e3, "measured", max(record.iqr / IQR_OF_NORMAL, least))

    def colder(self, key: Key) -> float:
        """How much of the way from the warm time to the cold one: weights that are too large for the cache by
        themselves are partly cold in the warm time already."""
        if self.cold in (0.0, 1.0):
            return self.cold
        own = self.cold_share(fixed_bytes(key))
        return max(0.0, (self.cold - own) / (1.0 - own)) if own < 1.0 else 1.0

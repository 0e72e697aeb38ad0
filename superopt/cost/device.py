"""What a profile can be recorded from: something that times one operator application, and says what it is.

A CUDA device plugs in here: it implements :class:`Device`, names a backend of :mod:`superopt.cost.fusion` with its own
fusions, and everything above (planning, recording, the profile's format, the predictor) is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

from superopt import formats
from superopt.cost.cache import last_level_bytes
from superopt.cost.cache_model import fitted, pass_ns, probed_bytes
from superopt.cost.fusion import Backend, cpu_backend
from superopt.cost.measure import METHOD, Meter, Timing, measure_graph
from superopt.cost.measurement_request import Question
from superopt.cost.model import Racing
from superopt.cost.peaks import peaks_of_times
from superopt.cost.record import Key
from superopt.cost.trial import application_graph
from superopt.ir.graph import Graph, Node, Value, Weight
from superopt.ir.types import DType, TensorType
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.runtime.paired_benchmark import circumstances
from superopt.runtime.protocol import Bound, Runtime
from superopt.runtime.sample_data import feeds_for, with_values

__all__ = ["CpuDevice", "Device"]

_SENTINEL_RUNS = 9
_GEMM, _COPY = 256, 2 << 20  # rows and columns of the sentinels' product; elements of what they copy
_PEAK_RUNS = 3


class Device(Protocol):
    """A machine that times operator applications.

    Attributes:
        backend: what it fuses by itself and what it does not execute.
        name: the machine, its runtime and how it is used, in words: equal for what times alike.
    """

    backend: Backend

    @property
    def name(self) -> str: ...

    @property
    def racing(self) -> Racing | None:
        """What times whole graphs against each other here; ``None``: a runtime on this machine's processor."""
        ...

    def facts(self) -> dict[str, Any]:
        """The header's part about the device: ``device``, ``runtime`` and other versions, ``backend``, ``precision``,
        ``layout``, ``cache_bytes``, ``cache_ramp`` (:class:`superopt.cost.cache_model.Ramp`; may be absent),
        ``dispatch_ns``, ``peaks`` (``flops_per_s``, ``bytes_per_s``, as measured)."""
        ...

    def key(self, question: Question) -> Key:
        """What the answer is filed under: the question with the engine, precision and layout that answer it."""
        ...

    def expect(self, questions: Sequence[Question]) -> None:
        """Make ready at once what can be, of questions that are timed next: kernels are compiled together, say."""
        ...

    def time(self, question: Question, *, cold: bool = True) -> Timing:
        """Time it; ``cold``: with weights in memory, too, else that time need not be more than the warm one.

        Raises:
            SuperoptError: the backend refuses it. NotCovered: it cannot be timed alone.
        """
        ...

    def sentinels(self) -> Mapping[str, float]:
        """Nanoseconds of a few fixed pieces of work, by name: their drift is the machine's."""
        ...


class CpuDevice:
    """This machine's processor, through a runtime."""

    racing: Racing | None = None

    def __init__(self, threads: int = 1, runtime: Runtime = ONNX_RUNTIME) -> None:
        self.meter = Meter(threads, runtime)
        self.backend = cpu_backend(runtime)

    @property
    def name(self) -> str:
        found = circumstances(self.meter.threads, self.meter.clock, self.meter.runtime)
        return f"{found['device']}, {found['cores']} cores, {found['runtime']}, threads {found['threads']}, {METHOD}"

    def facts(self) -> dict[str, Any]:
        found = circumstances(self.meter.threads, self.meter.clock, self.meter.runtime)
        cache = last_level_bytes()
        ramp = fitted({size: pass_ns(size, self.meter.clock) for size in probed_bytes(cache)}, cache)
        return {
            **{k: found[k] for k in ("device", "cores", "threads", "clock", "runtime")},
            "backend": self.backend.name, "precision": "ieee", "layout": "plain",
            "cache_bytes": cache, "cache_ramp": [[round(size), round(share, 4)] for size, share in ramp.points],
            "dispatch_ns": round(self.meter.dispatch, 1),
            "peaks": peaks_of_times(lambda q: min(self.time(q).ns for _ in range(_PEAK_RUNS))),
        }  # fmt: skip

    def key(self, question: Question) -> Key:
        return question.key

    def expect(self, questions: Sequence[Question]) -> None:
        """Nothing: a runtime makes each ready in a few milliseconds."""

    def time(self, question: Question, *, cold: bool = True) -> Timing:
        return measure_graph(application_graph(question), self.meter, cold=cold)

    def sentinels(self) -> Mapping[str, float]:
        now = self.meter.now
        found = {}
        for name, bound in self._fixed.items():
            taken = []
            for _ in range(_SENTINEL_RUNS):
                start = now()
                bound.step()
                taken.append(now() - start)
            found[name] = float(sorted(taken)[len(taken) // 4])
        return found

    @cached_property
    def _fixed(self) -> dict[str, Bound]:
        def bound(graph: Graph) -> Bound:
            content = formats.to_onnx_bytes(with_values(graph))
            return self.meter.runtime.load(content, threads=self.meter.threads).bound(feeds_for(graph))

        return {"gemm": bound(_product(_GEMM)), "copy": bound(_copy(_COPY))}


def _product(size: int) -> Graph:
    kind = TensorType(DType.FLOAT32, (size, size))
    node = Node("product", "MatMul", ("x", "w"), ("y",))
    return Graph("gemm", (Value("x", kind),), (Value("y", kind),), (Weight("w", kind, None),), (node,), {"": 21})


def _copy(elements: int) -> Graph:
    kind = TensorType(DType.FLOAT32, (elements,))
    return Graph(
        "copy", (Value("x", kind),), (Value("y", kind),), (), (Node("copy", "Relu", ("x",), ("y",)),), {"": 21}
    )

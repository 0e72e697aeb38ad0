"""What a device reaches at best, measured by a small benchmark: the ceilings of a roofline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from superopt.cost.measurement_request import Question
from superopt.ir.types import DType, TensorType

__all__ = ["PEAK_QUESTIONS", "Peaks", "peaks_of_header", "peaks_of_times"]

_PRODUCT, _FAR, _NEAR = 768, 16 << 20, 1 << 19  # rows and columns; elements in memory, and in the last-level cache


def _square(size: int) -> TensorType:
    return TensorType(DType.FLOAT32, (size, size))


def _pass(elements: int) -> Question:
    kind = TensorType(DType.FLOAT32, (elements,))
    return Question("Relu", {}, (kind,), (kind,), (False,))


PEAK_QUESTIONS: Mapping[str, Question] = {
    "flops_per_s": Question(
        "MatMul", {}, (_square(_PRODUCT), _square(_PRODUCT)), (_square(_PRODUCT),), (False, True)
    ),
    "bytes_per_s": _pass(_FAR),
    "cache_bytes_per_s": _pass(_NEAR),
}  # fmt: skip


@dataclass(frozen=True)
class Peaks:
    """A device's ceilings as measured: FLOPs a second, bytes a second from memory and from the last cache."""

    device: str
    flops_per_second: float
    bytes_per_second: float
    cache_bytes_per_second: float | None = None
    cache_bytes: int = 0

    @property
    def far_byte_us(self) -> float:
        """Microseconds that a byte takes longer from memory than from the last cache, which held it a moment ago."""
        near = self.cache_bytes_per_second
        return max(0.0, 1e6 / self.bytes_per_second - (1e6 / near if near else 0.0))

    def attainable(self, flops: float, moved: float) -> float:
        """FLOPs a second that such work can reach: what half the last cache holds need not come from memory."""
        cached = self.cache_bytes_per_second is not None and moved < self.cache_bytes / 2
        speed = self.cache_bytes_per_second if cached and self.cache_bytes_per_second else self.bytes_per_second
        return min(self.flops_per_second, flops / moved * speed) if moved else self.flops_per_second


def peaks_of_times(time_ns: Callable[[Question], float]) -> dict[str, float]:
    """The header's ``peaks`` from the times of :data:`PEAK_QUESTIONS`: float32 products, and passes over arrays."""
    found = {}
    for name, question in PEAK_QUESTIONS.items():
        flops, moved = question.work
        found[name] = float(round(1e9 * (flops if name == "flops_per_s" else moved) / time_ns(question)))
    return found


def peaks_of_header(header: Mapping[str, Any]) -> Peaks | None:
    """The ceilings that a profile's header holds; ``None`` where it holds none."""
    held = header.get("peaks")
    speeds = [held.get(k) for k in ("flops_per_s", "bytes_per_s")] if isinstance(held, Mapping) else []
    if len(speeds) != 2 or not all(isinstance(s, int | float) and s > 0 for s in speeds):
        return None
    cached, size = held.get("cache_bytes_per_s") if isinstance(held, Mapping) else None, header.get("cache_bytes")
    return Peaks(
        str(header.get("device", "")), float(speeds[0] or 0), float(speeds[1] or 0),
        float(cached) if isinstance(cached, int | float) and cached > 0 else None, size if isinstance(size, int) else 0,
    )  # fmt: skip

"""The roofline: a device's ceilings as measured, and how far below them the operators of a graph are.

Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", Communications of the ACM, 2009.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from superopt.cost.measurement_record import MeasurementRequest
from superopt.ir.types import DType, TensorType

if TYPE_CHECKING:
    from superopt.cost.graph_costs import GraphCost

__all__ = [
    "RooflineCeilings",
    "ceilings_of",
    "factor_of",
    "PEAK_QUESTIONS",
    "DevicePeakPerformance",
    "ceilings",
    "operator_rows",
    "peaks_of_header",
    "peaks_of_times",
    "roofline_data",
]


@dataclass(frozen=True)
class RooflineBenchmarkPolicy:
    """Sizes of the microbenchmarks of the ceilings.

    Attributes:
        product: rows and columns of the product.
        memory_elements: elements that a pass reads from memory.
        cache_elements: elements that a pass reads from the last cache.
    """

    product: int = 768
    memory_elements: int = 16 << 20
    cache_elements: int = 1 << 19


PROBES = RooflineBenchmarkPolicy()


def _square(size: int) -> TensorType:
    return TensorType(DType.FLOAT32, (size, size))


def _pass(elements: int) -> MeasurementRequest:
    kind = TensorType(DType.FLOAT32, (elements,))
    return MeasurementRequest("Relu", {}, (kind,), (kind,), (False,))


PEAK_QUESTIONS: Mapping[str, MeasurementRequest] = {
    "flops_per_s": MeasurementRequest(
        "MatMul", {}, (_square(PROBES.product), _square(PROBES.product)), (_square(PROBES.product),), (False, True)
    ),
    "bytes_per_s": _pass(PROBES.memory_elements),
    "cache_bytes_per_s": _pass(PROBES.cache_elements),
}  # fmt: skip


@dataclass(frozen=True)
class DevicePeakPerformance:
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


def peaks_of_times(time_ns: Callable[[MeasurementRequest], float]) -> dict[str, float]:
    """The header's ``peaks`` from the times of :data:`PEAK_QUESTIONS`: float32 products, and passes over arrays."""
    found = {}
    for name, question in PEAK_QUESTIONS.items():
        flops, moved = question.work
        found[name] = float(round(1e9 * (flops if name == "flops_per_s" else moved) / time_ns(question)))
    return found


def peaks_of_header(header: Mapping[str, Any]) -> DevicePeakPerformance | None:
    """The ceilings in a profile's header; ``None`` if it has none."""
    held = header.get("peaks")
    speeds = [held.get(k) for k in ("flops_per_s", "bytes_per_s")] if isinstance(held, Mapping) else []
    if len(speeds) != 2 or not all(isinstance(s, int | float) and s > 0 for s in speeds):
        return None
    cached, size = held.get("cache_bytes_per_s") if isinstance(held, Mapping) else None, header.get("cache_bytes")
    return DevicePeakPerformance(
        str(header.get("device", "")), float(speeds[0] or 0), float(speeds[1] or 0),
        float(cached) if isinstance(cached, int | float) and cached > 0 else None, size if isinstance(size, int) else 0,
    )  # fmt: skip


def factor_of(header: Mapping[str, Any], bound: str) -> float:
    """The factor by which a calibration scaled a profile's prices of one bound; 1 without a calibration. A figure that
    is added to prices must be scaled by it too."""
    return float(header.get("calibration", {}).get("factors", {}).get(bound, 1.0))


@dataclass(frozen=True)
class RooflineCeilings:
    """The best that the device can do: FLOP/ns, bytes/ns from memory and from its last cache, and the least time of an
    operator."""

    flops_per_ns: float = 60.0
    bytes_per_ns: float = 12.0
    least_ns: float = 350.0
    cached_bytes_per_ns: float = 50.0
    span_ns: float = 0.0


def ceilings_of(header: Mapping[str, Any]) -> RooflineCeilings:
    """The ceilings in a profile's header; the usual ones if it has none."""
    least = RooflineCeilings.least_ns * factor_of(header, "overhead")
    usual, peaks = RooflineCeilings(least_ns=least), header.get("peaks")
    if not isinstance(peaks, Mapping):
        return usual

    def found(name: str, otherwise: float) -> float:
        value = peaks.get(name)
        return value / 1e9 if isinstance(value, int | float) and value > 0 else otherwise

    memory = found("bytes_per_s", usual.bytes_per_ns)
    cache = max(memory, found("cache_bytes_per_s", memory))
    return RooflineCeilings(found("flops_per_s", usual.flops_per_ns), memory, usual.least_ns, cache)


def operator_rows(found: GraphCost) -> list[dict[str, Any]]:
    """Time, FLOPs, bytes and intensity by operator, the costliest first."""
    rows: dict[str, dict[str, Any]] = {}
    for (_, op, estimate), (flops, moved) in zip(found.per_node, found.per_node_work, strict=True):
        row = rows.setdefault(op, {"op": op, "count": 0, "us": 0.0, "flops": 0, "bytes": 0})
        row["count"] += 1
        row["us"] += estimate.us
        row["flops"] += flops
        row["bytes"] += moved
    for row in rows.values():
        row["intensity"] = row["flops"] / row["bytes"] if row["bytes"] else None
    return sorted(rows.values(), key=lambda r: (-r["us"], r["op"]))


def ceilings(peaks: DevicePeakPerformance | None) -> dict[str, Any]:
    """The part of :func:`roofline_data` that is about the device; empty where its ceilings were not measured."""
    if peaks is None:
        return {}
    return {
        "device": peaks.device, "flops_per_second": peaks.flops_per_second,
        "bytes_per_second": peaks.bytes_per_second, "cache_bytes_per_second": peaks.cache_bytes_per_second,
    }  # fmt: skip


def roofline_data(before: GraphCost, after: GraphCost | None, peaks: DevicePeakPerformance | None) -> dict[str, Any]:
    """What a roofline plot needs, as JSON data: ceilings (none where they were not measured) and operators by side."""
    sides = {"before": operator_rows(before)}
    if after is not None:
        sides["after"] = operator_rows(after)
    return {**ceilings(peaks), **sides}

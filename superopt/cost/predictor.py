"""Costs of what was not measured: a roofline fitted per operator, corrected by the nearest measured neighbours.

``roof = t0 + max(F / P, B / W) / eta`` with F FLOPs and B bytes, P and W the device's ceilings and ``eta`` the
operator's efficiency, fitted on log time. The result is multiplied by ``exp(Σ wᵢ ln(nsᵢ / roofᵢ))`` over the nearest
records, clamped to [0.5, 2].
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from superopt.cost.record import Estimate, Record

__all__ = ["Ceilings", "Predictor", "ceilings_of"]

_NEIGHBOURS = 4
_NEAR = 1.5  # in units of e-folds of FLOPs and bytes: beyond, a neighbour says nothing about this size
_CLAMP = math.log(2.0)


@dataclass(frozen=True)
class Ceilings:
    """What the device could do at best: FLOP/ns, bytes/ns, and nanoseconds that any operator costs."""

    flops_per_ns: float = 60.0
    bytes_per_ns: float = 12.0
    least_ns: float = 500.0


def ceilings_of(header: Mapping[str, Any]) -> Ceilings:
    """The ceilings that a profile's header holds as measured; the usual ones where it holds none."""
    usual, peaks = Ceilings(), header.get("peaks")
    if not isinstance(peaks, Mapping):
        return usual
    flops, moved = peaks.get("flops_per_s"), peaks.get("bytes_per_s")
    return Ceilings(
        flops / 1e9 if isinstance(flops, int | float) and flops > 0 else usual.flops_per_ns,
        moved / 1e9 if isinstance(moved, int | float) and moved > 0 else usual.bytes_per_ns,
        usual.least_ns,
    )


@dataclass(frozen=True)
class Predictor:
    """Predicts from records; immutable, deterministic, and independent of the order of the records."""

    ceilings: Ceilings
    _families: dict[str, list[tuple[float, float, float]]] = field(repr=False)  # (ln F, ln B, ln(ns / roof))
    _efficiency: dict[str, float] = field(repr=False)
    _any: float = 1.0

    @staticmethod
    def fit(records: Iterable[Record], ceilings: Ceilings | None = None) -> Predictor:
        """Fit efficiencies to records (cold times: what a model larger than the cache sees)."""
        ceiling = ceilings or Ceilings()
        grouped: dict[str, list[Record]] = defaultdict(list)
        for record in sorted(records, key=lambda r: r.key.text):
            if record.ns_cold > 0 and record.key.op != "graph":
                grouped[record.key.op].append(record)
        efficiency = {
            op: math.exp(median(math.log(r.ns_cold / _roof(ceiling, r.flops, r.bytes, 1.0)) for r in group))
            for op, group in grouped.items()
        }
        families = {
            op: sorted(
                (
                    math.log1p(r.flops),
                    math.log1p(r.bytes),
                    math.log(r.ns_cold / _roof(ceiling, r.flops, r.bytes, efficiency[op])),
                )
                for r in group
            )
            for op, group in grouped.items()
        }
        overall = median(efficiency.values()) if efficiency else 1.0
        return Predictor(ceiling, families, efficiency, overall)

    def predict(self, op: str, flops: float, moved: float) -> Estimate:
        """The cost of an operator that does ``flops`` operations and moves ``moved`` bytes."""
        roof = _roof(self.ceilings, flops, moved, self._efficiency.get(op, self._any))
        at = (math.log1p(flops), math.log1p(moved))
        near = sorted((math.dist(at, (f, b)), residual) for f, b, residual in self._families.get(op, ()))
        near = [n for n in near[:_NEIGHBOURS] if n[0] <= _NEAR]
        if not near:
            return Estimate(roof / 1e3, "roofline", 0.5 if op in self._efficiency else 1.0)
        weights = [1.0 / (d + 0.05) for d, _ in near]
        total = sum(weights)
        shift = sum(w * r for w, (_, r) in zip(weights, near, strict=True)) / total
        variance = sum(w * (r - shift) ** 2 for w, (_, r) in zip(weights, near, strict=True)) / total
        sigma = math.sqrt(variance + (0.05 + 0.2 * near[0][0]) ** 2)
        return Estimate(roof * math.exp(min(max(shift, -_CLAMP), _CLAMP)) / 1e3, "interpolated", sigma)


def _roof(ceilings: Ceilings, flops: float, moved: float, slowdown: float) -> float:
    return ceilings.least_ns + slowdown * max(flops / ceilings.flops_per_ns, moved / ceilings.bytes_per_ns, 1.0)

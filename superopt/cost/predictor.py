"""Costs of what was not measured: a roofline fitted per operator, corrected by the nearest measured neighbours.

``roof = t0 + max(F / P, B / W) / eta`` with F FLOPs and B bytes, P and W the device's ceilings and ``eta`` the
operator's efficiency, fitted on log time. The result is multiplied by ``exp(Σ wᵢ ln(nsᵢ / roofᵢ))`` over the nearest
records, clamped to [1/4, 4]. Near means like work, attributes, ranks, weights and innermost sizes.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import median
from typing import Any

import numpy as np

from superopt.cost.record import APART, Estimate, Key, Record

__all__ = ["Ceilings", "Predictor", "ceilings_of"]

_NEIGHBOURS = 4
_NEAR = 1.5  # in units of e-folds of FLOPs and bytes: beyond, a neighbour says nothing about this size
_CANDIDATES = 32  # nearest by work, among which attributes and shapes decide
_ATTRIBUTE, _RANK, _FIXED, _SIZE = 0.5, 0.5, 0.5, 0.15  # how far apart unlike records are, in e-folds of work
_LEAST_SIGMA, _SIGMA_PER_STEP = 0.08, 0.25
_CLAMP = math.log(4.0)  # 2 left tiny operators, far from the roofline, 1 % worse on records held out


@dataclass(frozen=True)
class Ceilings:
    """What the device could do at best: FLOP/ns, bytes/ns, and nanoseconds that any operator costs."""

    flops_per_ns: float = 60.0
    bytes_per_ns: float = 12.0
    least_ns: float = 350.0


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
class _Family:
    """Records of one operator: work on logarithmic axes, time against the roofline, and what else tells them apart."""

    work: np.ndarray  # (records, 2): ln FLOPs, ln bytes
    residuals: tuple[float, ...]  # ln(ns / roof)
    traits: tuple[_Traits, ...]


@dataclass(frozen=True)
class Predictor:
    """Predicts from records; immutable, deterministic, and independent of the order of the records."""

    ceilings: Ceilings
    _families: dict[str, _Family] = field(repr=False)
    _efficiency: dict[str, float] = field(repr=False)
    _any: float = 1.0

    @staticmethod
    def fit(records: Iterable[Record], ceilings: Ceilings | None = None) -> Predictor:
        """Fit efficiencies to records (cold times: what a model larger than the cache sees)."""
        ceiling = ceilings or Ceilings()
        grouped: dict[str, list[Record]] = defaultdict(list)
        for record in sorted(records, key=lambda r: r.key.text):
            if record.ns_cold > 0 and record.key.op not in APART:
                grouped[record.key.op].append(record)
        efficiency = {
            op: math.exp(median(math.log(r.ns_cold / _roof(ceiling, r.flops, r.bytes, 1.0)) for r in group))
            for op, group in grouped.items()
        }
        families = {
            op: _Family(
                np.array([(math.log1p(r.flops), math.log1p(r.bytes)) for r in group]),
                tuple(math.log(r.ns_cold / _roof(ceiling, r.flops, r.bytes, efficiency[op])) for r in group),
                tuple(_traits(r.key) for r in group),
            )
            for op, group in grouped.items()
        }
        overall = median(efficiency.values()) if efficiency else 1.0
        return Predictor(ceiling, families, efficiency, overall)

    def predict(self, op: str, flops: float, moved: float, key: Key | None = None) -> Estimate:
        """The cost of an operator that does ``flops`` operations and moves ``moved`` bytes.

        Args:
            op: its name.
            flops: operations.
            moved: bytes.
            key: what would be measured, so that records of like attributes and shapes count as nearer.
        """
        roof = _roof(self.ceilings, flops, moved, self._efficiency.get(op, self._any))
        near = self._near(op, math.log1p(flops), math.log1p(moved), key)
        if not near:
            return Estimate(roof / 1e3, "roofline", 0.5 if op in self._efficiency else 1.0)
        weights = [1.0 / (d + 0.05) for d, _ in near]
        total = sum(weights)
        shift = sum(w * r for w, (_, r) in zip(weights, near, strict=True)) / total
        variance = sum(w * (r - shift) ** 2 for w, (_, r) in zip(weights, near, strict=True)) / total
        sigma = math.sqrt(variance + (_LEAST_SIGMA + _SIGMA_PER_STEP * near[0][0]) ** 2)
        return Estimate(roof * math.exp(min(max(shift, -_CLAMP), _CLAMP)) / 1e3, "interpolated", sigma)

    def _near(self, op: str, flops: float, moved: float, key: Key | None) -> list[tuple[float, float]]:
        """(distance, ln(ns / roof)) of the nearest records of the operator."""
        family = self._families.get(op)
        if family is None:
            return []
        distances = np.hypot(family.work[:, 0] - flops, family.work[:, 1] - moved)
        first = np.argsort(distances, kind="stable")[: _NEIGHBOURS if key is None else _CANDIDATES]
        own = None if key is None else _traits(key)
        found = [
            (float(distances[i]) + (own.unlike(family.traits[i]) if own else 0.0), family.residuals[i])
            for i in map(int, first)
            if distances[i] <= _NEAR
        ]
        return sorted(found)[:_NEIGHBOURS]


@dataclass(frozen=True)
class _Traits:
    """What of a key decides its time beside the amount of work: attributes, ranks, weights, innermost sizes."""

    attributes: Mapping[str, Any]
    ranks: tuple[int, ...]
    fixed: tuple[bool, ...]
    sizes: tuple[float, ...]  # ln of the innermost size of each argument, and of the second axis of the first

    def unlike(self, other: _Traits) -> float:
        """A distance to another record of the same operator, in the units of e-folds of work."""
        total = _RANK * (self.ranks != other.ranks) + _FIXED * (self.fixed != other.fixed)
        for name in self.attributes.keys() | other.attributes.keys():
            total += _ATTRIBUTE * _differ(self.attributes.get(name), other.attributes.get(name))
        if len(self.sizes) == len(other.sizes):
            total += _SIZE * sum(abs(a - b) for a, b in zip(self.sizes, other.sizes, strict=True))
        return total


@lru_cache(maxsize=1 << 14)
def _traits(key: Key) -> _Traits:
    try:
        attributes = json.loads(key.attrs)
    except ValueError:
        attributes = {}
    shapes = [[int(d) for d in re.findall(r"\d+", s.partition("[")[2].partition("]")[0])] for s in key.shapes]
    sizes = [math.log1p(s[-1]) if s else 0.0 for s in shapes]
    if shapes and len(shapes[0]) > 1:
        sizes.append(math.log1p(shapes[0][1]))
    return _Traits(
        attributes if isinstance(attributes, dict) else {}, tuple(map(len, shapes)),
        tuple(s.startswith("!") for s in key.shapes), tuple(sizes),
    )  # fmt: skip


def _differ(a: Any, b: Any) -> float:
    """0 for equal attributes, at most 1: numbers by how many e-folds lie between them."""
    if a == b:
        return 0.0
    if isinstance(a, int | float) and isinstance(b, int | float):
        return min(1.0, abs(math.log((1 + abs(a)) / (1 + abs(b))))) if math.isfinite(a) and math.isfinite(b) else 1.0
    return 1.0


def _roof(ceilings: Ceilings, flops: float, moved: float, slowdown: float) -> float:
    return ceilings.least_ns + slowdown * max(flops / ceilings.flops_per_ns, moved / ceilings.bytes_per_ns, 1.0)

"""Costs of what was not measured: a roofline fitted per operator, corrected by the nearest measured neighbours.

``roof = t0 + max(F / P, B / W) / eta + s S`` with F FLOPs and B bytes, P and W the device's ceilings and ``eta`` the
operator's efficiency, fitted on log time. S counts the spans of a broadcast: runs of elements over which each operand
either varies or stays; s is what one takes, by the records. A runtime's loop over spans costs more than a short one
itself (13 ns in ONNX Runtime, for every operator alike; without it, Adds, Muls and Divs were predicted twice as badly).
The result is multiplied by ``exp(Σ wᵢ ln(nsᵢ / roofᵢ))`` over the nearest
records, clamped to [1/4, 4]. Near means like work, attributes, ranks, weights and innermost sizes. Both are fitted
twice: to cold times with the bandwidth of memory, and to warm ones with that of the last cache.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean, median
from typing import Any

import numpy as np

from superopt.cost.loops import BROADCASTING, Traits, done_by, is_packed, kernel_of, moved_by, traits_of
from superopt.cost.profile import factor_of
from superopt.cost.record import APART, Estimate, Key, Record

__all__ = ["Ceilings", "Predictor", "ceilings_of"]

_NEIGHBOURS = 4
_NEAR = 1.5  # in units of e-folds of FLOPs and bytes: beyond, a neighbour counts only where there is none within
_FAR = 3.5  # beyond, it says nothing about this size
_CANDIDATES = 32  # nearest by work, among which attributes and shapes decide
_LEAST_SIGMA, _SIGMA_PER_STEP = 0.08, 0.25
_FITTED_SIGMA = 0.5  # of a roofline fitted to the operator: a far neighbour does not make it worse
_MANY_SPANS = 64  # from which they are most of what a record takes beyond its work
_SPANS = (1.0, 0.5, 2.0, 0.25, 4.0, 0.0)  # of what a span takes a broadcast: what it may take another kernel
_CLAMP = math.log(4.0)  # 2 left tiny operators, far from the roofline, 1 % worse on records held out


@dataclass(frozen=True)
class Ceilings:
    """What the device could do at best: FLOP/ns, bytes/ns from memory and from its last cache, and nanoseconds that any
    operator costs."""

    flops_per_ns: float = 60.0
    bytes_per_ns: float = 12.0
    least_ns: float = 350.0
    cached_bytes_per_ns: float = 50.0
    span_ns: float = 0.0


def ceilings_of(header: Mapping[str, Any]) -> Ceilings:
    """The ceilings that a profile's header holds as measured; the usual ones where it holds none."""
    least = Ceilings.least_ns * factor_of(header, "overhead")
    usual, peaks = Ceilings(least_ns=least), header.get("peaks")
    if not isinstance(peaks, Mapping):
        return usual

    def found(name: str, otherwise: float) -> float:
        value = peaks.get(name)
        return value / 1e9 if isinstance(value, int | float) and value > 0 else otherwise

    memory = found("bytes_per_s", usual.bytes_per_ns)
    cache = max(memory, found("cache_bytes_per_s", memory))
    return Ceilings(found("flops_per_s", usual.flops_per_ns), memory, usual.least_ns, cache)


_Pair = tuple[float, float]  # for cold weights, and for warm ones
_ONE: _Pair = (1.0, 1.0)


@dataclass(frozen=True, eq=False)
class _Family:
    """Records of one operator, and its efficiency against the ceilings. What predicting takes is made when it is asked
    for: a model has few of the operators that a profile has."""

    records: Sequence[Record]
    ceilings: Ceilings
    slow: _Pair

    @cached_property
    def work(self) -> np.ndarray:
        """On logarithmic axes: (records, 2), ln FLOPs and ln bytes."""
        return np.array(
            [(math.log1p(done_by(r.key, r.flops)), math.log1p(moved_by(r.key, r.bytes))) for r in self.records]
        )

    @cached_property
    def residuals(self) -> tuple[_Pair, ...]:
        """ln(ns / roof)."""
        return tuple(_residual(r, self.ceilings, self.slow) for r in self.records)

    @cached_property
    def traits(self) -> tuple[Traits, ...]:
        """What else tells records apart."""
        return tuple(traits_of(r.key) for r in self.records)


@dataclass(frozen=True)
class Predictor:
    """Predicts from records; immutable, deterministic, and independent of the order of the records."""

    ceilings: Ceilings
    _records: Mapping[str, Sequence[Record]] = field(repr=False)  # of each operator
    _families: dict[str, _Family] = field(default_factory=dict, repr=False)  # of those that were asked for

    @staticmethod
    def fit(records: Iterable[Record], ceilings: Ceilings | None = None) -> Predictor:
        """Fit efficiencies to records."""
        ceiling = ceilings or Ceilings()
        grouped: dict[str, list[Record]] = defaultdict(list)
        for record in sorted(records, key=lambda r: r.key.text):
            if record.ns_cold > 0 and record.key.op not in APART:
                kernel = kernel_of(record.key.op, record.key)
                grouped[kernel].append(record)
                if is_packed(record.key):  # is alike enough where the second factor is not
                    grouped[record.key.op].append(record)
        ceiling = replace(ceiling, span_ns=_span_ns((g for op, g in grouped.items() if op in BROADCASTING), ceiling))
        return Predictor(ceiling, grouped)

    def _family(self, name: str) -> _Family | None:
        """What is known of an operator, fitted when it is first asked for: a model has few of them."""
        if name not in self._families and name in self._records:
            found = self._records[name]
            spans = any(traits_of(r.key).spans for r in found)
            fitted = [_fitted(found, replace(self.ceilings, span_ns=times * self.ceilings.span_ns))
                      for times in (_SPANS if spans else _SPANS[:1])]  # fmt: skip
            self._families[name] = min(fitted, key=_scatter)
        return self._families.get(name)

    @cached_property
    def _any(self) -> _Pair:
        """The usual operator's efficiency, for one without records."""
        found = [f.slow for name in self._records if (f := self._family(name)) is not None]
        return _each(median, *found) if found else _ONE

    def predict(self, op: str, flops: float, moved: float, key: Key | None = None, cold: float = 1.0) -> Estimate:
        """The cost of an operator that does ``flops`` operations and moves ``moved`` bytes.

        Args:
            op: its name.
            flops: operations.
            moved: bytes.
            key: what would be measured, so that records of like attributes and shapes count as nearer.
            cold: share of its weights that comes from memory.
        """
        family = self._family(kernel_of(op, key)) or self._family(op)
        flops, moved = done_by(key, flops), moved_by(key, moved)
        slow, ceilings = (self._any, self.ceilings) if family is None else (family.slow, family.ceilings)
        roof = _blend(_roofs(ceilings, flops, moved, slow, 0 if key is None else traits_of(key).spans), cold)
        near = _near(family, math.log1p(flops), math.log1p(moved), key, cold)
        if not near:
            return Estimate(roof / 1e3, "roofline", 1.0 if family is None else _FITTED_SIGMA)
        weights = [1.0 / (d + 0.05) for d, _ in near]
        total = sum(weights)
        shift = sum(w * r for w, (_, r) in zip(weights, near, strict=True)) / total
        variance = sum(w * (r - shift) ** 2 for w, (_, r) in zip(weights, near, strict=True)) / total
        sigma = min(_FITTED_SIGMA, math.sqrt(variance + (_LEAST_SIGMA + _SIGMA_PER_STEP * near[0][0]) ** 2))
        return Estimate(roof * math.exp(min(max(shift, -_CLAMP), _CLAMP)) / 1e3, "interpolated", sigma)


def _fitted(records: Sequence[Record], ceilings: Ceilings) -> _Family:
    slow = _each(lambda t: math.exp(median(t)), *(_residual(r, ceilings, _ONE) for r in records))
    return _Family(records, ceilings, slow)


def _scatter(family: _Family) -> float:
    """How far its records are from what its efficiency says, on average."""
    cold = [pair[0] for pair in family.residuals]
    middle = median(cold)
    return fmean(abs(c - middle) for c in cold)


def _near(
    family: _Family | None, flops: float, moved: float, key: Key | None, cold: float
) -> list[tuple[float, float]]:  # fmt: skip
    """(distance, ln(ns / roof)) of the nearest records of the operator."""
    if family is None:
        return []
    distances = np.hypot(family.work[:, 0] - flops, family.work[:, 1] - moved)
    first = np.argsort(distances, kind="stable")[: _NEIGHBOURS if key is None else _CANDIDATES]
    own = None if key is None else traits_of(key)
    reach = _NEAR if distances[first[0]] <= _NEAR else _FAR
    found = [
        (float(distances[i]) + (own.unlike(family.traits[i]) if own else 0.0), _blend(family.residuals[i], cold))
        for i in map(int, first)
        if distances[i] <= reach
    ]
    return sorted(found)[:_NEIGHBOURS]


def _each(combine: Callable[[Sequence[float]], float], *pairs: _Pair) -> _Pair:
    """Cold values combined, and warm ones."""
    return combine([cold for cold, _ in pairs]), combine([warm for _, warm in pairs])


def _blend(pair: _Pair, cold: float) -> float:
    return pair[1] + (pair[0] - pair[1]) * cold


def _span_ns(families: Iterable[Sequence[Record]], ceilings: Ceilings) -> float:
    """What a span of a broadcast takes: the median of what records of many short ones take beyond what the same amount
    of work takes their operator in one."""
    found = []
    for group in families:
        one = [_residual(r, ceilings, _ONE)[1] for r in group if not traits_of(r.key).spans]
        if not one or not any(traits_of(r.key).spans for r in group):
            continue
        slow = math.exp(median(one))
        for record in group:
            spans = traits_of(record.key).spans
            if spans >= _MANY_SPANS:
                rest = record.ns - _roofs(ceilings, record.flops, record.bytes, (slow, slow))[1]
                found.append(rest / spans)
    return max(0.0, median(found)) if found else 0.0


def _residual(record: Record, ceilings: Ceilings, slow: _Pair) -> _Pair:
    """ln(ns / roof) of a record."""
    moved = moved_by(record.key, record.bytes)
    cold, warm = _roofs(ceilings, done_by(record.key, record.flops), moved, slow, traits_of(record.key).spans)
    return math.log(record.ns_cold / cold), math.log((record.ns or record.ns_cold) / warm)


def _roofs(ceilings: Ceilings, flops: float, moved: float, slow: _Pair, spans: int = 0) -> _Pair:
    """Nanoseconds with weights from memory, and with weights from the last cache."""
    work, least = max(flops / ceilings.flops_per_ns, 1.0), ceilings.least_ns + spans * ceilings.span_ns
    return (
        least + slow[0] * max(work, moved / ceilings.bytes_per_ns),
        least + slow[1] * max(work, moved / ceilings.cached_bytes_per_ns),
    )

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

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from statistics import median
from typing import Any

import numpy as np

from superopt.cost.profile import factor_of
from superopt.cost.record import APART, Estimate, Key, Record
from superopt.ops import REGISTRY

__all__ = ["Ceilings", "Predictor", "ceilings_of"]

_NEIGHBOURS = 4
_NEAR = 1.5  # in units of e-folds of FLOPs and bytes: beyond, a neighbour counts only where there is none within
_FAR = 3.5  # beyond, it says nothing about this size
_CANDIDATES = 32  # nearest by work, among which attributes and shapes decide
_ATTRIBUTE, _RANK, _FIXED, _SIZE = 0.5, 0.5, 0.5, 0.15  # how far apart unlike records are, in e-folds of work
_LEAST_SIGMA, _SIGMA_PER_STEP = 0.08, 0.25
_FITTED_SIGMA = 0.5  # of a roofline fitted to the operator: a far neighbour does not make it worse
_GROUPED = re.compile(r'"group": ?(?![01]\b)')  # in a key's attributes; asked of each record of a profile
_MANY_SPANS = 64  # from which they are most of what a record takes beyond its work
_BROADCASTING = frozenset(n for n, o in REGISTRY.items() if o.family in ("elementwise", "activation"))
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
        return np.array([(math.log1p(r.flops), math.log1p(r.bytes)) for r in self.records])

    @cached_property
    def residuals(self) -> tuple[_Pair, ...]:
        """ln(ns / roof)."""
        return tuple(_residual(r, self.ceilings, self.slow) for r in self.records)

    @cached_property
    def traits(self) -> tuple[_Traits, ...]:
        """What else tells records apart."""
        return tuple(_traits(r.key) for r in self.records)


@dataclass(frozen=True)
class Predictor:
    """Predicts from records; immutable, deterministic, and independent of the order of the records."""

    ceilings: Ceilings
    _families: dict[str, _Family] = field(repr=False)
    _any: _Pair = _ONE

    @staticmethod
    def fit(records: Iterable[Record], ceilings: Ceilings | None = None) -> Predictor:
        """Fit efficiencies to records."""
        ceiling = ceilings or Ceilings()
        grouped: dict[str, list[Record]] = defaultdict(list)
        for record in sorted(records, key=lambda r: r.key.text):
            if record.ns_cold > 0 and record.key.op not in APART:
                grouped[_kernel(record.key.op, record.key)].append(record)
        ceiling = replace(ceiling, span_ns=_span_ns(grouped.values(), ceiling))
        families: dict[str, _Family] = {}
        for op, group in grouped.items():
            slow = _each(lambda t: math.exp(median(t)), *(_residual(r, ceiling, _ONE) for r in group))
            families[op] = _Family(group, ceiling, slow)
        overall = _each(median, *(f.slow for f in families.values())) if families else _ONE
        return Predictor(ceiling, families, overall)

    def predict(self, op: str, flops: float, moved: float, key: Key | None = None, cold: float = 1.0) -> Estimate:
        """The cost of an operator that does ``flops`` operations and moves ``moved`` bytes.

        Args:
            op: its name.
            flops: operations.
            moved: bytes.
            key: what would be measured, so that records of like attributes and shapes count as nearer.
            cold: share of its weights that comes from memory.
        """
        family = self._families.get(_kernel(op, key)) or self._families.get(op)
        slow = self._any if family is None else family.slow
        roof = _blend(_roofs(self.ceilings, flops, moved, slow, 0 if key is None else _traits(key).spans), cold)
        near = _near(family, math.log1p(flops), math.log1p(moved), key, cold)
        if not near:
            return Estimate(roof / 1e3, "roofline", 1.0 if family is None else _FITTED_SIGMA)
        weights = [1.0 / (d + 0.05) for d, _ in near]
        total = sum(weights)
        shift = sum(w * r for w, (_, r) in zip(weights, near, strict=True)) / total
        variance = sum(w * (r - shift) ** 2 for w, (_, r) in zip(weights, near, strict=True)) / total
        sigma = min(_FITTED_SIGMA, math.sqrt(variance + (_LEAST_SIGMA + _SIGMA_PER_STEP * near[0][0]) ** 2))
        return Estimate(roof * math.exp(min(max(shift, -_CLAMP), _CLAMP)) / 1e3, "interpolated", sigma)


def _near(
    family: _Family | None, flops: float, moved: float, key: Key | None, cold: float
) -> list[tuple[float, float]]:  # fmt: skip
    """(distance, ln(ns / roof)) of the nearest records of the operator."""
    if family is None:
        return []
    distances = np.hypot(family.work[:, 0] - flops, family.work[:, 1] - moved)
    first = np.argsort(distances, kind="stable")[: _NEIGHBOURS if key is None else _CANDIDATES]
    own = None if key is None else _traits(key)
    reach = _NEAR if distances[first[0]] <= _NEAR else _FAR
    found = [
        (float(distances[i]) + (own.unlike(family.traits[i]) if own else 0.0), _blend(family.residuals[i], cold))
        for i in map(int, first)
        if distances[i] <= reach
    ]
    return sorted(found)[:_NEIGHBOURS]


@dataclass(frozen=True)
class _Traits:
    """What of a key decides its time beside the amount of work: attributes, ranks, weights, innermost sizes."""

    attributes: Mapping[str, Any]
    ranks: tuple[int, ...]
    fixed: tuple[bool, ...]
    sizes: tuple[float, ...]  # ln of the innermost size of each argument, and of the second axis of the first
    narrow: bool = False  # the second argument has a second axis of 1: of a convolution's weights, a group is a channel
    spans: int = 0  # of a broadcast beyond the first

    def unlike(self, other: _Traits) -> float:
        """A distance to another record of the same operator, in the units of e-folds of work."""
        total = _RANK * (self.ranks != other.ranks) + _FIXED * (self.fixed != other.fixed)
        for name in self.attributes.keys() | other.attributes.keys():
            total += _ATTRIBUTE * _differ(self.attributes.get(name), other.attributes.get(name))
        if len(self.sizes) == len(other.sizes):
            total += _SIZE * sum(abs(a - b) for a, b in zip(self.sizes, other.sizes, strict=True))
        return total


def _kernel(op: str, key: Key | None) -> str:
    """What runs an operator: a convolution of as many groups as channels has a kernel of its own that is ten times as
    fast as that of one with groups of two channels."""
    if key is None or _GROUPED.search(key.attrs) is None:
        return op
    return f"{op}, {'each channel by itself' if _traits(key).narrow else 'in groups'}"


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
        tuple(s.startswith("!") for s in key.shapes), tuple(sizes), len(shapes) > 1 and shapes[1][1:2] == [1],
        _spans([d for d, s in zip(shapes, key.shapes, strict=True) if s]) if key.op in _BROADCASTING else 0,
    )  # fmt: skip


def _spans(shapes: Sequence[Sequence[int]]) -> int:
    """How often operands of these shapes begin to vary or to stay anew while elements are taken in order.

    As ONNX Runtime counts (``BroadcastIterator``): an axis of 1 in front of what the shorter shape has ends a span, and
    where all that it has is of 1, each element is one: ``[160, 1] + [1]`` takes six times as long as with ``[1, 1]``.
    """
    rank, least = max(map(len, shapes), default=0), max(min(map(len, shapes), default=0), 1)
    full = [[1] * (rank - len(s)) + list(s) for s in shapes]
    run, pattern = 1, None
    for place, sizes in enumerate(zip(*(reversed(s) for s in full), strict=True)):
        varying = [n != 1 for n in sizes]
        if any(varying):
            if pattern not in (None, varying):
                break
            run, pattern = run * max(sizes), varying
        elif pattern is None and place + 1 == least:
            pattern = varying
        elif pattern is not None and any(pattern) and place >= least:
            break
    return math.prod(max(axis) for axis in zip(*full, strict=True)) // run - 1 if run else 0


def _differ(a: Any, b: Any) -> float:
    """0 for equal attributes, at most 1: numbers by how many e-folds lie between them."""
    if a == b:
        return 0.0
    if isinstance(a, int | float) and isinstance(b, int | float):
        return min(1.0, abs(math.log((1 + abs(a)) / (1 + abs(b))))) if math.isfinite(a) and math.isfinite(b) else 1.0
    return 1.0


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
        one = [_residual(r, ceilings, _ONE)[1] for r in group if not _traits(r.key).spans]
        if not one or not any(_traits(r.key).spans for r in group):
            continue
        slow = math.exp(median(one))
        for record in group:
            spans = _traits(record.key).spans
            if spans >= _MANY_SPANS:
                rest = record.ns - _roofs(ceilings, record.flops, record.bytes, (slow, slow))[1]
                found.append(rest / spans)
    return max(0.0, median(found)) if found else 0.0


def _residual(record: Record, ceilings: Ceilings, slow: _Pair) -> _Pair:
    """ln(ns / roof) of a record."""
    cold, warm = _roofs(ceilings, record.flops, record.bytes, slow, _traits(record.key).spans)
    return math.log(record.ns_cold / cold), math.log((record.ns or record.ns_cold) / warm)


def _roofs(ceilings: Ceilings, flops: float, moved: float, slow: _Pair, spans: int = 0) -> _Pair:
    """Nanoseconds with weights from memory, and with weights from the last cache."""
    work, least = max(flops / ceilings.flops_per_ns, 1.0), ceilings.least_ns + spans * ceilings.span_ns
    return (
        least + slow[0] * max(work, moved / ceilings.bytes_per_ns),
        least + slow[1] * max(work, moved / ceilings.cached_bytes_per_ns),
    )

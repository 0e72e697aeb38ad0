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
_BLOCK = 16  # channels that ONNX Runtime keeps together (MLAS, AVX-512; on AVX2 it is 8)
_PATTERN, _EXTENT = 1.0, 0.25  # the same, of what moves or is summed
_PLACES = ("perm", "axes", "axis")
# Of the FLOPs that the device reaches, beside what an operator reaches of the bytes: what fits its records best counts.
_REACHED = tuple(4.0**-n for n in range(6))
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
    ceilings: Ceilings  # as far as this operator comes with its FLOPs
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
    def spread(self) -> float:
        """Mean distance of the records' warm residuals to their median."""
        warm = [w for _, w in self.residuals]
        middle = median(warm)
        return sum(abs(w - middle) for w in warm) / len(warm)

    @cached_property
    def traits(self) -> tuple[_Traits, ...]:
        """What else tells records apart."""
        return tuple(_traits(r.key) for r in self.records)


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
                grouped[_kernel(record.key.op, record.key)].append(record)
        ceiling = replace(ceiling, span_ns=_span_ns((g for op, g in grouped.items() if op in _BROADCASTING), ceiling))
        return Predictor(ceiling, grouped)

    def _family(self, name: str) -> _Family | None:
        """What is known of an operator, fitted when it is first asked for: a model has few of them."""
        if name not in self._families and name in self._records:
            fits = (_fitted(self._records[name], self.ceilings, share) for share in _REACHED)
            self._families[name] = min(fits, key=lambda f: f.spread)
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
        family = self._family(_kernel(op, key)) or self._family(op)
        slow, ceilings = (self._any, self.ceilings) if family is None else (family.slow, family.ceilings)
        roof = _blend(_roofs(ceilings, flops, moved, slow, 0 if key is None else _traits(key).spans), cold)
        near = _near(family, math.log1p(flops), math.log1p(moved), key, cold)
        if not near:
            return Estimate(roof / 1e3, "roofline", 1.0 if family is None else _FITTED_SIGMA)
        weights = [1.0 / (d + 0.05) for d, _ in near]
        total = sum(weights)
        shift = sum(w * r for w, (_, r) in zip(weights, near, strict=True)) / total
        variance = sum(w * (r - shift) ** 2 for w, (_, r) in zip(weights, near, strict=True)) / total
        sigma = min(_FITTED_SIGMA, math.sqrt(variance + (_LEAST_SIGMA + _SIGMA_PER_STEP * near[0][0]) ** 2))
        return Estimate(roof * math.exp(min(max(shift, -_CLAMP), _CLAMP)) / 1e3, "interpolated", sigma)


def _fitted(group: Sequence[Record], ceilings: Ceilings, reached: float) -> _Family:
    """An operator that reaches that share of the FLOPs beside what it reaches of the bytes."""
    own = replace(ceilings, flops_per_ns=ceilings.flops_per_ns * reached)
    return _Family(group, own, _each(lambda t: math.exp(median(t)), *(_residual(r, own, _ONE) for r in group)))


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
    blocks: bool = False  # see ``_in_blocks``
    spans: int = 0  # of a broadcast beyond the first
    pattern: str = ""  # of what moves or is summed, where axes that are alike are one
    extents: tuple[float, ...] = ()  # ln of what lies within the axis, or of the innermost that stays together

    def unlike(self, other: _Traits) -> float:
        """A distance to another record of the same operator, in the units of e-folds of work."""
        total = _RANK * (self.ranks != other.ranks) + _FIXED * (self.fixed != other.fixed)
        for name in self.attributes.keys() | other.attributes.keys():
            total += _ATTRIBUTE * _differ(self.attributes.get(name), other.attributes.get(name))
        total += _PATTERN * (self.pattern != other.pattern)
        if len(self.extents) == len(other.extents):
            total += _EXTENT * sum(abs(a - b) for a, b in zip(self.extents, other.extents, strict=True))
        if len(self.sizes) == len(other.sizes):
            total += _SIZE * sum(abs(a - b) for a, b in zip(self.sizes, other.sizes, strict=True))
        return total


def _kernel(op: str, key: Key | None) -> str:
    """What runs an operator: a convolution of as many groups as channels has a kernel of its own that is ten times as
    fast as that of one with groups of two channels; so has a pool of channels that fill a processor's registers, and a
    power of a number (mostly 2: a product)."""
    if key is not None and op.endswith("Pool"):
        return op if _traits(key).blocks else f"{op}, of odd channels"
    if key is not None and op == "Pow":
        return f"{op}, of a number" if re.search(r"\[[1, ]*\]$", key.shapes[-1]) else op
    if key is None or _GROUPED.search(key.attrs) is None:
        return op
    known = _traits(key)
    name = f"{op}, {'each channel by itself' if known.narrow else 'in groups'}"
    return name if known.blocks or not known.narrow else f"{name}, of odd channels"


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
    attributes = attributes if isinstance(attributes, dict) else {}
    pattern, extents = _pattern(attributes, shapes[0] if shapes else [])
    return _Traits(
        {k: v for k, v in attributes.items() if k not in _PLACES} if pattern else attributes, tuple(map(len, shapes)),
        tuple(s.startswith("!") for s in key.shapes), tuple(sizes), len(shapes) > 1 and shapes[1][1:2] == [1],
        _in_blocks(key.op, shapes),
        _spans([d for d, s in zip(shapes, key.shapes, strict=True) if s]) if key.op in _BROADCASTING else 0,
        pattern, extents,
    )  # fmt: skip


def _in_blocks(op: str, shapes: Sequence[Sequence[int]]) -> bool:
    """Whether the channels of images, and those that a kernel makes, fill the blocks that a processor's loops take."""
    if not ("Conv" in op or op.endswith("Pool")) or len(shapes[0]) != 4:
        return False
    return all(n % _BLOCK == 0 for n in (shapes[0][1], *(s[0] for s in shapes[1:2] if s)))


def _pattern(attributes: Mapping[str, Any], shape: Sequence[int]) -> tuple[str, tuple[float, ...]]:
    """Which axes an operator moves, sums or goes along, whatever rank that is written at: neighbours that are treated
    alike are one. With it, what says how long the pieces are.

    ``perm`` gives ``"021"``, the last two of three change places, and whether it moves one axis alone, for which a
    runtime has a faster loop (also past an axis of 1); ``axes`` ``"KR"``, the last are summed and others kept; ``axis``
    whether anything lies within it.
    """
    rank, perm, axes, axis = len(shape), *(attributes.get(k) for k in _PLACES)
    if isinstance(perm, list) and sorted(perm) == list(range(rank)):
        return _moved(perm, shape)
    if isinstance(axes, list) and "starts" not in attributes and all(-rank <= int(a) < rank for a in axes):
        summed = {a % rank for a in axes} if axes else set(range(rank))
        pieces: list[tuple[str, int]] = []
        for a, size in enumerate(shape):
            kind = "R" if a in summed else "K"
            if pieces and pieces[-1][0] == kind:
                pieces[-1] = kind, pieces[-1][1] * size
            else:
                pieces.append((kind, size))
        return "".join(k for k, _ in pieces) or "K", (math.log(max(pieces[-1][1], 1) if pieces else 1),)
    if isinstance(axis, int) and -rank <= axis < rank:
        within = math.prod(shape[axis % rank + 1 :])
        return "last" if within == 1 else "within", (math.log(max(within, 1)), math.log(max(shape[axis % rank], 1)))
    return "", ()


def _moved(perm: Sequence[int], shape: Sequence[int]) -> tuple[str, tuple[float, ...]]:
    """See :func:`_pattern`: of a transposition."""
    merged: list[list[int]] = []
    for a in (a for a in perm if shape[a] != 1):
        if merged and a > (last := merged[-1][-1]) and all(shape[b] == 1 for b in range(last + 1, a)):
            merged[-1].append(a)
        else:
            merged.append([a])
    order = sorted(merged)
    stays = merged and merged[-1] == order[-1]
    single = any([*perm[:i], *perm[i + 1 :]] == sorted([*perm[:i], *perm[i + 1 :]]) for i in range(len(perm)))
    name = "".join(str(order.index(m)) for m in merged) + ("" if single else ", several")
    return name, (math.log(math.prod(shape[a] for a in merged[-1]) if stays else 1),)


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

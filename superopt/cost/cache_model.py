"""Which data an inference finds in which cache: sizes of the caches, cold weights, activations.

*Weights.* A model that runs again and again finds its weights in the last cache or not, depending on the bytes that it
reads in between. The size of the cache does not say how many bytes that may be: other cores use it too, pages of 4 KiB
collide in some of its sets, and it does not replace the least recently used line first. So :class:`CacheMissCurve` is
measured with a chain of products that reads so many bytes of weights. On a shared EPYC of 32 MiB an eighth of them
comes from memory at 14 MiB, half at 19 MiB and all at 28 MiB.

*Activations.* An operator that is timed alone finds its activations in the core's cache, as far as they fit. In a model
other data were touched since a tensor was written, so it comes from the last cache or from memory. A Split of 600 KB
takes 10 µs alone and 24 µs in a Swin transformer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.cost.roofline_ceilings import DevicePeakPerformance

if TYPE_CHECKING:
    from superopt.cost.cost_model import CostModel

__all__ = [
    "ActivationCachePenalty",
    "CacheMissCurve",
    "Tensor",
    "WeightCacheResidency",
    "core_bytes",
    "evict",
    "fit_miss_curve",
    "last_level_bytes",
    "probe_sizes",
    "miss_curve_of_header",
    "default_miss_curve",
]


@dataclass(frozen=True)
class CacheModelPolicy:
    """Sizes and probes of the cache model.

    Attributes:
        default_last_level: bytes of the last cache, where the system does not say.
        largest_last_level: a larger cache belongs to a whole socket, whose other tenants fill most of it (480 MiB on a
            rented machine of two cores).
        default_start: share of the last cache from which weights are found cold, where no curve was measured.
        default_full: share of the last cache at which all are.
        probes: sixteenths of the last cache: the first fits, the last does not.
        largest_probe: bytes, of which ONNX Runtime and the writer hold four copies.
    """

    default_last_level: int = 32 << 20
    largest_last_level: int = 96 << 20
    default_start: float = 0.375
    default_full: float = 1.0
    probes: tuple[int, ...] = (4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 24)
    largest_probe: int = 192 << 20


CACHES = CacheModelPolicy()


@lru_cache(maxsize=1)
def last_level_bytes() -> int:
    """Size of the last-level cache in bytes, as far as a few cores may count on it; 32 MiB where the system does not
    say."""
    return min(max(_sizes(), default=0) or CACHES.default_last_level, CACHES.largest_last_level)


@lru_cache(maxsize=1)
def core_bytes() -> int:
    """Size of the largest cache that belongs to one core (the second level); 1 MiB where the system does not say."""
    sizes = sorted(set(_sizes()))
    return sizes[-2] if len(sizes) > 2 else 1 << 20


def _sizes() -> list[int]:
    found = []
    for entry in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")):
        try:
            text = entry.read_text().strip()
        except OSError:
            continue
        scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 0)
        if scale and text[:-1].isdigit():
            found.append(int(text[:-1]) * scale)
    return found


@lru_cache(maxsize=2)
def _eviction_buffer(size: int) -> np.ndarray:
    # Written once, so that the pages are real and distinct: untouched zero pages all alias one page in the cache.
    return np.arange(2 * size // 8, dtype=np.int64)


def evict(size: int) -> None:
    """Push everything else out of a cache by reading twice its size (reading leaves no dirty lines behind)."""
    np.bitwise_or.reduce(_eviction_buffer(size))


@dataclass(frozen=True)
class CacheMissCurve:
    """The share of its weights that an inference reads from memory, by the bytes that it reads: a piecewise linear
    curve.

    Attributes:
        points: (bytes, share), rising; below the first and beyond the last their shares hold.
    """

    points: tuple[tuple[float, float], ...]

    def share(self, working_set: float) -> float:
        """Share of the weights that comes from memory, for a model that reads this many bytes an inference."""
        sizes, shares = zip(*self.points, strict=True)
        return float(np.interp(working_set, sizes, shares))


def default_miss_curve(cache_bytes: int) -> CacheMissCurve:
    """The curve of a cache of this size if none was measured."""
    return CacheMissCurve(((CACHES.default_start * cache_bytes, 0.0), (CACHES.default_full * cache_bytes, 1.0)))


def miss_curve_of_header(header: Mapping[str, Any]) -> CacheMissCurve | None:
    """The curve in a profile's header (``cache_ramp``: pairs of bytes and share), or ``None``."""
    held = header.get("cache_ramp")
    pairs = [p for p in held if isinstance(p, list) and len(p) == 2] if isinstance(held, list) else []
    points = tuple((float(b), float(s)) for b, s in pairs if isinstance(b, int | float) and isinstance(s, int | float))
    return CacheMissCurve(points) if points and list(points) == sorted(points) else None


def probe_sizes(cache_bytes: int) -> tuple[int, ...]:
    """The sizes at which the curve is measured; none for a cache that is too large for that."""
    found = tuple(cache_bytes * n // 16 for n in CACHES.probes)
    return found if found[-1] <= CACHES.largest_probe else ()


def fit_miss_curve(times: Mapping[int, float], cache_bytes: int) -> CacheMissCurve:
    """The curve that measured passes show: the monotone curve nearest (least squares) to their shares.

    Args:
        times: nanoseconds by bytes (:func:`pass_ns`), the least of which the cache holds, and the most not.
        cache_bytes: size of the last cache.
    """
    if not times:
        return default_miss_curve(cache_bytes)
    speeds = {size: times[size] / size for size in sorted(times)}
    near, far = min(speeds.values()), speeds[max(speeds)]
    if far <= 1.1 * near:  # no cache to be seen
        return default_miss_curve(cache_bytes)
    level: list[tuple[float, int]] = []  # shares, and how many neighbours they are the mean of: pooled where they fall
    for speed in speeds.values():
        share, count = min((speed - near) / (far - near), 1.0), 1
        while level and level[-1][0] > share:
            before, many = level.pop()
            share, count = (before * many + share * count) / (many + count), many + count
        level.append((share, count))
    shares = [share for share, count in level for _ in range(count)]
    return CacheMissCurve(((min(speeds), 0.0), *list(zip(speeds, shares, strict=True))[1:-1], (max(speeds), 1.0)))


Tensor = tuple[str, int]  # name of the value whose memory it is, bytes


class WeightCacheResidency:
    """How cold the weights are that each node of a graph reads, in order: the cost model of the next node.

    An inference that touches more than the cache holds finds a weight cold that it reads once. A weight that it reads
    again (a recurrent cell, unrolled) is as warm as what was touched in between is small: to a least-recently-used
    cache that is its working set.
    """

    _STEPS = 32  # contexts in a cache's size: each has answers of its own

    def __init__(self, model: CostModel, working_set: int) -> None:
        self.model, self.working_set = model, working_set
        self._touched = 0
        self._read: dict[str, int] = {}
        self._contexts: dict[int, CostModel] = {}

    def model_for(self, weights: Mapping[str, int], moved: int) -> CostModel:
        """The model for the next node.

        Args:
            weights: bytes of the weights that it reads, by what makes two the same.
            moved: bytes of the activations that it touches.
        """
        total = sum(weights.values())
        since = sum(n * min(self._touched - self._read.get(w, -self.working_set), self.working_set)
                    for w, n in weights.items())  # fmt: skip
        self._read.update(dict.fromkeys(weights, self._touched))  # the cache must hold the weight itself, too
        self._touched += total + moved
        step = max(1, (self.model.cache_bytes or 1) // self._STEPS)
        distance = self.working_set if total == 0 else -(-(since // total) // step) * step
        distance = min(distance, self.working_set)
        if distance not in self._contexts:
            self._contexts[distance] = self.model.in_context(distance)
        return self._contexts[distance]


@dataclass
class ActivationCachePenalty:
    """How many microseconds longer than alone each node takes, because its activations are in a farther cache; in
    order.

    Memory is assigned as ONNX Runtime plans it. An elementwise operator writes over an operand without later readers.
    Any other takes the smallest free block that fits; among equals, the one freed last.

    Args:
        peaks: how fast memory and the last cache are.
        share: what comes from memory, by the bytes that were touched in between.
        core: bytes of the core's own cache.
        working_set: bytes that one inference touches: so long ago was memory used that it has not used yet.
        reads: how often each value is read.
    """

    peaks: DevicePeakPerformance
    share: Callable[[int], float]
    core: int
    working_set: int
    reads: dict[str, int]
    _touched: int = 0
    _last: dict[int, int] = field(default_factory=dict)  # piece of memory → what had been touched when it was
    _piece: dict[str, int] = field(default_factory=dict)  # value → piece of memory
    _size: list[int] = field(default_factory=list)  # of each piece
    _free: list[int] = field(default_factory=list)  # pieces, in the order in which they were freed

    def extra_us(self, reads: Sequence[Tensor], writes: Sequence[Tensor], weights: int, *, in_place: bool) -> float:
        """The next node.

        Args:
            reads: activations that it reads, each once.
            writes: what it makes.
            weights: bytes of weights that it reads.
            in_place: whether it may write over an operand.
        """
        for name, size in reads:
            if name not in self._piece:  # an input of the graph
                self._assign(name, self._new(size))
        dying = [name for name, _ in reads if self._is_last_read(name)]
        for name, size in writes:
            over = next((n for n in dying if in_place and self._size[self._piece[n]] == size), None)
            if over is not None:
                dying.remove(over)
                self._assign(name, self._piece[over])
            else:
                self._assign(name, self._best_fit(size))
        own = sum(size for _, size in (*reads, *writes)) + weights
        pieces = {self._piece[name]: size for name, size in (*reads, *writes)}
        longer = sum(self._extra_seconds(piece, size, own) for piece, size in pieces.items())
        self._touched += own
        self._last.update(dict.fromkeys(pieces, self._touched))
        self._free += [self._piece[name] for name in dying]
        self._free += [self._piece[name] for name, _ in writes if not self.reads.get(name)]
        return longer

    def _extra_seconds(self, piece: int, size: int, own: int) -> float:
        """Seconds for a block that was touched some time ago; timed alone, the operator found it in a nearer cache."""
        since = min(self._touched - self._last.get(piece, self._touched - self.working_set), self.working_set)
        alone = _cached_share(own, self.core)  # in the core's cache when it was timed
        here = _cached_share(since + size, self.core)
        near = self.peaks.cache_bytes_per_second or self.peaks.bytes_per_second
        from_near = size / near * max(0.0, alone - here)
        from_far = size * max(0.0, 1 / self.peaks.bytes_per_second - 1 / near)
        farther = max(0.0, self.share(since) - self.share(own))  # what is large came from memory alone, too
        return 1e6 * (from_near + from_far * farther)

    def _is_last_read(self, name: str) -> bool:
        self.reads[name] = self.reads.get(name, 1) - 1
        return self.reads[name] <= 0

    def _best_fit(self, size: int) -> int:
        fits = [(self._size[p], -at, p) for at, p in enumerate(self._free) if self._size[p] >= size]
        if not fits:
            return self._new(size)
        _, at, piece = min(fits)
        del self._free[-at]
        return piece

    def _new(self, size: int) -> int:
        self._size.append(size)
        return len(self._size) - 1

    def _assign(self, name: str, piece: int) -> None:
        self._piece[name] = piece


def _cached_share(size: float, cache: int) -> float:
    """The share of so many bytes that a cache still has: all of half its size, none of one and a half times."""
    return min(1.0, max(0.0, 1.5 - size / cache))

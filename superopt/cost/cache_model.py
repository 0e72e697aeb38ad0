"""Which data an inference finds in which cache: sizes of the caches, cold weights, activations.

*Weights.* A model that runs again and again finds its weights in the last cache or not, depending on the bytes that it
reads in between. The size of the cache does not say how many bytes that may be: other cores use it too, pages of 4 KiB
collide in some of its sets, and it does not replace the least recently used line first. So :class:`Ramp` is measured,
with a chain of products that reads so many bytes of weights. On a shared EPYC of 32 MiB an eighth of them comes from
memory at 14 MiB, half at 19 MiB and all at 28 MiB.

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

from superopt.cost.roofline import Peaks

if TYPE_CHECKING:
    from superopt.cost.cost_model import CostModel

__all__ = [
    "Activations",
    "Ramp",
    "Tensor",
    "Weights",
    "core_bytes",
    "evict",
    "fitted",
    "last_level_bytes",
    "probed_bytes",
    "ramp_of_header",
    "usual",
]

_ASSUMED = 32 << 20  # bytes, where the system does not say
# Bytes of the largest last cache that belongs to a few cores (eight of an EPYC with V-Cache). More is a whole socket's:
# a rented machine of two cores is told of 480 MiB, most of which hold what its neighbours read.
_OF_A_FEW = 96 << 20


@lru_cache(maxsize=1)
def last_level_bytes() -> int:
    """Size of the last-level cache in bytes, as far as a few cores may count on it; 32 MiB where the system does not
    say."""
    return min(max(_sizes(), default=0) or _ASSUMED, _OF_A_FEW)


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
def _ballast(size: int) -> np.ndarray:
    # Written once, so that the pages are real and distinct: untouched zero pages all alias one page in the cache.
    return np.arange(2 * size // 8, dtype=np.int64)


def evict(size: int) -> None:
    """Push everything else out of a cache by reading twice its size (reading leaves no dirty lines behind)."""
    np.bitwise_or.reduce(_ballast(size))


_START, _FULL = 0.375, 1.0  # of the last cache: the ramp where none was measured
_PROBED = (4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 24)  # sixteenths of the last cache: the first fits, the last does not
_LARGEST = 192 << 20  # bytes that are probed at most, of which ONNX Runtime and its making hold four copies


@dataclass(frozen=True)
class Ramp:
    """What share of its weights an inference finds outside the cache, by the bytes that it reads: points of a line.

    Attributes:
        points: (bytes, share), rising; below the first and beyond the last their shares hold.
    """

    points: tuple[tuple[float, float], ...]

    def share(self, working_set: float) -> float:
        """Share of the weights that comes from memory, for a model that reads this many bytes an inference."""
        sizes, shares = zip(*self.points, strict=True)
        return float(np.interp(working_set, sizes, shares))


def usual(cache_bytes: int) -> Ramp:
    """The ramp of a cache of this size where none was measured."""
    return Ramp(((_START * cache_bytes, 0.0), (_FULL * cache_bytes, 1.0)))


def ramp_of_header(header: Mapping[str, Any]) -> Ramp | None:
    """The ramp that a profile's header holds (``cache_ramp``: pairs of bytes and share), or ``None``."""
    held = header.get("cache_ramp")
    pairs = [p for p in held if isinstance(p, list) and len(p) == 2] if isinstance(held, list) else []
    points = tuple((float(b), float(s)) for b, s in pairs if isinstance(b, int | float) and isinstance(s, int | float))
    return Ramp(points) if points and list(points) == sorted(points) else None


def probed_bytes(cache_bytes: int) -> tuple[int, ...]:
    """Sizes at which the ramp is measured; none for a cache that is too large for that."""
    found = tuple(cache_bytes * n // 16 for n in _PROBED)
    return found if found[-1] <= _LARGEST else ()


def fitted(times: Mapping[int, float], cache_bytes: int) -> Ramp:
    """The ramp that passes show: the rising line that is nearest (least squares) to their shares.

    Args:
        times: nanoseconds by bytes (:func:`pass_ns`), the least of which the cache holds, and the most not.
        cache_bytes: size of the last cache.
    """
    if not times:
        return usual(cache_bytes)
    speeds = {size: times[size] / size for size in sorted(times)}
    near, far = min(speeds.values()), speeds[max(speeds)]
    if far <= 1.1 * near:  # no cache to be seen
        return usual(cache_bytes)
    level: list[tuple[float, int]] = []  # shares, and how many neighbours they are the mean of: pooled where they fall
    for speed in speeds.values():
        share, count = min((speed - near) / (far - near), 1.0), 1
        while level and level[-1][0] > share:
            before, many = level.pop()
            share, count = (before * many + share * count) / (many + count), many + count
        level.append((share, count))
    shares = [share for share, count in level for _ in range(count)]
    return Ramp(((min(speeds), 0.0), *list(zip(speeds, shares, strict=True))[1:-1], (max(speeds), 1.0)))


Tensor = tuple[str, int]  # name of the value whose memory it is, bytes


class Weights:
    """Cost models for the nodes of a graph in order: how cold are the weights that each reads?

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

    def at(self, weights: Mapping[str, int], moved: int) -> CostModel:
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
class Activations:
    """Microseconds that the nodes of a graph take longer than alone, for where their activations are; in order.

    Memory is given out as ONNX Runtime plans it: what operates element by element writes over an operand that nobody
    reads afterwards, anything else to the tightest piece that is free, the one freed last among equals.

    Args:
        peaks: how fast memory and the last cache are.
        share: what comes from memory, by the bytes that were touched in between.
        core: bytes of the core's own cache.
        working_set: bytes that one inference touches: so long ago was memory used that it has not used yet.
        reads: how often each value is read.
    """

    peaks: Peaks
    share: Callable[[int], float]
    core: int
    working_set: int
    reads: dict[str, int]
    _touched: int = 0
    _last: dict[int, int] = field(default_factory=dict)  # piece of memory → what had been touched when it was
    _piece: dict[str, int] = field(default_factory=dict)  # value → piece of memory
    _size: list[int] = field(default_factory=list)  # of each piece
    _free: list[int] = field(default_factory=list)  # pieces, in the order in which they were freed

    def longer_us(self, reads: Sequence[Tensor], writes: Sequence[Tensor], weights: int, *, in_place: bool) -> float:
        """The next node.

        Args:
            reads: activations that it reads, each once.
            writes: what it makes.
            weights: bytes of weights that it reads.
            in_place: whether it may write over an operand.
        """
        for name, size in reads:
            if name not in self._piece:  # an input of the graph
                self._place(name, self._new(size))
        dying = [name for name, _ in reads if self._last_time(name)]
        for name, size in writes:
            over = next((n for n in dying if in_place and self._size[self._piece[n]] == size), None)
            if over is not None:
                dying.remove(over)
                self._place(name, self._piece[over])
            else:
                self._place(name, self._tightest(size))
        own = sum(size for _, size in (*reads, *writes)) + weights
        pieces = {self._piece[name]: size for name, size in (*reads, *writes)}
        longer = sum(self._longer(piece, size, own) for piece, size in pieces.items())
        self._touched += own
        self._last.update(dict.fromkeys(pieces, self._touched))
        self._free += [self._piece[name] for name in dying]
        self._free += [self._piece[name] for name, _ in writes if not self.reads.get(name)]
        return longer

    def _longer(self, piece: int, size: int, own: int) -> float:
        """A piece that was touched some time ago, where the operator alone found it in the cache that holds it all."""
        since = min(self._touched - self._last.get(piece, self._touched - self.working_set), self.working_set)
        alone = _held(own, self.core)  # in the core's cache when it was timed
        here = _held(since + size, self.core)
        near = self.peaks.cache_bytes_per_second or self.peaks.bytes_per_second
        from_near = size / near * max(0.0, alone - here)
        from_far = size * max(0.0, 1 / self.peaks.bytes_per_second - 1 / near)
        farther = max(0.0, self.share(since) - self.share(own))  # what is large came from memory alone, too
        return 1e6 * (from_near + from_far * farther)

    def _last_time(self, name: str) -> bool:
        self.reads[name] = self.reads.get(name, 1) - 1
        return self.reads[name] <= 0

    def _tightest(self, size: int) -> int:
        fits = [(self._size[p], -at, p) for at, p in enumerate(self._free) if self._size[p] >= size]
        if not fits:
            return self._new(size)
        _, at, piece = min(fits)
        del self._free[-at]
        return piece

    def _new(self, size: int) -> int:
        self._size.append(size)
        return len(self._size) - 1

    def _place(self, name: str, piece: int) -> None:
        self._piece[name] = piece


def _held(size: float, cache: int) -> float:
    """Share of so many bytes that a cache still holds: all of half its size, none of one and a half times."""
    return min(1.0, max(0.0, 1.5 - size / cache))

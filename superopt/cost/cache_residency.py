"""What of an inference's data is still in the caches when it is touched again: weights, and activations.

An operator is timed alone with its activations in the core's cache, as far as they fit. In a model a tensor is read
some time after it was written, and written to memory that held another one before; what was touched in between has
pushed it out, to the last cache or to memory. A Split of 600 KB takes 10 µs alone and 24 in a Swin transformer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from superopt.cost.model import CostModel
from superopt.cost.peaks import Peaks

__all__ = ["Activations", "Tensor", "Weights"]

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

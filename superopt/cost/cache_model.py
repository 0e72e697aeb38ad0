"""How much a model may read in an inference until it finds its weights outside the last cache.

A model that runs again and again finds its weights in the last cache or not, by how much it reads in between. The size
of the cache does not say how much that may be: other cores, and on a rented machine other tenants, use it as well;
pages of 4 KiB lie in it by chance, so that some of its sets overflow early; and what it replaces first is not what was
used longest ago. So it is measured, with a chain of products that reads so many bytes of weights: on a shared EPYC of
32 MiB an eighth of them comes from memory at 14 MiB, half at 19 and all at 28.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from superopt import formats
from superopt.ir.graph import Graph, Node, Value, constant
from superopt.ir.types import DType, TensorType
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.runtime.paired_benchmark import Clock, race_bound
from superopt.runtime.sample_data import feeds_for

__all__ = ["Ramp", "fitted", "pass_ns", "probed_bytes", "ramp_of_header", "usual"]

_START, _FULL = 0.375, 1.0  # of the last cache: the ramp where none was measured
_PROBED = (4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 24)  # sixteenths of the last cache: the first fits, the last does not
_LARGEST = 192 << 20  # bytes that are probed at most, of which ONNX Runtime and its making hold four copies
_WIDTH = 512  # rows and columns of the products: 1 MiB each
_ROUNDS, _BURST = 3, 12  # runs in which the cache settles; the least of them counts


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


def pass_ns(size: int, clock: Clock = "cpu") -> float:
    """Nanoseconds of a chain of products that reads weights of this many bytes, run again and again."""
    content = formats.to_onnx_bytes(_chain(max(1, round(size / (4 * _WIDTH**2)))))
    bound = ONNX_RUNTIME.load(content, threads=1).bound(feeds_for(_chain(1)))  # the machine's, whatever runs models
    raced = race_bound([bound], rounds=_ROUNDS, burst=_BURST, threads=1, clock=clock)
    return 1e6 * median(sample[0] for sample in raced.samples)


def _chain(length: int) -> Graph:
    drawn = np.random.default_rng(0).random((_WIDTH, _WIDTH), dtype=np.float32) / _WIDTH
    row = TensorType(DType.FLOAT32, (1, _WIDTH))
    names = ["x", *(f"v{i}" for i in range(length))]
    weights = tuple(constant(f"w{i}", drawn + np.float32(i * 1e-6)) for i in range(length))  # equal ones would be one
    nodes = tuple(Node(f"n{i}", "MatMul", (names[i], f"w{i}"), (names[i + 1],)) for i in range(length))
    return Graph("chain", (Value("x", row),), (Value(names[-1], row),), weights, nodes, {"": 21})


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

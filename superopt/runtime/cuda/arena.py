"""Where intermediates lie: one block of memory, shared by values that are never alive together."""

from __future__ import annotations

from collections.abc import Mapping

from superopt.ir.types import TensorType

__all__ = ["arena"]

ALIGNMENT = 256  # bytes; what cudaMalloc gives and vector loads want


def arena(spans: Mapping[str, tuple[int, int]], types: Mapping[str, TensorType]) -> tuple[dict[str, int], int]:
    """Byte offsets such that values alive at one time do not overlap, and the bytes needed.

    Greedy by size (Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference, 2020).

    Args:
        spans: first and last step at which each value is alive.
        types: their static types.
    """
    placed: list[tuple[int, int, str]] = []
    offsets: dict[str, int] = {}
    sizes = {name: -(-max(types[name].nbytes or 0, 1) // ALIGNMENT) * ALIGNMENT for name in spans}
    for name in sorted(spans, key=lambda n: (-sizes[n], n)):
        first, last = spans[name]
        offset = 0
        for start, end, other in sorted(placed):
            if spans[other][1] < first or spans[other][0] > last:
                continue
            if offset + sizes[name] <= start:
                break
            offset = max(offset, end)
        offsets[name] = offset
        placed.append((offset, offset + sizes[name], name))
    return offsets, max((end for _, end, _ in placed), default=0)

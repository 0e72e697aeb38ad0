"""Integers at which arithmetic wraps around: the ends of their type, and of the narrower ones that they are cast to."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from superopt.ir.graph import Graph, OpaqueAttribute
from superopt.ir.types import DType

__all__ = ["divides", "ends", "special", "spread"]

_WIDTHS = (8, 16, 32)  # bits of narrower types


def ends(dtype: DType) -> tuple[int, int]:
    """The least and the greatest integer of a type; NumPy's own knows none of four bits."""
    limits = ml_dtypes.iinfo(dtype.numpy)  # type: ignore[no-untyped-call]
    return int(limits.min), int(limits.max)


def special(dtype: DType, *, safe: bool) -> list[int]:
    """Both ends of a type and what is beside them, 0, ±1, and where narrower types wrap around to 0 or to their ends.

    Args:
        dtype: the type.
        safe: without the least and -1, whose quotient ends the process that divides them.
    """
    low, high = ends(dtype)
    found = [low, high, -1, 0, 1, low + 1, high - 1, low + 2, high // 2 + 1, -(high // 2) - 1]
    for bits in (w for w in _WIDTHS if w < dtype.bits):
        whole, half = 1 << bits, 1 << (bits - 1)
        found += [whole, half, whole - 1, half - 1, whole + 1, -whole, -half, -half - 1, 3 * half]
    kept = dict.fromkeys(n for n in found if low <= n <= high and not (safe and n in (low, -1) and low < 0))
    return list(kept)


def spread(numbers: list[int], array: np.ndarray, turn: int, rng: np.random.Generator) -> np.ndarray:
    """These numbers over an array, in any order; over a small one those whose turn it is, or any where that is -1."""
    held = np.asarray(numbers, dtype=object)
    if array.size < held.size and turn >= 0:
        held = np.resize(np.roll(held, -turn * array.size), array.size)
    else:
        held = rng.permutation(np.resize(rng.permutation(held), array.size))
    return held.reshape(array.shape).astype(array.dtype)


def divides(graph: Graph) -> bool:
    """Whether some node divides, itself or in a subgraph: the least integer by -1 ends the process."""
    marks = (b"Div", b"Mod")
    return any(
        node.op in ("Div", "Mod")
        or any(isinstance(a, OpaqueAttribute) and any(m in a.payload for m in marks) for a in node.attributes.values())
        for node in graph.nodes
    )

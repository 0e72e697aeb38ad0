"""The measured cache hierarchy, as far as costs need it: its sizes, and reading weights cold."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

__all__ = ["core_bytes", "evict", "last_level_bytes"]

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

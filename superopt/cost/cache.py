"""The measured cache hierarchy, as far as costs need it: reading weights cold, and knowing when they are."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import numpy as np

__all__ = ["cold_share", "evict", "last_level_bytes"]

_ASSUMED = 32 << 20  # bytes, where the system does not say


@lru_cache(maxsize=1)
def last_level_bytes() -> int:
    """Size of the last-level cache in bytes; 32 MiB where the system does not say."""
    best = 0
    for entry in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")):
        try:
            text = entry.read_text().strip()
        except OSError:
            continue
        scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 0)
        if scale and text[:-1].isdigit():
            best = max(best, int(text[:-1]) * scale)
    if not best and hasattr(os, "sysconf") and "SC_LEVEL3_CACHE_SIZE" in os.sysconf_names:
        best = max(os.sysconf("SC_LEVEL3_CACHE_SIZE"), 0)
    return best or _ASSUMED


def cold_share(working_set: int, cache_bytes: int | None = None) -> float:
    """Share of the weights that an inference finds outside the cache, for a model that reads this many bytes.

    A cyclic pass over more bytes than a least-recently-used cache holds misses on all of them, and over much less
    hits on all; in between lies a ramp from a half to the whole of the last-level cache (``cache_bytes``: another's).
    """
    half = (cache_bytes or last_level_bytes()) / 2
    return min(1.0, max(0.0, (working_set - half) / half))


@lru_cache(maxsize=1)
def _ballast() -> np.ndarray:
    # Written once, so that the pages are real and distinct: untouched zero pages all alias one page in the cache.
    return np.arange(2 * last_level_bytes() // 8, dtype=np.int64)


def evict() -> None:
    """Push everything else out of the caches by reading twice their size (reading leaves no dirty lines behind)."""
    np.bitwise_or.reduce(_ballast())

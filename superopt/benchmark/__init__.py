"""The honest benchmark: superopt beside its peers, losses, crashes and wrong results included."""

from __future__ import annotations

from superopt.benchmark.rows import TOOLS, BenchOptions, bench
from superopt.benchmark.runtimes import RuntimesOptions, compare_runtimes

__all__ = ["TOOLS", "BenchOptions", "RuntimesOptions", "bench", "compare_runtimes"]

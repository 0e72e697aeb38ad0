"""The honest benchmark: superopt beside its peers, losses, crashes and wrong results included."""

from __future__ import annotations

from superopt.benchmark.optimizer_comparison import TOOLS, BenchmarkOptions, bench
from superopt.benchmark.runtime_comparison import RuntimeComparisonOptions, compare_runtimes

__all__ = ["TOOLS", "BenchmarkOptions", "RuntimeComparisonOptions", "bench", "compare_runtimes"]

"""The only composition: load → search → check → race → export."""

from __future__ import annotations

from superopt.pipeline.derivation import Derivation, derive, explained
from superopt.pipeline.inspection import cost, inspect
from superopt.pipeline.memory_timeline import told_of
from superopt.pipeline.optimization import Result, load, optimize
from superopt.pipeline.options import EFFORTS, Options, Progress
from superopt.pipeline.paired_benchmark import measure

__all__ = [
    "EFFORTS", "Derivation", "Options", "Progress", "Result", "cost", "derive", "explained", "inspect", "load",
    "measure", "optimize", "told_of",
]  # fmt: skip

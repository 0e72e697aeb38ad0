"""The only composition: load → search → check → race → export."""

from __future__ import annotations

from superopt.pipeline.derivation import Derivation, derive, explained
from superopt.pipeline.footprint import told_of
from superopt.pipeline.optimise import Result, load, optimize
from superopt.pipeline.options import EFFORTS, Options, Progress
from superopt.pipeline.racing import measure
from superopt.pipeline.studies import cost, inspect

__all__ = [
    "EFFORTS", "Derivation", "Options", "Progress", "Result", "cost", "derive", "explained", "inspect", "load",
    "measure", "optimize", "told_of",
]  # fmt: skip

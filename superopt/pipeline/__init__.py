"""The only composition: load → search → check → export. Everything above it only reads arguments or shows results."""

from __future__ import annotations

from superopt.pipeline.optimise import Options, Progress, Result, load, optimize
from superopt.pipeline.profiling import Coverage, Recorded, coverage, profile
from superopt.pipeline.racing import measure
from superopt.pipeline.studies import cost, inspect
from superopt.pipeline.validation import Validation, repeat_profile, validate_costs

__all__ = [
    "Coverage", "Options", "Progress", "Recorded", "Result", "Validation", "cost", "coverage", "inspect", "load",
    "measure", "optimize", "profile", "repeat_profile", "validate_costs",
]  # fmt: skip

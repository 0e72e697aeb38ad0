"""What judges the product: benchmarks, ablations, the corpus gate, baselines, recorded profiles, costs put to the test.

Nothing that optimises a model depends on it.
"""

from __future__ import annotations

from superopt.lab.predictions import Prediction
from superopt.lab.profiling import Coverage, Recorded, coverage, profile
from superopt.lab.validation import Validation, repeat_profile, validate_costs

__all__ = [
    "Coverage",
    "Prediction",
    "Recorded",
    "Validation",
    "coverage",
    "profile",
    "repeat_profile",
    "validate_costs",
]

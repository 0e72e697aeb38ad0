"""Mixed precision: operators and weights in half precision, the rest in float32, Casts between them.

1. :mod:`restrictions`: what has to stay in float32, by magnitudes and by operators' meanings;
2. :mod:`selection`: what is worth half precision within a budget of errors, as a strategy assignment;
3. :mod:`lowering`: the graph with its Casts.

:mod:`superopt.pipeline.mixed_precision` measures what these need, and decides by the measured error.
"""

from superopt.passes.mixed_precision.lowering import Precision, Switched, lowered, switched
from superopt.passes.mixed_precision.observation import Watched, watched
from superopt.passes.mixed_precision.policy import POLICY, PrecisionPolicy
from superopt.passes.mixed_precision.restrictions import (
    WIDE,
    Magnitudes,
    Operand,
    Reason,
    Restrictions,
    candidates,
    restricted,
)
from superopt.passes.mixed_precision.selection import Objective, choose, of_bytes, of_time, rounded_values

__all__ = [
    "POLICY", "WIDE", "Magnitudes", "Objective", "Operand", "Precision", "PrecisionPolicy", "Reason",
    "Restrictions", "Switched", "Watched", "candidates", "choose", "lowered", "of_bytes", "of_time", "restricted",
    "rounded_values", "switched", "watched",
]  # fmt: skip

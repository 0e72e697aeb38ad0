"""Mixed precision: operators and weights in half precision, the rest in float32, Casts between them.

1. :mod:`restrictions`: what has to stay in float32, by magnitudes and by operators' meanings;
2. :mod:`selection`: what is worth half precision within a budget of errors, as a strategy assignment;
3. :mod:`lowering`: the graph with its Casts.

:mod:`superopt.pipeline.mixed_precision` measures what these need, and decides by the measured error.
"""

from superopt.passes.mixed_precision.cast_insertion import (
    PrecisionAssignment,
    SwitchableRoundingGraph,
    lowered,
    switched,
)
from superopt.passes.mixed_precision.half_precision_restrictions import (
    WIDE,
    Float32Reason,
    HalfPrecisionInputs,
    HalfPrecisionRestrictions,
    ValueMagnitudes,
    candidates,
    restricted,
)
from superopt.passes.mixed_precision.magnitude_observation import MagnitudeInstrumentedGraph, watched
from superopt.passes.mixed_precision.policy import POLICY, MixedPrecisionPolicy
from superopt.passes.mixed_precision.selection import HalfPrecisionObjective, choose, of_bytes, of_time, rounded_values

__all__ = [
    "POLICY", "WIDE", "ValueMagnitudes", "HalfPrecisionObjective", "HalfPrecisionInputs", "PrecisionAssignment",
    "MixedPrecisionPolicy", "Float32Reason", "HalfPrecisionRestrictions", "SwitchableRoundingGraph",
    "MagnitudeInstrumentedGraph", "candidates", "choose", "lowered", "of_bytes", "of_time", "restricted",
    "rounded_values", "switched", "watched",
]  # fmt: skip

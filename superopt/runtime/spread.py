"""What interquartile ranges say where the draws are normal: how far they scatter, and how far their median may be off.

Times are not normal (noise only adds), but ratios within a round nearly are, and their quartiles do not mind outliers.
"""

from __future__ import annotations

import math
from statistics import NormalDist

__all__ = ["IQR_OF_NORMAL", "median_error"]

IQR_OF_NORMAL = 2 * NormalDist().inv_cdf(0.75)  # interquartile range of a normal distribution, in standard deviations


def median_error(count: int) -> float:
    """The standard error of the median of so many draws, in interquartile ranges: √(π/2) σ/√n; at least one draw."""
    return math.sqrt(math.pi / 2 / max(count, 1)) / IQR_OF_NORMAL

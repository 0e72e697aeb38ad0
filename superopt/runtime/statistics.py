"""What draws say where they are normal: how far they scatter, and how far their median may be off.

Times are not normal (noise only adds), but ratios within a round nearly are, and their quartiles do not mind outliers.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

__all__ = ["IQR_OF_NORMAL", "SURELY", "beyond_quartiles", "median_beyond", "median_error"]

SURELY = 2.0  # standard deviations beyond which a belief is acted on: it is wrong once in forty
_OF_QUARTILES = 0.4  # degrees of freedom that the interquartile range of normal draws has of those of their deviation
_FEWEST = 15  # draws of which quartiles say how far they scatter
IQR_OF_NORMAL = 2 * NormalDist().inv_cdf(0.75)  # interquartile range of a normal distribution, in standard deviations


def median_error(count: int) -> float:
    """The standard error of the median of so many draws, in interquartile ranges: √(π/2) σ/√n; at least one draw."""
    return math.sqrt(math.pi / 2 / max(count, 1)) / IQR_OF_NORMAL


@lru_cache(maxsize=256)
def median_beyond(count: int, probability: float) -> float:
    """By how many of their standard deviations the median of so many normal draws is too high with this probability.

    The standard deviation is that of the draws themselves (``ddof=1``), of which few know little: Student's law, with
    the standard error of a median in place of a mean's, which overstates the probability (0.3 to 0.6 of it was found
    for 3 to 31 draws). Even degrees of freedom have a closed form (Abramowitz and Stegun 26.7.4); an even count gets
    that of one draw fewer. Infinite for fewer than three.
    """
    freedom = (count - 1) // 2 * 2
    return math.inf if freedom < 2 else _student(freedom, probability) * math.sqrt(math.pi / 2 / count)


@lru_cache(maxsize=256)
def beyond_quartiles(count: int, probability: float) -> float:
    """The same in interquartile ranges of the draws, which single draws far off do not widen; infinite for fewer than
    fifteen. Where either of the two bounds is passed, 0.1 to 0.9 of the probability was found for 15 and 31 draws
    (normal, Student's with three degrees, 15 % of them eight times as wide, differences of waiting times; 10^6 each).
    """
    if count < _FEWEST:
        return math.inf
    return _student(int(_OF_QUARTILES * count) // 2 * 2, probability) * median_error(count)


def _student(freedom: int, probability: float) -> float:
    """What Student's law with an even number of degrees of freedom passes with this probability."""
    low, high = 0.0, 1e9
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _beyond(middle, freedom) > probability else (low, middle)
    return high


def _beyond(t: float, freedom: int) -> float:
    """The probability of more than ``t`` by Student's law with an even number of degrees of freedom."""
    angle = math.atan(t / math.sqrt(freedom))
    term = total = 1.0
    for k in range(1, freedom // 2):
        term *= math.cos(angle) ** 2 * (2 * k - 1) / (2 * k)
        total += term
    return 0.5 - 0.5 * math.sin(angle) * total

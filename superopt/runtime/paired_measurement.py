"""The record of a paired benchmark of two models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any

__all__ = ["PairedMeasurement", "certainty", "outcome"]

_SCATTERING = 3  # rounds, at least, of which an interquartile range says how they scatter


def outcome(ratio: float, spread: float, rounds: int = _SCATTERING) -> str:
    """What a measured ratio of after ÷ before says: "faster", "slower", or "no difference" where 1 is within what is
    written behind ±, or where so few rounds do not scatter."""
    if abs(ratio - 1.0) <= spread or rounds < _SCATTERING:
        return "no difference"
    return "faster" if ratio < 1.0 else "slower"


def certainty(spread: float, rounds: int) -> str:
    """How far a measured ratio may be off, in words."""
    if rounds >= _SCATTERING and isfinite(spread):
        return f"±{spread:.3f}, {rounds} interleaved rounds"
    return f"{rounds} interleaved round{'s' * (rounds != 1)}, too few to say how far it may be off"


@dataclass(frozen=True)
class PairedMeasurement:
    """Whole-model times, interleaved in one run; ``ratio`` is the median of after ÷ before over the rounds.

    Attributes:
        before_ms, after_ms: medians.
        ratio: of the pairs.
        runs: rounds.
        spread: the interquartile range of their ratios.
        circumstances: of the paired benchmark.
        deviation: the standard deviation of the ratios.
        loadings: how many times the models were loaded for them.
        uncertainty: how far the ratio may be off, as :mod:`superopt.pipeline.acceptance_policy` has it, which decides
            by it.
    """

    before_ms: float
    after_ms: float
    ratio: float
    runs: int
    spread: float = 0.0
    circumstances: Mapping[str, Any] = field(default_factory=dict)
    deviation: float = 0.0
    loadings: int = 1
    uncertainty: float = inf

    @property
    def outcome(self) -> str:
        """See :func:`outcome`."""
        return outcome(self.ratio, self.uncertainty, self.runs)

    @property
    def certainty(self) -> str:
        """See :func:`certainty`."""
        return certainty(self.uncertainty, self.runs)

    @property
    def after_paired_ms(self) -> float:
        """The result's time as the pairs of rounds give it: so ``before_ms`` and this have the ``ratio``, which the two
        medians by themselves have only where nothing drifted."""
        return self.before_ms * self.ratio

"""Is a rewritten model better? Asked here alone, with one policy about noise.

What a graph does (FLOPs, bytes, kernels) is a fact; what it takes is measured with an error. A result that does no
more of any of the three, and less of one, is taken unless it was *measured slower beyond doubt*, by more than what two
copies of one model differ by from sitting to sitting; where that is what decides, both are loaded again and again, and
the median of so many sittings differs by less. One that trades one for another is taken only if it was measured faster
beyond doubt or, where nothing was to be measured, if the model says so.
Beyond doubt means that a race is wrong once in a thousand (:data:`DOUBT`), however often it was looked at
(:data:`LOOKS`; Bonferroni) and however few rounds it had (Student); ties go to the simpler graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import erfc, hypot, inf, isinf, prod, sqrt
from statistics import NormalDist

from superopt import report
from superopt.cost import Demand, GraphCost
from superopt.runtime.spread import SURELY, beyond_quartiles, median_beyond, median_error

__all__ = [
    "CHEAP",
    "DOUBT",
    "LEAST_REPLACED",
    "LOOKS",
    "SITTING",
    "SITTINGS",
    "Belief",
    "Comparison",
    "Judgement",
    "Replacement",
    "demand_of",
    "doubt_of",
    "regret",
]

DOUBT = 1e-3  # how often a race may be wrong about which of two equal models is faster
LOOKS = (3, 7, 15, 31)  # rounds after which a race is looked at: it ends there if settled, and at the last anyway
# Rounds after which what has to be faster and is not yet will not be: its gain is below what rounds scatter.
_FUTILE = 7
# Standard deviation of the ratio of a model to its copy, from one loading of both to another: 0.0097 over the 45 of
# lab/results/benchmark.json. A race's rounds do not show it.
SITTING = 0.01
# Share of the model's time that a wrong answer may be expected to lose and still not be asked for: a fifth of what two
# loadings of one model differ by. Of trials it holds for all operators alike, of prices for as many as may be asked.
CHEAP = SITTING / 5.0
# Share of its time that a graph has to gain over the one that it replaces, for what it costs in accuracy and memory.
LEAST_REPLACED = 3 * SITTING
SITTINGS = 16  # loadings of models of which one says that the result is slower: their median is off by a quarter of it
_TAIL = 5.0  # standard deviations on each side that an expectation takes in
_STEPS = 64  # places that it is summed at
_WRONG = DOUBT / len(LOOKS)  # how often one look may be wrong
_FARTHEST = NormalDist().inv_cdf(1 - _WRONG) * SITTING  # what two copies may seem to differ by, loaded once


@dataclass(frozen=True)
class Judgement:
    """Whether the result is to be returned, and why not (or why, where it needs saying); ``hopeless``: no race was run,
    since none could show it faster."""

    taken: bool
    reason: str = ""
    hopeless: bool = False


@dataclass(frozen=True)
class Belief:
    """What a ratio of times is taken to be: normal, by its mean and standard deviation.

    What was modelled and what was measured count by how sure each is (Bayes; precisions add up). On a quiet machine
    the race decides, on a busy one whose rounds scatter the prices do, which are the same on every run.
    """

    mean: float
    deviation: float

    @property
    def sure(self) -> bool:
        """Whether more rounds of a race hardly make it surer: one sitting tells no more."""
        return self.deviation < 1.2 * SITTING

    def above(self, ratio: float) -> float:
        """How likely it is that the ratio is more than this."""
        if self.deviation <= 0.0:
            return float(self.mean > ratio)
        return 0.5 * erfc((ratio - self.mean) / (self.deviation * sqrt(2.0)))

    def measured(self, found: report.Measured | None) -> Belief:
        """After a race. The median of its rounds counts with the standard error that their quartiles say, for as few
        as they are (Student's variance), and with what it is off by in one sitting; fewer than four say nothing."""
        count = 0 if found is None else found.runs
        if found is None or count <= LOOKS[0]:
            return self
        error = median_error(count) * found.spread * sqrt((count - 1) / (count - 3))
        there = 1.0 / (error**2 + SITTING**2 / found.sittings)
        here = self.deviation**-2
        return Belief((self.mean * here + found.ratio * there) / (here + there), (here + there) ** -0.5)


def regret(beliefs: Sequence[Belief]) -> float:
    """What choosing the least mean is expected to lose to whoever knew all ratios: the expected value of perfect
    information (Howard 1966) about normal, independent ones. Never negative; 0 where nothing is open."""
    best = min(b.mean for b in beliefs)
    low = min(b.mean - _TAIL * b.deviation for b in beliefs)
    width = (best - low) / _STEPS
    places = [low + (n + 0.5) * width for n in range(_STEPS)]
    below = [1.0 - prod(b.above(x) for b in beliefs) for x in places]  # that the least of all lies there
    gain = width * sum(below)
    high = min(b.mean + _TAIL * b.deviation for b in beliefs)  # the least of all is hardly above
    width = (high - best) / _STEPS
    loss = width * sum(prod(b.above(best + (n + 0.5) * width) for b in beliefs) for n in range(_STEPS))
    return max(0.0, gain - loss)


@dataclass(frozen=True)
class Comparison:
    """A result beside its input.

    Attributes:
        before, after: what they do.
        modelled: what the result is modelled to take of the input's time.
        measured: a race of both, if there was one.
        simpler: the result has fewer nodes.
        believed: that it is faster is known from elsewhere, so it needs no more evidence than what does less.
        refused: there would have been a race, and the runtime runs none of both: no price is evidence enough.
    """

    before: Demand
    after: Demand
    modelled: float
    measured: report.Measured | None = None
    simpler: bool = False
    believed: bool = False
    refused: bool = False

    @property
    def dominates(self) -> bool:
        """Whether only a race that it loses beyond doubt speaks against it."""
        return self.believed or self.after.no_more_than(self.before)

    @property
    def doubt(self) -> float:
        """How far the measured ratio may be off beyond what a look allows; 0 where nothing was measured."""
        return 0.0 if self.measured is None else doubt_of(self.measured)

    @property
    def hopeless(self) -> bool:
        """Whether no race could show it faster: it trades, for less than two loadings of one model differ by."""
        return not self.dominates and 0.0 <= 1.0 - self.modelled < SITTING

    @property
    def loaded_so(self) -> bool:
        """Whether it was measured slower, by what may be for how both were loaded that once: more loadings tell."""
        found = self.measured
        if found is None or found.sittings > 1 or not self.dominates:
            return False
        return found.ratio > 1.0 + SITTING and self.judged().taken

    @property
    def settled(self) -> bool:
        """Whether more rounds of the race would change nothing: it is clear, or it decides nothing."""
        if self.measured is None:
            return True
        ratio = self.measured.ratio
        if ratio - self._margin > 1.0:
            return True
        if self.dominates and self.measured.sittings > 1:
            return ratio + self._margin <= 1.0 + SITTING
        if self.dominates:  # with a gain as large as that, what is not slower so far will not be beyond doubt
            return (ratio <= 1.0 and self.modelled < 1.0 - _FARTHEST) or ratio + self.doubt <= 1.0 + _FARTHEST
        return ratio + self.doubt < 1.0 or (ratio >= 1.0 and self.measured.runs >= _FUTILE)

    def judged(self) -> Judgement:
        """The policy."""
        if self.measured is not None and self.measured.ratio - self._margin > 1.0:
            return Judgement(False, f"the rewritten graph was measured to take {self._ratio} of the input's time")
        if self.dominates:
            return Judgement(True)
        if self.measured is None and self.refused:
            return Judgement(
                False, "the rewritten graph does more of some work for less of other, and the two could not be timed"
            )  # fmt: skip
        if self.measured is None:
            if self.modelled < 1.0 or (self.modelled == 1.0 and self.simpler):
                return Judgement(True)
            return Judgement(False, f"the rewritten graph is modelled at {self.modelled:.3f} of the input's cost")
        if self.measured.ratio + self.doubt < 1.0:
            return Judgement(True)
        if self.simpler and self.after.kernels <= self.before.kernels and self.measured.ratio <= 1.0:
            return Judgement(True)
        return Judgement(
            False, f"the rewritten graph does more of some work for less of other, and timing both ({self._ratio}) "
            "left doubt that it is faster"
        )  # fmt: skip

    @property
    def _margin(self) -> float:
        """By how much a slower result has to be: what does less is not refused for how it happened to lie."""
        if not self.dominates or self.measured is None:
            return self.doubt
        return hypot(self.doubt, _FARTHEST / sqrt(self.measured.sittings))

    @property
    def _ratio(self) -> str:
        assert self.measured is not None
        if self.measured.runs < LOOKS[0]:
            return f"{self.measured.ratio:.3f} in {self.measured.runs} rounds"
        return f"{self.measured.ratio:.3f} ± {self._margin:.3f}"


@dataclass(frozen=True)
class Replacement:
    """A graph in the place of another that it is modelled to be faster than, where it costs accuracy and memory.

    It is kept unless timing refuses it: unless prices and rounds together say that it gains too little. What decides is
    their mean, not how sure it is, which a busy machine would change; and where rounds tell nothing, prices decide.

    Attributes:
        modelled: what it is modelled to take of the other's time.
        measured: a race of both, if there was one.
    """

    modelled: Belief
    measured: report.Measured | None = None

    @property
    def doubted(self) -> bool:
        """Whether a race is worth it: choosing by prices may be expected to lose more than what is cheap."""
        return regret([Belief(1.0 - LEAST_REPLACED, 0.0), self.modelled]) > CHEAP

    @property
    def taken(self) -> bool:
        return self._known.mean < 1.0 - LEAST_REPLACED

    @property
    def settled(self) -> bool:
        """Whether more rounds would hardly change anything."""
        if self.measured is None or self.measured.runs <= LOOKS[0]:  # so few rounds say nothing yet
            return False
        known = self._known
        return known.sure or abs(known.mean - (1.0 - LEAST_REPLACED)) > SURELY * known.deviation

    @property
    def _known(self) -> Belief:
        return self.modelled.measured(self.measured)

    @property
    def text(self) -> str:
        """The ratio by rounds, and by rounds and prices together."""
        assert self.measured is not None
        rounds = f"{self.measured.ratio:.3f} by {self.measured.runs} rounds"
        return f"{rounds}, {self._known.mean:.3f} by rounds and prices together,"


def doubt_of(found: report.Measured) -> float:
    """How far the median of a race's ratios may be off beyond what a look allows: by their standard deviation, or by
    their quartiles, which a few rounds that something else disturbed leave where they are."""
    if found.runs < LOOKS[0]:
        return inf
    doubt = median_beyond(found.runs, _WRONG) * found.deviation
    factor = beyond_quartiles(found.runs, _WRONG)
    return doubt if isinf(factor) else min(doubt, factor * found.spread)


def demand_of(cost: GraphCost) -> Demand:
    """What a graph does, from its parts as the backend runs them: what it fuses or only renames starts no kernel."""
    return Demand(cost.flops, cost.bytes, sum(e.us > 0.0 and e.source != "free" for _, _, e in cost.per_node))

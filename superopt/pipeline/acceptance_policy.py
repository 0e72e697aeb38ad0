"""The acceptance policy: whether a candidate is better than the input.

A candidate improves on the input (:attr:`CandidateComparison.improvement`) in one of two ways. The report's status says
"improved" for no other reason, and what improves nothing is not returned.

- *faster*: the paired benchmark shows it faster by more than the measurement's uncertainty; or all of its rounds leave
  that in doubt, prices say so, and prices and rounds together leave hardly any doubt. Where the target cannot be timed,
  prices say that it is faster by more than they are off.
- *simpler*: of nodes, FLOPs, bytes moved, bytes of weights and kernels none is more, one of the first three is less,
  and the benchmark does not show it slower by more than the uncertainty.

The uncertainty of a benchmark has two parts. The median of its rounds may be off, with an error rate that is divided by
the number of looks (Bonferroni) and corrected for few rounds (Student). And two copies of one model differ from one
loading to the next. Where the second part decides, both models are loaded several times, and the median over loadings
differs by less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import erfc, hypot, inf, isinf, prod, sqrt
from statistics import NormalDist
from typing import Literal

from superopt.cost import GraphCost, InferenceWork
from superopt.formats.control_flow_bodies import count_nodes
from superopt.ir.graph import Graph
from superopt.runtime.paired_benchmark import SURELY, beyond_quartiles, median_beyond, median_error
from superopt.runtime.paired_measurement import PairedMeasurement

__all__ = [
    "POLICY",
    "AcceptancePolicy",
    "CandidateComparison",
    "AcceptanceDecision",
    "TimeRatioEstimate",
    "GraphSize",
    "Improvement",
    "FastAlgorithmComparison",
    "demand_of",
    "doubt_of",
    "extent_of",
    "regret",
    "too_slow_for_memory",
    "uncertainty_of",
]


@dataclass(frozen=True)
class AcceptancePolicy:
    """The numbers that decide whether a candidate is accepted.

    Attributes:
        error_rate: how often a benchmark may be wrong about which of two equal models is faster.
        looks: rounds after which a benchmark is looked at. It ends there where it is conclusive. Three rounds show
            what is large; after 31 a median is off by less than one loading.
        futile_rounds: rounds after which a candidate that has to be faster is given up, if not even the most loadings
            could show it faster.
        loading_deviation: standard deviation of the ratio of a model to its copy from one loading of both to another:
            0.0097 over the 45 models of ``lab/results/benchmark.json``. The rounds of one benchmark do not show it.
        loadings: of both models, at most, where one loading leaves the decision open. The median over 16 is off by a
            quarter of what one loading is off by.
        loading_rounds: of each loading of a candidate that has to be faster. Of 16 loadings with rounds that scatter by
            0.04, as beside other work, a gain of 4 % is shown.
        least_replacement_gain: share of its time that a candidate with fast algorithms has to gain over the same
            graph without, for what they cost in accuracy and memory: three deviations of a loading.
        least_modelled_gain: share by which prices have to say that a candidate is faster where nothing is timed. Of
            changes that are larger, prices get the direction right in 95 of 100 (docs/costs.md).
        price_error: standard deviation of the share of a modelled gain that is measured: 0.35 over the results modelled
            at 0.87 to 0.94 of the input's time in ``lab/results/benchmark.json``. What two loadings differ by comes on
            top.
        combined_error_rate: how likely it may be that a candidate is not faster, by prices and rounds together, for it
            to be accepted although the rounds alone are in doubt, as beside other work.
        negligible_loss: share of the model's time that a wrong choice may be expected to lose and still not be
            measured: a fifth of a loading's deviation.
        node_bytes: bytes of a node in a file, at least. For each node that is gone, weights may take as many more.
        shown_rounds, shown_seconds: rounds at least, and seconds at most, of a benchmark whose figures the user asked
            for.
        longer: times the usual seconds, for models of which too few rounds to say anything fit those.
        longer_in_doubt: times the usual seconds, for several loadings of a candidate that has to be faster. Refusing it
            would cost another candidate's search, benchmark and check, and give another graph by chance.
        warm_up_rounds: besides the timed ones: each model runs once or twice before.
        loading_bytes: of weights that a runtime loads in a second.
        loading_node_seconds: that loading both models takes for each node: 6 seconds for 10,000.
        memory_slowdown: times the input's time, beyond doubt, at which a graph written for less memory is too slow,
            where no limit demands it: who wants less memory gives some time for it, not a fifth.
        memory_seconds: of the benchmark that shows it.
    """

    error_rate: float = 1e-3
    looks: tuple[int, ...] = (3, 7, 15, 31)
    futile_rounds: int = 7
    loading_deviation: float = 0.01
    loadings: int = 16
    loading_rounds: int = 5
    least_replacement_gain: float = 0.03
    least_modelled_gain: float = 0.03
    price_error: float = 0.35
    combined_error_rate: float = 0.005
    negligible_loss: float = 0.002
    node_bytes: int = 64
    shown_rounds: int = 15
    shown_seconds: float = 30.0
    longer: float = 3.0
    longer_in_doubt: float = 5.0
    warm_up_rounds: int = 2
    loading_bytes: float = 1e9
    loading_node_seconds: float = 6e-4
    memory_slowdown: float = 1.15
    memory_seconds: float = 6.0

    @property
    def fewest_rounds(self) -> int:
        """Rounds up to which a benchmark says nothing."""
        return self.looks[0]

    @property
    def look_error_rate(self) -> float:
        """The error rate of one look (Bonferroni)."""
        return self.error_rate / len(self.looks)

    @property
    def loading_doubt(self) -> float:
        """What two copies of a model may seem to differ by, loaded once."""
        return NormalDist().inv_cdf(1 - self.look_error_rate) * self.loading_deviation


POLICY = AcceptancePolicy()
_TAIL = 5.0  # standard deviations on each side over which an expectation is summed
_STEPS = 64  # points of that sum

# "memory" and "precision" only where that was asked for, "runs" only where the runtime breaks or refuses the input.
Improvement = Literal["faster", "simpler", "memory", "precision", "runs"]


@dataclass(frozen=True)
class AcceptanceDecision:
    """Whether a candidate is better than the input.

    Attributes:
        improvement: how; ``None``: it is not better.
        reason: why it is not; or, where rounds alone are in doubt, why it is.
        undetectable: nothing was timed, since no benchmark could show its gain.
        code: the reason's, as :class:`superopt.report.StatusReason` lists them.
    """

    improvement: Improvement | None
    reason: str = ""
    undetectable: bool = False
    code: str = "not_better"

    @property
    def accepted(self) -> bool:
        """Whether the candidate may be returned."""
        return self.improvement is not None


@dataclass(frozen=True)
class GraphSize:
    """How large a graph is: its nodes, the bytes of its weights, and what an inference work."""

    nodes: int
    weight_bytes: int
    work: InferenceWork

    def simpler_than(self, other: GraphSize) -> bool:
        """Whether none of nodes, FLOPs, bytes and kernels is more, and one of the first three is less."""
        mine, theirs = self.work, other.work
        fewer = other.nodes - self.nodes
        no_more = (
            fewer >= 0 and mine.flops <= theirs.flops and mine.bytes <= theirs.bytes and mine.kernels <= theirs.kernels
            and self.weight_bytes <= other.weight_bytes + fewer * POLICY.node_bytes
        )  # fmt: skip
        return no_more and (fewer > 0 or mine.flops < theirs.flops or mine.bytes < theirs.bytes)


@dataclass(frozen=True)
class TimeRatioEstimate:
    """An estimate of a ratio of times: a normal distribution, by its mean and standard deviation.

    Prices and measurements combine by precision (Bayes). On a quiet machine the benchmark decides. On a busy machine
    its rounds scatter, so prices decide, which are the same on every run.
    """

    mean: float
    deviation: float

    @property
    def sure(self) -> bool:
        """Whether more rounds of one loading would hardly narrow it."""
        return self.deviation < 1.2 * POLICY.loading_deviation

    def above(self, ratio: float) -> float:
        """How likely it is that the ratio is more than this."""
        if self.deviation <= 0.0:
            return float(self.mean > ratio)
        return 0.5 * erfc((ratio - self.mean) / (self.deviation * sqrt(2.0)))

    def measured(self, found: PairedMeasurement | None) -> TimeRatioEstimate:
        """The estimate after a benchmark.

        The error of its median is the standard error by the quartiles of its rounds, with Student's variance for few
        rounds, and the deviation of a loading. Three rounds or fewer change nothing.
        """
        count = 0 if found is None else found.runs
        if found is None or count <= POLICY.fewest_rounds:
            return self
        error = median_error(count) * found.spread * sqrt((count - 1) / (count - 3))
        there = 1.0 / (error**2 + POLICY.loading_deviation**2 / found.loadings)
        here = self.deviation**-2
        return TimeRatioEstimate((self.mean * here + found.ratio * there) / (here + there), (here + there) ** -0.5)


def regret(estimates: Sequence[TimeRatioEstimate]) -> float:
    """The expected loss of choosing the least mean: the expected value of perfect information (Howard 1966) about
    independent normal ratios. Never negative; 0 where nothing is in doubt."""
    best = min(b.mean for b in estimates)
    low = min(b.mean - _TAIL * b.deviation for b in estimates)
    width = (best - low) / _STEPS
    places = [low + (n + 0.5) * width for n in range(_STEPS)]
    below = [1.0 - prod(b.above(x) for b in estimates) for x in places]  # that the least of all lies there
    gain = width * sum(below)
    high = min(b.mean + _TAIL * b.deviation for b in estimates)  # the least of all is hardly above
    width = (high - best) / _STEPS
    loss = width * sum(prod(b.above(best + (n + 0.5) * width) for b in estimates) for n in range(_STEPS))
    return max(0.0, gain - loss)


@dataclass(frozen=True)
class CandidateComparison:
    """A candidate beside the input.

    Attributes:
        before, after: the extents of the input and of the candidate.
        modelled: the candidate's share of the input's time, by prices.
        timed: whether the target can be timed; where not, prices say what is faster.
        measured: the paired benchmark of both, if there was one.
        known_faster: another benchmark has shown the candidate faster, so this one only has to not contradict it.
    """

    before: GraphSize
    after: GraphSize
    modelled: float
    timed: bool = True
    measured: PairedMeasurement | None = None
    known_faster: bool = False

    @property
    def improvement(self) -> Improvement | None:
        """How the candidate is better than the input; ``None`` where it is not."""
        if self.slower:
            return None
        if self.faster:
            return "faster"
        return "simpler" if self.simpler else None

    @property
    def faster(self) -> bool:
        """Whether it is faster beyond its uncertainty."""
        if self.measured is not None:
            return self.known_faster or self._measured_faster or self._faster_together
        return self.known_faster or (not self.timed and self.modelled < 1.0 - POLICY.least_modelled_gain)

    @property
    def _measured_faster(self) -> bool:
        """Whether rounds alone show it."""
        return self.measured is not None and self.measured.ratio + uncertainty_of(self.measured) < 1.0

    @property
    def _faster_together(self) -> bool:
        """Whether prices and rounds together show it, where prices say so and rounds are in doubt."""
        enough = self.measured is not None and self.measured.runs > POLICY.fewest_rounds
        gain = 1.0 - self.modelled
        return enough and gain > POLICY.least_modelled_gain and self.together.above(1.0) < POLICY.combined_error_rate

    @property
    def together(self) -> TimeRatioEstimate:
        """The ratio by prices and rounds together."""
        deviation = hypot(POLICY.price_error * (1.0 - self.modelled), POLICY.loading_deviation)
        return TimeRatioEstimate(self.modelled, deviation).measured(self.measured)

    @property
    def slower(self) -> bool:
        """Whether it was measured slower beyond its uncertainty."""
        return self.measured is not None and self.measured.ratio - uncertainty_of(self.measured) > 1.0

    @property
    def simpler(self) -> bool:
        return self.after.simpler_than(self.before)

    @property
    def accepted_unless_slower(self) -> bool:
        """Whether it is accepted unless a benchmark shows it slower."""
        return self.known_faster or self.simpler

    @property
    def undetectable(self) -> bool:
        """Whether no benchmark could show it faster: its modelled gain is below the deviation of a loading."""
        return not self.accepted_unless_slower and 0.0 <= 1.0 - self.modelled < POLICY.loading_deviation

    @property
    def undecided(self) -> bool:
        """Whether more loadings could change the decision of one: an accepted candidate may be slower, or a refused one
        faster."""
        one = self.measured
        if one is None or one.loadings > 1 or one.runs < POLICY.fewest_rounds:
            return False
        if self.accepted_unless_slower:
            return one.ratio > 1.0 + POLICY.loading_deviation and not self.slower
        return not self._measured_faster and self._may_be_faster

    @property
    def _may_be_faster(self) -> bool:
        """Whether the most loadings are likely to show it faster, if its ratio is as low as it may be."""
        one = self.measured
        assert one is not None
        error = median_error(one.runs) * one.spread
        lowest = one.ratio - SURELY * hypot(error, POLICY.loading_deviation / sqrt(one.loadings))
        most = max(one.runs, POLICY.loadings * POLICY.loading_rounds)
        return lowest + uncertainty_of(replace(one, runs=most, loadings=POLICY.loadings)) < 1.0

    @property
    def conclusive(self) -> bool:
        """Whether more rounds would change nothing."""
        if self.measured is None or self.slower:
            return True
        shown = self.known_faster or self._measured_faster  # prices decide only where no more rounds are made
        ratio, count = self.measured.ratio, self.measured.loadings
        if self.accepted_unless_slower and count > 1:
            return ratio + uncertainty_of(self.measured) <= 1.0 + POLICY.loading_deviation
        if self.accepted_unless_slower:
            margin = POLICY.loading_doubt
            accepted = (ratio <= 1.0 and self.modelled < 1.0 - margin) or ratio + doubt_of(
                self.measured
            ) <= 1.0 + margin
            return accepted and (shown or ratio > 1.0 - margin)  # a gain that can be shown is shown
        if count > 1:  # looked at after 2, 4, 8 loadings: each look may err
            return count & (count - 1) == 0 and (shown or not self._may_be_faster)
        if ratio + doubt_of(self.measured) < 1.0:
            return True  # more rounds do not tell how the models were loaded: more loadings do
        return shown or (self.measured.runs >= POLICY.futile_rounds and not self._may_be_faster)

    def decide(self) -> AcceptanceDecision:
        """The policy."""
        better = self.improvement
        if better is None:
            return AcceptanceDecision(None, self._reason)
        if better == "faster" and self.timed and not (self.known_faster or self._measured_faster):
            both = self.together
            doubt = NormalDist().inv_cdf(1.0 - POLICY.combined_error_rate) * both.deviation
            return AcceptanceDecision(
                better, f"rounds alone are in doubt, at {self._ratio} of the input's time; prices and rounds together "
                f"put the result at {both.mean:.3f} ± {doubt:.3f}",
            )  # fmt: skip
        return AcceptanceDecision(better)

    @property
    def _reason(self) -> str:
        if self.slower:
            return f"the rewritten graph was measured to take {self._ratio} of the input's time"
        if self.measured is not None:
            return (
                f"the rewritten graph is not simpler ({self.larger}), and it was not measured faster beyond the "
                f"uncertainty: {self._ratio} of the input's time"
            )
        if self.timed:
            return f"the rewritten graph is not simpler ({self.larger}), and it could not be timed beside the input"
        return (
            f"the rewritten graph is not simpler ({self.larger}), and it is modelled at {self.modelled:.3f} of the "
            "input's time"
        )

    @property
    def larger(self) -> str:
        """What the candidate has more of; where nothing is more, that nothing is less."""
        pairs = {
            "nodes": (self.before.nodes, self.after.nodes),
            "FLOPs": (self.before.work.flops, self.after.work.flops),
            "bytes moved": (self.before.work.bytes, self.after.work.bytes),
            "bytes of weights": (self.before.weight_bytes, self.after.weight_bytes),
            "kernels": (self.before.work.kernels, self.after.work.kernels),
        }
        more = [f"{name} {before:,} → {after:,}" for name, (before, after) in pairs.items() if after > before]
        return ", ".join(more) or "as many nodes, FLOPs and bytes"

    @property
    def _ratio(self) -> str:
        assert self.measured is not None
        if self.measured.runs < POLICY.fewest_rounds:
            return f"{self.measured.ratio:.3f} in {self.measured.runs} rounds"
        return f"{self.measured.ratio:.3f} ± {uncertainty_of(self.measured):.3f}"


@dataclass(frozen=True)
class FastAlgorithmComparison:
    """A graph with fast algorithms in the place of the same graph without.

    It is accepted unless prices and rounds together say that it gains too little. The mean of the estimate decides, not
    its deviation, which a busy machine would change. Where rounds say nothing, prices decide.

    Attributes:
        modelled: its share of the other's time, by prices.
        measured: the paired benchmark of both, if there was one.
    """

    modelled: TimeRatioEstimate
    measured: PairedMeasurement | None = None

    @property
    def doubted(self) -> bool:
        """Whether a benchmark is needed: choosing by prices is expected to lose more than is negligible."""
        return (
            regret([TimeRatioEstimate(1.0 - POLICY.least_replacement_gain, 0.0), self.modelled])
            > POLICY.negligible_loss
        )

    @property
    def accepted(self) -> bool:
        return self._estimate.mean < 1.0 - POLICY.least_replacement_gain

    @property
    def conclusive(self) -> bool:
        """Whether more rounds would hardly change the mean's side."""
        if self.measured is None or self.measured.runs <= POLICY.fewest_rounds:
            return False
        known = self._estimate
        return known.sure or abs(known.mean - (1.0 - POLICY.least_replacement_gain)) > SURELY * known.deviation

    @property
    def _estimate(self) -> TimeRatioEstimate:
        return self.modelled.measured(self.measured)

    @property
    def text(self) -> str:
        """The ratio by rounds, and by rounds and prices together."""
        assert self.measured is not None
        rounds = f"{self.measured.ratio:.3f} by {self.measured.runs} rounds"
        return f"{rounds}, {self._estimate.mean:.3f} by rounds and prices together,"


def doubt_of(found: PairedMeasurement) -> float:
    """How far the median of a benchmark's ratios may be off at one look: the smaller of the bound by their standard
    deviation and the bound by their quartiles, which a few disturbed rounds leave as they are."""
    if found.runs < POLICY.fewest_rounds:
        return inf
    doubt = median_beyond(found.runs, POLICY.look_error_rate) * found.deviation
    factor = beyond_quartiles(found.runs, POLICY.look_error_rate)
    return doubt if isinf(factor) else min(doubt, factor * found.spread)


def uncertainty_of(found: PairedMeasurement) -> float:
    """How far a benchmark's ratio may be off: by its rounds and by its loadings together."""
    return hypot(doubt_of(found), POLICY.loading_doubt / sqrt(found.loadings))


def extent_of(graph: Graph, cost: GraphCost) -> GraphSize:
    """The extent of a graph of this cost."""
    return GraphSize(count_nodes(graph), graph.weight_bytes, demand_of(cost))


def demand_of(cost: GraphCost) -> InferenceWork:
    """The work of a graph as the backend runs it."""
    return InferenceWork(cost.flops, cost.bytes, cost.kernels)


def too_slow_for_memory(measured: PairedMeasurement | None) -> bool:
    """Whether a graph written for less memory takes too long, beyond doubt."""
    return measured is not None and measured.ratio - doubt_of(measured) > POLICY.memory_slowdown

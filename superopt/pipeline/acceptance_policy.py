"""Is a rewritten model better? Asked here alone, with one policy about noise.

A result improves on its input (:attr:`Comparison.improvement`) in one of two ways; the report's status says "improved"
for no other reason, and what improves nothing is not returned.

- *faster*: it was measured faster by more than the measurement's uncertainty. Where the target cannot be timed, it is
  modelled faster by more than prices are off.
- *simpler*: of nodes, FLOPs, bytes moved, bytes of weights and kernels none is more, one of the first three is less,
  and it was not measured slower by more than the uncertainty.

The uncertainty of a race is what its median may be off by, once in a thousand (:data:`DOUBT`), however often it was
looked at (:data:`LOOKS`; Bonferroni) and however few rounds it had (Student), and what two copies of one model differ
by from one loading to another. Where the latter decides, both are loaded again and again, and the median of so many
loadings differs by less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import erfc, hypot, inf, isinf, prod, sqrt
from statistics import NormalDist
from typing import Literal

from superopt import report
from superopt.cost import Demand, GraphCost
from superopt.ir.graph import Graph
from superopt.runtime.paired_benchmark import SURELY, beyond_quartiles, median_beyond, median_error

__all__ = [
    "CHEAP",
    "DOUBT",
    "LEAST_REPLACED",
    "LOOKS",
    "SITTING",
    "SITTINGS",
    "Belief",
    "Comparison",
    "Extent",
    "Improvement",
    "Judgement",
    "Replacement",
    "demand_of",
    "doubt_of",
    "extent_of",
    "regret",
    "uncertainty_of",
]

DOUBT = 1e-3  # how often a race may be wrong about which of two equal models is faster
LOOKS = (3, 7, 15, 31)  # rounds after which a race is looked at: it ends there if settled, and at the last anyway
# Rounds after which what has to be faster and is not yet will not be: its gain is below what rounds scatter.
_FUTILE = 7
# Standard deviation of the ratio of a model to its copy, from one loading of both to another: 0.0097 over the 45 of
# lab/results/benchmark.json. A race's rounds do not show it.
SITTING = 0.01
# Share of the model's time that a wrong answer may be expected to lose and still not be asked for: a fifth of what two
# loadings of one model differ by.
CHEAP = SITTING / 5.0
# Share of its time that a graph has to gain over the one that it replaces, for what it costs in accuracy and memory.
LEAST_REPLACED = 3 * SITTING
SITTINGS = 16  # loadings of models of which one says that the result is slower: their median is off by a quarter of it
_TAIL = 5.0  # standard deviations on each side that an expectation takes in
_STEPS = 64  # places that it is summed at
_WRONG = DOUBT / len(LOOKS)  # how often one look may be wrong
_FARTHEST = NormalDist().inv_cdf(1 - _WRONG) * SITTING  # what two copies may seem to differ by, loaded once
# Share by which prices have to say that a result is faster where nothing is timed: of changes that are larger, they say
# the direction right in 95 of 100 (docs/costs.md).
_PRICED = 0.03
# Bytes that a node takes in a file, at least: for each node that is gone, constants may take as many more.
_NODE_BYTES = 64

# "memory" only where less memory was asked for, "runs" only where the runtime breaks or refuses the input.
Improvement = Literal["faster", "simpler", "memory", "runs"]


@dataclass(frozen=True)
class Judgement:
    """How a result is better than the input, if it is.

    Attributes:
        improvement: how; ``None``: it is not better, so the input is returned.
        reason: why it is not.
        hopeless: no race was run, since none could show it faster.
        code: the reason's, as :class:`superopt.report.Reason` lists them.
    """

    improvement: Improvement | None
    reason: str = ""
    hopeless: bool = False
    code: str = "not_better"

    @property
    def taken(self) -> bool:
        """Whether the result is to be returned."""
        return self.improvement is not None


@dataclass(frozen=True)
class Extent:
    """How large a graph is: its nodes, the bytes of its weights, and what an inference does."""

    nodes: int
    weight_bytes: int
    does: Demand

    def simpler_than(self, other: Extent) -> bool:
        """Whether none of nodes, FLOPs, bytes and kernels is more, and one of the first three is less."""
        mine, theirs = self.does, other.does
        fewer = other.nodes - self.nodes
        no_more = (
            fewer >= 0 and mine.flops <= theirs.flops and mine.bytes <= theirs.bytes and mine.kernels <= theirs.kernels
            and self.weight_bytes <= other.weight_bytes + fewer * _NODE_BYTES
        )  # fmt: skip
        return no_more and (fewer > 0 or mine.flops < theirs.flops or mine.bytes < theirs.bytes)


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
        before, after: how large they are.
        modelled: what the result is modelled to take of the input's time.
        timed: whether the target can be timed; where not, prices say what is faster.
        measured: a race of both, if there was one.
        known_faster: another race has shown the result faster, so this one only has to not contradict it.
    """

    before: Extent
    after: Extent
    modelled: float
    timed: bool = True
    measured: report.Measured | None = None
    known_faster: bool = False

    @property
    def improvement(self) -> Improvement | None:
        """How the result is better than the input; ``None`` where it is not."""
        if self.slower:
            return None
        if self.faster:
            return "faster"
        return "simpler" if self.simpler else None

    @property
    def faster(self) -> bool:
        """Whether it is faster beyond its uncertainty."""
        if self.measured is not None:
            return self.known_faster or self.measured.ratio + uncertainty_of(self.measured) < 1.0
        return self.known_faster or (not self.timed and self.modelled < 1.0 - _PRICED)

    @property
    def slower(self) -> bool:
        """Whether it was measured slower beyond its uncertainty."""
        return self.measured is not None and self.measured.ratio - uncertainty_of(self.measured) > 1.0

    @property
    def simpler(self) -> bool:
        return self.after.simpler_than(self.before)

    @property
    def _unless_slower(self) -> bool:
        """Whether only a race that it loses speaks against it."""
        return self.known_faster or self.simpler

    @property
    def hopeless(self) -> bool:
        """Whether no race could show it faster: its modelled gain is less than two loadings of one model differ by."""
        return not self._unless_slower and 0.0 <= 1.0 - self.modelled < SITTING

    @property
    def loaded_so(self) -> bool:
        """Whether a single loading of both leaves open what more of them would tell: a result that is returned may be
        slower, or one that is not returned may be faster."""
        found = self.measured
        if found is None or found.sittings > 1 or found.runs < LOOKS[0]:
            return False
        if self._unless_slower:
            return found.ratio > 1.0 + SITTING and not self.slower
        return not self.faster and found.ratio + doubt_of(found) < 1.0

    @property
    def settled(self) -> bool:
        """Whether more rounds of the race would change nothing: it is clear, or it decides nothing."""
        if self.measured is None:
            return True
        ratio, doubt = self.measured.ratio, doubt_of(self.measured)
        if self.slower:
            return True
        if self._unless_slower and self.measured.sittings > 1:
            return ratio + uncertainty_of(self.measured) <= 1.0 + SITTING
        if self._unless_slower:  # with a gain as large as that, what is not slower so far will not be beyond doubt
            taken = (ratio <= 1.0 and self.modelled < 1.0 - _FARTHEST) or ratio + doubt <= 1.0 + _FARTHEST
            return taken and (self.faster or ratio > 1.0 - _FARTHEST)  # a gain that can be shown is shown
        if self.measured.sittings == 1 and ratio + doubt < 1.0:
            return True  # more rounds do not tell how the models were loaded: more loadings do
        return self.faster or (ratio >= 1.0 and self.measured.runs >= _FUTILE)

    def judged(self) -> Judgement:
        """The policy."""
        better = self.improvement
        return Judgement(better, "" if better else self._reason)

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
        """What the result has more of; that nothing is less where nothing is more."""
        pairs = {
            "nodes": (self.before.nodes, self.after.nodes),
            "FLOPs": (self.before.does.flops, self.after.does.flops),
            "bytes moved": (self.before.does.bytes, self.after.does.bytes),
            "bytes of weights": (self.before.weight_bytes, self.after.weight_bytes),
            "kernels": (self.before.does.kernels, self.after.does.kernels),
        }
        more = [f"{name} {before:,} → {after:,}" for name, (before, after) in pairs.items() if after > before]
        return ", ".join(more) or "as many nodes, FLOPs and bytes"

    @property
    def _ratio(self) -> str:
        assert self.measured is not None
        if self.measured.runs < LOOKS[0]:
            return f"{self.measured.ratio:.3f} in {self.measured.runs} rounds"
        return f"{self.measured.ratio:.3f} ± {uncertainty_of(self.measured):.3f}"


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


def uncertainty_of(found: report.Measured) -> float:
    """How far a race's ratio may be off: its rounds' median, and how the models happened to be loaded."""
    return hypot(doubt_of(found), _FARTHEST / sqrt(found.sittings))


def extent_of(graph: Graph, cost: GraphCost) -> Extent:
    """How large a graph of this cost is."""
    return Extent(len(graph.nodes), graph.weight_bytes, demand_of(cost))


def demand_of(cost: GraphCost) -> Demand:
    """What a graph does, from its parts as the backend runs them: what it fuses or only renames starts no kernel."""
    return Demand(cost.flops, cost.bytes, sum(e.us > 0.0 and e.source != "free" for _, _, e in cost.per_node))

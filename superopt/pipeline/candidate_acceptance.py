"""Acceptance of candidates by paired benchmarks, under the policy of :mod:`superopt.pipeline.acceptance_policy`.

How many rounds a benchmark has follows from what the models are modelled to take, not from the clock: a busy machine
has as many rounds as a quiet one. The command's time limit still ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from superopt.cost import GraphCost
from superopt.ir.errors import InvalidModel, ResourceLimit, Unsupported
from superopt.ir.graph import Graph
from superopt.ir.symbolic_size_binding import sizes_fed
from superopt.pipeline.acceptance_policy import (
    POLICY,
    AcceptanceDecision,
    CandidateComparison,
    FastAlgorithmComparison,
    extent_of,
)
from superopt.pipeline.optimization_task import OptimizationTask
from superopt.pipeline.paired_benchmark import measure
from superopt.pipeline.report_notes import ReportNotes
from superopt.pipeline.shape_defaults import single_example_sizes, sizes_text
from superopt.runtime.paired_benchmark import SETTLED
from superopt.runtime.paired_measurement import PairedMeasurement
from superopt.runtime.protocol import runtime_named
from superopt.verifier.check.shared_weight_sessions import SharedWeightSessions

__all__ = ["CandidateAcceptance"]


@dataclass
class CandidateAcceptance:
    """Decides on the candidates of a task.

    Attributes:
        task: the input is its graph.
        bench: where the models' weights are written, for the check that follows.
        log: notes on benchmarks that could not be made.
    """

    task: OptimizationTask
    bench: SharedWeightSessions
    log: ReportNotes

    @property
    def time_left(self) -> bool:
        """Whether there is time for a benchmark, and for the check after it."""
        budget = self.task.budget
        return self.task.options.measure or budget.left > budget.timing_reserve

    def decide(
        self, after: Graph, before_cost: GraphCost, after_cost: GraphCost, earlier: PairedMeasurement | None = None
    ) -> tuple[AcceptanceDecision, PairedMeasurement | None]:  # fmt: skip
        """Whether a candidate is better than the input: by its extent, and by a benchmark for as long as that could
        change the decision.

        Args:
            after: the candidate.
            before_cost: the input's cost.
            after_cost: the candidate's.
            earlier: a benchmark of both.
        """
        task, timed = self.task, self.task.timed
        comparison = CandidateComparison(
            extent_of(task.graph, before_cost), extent_of(after, after_cost),
            after_cost.us / before_cost.us if before_cost.us else 1.0, timed=timed,
        )  # fmt: skip
        if comparison.undetectable and timed and not task.options.measure:
            return AcceptanceDecision(
                None, f"the rewritten graph is not simpler ({comparison.larger}), and it is modelled at "
                f"{comparison.modelled:.3f} of the input's time: two loadings of one model differ by as much",
                undetectable=True,
            ), None  # fmt: skip

        us = (before_cost.us, after_cost.us)
        measurement = earlier
        if measurement is None or not replace(comparison, measured=measurement).faster:
            measurement = self._compared(comparison, after, task.sizes, us)
        decision = replace(comparison, measured=measurement).decide()
        if measurement is None and timed and not self.time_left:
            decision = replace(decision, code="time")
        if decision.accepted and measurement is not None and not comparison.simpler:
            decision = self._for_one_example(decision, comparison, after, us)
        return decision, measurement

    def _for_one_example(
        self, decision: AcceptanceDecision, comparison: CandidateComparison, after: Graph, us: tuple[float, float]
    ) -> AcceptanceDecision:  # fmt: skip
        """The decision, unless a benchmark with a batch of one shows the candidate slower.

        That the model refuses a batch of one is no reason against the candidate, and gives no note.
        """
        task = self.task
        one = single_example_sizes(task.graph, task.sizes, task.options.sizes)
        if one is None:
            return decision
        comparison = replace(comparison, known_faster=True)
        measurement = replace(self, log=ReportNotes())._compared(comparison, after, one, us)
        alone = replace(comparison, measured=measurement).decide()
        return decision if alone.accepted else AcceptanceDecision(None, f"{alone.reason} for one example")

    def decide_replacement(
        self, plain: Graph, after: Graph, replacement: FastAlgorithmComparison, us: tuple[float, float]
    ) -> tuple[FastAlgorithmComparison, bool]:  # fmt: skip
        """A replacement with a benchmark of both graphs, and whether that was possible.

        Args:
            plain: the graph that is replaced.
            after: the graph in its place.
            replacement: what is known of the two.
            us: microseconds that the two are modelled to take.
        """

        def conclusive(measurement: PairedMeasurement) -> bool:
            return replace(replacement, measured=measurement).conclusive

        measurement = self.benchmark(after, conclusive, sizes=self.task.sizes, us=us, before=plain)
        return replace(replacement, measured=measurement), measurement is not None

    def _compared(
        self, comparison: CandidateComparison, after: Graph, sizes: Mapping[str, int], us: tuple[float, float]
    ) -> PairedMeasurement | None:
        """The benchmark of a comparison: for as long as it could change the decision, and over several loadings where
        they decide."""

        def conclusive(measurement: PairedMeasurement) -> bool:
            return replace(comparison, measured=measurement).conclusive

        measurement = self.benchmark(after, conclusive, sizes=sizes, us=us)
        on_device = self.task.costs.device_timer is not None
        if on_device or not self.time_left or not replace(comparison, measured=measurement).undecided:
            return measurement
        for graph in (self.task.graph, after):
            self.bench.drop(graph)
        rounds = POLICY.fewest_rounds if comparison.accepted_unless_slower else POLICY.loading_rounds
        loadings = self._loadings(us, rounds)
        again = self.benchmark(after, conclusive, rounds=rounds, loadings=loadings, sizes=sizes, us=us)
        return measurement if again is None or again.loadings == 1 else again

    def benchmark(
        self, after: Graph, conclusive: Callable[[PairedMeasurement], bool] | None = None, *, sizes: Mapping[str, int],
        rounds: int | None = None, loadings: int = 1, us: tuple[float, float] = (0.0, 0.0), before: Graph | None = None,
    ) -> PairedMeasurement | None:  # fmt: skip
        """A paired benchmark of two whole models, if the target is this machine and they are not too large, or if the
        user asked for its figures.

        Args:
            after: the second model.
            conclusive: whether what was measured so far is enough; by default, after the usual rounds.
            sizes: of symbolic dimensions.
            rounds: of each loading; by default, as many as fit the usual seconds.
            loadings: how many times the models are loaded.
            us: microseconds that the two are modelled to take.
            before: the first model; by default, the input.
        """
        task, shown = self.task, self.task.options.measure
        if not task.timed:
            return None
        if not self.time_left:
            self.log.note("no time was left to time the models, so only a simpler graph would be returned")
            return None
        task.progress(0, None, "measuring")
        if rounds is None:
            rounds = POLICY.shown_rounds if conclusive is None else self._rounds(us)
        looks = [n for n in POLICY.looks if n >= POLICY.shown_rounds or not shown]
        try:
            measurement = measure(
                before or task.graph, after, sizes=sizes, seed=task.options.seed, threads=task.options.threads,
                rounds=rounds, burst=3 if shown else 1,
                time_limit=POLICY.shown_seconds if shown else task.budget.left - task.budget.timing_reserve,
                device=task.costs.device_timer, runtime=runtime_named(task.options.runtime),
                looks={} if conclusive is None or loadings > 1 else dict.fromkeys(looks, conclusive),
                loadings=loadings, enough=conclusive or (lambda measurement: False), bench=self.bench,
            )  # fmt: skip
        except (Unsupported, InvalidModel, ResourceLimit) as error:
            self.log.note(f"the models could not be timed whole: {error}")
            return None
        except KeyboardInterrupt:  # there is a candidate, which is still checked
            self.log.note("timing the models was interrupted, so only a simpler graph is returned")
            task.budget.interrupt()
            return None
        at = sizes_text(task.graph, sizes_fed(task.graph, sizes))
        return replace(measurement, circumstances={**measurement.circumstances, "sizes": at}) if at else measurement

    def time_for_memory(self, before: Graph, after: Graph) -> PairedMeasurement | None:
        """A paired benchmark of a graph written for less memory; ``None`` where the two cannot be timed."""
        options = self.task.options
        try:
            return measure(
                before, after, sizes=self.task.sizes, seed=options.seed, threads=options.threads,
                rounds=POLICY.shown_rounds, burst=1, time_limit=POLICY.memory_seconds,
            )  # fmt: skip
        except (Unsupported, InvalidModel, ResourceLimit) as error:
            self.log.note(f"a graph written for less memory could not be timed: {error}")
            return None

    def _rounds(self, us: tuple[float, float]) -> int:
        """Rounds of a benchmark, at most: those that fit the usual seconds; of heavy models as many as say something,
        if they fit a few times as long; and always more than say nothing."""
        if self.task.options.measure:
            return POLICY.looks[-1]
        seconds, each = self.task.effort.timing_seconds, _round_seconds(us)
        usual, longer = (int(s / each) - POLICY.warm_up_rounds for s in (seconds, POLICY.longer * seconds))
        return max(POLICY.fewest_rounds + 1, min(POLICY.looks[-1], max(usual, min(POLICY.looks[1], longer))))

    def _loadings(self, us: tuple[float, float], rounds: int) -> int:
        """Loadings of both models, at most, by what loading and so many rounds are expected to take."""
        loading = self.task.budget.loading_seconds + 2 * self.task.graph.weight_bytes / POLICY.loading_bytes
        each = (rounds + POLICY.warm_up_rounds) * _round_seconds(us) + loading
        seconds = self.task.effort.timing_seconds * (1.0 if rounds == POLICY.fewest_rounds else POLICY.longer_in_doubt)
        return max(2, min(POLICY.loadings, int(seconds / each)))


def _round_seconds(us: tuple[float, float]) -> float:
    """Seconds of a round of two models that are modelled to take so many microseconds: a sample of each."""
    return sum(max(each * 1e3, SETTLED) for each in us) / 1e9

"""A rewritten model beside its input: whether it is returned, by how large it is, and a race.

How long a race is follows from what the models are modelled to take, not from the clock: a busy machine has as many
rounds as a quiet one. The command's time limit still ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from superopt import report
from superopt.cost import GraphCost
from superopt.cost.trial import sizes_fed
from superopt.ir.errors import InvalidModel, ResourceLimit, Unsupported
from superopt.ir.graph import Graph
from superopt.pipeline.acceptance_policy import LOOKS, SITTINGS, Comparison, Judgement, Replacement, extent_of
from superopt.pipeline.context import Task
from superopt.pipeline.paired_benchmark import measure
from superopt.pipeline.shape_defaults import for_one, said
from superopt.runtime.paired_benchmark import SETTLED
from superopt.runtime.protocol import runtime_named
from superopt.verifier.check.sessions import Bench

__all__ = ["SHOWN_RACE", "Contest"]

_ROUNDS = 15  # of a race whose figures were asked for, at least
SHOWN_RACE = 30.0  # seconds for the final race where its figures were asked for
_LONGER = 3.0  # times the usual seconds, for a race of models of which too few rounds to say anything fit those
_WARM = 2  # rounds that a race takes besides: each model runs once or twice before it is timed
_LOADED = 1e9  # bytes of weights that a runtime arranges in a second
_FEWEST = LOOKS[0] + 1  # rounds of a race, however long it takes: of fewer, quartiles say nothing


@dataclass
class Contest:
    """Judges candidates of a task.

    Attributes:
        task: the input is its graph.
        bench: where the models' weights are written, for the check that follows.
        notes: what hindered a race is added.
        interrupted: whether a race was.
    """

    task: Task
    bench: Bench
    notes: list[str]
    interrupted: bool = False

    @property
    def fits(self) -> bool:
        """Whether there is time for a race, and for the check after it."""
        budget = self.task.budget
        return self.task.options.measure or budget.left > budget.racing

    def judged(
        self, after: Graph, before_cost: GraphCost, after_cost: GraphCost, measured: report.Measured | None = None
    ) -> tuple[Judgement, report.Measured | None]:  # fmt: skip
        """Whether a result is returned: by how large it is, and a race that goes on while it could still change that.

        Args:
            after: the result.
            before_cost: the input's cost.
            after_cost: the result's.
            measured: an earlier race of both.
        """
        task, races = self.task, self.task.races
        compared = Comparison(
            extent_of(task.graph, before_cost), extent_of(after, after_cost),
            after_cost.us / before_cost.us if before_cost.us else 1.0, timed=races,
        )  # fmt: skip
        if compared.hopeless and races and not task.options.measure:
            return Judgement(
                None, f"the rewritten graph is not simpler ({compared.larger}), and it is modelled at "
                f"{compared.modelled:.3f} of the input's time: two loadings of one model differ by as much",
                hopeless=True,
            ), None  # fmt: skip

        times = (before_cost.us, after_cost.us)
        found = measured
        if found is None or not replace(compared, measured=found).faster:
            found = self._raced(compared, after, task.sizes, times)
        judged = replace(compared, measured=found).judged()
        if found is None and races and not self.fits:
            judged = replace(judged, code="time")
        one = for_one(task.graph, task.sizes, task.options.sizes)
        if judged.taken and found is not None and one is not None and not compared.simpler:
            silent = replace(self, notes=[])  # that it is refused there: no model has to accept one example
            single = silent._raced(replace(compared, known_faster=True), after, one, times)
            self.interrupted = self.interrupted or silent.interrupted
            alone = replace(compared, known_faster=True, measured=single).judged()
            if not alone.taken:
                judged = Judgement(None, f"{alone.reason} for one example")
        return judged, found

    def replaces(
        self, plain: Graph, after: Graph, modelled: Replacement, costs: tuple[float, float]
    ) -> tuple[Replacement, bool]:  # fmt: skip
        """A graph in the place of another as timing says, and whether it was possible to time them.

        Args:
            plain: what it is to replace.
            after: the graph.
            modelled: what is known of the two.
            costs: microseconds that the two are modelled to take.
        """

        def settled(measured: report.Measured) -> bool:
            return replace(modelled, measured=measured).settled

        found = self.race(after, settled, sizes=self.task.sizes, costs=costs, before=plain)
        return replace(modelled, measured=found), found is not None

    def _raced(
        self, compared: Comparison, after: Graph, sizes: Mapping[str, int], costs: tuple[float, float]
    ) -> report.Measured | None:
        """The race of a comparison, for as long as it could still change it, and again where loadings decide."""

        def settled(measured: report.Measured) -> bool:
            return replace(compared, measured=measured).settled

        found = self.race(after, settled, sizes=sizes, costs=costs)
        if self.task.costs.racing is None and self.fits and replace(compared, measured=found).loaded_so:
            for graph in (self.task.graph, after):
                self.bench.drop(graph)
            again = self.race(after, settled, sittings=self._sittings(costs), sizes=sizes, costs=costs)
            found = found if again is None or again.sittings == 1 else again
        return found

    def race(
        self, after: Graph, settled: Callable[[report.Measured], bool] | None = None, *, sizes: Mapping[str, int],
        sittings: int = 1, costs: tuple[float, float] = (0.0, 0.0), before: Graph | None = None,
    ) -> report.Measured | None:  # fmt: skip
        """Two whole models side by side, if the target is this machine and they are not too large, or on request.

        Args:
            after: the second.
            settled: whether what was measured so far is enough; by default, after the usual rounds.
            sizes: of symbolic dimensions.
            sittings: how many times the models are loaded, each for a few rounds.
            costs: microseconds that the two are modelled to take.
            before: the first; by default, the input.
        """
        task, wanted = self.task, self.task.options.measure
        if not task.races:
            return None
        if not self.fits:
            self.notes.append("no time was left to time the models, so only a simpler graph would be returned")
            return None
        task.progress(0, None, "measuring")
        try:
            limit = SHOWN_RACE if wanted else task.budget.left - task.budget.racing
            rounds = _ROUNDS if settled is None else self._rounds(costs) if sittings == 1 else LOOKS[0]
            looks = [n for n in LOOKS if n >= _ROUNDS or not wanted]
            found = measure(
                before or task.graph, after, sizes=sizes, seed=task.options.seed, threads=task.options.threads,
                rounds=rounds,
                burst=3 if wanted else 1, time_limit=limit, device=task.costs.racing,
                runtime=runtime_named(task.options.runtime),
                looks={} if settled is None else dict.fromkeys(looks, settled),
                sittings=sittings, enough=settled or (lambda measured: False), bench=self.bench,
            )  # fmt: skip
            at = said(task.graph, sizes_fed(task.graph, sizes))
            return replace(found, circumstances={**found.circumstances, "sizes": at}) if at else found
        except (Unsupported, InvalidModel, ResourceLimit) as error:
            self.notes.append(f"the models could not be timed whole: {error}")
            return None
        except KeyboardInterrupt:  # the result is found, and has to be checked
            self.notes.append("timing the models was interrupted, so only a simpler graph is returned")
            self.interrupted = True
            task.budget.hurry()
            return None

    def _rounds(self, costs: tuple[float, float]) -> int:
        """Rounds of a race, at most: those that fit the usual seconds by what the models are modelled to take; of heavy
        ones as many as say something, if they fit a few times as long; and never too few to say anything."""
        if self.task.options.measure:
            return LOOKS[-1]
        race, each = self.task.effort.race, _round_seconds(costs)
        usual, longer = (int(seconds / each) - _WARM for seconds in (race, _LONGER * race))
        return max(_FEWEST, min(LOOKS[-1], max(usual, min(LOOKS[1], longer))))

    def _sittings(self, costs: tuple[float, float]) -> int:
        """Loadings of both models, at most: those that fit the usual seconds, by what loading and rounds are expected
        to take."""
        loading = self.task.budget.loads + 2 * self.task.graph.weight_bytes / _LOADED
        each = (LOOKS[0] + _WARM) * _round_seconds(costs) + loading
        return max(2, min(SITTINGS, int(self.task.effort.race / each)))


def _round_seconds(costs: tuple[float, float]) -> float:
    """Seconds of a round of two models that are modelled to take so many microseconds: a sample of each."""
    return sum(max(us * 1e3, SETTLED) for us in costs) / 1e9

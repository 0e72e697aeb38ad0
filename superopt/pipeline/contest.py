"""A rewritten model beside its input: whether it is returned, by how large it is, and a race."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from superopt import report
from superopt.cost import GraphCost
from superopt.cost.trial import sizes_fed
from superopt.ir.errors import InvalidModel, ResourceLimit, Unsupported
from superopt.ir.graph import Graph
from superopt.pipeline.judge import LOOKS, SITTINGS, Comparison, Judgement, extent_of
from superopt.pipeline.likely import for_one, said
from superopt.pipeline.racing import measure
from superopt.pipeline.task import Task
from superopt.runtime.choice import runtime_named
from superopt.verifier.running import Bench

__all__ = ["SHOWN_RACE", "Contest"]

_ROUNDS = 15  # of a race whose figures were asked for, at least
SHOWN_RACE = 30.0  # seconds for the final race where its figures were asked for
_LONGER = 3.0  # times the usual seconds, for a race of models of which too few rounds to say anything fit those
_TOLD = LOOKS[1] + 2  # rounds of a race that tells a fifth from nothing, and those that warm up


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
        self, after: Graph, before_cost: GraphCost, after_cost: GraphCost
    ) -> tuple[Judgement, report.Measured | None]:  # fmt: skip
        """Whether a result is returned: by how large it is, and a race that goes on while it could still change that.

        Args:
            after: the result.
            before_cost: the input's cost.
            after_cost: the result's.
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

        seconds = min(_TOLD * (before_cost.us + after_cost.us) / 1e6, _LONGER * task.effort.race)
        found = self._raced(compared, after, task.sizes, seconds)
        judged = replace(compared, measured=found).judged()
        if found is None and races and not self.fits:
            judged = replace(judged, code="time")
        one = for_one(task.graph, task.sizes, task.options.sizes)
        if judged.taken and found is not None and one is not None and not compared.simpler:
            silent = replace(self, notes=[])  # that it is refused there: no model has to accept one example
            single = silent._raced(replace(compared, known_faster=True), after, one, seconds)
            self.interrupted = self.interrupted or silent.interrupted
            alone = replace(compared, known_faster=True, measured=single).judged()
            if not alone.taken:
                judged = Judgement(None, f"{alone.reason} for one example")
        return judged, found

    def _raced(
        self, compared: Comparison, after: Graph, sizes: Mapping[str, int], seconds: float
    ) -> report.Measured | None:
        """The race of a comparison, for as long as it could still change it, and again where loadings decide; of heavy
        models for up to so many seconds."""

        def settled(measured: report.Measured) -> bool:
            return replace(compared, measured=measured).settled

        found = self.race(after, settled, sizes=sizes, seconds=seconds)
        if self.task.costs.racing is None and self.fits and replace(compared, measured=found).loaded_so:
            for graph in (self.task.graph, after):
                self.bench.drop(graph)
            again = self.race(after, settled, sittings=SITTINGS, sizes=sizes, seconds=seconds)
            found = found if again is None or again.sittings == 1 else again
        return found

    def race(
        self, after: Graph, settled: Callable[[report.Measured], bool] | None = None, *, sizes: Mapping[str, int],
        sittings: int = 1, seconds: float = 0.0,
    ) -> report.Measured | None:  # fmt: skip
        """The whole models side by side, if the target is this machine and they are not too large, or on request.

        Args:
            after: beside the input.
            settled: whether what was measured so far is enough; by default, after the usual rounds.
            sizes: of symbolic dimensions.
            sittings: how many times the models are loaded, each for a few rounds.
            seconds: that it may take, if those are more than usual.
        """
        task, wanted = self.task, self.task.options.measure
        if not task.races:
            return None
        if not self.fits:
            self.notes.append("no time was left to time the models, so only a simpler graph would be returned")
            return None
        task.progress(0, None, "measuring")
        try:
            limit = SHOWN_RACE if wanted else min(task.budget.left - task.budget.racing, max(task.effort.race, seconds))
            rounds = _ROUNDS if settled is None else LOOKS[-1] if sittings == 1 else LOOKS[0]
            looks = [n for n in LOOKS if n >= _ROUNDS or not wanted]
            found = measure(
                task.graph, after, sizes=sizes, seed=task.options.seed, threads=task.options.threads, rounds=rounds,
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

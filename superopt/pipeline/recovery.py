"""Settling a result: it is checked, and what fails is searched again without what is at fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from superopt import report
from superopt.ir.graph import Graph, structural_hash
from superopt.passes import AppliedRule, SearchResult
from superopt.pipeline.context import Task
from superopt.pipeline.options import VALUES
from superopt.pipeline.rematerialization import Point
from superopt.pipeline.result_check import UNCHANGED, check_result, skipped
from superopt.pipeline.searching import Searches
from superopt.verifier.check.differential import EXACT, CheckResult, Slack
from superopt.verifier.check.sessions import Bench

__all__ = ["Checks"]

_PROVING = 60.0  # seconds for all proofs of a result, at most
_SUSPECTS = (1, 4, 8)  # rules that are left out after a failed check, and after each that follows; each costs a search


@dataclass
class Checks:
    """The checks of one optimisation.

    Attributes:
        task: what results are checked against is its graph.
        searches: what searches again.
        bench: where graphs are run.
        notes: what failed is added.
        failures: checks that failed on the way.
    """

    task: Task
    searches: Searches
    bench: Bench
    notes: list[str]
    failures: list[report.CheckFailure] = field(default_factory=list)

    def check(self, after: Graph, slack: Slack = EXACT) -> CheckResult:
        """Compare a graph with the input in what runs it."""
        task, valued = self.task, self.searches.valued
        if slack is EXACT and valued is not None:
            slack = valued.slack(after, task.options.floats)
        self.bench.drop(task.graph)  # the race is over: its session would be as large as the model
        return check_result(task.graph, after, task.typing, task.options, task.budget, self.bench, slack)

    def settle(self, found: SearchResult) -> tuple[SearchResult, CheckResult]:
        """Check a rewritten graph; when it fails, leave out the rule at fault and search again, else fall back."""
        task, notes, given = self.task, self.notes, self.task.graph
        if not task.options.check:
            return found, skipped("switched off")
        task.progress(0, None, "checking")
        checked = self.check(found.graph)
        if checked.verdict == "passed":
            return found, checked
        if checked.verdict == "skipped":
            notes.append(f"the rewritten graph could not be checked ({checked.reason}), so the input is returned")
            return replace(found, graph=given, applied=()), checked
        why = checked.reason
        rules = task.library.admitted
        valued = self.searches.valued
        while self.searches.valued is not None:
            self.searches.valued = self.searches.valued.lesser
            again = self.searches.search(rules)
            checked = self.check(again.graph) if again.graph is not given else UNCHANGED
            if checked.verdict == "passed" or checked is UNCHANGED:
                self.failures.append(_failure(why, found, VALUES))
                notes.append(f"what the weights' elements allow failed the check ({why}); it was left out")
                return again, checked
        self.searches.valued = valued
        left_out = self._without_suspects(found, checked)
        if left_out is not None:
            again, checked, rules_out = left_out
            self.failures += [_failure(why, found, rule) for rule in rules_out]
            notes.append(
                f"rule {rules_out[0]} failed the check here ({why}); it was left out" if len(rules_out) == 1 else
                f"one of the rules {', '.join(rules_out)} failed the check here ({why}); they were left out"
            )  # fmt: skip
            return again, checked
        self.failures.append(_failure(why, found))
        notes.append(f"the rewritten graph failed the check ({why}); the input is returned")
        return replace(found, graph=given, applied=()), replace(checked, verdict="failed", reason=why)

    def _without_suspects(
        self, found: SearchResult, checked: CheckResult
    ) -> tuple[SearchResult, CheckResult, Sequence[str]] | None:
        """What passes the check without some rules, and these; ``None`` where no search finds such a result.

        The rule that is suspected most is left out first; then, with it, all that the next checks suspect. What was
        refused before is not checked again.
        """
        task, given = self.task, self.task.graph
        excluded: dict[str, None] = {}
        refused = {structural_hash(found.graph)}
        for most in _SUSPECTS:
            suspected = [a.rule for a in self._suspected(found, checked) if a.rule not in ("fold", *excluded)][:most]
            if not suspected or task.budget.left <= 0.0:
                break
            excluded.update(dict.fromkeys(suspected))
            again = self.searches.search(tuple(r for r in task.library.admitted if r.id not in excluded))
            if again.graph is given:
                return again, UNCHANGED, tuple(excluded)
            if structural_hash(again.graph) in refused:
                continue
            found, checked = again, self.check(again.graph)
            if checked.verdict == "passed":
                return found, checked, tuple(excluded)
            refused.add(structural_hash(found.graph))
        return None

    def _suspected(self, found: SearchResult, checked: CheckResult) -> list[AppliedRule]:
        """The rules that were applied; first those used where the result strays furthest on the inputs that failed, or
        at the place that differs."""
        places = dict.fromkeys(checked.where, 0)
        if checked.feeds and not places:
            from superopt.verifier.check.divergence import suspects  # here, because few checks fail

            for rank, outputs in enumerate(suspects(self.task.graph, found.graph, checked.feeds)):
                places.update(dict.fromkeys(outputs, rank))
        last = len(places)
        return sorted(
            found.applied, key=lambda a: (min((places.get(n, last) for n in a.where), default=last), -a.count)
        )

    def sound(
        self, after: Graph, choices: Sequence[Point], checked: CheckResult, slack: float | None
    ) -> tuple[tuple[Point, ...], tuple[Graph, CheckResult] | None]:  # fmt: skip
        """Those of the graphs written for memory that pass the check, and which is to be returned, unless the result
        stands.

        Args:
            after: the result.
            choices: what was written for memory, the result among it or not.
            checked: what the check said of the result; of the others, too, where nothing is checked.
            slack: the result's budget of errors where it has fewer multiplications, ``None`` where it has not.
        """
        own = frozenset(n.name for n in self.task.graph.nodes)
        kept: list[Point] = []
        taken: tuple[Graph, CheckResult] | None = None
        for point in choices:
            if not point.chosen and self.task.budget.left <= 0.0:
                continue
            if point.graph is after:
                kept.append(point)
                continue
            if self.task.options.check:
                new = frozenset(n.name for n in point.graph.nodes) - own
                checked = self.check(point.graph, EXACT if slack is None else Slack(slack, new))
                if checked.verdict != "passed":
                    said = f"{checked.verdict}: {checked.reason}"
                    self.notes.append(f"what was written for memory ({point.how}) is not kept: the check {said}")
                    continue
            kept.append(point)
            if point.chosen:
                taken = point.graph, checked
        return tuple(kept), taken

    def certified(self, after: Graph, slack: float) -> report.Verification:
        """What can be proved of a graph in the time that is left; what is not proved, the check has run."""
        from superopt.verifier.equivalence.graphs import certify_result  # here, because it loads Z3

        self.task.progress(0, None, "proving")
        seconds = min(_PROVING, max(0.0, self.task.budget.left))
        found = certify_result(self.task.graph, after, seed=self.task.options.seed, total=seconds, slack=slack)
        return report.Verification(
            found.words, found.same, found.proved, found.tested, found.proved_share, found.reason
        )


def _failure(reason: str, found: SearchResult, left_out: str = "") -> report.CheckFailure:
    return report.CheckFailure(reason, tuple(a.rule for a in found.applied if a.rule != "fold"), left_out)

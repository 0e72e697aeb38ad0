"""One optimisation from search to report: search → race → check → report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from superopt import cost as costs
from superopt import report
from superopt.cost import GraphCost
from superopt.formats.tensors import refuse_changed_files
from superopt.ir.errors import InvalidModel, ResourceLimit, Unsupported, printable
from superopt.ir.graph import Graph
from superopt.ir.poly import symbols
from superopt.ir.types import TensorType
from superopt.passes import SearchOptions, SearchResult
from superopt.pipeline.acceptance import Contest
from superopt.pipeline.acceptance_policy import CHEAP, Judgement, Replacement, demand_of
from superopt.pipeline.context import Task
from superopt.pipeline.options import ALGORITHMS
from superopt.pipeline.recovery import Checks
from superopt.pipeline.rematerialization import Point, for_memory
from superopt.pipeline.reporting import report_of
from superopt.pipeline.result import Result
from superopt.pipeline.result_check import UNCHANGED, skipped
from superopt.pipeline.searching import Searches
from superopt.runtime.limits import refuse_unbounded
from superopt.runtime.protocol import runtime_named
from superopt.verifier.check.differential import CheckResult, Slack
from superopt.verifier.check.sessions import Bench

if TYPE_CHECKING:
    from superopt.pipeline.fast_algorithms import Budget, Formed, Setting

__all__ = ["Candidate", "attempt", "with_forms_alone"]

_QUESTIONS = 24  # answers that may be off, where a target's prices are measured, and together lose no more than CHEAP
_FORMS = 4.0  # times what a check needs that have to be left before fewer multiplications are looked for


def attempt(task: Task, bench: Bench) -> Result:
    """Optimise: the input is returned where nothing better is found and checked.

    Args:
        task: what is optimised, and how.
        bench: where graphs are run.

    Raises:
        InvalidModel: a file of the model changed meanwhile.
    """
    task.budget.expect(task.graph, task.typing, task.options.sizes)
    result = _Attempt(task, bench).run()
    refuse_changed_files(task.graph)  # some of the result would be of the one, some of the other
    return result


def with_forms_alone(task: Task, inputs: int) -> tuple[Candidate | None, Sequence[str]]:
    """A model with fewer multiplications where that is accepted, and nothing else changed; and what was left out.

    Args:
        task: what is rewritten, and how.
        inputs: on which errors are measured.
    """
    with Bench() as bench:
        trying = _Attempt(task, bench)
        return trying.with_forms(SearchResult(task.graph), inputs), trying.notes


@dataclass(frozen=True)
class Candidate:
    """What a search came back with: checked, costed, and judged beside the input; ``changed``: it is not the input,
    ``forms``: what of it has fewer multiplications."""

    found: SearchResult
    checked: CheckResult
    cost: GraphCost
    judged: Judgement
    measured: report.Measured | None = None
    changed: bool = False
    forms: Formed | None = None


class _Attempt:
    """An optimisation in progress: ``run`` goes straight through.

    Args:
        task: what is optimised, and how.
        bench: where graphs are run.
    """

    def __init__(self, task: Task, bench: Bench) -> None:
        self.task, self.bench = task, bench
        self.notes: list[str] = []
        self.remarks: list[str] = []  # what the report has to say about memory and sizes
        self.before = costs.graph_cost(task.graph, task.costs, task.typing, sizes=task.sizes)
        self.searches = Searches(task, self.notes, self.remarks, CHEAP * self.before.us / _QUESTIONS)
        self.contest = Contest(task, bench, self.notes)
        self.checks = Checks(task, self.searches, bench, self.notes)

    def run(self) -> Result:
        """Search, judge and check."""
        task, given = self.task, self.task.graph
        self.remarks += _unknown_sizes(given, task.options.sizes)
        found = self.searches.search(task.library.admitted)
        if found.stopped == "interrupted":
            task.budget.hurry()
        best = self.with_forms(found)
        if best is None:
            best = self._without_forms(found)
            kept = best.found.graph if best.judged.taken else given
            if self.checks.failures and kept is not found.graph:  # what failed with forms failed for something else
                best = self.with_forms(replace(best.found, graph=kept)) or best
        if best.changed and not best.judged.taken:
            self.notes.append(f"{best.judged.reason}, so the input is returned")
            best = self._of_input(best)
        elif not best.changed and task.options.measure:
            best = replace(best, measured=self.contest.race(given, sizes=task.sizes))
        if self.contest.interrupted:
            best = replace(best, found=replace(best.found, stopped="interrupted"))
        best, choices = self._written_for_memory(best)
        best, choices, verification = self._certified(best, choices)
        return self._result(best, choices, verification)

    def _result(
        self, best: Candidate, choices: tuple[Point, ...], verification: report.Verification | None
    ) -> Result:  # fmt: skip
        task, valued, after = self.task, self.searches.valued, best.found.graph
        made = report_of(
            best.found, best.checked, best.measured, self.before, best.cost if after is not task.graph else self.before,
            best.forms, judged=best.judged, graph=task.graph, typing=task.typing, options=task.options,
            library=task.library, model=task.costs, notes=(*task.notes, *self.remarks, *self.notes),
            failures=self.checks.failures, valued=valued, left=task.budget.left,
        )  # fmt: skip
        stages = valued.stages if valued is not None and made.values is not None else ()
        claimed = tuple((s.after, s.certificate) for s in stages)
        told = tuple(c.reported(choices[0]) for c in choices) if task.options.objective == "pareto" else ()
        made = replace(made, verification=verification, pareto=told)
        return Result(after, task.graph, made, claimed, choices if told else ())

    def _of_input(self, best: Candidate) -> Candidate:
        """The input in a candidate's place, with what was said and measured on the way."""
        found = replace(best.found, graph=self.task.graph, applied=())
        return replace(best, found=found, measured=_against_itself(best.measured))

    def _written_for_memory(self, best: Candidate) -> tuple[Candidate, tuple[Point, ...]]:
        """The result as it takes least memory, or within a bound, where that is asked for; and the choices."""
        task, after = self.task, best.found.graph
        if self.contest.interrupted:
            return best, ()
        costed = replace(task.options, sizes=task.sizes)
        choices = for_memory(after, costed, task.costs, self.notes, task.budget.left, task.races, task.progress)
        slack = None if best.forms is None else best.forms.slack
        choices, taken = self.checks.sound(after, choices, best.checked, slack)
        if taken is not None:
            best = replace(
                best, found=replace(best.found, graph=taken[0]), checked=taken[1], judged=Judgement("memory")
            )
        return best, choices

    def _certified(
        self, best: Candidate, choices: tuple[Point, ...]
    ) -> tuple[Candidate, tuple[Point, ...], report.Verification | None]:  # fmt: skip
        """With what is proved of the result, where that is asked for; the input in its place where it is refuted."""
        task, after, valued = self.task, best.found.graph, self.searches.valued
        if not task.options.certify or self.contest.interrupted:
            return best, choices, None
        slack = 0.0 if best.forms is None else best.forms.slack
        if valued is not None:
            slack = max(slack, valued.slack(after, task.options.floats).share)
        verification = self.checks.certified(after, slack)
        if not verification.verdict.startswith("refuted") or after is task.graph:
            return best, choices, verification
        why = f"the rewritten graph was refuted ({verification.reason})"
        self.notes.append(f"{why}, so the input is returned")
        best = replace(self._of_input(best), checked=UNCHANGED, judged=Judgement(None, why, code="refuted"))
        return best, (), self.checks.certified(task.graph, 0.0)

    # -- candidates ----------------------------------------------------------------------------------------------

    def _without_forms(self, found: SearchResult) -> Candidate:
        """A search's result or, where it is refused, what a search finds that asks for less of everything.

        Where the first was modelled to gain less than could be measured, so would the second with all rules: only what
        leaves less to run is looked for then, and also where the second trades after all: it is of places that are
        each no worse, but what the runtime runs as one kernel with what lies around them was counted apart.
        """
        best = self._tried(found)
        directed = best.judged.hopeless
        while not best.judged.taken and best.changed and self._worth_another(best):
            self.notes.append(f"{best.judged.reason}, so only what asks for less of everything is tried")
            self.bench.drop(best.found.graph)
            raced = best.measured
            again = self.searches.search(self.task.library.admitted, frugal=True, directed=directed)
            best = self._tried(again)
            best = replace(best, measured=best.measured or _against_itself(raced))
            if directed or demand_of(best.cost).no_more_than(demand_of(self.before)):
                break
            directed = True
        return best

    def with_forms(self, found: SearchResult, inputs: int | None = None) -> Candidate | None:
        """A search's result with fewer multiplications: the first proposal that timing, the budget of errors and the
        check accept. ``None`` if none is.

        Args:
            found: the search's.
            inputs: on which errors are measured; by default, as many as that is worth.
        """
        task, options = self.task, self.task.options
        wanted = not options.enable and ALGORITHMS not in options.disable and options.objective != "memory"
        if found.stopped == "interrupted" or not wanted:  # forms hold larger weights, and more values at once
            return None
        from superopt.pipeline.fast_algorithms import (  # here, because most models have no place for it
            Budget,
            proposals,
        )

        setting = self._setting(inputs)
        budget: Budget | None = None
        slow = False
        try:
            task.progress(0, None, "looking for fewer multiplications")
            for formed in proposals(task.graph, found.graph, task.costs, setting, self.notes):
                if task.budget.left < _FORMS * task.budget.reserve:
                    self.notes.append("there was no time left to look for fewer multiplications")
                    break
                if slow and not formed.clear:
                    continue
                budget = budget or Budget(task.graph, setting, self.bench)
                candidate, why, timed = self._formed(found, formed, budget)
                if candidate is not None:
                    return candidate
                self.bench.drop(formed.graph)
                count = len(formed.choices)
                self.notes.append(f"{count} operators with fewer multiplications were left out: {why}")
                if self.contest.interrupted or (timed and (formed.clear or not task.effort.again)):
                    break
                slow = slow or timed
        except KeyboardInterrupt:
            self.contest.interrupted = True
            task.budget.hurry()
        return None

    def _setting(self, inputs: int | None) -> Setting:
        """What fewer multiplications may cost."""
        from superopt.pipeline.fast_algorithms import Setting  # as above

        options, bound = self.task.options, self.searches.bound
        return Setting(
            options.floats, self.task.sizes, options.seed, options.threads, runtime_named(options.runtime),
            memory=None if bound is None else bound.most, inputs=inputs,
        )  # fmt: skip

    def _formed(self, found: SearchResult, formed: Formed, budget: Budget) -> tuple[Candidate | None, str, bool]:
        """A search's result with fewer multiplications, if it is accepted; else why not, and whether timing says so."""
        task = self.task
        try:
            refuse_unbounded(formed.graph, task.sizes)
            task.progress(0, None, "measuring with fewer multiplications")
            judged, measured = self._formed_in_time(found, formed)
            if not judged.taken:
                return None, judged.reason, True
            formed, why = budget.allows(formed)
        except (InvalidModel, Unsupported, ResourceLimit) as error:
            return None, f"the model could not be run with them: {error}", False
        if why:
            return None, why, False
        checked = skipped("switched off")
        if task.options.check:
            task.progress(0, None, "checking")
            new = frozenset(n.name for n in formed.graph.nodes) - {n.name for n in found.graph.nodes}
            checked = self.checks.check(formed.graph, Slack(formed.slack, new))
            if checked.verdict != "passed":
                return None, f"the check {checked.verdict}: {checked.reason}", False
        found = replace(found, graph=formed.graph)
        return Candidate(found, checked, formed.cost, judged, measured, changed=True, forms=formed), "", False

    def _formed_in_time(self, found: SearchResult, formed: Formed) -> tuple[Judgement, report.Measured | None]:
        """Whether timing accepts fewer multiplications: beside the result without them, where prices leave that in
        doubt, and beside the input."""
        task, plain = self.task, found.graph
        known, measured = Replacement(formed.modelled), None
        of_input = plain is task.graph
        if task.races and (of_input or (task.effort.again and known.doubted)):
            costs_of = (formed.cost.us / formed.modelled.mean, formed.cost.us)
            known, possible = self.contest.replaces(plain, formed.graph, known, costs_of)
            if self.contest.interrupted:
                return Judgement(None, "timing them was interrupted"), None
            if possible and not known.taken:
                why = f"beside the result without them, they take {known.text} of its time"
                return Judgement(None, why), None
            measured = known.measured
        if not of_input:
            self.bench.drop(plain)
        return self.contest.judged(formed.graph, self.before, formed.cost, measured)

    def _worth_another(self, best: Candidate) -> bool:
        """Whether there is time for another candidate, and enough to gain: what the best is modelled at, or nodes."""
        task = self.task
        most = 1.0 - (best.cost.us / self.before.us if self.before.us else 1.0)
        enough = most > SearchOptions().least_gain or len(best.found.graph.nodes) < len(task.graph.nodes)
        leisure = not self.contest.interrupted and task.budget.left > task.budget.racing
        return task.effort.again and leisure and enough

    def _tried(self, found: SearchResult) -> Candidate:
        """A search's result, judged beside the input and, if it is to be returned, checked."""
        checked, task = UNCHANGED, self.task
        while found.graph is not task.graph:
            cost = costs.graph_cost(found.graph, task.costs, sizes=task.sizes)
            judged, measured = self.contest.judged(found.graph, self.before, cost)
            candidate = Candidate(found, checked, cost, judged, measured, changed=True)
            if not judged.taken or checked.verdict == "passed":
                break
            settled, checked = self.checks.settle(found)
            candidate = replace(candidate, checked=checked)
            if settled.graph is found.graph:
                break
            found = settled  # what is left without the rule at fault: checked, and to be judged
        else:
            candidate = Candidate(found, checked, self.before, Judgement(None))
        return candidate


def _unknown_sizes(graph: Graph, sizes: Mapping[str, int]) -> list[str]:
    """What has to be said of sizes that are given for dimensions which no value of the model has."""
    kinds = [t for t in graph.declared.values() if isinstance(t, TensorType)]
    known = dict.fromkeys(n for t in kinds for d in t.shape or () for n in sorted(symbols(d)))
    has = f"its symbolic ones are {printable(', '.join(known), 200)}" if known else "all of its sizes are fixed"
    return [
        f"the model has no dimension {printable(n)!r} to cost at {sizes[n]}: {has}" for n in sizes if n not in known
    ]


def _against_itself(measured: report.Measured | None) -> report.Measured | None:
    """A race in which the input was timed, as one of the input against itself."""
    return None if measured is None else replace(measured, after_ms=measured.before_ms, ratio=1.0)

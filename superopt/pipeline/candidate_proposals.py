"""The candidates of an optimisation for time, in the order in which they are tried.

1. The search's result with fast algorithms (Winograd, Strassen) in the place of some operators, the fastest by price
   first: no rewrite rule applies behind one, so they come after the search.
2. The search's result.
3. After a failed check, the result of a search without its cause (:mod:`superopt.pipeline.check_failure_recovery`).
After a refusal
   by timing, the result of a search in which no operator gets more work than it had.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING

from superopt.passes import SearchOptions, SearchResult
from superopt.pipeline.acceptance_policy import AcceptanceDecision, demand_of
from superopt.pipeline.candidate import Candidate, CandidateRefusal, Proposals
from superopt.pipeline.check_failure_recovery import CheckFailureRecovery
from superopt.pipeline.optimization_context import OptimizationContext
from superopt.pipeline.options import ALGORITHMS

if TYPE_CHECKING:
    from superopt.pipeline.fast_algorithm_proposals import FastAlgorithmSubstitution

__all__ = ["CandidateProposer"]

_CHECKS = 4.0  # times what a check needs that have to be left before fast algorithms are proposed


class CandidateProposer:
    """Proposes candidates for an optimisation.

    Args:
        context: the optimisation.
    """

    def __init__(self, context: OptimizationContext) -> None:
        self._context = context
        self._recovery = CheckFailureRecovery(context)
        self._algorithms_refused = False  # by timing, and prices leave no other to try
        self._only_clear = False  # timing refused fast algorithms that prices leave in doubt
        self._fewer_rules: bool | None = None  # whether the last search without trade-offs used fewer rules

    def proposals(self) -> Proposals:
        """All candidates. At their end, the input."""
        context, task = self._context, self._context.task
        search = context.searches.search()
        if search.stopped == "interrupted":
            task.budget.interrupt()
        refusal: CandidateRefusal | None = None
        while True:
            yield from self.with_algorithms(search)
            if search.graph is task.graph:
                return self._unchanged_input(search, refusal)
            refusal = yield self._candidate(search)
            by_check = refusal.stage == "check"
            again = self._recovery.search_again(refusal) if by_check else self._without_tradeoffs(refusal)
            if again is None:
                return self._refused(refusal)
            search = again

    def with_algorithms(self, search: SearchResult) -> Generator[Candidate, CandidateRefusal, None]:
        """A search's result with fast algorithms, until timing refuses them."""
        context, options = self._context, self._context.task.options
        wanted = not options.enable and ALGORITHMS not in options.disable and options.objective != "memory"
        wanted &= context.task.effort.fast_algorithms
        if context.task.budget.interrupted or self._algorithms_refused or not wanted:  # they need more memory
            return
        from superopt.pipeline.fast_algorithm_proposals import (
            substitutions,  # here, because most models have no place for one
        )

        context.task.progress(0, None, "looking for fewer multiplications")
        setting = context.algorithm_setting
        for algorithms in substitutions(context.task.graph, search.graph, context.task.costs, setting, context.log):
            if context.task.budget.left < _CHECKS * context.task.budget.reserve:
                context.log.note("there was no time left to look for fewer multiplications")
                return
            if self._only_clear and not algorithms.clear:
                continue
            candidate = replace(self._candidate(replace(search, graph=algorithms.graph)), algorithms=algorithms)
            refusal = yield candidate
            self._refuse(algorithms, refusal)
            if self._algorithms_refused or refusal.stage == "interrupted":
                return

    def _refuse(self, algorithms: FastAlgorithmSubstitution, refusal: CandidateRefusal) -> None:
        why = refusal.reason
        if refusal.stage == "check":
            why = f"the check {refusal.candidate.check.verdict}: {why}"
        count = len(algorithms.choices)
        self._context.log.note(f"{count} operators with fewer multiplications were left out: {why}")
        if refusal.stage == "timing":
            self._only_clear = True
            self._algorithms_refused = algorithms.clear

    def _candidate(self, search: SearchResult) -> Candidate:
        context = self._context
        return Candidate(search, context.cost_of(search.graph), weights=context.searches.weights)

    def _without_tradeoffs(self, refusal: CandidateRefusal) -> SearchResult | None:
        """A search in which no operator gets more work than it had; ``None`` where that would gain nothing either.

        Where the first result was modelled to gain less than a benchmark can show, so would this search with all rules:
        only rules that leave less to run are used, which takes little time. So it is where each place of such a result
        is no worse by itself but the whole is, as the backend runs operators of several places as one kernel; and with
        the quick effort.
        """
        context, candidate = self._context, refusal.candidate
        if self._fewer_rules is None:
            fewer_rules = candidate.decision.undetectable or not context.task.effort.timed
        elif self._fewer_rules or demand_of(candidate.cost).no_more_than(demand_of(context.input_cost)):
            return None
        else:
            fewer_rules = True
        if not self._may_gain(candidate, fewer_rules):
            return None
        self._fewer_rules = fewer_rules
        context.log.note(f"{refusal.reason}, so only rewrites without more FLOPs, bytes or kernels are tried")
        return context.searches.search(no_tradeoffs=True, reducing_only=fewer_rules)

    def _may_gain(self, candidate: Candidate, fewer_rules: bool) -> bool:
        """Whether there is time for another search, and one with all rules may gain: less than this candidate."""
        task, before = self._context.task, self._context.input_cost.us
        if task.budget.interrupted or task.budget.left <= task.budget.timing_reserve:
            return False
        gain = 1.0 - (candidate.cost.us / before if before else 1.0)
        return fewer_rules or gain > SearchOptions().least_gain or len(candidate.graph.nodes) < len(task.graph.nodes)

    def _unchanged_input(self, search: SearchResult, refusal: CandidateRefusal | None) -> Candidate:
        """The input, where a search finds nothing."""
        if refusal is None:
            return replace(self._context.input, search=search)
        return self._context.unchanged(replace(refusal.candidate, search=search), AcceptanceDecision(None))

    def _refused(self, refusal: CandidateRefusal) -> Candidate:
        """The input, where the last candidate was refused."""
        context, candidate = self._context, refusal.candidate
        if refusal.stage == "check":
            return context.unchanged(candidate, AcceptanceDecision(None), candidate.check)
        context.log.note(f"{refusal.reason}, so the input is returned")
        return context.unchanged(candidate, candidate.decision)

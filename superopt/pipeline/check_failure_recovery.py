"""What a search leaves out after a failed check: float32 for half precision, then other layouts, then rewrites by the
weights' elements, then rules under suspicion."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from superopt import report
from superopt.ir.graph import structural_hash
from superopt.passes import AppliedRule, SearchResult
from superopt.pipeline.candidate import Candidate, CandidateRefusal
from superopt.pipeline.check_policy import CHECKS
from superopt.pipeline.optimization_context import OptimizationContext
from superopt.pipeline.options import VALUES

if TYPE_CHECKING:
    from superopt.pipeline.weight_rewrites import WeightRewrites

__all__ = ["CheckFailureRecovery"]


class CheckFailureRecovery:
    """Searches again without the cause of a failed check.

    Float32 for half precision goes first, where a search chose it: it moves every value. Then go other layouts, which
    change as many operators. Then go rewrites by the weights' elements, where the search started from one. Then goes
    the rule that is suspected most; then, with it, all that the next checks suspect.

    Args:
        context: the optimisation.
    """

    def __init__(self, context: OptimizationContext) -> None:
        self._context = context
        self._weights: WeightRewrites | None = None  # from which the first search started
        self._first: CandidateRefusal | None = None
        self._rounds: Iterator[int] = iter(CHECKS.suspects)
        self._excluded: dict[str, None] = {}
        self._failed: set[str] = set()  # digests of graphs that failed a check

    def search_again(self, refusal: CandidateRefusal) -> SearchResult | None:
        """A search without what the check of a candidate suspects; ``None`` where nothing is left to exclude."""
        context, candidate = self._context, refusal.candidate
        if candidate.check.verdict == "skipped":
            context.log.note(f"the rewritten graph could not be checked ({refusal.reason}), so the input is returned")
            return None
        if candidate.search.widened:
            context.searches.widens = False
            self._record(refusal, "float32 for half precision")
            context.log.note(f"float32 for half precision failed the check ({refusal.reason}); it was left out")
            return context.searches.search()
        if candidate.search.laid_out:
            context.searches.layouts = False
            self._record(refusal, "other layouts")
            context.log.note(f"other layouts failed the check ({refusal.reason}); they were left out")
            return context.searches.search()
        if self._first is None:
            self._first, self._weights = refusal, context.searches.weights
        self._failed.add(structural_hash(candidate.graph))
        if context.searches.weights is not None and not self._excluded:
            context.searches.weights = context.searches.weights.exact_part
            self._record(refusal, VALUES)
            context.log.note(f"what the weights' elements allow failed the check ({refusal.reason}); it was left out")
            return context.searches.search()
        if self._weights is not None and not self._excluded:  # the check fails without them, too
            context.searches.weights, refusal = self._weights, self._first
        again = self._without_suspects(refusal)
        if again is None:
            self._record(refusal)
            context.log.note(f"the rewritten graph failed the check ({refusal.reason}); the input is returned")
        return again

    def _without_suspects(self, refusal: CandidateRefusal) -> SearchResult | None:
        context = self._context
        for most in self._rounds:
            suspects = (a.rule for a in self._suspected(refusal.candidate))
            rules = [r for r in suspects if r not in ("fold", *self._excluded)][:most]
            if not rules or context.task.budget.left <= 0.0:
                return None
            self._excluded.update(dict.fromkeys(rules))
            for rule in rules:
                self._record(refusal, rule)
            context.log.note(
                f"rule {rules[0]} failed the check here ({refusal.reason}); it was left out" if len(rules) == 1 else
                f"one of the rules {', '.join(rules)} failed the check here ({refusal.reason}); they were left out"
            )  # fmt: skip
            again = context.searches.search(excluded=self._excluded)
            if structural_hash(again.graph) not in self._failed:
                return again
        return None

    def _suspected(self, candidate: Candidate) -> list[AppliedRule]:
        """The rules that were applied; first those used where the result strays furthest on the inputs that failed, or
        at the place that differs."""
        check = candidate.check
        ranks = dict.fromkeys(check.where, 0)
        if check.feeds and not ranks:
            from superopt.verifier.check.differential import suspects  # here, because few checks fail

            for rank, outputs in enumerate(suspects(self._context.task.graph, candidate.graph, check.feeds)):
                ranks.update(dict.fromkeys(outputs, rank))
        last = len(ranks)
        return sorted(
            candidate.search.applied,
            key=lambda a: (min((ranks.get(n, last) for n in a.where), default=last), -a.count),
        )

    def _record(self, refusal: CandidateRefusal, left_out: str = "") -> None:
        rules = tuple(a.rule for a in refusal.candidate.search.applied if a.rule != "fold")
        self._context.failures.append(report.CheckFailure(refusal.reason, rules, left_out))

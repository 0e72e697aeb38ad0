"""The stages that a candidate has to pass: paired benchmark, budget of errors, check."""

from __future__ import annotations

from dataclasses import replace

from superopt.ir.errors import InvalidModel, ResourceLimit, Unsupported
from superopt.pipeline.acceptance_policy import AcceptanceDecision, FastAlgorithmComparison
from superopt.pipeline.candidate import Candidate, CandidateRefusal, Stage
from superopt.pipeline.optimization_context import OptimizationContext
from superopt.pipeline.result_check import skipped
from superopt.runtime.resource_limits import refuse_unbounded
from superopt.verifier.check.differential import EXACT, ErrorAllowance

__all__ = ["CandidateEvaluator"]


class CandidateEvaluator:
    """Evaluates the candidates of an optimisation.

    Args:
        context: the optimisation.
    """

    def __init__(self, context: OptimizationContext) -> None:
        self._context = context

    def __call__(self, candidate: Candidate) -> Candidate | CandidateRefusal:
        """The candidate with the evidence of all stages, or the first refusal.

        A candidate with fast algorithms is optional: it is refused where it cannot be run, and an interrupt ends its
        evaluation, not the optimisation.
        """
        optional = candidate.algorithms is not None
        try:
            outcome = self._evaluated(candidate)
        except (InvalidModel, Unsupported, ResourceLimit) as error:
            if not optional:
                raise
            outcome = CandidateRefusal(candidate, "run", f"the model could not be run with them: {error}")
        except KeyboardInterrupt:
            if not optional:
                raise
            self._context.task.budget.interrupt()
            outcome = CandidateRefusal(candidate, "interrupted", "an interrupt ended their evaluation")
        if isinstance(outcome, CandidateRefusal):
            self._context.bench.drop(candidate.graph)
        return outcome

    def _evaluated(self, candidate: Candidate) -> Candidate | CandidateRefusal:
        outcome: Candidate | CandidateRefusal = candidate
        for stage in (self._timing, self._errors, self._check):
            outcome = stage(candidate)
            if isinstance(outcome, CandidateRefusal):
                break
            candidate = outcome
        return outcome

    def _timing(self, candidate: Candidate) -> Candidate | CandidateRefusal:
        """Whether it improves on the input by its work, and by a paired benchmark."""
        context, graph = self._context, candidate.graph
        earlier = None
        if candidate.algorithms is not None:
            refuse_unbounded(graph, context.task.sizes)
            context.task.progress(0, None, "measuring with fewer multiplications")
            replacement = self._beside_plain(candidate)
            if isinstance(replacement, CandidateRefusal):
                return replacement
            earlier = replacement.measured if candidate.algorithms.plain is context.task.graph else None
        decision, measurement = context.acceptance.decide(graph, context.input_cost, candidate.cost, earlier)
        candidate = replace(candidate, decision=decision, measurement=measurement)
        return candidate if decision.accepted else _refusal(candidate, "timing", decision.reason)

    def _beside_plain(self, candidate: Candidate) -> FastAlgorithmComparison | CandidateRefusal:
        """Timing beside the same graph without fast algorithms, where prices leave in doubt that they gain."""
        task, algorithms = self._context.task, candidate.algorithms
        assert algorithms is not None
        plain, replacement = algorithms.plain, FastAlgorithmComparison(algorithms.modelled)
        of_input = plain is task.graph
        if task.timed and (of_input or replacement.doubted):
            us = (candidate.cost.us / algorithms.modelled.mean, candidate.cost.us)
            replacement, timed = self._context.acceptance.decide_replacement(plain, candidate.graph, replacement, us)
            if task.budget.interrupted:
                return CandidateRefusal(candidate, "interrupted", "timing them was interrupted")
            if timed and not replacement.accepted:
                why = f"beside the result without them, they take {replacement.text} of its time"
                return _refusal(candidate, "timing", why)
        if not of_input:
            self._context.bench.drop(plain)
        return replacement

    def _errors(self, candidate: Candidate) -> Candidate | CandidateRefusal:
        """Whether fast algorithms stay within the budget of errors."""
        if candidate.algorithms is None:
            return candidate
        algorithms, why = self._context.error_budget.allows(candidate.algorithms)
        candidate = replace(candidate, algorithms=algorithms)
        return CandidateRefusal(candidate, "errors", why) if why else candidate

    def _check(self, candidate: Candidate) -> Candidate | CandidateRefusal:
        """Whether it computes what the input does."""
        context, slack = self._context, EXACT
        if not context.task.options.check:
            return replace(candidate, check=skipped("switched off"))
        context.task.progress(0, None, "checking")
        if candidate.algorithms is not None:
            slack = ErrorAllowance.of_new_nodes(candidate.algorithms.slack, candidate.graph, candidate.algorithms.plain)
        candidate = replace(candidate, check=context.check(candidate.graph, slack, candidate.search.bodies))
        if candidate.check.verdict == "passed":
            return candidate
        return CandidateRefusal(candidate, "check", candidate.check.reason)


def _refusal(candidate: Candidate, stage: Stage, reason: str) -> CandidateRefusal:
    decision = candidate.decision if candidate.decision.reason else AcceptanceDecision(None, reason)
    return CandidateRefusal(replace(candidate, decision=decision), stage, reason)

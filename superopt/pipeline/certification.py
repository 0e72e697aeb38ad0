"""What is proved of a result, beyond its check: ``--verify certify``."""

from __future__ import annotations

from dataclasses import replace

from superopt import report
from superopt.ir.graph import Graph
from superopt.pipeline.acceptance_policy import AcceptanceDecision
from superopt.pipeline.candidate import Candidate
from superopt.pipeline.check_policy import CHECKS
from superopt.pipeline.optimization_context import OptimizationContext
from superopt.pipeline.result_check import UNCHANGED

__all__ = ["certify"]


def certify(candidate: Candidate, context: OptimizationContext) -> Candidate:
    """Prove the candidate equal to the input, region by region. A refuted candidate gives way to the input."""
    task, weights = context.task, candidate.weights
    if not task.options.certify or task.budget.interrupted:
        return candidate
    slack = 0.0 if candidate.algorithms is None else candidate.algorithms.slack
    if weights is not None and candidate.graph is not task.graph:
        slack = max(slack, weights.slack(candidate.graph, task.options.floats).share)
    context.verification = _proved(candidate.graph, slack, context)
    if not context.verification.verdict.startswith("refuted") or candidate.graph is task.graph:
        return candidate
    why = f"the rewritten graph was refuted ({context.verification.reason})"
    context.log.note(f"{why}, so the input is returned")
    context.verification, context.pareto = _proved(task.graph, 0.0, context), ()
    return replace(context.unchanged(candidate, AcceptanceDecision(None, why, code="refuted")), check=UNCHANGED)


def _proved(after: Graph, slack: float, context: OptimizationContext) -> report.VerificationReport:
    """What can be proved of a graph in the time that is left; what is not proved is run."""
    from superopt.verifier.equivalence.graphs import certify_result  # here, because it loads Z3

    task = context.task
    task.progress(0, None, "proving")
    seconds = min(CHECKS.proof_seconds, max(0.0, task.budget.left))
    verdict = certify_result(task.graph, after, seed=task.options.seed, total=seconds, slack=slack)
    return report.VerificationReport(
        verdict.words, verdict.same, verdict.proved, verdict.tested, verdict.proved_share, verdict.reason
    )

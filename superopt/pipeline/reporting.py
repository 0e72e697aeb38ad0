"""The report of an optimisation."""

from __future__ import annotations

from superopt import cost as costs
from superopt import report
from superopt.formats import onnx_bytes
from superopt.formats.control_flow_bodies import count_nodes
from superopt.pipeline.candidate import Candidate
from superopt.pipeline.optimization_context import OptimizationContext
from superopt.pipeline.result import Result
from superopt.pipeline.result_check import UNCHANGED
from superopt.report.inspection import opaque_nodes
from superopt.rules import RuleLibrary
from superopt.verifier.check.differential import CheckResult

__all__ = ["result_of"]

_PEAKS_TAKE = 4.0  # seconds that measuring the device's ceilings may take, which is done once a machine


def result_of(candidate: Candidate, context: OptimizationContext) -> Result:
    """The result of an optimisation, with its report.

    Args:
        candidate: what the last pass returned.
        context: the optimisation.
    """
    task, changed = context.task, candidate.graph is not context.task.graph
    weights = candidate.weights if changed else None
    claimed = () if weights is None else tuple((s.after, s.certificate) for s in weights.stages)
    pareto = context.pareto if task.options.objective == "pareto" else ()
    tradeoffs = tuple(point.reported(pareto[0]) for point in pareto)
    return Result(candidate.graph, task.graph, _report(candidate, context, tradeoffs), claimed, pareto)


def _report(
    candidate: Candidate, context: OptimizationContext, tradeoffs: tuple[report.MemoryTimeTradeoffReport, ...]
) -> report.Report:
    task, search, graph = context.task, candidate.search, context.task.graph
    before, after = context.input_cost, candidate.cost
    return report.Report(
        status="improved" if candidate.decision.accepted else "unchanged",
        target=task.options.target,
        float=task.options.floats,
        runtime=task.options.runtime,
        questions=report.MeasurementRequestReport(
            search.measurements_requested, task.costs.measured, search.measurements_decisive
        ),
        result=report.ResultDigest(search.graph),
        cost=report.CostReport(before.us, after.us, min(before.measured_share, after.measured_share)),
        measured=candidate.measurement,
        check=_check(candidate.check),
        nodes=report.NodeCounts(count_nodes(graph), count_nodes(search.graph)),
        operators={"before": report.operator_counts(graph), "after": report.operator_counts(search.graph)},
        work=report.ResourceUsageReport(
            before.flops,
            after.flops,
            before.bytes,
            after.bytes,
            before.intensity,
            after.intensity,
            before.weight_bytes,
            after.weight_bytes,
            before.peak_activation_bytes,
            after.peak_activation_bytes,
        ),
        rules_applied=tuple(
            report.AppliedRuleReport(a.rule, a.count, _verdict(task.library, a.rule), a.gain_us, a.where)
            for a in search.applied
        ),
        search=report.SearchStatistics(
            search.seconds, search.regions, search.distinct_regions, search.e_nodes, search.stopped
        ),
        opaque=opaque_nodes(graph, task.typing),
        notes=(*task.notes, *context.log.notes, *search.notes),
        near_misses=search.near_misses,
        check_failures=tuple(context.failures),
        algorithms=() if candidate.algorithms is None else candidate.algorithms.reported(),
        errors=None if candidate.algorithms is None else candidate.algorithms.errors_reported(task.options.floats),
        values=None if candidate.weights is None or search.graph is graph else candidate.weights.reported(),
        roofline=costs.roofline_data(before, after, task.costs.peaks() if task.budget.left > _PEAKS_TAKE else None),
        reason=_reason(candidate, context),
        file=report.FileSize(onnx_bytes(graph), onnx_bytes(search.graph)),
        verification=context.verification,
        pareto=tradeoffs,
        runtime_fault=None if context.fault is None else context.fault.reported(),
        precision=context.precision,
    )


_IMPROVED = {
    "faster": "the result is faster by more than what was measured or modelled may be off",
    "simpler": "the result has fewer nodes, FLOPs or bytes, none of them more, and was not measured slower",
    "memory": "the result needs less memory",
    "precision": "operators or weights are in half precision, within the budget of errors",
    "runs": "the result runs and is right where the runtime breaks or refuses the input",
}
_MORE = 2.0  # times the limit that was too short, suggested for another run


def _reason(candidate: Candidate, context: OptimizationContext) -> report.StatusReason:
    """Why the status is what it is, and what may change it."""
    decision, check, stopped = candidate.decision, candidate.check, candidate.search.stopped
    options, left = context.task.options, context.task.budget.left
    if decision.improvement is not None:
        return report.StatusReason(decision.improvement, decision.reason or _IMPROVED[decision.improvement])
    if decision.code in ("refuted", "runtime"):
        return report.StatusReason("refuted" if decision.code == "refuted" else "not_better", decision.reason)
    if context.failures and (check.verdict == "failed" or not decision.reason):
        return report.StatusReason(
            "check_failed", f"the rewritten graph failed its check ({context.failures[-1].reason})"
        )
    limit = options.time_limit or 0.0
    longer = f"run it longer to continue (a time limit of {_MORE * max(limit, 1.0):g} s)"
    if check.verdict == "skipped" and check is not UNCHANGED:
        why = f"a rewritten graph was found and could not be checked ({check.reason})"
        return report.StatusReason("not_checked", f"{why}; {longer}" if left <= 0.0 else why)
    ends = {
        "time": f"the search stopped after {limit:g} s, before it was complete; {longer}",
        "memory": "the memory limit ended the search before it was complete; a larger --memory-limit lets it go on",
        "interrupted": "an interrupt ended the search before it was complete; run it again to continue",
    }
    if decision.code == "time":
        return report.StatusReason("time", f"{decision.reason} within {limit:g} s; {longer}")
    if stopped in ends:
        why = f"{decision.reason}; {ends[stopped]}" if decision.reason else ends[stopped]
        return report.StatusReason("memory_limit" if stopped == "memory" else stopped, why)
    if decision.reason:
        return report.StatusReason("not_better", decision.reason)
    if stopped in ("nodes", "steps"):
        return report.StatusReason(
            "limits", f"no better equivalent graph was found within the work that --effort {options.effort} allows"
        )
    return report.StatusReason("none_found", "no better equivalent graph was found")


def _check(check: CheckResult) -> report.CheckReport:
    """What a report says of a check."""
    power = check.power
    return report.CheckReport(
        check.verdict, check.trials, check.max_abs_error, check.max_rel_error, check.reference,
        check.reason,
        None if power is None else report.CheckPower(power.mutants, power.caught, power.share, power.unexercised),
    )  # fmt: skip


def _verdict(library: RuleLibrary, rule: str) -> str:
    return "evaluated" if rule == "fold" else library.verdict_name(rule)  # folding is no rule: it computes

"""What an optimisation has to say of its result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from superopt import cost as costs
from superopt import report
from superopt.cost import CostModel, GraphCost
from superopt.formats import onnx_bytes
from superopt.ir.graph import Graph, structural_hash
from superopt.ops.infer import Barrier, Typing
from superopt.passes import SearchResult
from superopt.pipeline.acceptance_policy import Judgement
from superopt.pipeline.options import Options
from superopt.pipeline.result_check import UNCHANGED
from superopt.pipeline.weight_rewrites import Valued
from superopt.rules import Library
from superopt.verifier.check.differential import CheckResult

if TYPE_CHECKING:
    from superopt.pipeline.fast_algorithms import Formed

__all__ = ["opaque_nodes", "reason_of", "report_of", "reported_check"]

_PEAKS_TAKE = 4.0  # seconds that measuring the device's ceilings may take, which is done once a machine


def report_of(
    found: SearchResult, checked: CheckResult, measured: report.Measured | None, before: GraphCost, after: GraphCost,
    forms: Formed | None, *, judged: Judgement, graph: Graph, typing: Typing, options: Options, library: Library,
    model: CostModel, notes: Sequence[str], failures: Sequence[report.CheckFailure], valued: Valued | None, left: float,
) -> report.Report:  # fmt: skip
    """The report of a search's result.

    Args:
        found: with the graph that is returned.
        checked: what the check said of it.
        measured: the race beside the input, if there was one.
        before: what the input costs.
        after: what the result costs.
        forms: what of it has fewer multiplications.
        judged: how the result is better than the input, or why it is not.
        graph: the input.
        typing: its types.
        options: settings.
        library: where the verdicts of the rules are.
        model: prices.
        notes: in words.
        failures: checks that failed on the way.
        valued: what the weights' elements allowed.
        left: seconds.
    """
    changed = found.graph is not graph
    return report.Report(
        status="improved" if judged.improvement is not None else "unchanged",
        target=options.target,
        float=options.floats,
        runtime=options.runtime,
        questions=report.Questions(found.measurements_requested, model.measured, found.measurements_decisive),
        result=report.Outcome(structural_hash(found.graph)),
        cost=report.Cost(before.us, after.us, min(before.measured_share, after.measured_share)),
        measured=measured,
        check=reported_check(checked),
        nodes=report.Nodes(len(graph.nodes), len(found.graph.nodes)),
        operators={"before": report.operator_counts(graph), "after": report.operator_counts(found.graph)},
        work=report.Work(
            before.flops, after.flops, before.bytes, after.bytes, before.intensity, after.intensity,
            before.weight_bytes, after.weight_bytes, before.peak_activation_bytes, after.peak_activation_bytes,
        ),
        rules_applied=tuple(
            report.Applied(a.rule, a.count, _verdict(library, a.rule), a.gain_us, a.where) for a in found.applied
        ),
        search=report.Search(found.seconds, found.regions, found.distinct_regions, found.e_nodes, found.stopped),
        opaque=opaque_nodes(graph, typing),
        notes=(*notes, *found.notes),
        near_misses=found.near_misses,
        check_failures=tuple(failures),
        algorithms=() if forms is None else forms.reported(),
        errors=None if forms is None else forms.errors_reported(options.floats),
        values=valued.reported() if valued is not None and changed else None,
        roofline=costs.roofline_data(before, after, model.peaks() if left > _PEAKS_TAKE else None),
        reason=_reason(found.stopped, checked, judged, options, failures, left),
        file=report.FileSize(onnx_bytes(graph), onnx_bytes(found.graph)),
    )  # fmt: skip


_IMPROVED = {
    "faster": "the result is faster by more than what was measured or modelled may be off",
    "simpler": "the result has fewer nodes, FLOPs or bytes, none of them more, and was not measured slower",
    "memory": "the result needs less memory",
    "runs": "the result runs and is right where the runtime breaks or refuses the input",
}
_MORE = 2.0  # times the limit that was too short, suggested for another run


def reason_of(judged: Judgement) -> report.Reason:
    """Why a judgement is what it is, where nothing else is known."""
    if judged.improvement is not None:
        return report.Reason(judged.improvement, _IMPROVED[judged.improvement])
    return report.Reason(judged.code, judged.reason)


def _reason(
    stopped: str, checked: CheckResult, judged: Judgement, options: Options, failures: Sequence[report.CheckFailure],
    left: float,
) -> report.Reason:  # fmt: skip
    """Why the status is what it is, and what may change it."""
    if judged.improvement is not None:
        return reason_of(judged)
    if judged.code == "refuted":
        return report.Reason("refuted", judged.reason)
    if failures and (checked.verdict == "failed" or not judged.reason):
        return report.Reason("check_failed", f"the rewritten graph failed its check ({failures[-1].reason})")
    limit = options.time_limit or 0.0
    longer = f"run it longer with --time-limit {_MORE * max(limit, 1.0):g} to continue"
    if checked.verdict == "skipped" and checked is not UNCHANGED:
        why = f"a rewritten graph was found and could not be checked ({checked.reason})"
        return report.Reason("not_checked", f"{why}; {longer}" if left <= 0.0 else why)
    ends = {
        "time": f"the search stopped after {limit:g} s, before it was complete; {longer}",
        "memory": "the memory limit ended the search before it was complete; a larger --memory-limit lets it go on",
        "interrupted": "an interrupt ended the search before it was complete; run it again to continue",
    }
    if judged.code == "time":
        return report.Reason("time", f"{judged.reason} within {limit:g} s; {longer}")
    if stopped in ends:
        why = f"{judged.reason}; {ends[stopped]}" if judged.reason else ends[stopped]
        return report.Reason("memory_limit" if stopped == "memory" else stopped, why)
    if judged.reason:
        return report.Reason("not_better", judged.reason)
    if stopped in ("nodes", "steps"):
        return report.Reason(
            "limits", f"no better equivalent graph was found within the work that --effort {options.effort} allows"
        )
    return report.Reason("none_found", "no better equivalent graph was found")


def reported_check(checked: CheckResult) -> report.Check:
    """What a report says of a check."""
    power = checked.power
    return report.Check(
        checked.verdict, checked.trials, checked.max_abs_error, checked.max_rel_error, checked.reference,
        checked.reason,
        None if power is None else report.CheckPower(power.mutants, power.caught, power.share, power.unexercised),
    )  # fmt: skip


def _verdict(library: Library, rule: str) -> str:
    return "evaluated" if rule == "fold" else library.verdict_name(rule)  # folding is no rule: it computes


def opaque_nodes(graph: Graph, typing: Typing) -> tuple[report.Opaque, ...]:
    """What superopt carries through untouched, by operator and reason."""
    counts: Counter[tuple[str, str]] = Counter()
    for node, known in zip(graph.nodes, typing.nodes, strict=True):
        if isinstance(known, Barrier):
            counts[f"{node.domain}.{node.op}" if node.domain else node.op, known.reason] += 1
    return tuple(report.Opaque(op, count, reason) for (op, reason), count in sorted(counts.items()))

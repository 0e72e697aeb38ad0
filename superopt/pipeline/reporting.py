"""What an optimisation has to say of its result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from superopt import cost as costs
from superopt import report
from superopt.cost import CostModel, GraphCost
from superopt.ir.graph import Graph, structural_hash
from superopt.ops.infer import Barrier, Typing
from superopt.pipeline.options import Options
from superopt.pipeline.values import Valued
from superopt.rules import Library
from superopt.search import SearchResult
from superopt.verifier.differential import CheckResult

if TYPE_CHECKING:
    from superopt.pipeline.fewer import Formed

__all__ = ["opaque_nodes", "report_of", "reported_check"]

_PEAKS_TAKE = 4.0  # seconds that measuring the device's ceilings may take, which is done once a machine


def report_of(
    found: SearchResult, checked: CheckResult, measured: report.Measured | None, before: GraphCost, after: GraphCost,
    forms: Formed | None, *, graph: Graph, typing: Typing, options: Options, library: Library, model: CostModel,
    notes: Sequence[str], failures: Sequence[report.CheckFailure], valued: Valued | None, left: float,
) -> report.Report:  # fmt: skip
    """The report of a search's result.

    Args:
        found: with the graph that is returned.
        checked: what the check said of it.
        measured: the race beside the input, if there was one.
        before: what the input costs.
        after: what the result costs.
        forms: what of it has fewer multiplications.
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
        status="improved" if changed else "unchanged",
        target=options.target,
        float=options.floats,
        runtime=options.runtime,
        questions=report.Questions(found.asked, model.measured, found.decided),
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
    )  # fmt: skip


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

"""How a terminal shows reports: short tables, plain text when it is not a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from superopt.ir.errors import printable
from superopt.report.optimization_report import FastAlgorithmReport, MixedPrecisionReport, Report, ResourceUsageReport
from superopt.report.quantities import bytes_text, count_text, counted, time_text
from superopt.runtime.paired_measurement import PairedMeasurement

__all__ = ["changed_operators", "facts", "show_derivation", "show_explanation", "show_report", "table"]


_ENDS = {
    "saturated": "because no rule gained more", "nodes": "at its limit of e-nodes", "steps": "at its limit of steps",
    "time": "at the time limit", "memory": "at the memory limit", "interrupted": "by an interrupt",
}  # fmt: skip


def table(*headers: str, rows: Iterable[tuple[str, ...]], numeric: tuple[int, ...] = ()) -> Table:
    """A plain table; the columns in ``numeric`` are right-aligned. Cells are shown literally."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1))
    for position, header in enumerate(headers):
        made.add_column(header, justify="right" if position in numeric else "left", overflow="fold")
    for row in rows:
        made.add_row(*(escape(cell) for cell in row))
    return made


def _where(report: Report) -> str:
    """The target, and the runtime, its version and the sizes of open dimensions where the benchmark says them."""
    timed = report.measured.circumstances if report.measured is not None else {}
    return ", ".join([report.target, *(str(timed[key]) for key in ("runtime", "sizes") if timed.get(key))])


def _measured(report: Report, m: PairedMeasurement) -> str:
    """What times beside each other say; beside itself, where the input is returned, a model says nothing."""
    if report.status != "improved":
        return f"what is returned is the input ({_where(report)})"
    said = f"x{m.ratio:.3f} ({m.certainty}, {_where(report)})"
    return f"{said}, no difference" if m.outcome == "no difference" else said


def show_report(console: Console, name: str, report: Report, *, estimates: bool = False) -> None:
    """The before/after summary of an optimisation.

    Args:
        console: where.
        name: the model's, or nothing.
        report: of the optimisation.
        estimates: with what cost models say, besides what was measured.
    """
    title = f"[bold]{escape(printable(name))}[/bold]  " if name else ""
    console.print(title + escape(printable(report.summary, 400)))
    console.print(table("", "before", "after", "", rows=facts(report, estimates=estimates), numeric=(1, 2)))
    changed = changed_operators(report)
    if changed:
        console.print(table("operator", "before", "after", rows=changed, numeric=(1, 2)))
    if report.rules_applied:
        rules = [(a.rule, str(a.count), a.verdict) for a in report.rules_applied]
        console.print(table("rule", "times", "verdict", rows=rules, numeric=(1,)))
    if report.algorithms:
        headers = "algorithm", "times", "errors grow by", *(["estimated time"] if estimates else [])
        rows = [row if estimates else row[:3] for row in _algorithms(report)]
        console.print(table(*headers, rows=rows, numeric=(1, 2, 3)[: len(headers) - 1]))
    if (e := report.errors) is not None:
        console.print(
            f"errors against float64: {e.before:.1e} before, {e.after:.1e} after, of the largest element, "
            f"{e.inputs} inputs; --float {report.float} allows {e.most:.0e}, and x{e.times:g} "
            f"(superopt verify --errors {e.most:.0e} holds the result to that)"
        )
    if report.precision is not None:
        show_precision(console, report.precision)
    if (found := report.values) is not None:
        before, after = found.weight_elements
        console.print(
            f"values of weights: {found.removed} slices removed, elements of weights {before:,} → {after:,} "
            f"({'exact' if found.exact else 'within the budget of errors'}; {found.checked})"
        )
    if report.pareto:
        points = [
            (bytes_text(t.bytes), f"x{t.modelled:.3f}", "" if t.measured is None else f"x{t.measured:.3f}",
             "" if t.doubt is None else f"±{t.doubt:.3f}", t.how)
            for t in report.pareto
        ]  # fmt: skip
        console.print(table("memory", "time, estimated", "measured", "", "how", rows=points, numeric=(0, 1, 2)))
    console.print(f"check {escape(report.check.text)}")
    if report.verification is not None:
        v = report.verification
        console.print(
            f"verified: {v.verdict}; of the result's nodes {v.same} are the input's own, {v.proved} are in regions "
            f"proved equal, {v.tested} in regions only tested ({v.proved_share:.0%} same or proved)"
        )
    search = report.search
    console.print(
        f"search {search.seconds:.1f} s: {search.distinct_regions:,} regions, {search.e_nodes:,} e-nodes; it ended "
        f"{_ENDS.get(search.stopped, search.stopped)}"
    )
    if report.opaque:
        parts = [f"{o.count} {printable(o.op)} ({printable(o.reason)})" for o in report.opaque[:8]]
        more = f" and {len(report.opaque) - 8} more kinds" if len(report.opaque) > 8 else ""
        console.print(f"carried through untouched: {escape(', '.join(parts))}{more}")
    for note in report.notes:
        console.print(f"note: {escape(note)}")


def show_precision(console: Console, found: MixedPrecisionReport) -> None:
    """The budget of errors, and what stays in float32."""
    console.print(
        f"mixed precision: errors up to {found.error:.1e} of the largest element on {found.inputs} inputs, the budget "
        f"is {found.budget:g}; {found.casts} Casts"
    )
    rows = [
        (k.what, k.reason, str(k.count), escape(printable(f"{k.text}: {', '.join(k.where)}", 120))) for k in found.kept
    ]
    console.print(table("in float32", "reason", "", "first", rows=rows, numeric=(2,)))


def facts(report: Report, *, estimates: bool) -> list[tuple[str, ...]]:
    """The rows of the table: name, before, after, and what needs saying."""
    work, m = report.work, report.measured
    rows: list[tuple[str, ...]] = []
    if m is not None:
        rows.append(("time", time_text(1e3 * m.before_ms), time_text(1e3 * m.after_paired_ms), _measured(report, m)))
    if estimates or m is None:
        before, after = report.cost.before_us, report.cost.after_us
        said = f"x{after / before if before else 1.0:.3f}, {report.cost.measured_share:.0%} from measured operators"
        rows.append(("time, estimated", time_text(before), time_text(after), said))
    rows.append(("nodes", str(report.nodes.before), str(report.nodes.after), ""))
    if report.file is not None:
        sizes = report.file.bytes_before, report.file.bytes_after
        rows.append(("ONNX file", *map(bytes_text, sizes), ""))
    return [
        *rows,
        ("FLOPs", count_text(work.flops_before), count_text(work.flops_after), ""),
        ("bytes moved", bytes_text(work.bytes_before), bytes_text(work.bytes_after), ""),
        ("FLOPs per byte", _short(work.intensity_before), _short(work.intensity_after), "arithmetic intensity"),
        ("memory", bytes_text(_memory(work, "before")), bytes_text(_memory(work, "after")),
         "weights and activations at once"),
    ]  # fmt: skip


def show_explanation(console: Console, report: Report) -> None:
    """For each rule where it was applied and what it gained; then what nearly was."""
    for applied in report.rules_applied:
        gain = "" if applied.gain_us is None else f", estimated gain {time_text(applied.gain_us)}"
        console.print(f"[bold]{escape(applied.rule)}[/bold] x{applied.count}, {applied.verdict}{gain}")
        for place in applied.where[:20]:
            console.print(f"    at {escape(printable(place))}")
        if len(applied.where) > 20:
            console.print(f"    and {len(applied.where) - 20} more places")
    for one in report.algorithms:
        share = one.after_us / (one.before_us or 1.0)
        console.print(
            f"{escape(printable(one.where))}: {one.operator} by {one.algorithm}, estimated at x{share:.2f} of its time"
        )
    for claim in report.values.claims if report.values is not None else ():
        console.print(f"values of weights: {escape(printable(claim, 200))}")
    if not report.rules_applied and not report.algorithms and report.values is None:
        console.print("no rule was applied")
    if report.derivation is not None:
        show_derivation(console, report.derivation)
    for miss in report.near_misses:
        console.print(f"near miss: {escape(miss)}")


def _algorithms(report: Report) -> list[tuple[str, ...]]:
    """A row for each algorithm: how often, by how much errors can grow (root mean square, at worst), and its share."""
    alike: dict[tuple[str, str], list[FastAlgorithmReport]] = {}
    for one in report.algorithms:
        alike.setdefault((one.operator, one.algorithm), []).append(one)
    return [
        (f"{op}: {name}", str(len(group)), f"x{group[0].growth:.1f}, x{group[0].bound:.0f}",
         f"x{sum(a.after_us for a in group) / (sum(a.before_us for a in group) or 1.0):.2f}")
        for (op, name), group in alike.items()
    ]  # fmt: skip


def show_derivation(console: Console, derivation: Mapping[str, Any]) -> None:
    """The steps from a model to its result, with what each gains; they add up to the whole. Equal steps are a row."""
    alike: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for s in derivation["steps"]:
        key = tuple(s["rules"]), tuple(sorted(s["removed"].items())), tuple(sorted(s["added"].items()))
        alike.setdefault(key, []).append(s)
    rows = [
        (_numbers([s["step"] for s in group]), " + ".join(group[0]["rules"]) or "–", counted(group[0]["removed"]),
         counted(group[0]["added"]), time_text(sum(s["gain_us"] for s in group)))
        for group in alike.values()
    ]  # fmt: skip
    console.print(table("steps", "rules", "removes", "adds", "estimated gain", rows=rows, numeric=(4,)))
    whole = derivation["before_us"] - derivation["after_us"]
    console.print(
        f"{len(derivation['steps'])} steps {derivation['order'].split(';')[0]}: {time_text(whole)} in all, of "
        f"{time_text(derivation['before_us'])} (estimated)"
    )


def _numbers(steps: Sequence[int]) -> str:
    """``1-3, 7``: rising numbers, those in a row by their ends."""
    runs: list[list[int]] = []
    for n in steps:
        if runs and n == runs[-1][-1] + 1:
            runs[-1][1:] = [n]
        else:
            runs.append([n])
    return ", ".join("-".join(map(str, run)) for run in runs)


def _memory(work: ResourceUsageReport, side: str) -> int | None:
    weights, activations = getattr(work, f"weight_bytes_{side}"), getattr(work, f"peak_activation_bytes_{side}")
    return None if weights is None or activations is None else weights + activations


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def changed_operators(report: Report) -> list[tuple[str, ...]]:
    """Operator, and how many before and after, of those whose number changed."""
    before, after = report.operators["before"], report.operators["after"]
    names = dict.fromkeys((*before, *after))
    return [
        (printable(n), str(before.get(n, 0)), str(after.get(n, 0)))
        for n in names
        if before.get(n, 0) != after.get(n, 0)
    ]

"""The report as one page: no scripts, no requests, readable in light and dark, every name escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from superopt.ir.errors import printable
from superopt.report.headline import ReportHeadline, headline, price_basis
from superopt.report.memory_timeline_plot import STYLE as TIMELINE_STYLE
from superopt.report.memory_timeline_plot import summary_text, timelines
from superopt.report.optimization_report import Report
from superopt.report.quantities import bytes_text, count_text, counted, time_text, unbroken
from superopt.report.roofline_plot import STYLE as PLOT_STYLE
from superopt.report.roofline_plot import roofline

__all__ = ["render", "render_memory"]

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --a: #7a8793; --b: #2f8f6b; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .3rem .6rem; }
th, td { border-bottom: 1px solid var(--line); overflow-wrap: anywhere; } .n { text-align: right; white-space: nowrap; }
.bar { display: flex; align-items: center; gap: .6rem; margin: .3rem 0; } .bar span { width: 5rem; }
.bar i { height: 1.1rem; border-radius: 3px; min-width: 2px; } .a { background: var(--a); } .b { background: var(--b); }
.claim { font-size: 1.9rem; font-weight: 650; margin: 0; } dt { font-weight: 600; margin-top: .5rem; } dd { margin: 0; }
"""


def render(name: str, report: Report) -> str:
    """A complete HTML document for the report of optimising the model ``name``."""
    return _document(
        name,
        (
            _summary(headline(report.json())), _bars(report), _work(report), _memory(report), _roofline(report),
            _operators(report), _rules(report),
            _precision(report), _circumstances(report),
        ),
    )  # fmt: skip


def render_memory(name: str, facts: Mapping[str, Any], after: Mapping[str, Any] | None = None) -> str:
    """A complete HTML document: what the activations of the model ``name`` take, beside those of what was made of it.

    Args:
        name: the model's, as given.
        facts: :func:`superopt.pipeline.memory_timeline.footprint_data`.
        after: the same of the other model, where there is one.
    """
    sides = {"before": facts} if after is None else {"before": facts, "after": after}
    words = [f"<p>{escape((f'{side}: ' if after else '') + summary_text(f))}</p>" for side, f in sides.items()]
    return _document(f"memory of {name}", (*words, timelines(sides)))


def _document(name: str, parts: Sequence[str]) -> str:
    title = f"superopt: {escape(printable(name))}"
    return "\n".join(
        (
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<style>{_STYLE}{PLOT_STYLE}{TIMELINE_STYLE}</style><h1>{title}</h1>", *parts, "</html>\n",
        )
    )  # fmt: skip


def _summary(head: ReportHeadline) -> str:
    """How much faster, whether it is safe, what changed: what a reader asks first."""
    answers = (("Is it safe?", head.safety), ("What changed?", head.changes),
               ("What is this?", "A report of superopt, which rewrites neural networks into equivalent ones that run "
                "faster."))  # fmt: skip
    rows = "".join(f"<dt>{escape(question)}</dt><dd>{escape(unbroken(text))}</dd>" for question, text in answers)
    claim, basis = (escape(unbroken(text)) for text in (head.claim, head.basis))
    return f'<p class="claim">{claim}</p><p>{basis}</p><dl>{rows}</dl>'


def _bars(report: Report) -> str:
    pairs = [("estimated by the cost model", report.cost.before_us, report.cost.after_us)]
    if report.measured is not None:
        pairs.append(("measured", report.measured.before_ms * 1e3, report.measured.after_paired_ms * 1e3))
    parts = []
    for what, before, after in pairs:
        parts.append(f"<h2>Time, {what}</h2>")
        for label, kind, value in (("before", "a", before), ("after", "b", after)):
            width = 70 * value / max(before, after, 1e-9)
            bar = f'<i class="{kind}" style="width:{width:.1f}%"></i>'
            parts.append(f'<div class="bar"><span>{label}</span>{bar}{escape(unbroken(time_text(value)))}</div>')
    parts.append(f"<p>The estimate is made {escape(price_basis(report.cost.measured_share))}.</p>")
    return "\n".join(parts)


def _table(headers: tuple[str, ...], rows: Sequence[tuple[str, ...]], numeric: tuple[int, ...]) -> str:
    def cells(tag: str, row: tuple[str, ...]) -> str:
        marks = ((' class="n"' if i in numeric else "", cell) for i, cell in enumerate(row))
        return "".join(f"<{tag}{mark}>{escape(unbroken(cell))}</{tag}>" for mark, cell in marks)

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{cells('th', headers)}</tr></thead><tbody>{body}</tbody></table>"


def _work(report: Report) -> str:
    w = report.work
    intensity = [("–" if v is None else f"{v:.1f}") for v in (w.intensity_before, w.intensity_after)]
    rows = [
        ("nodes", str(report.nodes.before), str(report.nodes.after)),
        ("FLOPs", count_text(w.flops_before), count_text(w.flops_after)),
        ("memory traffic", bytes_text(w.bytes_before), bytes_text(w.bytes_after)),
        ("arithmetic intensity, FLOPs per byte", *intensity),
        ("weights at inference", bytes_text(w.weight_bytes_before), bytes_text(w.weight_bytes_after)),
        (
            "largest live activations",
            bytes_text(w.peak_activation_bytes_before),
            bytes_text(w.peak_activation_bytes_after),
        ),
    ]
    return "<h2>Work</h2>" + _table(("", "before", "after"), rows, (1, 2))


def _memory(report: Report) -> str:
    """The timelines, and the graphs that trade time for memory."""
    drawn = timelines(report.memory or {})
    if report.pareto:
        rows = [
            (t.how or "as found", bytes_text(t.bytes), f"{t.modelled:.3f}",
             "–" if t.measured is None else f"{t.measured:.3f}" + (f" ± {t.doubt:.3f}" if t.doubt else ""))
            for t in report.pareto
        ]  # fmt: skip
        headers = ("by", "weights and activations", "× time, estimated", "× time, measured")
        drawn += "<h3>Less memory for more time</h3>" + _table(headers, rows, (1, 2, 3))
    return f"<h2>Memory over the steps of a run</h2>{drawn}" if drawn else ""


def _roofline(report: Report) -> str:
    data = report.roofline or {}
    if report.status == "unchanged":
        data = {k: v for k, v in data.items() if k != "after"}
    plot, note = roofline(data)
    if not plot:
        return ""
    keys = "Large: the whole graph; small: its operators, larger where they take longer."
    return f"<h2>Roofline</h2>{plot}<p>{escape(note)} {keys}</p>"


def _operators(report: Report) -> str:
    before, after = report.operators["before"], report.operators["after"]
    names = dict.fromkeys((*before, *after))
    rows = [(printable(n), str(before.get(n, 0)), str(after.get(n, 0))) for n in names]
    return "<h2>Operators</h2>" + _table(("operator", "before", "after"), rows, (1, 2))


def _rules(report: Report) -> str:
    rows = [
        (a.rule, str(a.count), a.verdict, "–" if a.gain_us is None else time_text(a.gain_us))
        for a in report.rules_applied
    ]
    if not rows:
        return "<h2>Rules</h2><p>No rule was applied.</p>"
    names = _table(("rule", "times", "verdict", "gain"), rows, (1, 3))
    note = "" if report.derivation is None else (
        "<p>A rule's gain is that of the steps below whose nodes it made; all gains add up to the whole. A rule "
        "without a gain prepared a node for another rule.</p>"
    )  # fmt: skip
    return f"<h2>Rules applied</h2>{names}{note}{_derivation(report)}"


def _derivation(report: Report) -> str:
    found = report.derivation
    if found is None:
        return ""
    rows = [
        (str(s["step"]), ", ".join(s["rules"]) or "–", counted(s["removed"]), counted(s["added"]),
         time_text(s["gain_us"]), time_text(s["us"]))
        for s in found["steps"]
    ]  # fmt: skip
    whole = found["before_us"] - found["after_us"]
    note = (
        f"{len(rows)} steps {found['order']}: together {time_text(whole)}, from {time_text(found['before_us'])} to "
        f"{time_text(found['after_us'])}, estimated. superopt explain MODEL --result RESULT --step N -o FILE writes "
        "the model after step N, which superopt verify compares with either."
    )
    headers = ("step", "rules", "removed", "added", "gain", "time after")
    return f"<h2>Step by step</h2>{_table(headers, rows, (0, 4, 5))}<p>{escape(note)}</p>"


def _precision(report: Report) -> str:
    """The budget of errors of mixed precision, and what stays in float32."""
    found = report.precision
    if found is None:
        return ""
    said = (
        f"{found.nodes_half} of {found.nodes} nodes and {bytes_text(found.weight_bytes_half)} of "
        f"{bytes_text(found.weight_bytes)} of weights are of {found.type}. On {found.inputs} inputs errors were up to "
        f"{found.error:.1e} of an output’s largest element; the budget is {found.budget:g}."
    )
    rows = [(k.what, k.reason, str(k.count), printable(f"{k.text}: {', '.join(k.where)}", 200)) for k in found.kept]
    table = _table(("in float32", "reason", "count", "first"), rows, (2,))
    return f"<h2>Precision</h2><p>{escape(unbroken(said))}</p>{table}"


def _circumstances(report: Report) -> str:
    s = report.search
    lines = [
        f"Search: {s.seconds:.1f} s, {s.distinct_regions} distinct regions, {s.e_nodes} e-graph nodes, stopped: "
        f"{s.stopped}. Target: {report.target}.",
        *(f"Not rewritten: {o.count} {printable(o.op)} ({printable(o.reason)})" for o in report.opaque),
        *report.notes,
    ]
    if report.measured is not None:
        lines.append("; ".join(f"{k}: {v}" for k, v in report.measured.circumstances.items()))
    return "<h2>Details</h2>" + "".join(f"<p>{escape(unbroken(line))}</p>" for line in lines)

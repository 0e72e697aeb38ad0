"""A corpus run on the terminal and as Markdown (which GitHub shows as a job's summary)."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from superopt.ir.errors import printable
from superopt.report.corpus.model import Comparison, Finding, Row
from superopt.report.terminal import table, time_text

__all__ = ["headline", "markdown", "show"]

_MARK = {"error": "✗", "warning": "!", "note": "·"}


def headline(found: Comparison) -> str:
    """The run in one line."""
    rows = found.run.rows
    improved = sum(r.status == "improved" for r in rows)
    text = f"{len(rows)} models, {improved} improved, modelled cost x{found.ratio:.3f} (geometric mean)"
    counts = {
        kind: sum(f.kind == kind for f in found.findings) for kind in ("wrong", "failed", "regression", "missing")
    }
    parts = [f"{n} {kind}" for kind, n in counts.items() if n]
    if any(f.kind == "total" for f in found.findings):
        parts.append("all together too slow")
    verdict = ", ".join(parts) or ("nothing wrong" if found.baseline is None else "no regression")
    return f"{text}: {verdict}"


def show(console: Console, found: Comparison) -> None:
    """The table of models, then what is to be told."""
    rows = [_cells(row, found) for row in found.run.rows]
    against = ("baseline", "change") if found.baseline is not None else ()
    headers = ("model", "before", "after", "x", *against, "measured", "check", "rules", "time")
    console.print(table(*headers, rows=rows, numeric=tuple(range(1, 5 + len(against)))))
    for finding in found.findings:
        style = {"error": "red", "warning": "yellow", "note": ""}[finding.level]
        line = escape(f"{_MARK[finding.level]} {_said(finding)}")
        console.print(f"[{style}]{line}[/{style}]" if style else line)
    for note in found.notes:
        console.print(f"note: {escape(note)}")
    console.print(f"[bold]{escape(headline(found))}[/bold]  on {escape(found.run.target)}, {escape(found.run.device)}")


def _said(finding: Finding) -> str:
    head = f"{printable(finding.model)} {finding.message}" if finding.model else finding.message
    if finding.culprit is None:
        return head
    return f"{head}; {finding.culprit}: {finding.culprit.evidence}"


def _cells(row: Row, found: Comparison) -> tuple[str, ...]:
    name = printable(_short(row.model), 50)
    against = ("", "") if found.baseline is not None else ()
    if row.status == "failed":
        return (name, "–", "–", "–", *against, "", "failed", "", f"{row.seconds:.0f} s")
    known = found.known(row.model)
    if known is not None and known.after_us > 0:
        against = (time_text(known.after_us), f"{row.after_us / known.after_us - 1:+.1%}")
    ratio = f"{row.after_us / row.before_us:.3f}" if row.before_us else "–"
    measured = "" if row.measured is None else f"{row.measured[0]:.3f} ±{row.measured[1]:.3f}"
    check = "wrong" if row.wrong else row.check if row.status == "improved" else "unchanged"
    return (
        name, time_text(row.before_us), time_text(row.after_us), ratio, *against, measured, check, str(len(row.rules)),
        f"{row.seconds:.0f} s",
    )  # fmt: skip


def _short(model: str) -> str:
    return str(Path(model).with_suffix(""))


def markdown(found: Comparison) -> str:
    """The run as GitHub-flavoured Markdown: verdict, findings with culprits, every model in a folded table."""
    icon = {0: "✅", 5: "❌", 6: "❌"}[found.exit_code]
    run = found.run
    lines = [f"## {icon} superopt corpus", "", _text(headline(found)), ""]
    told = [f for f in found.findings if f.level != "note"]
    if told:
        lines += ["| | model | what | culprit |", "|---|---|---|---|"]
        for f in told:
            culprit = "" if f.culprit is None else f"**{_text(str(f.culprit))}**: {_text(f.culprit.evidence)}"
            lines.append(f"| {_MARK[f.level]} {f.kind} | {_code(f.model)} | {_text(f.message)} | {culprit} |")
        lines.append("")
    lines += [f"- {_text(note)}" for note in found.notes]
    lines += ["", f"<details><summary>All {len(run.rows)} models</summary>", ""]
    against = " baseline | change |" if found.baseline is not None else ""
    lines.append(f"| model | before | after | x |{against} measured | check | rules |")
    lines.append("|---|--:|--:|--:|" + ("--:|--:|" if against else "") + "--:|---|--:|")
    for row in run.rows:
        cells = _cells(row, found)[:-1]
        lines.append("| " + " | ".join((_code(cells[0]), *map(_text, cells[1:]))) + " |")
    lines += ["", "</details>", ""]
    where = f"Costs modelled on {_text(run.target)} ({_text(run.device)}), superopt {_text(run.version)}"
    against = ""
    if found.baseline is not None:
        against = f"; baseline of {found.baseline.date[:10]} {_text(found.baseline.revision)}"
    lines.append(f"{where} {_text(run.revision)}{against}.")
    return "\n".join(lines) + "\n"


def _text(text: str) -> str:
    """Text that Markdown shows as it is, in a table cell too."""
    safe = printable(text, 400).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for mark in "\\`*_[]|~":
        safe = safe.replace(mark, f"\\{mark}")
    return safe


def _code(text: str) -> str:
    return f"`{printable(text, 120).replace('`', 'ˋ').replace('|', '¦')}`" if text else ""

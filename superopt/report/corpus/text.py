"""A corpus run on the terminal and as Markdown (which GitHub shows as a job's summary)."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from superopt.ir.errors import printable
from superopt.report.corpus.model import Comparison, Finding, Row
from superopt.report.quantities import time_text
from superopt.report.terminal import table

__all__ = ["headline", "markdown", "show"]

_MARK = {"error": "✗", "warning": "!", "note": "·"}


def headline(found: Comparison) -> str:
    """The run in one line."""
    rows = found.run.rows
    improved = sum(r.status == "improved" for r in rows)
    count = "1 model" if len(rows) == 1 else f"{len(rows)} models"
    text = f"{count}, {improved} improved, estimated cost x{found.ratio:.3f} (geometric mean)"
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
    folder = _folder(found)
    rows = [_cells(row, found, folder) for row in found.run.rows]
    headers = _headers(found)
    console.print(table(*headers, rows=rows, numeric=tuple(range(1, len(headers) - 2))))
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


def _folder(found: Comparison) -> str:
    """The folder that all models are in, which is not said with each."""
    parts = [Path(r.model).parent.parts for r in found.run.rows]
    shared = [level[0] for level in zip(*parts, strict=False) if len(set(level)) == 1]
    depth = next((i for i, level in enumerate(zip(*parts, strict=False)) if len(set(level)) > 1), len(shared))
    return "/".join(shared[:depth]) + "/" if depth else ""


def _headers(found: Comparison) -> tuple[str, ...]:
    against = ("baseline", "change") if found.baseline is not None else ()
    measured = ("measured",) if _measured(found) else ()
    return ("model", "before", "after", "x", *against, *measured, "check", "rules")


def _measured(found: Comparison) -> bool:
    return any(r.measured is not None for r in found.run.rows)


def _cells(row: Row, found: Comparison, folder: str = "") -> tuple[str, ...]:
    """A row of the table, without the folder that all models are in."""
    name = printable(_short(row.model.removeprefix(folder)), 50)
    against = ("", "") if found.baseline is not None else ()
    measured: tuple[str, ...] = ("" if row.measured is None else f"{row.measured[0]:.3f} ±{row.measured[1]:.3f}",)
    measured = measured if _measured(found) else ()
    if row.status == "failed":
        return (name, "–", "–", "–", *against, *measured, "failed", "")
    known = found.known(row.model)
    if known is not None and known.after_us > 0:
        against = (time_text(known.after_us), _change(row.after_us / known.after_us))
    ratio = f"{row.after_us / row.before_us:.3f}" if row.before_us else "–"
    check = "wrong" if row.wrong else row.check if row.status == "improved" else "unchanged"
    return (
        name, time_text(row.before_us), time_text(row.after_us), ratio, *against, *measured, check, str(len(row.rules))
    )  # fmt: skip


def _change(ratio: float) -> str:
    return "=" if abs(ratio - 1) < 5e-4 else f"{ratio - 1:+.1%}"


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
    lines += ["", "<details><summary>Models</summary>", ""]
    headers = _headers(found)
    lines.append(f"| {' | '.join(headers)} |")
    lines.append("|---|" + "--:|" * (len(headers) - 3) + "---|--:|")
    for row in run.rows:
        cells = _cells(row, found)
        lines.append(f"| {' | '.join((_code(cells[0]), *map(_text, cells[1:])))} |")
    lines += ["", "</details>", ""]
    where = f"Costs estimated for {_text(run.target)} ({_text(run.device)}), superopt {_text(run.version)}"
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

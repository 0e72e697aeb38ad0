"""A report as text, and as notebooks show it: the terminal's table, as HTML, and its times as bars."""

from __future__ import annotations

import io
from html import escape

from rich.console import Console

from superopt.ir.errors import printable
from superopt.report.optimization_report import Report
from superopt.report.quantities import time_text
from superopt.report.terminal import changed_operators, facts, show_report

__all__ = ["html", "svg", "text"]

_COLUMNS = 110  # characters of a line of text
_WIDE, _BAR, _LEFT, _RIGHT = 480, 18, 60, 90  # pixels of the drawing, of a bar, and beside the bars


def text(report: Report, name: str = "") -> str:
    """What the command line shows, without colours."""
    buffer = io.StringIO()
    show_report(Console(file=buffer, width=_COLUMNS, soft_wrap=True, highlight=False, color_system=None), name, report)
    return buffer.getvalue().rstrip("\n")


def html(report: Report, name: str = "") -> str:
    """The summary, the table, and the operators whose number changed; without style, so that it looks as its page."""
    title = f"<b>{escape(printable(name))}</b> " if name else ""
    tables = _table(("", "before", "after", ""), facts(report, estimates=False))
    if changed := changed_operators(report):
        tables += _table(("operator", "before", "after"), changed)
    return f"<div><p>{title}{escape(report.summary)}</p>{tables}</div>"


def svg(report: Report) -> str:
    """The input's time and the result's as bars: measured where they were measured, estimated otherwise."""
    m = report.measured
    times = (report.cost.before_us, report.cost.after_us) if m is None else (1e3 * m.before_ms, 1e3 * m.after_paired_ms)
    room, most = _WIDE - _LEFT - _RIGHT, max(*times, 1e-9)
    parts = [_words(0, 14, report.summary)]
    for row, (label, us, colour) in enumerate(zip(("before", "after"), times, ("#7a8793", "#2f8f6b"), strict=True)):
        y = 28 + row * (_BAR + 8)
        wide = room * us / most
        parts += [
            _words(0, y + 14, label), _words(_LEFT + wide + 6, y + 14, time_text(us)),
            f'<rect x="{_LEFT}" y="{y}" width="{wide:.1f}" height="{_BAR}" rx="3" fill="{colour}"/>',
        ]  # fmt: skip
    high = 28 + 2 * (_BAR + 8)
    label = escape(report.summary, quote=True)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDE} {high}" width="{_WIDE}" height="{high}"'
    return f'{head} role="img" aria-label="{label}" font-family="sans-serif" font-size="13">{"".join(parts)}</svg>'


def _words(x: float, y: float, words: str) -> str:
    return f'<text x="{x:.1f}" y="{y}" fill="currentColor">{escape(words)}</text>'


def _table(headers: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{escape(h)}</th>" for h in headers)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

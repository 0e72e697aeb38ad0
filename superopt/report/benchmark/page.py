"""The benchmark as one page: plots drawn as SVG, no scripts, no requests, every name escaped."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Any

from superopt.ir.errors import printable
from superopt.report.benchmark.summary import LOSS, Summary, cell, ordered, summaries

__all__ = ["page"]

_COLOURS = ("#2f8f6b", "#7a8793", "#c9773b", "#4d7ac7", "#a05bb5", "#b8a12e", "#c4505d")
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --text: #222; }
@media (prefers-color-scheme: dark) { :root { --text: #ddd; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; } svg { width: 100%; height: auto; }
svg text { fill: var(--text); font: 12px system-ui, sans-serif; } svg line { stroke: var(--line); }
table { border-collapse: collapse; width: 100%; font-size: .85rem; } th, td { text-align: left; padding: .2rem .5rem; }
th, td { border-bottom: 1px solid var(--line); } .n { text-align: right; white-space: nowrap; }
.bad { font-weight: 700; }
"""
_LEFT, _RIGHT, _ROW = 170, 20, 18


def page(data: Mapping[str, Any]) -> str:
    """A complete HTML document."""
    found = [s for s in summaries(data) if not s.missing]
    machine = data["machine"]
    where = f"{machine.get('device', '')}, {machine.get('runtime', '')}, one thread, {data['date']}"
    return "\n".join(
        (
            '<!doctype html><html lang="en"><meta charset="utf-8"><title>superopt: benchmark</title>',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<style>{_STYLE}</style><h1>Time after ÷ time before</h1>",
            f"<p>{escape(where)}. Left of 1 is faster. Before: ONNX Runtime with all its own optimisations.</p>",
            _legend(found), "<h2>Geometric mean</h2>", _means(found), "<h2>By model</h2>", _dots(data, found),
            "<h2>Seconds that the optimiser took</h2>", _seconds(data, found), "<h2>Figures</h2>", _table(data, found),
            *(f"<p>{escape(s.tool)}: not compared: {escape(s.missing)}</p>" for s in summaries(data) if s.missing),
            "</html>\n",
        )
    )  # fmt: skip


def _colour(found: list[Summary], tool: str) -> str:
    return _COLOURS[[s.tool for s in found].index(tool) % len(_COLOURS)]


def _legend(found: list[Summary]) -> str:
    parts = (f'<span style="color:{_colour(found, s.tool)}">●</span> {escape(f"{s.tool} {s.version}")}' for s in found)
    return f"<p>{' &nbsp; '.join(parts)}</p>"


def _means(found: list[Summary]) -> str:
    means = [s.mean for s in found]
    axis = _Axis(min([0.5, *means]), max([1.1, *means]), 900)
    parts = []
    for i, s in enumerate(found):
        y = 8 + i * 26
        if not s.timed:
            parts.append(f'<text x="{_LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(s.tool)}: none</text>')
            continue
        start, end = sorted((axis.x(1.0), axis.x(s.mean)))
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(s.tool)}</text>')
        parts.append(
            f'<rect x="{start:.1f}" y="{y}" width="{max(end - start, 1):.1f}" height="18" rx="2" '
            f'fill="{_colour(found, s.tool)}"/>'
        )
        text = f"{s.mean:.3f} over {s.timed}"
        parts.append(f'<text x="{axis.x(1.0) + 6:.1f}" y="{y + 13}">{escape(text)}</text>')
    return _svg(axis.marks(8 + 26 * len(found)) + "".join(parts), 30 + 26 * len(found))


class _Axis:
    """A logarithmic axis from the least to the greatest value, with room at both ends."""

    def __init__(self, least: float, greatest: float, width: float) -> None:
        self.low, self.high = math.log(least) - 0.08, math.log(greatest) + 0.08
        self.width = width

    def x(self, value: float) -> float:
        share = (math.log(value) - self.low) / (self.high - self.low)
        return _LEFT + min(max(share, 0.0), 1.0) * (self.width - _LEFT - _RIGHT)

    def marks(
        self, height: float, values: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.5, 3)
    ) -> str:
        """Vertical lines with their values below."""
        parts = []
        for value in values:
            if self.low <= math.log(value) <= self.high:
                x = self.x(value)
                dash = "" if value == 1.0 else ' stroke-dasharray="2 4"'
                parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}"{dash}/>')
                parts.append(f'<text x="{x:.1f}" y="{height + 14}" text-anchor="middle">{value:g}</text>')
        return "".join(parts)


def _svg(body: str, height: float) -> str:
    return f'<svg viewBox="0 0 900 {height:.0f}" role="img">{body}</svg>'


def _dots(data: Mapping[str, Any], found: list[Summary]) -> str:
    rows = [r for r in ordered(data["rows"]) if "before_ms" in r]
    ratios = [t["ratio"] for r in rows for t in r["tools"].values() if "ratio" in t]
    axis = _Axis(min([0.9, *ratios]), max([1.1, *ratios]), 900)
    parts = []
    for i, row in enumerate(rows):
        y = 12 + i * _ROW
        parts.append(
            f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{escape(printable(row["model"], 24))}</text>'
        )
        for s in reversed(found):  # superopt last, on top
            tool = row["tools"].get(s.tool, {})
            if "ratio" in tool:
                title = f"{row['model']}: {s.tool} {tool['ratio']:.3f} ± {tool['spread']:.3f}"
                parts.append(
                    f'<circle cx="{axis.x(tool["ratio"]):.1f}" cy="{y}" r="{6 if s.tool == "superopt" else 4}" '
                    f'fill="{_colour(found, s.tool)}" fill-opacity=".85"><title>{escape(title)}</title></circle>'
                )
    height = 12 + _ROW * len(rows)
    return _svg(axis.marks(height) + "".join(parts), height + 20)


def _seconds(data: Mapping[str, Any], found: list[Summary]) -> str:
    rows = [r for r in data["rows"] if "before_ms" in r]
    timed = [s for s in found if s.seconds]
    values = [t["seconds"] for r in rows for t in r["tools"].values() if t.get("seconds")]
    axis = _Axis(min([0.05, *values]), max([60.0, *values]), 900)
    parts = []
    for i, s in enumerate(timed):
        y = 14 + i * 24
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{escape(s.tool)}</text>')
        for row in rows:
            taken = row["tools"].get(s.tool, {}).get("seconds")
            if taken:
                title = escape(f"{row['model']}: {taken:.2f} s")
                parts.append(
                    f'<circle cx="{axis.x(taken):.1f}" cy="{y}" r="4" fill="{_colour(found, s.tool)}" '
                    f'fill-opacity=".5"><title>{title}</title></circle>'
                )
    height = 14 + 24 * len(timed)
    return _svg(axis.marks(height, (0.01, 0.1, 1.0, 10.0, 100.0)) + "".join(parts), height + 20)


def _table(data: Mapping[str, Any], found: list[Summary]) -> str:
    head = "".join(f'<th class="n">{escape(h)}</th>' for h in ("before", *(s.tool for s in found)))
    body = []
    for row in ordered(data["rows"]):
        if "before_ms" not in row:
            body.append(
                f"<tr><td>{escape(row['model'])}</td><td>{escape(printable(row.get('error', ''), 200))}</td></tr>"
            )
            continue
        cells = [f'<td class="n">{row["before_ms"]:.2f} ms</td>']
        for s in found:
            tool = row["tools"].get(s.tool, {})
            bad = "ratio" not in tool or tool["ratio"] > LOSS
            title = escape(printable(tool.get("reason", ""), 200), quote=True)
            mark = " bad" if bad else ""
            cells.append(f'<td class="n{mark}" title="{title}">{escape(cell(row, s.tool))}</td>')
        body.append(f"<tr><td>{escape(row['model'])}</td>{''.join(cells)}</tr>")
    return f"<table><thead><tr><th>model</th>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"

"""Cost by operator as rows of bars, and a model's history as a spark line: without script, without style."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from superopt.report.quantities import time_text

__all__ = ["cost_bars", "spark", "staircase"]

_BARS = 12


def cost_bars(roofline: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of before and after by operator, the costliest first, the small ones together.

    Args:
        roofline: that of a report; empty for one that has none. Without ``after`` nothing was changed.
    """
    operators = {"before": roofline.get("before") or []}
    operators["after"] = roofline.get("after") or operators["before"]
    rows: dict[str, dict[str, Any]] = {}
    for side in ("before", "after"):
        for entry in operators[side]:
            row = rows.setdefault(entry["op"], {"op": entry["op"], "before": 0.0, "after": 0.0, "n": {}})
            row[side] += entry["us"]
            row["n"][side] = entry["count"]
    ordered = sorted(rows.values(), key=lambda r: -max(r["before"], r["after"]))
    shown, rest = ordered[:_BARS], ordered[_BARS:]
    for row in shown:
        row["count"] = f"{row['n'].get('before', 0)} → {row['n'].get('after', 0)}"
    if rest:
        sums = {side: sum(r[side] for r in rest) for side in ("before", "after")}
        shown.append({"op": f"{len(rest)} more", "count": "", **sums})
    return [{**r, "most": max(r["before"], r["after"], 1e-9)} for r in shown]


def staircase(us: Sequence[float]) -> str:
    """What a model costs before the first step and after each: a staircase, a step a rectangle that can be marked."""
    if len(us) < 2 or max(us) <= 0:
        return ""
    wide, high, most = 640.0, 110.0, max(us)
    run = wide / len(us)
    parts = []
    for number, value in enumerate(us):
        tall = max(1.0, (high - 10) * value / most)
        title = f"after step {number}: {time_text(value)}" if number else f"the input: {time_text(value)}"
        side = "after" if number else "before"
        parts.append(
            f'<rect data-step="{number}" class="fill-{side}" x="{number * run + 1:.1f}" '
            f'y="{high - tall:.1f}" width="{max(run - 2, 1):.1f}" height="{tall:.1f}"><title>{title}</title></rect>'
        )
    label = f"modelled time from {time_text(us[0])} to {time_text(us[-1])} in {len(us) - 1} steps"
    head = f'<svg class="stairs" viewBox="0 0 {wide:.0f} {high:.0f}" role="img" aria-label="{escape(label)}">'
    return head + "".join(parts) + "</svg>"


def spark(values: Sequence[float], label: str) -> str:
    """A small line through the values of some runs, oldest first."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    places = [f"{2 + i * 76 / (len(values) - 1):.1f} {16 - 14 * (v - low) / span:.1f}" for i, v in enumerate(values)]
    line = f'<polyline points="{" ".join(places)}" fill="none" stroke="currentColor" stroke-width="1.5"/>'
    return f'<svg width="80" height="18" viewBox="0 0 80 18" role="img" aria-label="{escape(label)}">{line}</svg>'

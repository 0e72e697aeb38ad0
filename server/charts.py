"""Cost by operator as rows of bars, and a model's history as a spark line: without script, without style."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

__all__ = ["cost_bars", "spark"]

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


def spark(values: Sequence[float], label: str) -> str:
    """A small line through the values of some runs, oldest first."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    places = [f"{2 + i * 76 / (len(values) - 1):.1f} {16 - 14 * (v - low) / span:.1f}" for i, v in enumerate(values)]
    line = f'<polyline points="{" ".join(places)}" fill="none" stroke="currentColor" stroke-width="1.5"/>'
    return f'<svg width="80" height="18" viewBox="0 0 80 18" role="img" aria-label="{escape(label)}">{line}</svg>'

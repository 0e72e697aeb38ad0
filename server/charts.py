"""Plots as SVG without script or style: the roofline of a job's report, and a model's history as a spark line."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from superopt.report.terminal import count_text

__all__ = ["cost_bars", "roofline", "spark"]

_WIDE, _HIGH = 560.0, 330.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 18.0, 16.0, 46.0
_BARS = 12


def cost_bars(operators: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of before and after by operator, the costliest first, the small ones together; empty where not known."""
    if not isinstance(operators.get("before"), list):
        return []
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


def roofline(report: Mapping[str, Any]) -> tuple[str, str]:
    """The plot of a report and a sentence about it; empty text where the report has no work or time.

    Across: FLOPs per byte moved. Up: FLOPs a second. The roofs are the device's, where the report says them.
    """
    points = [p for p in (_point(report, "before"), _point(report, "after")) if p is not None]
    if not points:
        return "", ""
    roofs = _roofs(report)
    small = _operator_points(report)
    xs = [p[1] for p in points] + [s[1] for s in small]
    ys = [p[2] for p in points] + [s[2] for s in small]
    if roofs:
        xs, ys = [*xs, roofs[0] / roofs[1]], [*ys, roofs[0]]
    frame = _Frame(xs, ys)
    parts = [frame.grid()]
    if roofs:
        parts.append(frame.roofs(*roofs))
    parts += [frame.dot(side, name, x, y, minor=True) for side, x, y, name in small]
    if len(points) == 2:
        parts.append(frame.step(points[0][1:], points[1][1:]))
    parts += [frame.dot(side, side, x, y) for side, x, y in points]
    told = "; ".join(f"{s} {count_text(y, 'FLOP/s')} at {x:.3g} FLOP per byte" for s, x, y in points)
    how = "measured time" if report.get("measured") else "modelled time"
    note = f"{told[0].upper()}{told[1:]} ({how}). " + (
        f"Roofs of {roofs[2]}." if roofs else "This target's roofs are not recorded, so none are drawn."
    )
    head = f'<svg class="plot" viewBox="0 0 {_WIDE:.0f} {_HIGH:.0f}" role="img" aria-label="{escape(note)}">'
    return head + "".join(parts) + "</svg>", note


def _point(report: Mapping[str, Any], side: str) -> tuple[str, float, float] | None:
    work, measured = report["work"], report.get("measured")
    flops, moved = work.get(f"flops_{side}"), work.get(f"bytes_{side}")
    us = measured[f"{side}_ms"] * 1e3 if measured else report["cost"].get(f"{side}_us")
    if not (flops and moved and us):
        return None
    return side, flops / moved, flops / us * 1e6


def _roofs(report: Mapping[str, Any]) -> tuple[float, float, str] | None:
    """Peak FLOPs a second, bytes a second and whose, if the report has them."""
    found = report.get("roofline") or {}
    peak, band = found.get("flops_per_second"), found.get("bytes_per_second")
    if not (isinstance(peak, int | float) and isinstance(band, int | float) and peak > 0 and band > 0):
        return None
    return float(peak), float(band), str(found.get("device", report.get("target", "the target")))


def _operator_points(report: Mapping[str, Any]) -> list[tuple[str, float, float, str]]:
    """(side, FLOPs per byte, FLOPs a second, operator) for each operator that the report gives work and time of."""
    found = []
    for side in ("before", "after"):
        for row in (report.get("roofline") or {}).get(side) or []:
            flops, moved, us = (row.get(k) or 0 for k in ("flops", "bytes", "us"))
            if flops > 0 and moved > 0 and us > 0:
                found.append((side, flops / moved, flops / us * 1e6, str(row.get("op", ""))))
    return found


class _Frame:
    """Logarithmic axes around some points."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        self.x0, self.x1 = _decades(xs)
        self.y0, self.y1 = _decades(ys)

    def x(self, value: float) -> float:
        return _LEFT + (math.log10(value) - self.x0) / (self.x1 - self.x0) * (_WIDE - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return _HIGH - _BOTTOM - (math.log10(value) - self.y0) / (self.y1 - self.y0) * (_HIGH - _TOP - _BOTTOM)

    def grid(self) -> str:
        parts = []
        for e in range(self.x0, self.x1 + 1):
            x = self.x(10.0**e)
            parts.append(f'<path class="grid" d="M{x:.1f} {_TOP} V{_HIGH - _BOTTOM}"/>')
            parts.append(_text(x, _HIGH - _BOTTOM + 17, "middle", f"{10.0**e:g}"))
        for e in range(self.y0, self.y1 + 1):
            y = self.y(10.0**e)
            parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f} H{_WIDE - _RIGHT}"/>')
            parts.append(_text(_LEFT - 8, y + 4, "end", count_text(10.0**e).replace(".00", "")))
        parts.append(_text((_LEFT + _WIDE - _RIGHT) / 2, _HIGH - 8, "middle", "FLOP per byte moved"))
        parts.append(_text(_LEFT + 6, _TOP + 12, "start", "FLOP per second"))
        return "".join(parts)

    def roofs(self, peak: float, band: float, _: str) -> str:
        """The slope of the memory's bandwidth up to the ridge, then the level of the peak."""
        left, right, low = 10.0**self.x0, 10.0**self.x1, 10.0**self.y0
        ridge = min(max(peak / band, left), right)
        start = max(left, low / band)
        return (f'<path class="roof" d="M{self.x(start):.1f} {self.y(start * band):.1f} '
                f'L{self.x(ridge):.1f} {self.y(min(peak, ridge * band)):.1f} H{self.x(right):.1f}"/>')  # fmt: skip

    def step(self, a: tuple[float, float], b: tuple[float, float]) -> str:
        return (f'<path class="step" d="M{self.x(a[0]):.1f} {self.y(a[1]):.1f} '
                f'L{self.x(b[0]):.1f} {self.y(b[1]):.1f}"/>')  # fmt: skip

    def dot(self, side: str, name: str, x: float, y: float, *, minor: bool = False) -> str:
        a, b = self.x(x), self.y(y)
        if minor:
            return (f'<circle class="minor fill-{side}" cx="{a:.1f}" cy="{b:.1f}" r="4">'
                    f"<title>{escape(name)}, {side}</title></circle>")  # fmt: skip
        label = _text(a, b + (22 if side == "before" else -13), "middle", name)
        return f'<g class="point"><circle class="fill-{side}" cx="{a:.1f}" cy="{b:.1f}" r="7"/>{label}</g>'


def _text(x: float, y: float, anchor: str, words: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low, high = math.floor(math.log10(min(values)) - 0.15), math.ceil(math.log10(max(values)) + 0.15)
    return low, max(high, low + 1)


def spark(values: Sequence[float], label: str) -> str:
    """A small line through the values of some runs, oldest first."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    places = [f"{2 + i * 76 / (len(values) - 1):.1f} {16 - 14 * (v - low) / span:.1f}" for i, v in enumerate(values)]
    line = f'<polyline points="{" ".join(places)}" fill="none" stroke="currentColor" stroke-width="1.5"/>'
    return f'<svg width="80" height="18" viewBox="0 0 80 18" role="img" aria-label="{escape(label)}">{line}</svg>'

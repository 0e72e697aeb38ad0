"""Cost by operator as rows of bars, and a model's history as a spark line: without script, without style."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from superopt.ir.errors import printable
from superopt.report.quantities import bytes_text, time_text, unbroken

__all__ = ["cost_bars", "spark", "staircase", "timeline"]

_BARS = 12
_COLOURED = 6  # operators of a timeline that have a colour of their own
_WIDE, _LANE, _MEMORY = 960.0, 22.0, 40.0  # of a timeline: its width, the heights of its two parts
_LEAST = 0.8  # widths of less than this are drawn together


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


def timeline(comparison: Mapping[str, Any]) -> str:
    """What happens at inference on both sides of a comparison, one under the other on one scale: time and memory.

    Args:
        comparison: JSON data; empty text where it has no timeline.
    """
    sides = comparison.get("timeline") or {}
    if not sides or not any(sides.values()):
        return ""
    nodes = comparison["nodes"]
    spent: dict[str, float] = {}
    for line in sides.values():
        for number, us, _ in line:
            op = str(nodes[number]["op"])
            spent[op] = spent.get(op, 0.0) + us
    colour = {op: n for n, op in enumerate(sorted(spent, key=lambda o: -spent[o])[:_COLOURED])}
    longest = max(sum(us for _, us, _ in line) for line in sides.values()) or 1.0
    most = max((alive for line in sides.values() for *_, alive in line), default=0) or 1
    parts = []
    for side in ("before", "after"):
        line = sides.get(side) or []
        whole, peak = sum(us for _, us, _ in line), max((alive for *_, alive in line), default=0)
        told = unbroken(f"{side}: {time_text(whole)}, at most {bytes_text(peak)} of activations")
        strip = "".join(_lane(line, nodes, colour, _WIDE / longest)) + _alive(line, _WIDE / longest, _MEMORY / most)
        parts.append(
            f'<p class="fine">{told}</p><svg class="timeline" viewBox="0 0 {_WIDE:.0f} {_LANE + _MEMORY + 4:.0f}" '
            f'preserveAspectRatio="none" role="img" aria-label="{escape(told)}">{strip}</svg>'
        )
    keys = "".join(_key(str(n), printable(op, 40)) for op, n in colour.items()) + _key("x", "others")
    return f'{"".join(parts)}<p class="legend">{keys}</p>'


def _key(colour: str, words: str) -> str:
    square = f'<rect class="op-{colour}" width="10" height="10"/>'
    drawn = f'<svg viewBox="0 0 10 10" width="12" height="12" aria-hidden="true">{square}</svg>'
    return f"<span>{drawn} {escape(words)}</span>"


def _lane(
    line: Sequence[Sequence[Any]], nodes: Sequence[Mapping[str, Any]], colour: Mapping[str, int], scale: float
) -> list[str]:
    """A strip of rectangles; runs of short ones are one."""
    parts, at, begun, thin = [], 0.0, 0.0, 0

    def put(kind: object, x: float, us: float, title: str) -> None:
        parts.append(f'<rect class="op-{kind}" x="{x * scale:.1f}" width="{max(us * scale - 0.4, 0.4):.1f}" '
                     f'height="{_LANE:.0f}"><title>{escape(title)}</title></rect>')  # fmt: skip

    for number, us, _ in (*line, (-1, 0.0, 0)):
        short = number >= 0 and us * scale < _LEAST
        if short:
            begun = begun if thin else at
            thin += 1
        elif thin:
            put("x", begun, at - begun, f"{thin} short ones: {time_text(at - begun)}")
            thin = 0
        if number >= 0 and not short:
            node = nodes[number]
            title = f"{node['op']} {node['name']}: {time_text(us)}, begun at {time_text(at)}"
            put(colour.get(str(node["op"]), "x"), at, us, title)
        at += us
    return parts


def _alive(line: Sequence[Sequence[Any]], scale: float, high: float) -> str:
    """The activations that are alive, as an area; of what falls on one place, the most."""
    at, places = 0.0, dict[int, float]()
    for _, us, alive in line:
        first, last = int(at * scale), int((at + us) * scale)
        for x in range(first, last + 1):
            places[x] = max(places.get(x, 0.0), alive * high)
        at += us
    base = _LANE + _MEMORY + 2
    steps = " ".join(f"{x} {base - y:.1f}" for x, y in places.items())
    return f'<path class="alive" d="M0 {base:.0f} L{steps} {at * scale:.0f} {base:.0f} Z"/>' if steps else ""

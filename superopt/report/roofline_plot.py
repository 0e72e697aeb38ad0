"""A roofline plot as SVG: FLOPs a second over FLOPs per byte, before and after, under the device's measured ceilings.

No script, no style of its own: the page's style sheet gives colours to the classes ``grid``, ``roof``, ``near``,
``step``, ``fill-before`` and ``fill-after``, light and dark (:data:`STYLE` is one).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from superopt.ir.errors import printable
from superopt.report.quantities import count_text, time_text

__all__ = ["STYLE", "roofline"]

STYLE = """
.plot { width: 100%; height: auto; font: 12px system-ui, sans-serif; fill: currentColor; }
.plot .grid { stroke: var(--line); fill: none; } .plot .roof { stroke: currentColor; stroke-width: 2; fill: none; }
.plot .near { stroke-width: 1; stroke-dasharray: 6 4; opacity: .7; }
.plot .step { stroke: var(--b); stroke-width: 1.5; stroke-dasharray: 4 3; fill: none; }
.plot .fill-before { fill: var(--a); } .plot .fill-after { fill: var(--b); } .plot .minor { opacity: .55; }
.plot .point circle { stroke: Canvas; stroke-width: 2; } .plot .quiet { opacity: .75; }
.plot text { paint-order: stroke; stroke: Canvas; stroke-width: 3px; stroke-linejoin: round; }
"""

_WIDE, _HIGH = 640.0, 380.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 20.0, 18.0, 46.0
_NAMED = 4  # operators that get a label; the others are named when pointed at
_CHARACTER, _LINE = 9.5, 17.0  # of a label, at the font size of narrow screens
_LEAST_AREA, _MOST_AREA = 12.0, 260.0
_WHOLE_RADIUS = 7.0


@dataclass(frozen=True)
class _Spot:
    """A place in the plot: FLOPs per byte, FLOPs a second, and the microseconds it stands for."""

    side: str
    name: str
    intensity: float
    speed: float
    us: float


def roofline(data: Mapping[str, Any]) -> tuple[str, str]:
    """The plot of a ``roofline`` (:func:`superopt.cost.roofline_data`) and a sentence about it.

    Large dots are whole graphs, small ones their operators, by area as much time as they take. Both texts are empty
    where nothing has time and FLOPs.
    """
    small = [s for side in ("before", "after") for s in _operators(data.get(side), side)]
    whole = [s for side in ("before", "after") if (s := _whole(data.get(side), side)) is not None]
    if not whole:
        return "", ""
    roofs = _roofs(data)
    ridge = [(roofs.flops / roofs.memory, roofs.flops)] if roofs else []
    places = [(s.intensity, s.speed) for s in (*whole, *small)] + ridge
    frame = _Frame([x for x, _ in places], [y for _, y in places])
    parts = [frame.grid()]
    if roofs:
        parts.append(frame.roofs(roofs))
    longest = max((s.us for s in small), default=1.0)
    labelled = {s.name for s in sorted((s for s in small if s.side == whole[0].side), key=lambda s: -s.us)[:_NAMED]}
    for spot in whole:
        frame.keep_free(spot, _WHOLE_RADIUS)
    for spot in small:
        frame.keep_free(spot, _radius(spot, longest))
    higher = max(whole, key=lambda s: (s.speed, s.side == "after"))
    names = {s.side: frame.graph_name(s, above=s is higher, alone=len(whole) == 1) for s in whole}
    if roofs:
        parts.append(frame.peak(roofs.flops))
    seen: set[str] = set()
    for spot in sorted(small, key=lambda s: -s.us):
        parts.append(frame.operator(spot, longest, label=spot.name in labelled and spot.name not in seen))
        seen.add(spot.name)
    if len(whole) == 2:
        parts.append(frame.step(*whole))
    parts += [frame.graph(spot, names[spot.side]) for spot in whole]
    note = _note(whole, roofs)
    head = f'<svg class="plot" viewBox="0 0 {_WIDE:.0f} {_HIGH:.0f}" role="img" aria-label="{escape(note)}">'
    return head + "".join(parts) + "</svg>", note


def _note(whole: Sequence[_Spot], roofs: _Roofs | None) -> str:
    told = "; ".join(
        f"{s.side} {count_text(s.speed, 'FLOP/s')} at {s.intensity:.3g} FLOP per byte, {time_text(s.us)}" for s in whole
    )
    above = "This target's ceilings were not measured, so none are drawn."
    if roofs:
        cached = f", {count_text(roofs.cache, 'B/s')} from the last cache (dashed)" if roofs.cache else ""
        above = (
            f"Ceilings measured on {roofs.device}: {count_text(roofs.flops, 'FLOP/s')}, "
            f"{count_text(roofs.memory, 'B/s')} from memory{cached}."
        )
    return f"{told[0].upper()}{told[1:]} (estimated time). {above}"


def _whole(rows: Any, side: str) -> _Spot | None:
    sums = [sum(float(row.get(k) or 0) for row in rows or ()) for k in ("flops", "bytes", "us")]
    flops, moved, us = sums
    return _Spot(side, side, flops / moved, flops / us * 1e6, us) if flops and moved and us else None


def _operators(rows: Any, side: str) -> list[_Spot]:
    found = []
    for row in rows or ():
        flops, moved, us = (float(row.get(k) or 0) for k in ("flops", "bytes", "us"))
        if flops > 0 and moved > 0 and us > 0:
            found.append(_Spot(side, printable(str(row.get("op", "")), 40), flops / moved, flops / us * 1e6, us))
    return found


@dataclass(frozen=True)
class _Roofs:
    """Ceilings: FLOPs a second, bytes a second from memory and (0 where not known) from the last cache, and whose."""

    flops: float
    memory: float
    cache: float
    device: str


def _roofs(data: Mapping[str, Any]) -> _Roofs | None:
    """The ceilings, if they were measured."""
    found = [data.get(k) for k in ("flops_per_second", "bytes_per_second", "cache_bytes_per_second")]
    flops, memory, cache = (float(v) if isinstance(v, int | float) and v > 0 else 0.0 for v in found)
    device = printable(str(data.get("device") or "the target"), 60)
    return _Roofs(flops, memory, cache if cache > memory else 0.0, device) if flops and memory else None


class _Frame:
    """Logarithmic axes around some points."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        self.x0, self.x1 = _decades(xs)
        self.y0, self.y1 = _decades(ys)
        self._taken = [_label_box(*_TITLE)]

    def keep_free(self, spot: _Spot, radius: float) -> None:
        """No label covers the dot of a place."""
        x, y = self.x(spot.intensity), self.y(spot.speed)
        self._taken.append((x - radius, y - radius, x + radius, y + radius))

    def free_label(self, labels: Sequence[_Label]) -> _Label | None:
        """The first of these labels that lies in the frame and covers nothing; then its room is taken."""
        for label in labels:
            box = _label_box(*label)
            inside = box[0] >= _LEFT and box[2] <= _WIDE and box[1] >= 0 and box[3] <= _HIGH - _BOTTOM
            if inside and not any(_overlap(box, other) for other in self._taken):
                self._taken.append(box)
                return label
        return None

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
        parts.append(_text(*_TITLE))
        return "".join(parts)

    def roofs(self, roofs: _Roofs) -> str:
        """The slopes of the bandwidths up to their ridges, then the level of the peak."""
        lines = [self._roof("roof", roofs.flops, roofs.memory)]
        if roofs.cache:
            lines.insert(0, self._roof("roof near", roofs.flops, roofs.cache))
        return "".join(lines)

    def peak(self, flops: float) -> str:
        """The words at the level of the peak, above it or below it; none where neither has room (the note says it)."""
        words, x, y = count_text(flops, "FLOP/s"), _WIDE - _RIGHT - 4, self.y(flops)
        label = self.free_label([(x, y - 6, "end", words), (x, y + _LINE, "end", words)])
        return _text(*label) if label else ""

    def _roof(self, kind: str, flops: float, band: float) -> str:
        left, right, low = 10.0**self.x0, 10.0**self.x1, 10.0**self.y0
        ridge = min(max(flops / band, left), right)
        start = max(left, low / band)
        return (f'<path class="{kind}" d="M{self.x(start):.1f} {self.y(start * band):.1f} '
                f'L{self.x(ridge):.1f} {self.y(min(flops, ridge * band)):.1f} H{self.x(right):.1f}"/>')  # fmt: skip

    def step(self, a: _Spot, b: _Spot) -> str:
        return (f'<path class="step" d="M{self.x(a.intensity):.1f} {self.y(a.speed):.1f} '
                f'L{self.x(b.intensity):.1f} {self.y(b.speed):.1f}"/>')  # fmt: skip

    def operator(self, spot: _Spot, longest: float, *, label: bool) -> str:
        x, y = self.x(spot.intensity), self.y(spot.speed)
        radius = _radius(spot, longest)
        title = f"{spot.name}, {spot.side}: {time_text(spot.us)}, {count_text(spot.speed, 'FLOP/s')}"
        dot = (f'<circle class="minor fill-{spot.side}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}">'
               f"<title>{escape(title)}</title></circle>")  # fmt: skip
        far, name = radius + 4, spot.name
        places = [(x + far, y + 4, "start", name), (x - far, y + 4, "end", name), (x, y - far, "middle", name),
                  (x, y + far + _LINE, "middle", name)]  # fmt: skip
        words = self.free_label(places) if label else None
        return dot + (_text(*words, quiet=True) if words else "")

    def graph_name(self, spot: _Spot, *, above: bool, alone: bool) -> _Label:
        """Above the higher of two dots and below the other, so that neither covers a name; nothing else covers them."""
        x, y = self.x(spot.intensity), self.y(spot.speed)
        label = (x, y - 14 if above else y + 24, "middle", "whole graph" if alone else spot.name)
        self._taken.append(_label_box(*label))
        return label

    def graph(self, spot: _Spot, name: _Label) -> str:
        x, y = self.x(spot.intensity), self.y(spot.speed)
        dot = f'<circle class="fill-{spot.side}" cx="{x:.1f}" cy="{y:.1f}" r="{_WHOLE_RADIUS:g}"/>'
        return f'<g class="point">{dot}{_text(*name)}</g>'


def _radius(spot: _Spot, longest: float) -> float:
    return math.sqrt(max(_LEAST_AREA, _MOST_AREA * spot.us / longest) / math.pi)


_Box = tuple[float, float, float, float]  # left, top, right, bottom
_Label = tuple[float, float, str, str]  # x, y, anchor, words
_TITLE: _Label = (_LEFT + 6, _TOP + 13, "start", "FLOP per second")


def _label_box(x: float, y: float, anchor: str, words: str) -> _Box:
    width = _CHARACTER * len(words)
    left = x - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
    return left, y - _LINE, left + width, y


def _overlap(a: _Box, b: _Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _text(x: float, y: float, anchor: str, words: str, *, quiet: bool = False) -> str:
    mark = ' class="quiet"' if quiet else ""
    return f'<text{mark} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low, high = math.floor(math.log10(min(values)) - 0.15), math.ceil(math.log10(max(values)) + 0.15)
    return low, max(high, low + 1)

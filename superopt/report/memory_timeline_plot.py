"""Memory over the steps of a run as SVG, before beside after on one scale: what is alive, what the runtime takes, and
the tensors that hold the peak.

No script, no style of its own: the page's style sheet gives colours to the classes ``grid``, ``roof``, ``near``,
``fill-before``, ``fill-after``, ``taken``, ``quiet`` and ``footprints`` (:data:`STYLE` is one, beside
:data:`superopt.report.roofline_plot.STYLE`). What is drawn stands in tables, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from superopt.ir.errors import printable
from superopt.report.quantities import bytes_text

__all__ = ["STYLE", "summary_text", "timelines", "tops"]

STYLE = """
.footprints { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 1.5rem; }
.footprints h3 { font-size: 1rem; margin: .5rem 0; } .footprints section { min-width: 0; max-width: 36rem; }
.plot .taken { opacity: .45; } .plot .held { opacity: .8; }
.footprints table { font-size: .85rem; } .footprints details { margin: .6rem 0; }
"""

_WIDE, _HIGH = 480.0, 250.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 70.0, 12.0, 26.0, 36.0
_BAR = 13.0  # height of a tensor's bar below the plot
_BARS, _ROWS = 8, 24  # tensors at the peak that are shown, rows of the table
_COLUMNS = 400  # steps that are told apart in the plot
_TICKS = 3  # at least


def timelines(sides: Mapping[str, Mapping[str, Any]]) -> str:
    """Plots and tables, side by side; empty where there is nothing to show.

    Args:
        sides: what activations take (:func:`superopt.pipeline.memory_timeline.footprint_data`) by "before" and "after";
            a model alone is "before".
    """
    shown = {side: facts for side in ("before", "after") if (facts := sides.get(side)) and facts["steps"]}
    if not shown:
        return ""
    most = max(max(s["taken_bytes"] for s in facts["steps"]) for facts in shown.values())
    most = max(most, *(facts["bound_bytes"] for facts in shown.values()), 1)
    parts = [_side(side, facts, most, alone=len(sides) == 1) for side, facts in shown.items()]
    keys = (
        "Solid: live tensors. Faded: memory that the runtime holds beyond them. Dashed: a lower bound for any order of "
        "these nodes. Bars below: the tensors at the peak, largest first."
    )
    return f'<div class="footprints">{"".join(parts)}</div><p class="fine">{keys}</p>'


def tops(steps: Sequence[Mapping[str, Any]], most: int) -> list[dict[str, Any]]:
    """At most so many rows for the steps of a run: of each part the step that takes most, and the most alive in it."""
    each = -(-len(steps) // most) or 1
    parts = [steps[first : first + each] for first in range(0, len(steps), each)]
    return [
        {**max(p, key=lambda s: s["taken_bytes"]), "alive_bytes": max(s["alive_bytes"] for s in p)} for p in parts
    ]  # fmt: skip


def summary_text(facts: Mapping[str, Any]) -> str:
    """What activations take, in sum, in words."""
    size = {k: bytes_text(v) for k, v in facts.items() if k.endswith("_bytes")}
    return (
        f"Activations take {size['peak_bytes']} in {facts['runtime']}: inputs {size['inputs_bytes']}, outputs "
        f"{size['outputs_bytes']}, one block of {size['block_bytes']}. Alive at once in this order "
        f"{size['alive_bytes']}; in any order of these nodes at least {size['bound_bytes']}. Weights take "
        f"{size['weight_bytes']} besides."
    )


def _side(side: str, facts: Mapping[str, Any], most: int, *, alone: bool) -> str:
    """One model's plot and tables."""
    steps, buffers = facts["steps"], facts["peak_buffers"][:_BARS]
    title = ("Memory" if alone else f"Memory {side}") + f": {bytes_text(facts['peak_bytes'])} of activations"
    top = steps[facts["peak_step"]] if facts["peak_step"] < len(steps) else steps[-1]
    described = (
        f"{len(steps)} steps; most is taken at step {facts['peak_step']}, {top['op']} {printable(top['node'], 60)}. "
        + summary_text(facts)
    )
    high = _HIGH + (_BAR * len(buffers) + 18 if buffers else 0)
    frame = _Frame(len(steps), most)
    drawn = "".join((
        f'<title id="memory-{side}">{escape(title)}</title><desc id="memory-{side}-told">{escape(described)}</desc>',
        frame.grid(), frame.area(steps, "taken_bytes", f"fill-{side} taken"),
        frame.area(steps, "alive_bytes", f"fill-{side}"), frame.bound(facts["bound_bytes"]),
        frame.peak(facts["peak_step"], top["taken_bytes"], high), frame.buffer_bars(buffers, side),
    ))  # fmt: skip
    return (
        f"<section><h3>{escape(title)}</h3>"
        f'<svg class="plot" viewBox="0 0 {_WIDE:.0f} {high:.0f}" role="img" aria-labelledby="memory-{side}" '
        f'aria-describedby="memory-{side}-told">{drawn}</svg>{_holders(facts, buffers)}{_rows(steps)}</section>'
    )


def _holders(facts: Mapping[str, Any], buffers: Sequence[Mapping[str, Any]]) -> str:
    """Who holds the block at the peak."""
    held = sum(b["bytes"] for b in facts["peak_buffers"]) or 1
    body = "".join(
        f'<tr><td class="n">{bytes_text(b["bytes"])}</td><td class="n">{b["bytes"] / held:.0%}</td>'
        f'<td class="n">{b["from"]}–{b["to"]}</td><td>{escape(_names(b))}</td></tr>'
        for b in buffers
    )  # fmt: skip
    rest = facts["peak_buffers"][_BARS:]
    if rest:
        body += (f'<tr><td class="n">{bytes_text(sum(b["bytes"] for b in rest))}</td><td></td><td></td>'
                 f"<td>{len(rest)} more</td></tr>")  # fmt: skip
    head = '<tr><th class="n">bytes</th><th class="n">share</th><th class="n">steps</th><th>values</th></tr>'
    return (
        f"<table><caption>Held at step {facts['peak_step']}</caption><thead>{head}</thead><tbody>{body}</tbody></table>"
    )


def _names(buffer: Mapping[str, Any]) -> str:
    values = buffer["values"]
    return ", ".join(printable(v, 40) for v in values[:3]) + (f", {len(values) - 3} more" if len(values) > 3 else "")


def _rows(steps: Sequence[Mapping[str, Any]]) -> str:
    """The plot as a table."""
    body = "".join(
        f'<tr><td class="n">{s["step"]}</td><td class="n">{bytes_text(s["alive_bytes"])}</td>'
        f'<td class="n">{bytes_text(s["taken_bytes"])}</td><td>{escape(printable(s["op"], 40))}</td></tr>'
        for s in tops(steps, _ROWS)
    )  # fmt: skip
    head = '<tr><th class="n">step</th><th class="n">alive</th><th class="n">taken</th><th>operator</th></tr>'
    return (
        f"<details><summary>The plot as a table</summary><table><thead>{head}</thead><tbody>{body}</tbody></table>"
        "</details>"
    )


class _Frame:
    """Axes: steps to the right, bytes up."""

    def __init__(self, steps: int, most: int) -> None:
        self.steps, self.most = steps, most

    def x(self, step: float) -> float:
        return _LEFT + (_WIDE - _LEFT - _RIGHT) * min(step, self.steps) / self.steps

    def y(self, size: float) -> float:
        return _HIGH - _BOTTOM - (_HIGH - _TOP - _BOTTOM) * size / self.most

    def grid(self) -> str:
        each = 2.0 ** math.floor(math.log2(max(self.most / _TICKS, 1.0)))
        parts = []
        for i in range(int(self.most / each) + 1):
            y = self.y(i * each)
            parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f} H{_WIDE - _RIGHT}"/>')
            parts.append(_text(_LEFT - 8, y + 4, "end", bytes_text(int(i * each)) if i else "0"))
        base = _HIGH - _BOTTOM + 17
        parts += [_text(_LEFT, base, "start", "0"), _text(_WIDE - _RIGHT, base, "end", f"{self.steps}")]
        return "".join([*parts, _text((_LEFT + _WIDE - _RIGHT) / 2, base, "middle", "step")])

    def area(self, steps: Sequence[Mapping[str, Any]], what: str, kind: str) -> str:
        """A staircase; of steps that fall on one place, the most."""
        each = -(-len(steps) // _COLUMNS)
        runs = [(i, max(s[what] for s in steps[i : i + each])) for i in range(0, len(steps), each)]
        stairs = " ".join(f"V{self.y(size):.1f} H{self.x(first + each):.1f}" for first, size in runs)
        return f'<path class="{kind}" d="M{_LEFT} {self.y(0):.1f} {stairs} V{self.y(0):.1f} Z"/>'

    def bound(self, size: int) -> str:
        y = self.y(size)
        words = f"in any order at least {bytes_text(size)}"
        return f'<path class="roof near" d="M{_LEFT} {y:.1f} H{_WIDE - _RIGHT}"><title>{words}</title></path>'

    def peak(self, step: int, size: int, high: float) -> str:
        """A line at the step at which most is taken, down to who holds it."""
        x = self.x(step + 0.5)
        anchor = "start" if x < _WIDE / 3 else "end" if x > 2 * _WIDE / 3 else "middle"
        line = f'<path class="roof near" d="M{x:.1f} {self.y(size):.1f} V{high - 4:.1f}"/>'
        return line + _text(x, self.y(size) - 8, anchor, f"{bytes_text(size)} at step {step}")

    def buffer_bars(self, buffers: Sequence[Mapping[str, Any]], side: str) -> str:
        """A bar for each buffer at the peak, as long as it is held."""
        parts = []
        for row, buffer in enumerate(buffers):
            x, y = self.x(buffer["from"]), _HIGH + 8 + row * _BAR
            wide = max(self.x(buffer["to"] + 1) - x, 2.0)
            words = f"{_names(buffer)}: {bytes_text(buffer['bytes'])}, steps {buffer['from']} to {buffer['to']}"
            parts.append(
                f'<rect class="fill-{side} held" x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{_BAR - 3}">'
                f"<title>{escape(words)}</title></rect>{_text(_LEFT - 8, y + 9, 'end', bytes_text(buffer['bytes']))}"
            )
        return "".join(parts)


def _text(x: float, y: float, anchor: str, words: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'

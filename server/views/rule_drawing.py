"""One side of a rule as an SVG: inputs at the top, shared parts once, the result at the bottom. No script, no style."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from html import escape

from superopt.ir.terms import OperatorTerm, OutputTerm, Term, VariableTerm, postorder
from superopt.rules.rule import scalar_value

__all__ = ["draw"]

_CHAR, _SMALL, _HIGH, _LINE, _GAP, _BETWEEN = 7.6, 5.2, 32, 12, 18, 28
_WRAP = 38  # characters of a line of attributes: all of them are shown, for they may be what a rule is about


def draw(roots: Sequence[Term], title: str) -> str:
    """The expression graph of some terms, which may share parts.

    Args:
        roots: one per output.
        title: what a screen reader says.
    """
    terms = [t for t in postorder(*roots) if not isinstance(t, OutputTerm)]
    level = _levels(terms)
    rows: list[list[Term]] = [[] for _ in range(max(level.values()) + 1)]
    for term in terms:
        rows[level[term]].append(term)
    place, width, height = _places(rows)
    parts = [_edges(term, place) for term in terms]
    parts += [_box(term, *place[term]) for term in terms]
    for number, root in enumerate(roots):
        x, y = place[_below(root)]
        bottom = y + _high(_below(root)) / 2
        label = f"output {number + 1}" if len(roots) > 1 else "output"
        shift = _port(root) * 12
        parts.append(f'<path class="edge" d="M{x + shift:.0f} {bottom:.0f} v14"/>'
                     f'<text class="out" x="{x + shift:.0f}" y="{bottom + 26:.0f}">{label}</text>')  # fmt: skip
    return (
        f'<svg class="graph" role="img" viewBox="0 0 {width:.0f} {height + 22:.0f}" width="{width:.0f}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )


def _below(term: Term) -> Term:
    while isinstance(term, OutputTerm):
        term = term.term
    return term


def _port(term: Term) -> int:
    return term.index if isinstance(term, OutputTerm) else 0


def _arguments(term: Term) -> list[Term]:
    return [a for a in term.args if a is not None] if isinstance(term, OperatorTerm) else []


def _levels(terms: Sequence[Term]) -> dict[Term, int]:
    level: dict[Term, int] = {}
    for term in terms:
        level[term] = max((level[_below(a)] + 1 for a in _arguments(term)), default=0)
    return level


def _label(term: Term) -> tuple[str, list[str]]:
    """The text in a box, and the lines of its attributes."""
    if isinstance(term, VariableTerm):
        return term.name, []
    assert isinstance(term, OperatorTerm)
    if (value := scalar_value(term)) is not None:
        return (f"{value:g}" if isinstance(value, float) else str(value)), []
    return term.op, textwrap.wrap(", ".join(f"{k}={_text(v)}" for k, v in term.attributes), _WRAP)


def _text(value: object) -> str:
    return f"[{', '.join(map(_text, value))}]" if isinstance(value, tuple) else str(value)


def _wide(term: Term) -> float:
    label, more = _label(term)
    return max(30.0, len(label) * _CHAR + 16, max(map(len, more), default=0) * _SMALL + 12)


def _high(term: Term) -> float:
    return _HIGH + _LINE * max(0, len(_label(term)[1]) - 1)


def _places(rows: Sequence[Sequence[Term]]) -> tuple[dict[Term, tuple[float, float]], float, float]:
    """Centres, each row in the middle; how wide and how high all of it is."""
    spans = [sum(_wide(t) for t in row) + _GAP * (len(row) - 1) for row in rows]
    width = max(spans) + 2 * _GAP
    place: dict[Term, tuple[float, float]] = {}
    top: float = _GAP
    for row, span in zip(rows, spans, strict=True):
        x, high = (width - span) / 2, max(map(_high, row))
        for term in row:
            place[term] = (x + _wide(term) / 2, top + high / 2)
            x += _wide(term) + _GAP
        top += high + _BETWEEN
    return place, width, top


def _edges(term: Term, place: dict[Term, tuple[float, float]]) -> str:
    found = []
    arguments = _arguments(term)
    x, y = place[term]
    for number, argument in enumerate(arguments):
        source_x, source_y = place[_below(argument)]
        start = source_x + _port(argument) * 12
        end = x + (number - (len(arguments) - 1) / 2) * 10
        y0, y1 = source_y + _high(_below(argument)) / 2, y - _high(term) / 2
        middle = (y0 + y1) / 2
        found.append(f'<path class="edge" d="M{start:.0f} {y0:.0f} C{start:.0f} {middle:.0f} {end:.0f} {middle:.0f} '
                     f'{end:.0f} {y1:.0f}"/>')  # fmt: skip
    return "".join(found)


def _box(term: Term, x: float, y: float) -> str:
    label, more = _label(term)
    wide, high = _wide(term), _high(term)
    top = y - high / 2
    kind = "op" if isinstance(term, OperatorTerm) and scalar_value(term) is None else "leaf"
    round_ = 5 if kind == "op" else 13
    text = f'<text x="{x:.0f}" y="{top + (14 if more else 20.5):.0f}">{escape(label)}</text>'
    for number, line in enumerate(more):
        text += f'<text class="more" x="{x:.0f}" y="{top + 27 + _LINE * number:.0f}">{escape(line)}</text>'
    return (
        f'<g class="{kind}"><title>{escape(" ".join((label, *more)))}</title>'
        f'<rect x="{x - wide / 2:.0f}" y="{top:.0f}" width="{wide:.0f}" height="{high:.0f}" rx="{round_}"/>'
        f"{text}</g>"
    )

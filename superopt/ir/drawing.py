"""A graph as SVG, for notebooks and documents: layers from inputs to outputs, one box a node."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import networkx as nx

if TYPE_CHECKING:
    from superopt.ir.graph import Graph

__all__ = ["svg"]

MOST = 400  # boxes that are drawn
ROW, GAP, HIGH, LETTER = 64, 16, 28, 7.2
COLOURS = {"input": "#dbeafe", "weight": "#f3e8d2", "output": "#dcfce7", "node": "#ffffff"}


def svg(graph: Graph) -> str:
    """The drawing. A weight is written into the box of the node that reads it; a graph that is too large says so."""
    if len(graph.nodes) > MOST:
        return _page(320, 40, [_text(160, 24, f"{graph.name}: {len(graph.nodes)} nodes, too many to draw")])
    drawn: nx.DiGraph[str] = nx.DiGraph()
    labels: dict[str, tuple[str, str, str]] = {}
    made = {o: f"n{p}" for p, n in enumerate(graph.nodes) for o in n.outputs if o}
    for value in graph.inputs:
        labels[f"i {value.name}"] = ("input", value.name, str(value.type or ""))
        drawn.add_node(f"i {value.name}")
    fed = {v.name for v in graph.inputs}
    for position, node in enumerate(graph.nodes):
        key = f"n{position}"
        held = ", ".join(n for n in node.inputs if n in graph.weight and n not in fed)
        labels[key] = ("node", node.op, held)
        drawn.add_node(key)
        for name in node.reads:
            if name in made or name in fed:
                drawn.add_edge(made.get(name, f"i {name}"), key)
    for value in graph.outputs:
        labels[f"o {value.name}"] = ("output", value.name, str(value.type or ""))
        drawn.add_node(f"o {value.name}")
        if (source := made.get(value.name, f"i {value.name}")) in drawn:
            drawn.add_edge(source, f"o {value.name}")
    rows = _rows(drawn)
    widths = {k: max(len(a), len(b) * 0.82, 5) * LETTER + 16 for k, (_, a, b) in labels.items()}
    page = max((sum(widths[k] + GAP for k in row) for row in rows), default=100.0) + GAP
    place: dict[str, tuple[float, float]] = {}
    for line, row in enumerate(rows):
        x = (page - sum(widths[k] + GAP for k in row)) / 2 + GAP / 2
        for key in row:
            place[key] = (x + widths[key] / 2, GAP + line * ROW)
            x += widths[key] + GAP
    parts = [_edge(place[a], place[b]) for a, b in drawn.edges]
    parts += [_box(place[k], widths[k], *labels[k]) for k in drawn.nodes]
    return _page(page, GAP * 2 + len(rows) * ROW, parts)


def _rows(drawn: nx.DiGraph[str]) -> list[list[str]]:
    """Layers by the longest way from an input, each ordered by where its sources stand."""
    rows: list[list[str]] = []
    order: dict[str, float] = {}
    for layer in nx.topological_generations(drawn):
        above = {key: [order[p] for p in drawn.predecessors(key)] for key in layer}
        row = sorted(layer, key=lambda key: sum(above[key]) / max(len(above[key]), 1))
        order.update({key: (i + 0.5) / len(row) for i, key in enumerate(row)})
        rows.append(row)
    return rows


def _page(width: float, height: float, parts: list[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" font-family="sans-serif">'
    )
    return "\n".join([head, *parts, "</svg>"])


def _edge(a: tuple[float, float], b: tuple[float, float]) -> str:
    y0, y1 = a[1] + HIGH, b[1]
    bend = (y0 + y1) / 2
    way = f"M{a[0]:.0f} {y0:.0f} C{a[0]:.0f} {bend:.0f} {b[0]:.0f} {bend:.0f} {b[0]:.0f} {y1:.0f}"
    return f'<path d="{way}" fill="none" stroke="#94a3b8"/>'


def _box(at: tuple[float, float], width: float, kind: str, name: str, more: str) -> str:
    x, y = at[0] - width / 2, at[1]
    rest = f' rx="6" fill="{COLOURS[kind]}" stroke="#475569"/>'
    box = f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{HIGH + 6 * bool(more)}"{rest}'
    small = _text(at[0], y + 27, more, 9) if more else ""
    return box + _text(at[0], y + (14 if more else 18), name) + small


def _text(x: float, y: float, text: str, size: int = 12) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" text-anchor="middle">{escape(text)}</text>'

"""Input and result as one *union* graph: what the pages lay out once and show twice, so that what is common stays put.

A node is on both sides when both graphs have it literally: operator, attributes, names of what it reads and makes; or,
where values were renamed, when it computes the same expression. Changed nodes that hang together are a *region*.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from networkx.utils import UnionFind

from superopt.ir.diff import value_digests
from superopt.ir.errors import printable
from superopt.ir.graph import Graph, Node, OpaqueAttribute, attribute_key, rules_of
from superopt.ops.shape_inference import infer

__all__ = ["MOST_NODES", "union"]

MOST_NODES = 20_000  # nodes of either side above which nothing is drawn
BOTH, BEFORE, AFTER = "both", "before", "after"
_LONG = 120  # characters of a name or attribute
_WEIGHTS = 6
_DIGITS = 6  # of a node's microseconds
Line = Sequence[tuple[int, float, int]]
Timelines = tuple[Line, Line]


def union(
    before: Graph, after: Graph, *, sizes: Mapping[str, int] | None = None, timelines: Timelines | None = None
) -> dict[str, Any]:
    """The union graph of an input and its result, as JSON data (``superopt.comparison``).

    Args:
        before: the input.
        after: the result.
        sizes: what symbolic dimensions are taken to be.
        timelines: of both (:func:`superopt.cost.timeline`), where they are known; the data has them by the union's
            nodes: number, microseconds, bytes of activations alive.
    """
    found: dict[str, Any] = {"format": "superopt.comparison", "version": 1}
    most = max(len(before.nodes), len(after.nodes))
    if most > MOST_NODES:
        return found | {"omitted": f"graphs of {most} nodes are not drawn (at most {MOST_NODES})"}
    made = _Union(before, after, sizes or {})
    found |= {"nodes": made.nodes, "edges": made.edges, "regions": made.regions()}
    if timelines is not None:
        found["timeline"] = made.timeline(*timelines)
    return found


def _verbatim(node: Node) -> tuple[str, ...]:
    attributes = (f"{k}={attribute_key(v)}" for k, v in sorted(node.attributes.items()))
    return (node.domain, node.op, node.overload, *node.inputs, "|", *node.outputs, "|", *attributes)


def _pairs(before: Graph, after: Graph) -> dict[int, int]:
    """Positions in ``after`` → positions in ``before`` of the same node."""
    found: dict[int, int] = {}
    taken: set[int] = set()
    digests_before, digests_after = value_digests(before), value_digests(after)

    def expression(node: Node, digests: Mapping[str, str]) -> tuple[str, ...]:
        return ("", next((digests[o] for o in node.outputs if o), ""))

    for keys_before, keys_after in (
        ([_verbatim(n) for n in before.nodes], [_verbatim(n) for n in after.nodes]),
        ([expression(n, digests_before) for n in before.nodes], [expression(n, digests_after) for n in after.nodes]),
    ):
        places: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for position in reversed(range(len(before.nodes))):
            if position not in taken:
                places[keys_before[position]].append(position)
        for position, key in enumerate(keys_after):
            if position not in found and places[key]:
                found[position] = places[key].pop()
                taken.add(found[position])
    return found


class _Union:
    """Nodes of both graphs, numbered once."""

    def __init__(self, before: Graph, after: Graph, sizes: Mapping[str, int]) -> None:
        self.nodes: list[dict[str, Any]] = []
        self._of: dict[str, list[int]] = {}
        pairs = _pairs(before, after)
        twin = {b: a for a, b in pairs.items()}
        sources: dict[str, int] = {}
        for value in before.inputs:
            if value.name not in before.weight:
                sources[value.name] = self._add(
                    {"op": "input", "name": value.name, "side": BOTH, "type": str(value.type)}
                )
        types_before, types_after = (infer(g, dict(sizes)).types for g in (before, after))
        self._of[BEFORE] = [
            self._add(_describe(n, before, types_before, BOTH if i in twin else BEFORE))
            for i, n in enumerate(before.nodes)
        ]
        self._of[AFTER] = []
        for i, node in enumerate(after.nodes):
            if i in pairs:
                number = self._of[BEFORE][pairs[i]]
                name = printable(_name(node), _LONG)
                if name != self.nodes[number]["name"]:
                    self.nodes[number]["renamed"] = name
            else:
                number = self._add(_describe(node, after, types_after, AFTER))
            self._of[AFTER].append(number)
        self.edges = self._edges(before, after, sources)
        self._mark_regions(before, after)

    def _add(self, facts: dict[str, Any]) -> int:
        self.nodes.append(facts | {"name": printable(facts["name"], _LONG)})
        return len(self.nodes) - 1

    def _edges(self, before: Graph, after: Graph, sources: Mapping[str, int]) -> list[list[Any]]:
        """``[from, to, side]``; an edge that both sides have is there once."""
        sides: dict[tuple[int, int], set[str]] = defaultdict(set)
        ends: dict[str, int] = {}
        for side, graph in ((BEFORE, before), (AFTER, after)):
            maker = dict(sources)
            for number, node in zip(self._of[side], graph.nodes, strict=True):
                for name in node.reads:
                    if name in maker:
                        sides[maker[name], number].add(side)
                maker.update((o, number) for o in node.outputs if o)
            for value in graph.outputs:
                if value.name in maker:
                    if value.name not in ends:
                        ends[value.name] = self._add(
                            {"op": "output", "name": value.name, "side": BOTH, "type": str(value.type)}
                        )
                    sides[maker[value.name], ends[value.name]].add(side)
        return [[a, b, BOTH if len(where) == 2 else next(iter(where))] for (a, b), where in sides.items()]

    def _mark_regions(self, before: Graph, after: Graph) -> None:
        """Number the pieces of changed nodes that hang together by a value, or make the same one."""
        sets: UnionFind[int | str] = UnionFind()  # nodes by number, values by name
        changed = {
            side: [(n, node) for n, node in zip(self._of[side], graph.nodes, strict=True)
                   if self.nodes[n]["side"] != BOTH]
            for side, graph in ((BEFORE, before), (AFTER, after))
        }  # fmt: skip
        made = {side: {o for _, node in pieces for o in node.outputs if o} for side, pieces in changed.items()}
        for side, pieces in changed.items():
            inner = made[side] - made[AFTER if side == BEFORE else BEFORE]
            for number, node in pieces:
                for name in (*(o for o in node.outputs if o), *(r for r in node.reads if r in inner)):
                    sets.union(number, name)
        names: dict[int | str, int] = {}
        for number, facts in enumerate(self.nodes):
            if facts["side"] != BOTH:
                facts["region"] = names.setdefault(sets[number], len(names))

    def regions(self) -> list[dict[str, Any]]:
        """Each region's nodes by side, and a key that equal-looking regions share."""
        members: dict[int, list[int]] = defaultdict(list)
        for number, node in enumerate(self.nodes):
            if "region" in node:
                members[node["region"]].append(number)
        inner: dict[int, list[str]] = defaultdict(list)
        for a, b, _ in self.edges:
            if self.nodes[a].get("region", -1) == self.nodes[b].get("region", -2):
                inner[self.nodes[a]["region"]].append(f"{self._look(a)}>{self._look(b)}")
        return [
            {
                "before": [n for n in numbers if self.nodes[n]["side"] == BEFORE],
                "after": [n for n in numbers if self.nodes[n]["side"] == AFTER],
                "rules": sorted({r for n in numbers for r in self.nodes[n].get("rules", ())}),
                "like": _digest(sorted(map(self._look, numbers)) + sorted(inner[region])),
            }
            for region, numbers in sorted(members.items())
        ]  # fmt: skip

    def timeline(self, before: Line, after: Line) -> dict[str, list[list[float]]]:
        """What happens at inference, by side: number of a node, microseconds, bytes of activations alive."""
        return {
            side: [[self._of[side][i], float(f"{us:.{_DIGITS}g}"), alive] for i, us, alive in line]
            for side, line in ((BEFORE, before), (AFTER, after))
        }

    def _look(self, number: int) -> str:
        return f"{self.nodes[number]['op']}/{self.nodes[number]['side']}"


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _name(node: Node) -> str:
    """What a node is called; where it has no name, what it makes first."""
    return node.name or next((o for o in node.outputs if o), "")


def _describe(node: Node, graph: Graph, types: Mapping[str, Any], side: str) -> dict[str, Any]:
    weights = [f"{printable(n, 60)} {graph.constants[n].type}" for n in node.inputs if n in graph.constants]
    first = next((o for o in node.outputs if o), "")
    kind = types.get(first)
    found: dict[str, Any] = {
        "op": printable(f"{node.domain}.{node.op}" if node.domain else node.op, _LONG),
        "name": _name(node), "side": side, "type": str(kind) if kind is not None else "",
        "attributes": {printable(k, 40): _text(v) for k, v in sorted(node.attributes.items())[:16]},
        "weights": weights[:_WEIGHTS],
    }  # fmt: skip
    if len(weights) > _WEIGHTS:
        found["more_weights"] = len(weights) - _WEIGHTS
    if side == AFTER and (rules := rules_of(node.metadata)):
        found["rules"] = rules[:20]
    return found


def _text(value: Any) -> str:
    return "…" if isinstance(value, OpaqueAttribute) else printable(str(value), _LONG)

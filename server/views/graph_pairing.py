"""Any two graphs that were drawn before, side by side: which nodes of one are those of the other.

Both are known as sides of a comparison (:mod:`superopt.server.views.union_graph`): operators, attributes, types, edges.
So two models can be compared that neither share names nor came from one another, and no model has to be opened for it.
Nodes are paired that have the same label and, in this order, alike: all that leads to them and follows from them; all
that leads to them; all that follows; what is within two steps, within one; or nothing else. Pairs that would cross
others are dropped, so that the union of both has no cycle.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from networkx.utils import UnionFind

__all__ = ["ComparedGraph", "drawn", "side_of"]

BOTH, BEFORE, AFTER = "both", "before", "after"
_TYPE = re.compile(r"\w+(?:\[[^\[\]]*\])?$")  # of a weight, which is written NAME TYPE
_HIDDEN = ("region", "side", "renamed", "rules")


@dataclass(frozen=True)
class ComparedGraph:
    """A graph: facts of its nodes, edges as (from, to) by their places, and its timeline by them."""

    nodes: Sequence[Mapping[str, Any]]
    edges: Sequence[tuple[int, int]]
    timeline: Sequence[Sequence[float]]


def side_of(comparison: Mapping[str, Any], side: str) -> ComparedGraph:
    """One side of a comparison as a graph of its own.

    Args:
        comparison: JSON data with ``nodes``.
        side: "before" or "after".
    """
    place: dict[int, int] = {}
    for number, node in enumerate(comparison["nodes"]):
        if node["side"] in (BOTH, side):
            place[number] = len(place)
    edges = [(place[a], place[b]) for a, b, where in comparison["edges"] if where in (BOTH, side)]
    line = [[place[int(n)], *rest] for n, *rest in comparison.get("timeline", {}).get(side, ()) if int(n) in place]
    return ComparedGraph([comparison["nodes"][n] for n in place], edges, line)


def drawn(a: ComparedGraph, b: ComparedGraph) -> dict[str, Any]:
    """Two graphs as one comparison (``superopt.comparison``): JSON data as of an input and its result."""
    pairs = _pairs(a, b)
    nodes: list[dict[str, Any]] = []
    of_a: list[int] = []
    of_b: list[int] = []
    twin = dict(pairs)
    for i, node in enumerate(a.nodes):
        of_a.append(len(nodes))
        nodes.append(_shown(node, BOTH if i in twin else BEFORE))
    back = {j: i for i, j in pairs}
    for j, node in enumerate(b.nodes):
        if j in back:
            known = nodes[of_a[back[j]]]
            of_b.append(of_a[back[j]])
            if node["name"] != known["name"]:
                known["renamed"] = node["name"]
        else:
            of_b.append(len(nodes))
            nodes.append(_shown(node, AFTER))
    where: dict[tuple[int, int], set[str]] = defaultdict(set)
    for side, edges, place in ((BEFORE, a.edges, of_a), (AFTER, b.edges, of_b)):
        for x, y in edges:
            where[place[x], place[y]].add(side)
    both_edges = [[x, y, BOTH if len(sides) == 2 else next(iter(sides))] for (x, y), sides in where.items()]
    found: dict[str, Any] = {
        "format": "superopt.comparison", "version": 1, "nodes": nodes, "edges": both_edges,
        "regions": _regions(nodes, both_edges),
    }  # fmt: skip
    if a.timeline and b.timeline:
        found["timeline"] = {
            side: [[place[int(n)], *rest] for n, *rest in line]
            for side, line, place in ((BEFORE, a.timeline, of_a), (AFTER, b.timeline, of_b))
        }
    return found


def _shown(node: Mapping[str, Any], side: str) -> dict[str, Any]:
    return {k: v for k, v in node.items() if k not in _HIDDEN} | {"side": side}


def _label(node: Mapping[str, Any]) -> str:
    weights = sorted(m[0] if (m := _TYPE.search(w)) else w for w in node.get("weights", ()))
    return _digest((node["op"], node["type"], *sorted(map(str, node.get("attributes", {}).items())), *weights))


def _digest(parts: Iterable[str]) -> str:
    return hashlib.blake2b("\x1f".join(parts).encode(), digest_size=12).hexdigest()


class _Looks:
    """By what nodes of a graph are recognised, from the most to the least telling."""

    def __init__(self, graph: ComparedGraph) -> None:
        count = len(graph.nodes)
        self._into: list[list[int]] = [[] for _ in range(count)]
        self._out: list[list[int]] = [[] for _ in range(count)]
        for x, y in graph.edges:
            self._into[y].append(x)
            self._out[x].append(y)
        label = [_label(n) for n in graph.nodes]
        order = _order(self._into, self._out)
        above = self._along(label, order, self._into, ordered=True)
        below = self._along(label, order[::-1], self._out, ordered=False)
        near = [self._around(label)]
        near.append(self._around(near[0]))
        all_of_it = [f"{a} {b}" for a, b in zip(above, below, strict=True)]
        self.keys: tuple[list[str], ...] = (all_of_it, above, below, near[1], near[0], label)
        self.rank = {node: i for i, node in enumerate(order)}

    @staticmethod
    def _along(label: list[str], order: list[int], next_to: list[list[int]], *, ordered: bool) -> list[str]:
        found = list(label)
        for node in order:
            seen = [found[other] for other in next_to[node]]
            found[node] = _digest((label[node], *(seen if ordered else sorted(seen))))
        return found

    def _around(self, label: list[str]) -> list[str]:
        return [
            _digest((own, "<", *sorted(label[o] for o in self._into[i]), ">", *sorted(label[o] for o in self._out[i])))
            for i, own in enumerate(label)
        ]


def _order(into: list[list[int]], out: list[list[int]]) -> list[int]:
    """Nodes with those they read before them; those that hang in no order last, as they are."""
    missing = [len(set(sources)) for sources in into]
    ready = [i for i, n in enumerate(missing) if n == 0][::-1]
    found: list[int] = []
    while ready:
        node = ready.pop()
        found.append(node)
        for other in dict.fromkeys(out[node]):
            missing[other] -= 1
            if missing[other] == 0:
                ready.append(other)
    placed = set(found)
    return found + [i for i in range(len(into)) if i not in placed]


def _pairs(a: ComparedGraph, b: ComparedGraph) -> list[tuple[int, int]]:
    """Places of nodes that are the same in both."""
    looks_a, looks_b = _Looks(a), _Looks(b)
    found: list[tuple[int, int]] = []
    in_a = sorted(range(len(a.nodes)), key=looks_a.rank.__getitem__)
    in_b = sorted(range(len(b.nodes)), key=looks_b.rank.__getitem__)
    for keys_a, keys_b in zip(looks_a.keys, looks_b.keys, strict=True):
        taken_a, taken_b = {i for i, _ in found}, {j for _, j in found}
        free: dict[str, list[int]] = defaultdict(list)
        for j in reversed(in_b):
            if j not in taken_b:
                free[keys_b[j]].append(j)
        for i in in_a:
            if i not in taken_a and free.get(keys_a[i]):
                found.append((i, free[keys_a[i]].pop()))
        found = _uncrossed(found, looks_a.rank, looks_b.rank)
    return found


def _uncrossed(
    pairs: list[tuple[int, int]], rank_a: Mapping[int, int], rank_b: Mapping[int, int]
) -> list[tuple[int, int]]:
    """As many of the pairs as are in the same order on both sides: the longest increasing subsequence."""
    ordered = sorted(pairs, key=lambda p: rank_a[p[0]])
    ends: list[int] = []  # the least rank at which a run of this length ends
    last: list[int] = []  # and the pair there
    before: list[int] = []
    for at, (_, j) in enumerate(ordered):
        length = bisect_left(ends, rank_b[j])
        before.append(last[length - 1] if length else -1)
        if length == len(ends):
            ends.append(rank_b[j])
            last.append(at)
        else:
            ends[length], last[length] = rank_b[j], at
    found = []
    at = last[-1] if last else -1
    while at >= 0:
        found.append(ordered[at])
        at = before[at]
    return found[::-1]


def _regions(nodes: Sequence[dict[str, Any]], edges: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """Pieces of nodes that one side alone has: joined by an edge, or because both sides' pieces feed the same node."""
    sets: UnionFind[int] = UnionFind()
    feeds: dict[int, list[int]] = defaultdict(list)
    for x, y, _ in edges:
        if nodes[x]["side"] == BOTH:
            continue
        if nodes[y]["side"] == BOTH:
            feeds[y].append(x)
        else:
            sets.union(x, y)
    for makers in feeds.values():
        if {nodes[n]["side"] for n in makers} == {BEFORE, AFTER}:
            sets.union(*makers)
    names: dict[int, int] = {}
    members: dict[int, list[int]] = defaultdict(list)
    for number, node in enumerate(nodes):
        if node["side"] != BOTH:
            node["region"] = names.setdefault(sets[number], len(names))
            members[node["region"]].append(number)
    return [
        {
            "before": [n for n in numbers if nodes[n]["side"] == BEFORE],
            "after": [n for n in numbers if nodes[n]["side"] == AFTER], "rules": [],
            "like": _digest(sorted(f"{nodes[n]['op']}/{nodes[n]['side']}" for n in numbers)),
        }
        for _, numbers in sorted(members.items())
    ]  # fmt: skip

"""Which nodes to fix, so that all others can be eliminated with small tables (w-cutset conditioning, Dechter 2003)."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence

import numpy as np

from superopt.assignment.pairwise import PairwiseModel

__all__ = ["choose_cutset", "elimination_order"]

_TIES = 0.3  # bits by which orders differ between cutsets: sizes within a factor 1.2 count as equal


def choose_cutset(
    model: PairwiseModel, entries: float, generator: np.random.Generator, spread: float, free: Iterable[int]
) -> list[int]:
    """Nodes to fix.

    The node with the smallest table is eliminated first. Where no table is small enough, the nodes with most
    neighbours are fixed.

    Args:
        model: the problem.
        entries: of the largest table.
        generator: of random numbers.
        spread: how much chance weighs against the number of neighbours.
        free: nodes that are fixed last.
    """
    graph = _Elimination(model, np.flatnonzero(model.sizes > 1).tolist(), generator.random(model.nodes) * _TIES)
    weight = np.exp(spread * generator.gumbel(size=model.nodes))
    weight[list(free)] *= 1e-6  # after all others
    weights, limit = weight.tolist(), math.log2(entries)
    fixed: list[int] = np.flatnonzero(model.sizes == 1).tolist()
    while (node := graph.smallest()) is not None:
        if graph.bits(node) <= limit:
            graph.eliminate(node)
            continue
        left = sorted(graph.left, key=lambda i: -len(graph.adjacent[i]) * weights[i])
        batch = left[: max(1, len(left) // 100)]  # one by one would sort as often as there are nodes
        graph.remove(batch)
        fixed += batch
    return fixed


def elimination_order(model: PairwiseModel, nodes: Sequence[int]) -> list[tuple[int, list[int]]]:
    """The nodes in the order of their elimination, each with the neighbours that its table is about."""
    graph = _Elimination(model, nodes, np.zeros(model.nodes))
    order = []
    while (node := graph.smallest()) is not None:
        order.append((node, sorted(graph.adjacent[node])))
        graph.eliminate(node)
    return order


class _Elimination:
    """A graph whose nodes are eliminated: what is left, with the edges that eliminations add."""

    def __init__(self, model: PairwiseModel, nodes: Sequence[int], ties: np.ndarray) -> None:
        self.logs = np.log2(model.sizes).tolist()
        self.ties = ties.tolist()
        self.left = set(nodes)
        self.adjacent = {i: self.left & model.neighbours[i].keys() for i in nodes}
        self.keys = {i: self.bits(i) + self.ties[i] for i in nodes}
        self.heap = [(key, i) for i, key in self.keys.items()]
        heapq.heapify(self.heap)

    def bits(self, node: int) -> float:
        """Logarithm of the entries of the node's table."""
        logs = self.logs
        return float(logs[node] + sum([logs[j] for j in self.adjacent[node]]))

    def smallest(self) -> int | None:
        """The node with the smallest table; ``None`` where none is left."""
        while self.heap:
            key, node = self.heap[0]
            if node in self.left and key == self.keys[node]:
                return node
            heapq.heappop(self.heap)
        return None

    def eliminate(self, node: int) -> None:
        around = self.adjacent.pop(node)
        self.left.discard(node)
        for j in around:
            adjacent = self.adjacent[j]
            adjacent |= around
            adjacent.discard(node)
            adjacent.discard(j)
        self._update(around)

    def remove(self, nodes: Sequence[int]) -> None:
        touched: set[int] = set()
        for node in nodes:
            self.left.discard(node)
            for j in self.adjacent.pop(node):
                if j in self.adjacent:
                    self.adjacent[j].discard(node)
                    touched.add(j)
        self._update(touched & self.left)

    def _update(self, nodes: set[int]) -> None:
        for j in nodes:
            key = self.bits(j) + self.ties[j]
            self.keys[j] = key
            heapq.heappush(self.heap, (key, j))

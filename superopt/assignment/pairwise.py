"""The reduced problem as flat arrays: costs, conditional costs, and costs of changes, without loops over nodes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from superopt.assignment.reduction import Floats, Integers, Reduced

__all__ = ["Pairwise"]


class Pairwise:
    """Nodes and tables in one row each.

    Args:
        reduced: the problem.
        penalty: cost of a forbidden pair, finite, larger than what any choice could gain by it.

    Attributes:
        constant: cost of what is decided.
        sizes, offsets: strategies by node, and where they begin.
        costs: of all strategies.
        pairs: shape (edges, 2), each with the smaller node first.
        tables, table_offsets: costs of edges, row-major.
        neighbours: by node, the edge to each neighbour.
    """

    def __init__(self, reduced: Reduced, penalty: float) -> None:
        self.constant = reduced.constant
        self.sizes: Integers = np.array([len(c) for c in reduced.costs], dtype=np.int64)
        self.nodes = len(self.sizes)
        self.offsets: Integers = np.concatenate([[0], np.cumsum(self.sizes)])
        self.strategies = int(self.offsets[-1])
        self.costs: Floats = np.concatenate([*reduced.costs, np.zeros(0)])
        self.pairs: Integers = np.array(sorted(reduced.tables), dtype=np.int64).reshape(-1, 2)
        tables = [reduced.tables[a, b].ravel() for a, b in self.pairs.tolist()]
        sizes = np.array([t.size for t in tables], dtype=np.int64)
        self.table_offsets: Integers = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        raw: Floats = np.concatenate([*tables, np.zeros(0)])
        self.forbidden: NDArray[np.bool_] = np.isinf(raw)
        self.tables: Floats = np.where(self.forbidden, penalty, raw)
        self.neighbours: list[dict[int, int]] = [{} for _ in range(self.nodes)]
        for e, (a, b) in enumerate(self.pairs.tolist()):
            self.neighbours[a][b] = e
            self.neighbours[b][a] = e
        self.everywhere = Slices(self, np.ones(len(self.pairs), dtype=bool), np.ones(len(self.pairs), dtype=bool))

    def entries(self, choice: Integers) -> Integers:
        """By edge, where the entry that a choice of strategies pays lies in ``tables``."""
        a, b = self.pairs[:, 0], self.pairs[:, 1]
        return np.asarray(self.table_offsets[:-1] + choice[a] * self.sizes[b] + choice[b])

    def cost(self, choice: Integers) -> float:
        """Cost of a choice, without memory."""
        return float(self.constant + self.costs[self.offsets[:-1] + choice].sum() + self.tables[self.entries(choice)].sum())

    def violations(self, choice: Integers) -> int:
        """Edges with a forbidden pair."""
        return int(self.forbidden[self.entries(choice)].sum())

    def conditional(self, choice: Integers) -> Floats:
        """By strategy, its cost if all other nodes keep theirs."""
        return self.costs + self.everywhere.added(choice)


class Slices:
    """Rows and columns of tables that a choice selects, added to the strategies at the other end.

    Args:
        model: the problem.
        first, second: by edge, whether the choice of its first node is added to its second, and the reverse.
    """

    def __init__(self, model: Pairwise, first: NDArray[np.bool_], second: NDArray[np.bool_]) -> None:
        self.model = model
        sizes, pairs = model.sizes, model.pairs
        edges = np.concatenate([np.flatnonzero(first), np.flatnonzero(second)])
        forward = int(first.sum())
        self.source = np.concatenate([pairs[first, 0], pairs[second, 1]])
        target = np.concatenate([pairs[first, 1], pairs[second, 0]])
        ones = np.ones(len(edges), dtype=np.int64)
        self.stride = np.concatenate([sizes[pairs[first, 1]], ones[forward:]])
        step = np.concatenate([ones[:forward], sizes[pairs[second, 1]]])
        count = sizes[target]
        self.entry = np.repeat(np.arange(len(edges)), count)
        within = np.arange(len(self.entry)) - np.repeat(np.cumsum(count) - count, count)
        self.where = model.table_offsets[edges][self.entry] + within * step[self.entry]
        self.strategy = model.offsets[target][self.entry] + within

    def added(self, choice: Integers) -> Floats:
        """By strategy, the sum of the selected entries."""
        at = self.where + (choice[self.source] * self.stride)[self.entry]
        return np.bincount(self.strategy, self.model.tables[at], self.model.strategies)

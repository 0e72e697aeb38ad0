"""The reduced problem as flat arrays: costs, conditional costs, and costs of changes, without loops over nodes."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from superopt.assignment.reduction import Floats, Integers, ReducedProblem

__all__ = ["Mask", "PairwiseModel", "SelectedTableRows", "pairwise_of"]

Mask = NDArray[np.bool_]


def pairwise_of(reduced: ReducedProblem, penalty: float) -> PairwiseModel:
    """The arrays of a reduced problem.

    Args:
        reduced: the problem.
        penalty: cost of a forbidden pair, finite, larger than what any choice could gain by it.
    """
    pairs = np.array(sorted(reduced.tables), dtype=np.int64).reshape(-1, 2)
    neighbours: list[dict[int, int]] = [{} for _ in reduced.costs]
    for e, (a, b) in enumerate(pairs.tolist()):
        neighbours[a][b] = neighbours[b][a] = e
    tables = np.concatenate([*(reduced.tables[a, b].ravel() for a, b in pairs.tolist()), np.zeros(0)])
    forbidden = np.isinf(tables)
    sizes = np.array([len(c) for c in reduced.costs], dtype=np.int64)
    costs = np.concatenate([*reduced.costs, np.zeros(0)])
    tables = np.where(forbidden, penalty, tables)
    return PairwiseModel(sizes, costs, pairs, tables, forbidden, neighbours, reduced.constant)


class PairwiseModel:
    """Nodes and tables in one row each.

    Args:
        sizes: strategies by node.
        costs: of all strategies, node by node.
        pairs: shape (edges, 2), each with the smaller node first.
        tables: costs of edges, row-major, edge by edge; a finite penalty where a pair is forbidden.
        forbidden: which of them are.
        neighbours: by node, the edge to each neighbour.
        constant: cost of what is decided.
    """

    def __init__(
        self, sizes: Integers, costs: Floats, pairs: Integers, tables: Floats, forbidden: Mask,
        neighbours: list[dict[int, int]], constant: float,
    ) -> None:  # fmt: skip
        self.sizes, self.costs, self.pairs, self.tables = sizes, costs, pairs, tables
        self.forbidden, self.neighbours, self.constant = forbidden, neighbours, constant
        self.nodes, self.strategies = len(sizes), len(costs)
        self.offsets: Integers = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        entries = sizes[pairs[:, 0]] * sizes[pairs[:, 1]]
        self.table_offsets: Integers = np.concatenate([[0], np.cumsum(entries)]).astype(np.int64)

    @cached_property
    def node_of(self) -> Integers:
        """The node of each strategy."""
        return np.repeat(np.arange(self.nodes), self.sizes)

    @cached_property
    def everywhere(self) -> SelectedTableRows:
        """What every node adds to its neighbours."""
        both = np.ones(len(self.pairs), dtype=bool)
        return SelectedTableRows(self, both, both)

    @cached_property
    def ends(self) -> tuple[Integers, Integers]:
        """By entry of the tables, its strategy of the first and of the second node, among all strategies."""
        edge = np.repeat(np.arange(len(self.pairs)), np.diff(self.table_offsets))
        within = np.arange(len(self.tables)) - self.table_offsets[edge]
        first, second = self.pairs[edge, 0], self.pairs[edge, 1]
        row, column = np.divmod(within, self.sizes[second])
        return self.offsets[first] + row, self.offsets[second] + column

    def restricted(self, keep: Mask, costs: Floats) -> PairwiseModel:
        """The problem with some strategies only, one or more of each node, and other costs of strategies."""
        first, second = self.ends
        left = keep[first] & keep[second]
        sizes = np.add.reduceat(keep.astype(np.int64), self.offsets[:-1]) if self.nodes else self.sizes
        return PairwiseModel(
            sizes, costs[keep], self.pairs, self.tables[left], self.forbidden[left], self.neighbours, self.constant
        )

    def entries(self, choice: Integers) -> Integers:
        """By edge, where the entry that a choice of strategies pays lies in ``tables``."""
        a, b = self.pairs[:, 0], self.pairs[:, 1]
        return np.asarray(self.table_offsets[:-1] + choice[a] * self.sizes[b] + choice[b])

    def cost(self, choice: Integers) -> float:
        """Cost of a choice, without memory."""
        return float(
            self.constant + self.costs[self.offsets[:-1] + choice].sum() + self.tables[self.entries(choice)].sum()
        )

    def violations(self, choice: Integers) -> int:
        """Edges with a forbidden pair."""
        return int(self.forbidden[self.entries(choice)].sum())

    def conditional(self, choice: Integers) -> Floats:
        """By strategy, its cost if all other nodes keep theirs."""
        return self.costs + self.everywhere.added(choice)


class SelectedTableRows:
    """Rows and columns of tables that a choice selects, added to the strategies at the other end.

    Args:
        model: the problem.
        first, second: by edge, whether the choice of its first node is added to its second, and the reverse.
    """

    def __init__(self, model: PairwiseModel, first: Mask, second: Mask) -> None:
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
        return np.asarray(np.bincount(self.strategy, self.model.tables[at], self.model.strategies), dtype=np.float64)

"""Coarse problems: nodes follow the neighbours that they depend on most (multilevel search, Walshaw 2004).

A contraction makes the strategy of a node a function of that of a neighbour. The choice of strategies that is given
stays possible, so a better choice of the coarse problem is a better one of the problem itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from superopt.assignment.pairwise import PairwiseModel
from superopt.assignment.reduction import Floats, Integers

__all__ = ["CoarseAssignmentProblem", "ContractionLevel", "EdgeRegrets", "regrets_of"]

_ROUNDS = (0.9, 0.7, 0.5, 0.35, 0.2, 0.1, 0.0)  # share of its dependence from which a node follows, by round


@dataclass(frozen=True)
class EdgeRegrets:
    """By edge and end, how much more than its best an average strategy of that end costs, given the other end's.

    Attributes:
        ends: shape (edges, 2).
        cap: costs above it counted as it.
    """

    ends: Floats
    cap: float


@dataclass(frozen=True)
class ContractionLevel:
    """A contracted problem: its model, the nodes that decide, and the number of contractions."""

    model: PairwiseModel
    nodes: Integers
    merges: int


def regrets_of(model: PairwiseModel, cap: float) -> EdgeRegrets:
    """The regrets of all edges."""
    ends = np.zeros((len(model.pairs), 2))
    shapes = model.sizes[model.pairs]
    for first, second in np.unique(shapes, axis=0).tolist():
        edges = np.flatnonzero((shapes[:, 0] == first) & (shapes[:, 1] == second))
        at = model.table_offsets[edges][:, None] + np.arange(first * second)
        tables = np.minimum(model.tables[at], cap).reshape(-1, first, second)
        mean = tables.mean(axis=(1, 2))
        ends[edges, 0] = mean - tables.min(axis=1).mean(axis=1)
        ends[edges, 1] = mean - tables.min(axis=2).mean(axis=1)
    return EdgeRegrets(ends, cap)


class CoarseAssignmentProblem:
    """A problem while it is contracted.

    Args:
        model: the problem.
        costs: of its strategies, prices of memory included.
        choice: strategies by node; stays possible.
        regrets: of the model.
        generator: of random numbers.
        noise: chance against dependence in the choice of the neighbour that a node follows.
    """

    def __init__(
        self,
        model: PairwiseModel,
        costs: Floats,
        choice: Integers,
        regrets: EdgeRegrets,
        generator: np.random.Generator,
        noise: float,
    ) -> None:
        self.choice = choice.tolist()
        self.costs = np.split(costs, model.offsets[1:-1])
        self.tables: list[dict[int, Floats]] = [{} for _ in range(model.nodes)]
        self.regret: list[dict[int, float]] = [{} for _ in range(model.nodes)]  # of a node, by neighbour
        sizes, offsets = model.sizes.tolist(), model.table_offsets.tolist()
        drawn = (regrets.ends * np.exp(noise * generator.gumbel(size=regrets.ends.shape))).tolist()
        for edge, (a, b) in enumerate(model.pairs.tolist()):
            table = model.tables[offsets[edge] : offsets[edge + 1]].reshape(sizes[a], sizes[b])
            self._set(a, b, table, *drawn[edge])
        self.gone = [False] * model.nodes
        self.left = model.nodes
        self.merged: list[tuple[int, int, Integers]] = []  # node, the one that it follows, strategies by the latter's
        self.order = generator.permutation(model.nodes).tolist()

    def _set(self, a: int, b: int, table: Floats, of_a: float, of_b: float) -> None:
        self.tables[a][b], self.tables[b][a] = table, table.T
        self.regret[a][b], self.regret[b][a] = of_a, of_b

    def contract(self, target: int) -> None:
        """Let nodes follow until no more than this many decide, or none depends on another."""
        for threshold in _ROUNDS:
            for b in self.order:
                if self.left <= target:
                    return
                regret = self.regret[b]
                if not regret:
                    continue
                a = max(regret, key=regret.__getitem__)
                if regret[a] >= threshold * sum(regret.values()):
                    self._merge(a, b)

    def _merge(self, a: int, b: int) -> None:
        """Let b follow a."""
        table = self.tables[a].pop(b)
        del self.regret[a][b], self.tables[b][a], self.regret[b][a]
        expected = self.costs[b]
        for onward in self.tables[b].values():
            expected = expected + onward.min(axis=1)
        follows = (table + expected).argmin(axis=1)
        follows[self.choice[a]] = self.choice[b]
        self.costs[a] = self.costs[a] + table[np.arange(len(follows)), follows] + self.costs[b][follows]
        for c, onward in self.tables[b].items():
            moved, of_a, of_c = onward[follows], self.regret[b][c], self.regret[c].pop(b)
            del self.tables[c][b]
            if c in self.tables[a]:
                moved, of_a, of_c = moved + self.tables[a][c], of_a + self.regret[a][c], of_c + self.regret[c][a]
            self._set(a, c, moved, of_a, of_c)
        self.tables[b], self.regret[b], self.gone[b] = {}, {}, True
        self.left -= 1
        self.merged.append((b, a, follows))

    def level(self) -> ContractionLevel:
        """The problem as it is contracted so far."""
        nodes = [i for i, gone in enumerate(self.gone) if not gone]
        number = {i: k for k, i in enumerate(nodes)}
        pairs: list[tuple[int, int]] = []
        tables: list[Floats] = []
        neighbours: list[dict[int, int]] = [{} for _ in nodes]
        for i in nodes:
            for j, table in self.tables[i].items():
                if i < j:
                    a, b = number[i], number[j]
                    neighbours[a][b] = neighbours[b][a] = len(pairs)
                    pairs.append((a, b))
                    tables.append(table.ravel())
        entries = np.concatenate([*tables, np.zeros(0)])
        model = PairwiseModel(
            np.array([len(self.costs[i]) for i in nodes], dtype=np.int64),
            np.concatenate([*(self.costs[i] for i in nodes), np.zeros(0)]),
            np.array(pairs, dtype=np.int64).reshape(-1, 2),
            entries,
            np.zeros(len(entries), dtype=bool),
            neighbours,
            0.0,
        )
        return ContractionLevel(model, np.array(nodes, dtype=np.int64), len(self.merged))

    def lift(self, level: ContractionLevel, choice: Integers, to: int = 0) -> Integers:
        """A choice of a level as one of the nodes that decide after the first ``to`` contractions.

        Returns:
            Strategies by node of the problem; those that follow others by then keep any.
        """
        chosen = list(self.choice)
        for i, s in zip(level.nodes.tolist(), choice.tolist(), strict=True):
            chosen[i] = s
        for b, a, follows in reversed(self.merged[to : level.merges]):
            chosen[b] = int(follows[chosen[a]])
        return np.array(chosen, dtype=np.int64)

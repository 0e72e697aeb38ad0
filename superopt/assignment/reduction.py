"""Exact reductions of a PBQP (Scholz & Eckstein 2002), with memory kept exact.

Five rules are applied until none applies:

1. A strategy is removed if it is forbidden, or if a neighbour has no strategy that goes with it (arc consistency).
2. An edge whose table is a sum of a row term and a column term is added to its two nodes.
3. A node with one strategy is a constant; its edges are added to its neighbours.
4. A node whose strategy follows from that of a neighbour is merged into it, with its edges and its memory.
5. A strategy is removed if another is no worse in cost, whatever the neighbours take, and in memory at any time.

Tables hold float64 costs, ``inf`` where a pair is forbidden.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from superopt.assignment.problem import StrategyAssignmentProblem
from superopt.errors import InvalidModel

__all__ = ["Floats", "Integers", "ReducedProblem", "reduce_problem"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class ReducedProblem:
    """A problem after its reductions.

    Attributes:
        costs: by node of the reduced problem, a cost for each strategy that remains: two or more, all finite.
        tables: by pair ``(a, b)`` of nodes with ``a < b``, costs of shape (strategies of a, strategies of b).
        constant: cost of all nodes that have one strategy left.
        owner: by node of the original, the node that decides it; -1 where it has one strategy left.
        lift: by node of the original, its strategy for each strategy of its owner.
    """

    costs: list[Floats]
    tables: dict[tuple[int, int], Floats]
    constant: float
    owner: Integers
    lift: list[Integers]


def reduce_problem(problem: StrategyAssignmentProblem, forbidden: int) -> ReducedProblem:
    """Apply the reductions.

    Args:
        problem: the problem.
        forbidden: costs of at least this are forbidden.

    Raises:
        InvalidModel: the forbidden costs leave some node without a strategy: no assignment is feasible.
    """
    state = _Reduction(problem, forbidden)
    state.propagate()
    while state.remove_dominated():
        state.propagate()
    return state.result()


class _Reduction:
    """Nodes, tables and merges while the rules are applied; ``kept[i]`` are the remaining strategies of node i."""

    def __init__(self, problem: StrategyAssignmentProblem, forbidden: int) -> None:
        self.problem = problem
        n = problem.nodes
        self.costs = [np.where(c >= forbidden, np.inf, c) for c in problem.node_costs()]
        self.kept: list[Integers] = [np.arange(len(c)) for c in self.costs]
        self.tables: list[dict[int, Floats]] = [{} for _ in range(n)]
        self.merged: list[tuple[int, int, Integers]] = []  # node, the node that decides it, strategies by the latter's
        self.gone = np.zeros(n, dtype=bool)
        self.unchecked = set(range(n))  # nodes at which rule 5 may apply
        self.queue: dict[tuple[int, int], None] = {}  # edges at which rules 1 to 4 may apply
        for a, b, table in problem.edge_tables():
            costs = np.where(table >= forbidden, np.inf, table)
            if a == b:
                self.costs[a] = self.costs[a] + np.diagonal(costs)
            else:
                self._add_edge(a, b, costs)
        for i, costs in enumerate(self.costs):
            if not (possible := np.isfinite(costs)).all():
                self._restrict(i, possible)

    def _add_edge(self, a: int, b: int, table: Floats) -> None:
        if b in self.tables[a]:
            table = self.tables[a][b] + table
        self.tables[a][b] = table
        self.tables[b][a] = table.T
        self._enqueue(a, b)

    def _drop_edge(self, a: int, b: int) -> None:
        del self.tables[a][b], self.tables[b][a]
        self.queue.pop((min(a, b), max(a, b)), None)

    def _enqueue(self, a: int, b: int) -> None:
        self.queue[min(a, b), max(a, b)] = None

    def _restrict(self, i: int, keep: NDArray[np.bool_]) -> None:
        """Remove strategies of a node."""
        self.unchecked |= {i, *self.tables[i]}
        self.costs[i] = self.costs[i][keep]
        self.kept[i] = self.kept[i][keep]
        if not len(self.kept[i]):
            raise InvalidModel(
                "no strategy is possible: it is forbidden, or its neighbours' strategies forbid it, for all of them",
                where=f"node {i}", hint="costs at the mark of what is forbidden leave no assignment; lower some",
            )  # fmt: skip
        for j, table in self.tables[i].items():
            self.tables[i][j] = table[keep]
            self.tables[j][i] = self.tables[i][j].T
            self._enqueue(i, j)

    def propagate(self) -> None:
        """Rules 1 to 4 until none applies."""
        while self.queue:
            self._simplify(*self.queue.popitem()[0])

    def _simplify(self, i: int, j: int) -> None:
        """Apply the rules to an edge."""
        table = self.tables[i][j]
        finite = table < np.inf
        rows, columns = finite.sum(axis=1), finite.sum(axis=0)
        if not rows.all() or not columns.all():
            if not rows.all():
                self._restrict(i, rows > 0)
            if not columns.all():
                self._restrict(j, columns > 0)
            return
        if finite.all() and not (table - table[:1] - (table[:, :1] - table[0, 0])).any():
            self.costs[i] = self.costs[i] + table[:, 0]
            self.costs[j] = self.costs[j] + (table[0] - table[0, 0])
            self._drop_edge(i, j)
            return
        forward, backward = bool((rows == 1).all()), bool((columns == 1).all())
        if forward and not (backward and len(self.tables[i]) < len(self.tables[j])):
            self._merge(i, j, finite.argmax(axis=1))
        elif backward:
            self._merge(j, i, finite.argmax(axis=0))

    def _merge(self, a: int, b: int, follows: Integers) -> None:
        """Merge b into a: with strategy s of a, that of b is ``follows[s]``."""
        table = self.tables[a][b]
        self.costs[a] = self.costs[a] + table[np.arange(len(follows)), follows] + self.costs[b][follows]
        strategies = np.full(int(self.problem.sizes[a]), -1)
        strategies[self.kept[a]] = self.kept[b][follows]
        self.merged.append((b, a, strategies))
        self.unchecked |= {a, *self.tables[b]}
        self._drop_edge(a, b)
        for c in list(self.tables[b]):
            onward = self.tables[b][c][follows]
            self._drop_edge(b, c)
            self._add_edge(a, c, onward)
        self.gone[b] = True

    def _lift(self) -> tuple[Integers, list[Integers]]:
        """By node of the original: the node that decides it, and its strategy for each remaining one of that."""
        owner = np.arange(self.problem.nodes)
        lift = list(self.kept)
        full: dict[int, Integers] = {}
        for b, a, strategies in reversed(self.merged):
            top = owner[a]
            through = full[a][self.kept[top]] if a in full else self.kept[a]
            owner[b] = top
            lift[b] = strategies[through]
            full[b] = np.full(int(self.problem.sizes[top]), -1)
            full[b][self.kept[top]] = lift[b]
        return owner, lift

    def usages(self, nodes: set[int]) -> dict[int, Floats]:
        """By node: bytes of shape (distinct intervals that it decides about, remaining strategies)."""
        owner, lift = self._lift()
        usages = list(self.problem.node_usages())
        rows: dict[int, dict[tuple[int, int], Floats]] = {}
        for n, ((start, end), o) in enumerate(zip(self.problem.intervals.tolist(), owner.tolist(), strict=True)):
            if start < end and o in nodes:
                used = usages[n][lift[n]].astype(np.float64)
                held = rows.setdefault(o, {})
                key = (start, end)
                held[key] = held[key] + used if key in held else used
        return {i: np.stack(list(held.values())) for i, held in rows.items()}

    def remove_dominated(self) -> bool:
        """Rule 5 at the nodes around which something changed; whether it applied."""
        nodes = {i for i in self.unchecked if not self.gone[i] and len(self.costs[i]) > 1}
        usages, changed = self.usages(nodes), False
        self.unchecked = set()
        for i in sorted(nodes):
            size = len(self.costs[i])
            # worse[s, t]: by how much t can cost more than s, at worst
            worse = self.costs[i][None, :] - self.costs[i][:, None]
            for table in self.tables[i].values():
                worse = worse + _largest_excess(table)
                if not (worse <= 0).sum() > size:
                    break
            dominates = worse <= 0
            if dominates.sum() > size and i in usages:
                used = usages[i]
                dominates &= (used[:, None, :] <= used[:, :, None]).all(axis=0)
            keep = _undominated(dominates)
            if not keep.all():
                self._restrict(i, keep)
                changed = True
        return changed

    def result(self) -> ReducedProblem:
        owner, lift = self._lift()
        alive = ~self.gone
        single = np.array([len(c) == 1 for c in self.costs], dtype=bool)
        left = np.flatnonzero(alive & ~single)
        number = np.full(self.problem.nodes, -1)
        number[left] = np.arange(len(left))
        constant = float(sum(self.costs[i][0] for i in np.flatnonzero(alive & single).tolist()))
        tables = {
            (int(number[a]), int(number[b])): np.ascontiguousarray(table)
            for a in left.tolist()
            for b, table in self.tables[a].items()
            if a < b
        }
        return ReducedProblem([self.costs[i] for i in left.tolist()], tables, constant, number[owner], lift)


def _largest_excess(table: Floats) -> Floats:
    """``[s, t]``: the largest over columns of table[t] − table[s]; columns that forbid both do not count."""
    with np.errstate(invalid="ignore"):
        excess = table[None, :, :] - table[:, None, :]
    excess[np.isnan(excess)] = -np.inf  # both forbidden
    return np.asarray(excess.max(axis=2))


def _undominated(dominates: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which strategies remain; of several that dominate each other, the first."""
    size = len(dominates)
    mutual = dominates & dominates.T
    strict = dominates & ~mutual
    earlier = np.arange(size)[:, None] > np.arange(size)[None, :]
    return np.asarray(~(strict | (mutual & earlier)).any(axis=1))

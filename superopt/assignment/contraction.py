"""Coarse problems: nodes follow neighbours that they depend on most (multilevel search, Walshaw 2004).

A contraction lets the strategy of a node be a function of that of a neighbour. A choice of strategies that is given
stays possible, so a better choice of the coarse problem is a better one of the problem itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from superopt.assignment.pairwise import Pairwise
from superopt.assignment.reduction import Floats, Integers

__all__ = ["Coarse", "Level", "Regrets", "regrets_of"]

_ROUNDS = (0.9, 0.7, 0.5, 0.35, 0.2, 0.1, 0.0)  # dependence from which a node follows, by round


@dataclass(frozen=True)
class Regrets:
    """By edge and end: how much the cost of an edge depends on the strategy of that end, given the other."""

    first: Floats
    second: Floats
    cap: float


def regrets_of(model: Pairwise, cap: float) -> Regrets:
    first = np.zeros(len(model.pairs)); second = np.zeros(len(model.pairs))
    shapes = model.sizes[model.pairs]
    for shape in np.unique(shapes, axis=0).tolist():
        es = np.flatnonzero((shapes == shape).all(axis=1))
        T = np.minimum(model.tables[model.table_offsets[es][:, None] + np.arange(shape[0]*shape[1])], cap).reshape(-1, *shape)
        mean = T.mean(axis=(1,2))
        first[es] = mean - T.min(axis=1).mean(axis=1)    # of the first end, given the second
        second[es] = mean - T.min(axis=2).mean(axis=1)
    return Regrets(first, second, cap)


@dataclass(frozen=True)
class Level:
    """A contracted problem: its model, the nodes that decide, and the number of contractions."""

    model: Pairwise
    nodes: Integers
    merges: int


class Coarse:
    def __init__(self, model: Pairwise, costs: Floats, choice: Integers, regrets: Regrets, generator, spread=0.5):
        self.fine = model
        self.choice = choice.tolist()
        self.costs = np.split(costs, model.offsets[1:-1])
        self.tables = [{} for _ in range(model.nodes)]
        self.regret = [{} for _ in range(model.nodes)]   # regret[b][a]: how much b depends on a
        self.cap = regrets.cap
        sizes = model.sizes.tolist(); offs = model.table_offsets.tolist()
        noise = np.exp(spread * generator.gumbel(size=(len(model.pairs), 2)))
        r1 = (regrets.first * noise[:,0]).tolist(); r2 = (regrets.second * noise[:,1]).tolist()
        for e, (a, b) in enumerate(model.pairs.tolist()):
            T = model.tables[offs[e]:offs[e+1]].reshape(sizes[a], sizes[b])
            self.tables[a][b] = T; self.tables[b][a] = T.T
            self.regret[a][b] = r1[e]; self.regret[b][a] = r2[e]
        self.gone = [False]*model.nodes
        self.left = model.nodes
        self.merged = []
        self.generator = generator

    def merge(self, a, b):
        T = self.tables[a][b]
        look = self.costs[b].copy()
        for c, U in self.tables[b].items():
            if c != a: look += U.min(axis=1)
        f = (T + look).argmin(axis=1)
        f[self.choice[a]] = self.choice[b]
        self.costs[a] = self.costs[a] + T[np.arange(len(f)), f] + self.costs[b][f]
        del self.tables[a][b], self.regret[a][b]
        for c, U in self.tables[b].items():
            if c == a: continue
            del self.tables[c][b]
            rb = self.regret[c].pop(b)
            V = U[f]
            if c in self.tables[a]:
                V = V + self.tables[a][c]
                rc = self.regret[c][a] + rb
                ra = self.regret[a][c] + self.regret[b][c]
            else:
                rc = rb; ra = self.regret[b][c]
            self.tables[a][c] = V; self.tables[c][a] = V.T
            self.regret[c][a] = rc; self.regret[a][c] = ra
        self.tables[b] = {}; self.regret[b] = {}
        self.gone[b] = True
        self.left -= 1
        self.merged.append((b, a, f))

    def contract(self, target: int) -> None:
        """Let nodes follow until no more than this many decide, or none is left that depends on another."""
        order = self.generator.permutation(self.fine.nodes).tolist()
        for threshold in _ROUNDS:
            for b in order:
                if self.left <= target:
                    return
                regret = self.regret[b]
                if not regret:
                    continue
                a = max(regret, key=regret.__getitem__)
                if regret[a] >= threshold * sum(regret.values()):
                    self.merge(a, b)

    def level(self) -> Level:
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
        model = Pairwise(
            np.array([len(self.costs[i]) for i in nodes], dtype=np.int64),
            np.concatenate([*(self.costs[i] for i in nodes), np.zeros(0)]),
            np.array(pairs, dtype=np.int64).reshape(-1, 2), entries, np.zeros(len(entries), dtype=bool), neighbours, 0.0,
        )  # fmt: skip
        return Level(model, np.array(nodes, dtype=np.int64), len(self.merged))

    def lift(self, level: Level, choice: Integers, to: int = 0) -> Integers:
        """A choice of a level, as one of the nodes that decide after the first ``to`` contractions; others keep any."""
        chosen = list(self.choice)
        for i, s in zip(level.nodes.tolist(), choice.tolist(), strict=True):
            chosen[i] = s
        for b, a, follows in reversed(self.merged[to : level.merges]):
            chosen[b] = int(follows[chosen[a]])
        return np.array(chosen, dtype=np.int64)

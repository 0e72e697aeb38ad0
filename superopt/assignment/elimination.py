"""Bucket elimination on arrays (Dechter 1999): the best choice for all nodes but those of a cutset, exactly.

A plan is compiled once for a cutset and run for many prices. Eliminations of equal shape that do not wait for each
other run as one array operation; their tables lie in one buffer: strategies, then tables of edges, then results.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from superopt.assignment.cutset import elimination_order
from superopt.assignment.pairwise import PairwiseModel, SelectedTableRows
from superopt.assignment.reduction import Floats, Integers

__all__ = ["BucketElimination"]

_BATCH = 1 << 19  # entries of one array operation: 4 MB, within a processor's cache

Axes = tuple[int, ...]


@dataclass(frozen=True)
class _Elimination:
    """A node's elimination: the nodes its result is about, where the factors lie, and where the result goes."""

    node: int
    scope: list[int]
    factors: list[int]
    result: int


class BucketElimination:
    """Exact minimisation over all nodes that are not fixed.

    Args:
        model: the problem.
        fixed: nodes that keep their strategies.
    """

    def __init__(self, model: PairwiseModel, fixed: Sequence[int]) -> None:
        self.model = model
        is_fixed = np.zeros(model.nodes, dtype=bool)
        is_fixed[list(fixed)] = True
        self.length = model.strategies + len(model.tables)
        self.groups = self._compile(np.flatnonzero(~is_fixed).tolist())
        first, second = is_fixed[model.pairs[:, 0]], is_fixed[model.pairs[:, 1]]
        self.slices = SelectedTableRows(model, first & ~second, second & ~first)

    def _compile(self, free: list[int]) -> list[_Group]:
        order = elimination_order(self.model, free)
        position = {node: k for k, (node, _) in enumerate(order)}
        sizes = self.model.sizes.tolist()
        waiting: dict[int, list[tuple[int, list[int], int]]] = defaultdict(list)  # results by who takes them next
        groups: dict[tuple[int, Axes, tuple[Axes, ...]], list[_Elimination]] = defaultdict(list)
        for node, unordered in order:
            scope = sorted(unordered, key=lambda j: (sizes[j], position[j]))
            received = waiting.pop(node, [])
            factors = self._factors(node, scope, received)
            level = 1 + max((level for *_, level in received), default=-1)
            shape = (sizes[node], *(sizes[j] for j in scope))
            step = _Elimination(node, scope, [at for _, at in factors], self.length)
            groups[level, shape, tuple(axes for axes, _ in factors)].append(step)
            if scope:
                waiting[min(scope, key=position.__getitem__)].append((self.length, scope, level))
            self.length += math.prod(shape[1:])
        made = []
        for (_, shape, axes), steps in sorted(groups.items(), key=lambda item: item[0]):
            count = max(1, _BATCH // math.prod(shape))
            made += [_Group(shape, axes, steps[k : k + count]) for k in range(0, len(steps), count)]
        return made

    def _factors(
        self, node: int, scope: list[int], received: list[tuple[int, list[int], int]]
    ) -> list[tuple[Axes, int]]:
        """What a node's table is the sum of: by factor, the axes that it has, and where it lies."""
        model = self.model
        axis = {node: 0} | {j: k + 1 for k, j in enumerate(scope)}
        found: list[tuple[Axes, int]] = [((0,), int(model.offsets[node]))]
        tables = model.strategies
        for j, edge in model.neighbours[node].items():
            if j in axis:
                axes = (0, axis[j]) if node < j else (axis[j], 0)
                found.append((axes, tables + int(model.table_offsets[edge])))
        found += [(tuple(axis[j] for j in about), at) for at, about, _ in received]
        return sorted(found)

    def run(self, choice: Integers, costs: Floats) -> Integers:
        """The best choice in which the fixed nodes keep their strategies.

        Args:
            choice: strategies by node.
            costs: of all strategies, prices of memory included.
        """
        model = self.model
        buffer = np.empty(self.length)
        buffer[: model.strategies] = costs + self.slices.added(choice)
        buffer[model.strategies : model.strategies + len(model.tables)] = model.tables
        for group in self.groups:
            group.eliminate(buffer)
        best = choice.copy()
        for group in reversed(self.groups):
            group.choose(buffer, best)
        return best


class _Group:
    """Eliminations of one shape: axis 0 is the node, the others its scope.

    Args:
        shape: strategies of the node and of its scope.
        axes: by factor, the axes that it has.
        steps: the eliminations.
    """

    def __init__(self, shape: Axes, axes: tuple[Axes, ...], steps: list[_Elimination]) -> None:
        self.shape, self.axes = shape, axes
        self.nodes = np.array([s.node for s in steps])
        self.scope = np.array([s.scope for s in steps], dtype=np.int64).reshape(len(steps), len(shape) - 1)
        self.results = np.array([s.result for s in steps])
        self.factors = np.array([s.factors for s in steps]).T
        self.views = [self._view(a) for a in axes]
        self.order = sorted(range(len(axes)), key=lambda k: math.prod(self.views[k][0]))  # small sums first

    def _view(self, axes: Axes) -> tuple[Axes, Axes, Axes]:
        """Shape of a factor, its axes in ascending order, and its shape among all axes."""
        shape = tuple(self.shape[a] for a in axes)
        ascending = tuple(sorted(range(len(axes)), key=axes.__getitem__))
        return shape, ascending, tuple(s if k in axes else 1 for k, s in enumerate(self.shape))

    def eliminate(self, buffer: Floats) -> None:
        """Write the minima over the node."""
        count, width = len(self.nodes), math.prod(self.shape[1:])
        total: Floats | None = None
        for k in self.order:
            shape, ascending, among = self.views[k]
            at, length = self.factors[k], math.prod(shape)
            flat = buffer[at[0] : at[0] + length] if count == 1 else buffer[at[:, None] + np.arange(length)]
            factor = flat.reshape(count, *shape).transpose(0, *(a + 1 for a in ascending)).reshape(count, *among)
            total = factor if total is None else total + factor
        assert total is not None, "the node's own costs are a factor"
        least = np.broadcast_to(total.min(axis=1), (count, *self.shape[1:])).reshape(count, width)
        if count == 1:
            buffer[self.results[0] : self.results[0] + width] = least[0]
        else:
            buffer[self.results[:, None] + np.arange(width)] = least

    def choose(self, buffer: Floats, choice: Integers) -> None:
        """Set the nodes' strategies, given those of their scope."""
        values = choice[self.scope]
        total = np.zeros((len(self.nodes), self.shape[0]))
        for at, axes in zip(self.factors, self.axes, strict=True):
            place, stride, own = at, 1, 0
            for axis in reversed(axes):
                if axis == 0:
                    own = stride
                else:
                    place = place + values[:, axis - 1] * stride
                stride *= self.shape[axis]
            total += buffer[place[:, None] + own * np.arange(self.shape[0])]
        choice[self.nodes] = total.argmin(axis=1)

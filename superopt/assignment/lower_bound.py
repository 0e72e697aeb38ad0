"""Lower bounds: of message passing for every problem, of an integer program where little is left to decide.

Message passing is dual block coordinate ascent (sequential message passing after Kolmogorov 2006), on arrays. Every
edge carries a message to each of its two nodes: costs that are moved from its table to the node. A step takes
the nodes of one colour, none of which are neighbours. It moves to each node all that its tables can give, which are
the minima of their rows, and deals the node's total out again among its tables. The sum of the least costs of all
nodes and tables is a lower bound whatever the messages are.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from superopt.assignment.integer_program import AssignmentIntegerProgram, memory_entries
from superopt.assignment.memory_constraints import MemoryConstraints
from superopt.assignment.pairwise import Mask, PairwiseModel
from superopt.assignment.policy import AssignmentSolverPolicy
from superopt.assignment.reduction import Floats, Integers

__all__ = ["LowerBoundResult", "prove"]

_ROUNDING = 2.0**-48  # relative error of sums of costs
_SURE = 1e-9  # share of the cost by which a choice must exceed the best one before it is left out


@dataclass(frozen=True)
class _Batch:
    """Ends of edges of one shape, at nodes of one colour.

    Attributes:
        strategies: of the nodes, among all, shape (ends, strategies of the node).
        own, other: where the messages to the node and to its neighbour lie.
        tables: shape (ends, strategies of the neighbour, strategies of the node).
        later, earlier: share of the node's total that the table gets in a forward and in a backward sweep.
    """

    strategies: Integers
    own: Integers
    other: Integers
    tables: Floats
    later: Floats
    earlier: Floats


class DualBound:
    """Messages of a pairwise model; forbidden pairs count as infinite.

    Args:
        model: the model.
    """

    def __init__(self, model: PairwiseModel) -> None:
        self.model = model
        self.tables = np.where(model.forbidden, np.inf, model.tables)
        lengths = model.sizes[model.pairs]
        begin = np.concatenate([[0], np.cumsum(lengths.ravel())]).astype(np.int64)
        self.begin = begin[:-1].reshape(-1, 2)  # of the messages, by edge and end
        self.messages = np.zeros(int(begin[-1]))
        owner = np.repeat(model.pairs.ravel(), lengths.ravel())
        self.target = model.offsets[owner] + np.arange(len(owner)) - np.repeat(begin[:-1], lengths.ravel())
        self.shapes = _by_shape(model)
        self.colours = self._batches()

    def _batches(self) -> list[list[_Batch]]:
        model = self.model
        colour = _colouring(model)
        later = colour[model.pairs[:, ::-1]] > colour[model.pairs]  # by edge and end: whether the neighbour is later
        after = np.bincount(model.pairs.ravel(), later.ravel(), model.nodes)
        before = np.bincount(model.pairs.ravel(), ~later.ravel(), model.nodes)
        most = np.maximum(np.maximum(after, before), 1)
        batches: list[list[_Batch]] = [[] for _ in range(int(colour.max(initial=-1)) + 1)]
        for (first, second), edges in self.shapes.items():
            for end in (0, 1):
                at = colour[model.pairs[edges, end]]
                for c in np.unique(at).tolist():
                    chosen = edges[at == c]
                    share = 1 / most[model.pairs[chosen, end]]
                    batches[c].append(self._batch(chosen, end, (first, second), share, later[chosen, end]))
        return batches

    def _batch(self, edges: Integers, end: int, shape: tuple[int, int], share: Floats, later: Mask) -> _Batch:
        model = self.model
        tables = self._tables(edges, shape)
        size = shape[end]
        return _Batch(
            model.offsets[model.pairs[edges, end]][:, None] + np.arange(size),
            self.begin[edges, end][:, None] + np.arange(size),
            self.begin[edges, 1 - end][:, None] + np.arange(shape[1 - end]),
            np.ascontiguousarray(tables.transpose(0, 2, 1) if end == 0 else tables),
            (share * later)[:, None], (share * ~later)[:, None],
        )  # fmt: skip

    def _tables(self, edges: Integers, shape: tuple[int, int]) -> Floats:
        at = self.model.table_offsets[edges][:, None] + np.arange(shape[0] * shape[1])
        return np.asarray(self.tables[at].reshape(len(edges), *shape))

    def _totals(self, costs: Floats) -> Floats:
        """By strategy, its cost and the messages to it."""
        return np.asarray(costs + np.bincount(self.target, self.messages, self.model.strategies))

    def sweep(self, costs: Floats, *, forward: bool) -> None:
        """One step for each colour, in order or in reverse.

        Args:
            costs: of all strategies, prices of memory included.
            forward: whether in order.
        """
        messages, totals = self.messages, self._totals(costs)
        for batches in self.colours if forward else reversed(self.colours):
            given = []
            for batch in batches:
                most = (batch.tables - messages[batch.other][:, :, None]).min(axis=1)
                np.add.at(totals, batch.strategies, most - messages[batch.own])
                given.append(most)
            for batch, most in zip(batches, given, strict=True):
                messages[batch.own] = most - totals[batch.strategies] * (batch.later if forward else batch.earlier)
            for batch, most in zip(batches, given, strict=True):
                np.add.at(totals, batch.strategies, messages[batch.own] - most)

    def reduced(self, costs: Floats) -> tuple[float, Floats, Floats]:
        """The bound and by how much each strategy and each entry exceeds what the bound counts.

        Args:
            costs: of all strategies, prices of memory included.

        Returns:
            No choice costs less than the first, rounding errors considered. A choice costs at least the first and the
            sum of the excess of its strategies and entries, but for rounding.
        """
        model, totals = self.model, self._totals(costs)
        least = np.minimum.reduceat(totals, model.offsets[:-1]) if model.nodes else np.zeros(0)
        terms = [model.constant, *least.tolist()]
        size = abs(model.constant) + float(np.abs(self.messages).sum()) + float(np.abs(least).sum())
        excess = np.empty(len(self.tables))
        for shape, edges in self.shapes.items():
            first = self.messages[self.begin[edges, 0][:, None] + np.arange(shape[0])]
            second = self.messages[self.begin[edges, 1][:, None] + np.arange(shape[1])]
            table = self._tables(edges, shape) - first[:, :, None] - second[:, None, :]
            low = table.min(axis=(1, 2))
            terms += low.tolist()
            size += float(np.abs(low).sum())
            at = model.table_offsets[edges][:, None] + np.arange(shape[0] * shape[1])
            excess[at] = (table - low[:, None, None]).reshape(len(edges), -1)
        bound = math.fsum(terms) - _ROUNDING * size
        return bound, totals - least[model.node_of], excess


def _by_shape(model: PairwiseModel) -> dict[tuple[int, int], Integers]:
    """Edges by the shape of their tables."""
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for edge, (first, second) in enumerate(model.sizes[model.pairs].tolist()):
        groups[first, second].append(edge)
    return {shape: np.array(edges) for shape, edges in sorted(groups.items())}


def _colouring(model: PairwiseModel) -> Integers:
    """Colours by node, different ones for neighbours: greedily, nodes with many neighbours first."""
    colours: list[int] = [-1] * model.nodes
    for node in sorted(range(model.nodes), key=lambda i: -len(model.neighbours[i])):
        taken = {colours[j] for j in model.neighbours[node]}
        colours[node] = next(c for c in range(model.nodes) if c not in taken)
    return np.array(colours, dtype=np.int64)


@dataclass(frozen=True)
class LowerBoundResult:
    """What is known of the optimum.

    Attributes:
        bound: no choice within the limits costs less; infinite where there is none.
        choice: one that costs less than the one that was given, or ``None``.
    """

    bound: float
    choice: Integers | None


def prove(
    model: PairwiseModel,
    memory: MemoryConstraints,
    multipliers: Floats,
    best: Integers | None,
    policy: AssignmentSolverPolicy,
    left: Callable[[], float],
    *,
    program: bool,
    paced: bool,
) -> LowerBoundResult:
    """A lower bound, as good as the time allows.

    Args:
        model: costs.
        memory: bytes and room.
        multipliers: prices of memory, by interval.
        best: the cheapest choice known.
        policy: constants.
        left: seconds left.
        program: whether an integer program may be solved.
        paced: whether message passing takes a share of the time; else as many sweeps as there are, within the time.
    """
    if not model.nodes:
        return LowerBoundResult(model.constant, None)
    cost = math.inf if best is None else model.cost(best)
    bound, strategies, entries = _bounded(model, memory, multipliers, policy, left, paced)
    known, room = math.inf, math.inf  # what the optimum is at most, and by how much more than the bound
    if best is not None:
        known, room = cost - _ROUNDING * abs(cost), cost - bound + 1 + _SURE * abs(cost)
    joint = _joint(model, strategies, entries)
    allowed, pairs = _possible(model, strategies <= room, (joint <= room) & ~model.forbidden)
    if not program or pairs.sum() > policy.program_entries or left() < policy.program_seconds:
        return LowerBoundResult(bound, None)
    if (np.add.reduceat(allowed.astype(np.int64), model.offsets[:-1]) == 0).any():
        return LowerBoundResult(max(bound, known), None)
    if memory_entries(memory, allowed) > policy.memory_entries:
        return LowerBoundResult(bound, None)
    outcome = AssignmentIntegerProgram(model, memory, allowed, pairs).solve(left(), policy.program_nodes, best)
    better = outcome.choice if outcome.choice is not None and model.cost(outcome.choice) < cost else None
    return LowerBoundResult(max(bound, min(outcome.bound, known)), better)


def _bounded(
    model: PairwiseModel,
    memory: MemoryConstraints,
    multipliers: Floats,
    policy: AssignmentSolverPolicy,
    left: Callable[[], float],
    paced: bool,
) -> tuple[float, Floats, Floats]:
    """The better bound of message passing with and without prices of memory; the excess of strategies and entries."""
    dual, whole = DualBound(model), left() if paced else 0.0
    outcomes: list[tuple[float, Floats, Floats]] = []
    for prices, share in ((multipliers, 0.5), (np.zeros(len(multipliers)), 0.25)):
        if outcomes and left() < 0.4 * whole:
            break
        costs = model.costs + memory.prices(prices, model.strategies)
        for sweep in range(policy.sweeps):
            if left() < share * whole:
                break
            dual.sweep(costs, forward=sweep % 2 == 0)
        bound, strategies, entries = dual.reduced(costs)
        paid, size = float((prices * memory.room).sum()), float((prices * np.abs(memory.room)).sum())
        outcomes.append((bound - paid - _ROUNDING * size, strategies, entries))
    return max(outcomes, key=lambda outcome: outcome[0])


def _joint(model: PairwiseModel, strategies: Floats, entries: Floats) -> Floats:
    first, second = model.ends
    return np.asarray(entries + strategies[first] + strategies[second])


def _possible(model: PairwiseModel, allowed: Mask, pairs: Mask) -> tuple[Mask, Mask]:
    """Without the strategies that have no allowed pair on some edge, and their pairs."""
    first, second = model.ends
    edge = np.repeat(np.arange(len(model.pairs)), np.diff(model.table_offsets))
    # an end of an edge and its strategy, as one number
    width = model.strategies
    rows, columns = edge * width + first, edge * width + second
    row_keys, row_at = np.unique(rows, return_inverse=True)
    column_keys, column_at = np.unique(columns, return_inverse=True)
    allowed, pairs = allowed.copy(), pairs & allowed[first] & allowed[second]
    while True:
        before = int(pairs.sum())
        allowed[row_keys[np.bincount(row_at, pairs, len(row_keys)) == 0] % width] = False
        allowed[column_keys[np.bincount(column_at, pairs, len(column_keys)) == 0] % width] = False
        pairs &= allowed[first] & allowed[second]
        if int(pairs.sum()) == before:
            return allowed, pairs

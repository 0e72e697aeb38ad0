"""The problem as an integer program over its local polytope, solved by HiGHS.

A variable for each strategy, and one for each pair of strategies of an edge; the pairs of a strategy sum to it. The
bytes of each interval are within its room.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import highspy
import numpy as np

from superopt.assignment.memory_constraints import MemoryConstraints
from superopt.assignment.pairwise import Mask, PairwiseModel
from superopt.assignment.reduction import Floats, Integers
from superopt.runtime.highs import solver

__all__ = ["IntegerProgramResult", "AssignmentIntegerProgram", "memory_entries"]

_GAP = 0.4  # costs are whole numbers
_TOLERANCE = 1e-6  # of HiGHS, by which its solutions may violate a row, and so its bound be off


@dataclass(frozen=True)
class IntegerProgramResult:
    """What HiGHS found.

    Attributes:
        choice: strategies by node; ``None`` where it found none.
        bound: no choice among the allowed ones costs less; infinite where there is none.
    """

    choice: Integers | None
    bound: float


class AssignmentIntegerProgram:
    """The integer program of a model.

    Args:
        model: costs.
        memory: bytes and room.
        allowed: by strategy, whether it may be chosen.
        pairs: by entry of the tables, whether it may be.
    """

    def __init__(self, model: PairwiseModel, memory: MemoryConstraints, allowed: Mask, pairs: Mask) -> None:
        self.model, self.memory = model, memory
        self.strategy = np.flatnonzero(allowed)
        self.entry = np.flatnonzero(pairs)
        self.column = np.full(model.strategies, -1)
        self.column[self.strategy] = np.arange(len(self.strategy))
        self.rows: list[tuple[Integers, Integers, Floats]] = []
        self.lower: list[Floats] = []
        self.upper: list[Floats] = []
        self.count = 0
        ones = np.ones(model.nodes)
        self._add(model.node_of[self.strategy], np.arange(len(self.strategy)), np.ones(len(self.strategy)), ones, ones)
        for ends in model.ends:
            self._add_marginals(ends[self.entry])
        self._add_memory()

    def _add_marginals(self, strategy: Integers) -> None:
        """The pairs of each strategy at an end of an edge sum to it.

        Args:
            strategy: by variable of a pair, the strategy at this end.
        """
        model = self.model
        edge = np.searchsorted(model.table_offsets, self.entry, side="right") - 1
        keys, first, row = np.unique(edge * model.strategies + strategy, return_index=True, return_inverse=True)
        variables = len(self.strategy) + np.arange(len(self.entry))
        self._add(
            np.concatenate([row.ravel(), np.arange(len(keys))]),
            np.concatenate([variables, self.column[strategy[first]]]),
            np.concatenate([np.ones(len(variables)), -np.ones(len(keys))]),
            np.zeros(len(keys)), np.zeros(len(keys)),
        )  # fmt: skip

    def _add(self, row: Integers, column: Integers, value: Floats, lower: Floats, upper: Floats) -> None:
        self.rows.append((row + self.count, column, value))
        self.lower.append(lower)
        self.upper.append(upper)
        self.count += len(lower)

    def _add_memory(self) -> None:
        """The bytes of each interval that can be over its room are within it."""
        memory, width = self.memory, max(1, len(self.strategy))
        at = self.column[memory.strategy]
        begin, end = _lives(memory, at >= 0)
        used = np.flatnonzero((at >= 0) & (memory.bytes > 0))
        count = (end - begin)[memory.allocation[used]]
        which = np.repeat(used, count)
        step = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
        interval = begin[memory.allocation[which]] + step
        keys, row = np.unique(interval * width + at[which], return_inverse=True)
        total = np.bincount(row.ravel(), memory.bytes[which], len(keys))
        # Sums are multiples of a unit. A quarter of it above the last one that fits decides nothing, and HiGHS's
        # tolerance does not let the next one in.
        unit = max(1, int(np.gcd.reduce(memory.bytes.astype(np.int64), initial=0)))
        most = np.floor(memory.room[_binding(memory, at >= 0)] / unit) + 0.25
        scale = np.maximum(most, 1.0)
        low = np.full(len(most), -np.inf)
        self._add(keys // width, keys % width, total / unit / scale[keys // width], low, most / scale)

    def solve(self, seconds: float, nodes: int, start: Integers | None) -> IntegerProgramResult:
        """Minimise.

        Args:
            seconds: of HiGHS.
            nodes: of branch and bound, at most.
            start: a choice to begin with.
        """
        run = solver(time_limit=max(0.05, seconds), mip_rel_gap=0.0, mip_abs_gap=_GAP, mip_max_nodes=nodes)
        run.passModel(self._program())
        if start is not None:
            chosen = np.isin(self.strategy, self.model.offsets[:-1] + start)
            run.setSolution(len(chosen), np.arange(len(chosen), dtype=np.int32), chosen.astype(np.float64))
        run.run()
        info, status = run.getInfo(), run.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            return IntegerProgramResult(None, math.inf)
        found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        choice = self._choice(np.array(run.getSolution().col_value)) if found else None
        bound = float(info.mip_dual_bound)
        return IntegerProgramResult(self._checked(choice), self.model.constant + bound - _TOLERANCE * (1 + abs(bound)))

    def _program(self) -> highspy.HighsLp:
        program = highspy.HighsLp()
        row, column, value = (np.concatenate(parts) for parts in zip(*self.rows, strict=True))
        order = np.argsort(row, kind="stable")
        whole, mixed = len(self.strategy), len(self.entry)
        program.num_col_, program.num_row_ = whole + mixed, self.count
        program.col_cost_ = np.concatenate([self.model.costs[self.strategy], self.model.tables[self.entry]])
        program.col_lower_, program.col_upper_ = np.zeros(whole + mixed), np.ones(whole + mixed)
        program.row_lower_, program.row_upper_ = np.concatenate(self.lower), np.concatenate(self.upper)
        program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        program.a_matrix_.start_ = np.searchsorted(row[order], np.arange(self.count + 1)).astype(np.int32)
        program.a_matrix_.index_ = column[order].astype(np.int32)
        program.a_matrix_.value_ = value[order]
        kinds = (highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous)
        program.integrality_ = [kinds[0]] * whole + [kinds[1]] * mixed
        return program

    def _choice(self, values: Floats) -> Integers:
        model = self.model
        chosen = np.zeros(model.strategies)
        chosen[self.strategy] = values[: len(self.strategy)]
        order = np.lexsort((-chosen, model.node_of))
        return np.asarray(order[model.offsets[:-1]] - model.offsets[:-1])

    def _checked(self, choice: Integers | None) -> Integers | None:
        """The choice, if it holds without tolerances."""
        if choice is None or self.model.violations(choice):
            return None
        return choice if (self.memory.held(choice) <= self.memory.room).all() else None


def memory_entries(memory: MemoryConstraints, allowed: Mask) -> int:
    """Entries of the rows of memory, before those of one strategy and interval are added up."""
    left = allowed[memory.strategy]
    begin, end = _lives(memory, left)
    return int((end - begin)[memory.allocation[left & (memory.bytes > 0)]].sum())


def _lives(memory: MemoryConstraints, left: Mask) -> tuple[Integers, Integers]:
    """Beginning and end of each allocation, counted in the intervals that bind."""
    number = np.concatenate([[0], np.cumsum(_binding(memory, left))])
    return number[memory.start], number[memory.end]


def _binding(memory: MemoryConstraints, left: Mask) -> Mask:
    """Intervals that are over their room if all allocations take the most of what is left to them."""
    if not len(memory.offsets):
        return np.ones(len(memory.room), dtype=bool)
    most = np.maximum.reduceat(np.where(left, memory.bytes, 0.0), memory.offsets)
    return np.asarray(memory.profile(most) > memory.room)

"""The problem as an integer program over its local polytope, solved by HiGHS.

A variable for each strategy, and one for each pair of strategies of an edge; the pairs of a strategy sum to it. The
bytes of each interval are within its room.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import highspy
import numpy as np
from numpy.typing import NDArray

from superopt.assignment.memory import Memory
from superopt.assignment.pairwise import Pairwise
from superopt.assignment.reduction import Floats, Integers
from superopt.runtime.numeric_libraries import solver

__all__ = ["Outcome", "Program"]

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Outcome:
    """What HiGHS found.

    Attributes:
        choice: strategies by node; ``None`` where it found none.
        bound: no choice among the allowed ones costs less.
        exhausted: whether the search ended: the bound is then that of the optimum, or infinite where there is none.
    """

    choice: Integers | None
    bound: float
    exhausted: bool


class Program:
    """The integer program of a model.

    Args:
        model: costs.
        memory: bytes and room.
        allowed: by strategy, whether it may be chosen.
        pairs: by entry of the tables, whether it may be.
    """

    def __init__(self, model: Pairwise, memory: Memory, allowed: Mask, pairs: Mask) -> None:
        self.model, self.memory = model, memory
        self.strategy = np.flatnonzero(allowed)
        self.entry = np.flatnonzero(pairs)
        column = np.full(model.strategies, -1)
        column[self.strategy] = np.arange(len(self.strategy))
        rows: list[tuple[Integers, Integers, Floats]] = []
        lower: list[Floats] = []
        upper: list[Floats] = []
        self.rows, self.lower, self.upper, self.count = rows, lower, upper, 0
        node = np.repeat(np.arange(model.nodes), model.sizes)
        self._add(node[self.strategy], np.arange(len(self.strategy)), np.ones(len(self.strategy)), np.ones(model.nodes), np.ones(model.nodes))
        edge = np.searchsorted(model.table_offsets, self.entry, side="right") - 1
        within = self.entry - model.table_offsets[edge]
        second = model.sizes[model.pairs[edge, 1]]
        variables = len(self.strategy) + np.arange(len(self.entry))
        for side, strategy in enumerate((within // second, within % second)):
            at = model.offsets[model.pairs[edge, side]] + strategy
            # one row for each edge and strategy of its end
            key = edge * (int(model.sizes.max(initial=0)) + 1) + strategy
            unique, first, inverse = np.unique(key, return_index=True, return_inverse=True)
            row = np.concatenate([inverse.ravel(), np.arange(len(unique))])
            cols = np.concatenate([variables, column[at[first]]])
            values = np.concatenate([np.ones(len(variables)), -np.ones(len(unique))])
            self._add(row, cols, values, np.zeros(len(unique)), np.zeros(len(unique)))
        self._add_memory(column)

    def _add(self, row: Integers, column: Integers, value: Floats, lower: Floats, upper: Floats) -> None:
        self.rows.append((row + self.count, column, value))
        self.lower.append(lower)
        self.upper.append(upper)
        self.count += len(lower)

    def _add_memory(self, column: Integers) -> None:
        memory = self.memory
        life = memory.end - memory.start
        row: list[Integers] = []
        col: list[Integers] = []
        val: list[Floats] = []
        at = column[memory.strategy]
        used = np.flatnonzero((at >= 0) & (memory.bytes > 0))
        count = life[memory.allocation[used]]
        which = np.repeat(used, count)
        step = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
        interval = memory.start[memory.allocation[which]] + step
        key = interval * len(self.strategy) + at[which]
        unique, inverse = np.unique(key, return_inverse=True)
        total = np.bincount(inverse.ravel(), memory.bytes[which], len(unique))
        interval, columns = unique // max(1, len(self.strategy)), unique % max(1, len(self.strategy))
        room = np.maximum(memory.room, 1.0)
        self._add(interval, columns, total / room[interval], np.full(len(room), -np.inf), memory.room / room)

    def solve(self, seconds: float, nodes: int, start: Integers | None, cutoff: float) -> Outcome:
        """Minimise.

        Args:
            seconds: of HiGHS.
            nodes: of branch and bound, at most.
            start: a choice to begin with.
            cutoff: choices that cost more do not matter.
        """
        program, offset = self._lp()
        options: dict[str, float] = {"time_limit": seconds, "mip_rel_gap": 0.0, "mip_abs_gap": 0.4}
        run = solver(**options)
        run.passModel(program)
        if start is not None:
            at = self.model.offsets[:-1] + start
            chosen = np.isin(self.strategy, at)
            run.setSolution(len(chosen), np.arange(len(chosen), dtype=np.int32), chosen.astype(float))
        run.run()
        info, status = run.getInfo(), run.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            return Outcome(None, math.inf, True)
        found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        bound = float(info.mip_dual_bound)
        choice = self._choice(np.array(run.getSolution().col_value)) if found else None
        return Outcome(choice, bound, status == highspy.HighsModelStatus.kOptimal)

    def _lp(self) -> tuple[highspy.HighsLp, float]:
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
        return program, 0.0

    def _choice(self, values: Floats) -> Integers:
        model = self.model
        chosen = np.zeros(model.strategies)
        chosen[self.strategy] = values[: len(self.strategy)]
        node = np.repeat(np.arange(model.nodes), model.sizes)
        order = np.lexsort((-chosen, node))
        return np.asarray(order[model.offsets[:-1]] - model.offsets[:-1])

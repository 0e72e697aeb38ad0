"""How much work a proof may do, counted and not timed: what is proved does not depend on the machine or its load.

A unit is one step of the prover, or :data:`RESOURCES` of what Z3 counts for itself. The rate was measured over the
held-out rules; a "second" is what one core of the machine where it was measured does in one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property

import z3

__all__ = ["ProofBudget", "ProofBudgetExceeded", "ProofDeadlineExceeded", "emergency"]

RATE = 2_000  # units that take about a second
RESOURCES = 300  # of Z3's own count: one unit
# The emergency stop by the clock: so many times the nominal seconds, at least this. No proof that was met came near it
# on an idle machine (the slowest took 4 s), so a machine a hundred times slower still gives the same verdicts.
_PATIENCE, _LEAST = 60.0, 600.0


class ProofBudgetExceeded(Exception):
    """The proof used up its budget."""


class ProofDeadlineExceeded(Exception):
    """The clock ended the proof, not its counted work: no verdict, and none that another machine must share."""


def emergency(seconds: float) -> float:
    """After how long the clock ends a proof with the work of so many nominal seconds."""
    return max(_PATIENCE * seconds, _LEAST)


@dataclass
class ProofBudget:
    """What is left, shared by all parts of one proof.

    Attributes:
        units: of work.
        deadline: ``time.monotonic()`` of the emergency stop.
    """

    units: float = float("inf")
    deadline: float = float("inf")

    @cached_property
    def context(self) -> z3.Context:
        """Z3's state, for this proof alone: what Z3 does depends on what it did before."""
        return z3.Context()

    @staticmethod
    def of(seconds: float) -> ProofBudget:
        """As much as takes about so many seconds."""
        return ProofBudget(seconds * RATE, time.monotonic() + emergency(seconds))

    def spend(self, units: float = 1) -> None:
        """Count work.

        Raises:
            ProofBudgetExceeded: nothing is left.
        """
        self.units -= units
        if self.units < 0:
            raise ProofBudgetExceeded
        if time.monotonic() > self.deadline:
            raise ProofDeadlineExceeded

    def refuted(self, solver: z3.Solver, most: int) -> bool:
        """Whether Z3 shows that the assertions contradict each other, with at most this much of its own count.

        Raises:
            ProofBudgetExceeded: nothing is left.
        """
        return bool(self._query(solver, most) == z3.unsat)

    def model(self, solver: z3.Solver, most: int) -> z3.ModelRef | None:
        """Values that satisfy the assertions, if Z3 finds some with at most this much of its own count.

        Raises:
            ProofBudgetExceeded: nothing is left.
        """
        return solver.model() if self._query(solver, most) == z3.sat else None

    def _query(self, solver: z3.Solver, most: int) -> z3.CheckSatResult:
        """Z3's answer, bounded by its own count; the clock only ends a query that the count does not."""
        self.spend()
        left = self.deadline - time.monotonic()
        solver.set("timeout", int(1000 * min(max(left, 1.0), _LEAST)))
        solver.set("rlimit", int(min(most, max(1.0, self.units * RESOURCES))))
        before = _count(solver)
        found = solver.check()
        self.spend((_count(solver) - before) / RESOURCES)
        return found


def _count(solver: z3.Solver) -> int:
    statistics = dict(list(solver.statistics()))
    return int(statistics.get("rlimit count", 0))

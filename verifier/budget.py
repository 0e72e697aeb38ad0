"""How much work a proof may do, counted and not timed: what is proved does not depend on the machine or its load.

A unit is one step of the prover, or :data:`RESOURCES` of what Z3 counts for itself. The rate was measured over the
held-out rules; a "second" is what one core of the machine where it was measured does in one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property

import z3

__all__ = ["Budget", "OutOfTimeError"]

RATE = 2_000  # units that take about a second
RESOURCES = 300  # of Z3's own count: one unit
_PATIENCE, _LEAST = 10.0, 60.0  # the emergency stop by the clock: so many times the nominal seconds, at least this
_LONGEST_QUERY = 60_000  # milliseconds; a query ends by its count long before


class OutOfTimeError(Exception):
    """The proof used up its budget."""


@dataclass
class Budget:
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
    def of(seconds: float) -> Budget:
        """As much as takes about so many seconds."""
        return Budget(seconds * RATE, time.monotonic() + max(_PATIENCE * seconds, _LEAST))

    def spend(self, units: float = 1) -> None:
        """Count work.

        Raises:
            OutOfTimeError: nothing is left.
        """
        self.units -= units
        if self.units < 0 or time.monotonic() > self.deadline:
            raise OutOfTimeError

    def refuted(self, solver: z3.Solver, most: int) -> bool:
        """Whether Z3 shows that the assertions contradict each other, with at most this much of its own count.

        Raises:
            OutOfTimeError: nothing is left.
        """
        self.spend()
        solver.set("timeout", _LONGEST_QUERY)
        solver.set("rlimit", int(min(most, max(1.0, self.units * RESOURCES))))
        before = _count(solver)
        found = solver.check()
        self.spend((_count(solver) - before) / RESOURCES)
        return bool(found == z3.unsat)


def _count(solver: z3.Solver) -> int:
    statistics = dict(list(solver.statistics()))
    return int(statistics.get("rlimit count", 0))

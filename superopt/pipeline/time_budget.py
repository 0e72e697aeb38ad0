"""A time limit, and what each part of an optimisation may take of it: the check comes before everything else."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from superopt import cost as costs
from superopt.ir.graph import Graph
from superopt.ops.shape_inference import InferredTypes
from superopt.pipeline.acceptance_policy import POLICY
from superopt.pipeline.check_policy import CHECKS

__all__ = ["SHARES", "TimeBudget", "TimeShares"]


@dataclass(frozen=True)
class TimeShares:
    """How a time limit is divided, beside what the check needs.

    Attributes:
        memory: share that is kept for writing the result for less memory, where that is asked for.
        weights: share that reading the weights' elements may take, at most: the search needs the rest.
        prices: share that measuring operators may take; the rest is predicted.
        weight_node_seconds: that reading the weights' elements takes for each node.
    """

    memory: float = 0.6
    weights: float = 0.3
    prices: float = 0.3
    weight_node_seconds: float = 2e-3


SHARES = TimeShares()


@dataclass
class TimeBudget:
    """What is left of a time limit.

    Attributes:
        limit: seconds in all; ``None``: as long as it takes.
        deadline: on the monotonic clock; infinite without a limit.
        check_seconds: seconds that checking and reporting a result will take.
        weight_seconds: seconds that reading all elements of the weights will take.
        loading_seconds: seconds that a benchmark takes before its first round.
        interrupted: whether somebody interrupted the optimisation: what there is is still accepted and checked.
    """

    limit: float | None
    deadline: float
    check_seconds: float = 0.0
    weight_seconds: float = 0.0
    loading_seconds: float = 0.0
    interrupted: bool = False

    @staticmethod
    def of(limit: float | None) -> TimeBudget:
        """The budget of a command that begins now."""
        return TimeBudget(limit, float("inf") if limit is None else time.monotonic() + limit)

    def extend(self, seconds: float) -> None:
        """Leave out what was spent on the machine, not on the model: the first run calibrates its prices."""
        self.deadline += seconds

    def expect(self, graph: Graph, typing: InferredTypes, sizes: Mapping[str, int]) -> None:
        """Say which model it is spent on, and what its symbolic dimensions are."""
        reading = 2 * graph.weight_bytes / CHECKS.weight_bytes
        runs = costs.graph_work(graph, typing, sizes)["flops"] / CHECKS.flops + len(graph.nodes) * CHECKS.node_seconds
        self.check_seconds = float(CHECKS.least_seconds + runs + reading)
        self.loading_seconds = len(graph.nodes) * POLICY.loading_node_seconds
        self.weight_seconds = reading + len(graph.nodes) * SHARES.weight_node_seconds

    @property
    def left(self) -> float:
        """Seconds until the time limit; infinite where there is none."""
        return max(0.0, self.deadline - time.monotonic())

    @property
    def left_or_none(self) -> float | None:
        """The same for a part that takes ``None`` for no limit."""
        return None if self.deadline == float("inf") else self.left

    @property
    def timing_reserve(self) -> float:
        """Seconds that a paired benchmark has to leave: its models are loaded first, and the check comes after."""
        return self.reserve + self.loading_seconds

    @property
    def measuring(self) -> float:
        """Seconds that measuring operators may take."""
        return float("inf") if self.limit is None else SHARES.prices * self.limit

    @property
    def reserve(self) -> float:
        """Seconds that are kept for checking and reporting, so that the search stops in time for them."""
        return self.check_seconds if self.limit is None else min(self.check_seconds, CHECKS.reserved_share * self.limit)

    def for_search(self, writes: bool) -> float | None:
        """Seconds that a search may take; ``None`` without a time limit.

        Args:
            writes: a result will be written for memory, or has to need less than the input.
        """
        left = self.left_or_none
        kept = self.reserve + (SHARES.memory * (self.limit or 0.0) if writes else 0.0)
        return None if left is None else max(0.0, left - kept)

    @property
    def check_timeout(self) -> float | None:
        """Seconds after which a check is given up; ``None`` without a time limit."""
        left = self.left_or_none
        return None if left is None else left + CHECKS.grace_share * (self.limit or 0.0)

    @property
    def allows_reading_weights(self) -> bool:
        """Whether looking at all elements of the weights leaves the search most of the time, as far as both are known
        beforehand: the graph that is searched does not depend on how fast the model was read."""
        return self.limit is None or self.weight_seconds <= SHARES.weights * self.limit

    @property
    def weights_deadline(self) -> float:
        """When, on the monotonic clock, checking what elements of weights allow is given up: what follows needs half of
        the time that is left, or what was found would not be used."""
        return time.monotonic() + (self.left - self.reserve) / 2

    def interrupt(self) -> None:
        """After an interrupt, what there is gets little more time."""
        self.interrupted = True
        self.deadline = min(self.deadline, time.monotonic() + max(CHECKS.interrupted_seconds, self.reserve))

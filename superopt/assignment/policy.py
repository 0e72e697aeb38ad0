"""Constants of the solver, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AssignmentSolverPolicy"]


@dataclass(frozen=True)
class AssignmentSolverPolicy:
    """What decides the solver's results, besides the problem, the seed and the limits.

    Attributes:
        forbidden: costs of at least this say that a strategy or a pair must not be.
        table_entries: of the largest table of an elimination. Larger tables free more nodes at once, and take longer.
        large, most_growth: problems of fewer nodes than this have tables larger in inverse proportion, at most by this
            factor: all moves take about as long.
        plans: cutsets that are kept to be used again. A plan takes twice as long to compile as to run.
        spread: chance against degree in the choice of a cutset. At 0 the nodes of largest degree are in all of them.
        protected: share of the nodes that few cutsets have left free, which the next one leaves free.
        coarsest, finest: nodes of the coarsest contraction, and share of the nodes in the finest: few nodes move many
            others at once, many nodes move them apart.
        ratio: nodes of a contraction against those of the next coarser one.
        warm: steps before memory has a price.
        noise: chance against dependence in the choice of the neighbour that a node follows.
        cap: share of the cost above which it does not matter how much an edge costs.
        patience, progress: steps without a gain of this share of the cost, after which the search begins elsewhere.
        first_price: share of the cost that the limit's memory is priced at, to begin with.
        rate, least_rate, halving: multipliers of memory change by exp(rate × excess); the rate falls to half after
            this many steps, and not below the least: they must settle, and must follow as choices improve.
        largest_change: of the logarithm of a multiplier in a step; memory may be 100 times over the limit at first.
        usable: share of the time limit until which steps begin; a step, and the exact evaluation, take the rest.
        search, small_search: share of the time for the search, and the same where an integer program may follow.
        small_steps: of the search before an integer program: seconds on the smallest problems.
        sweeps: of message passing; later ones gain little.
        program_entries: of the tables, above which no integer program is solved: its relaxation takes minutes.
        memory_entries: of the rows of memory, above which none is solved: they alone take gigabytes.
        program_nodes: of branch and bound, hours on large problems: a limit that does not depend on the machine.
        program_seconds: left, below which none is begun.
        repairs, repair_candidates, repair_share: rounds of a repair, changes looked at in each, and the share of the
            excess that a round removes: what a change costs depends on those before.
        near: choices with a peak below this multiple of the room are repaired. Others are far from any that fits.
    """

    forbidden: int = 10**18
    table_entries: int = 1 << 14
    large: float = 2000.0
    most_growth: float = 16.0
    plans: int = 24
    spread: float = 0.5
    protected: float = 0.2
    coarsest: float = 20.0
    finest: float = 0.05
    ratio: float = 4.0
    warm: int = 6
    noise: float = 0.5
    cap: float = 0.1
    patience: int = 40
    progress: float = 1e-4
    first_price: float = 0.02
    rate: float = 0.5
    least_rate: float = 0.05
    halving: int = 20
    largest_change: float = 0.5
    usable: float = 0.97
    search: float = 0.9
    small_search: float = 0.4
    small_steps: int = 1000
    sweeps: int = 200
    program_entries: int = 60_000
    memory_entries: int = 1_000_000
    program_nodes: int = 100_000
    program_seconds: float = 1.0
    repairs: int = 200
    repair_candidates: int = 400
    repair_share: float = 0.2
    near: float = 2.0

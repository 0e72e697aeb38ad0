"""Constants of the solver, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Policy"]


@dataclass(frozen=True)
class Policy:
    """What decides the solver's results, besides the problem, the seed and the limits.

    Attributes:
        forbidden: costs of at least this say that a strategy or a pair must not be.
        table_entries: of the largest table of an elimination. Larger tables free more nodes at once, and take longer.
        plans: cutsets that are kept to be used again. A plan costs four times as much to compile as to run.
        spread: chance against degree in the choice of a cutset. At 0 the nodes of largest degree are in all of them.
        protected: share of the nodes that few cutsets have left free, which the next one leaves free.
        coarsest, finest: nodes of the coarsest contraction, and share of the nodes in the finest: few nodes move many
            others at once, many nodes move them apart.
        coarse_moves: cutsets that each contraction is minimised with.
        noise: chance against dependence in the choice of the neighbour that a node follows.
        cap: share of the cost above which it does not matter how much an edge costs.
        first_price: share of the cost that the limit's memory is priced at, to begin with.
        rate, least_rate, halving: multipliers of memory change by exp(rate × excess); the rate falls to half after
            this many steps, and not below the least: they must settle, and must follow as choices improve.
        largest_change: of the logarithm of a multiplier in a step; memory may be 100 times over the limit at first.
        near: choices with a peak below this multiple of the room are repaired. Others are far from any that fits.
    """

    forbidden: int = 10**18
    table_entries: int = 1 << 14
    plans: int = 24
    spread: float = 1.0
    protected: float = 0.2
    coarsest: float = 20.0
    finest: float = 0.25
    coarse_moves: int = 2
    noise: float = 0.5
    cap: float = 0.1
    first_price: float = 0.02
    rate: float = 0.5
    least_rate: float = 0.05
    halving: int = 20
    largest_change: float = 0.5
    near: float = 2.0

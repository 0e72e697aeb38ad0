"""Options and result of a search."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from superopt.ir.graph import Graph
from superopt.rules.float_verdicts import FloatVerdictStore

__all__ = ["ENDS", "SHOWN", "AppliedRule", "Progress", "SearchOptions", "SearchResult"]

ENDS = ("saturated", "nodes", "steps", "memory", "time", "interrupted")  # why a search ended; the last is reported
SHOWN = 20  # near misses and places that are reported

Progress = Callable[[int, int | None, str], None]


@dataclass(frozen=True)
class SearchOptions:
    """Settings of a search.

    Attributes:
        time_limit: seconds for everything; ``None`` lets it reach its fixpoint. 0 returns the input.
        memory_limit: bytes the process may occupy; beyond, the best so far is returned.
        seed: the result is the same for a seed, given the same costs.
        node_limit: e-nodes of a region, at most.
        window: operators of a region, at most.
        fold_budget_bytes: growth of the weights by folding; ``None``: a tenth of the model and 64 MB.
        sizes: what symbolic dimensions are costed at; they stay symbolic.
        disable: rule ids or families that are not used; ``enable``: if given, only these are.
        most_nodes: e-nodes of all regions after which no further phase begins: the work budget, the same on every
            machine.
        least_gain: of a changed region, as a share of its cost; 0 takes costs as exact, noise included.
        floats: the rules' verdicts in floating point, and how they are read; ``None`` uses whatever holds over the
            reals, for experiments.
        widens: operators of half precision are computed in float32, where the backend has no kernel for them.
        layouts: operators may be written for another order of axes, where that needs less time for Transposes.
        finite: inputs are promised to be finite numbers, so what arithmetic without a pole makes of them is, too.
        no_tradeoffs: only plans with no more FLOPs, bytes and kernels than what they replace, and less of one.
        reducing_only: only the kinds of rewrites that are few and mostly right (merging, selecting early, what leaves
            fewer operators to run, final fusion), and no windows in which all rules have their turn.
        greedy: a rewrite is applied where it gains by the prices of its two sides, or once where it costs no more, on
            windows of the full size; regions are extracted by local search, and one order of merging is tried.
        cheap_us: microseconds of the whole model that a price may be expected to lose by being off, and still not be
            asked for.
        cache: keep the results of regions for later runs, and use those of earlier ones.
        reserved: names that no new value may have, where the graph stands for another that the result is compared with.
    """

    time_limit: float | None = None
    memory_limit: int | None = None
    seed: int = 0
    node_limit: int = 800
    window: int = 60
    fold_budget_bytes: int | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    enable: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()
    most_nodes: int = 200_000
    least_gain: float = 0.01
    floats: FloatVerdictStore | None = None
    widens: bool = True
    layouts: bool = True
    finite: bool = False
    no_tradeoffs: bool = False
    reducing_only: bool = False
    greedy: bool = False
    cheap_us: float = 0.0
    cache: bool = True
    reserved: frozenset[str] = frozenset()


@dataclass(frozen=True)
class AppliedRule:
    """A rule that the result rests on.

    Attributes:
        rule: its id; "fold" is the evaluation of constants, which is no rule.
        count: how often it was used, repeated regions counted each time.
        where: names of values that the regions compute in which it was used (the first ones).
        gain_us: modelled gain of these regions, shared equally among the rules used in each.
    """

    rule: str
    count: int
    where: tuple[str, ...]
    gain_us: float | None


@dataclass(frozen=True)
class SearchResult:
    """The graph (the input itself when nothing better was found) and how it came about.

    Attributes:
        before_us, after_us: modelled cost of what superopt understands of the graph.
        stopped: "saturated", "nodes", "steps", "time", "memory" or "interrupted".
        asked, decided: questions about prices that were settled beyond what was known, and how many changed a choice.
        quarantined: rules that were switched off during the search, and why.
        widened: how many operators of half precision are computed in float32.
        laid_out: how many operators are written for another order of axes.
        bodies: of control flow, that were rewritten: each before and after, as graphs of their own.
    """

    graph: Graph
    applied: tuple[AppliedRule, ...] = ()
    before_us: float = 0.0
    after_us: float = 0.0
    regions: int = 0
    distinct_regions: int = 0
    e_nodes: int = 0
    stopped: str = "saturated"
    seconds: float = 0.0
    near_misses: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    measurements_requested: int = 0
    measurements_decisive: int = 0
    quarantined: Mapping[str, str] = field(default_factory=dict)
    widened: int = 0
    laid_out: int = 0
    bodies: tuple[tuple[Graph, Graph], ...] = ()

"""Rewrites that the elements of a model's weights allow: found, checked by code of its own, and priced.

They come before the search, because they decide which operators it sees. Claims that the checker refutes, and rewrites
that prices do not favour, leave the model as it was. The result is accepted and checked like any other, against the
model itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from superopt import cost as costs
from superopt import report
from superopt.cost import CostModel
from superopt.ir.errors import InvalidModel, NotEquivalent, OutOfTime, ResourceLimit, Unsupported
from superopt.ir.graph import Graph
from superopt.passes import SearchResult
from superopt.passes.weights import WeightRewriteStage, by_positions, by_tables, by_values
from superopt.pipeline.report_notes import ReportNotes
from superopt.rules.float_verdicts import MOST_ERROR
from superopt.runtime.protocol import Runtime
from superopt.verifier.check.differential import EXACT, ErrorAllowance
from superopt.verifier.weights.claim_checker import ClaimCheckCounts, check_values

if TYPE_CHECKING:
    from superopt.pipeline.fast_algorithm_proposals import NumericalErrorComparison

__all__ = ["WeightRewrites", "rewrite_weights"]

_SPENT = 0.25  # of the budget of errors, at most, on the largest singular value that is left out of a weight
_MEASURED = 0.5  # of the budget, at most, on the few inputs on which errors are measured
_SHOWN = 20  # claims that a report says in words


@dataclass(frozen=True)
class WeightRewrites:
    """A model rewritten by the elements of its weights.

    Attributes:
        original: the model.
        stages: the rewrites, each checked.
        held: what was checked of each.
        before_us: what the model is modelled to take.
        errors: of both, where weights were only near to a lower rank.
    """

    original: Graph
    stages: tuple[WeightRewriteStage, ...]
    held: tuple[ClaimCheckCounts, ...]
    before_us: float
    errors: NumericalErrorComparison | None = None

    @property
    def graph(self) -> Graph:
        return self.stages[-1].after

    def slack(self, result: Graph, mode: str) -> ErrorAllowance:
        """What the check of a result allows beyond its own rounding: the mode's budget, where weights were only near to
        a lower rank."""
        return EXACT if self.errors is None else ErrorAllowance.of_new_nodes(MOST_ERROR[mode], result, self.original)

    @property
    def exact_part(self) -> WeightRewrites | None:
        """The same without weights of lower rank, which alone are not exact; ``None`` where nothing is left."""
        exact = tuple(s for s in self.stages if s.certificate.exact)
        if not exact or len(exact) == len(self.stages):
            return None
        return replace(self, stages=exact, held=self.held[: len(exact)], errors=None)

    def counted(self, found: SearchResult) -> SearchResult:
        """A search's result of the rewritten model, as one of the model."""
        return replace(found, before_us=self.before_us)

    def reported(self) -> report.WeightRewriteReport:
        """What a report says."""
        certificates = [s.certificate for s in self.stages]
        claims = list(
            dict.fromkeys(
                str(c) for f in certificates for c in (*f.factored, *f.same, *f.decided, *f.equal, *f.uniform, *f.moved)
            )
        )
        held = ClaimCheckCounts(*(sum(n) for n in zip(*((h.claims, h.sites, h.exact) for h in self.held), strict=True)))
        return report.WeightRewriteReport(
            tuple(claims[:_SHOWN]), len(claims), sum(k.removed for f in certificates for k in f.kept),
            (_elements(self.original), _elements(self.graph)), all(f.exact for f in certificates), str(held),
        )  # fmt: skip


def rewrite_weights(
    graph: Graph, prices: CostModel, mode: str, sizes: Mapping[str, int], runtime: Runtime, log: ReportNotes, *,
    seed: int = 0, deadline: float = float("inf"),
) -> WeightRewrites | None:  # fmt: skip
    """A model rewritten by the elements of its weights, where that is checked and modelled to pay; else ``None``.

    Args:
        graph: the model.
        prices: the target's cost model.
        mode: as ``--float`` says it; "strict" takes no running value to be finite, and no weight to be of
            a rank that it is only near to.
        sizes: what symbolic dimensions are costed at.
        runtime: in which errors are measured where weights are only near to a lower rank.
        log: why what was found is not used is added.
        seed: of the check's draws.
        deadline: ``time.monotonic`` value at which the check is given up.
    """
    finite, most = mode != "strict", MOST_ERROR[mode]
    before = costs.graph_cost(graph, prices, sizes=sizes).us
    for budget in (_SPENT * most, 0.0) if most else (0.0,):
        ways = [by_values(graph, finite=finite, budget=budget)]
        ways += [by_values(graph, finite=finite, budget=budget, sums=False)] if ways[0] else []
        priced = [(costs.graph_cost(s[-1].after, prices, sizes=sizes).us, s) for s in ways if s]
        after, stages = min(priced, key=lambda one: one[0], default=(before, ()))
        if stages and after >= before:
            log.note(
                f"without what the elements of the weights make superfluous, the model is modelled at "
                f"{after / (before or 1.0):.3f} of its cost, so it is kept"
            )
            after, stages = before, ()
        worth = _CostComparison(prices, sizes, after)
        elsewhere = by_positions(stages[-1].after if stages else graph, worth)
        stages = (*stages, *([] if elsewhere is None else [elsewhere]))
        tables = by_tables(stages[-1].after if stages else graph, worth)
        stages = (*stages, *([] if tables is None else [tables]))
        if not stages:
            return None
        try:
            held = tuple(check_values(s.before, s.after, s.certificate, seed=seed, deadline=deadline) for s in stages)
        except OutOfTime as error:
            log.note(f"what the elements of the weights allow is not used: {error}; a longer --time-limit has some")
            return None
        except NotEquivalent as error:
            log.note(f"a claim about the elements of the weights was refuted, so none is used: {error}")
            return None
        found = WeightRewrites(graph, stages, held, before)
        if all(s.certificate.exact for s in stages):
            return found
        from superopt.pipeline.fast_algorithm_proposals import accuracy  # here, because few models have such weights

        try:
            errors = accuracy(graph, found.graph, sizes=sizes, runtime=runtime, seed=seed)
        except (InvalidModel, Unsupported, ResourceLimit) as error:
            log.note(f"weights of lower rank are not used: {error}")
            continue
        if errors.within(mode, _MEASURED):
            return replace(found, errors=errors)
        log.note(
            f"weights of lower rank are not used: errors grow from {errors.before:.1e} to {errors.after:.1e}, which "
            f"{mode!r} does not allow"
        )
    return None


@dataclass
class _CostComparison:
    """Whether a graph is cheaper than the last one that was; asked of one graph after the other."""

    prices: CostModel
    sizes: Mapping[str, int]
    least_us: float

    def __call__(self, graph: Graph) -> bool:
        us = costs.graph_cost(graph, self.prices, sizes=self.sizes).us
        if us >= self.least_us:
            return False
        self.least_us = us
        return True


def _elements(graph: Graph) -> int:
    return sum(n for w in graph.weights if isinstance(n := w.type.elements, int))

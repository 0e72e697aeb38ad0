"""What the elements of a model's weights allow, before the search: found, checked by code of its own, and priced.

The first step of an optimisation, because what it leaves out decides what every later step is about. It can only add:
claims that the checker refutes, and rewrites that prices do not favour, leave the model as it was; the result is judged
like any other, against the model itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from superopt import cost as costs
from superopt import report
from superopt.cost import CostModel
from superopt.ir.errors import NotEquivalent
from superopt.ir.graph import Graph
from superopt.search import SearchResult
from superopt.search.values import Stage, by_values
from superopt.verifier.values import Held, check_values

__all__ = ["Valued", "with_values"]

_SHOWN = 20  # claims that a report says in words


@dataclass(frozen=True)
class Valued:
    """A model rewritten by the elements of its weights.

    Attributes:
        original: the model.
        stages: the rewrites, each checked.
        held: what was checked of each.
        before_us: what the model is modelled to take.
    """

    original: Graph
    stages: tuple[Stage, ...]
    held: tuple[Held, ...]
    before_us: float

    @property
    def graph(self) -> Graph:
        return self.stages[-1].after

    def counted(self, found: SearchResult) -> SearchResult:
        """A search's result of the rewritten model, as one of the model."""
        return replace(found, before_us=self.before_us)

    def reported(self) -> report.Values:
        """What a report says."""
        certificates = [s.certificate for s in self.stages]
        claims = list(dict.fromkeys(str(c) for f in certificates for c in (*f.factored, *f.same, *f.equal, *f.uniform)))
        held = Held(*(sum(n) for n in zip(*((h.claims, h.places, h.exact) for h in self.held), strict=True)))
        return report.Values(
            tuple(claims[:_SHOWN]), len(claims), sum(k.removed for f in certificates for k in f.kept),
            (_elements(self.original), _elements(self.graph)), all(f.exact for f in certificates), str(held),
        )  # fmt: skip


def with_values(
    graph: Graph, prices: CostModel, mode: str, sizes: Mapping[str, int], notes: list[str], *, seed: int = 0
) -> Valued | None:
    """A model rewritten by the elements of its weights, where that is checked and modelled to pay; else ``None``.

    Args:
        graph: the model.
        prices: the target's cost model.
        mode: as ``--float`` says it; "strict" takes no running value to be finite.
        sizes: what symbolic dimensions are costed at.
        notes: why what was found is not used is added.
        seed: of the check's draws.
    """
    found = by_values(graph, finite=mode != "strict")
    if not found:
        return None
    before = costs.graph_cost(graph, prices, sizes=sizes).us
    ways = [found, *([other] if (other := by_values(graph, finite=mode != "strict", sums=False)) else [])]
    after, stages = min(
        ((costs.graph_cost(s[-1].after, prices, sizes=sizes).us, s) for s in ways), key=lambda priced: priced[0]
    )
    if after >= before:
        notes.append(
            f"without what the elements of the weights make superfluous, the model is modelled at "
            f"{after / (before or 1.0):.3f} of its cost, so it is kept"
        )
        return None
    try:
        held = tuple(check_values(s.before, s.after, s.certificate, seed=seed) for s in stages)
    except NotEquivalent as error:
        notes.append(f"a claim about the elements of the weights was refuted, so none is used: {error}")
        return None
    return Valued(graph, stages, held, before)


def _elements(graph: Graph) -> int:
    return sum(n for w in graph.weights if isinstance(n := w.type.elements, int))

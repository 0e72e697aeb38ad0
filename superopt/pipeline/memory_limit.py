"""The memory limit as a constraint on the result: weights and peak activations together.

An input that fits is given a result that fits. One that does not cannot be made to fit by choice, but nothing that
needs more than it does is returned. What is over the bound is searched again without the rule that it uses most, a few
times; then the input stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from superopt import cost as costs
from superopt.ir.graph import Graph
from superopt.ops.shape_inference import InferredTypes, infer
from superopt.passes import SearchResult
from superopt.pipeline.report_notes import ReportNotes
from superopt.report.quantities import bytes_text
from superopt.rules import Rule

__all__ = ["SEARCHING", "ResultMemoryLimit", "memory_bound", "needed"]

SEARCHING = 256 << 20  # bytes that a search may add to the process whatever the limit: its own bookkeeping
_TRIES = 3
_UNBOUND = 64 << 20  # bytes by which the weights may grow without a limit, beside a tenth of the model


@dataclass(frozen=True)
class ResultMemoryLimit:
    """What a result may need, in bytes.

    Attributes:
        most: weights and peak activations together.
        growth: of that, how much the weights may grow by.
        note: what has to be said about the input, if anything.
    """

    most: int
    growth: int
    note: str = ""

    def search(
        self,
        before: Graph,
        rules: tuple[Rule, ...],
        sizes: Mapping[str, int],
        search: Callable[[tuple[Rule, ...]], SearchResult],
        log: ReportNotes,
    ) -> SearchResult:
        """The result of searching with these rules, or with fewer, that is within the bound."""
        found = search(rules)
        for _ in range(_TRIES):
            if found.graph is before or needed(found.graph, None, sizes) <= self.most:
                return found
            over = needed(found.graph, None, sizes)
            used = max((a for a in found.applied if a.rule != "fold"), key=lambda a: a.count, default=None)
            if used is None:
                break
            log.limit(
                f"a result needed {bytes_text(over)} of weights and activations, more than {bytes_text(self.most)}; "
                f"rule {used.rule} was left out"
            )
            rules = tuple(r for r in rules if r.id != used.rule)
            found = search(rules)
        if found.graph is not before and needed(found.graph, None, sizes) > self.most:
            log.limit(f"nothing better was found that needs at most {bytes_text(self.most)}, so the input is returned")
            return replace(found, graph=before, applied=())
        return found


def memory_bound(graph: Graph, typing: InferredTypes, limit: int, sizes: Mapping[str, int]) -> ResultMemoryLimit:
    """The bound that a limit in bytes means for a model.

    Args:
        graph: the input.
        typing: its types.
        limit: bytes that weights and activations may take together.
        sizes: what symbolic dimensions are counted at.
    """
    own = needed(graph, typing, sizes)
    weights = graph.weight_bytes
    usual = weights // 10 + _UNBOUND
    if own <= limit:
        return ResultMemoryLimit(limit, min(usual, limit - own))
    note = (
        f"the input itself needs {bytes_text(own)} of weights and activations, more than the limit of "
        f"{bytes_text(limit)}; results that need more than the input were not considered"
    )
    return ResultMemoryLimit(own, 0, note)


def needed(graph: Graph, typing: InferredTypes | None, sizes: Mapping[str, int]) -> int:
    """Bytes of weights that are present at inference, and of the activations that are alive at once."""
    done = costs.work(graph, typing or infer(graph, sizes), sizes)
    return done.weight_bytes + done.peak_activation_bytes

"""What an optimisation is given, and what all parts of it may spend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from superopt.cost import CostModel
from superopt.ir.graph import Graph
from superopt.ops.shape_inference import InferredTypes
from superopt.pipeline.options import EFFORTS, EffortBudget, Options, Progress
from superopt.pipeline.paired_benchmark import LARGE
from superopt.pipeline.time_budget import TimeBudget
from superopt.rules import RuleLibrary

__all__ = ["OptimizationTask"]


@dataclass(frozen=True)
class OptimizationTask:
    """A model that is to be optimised, by which rules and prices, and how.

    Attributes:
        graph: the model.
        typing: its types.
        library: the rules that may be used.
        costs: the prices.
        options: settings.
        progress: is told what is done.
        budget: the time that is left.
        sizes: what symbolic dimensions are costed and timed at.
        notes: what there is to say of the model itself.
    """

    graph: Graph
    typing: InferredTypes
    library: RuleLibrary
    costs: CostModel
    options: Options
    progress: Progress
    budget: TimeBudget
    sizes: Mapping[str, int]
    notes: tuple[str, ...] = ()

    @property
    def effort(self) -> EffortBudget:
        return EFFORTS[self.options.effort]

    @property
    def timed(self) -> bool:
        """Whether results are timed beside the input."""
        timeable = self.options.target in ("cpu", "cuda") and self.graph.weight_bytes <= LARGE
        return self.options.measure or (timeable and self.effort.timed)

"""What an optimisation is given, and what all parts of it may spend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from superopt.cost import CostModel
from superopt.ir.graph import Graph
from superopt.ops.infer import Typing
from superopt.pipeline.budget import TimeBudget
from superopt.pipeline.options import EFFORTS, Effort, Options, Progress
from superopt.pipeline.paired_benchmark import LARGE
from superopt.rules import Library

__all__ = ["Task"]


@dataclass(frozen=True)
class Task:
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
    typing: Typing
    library: Library
    costs: CostModel
    options: Options
    progress: Progress
    budget: TimeBudget
    sizes: Mapping[str, int]
    notes: tuple[str, ...] = ()

    @property
    def effort(self) -> Effort:
        return EFFORTS[self.options.effort]

    @property
    def timed(self) -> bool:
        """Whether results are timed beside the input."""
        timeable = self.options.target in ("cpu", "cuda") and self.graph.weight_bytes <= LARGE
        return self.options.measure or (timeable and not self.effort.one_pass)

"""What a model would cost if something were different: other rules, or other prices for some operators."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from superopt import cost as costs
from superopt.cost.cache_model import CacheMissCurve
from superopt.cost.measurement_record import CostEstimate, MeasurementRequest
from superopt.gate.corpus_model import CorpusModelTask
from superopt.passes import SearchOptions, search
from superopt.pipeline.optimization import load, select_rules
from superopt.rules import Rule

__all__ = ["CounterfactualCosts", "ScaledCosts"]


class ScaledCosts(costs.CostModel):
    """A cost model in which some operators cost a multiple of what they do.

    Args:
        model: what is asked.
        factors: by operator.
    """

    def __init__(self, model: costs.CostModel, factors: Mapping[str, float]) -> None:
        super().__init__(model.sizes, model.backend)
        self.model, self.cold, self.factors = model, model.cold, dict(factors)

    @property
    def digest(self) -> str | None:
        own = self.model.digest
        return None if own is None else f"{own} times {sorted(self.factors.items())}"

    @property
    def cache_bytes(self) -> int | None:
        return self.model.cache_bytes

    @property
    def miss_curve(self) -> CacheMissCurve | None:
        return self.model.miss_curve

    def peaks(self) -> costs.DevicePeakPerformance | None:
        return self.model.peaks()

    def in_context(self, working_set: int) -> Self:
        other = super().in_context(working_set)
        other.model = self.model.in_context(working_set)
        return other

    def _view(self) -> CostEstimate:
        return self.model._view()

    def _lookup(self, question: MeasurementRequest) -> CostEstimate:
        found = self.model._lookup(question)
        return replace(found, us=found.us * self.factors.get(question.op, 1.0))


@dataclass
class CounterfactualCosts:
    """Experiments on the models of a run, within a time limit; each is done once.

    Attributes:
        tasks: how each model is optimised, by its name.
        rules: what the search may use now.
        deadline: on the monotonic clock; after it, nothing is tried any more.
    """

    tasks: Mapping[str, CorpusModelTask]
    rules: tuple[Rule, ...]
    deadline: float
    _known: dict[tuple[str, tuple[Rule, ...], tuple[tuple[str, float], ...]], float] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        return time.monotonic() > self.deadline

    def cost(self, model: str, rules: Sequence[Rule], factors: Mapping[str, float] | None = None) -> float:
        """The modelled cost in microseconds of what the search finds for a model; infinite when time is up."""
        place = (model, tuple(rules), tuple(sorted((factors or {}).items())))
        if place in self._known:
            return self._known[place]
        if self.over:
            return float("inf")
        task = self.tasks[model]
        limits = SearchOptions(
            time_limit=task.time_limit, seed=task.options.seed, sizes=task.options.sizes,
            floats=select_rules(task.options).floats(task.options.floats),
        )  # fmt: skip
        with costs.for_target(task.options.target, sizes=task.options.sizes) as found:
            prices = ScaledCosts(found, factors) if factors else found
            graph = load(task.path)
            result = search(graph, rules, prices, limits)
            us = costs.graph_cost(result.graph, prices, sizes=task.options.sizes).us
        self._known[place] = us
        return us

"""What a model would cost if something were different: other rules, or other prices for some operators."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from superopt import cost as costs
from superopt.cost.record import Estimate
from superopt.pipeline.gate.one import Task
from superopt.pipeline.optimise import load
from superopt.rules import Rule
from superopt.search import SearchOptions, search
from superopt.search.cache import costs_digest

__all__ = ["Laboratory", "Scaled"]


class Scaled:
    """A cost model in which some operators cost a multiple of what they do.

    Args:
        model: what is asked.
        factors: by operator.
    """

    def __init__(self, model: costs.CostModel, factors: Mapping[str, float]) -> None:
        self.model = model
        self.factors = dict(factors)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    @property
    def digest(self) -> str:
        """What the answers depend on, for the search's cache."""
        return f"{costs_digest(self.model)} times {sorted(self.factors.items())}"

    def application(self, op: str, *args: Any, **named: Any) -> Estimate:
        found = self.model.application(op, *args, **named)
        return replace(found, us=found.us * self.factors.get(op, 1.0))

    def fused_saving(self, producer: Any, consumer: Any, slot: int) -> float:
        return self.model.fused_saving(producer, consumer, slot) * self.factors.get(consumer[0], 1.0)

    def in_context(self, working_set: int) -> Scaled:
        return Scaled(self.model.in_context(working_set), self.factors)


@dataclass
class Laboratory:
    """Experiments on the models of a run, within a time limit; each is done once.

    Attributes:
        tasks: how each model is optimised, by its name.
        rules: what the search may use now.
        deadline: on the monotonic clock; after it, nothing is tried any more.
    """

    tasks: Mapping[str, Task]
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
        limits = SearchOptions(time_limit=task.time_limit, seed=task.options.seed, sizes=task.options.sizes)
        with costs.for_target(task.options.target, sizes=task.options.sizes) as found:
            prices = cast(costs.CostModel, Scaled(found, factors)) if factors else found
            graph = load(task.path)
            result = search(graph, rules, prices, limits)
            us = costs.graph_cost(result.graph, prices, sizes=task.options.sizes).us
        self._known[place] = us
        return us

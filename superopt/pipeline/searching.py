"""The searches of one optimisation: from the model or what its weights' elements allow, within a bound on memory."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from superopt.ir.errors import InvalidModel
from superopt.ir.graph import TRAINING, Graph
from superopt.passes import SearchOptions, SearchResult
from superopt.pipeline.child_process import searched
from superopt.pipeline.context import Task
from superopt.pipeline.memory_limit import SEARCHING, MemoryBound, memory_bound
from superopt.pipeline.options import VALUES
from superopt.pipeline.rule_schedule import own_rules, search_own_first
from superopt.pipeline.weight_rewrites import Valued, with_values
from superopt.rules import Rule
from superopt.runtime.limits import give_back, resident
from superopt.runtime.protocol import runtime_named

__all__ = ["Searches"]


class _AnotherGraph(Exception):
    """The search has to start from what the weights' elements allow."""


@dataclass
class Searches:
    """Searches for a task; the weights' elements are looked at beside the first.

    Attributes:
        task: what is searched from is its graph, or what the elements allow.
        notes: what hindered looking at the elements is added.
        remarks: what the report has to say about memory.
        cheap_us: what a price may be expected to lose and still not be asked for.
        bound: what the result may take of memory; ``None`` where nothing was said.
        valued: the graph that searches start from where the weights' elements allow another than the model.
    """

    task: Task
    notes: list[str]
    remarks: list[str]
    cheap_us: float
    bound: MemoryBound | None = field(init=False, default=None)
    valued: Valued | None = field(init=False, default=None)
    _looked: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        task = self.task
        if task.options.memory_limit is not None:
            self.bound = memory_bound(task.graph, task.typing, task.options.memory_limit, task.sizes)
            self.remarks += [self.bound.note] if self.bound.note else []

    def search(self, rules: tuple[Rule, ...], *, frugal: bool = False, directed: bool = False) -> SearchResult:
        """What these rules make of the model; the other arguments are :class:`SearchOptions`' own."""
        freely = partial(self._freely, frugal=frugal, directed=directed)
        if self.bound is None:
            return freely(rules)
        return self.bound.kept(self.task.graph, rules, self.task.sizes, freely, self.remarks)

    def _freely(self, rules: tuple[Rule, ...], *, frugal: bool, directed: bool) -> SearchResult:
        task, options = self.task, self.task.options
        limit = options.memory_limit
        limits = SearchOptions(
            memory_limit=None if limit is None else resident() + max(limit, SEARCHING),
            fold_budget_bytes=None if self.bound is None else self.bound.growth,
            seed=options.seed,
            sizes=task.sizes,
            floats=task.library.floats(options.floats),
            most_nodes=task.effort.nodes,
            finite=TRAINING in task.graph.metadata,  # of what is not finite nothing is learnt
            frugal=frugal,
            directed=directed,
            cheap_us=self.cheap_us,
            reserved=task.graph.names,
        )
        writes = options.objective != "time" or (self.bound is not None and bool(self.bound.note))

        def once(graph: Graph, chosen: tuple[Rule, ...]) -> SearchResult:
            left = task.budget.for_search(writes)
            beside, self._looked = (lambda: True) if self._looked else self._look, True
            found = searched(graph, chosen, task.costs, replace(limits, time_limit=left), task.progress, beside)
            if found is None:
                raise _AnotherGraph
            give_back()  # a tenth of what the process holds; what follows runs models
            return found

        own = () if options.rules is None else own_rules(task.library, rules)
        if self.valued is None:
            with suppress(_AnotherGraph):
                return search_own_first(task.graph, rules, own, once)
        assert self.valued is not None
        return self.valued.counted(search_own_first(self.valued.graph, rules, own, once))

    def _look(self) -> bool:
        """Look at the weights' elements; False where what they allow is another graph to search from."""
        task, options = self.task, self.task.options
        if options.enable or VALUES in options.disable:
            return True
        if not task.budget.allows_looking:
            self.notes.append("there was no time to look at the elements of the weights")
            return True
        task.progress(0, None, "looking at the weights' elements")
        try:
            self.valued = with_values(
                task.graph, task.costs, options.floats, task.sizes, runtime_named(options.runtime), self.notes,
                seed=options.seed, deadline=task.budget.looking,
            )  # fmt: skip
        except InvalidModel as error:  # the input was read as valid: what was made of it is not, and is not used
            self.notes.append(f"what the weights' elements allow could not be written, a fault of superopt's: {error}")
        give_back()
        return self.valued is None

"""The searches of one optimisation: from the model or what its weights' elements allow, within a bound on memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from superopt.ir.errors import InvalidModel
from superopt.ir.graph import TRAINING, Graph
from superopt.passes import SearchCache, SearchOptions, SearchResult, search
from superopt.pipeline.child_process_search import search_in_child
from superopt.pipeline.memory_limit import SEARCHING, ResultMemoryLimit, memory_bound
from superopt.pipeline.optimization_task import OptimizationTask
from superopt.pipeline.options import VALUES
from superopt.pipeline.report_notes import ReportNotes
from superopt.rules import Rule, RuleLibrary, load_library
from superopt.runtime.protocol import runtime_named
from superopt.runtime.resource_limits import give_back, resident

if TYPE_CHECKING:
    from superopt.pipeline.weight_rewrites import WeightRewrites

__all__ = ["search_user_rules_first", "SearchRunner", "user_rules"]


@dataclass
class SearchRunner:
    """Searches for a task. Beside the first, in a child process, this one looks at the weights' elements.

    Attributes:
        task: what is optimised.
        log: notes on the memory limit, and on why weights are not rewritten.
        cheap_us: what a price may be expected to lose, in microseconds, and still not be measured.
        bound: what the result may take of memory; ``None`` without a limit.
        widens: operators of half precision may be computed in float32.
        layouts: operators may be written for another order of axes.
        weights: the rewrites by the weights' elements that searches start from; ``None``: they start from the model.
    """

    task: OptimizationTask
    log: ReportNotes
    cheap_us: float
    bound: ResultMemoryLimit | None = field(init=False, default=None)
    widens: bool = field(init=False, default=True)
    layouts: bool = field(init=False, default=True)
    weights: WeightRewrites | None = field(init=False, default=None)
    _weights_read: bool = field(init=False, default=False)
    _memories: dict[tuple[bool, tuple[str, ...]], SearchCache] = field(
        init=False, default_factory=dict
    )  # by the rules and what is widened

    def __post_init__(self) -> None:
        task = self.task
        if task.options.memory_limit is not None:
            self.bound = memory_bound(task.graph, task.typing, task.options.memory_limit, task.sizes)
            self.log.limit(*filter(None, [self.bound.note]))

    def search(
        self, excluded: Collection[str] = (), *, no_tradeoffs: bool = False, reducing_only: bool = False
    ) -> SearchResult:  # fmt: skip
        """What the library's rules make of the model, within the bound.

        Args:
            excluded: rules that are not used.
            no_tradeoffs: no operator gets more work than it had.
            reducing_only: only rules that leave less to run are used.
        """
        rules = tuple(r for r in self.task.library.admitted if r.id not in excluded)
        freely = partial(self._freely, no_tradeoffs=no_tradeoffs, reducing_only=reducing_only)
        if self.bound is None:
            return freely(rules)
        return self.bound.search(self.task.graph, rules, self.task.sizes, freely, self.log)

    def _freely(self, rules: tuple[Rule, ...], *, no_tradeoffs: bool, reducing_only: bool) -> SearchResult:
        task = self.task
        limits = replace(self._limits(), no_tradeoffs=no_tradeoffs, reducing_only=reducing_only)
        if task.effort.greedy:
            memory = self._memories.setdefault((self.widens, tuple(r.id for r in rules)), SearchCache())
            return search(task.graph, rules, task.costs, self._timed(limits), task.progress, memory)
        own = () if task.options.rules is None else user_rules(task.library, rules)

        def once(graph: Graph, chosen: tuple[Rule, ...]) -> SearchResult:
            result = search_in_child(graph, chosen, task.costs, self._timed(limits), task.progress)
            assert result is not None
            give_back()  # a tenth of what the process holds; what follows runs models
            return result

        first: SearchResult | None = None
        if not self._weights_read:
            self._weights_read = True
            first = search_in_child(
                task.graph, own or rules, task.costs, self._timed(limits), task.progress, self._keeps_weights
            )
            give_back()
        if self.weights is None:
            return search_user_rules_first(task.graph, rules, own, once, first)
        return self.weights.counted(search_user_rules_first(self.weights.graph, rules, own, once))

    def _limits(self) -> SearchOptions:
        task, options = self.task, self.task.options
        limit = options.memory_limit
        return SearchOptions(
            memory_limit=None if limit is None else resident() + max(limit, SEARCHING),
            fold_budget_bytes=None if self.bound is None else self.bound.growth,
            seed=options.seed,
            sizes=task.sizes,
            floats=task.library.floats(options.floats),
            most_nodes=task.effort.nodes,
            greedy=task.effort.greedy,
            cache=not task.effort.greedy,  # to keep a region takes as long as to search it
            finite=TRAINING in task.graph.metadata,  # of what is not finite nothing is learnt
            cheap_us=self.cheap_us,
            widens=self.widens,
            layouts=self.layouts,
            reserved=task.graph.names,
        )

    def _timed(self, limits: SearchOptions) -> SearchOptions:
        """The limits of a search that begins now."""
        writes = self.task.options.objective != "time" or (self.bound is not None and bool(self.bound.note))
        return replace(limits, time_limit=self.task.budget.for_search(writes))

    def _keeps_weights(self) -> bool:
        """Whether the weights' elements allow no other graph to search from."""
        task, options = self.task, self.task.options
        if options.enable or VALUES in options.disable:
            return True
        if not task.budget.allows_reading_weights:
            self.log.note("there was no time to look at the elements of the weights")
            return True
        from superopt.pipeline.weight_rewrites import rewrite_weights  # here, because a greedy search needs none

        task.progress(0, None, "looking at the weights' elements")
        try:
            self.weights = rewrite_weights(
                task.graph, task.costs, options.floats, task.sizes, runtime_named(options.runtime), self.log,
                seed=options.seed, deadline=task.budget.weights_deadline,
            )  # fmt: skip
        except InvalidModel as error:  # the input was read as valid: what was made of it is not, and is not used
            self.log.note(f"what the weights' elements allow could not be written, a fault of superopt's: {error}")
        give_back()
        return self.weights is None


# -- The user's rules first --------------------------------------------------------------------------------------------
#
# Rules of the user's own come first: a search that is full of the library's moves may never get round to them.


Search = Callable[[Graph, tuple[Rule, ...]], SearchResult]


def user_rules(library: RuleLibrary, rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """Those of the rules that did not come with superopt."""
    built_in = load_library()
    return tuple(r for r in rules if r.id in library and r.id not in built_in)


def search_user_rules_first(
    graph: Graph,
    rules: tuple[Rule, ...],
    own: tuple[Rule, ...],
    search: Search,
    first: SearchResult | None = None,
) -> SearchResult:
    """The best of three: own rules and then all; the others alone; what these leave, by own rules and then by all.

    Regions have room for so many e-nodes, and what grows them least comes first; rules that compute new weights grow
    them most. Few rules are quick, so that they come first in time as well: after a search by all of them there may be
    none rest. Rules that were learnt from what a search by the others leaves apply to that, and to nothing that another
    rule of one's own has been applied to. With no rules of the user's own, it is one search.

    Args:
        graph: the model.
        rules: all rules.
        own: those of the user's own.
        search: searches by some rules.
        first: the result of the first search, where it was made already.
    """
    if not own:
        return search(graph, rules) if first is None else first
    results: list[SearchResult] = []

    def recorded(start: Graph, chosen: tuple[Rule, ...]) -> SearchResult:
        results.append(search(start, chosen))
        return results[-1]

    if first is None:
        first = recorded(graph, own)
    else:
        results.append(first)
    if first.stopped == "interrupted":
        return first
    candidates = [] if first.graph is graph else [_then(first, recorded(first.graph, rules))]
    if not candidates or candidates[0].stopped != "interrupted":
        known = {r.id for r in own}
        plain = recorded(graph, tuple(r for r in rules if r.id not in known))
        candidates.append(plain)
        if plain.graph is not graph and plain.stopped != "interrupted":
            rest = recorded(plain.graph, own)
            if rest.graph is not plain.graph:
                more = _then(plain, rest)
                candidates.append(more if rest.stopped == "interrupted" else _then(more, recorded(rest.graph, rules)))
    stopped = next((f.stopped for f in candidates if f.stopped == "interrupted"), None)
    best = min(reversed(candidates), key=lambda f: f.after_us)
    return replace(best, seconds=sum(m.seconds for m in results), stopped=stopped or best.stopped)


def _then(first: SearchResult, second: SearchResult) -> SearchResult:
    """A search, and another of its result."""
    return replace(second, before_us=first.before_us, applied=(*first.applied, *second.applied))

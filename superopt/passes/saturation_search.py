"""The search of one graph for a cheaper equal one: a list of passes over a program that is valid after each of them.

:data:`PREPARATION` and :data:`PASSES` are the sequence, in the order in which it runs. A saturation pass cuts the
program into regions (:mod:`superopt.regions`), saturates and extracts each distinct region once, and replays the plans.
The program after any pass is complete, so a limit or an interrupt ends the search with the best so far.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from superopt.cost.cost_model import CostModel
from superopt.cost.graph_costs import graph_cost
from superopt.cost.integer_kernel_support import QdqNodeGroups
from superopt.egraph.pattern_compiler import CompiledPattern
from superopt.egraph.rule_compiler import compile_rewrites
from superopt.egraph.saturation import RewriteSet, SaturationLimits
from superopt.extraction.enode_costs import ENodeCostModel
from superopt.extraction.rule_side_costs import RuleSideCosts
from superopt.ir.graph import Graph
from superopt.ir.interpreter_settings import rarely_collected
from superopt.ir.terms import OperatorTerm
from superopt.ops import REGISTRY
from superopt.ops.operator_definition import UnsupportedNodeForm
from superopt.ops.shape_inference import CanonicalNode, InferredTypes, infer
from superopt.passes.backend_fusion import (
    align_constant_ranks,
    broken_kernel_us,
    fused_kernels,
    fusing_plans,
    splitting_plans,
)
from superopt.passes.canonicalize import canonicalized
from superopt.passes.deliberate_rounding import ConstantRoundingErrors, guard_deliberate_rounding
from superopt.passes.half_precision_widening import Float32WidenedGraph, narrowed, widened
from superopt.passes.integer_kernel_rewrites import integer_plans
from superopt.passes.layouts import with_fewer_transposes
from superopt.program.graph_program import GraphProgram, ProgramStep, program_of
from superopt.regions.boundary_cost import dominates, fusions
from superopt.regions.cache import RegionCache
from superopt.regions.emission import emit
from superopt.regions.merge_order import MergeOrderResult, computation
from superopt.regions.partition import SELECTIONS, cut, level_order, selection_regions, sibling_regions
from superopt.regions.plan_selection import RegionPlanSelection, WeightUsage
from superopt.regions.region_egraph import ProgramRegion, lower, region_of
from superopt.regions.region_plan import OUTSIDE, RegionPlan, rule_list
from superopt.regions.region_search import RegionResult, search_region, unchanged_cost
from superopt.regions.replay import FreshNames, replay
from superopt.regions.search_result import ENDS, SHOWN, AppliedRule, Progress, SearchOptions, SearchResult
from superopt.rules.rule import Rule
from superopt.runtime.resource_limits import resident

__all__ = ["SearchCache", "search"]


@dataclass(frozen=True)
class SaturationPolicy:
    """How long and how widely the search saturates regions.

    Attributes:
        windows: operators of a region in the first two phases, the next two, and then, at most.
        phases: at most, of all windows.
        quiet_phases: that look at something new and find nothing, the last not of the narrowest windows, before the
            search stops.
        least_gain: share of the cost; a phase that gains less counts as no improvement.
        phase_nodes: e-nodes of one phase, shared by its distinct regions: many regions get smaller e-graphs.
        matching_steps: of matching in one region: three times what any region of the corpus takes (34,438).
        region_nodes, step_nodes: e-nodes that a region may grow by at least, and for each of its steps.
        greedy_rounds: of a phase that applies rewrites greedily, at most.
        first_rounds: of the phase that removes operators, in a greedy search: what it leaves, the next phase applies by
            prices.
        selection_rounds: of moving selections up: a selection passes this many operators.
        writing_share: of the time, which is kept for writing the result.
    """

    windows: tuple[int, ...] = (14, 30, 1 << 30)
    phases: int = 40
    quiet_phases: int = 2
    least_gain: float = 1e-3
    phase_nodes: int = 30_000
    matching_steps: int = 100_000
    region_nodes: int = 60
    step_nodes: int = 3
    greedy_rounds: int = 12
    first_rounds: int = 1
    selection_rounds: int = 120
    writing_share: float = 0.1


POLICY = SaturationPolicy()
_NEAR = "near"  # a kind of rewrites: merges of neighbours, which pay only together
_SHORTENING = "shortening"  # a kind of rewrites: after them fewer operators run
_BY_PRICES = "by prices"  # a kind of rewrites: all, where they gain by prices
_CLOSING = "closing"  # a kind of rewrites: final fusions

_Key = tuple[str, tuple[int, ...], Hashable]  # kind of rewrites (empty: all), part counts, signature


@dataclass(frozen=True)
class SearchPass:
    """A named pass over the program of a search, and why it stands where it stands."""

    name: str
    run: Callable[[_Run], None]
    reason: str


PREPARATION = (
    SearchPass("canonicalise", lambda run: run.canonicalize(), "rules and regions should see equal nodes as one"),
    SearchPass("rounding guard", lambda run: run.guard_rounding(), "rules over the reals would remove it"),
    SearchPass(
        "half precision in float32",
        lambda run: run.compute_in_float32(),
        "rules, prices and fusions of float32 apply; what rounds on purpose is known",
    ),
    SearchPass("compile rules", lambda run: run.compile_rules(), "arities and part counts follow the program"),
    SearchPass("fused kernels", lambda run: run.find_fused_kernels(), "costs count a fused group once"),
)
PASSES = (
    SearchPass("layouts", lambda run: run.choose_layouts(), "rules see operators beside each other, not Transposes"),
    SearchPass("backend fusion", lambda run: run.fuse_for_backend(), "before a rule removes operators of a pattern"),
    SearchPass("merge siblings", lambda run: run.merge_distant_siblings(), "no window of the next pass contains both"),
    SearchPass("saturate regions", lambda run: run.apply_rules(), "every rule on windows, until nothing improves"),
    SearchPass(
        "other phase orders",
        lambda run: run.try_other_orders(),
        "a distant merge can prevent a better one of neighbours",
    ),
    SearchPass("final fusion", lambda run: run.fuse_finally(), "no rule reads what these introduce, so they come late"),
    SearchPass(
        "split slow fused kernels",
        lambda run: run.split_slow_kernels(),
        "rules would undo it: both forms are equal to them",
    ),
    SearchPass(
        "integer kernels",
        lambda run: run.reach_integer_kernels(),
        "to the rules, what the backend knows and what it does not are equal",
    ),
    SearchPass("broadcast rank", lambda run: run.align_ranks(), "changes no operator, so it follows all rules"),
)  # emission of the result as a graph, which folds constants, follows


@rarely_collected()
def search(
    graph: Graph,
    rules: Sequence[Rule],
    costs: CostModel,
    options: SearchOptions | None = None,
    progress: Progress | None = None,
    memory: SearchCache | None = None,
) -> SearchResult:
    """Find a cheaper graph that the rules make equal to this one.

    The signature (inputs, outputs, their names and types) is kept, symbolic dimensions stay, barriers are untouched.
    The modelled cost of the result is never above the input's. Where nothing is gained and no node goes, the input is
    returned. ``KeyboardInterrupt`` ends the search with the best so far.

    Args:
        graph: a checked graph.
        rules: equalities that hold; each is used in every direction that binds its variables.
        costs: the target's cost model.
        options: settings.
        progress: called with (regions done, regions of this phase, what).
        memory: what an earlier search of the same graph with the same rules, costs and work limits found.
    """
    options = options or SearchOptions()
    start = time.monotonic()
    if options.time_limit is not None and options.time_limit <= 0:
        return SearchResult(graph, stopped="time")
    run = _Run(graph, rules, costs, options, progress, start, memory or SearchCache())
    for preparation in PREPARATION:
        preparation.run(run)
    try:
        for search_pass in PASSES:
            before = run.program
            search_pass.run(run)
            run.record_written_steps(search_pass.name, before)
    except KeyboardInterrupt:
        run.stopped = "interrupted"
    return run.result()


@dataclass
class SearchCache:
    """What searches of one graph with the same rules, costs and work limits have in common.

    Attributes:
        regions: the results of regions.
        representability: of constants in their element types.
        prices: of operators; ``None`` before the first search.
    """

    regions: dict[_Key, RegionResult] = field(default_factory=dict)
    representability: ConstantRoundingErrors = field(default_factory=ConstantRoundingErrors)
    prices: RuleSideCosts | None = None


@dataclass
class _Totals:
    """Figures that accumulate over phases."""

    regions: int = 0
    before: float = 0.0
    e_nodes: int = 0
    gain: float = 0.0
    grown: int = 0
    aligned: int = 0  # operators whose constants are written at another rank
    used: dict[str, list[float]] = field(default_factory=dict)  # rule → [count, gain]
    where: dict[str, dict[str, None]] = field(default_factory=dict)
    missed: dict[str, None] = field(default_factory=dict)
    quarantined: dict[str, str] = field(default_factory=dict)


class _Run:
    """One search in progress. ``program`` is the best so far, complete at every moment."""

    def __init__(
        self, graph: Graph, rules: Sequence[Rule], costs: CostModel, options: SearchOptions, progress: Progress | None,
        start: float, memory: SearchCache,
    ) -> None:  # fmt: skip
        self.graph, self.costs, self.options, self.progress, self.start = graph, costs, options, progress, start
        limit = options.time_limit
        self.deadline = float("inf") if limit is None else start + limit * (1 - POLICY.writing_share)  # for emergencies
        self.rules = [r for r in rules if _enabled(r, options)]
        self.totals = _Totals()
        self.memo, self.representability = memory.regions, memory.representability
        self.stages: list[tuple[GraphProgram, _Totals]] = []  # the program after each pass that changed it
        self.merged = False  # merging distant siblings paid, so other orders are tried
        self.orders: list[MergeOrderResult] = []  # of merging, that were searched to their end
        self.stopped = "saturated"
        self.nodes = options.node_limit  # e-nodes of the current region, at most
        weights = graph.weight_bytes
        budget = options.fold_budget_bytes
        self.widened: Float32WidenedGraph | None = (
            None  # the graph whose operators of half precision are computed in float32
        )
        self.widening_us = 0.0  # what that gains
        self.laid_out = 0  # operators in another layout
        self.made_by: dict[tuple[str, ...], str] = {}  # the pass that wrote a step, by the step's outputs
        self.budget = weights // 10 + (64 << 20) if budget is None else budget
        if memory.prices is None:
            pricer = ENodeCostModel(costs.in_context(weights), graph.opset, options.sizes, self.deadline)
            memory.prices = RuleSideCosts(pricer)
        self.prices, self.pricer = memory.prices, memory.prices.pricer
        self.pricer.deadline = self.deadline
        self.unweighted = self.pricer.unweighted()  # old weights go as new ones come; a plan that grows needs a gain

    # -- preparation ---------------------------------------------------------------------------------------------

    def canonicalize(self) -> None:
        """Merge equal nodes, and write integers that depend on sizes alone as weights."""
        typing = infer(self.graph)
        self.canonical = canonicalized(self.graph, typing)
        self.totals.gain = self._removed_us(self.graph, typing)
        if self.canonical.removed:
            typing = infer(self.canonical.graph)
        integers, graph = self.costs.backend.integers, self.canonical.graph
        quantised = None if integers is None else QdqNodeGroups(graph, integers)
        self.held = None if quantised is None else quantised.held
        self.typing = typing
        self.program = program_of(graph, typing, self.held)
        self.movable: Mapping[str, ProgramStep] = {}  # steps that are held, but for what reaches kernels of integers
        if quantised is not None and quantised.movable:
            free = program_of(graph, typing, quantised.held - quantised.movable)
            self.movable = {o: s for s in free.steps for o in s.outputs if s.op and o in quantised.movable}

    def guard_rounding(self) -> None:
        """Make barriers of the steps that round on purpose."""
        program, self.rounding_notes = guard_deliberate_rounding(self.program)
        self.program = replace(program, finite=self.options.finite)
        self.steps = self.program.steps
        self.names = FreshNames(self.program, self.options.reserved | self.graph.names)

    def compute_in_float32(self) -> None:
        """Write operators of half precision that the backend has no kernel for in float32, where prices allow it."""
        half, options, graph = self.costs.backend.half, self.options, self.canonical.graph
        strict = options.floats is not None and options.floats.mode == "strict"
        if half is None or not options.widens or strict or options.no_tradeoffs:
            return
        guarded = {o for s in self.program.steps if not s.op for o in s.outputs if o}
        found = widened(graph, self.typing, half, guarded, options.reserved | self.graph.names)
        if found is None:
            return
        typing = infer(found.graph)
        costs, sizes = self.pricer.costs, self.options.sizes
        before = graph_cost(graph, costs, self.typing, sizes=sizes, as_run=False).us
        gain = before - graph_cost(found.graph, costs, typing, sizes=sizes, as_run=False).us
        if gain <= 0.0:
            return
        self.widened, self.widening_us = found, gain
        self.program = replace(
            program_of(found.graph, typing, (self.held or frozenset()) | guarded), finite=options.finite
        )
        self.names = FreshNames(self.program, self.options.reserved | self.graph.names)

    def compile_rules(self) -> None:
        """Compile the enabled rules to rewrites for the operators of the program."""
        self._compile()
        self.cache = RegionCache.of(self.rules, self.pricer.costs, self.graph.opset, self.options, REGISTRY)

    def find_fused_kernels(self) -> None:
        """Find the groups of steps that the backend runs as one kernel."""
        self.program = replace(self.program, kernels=fused_kernels(self.program, self.pricer))

    def _removed_us(self, graph: Graph, typing: InferredTypes) -> float:
        """Microseconds of the nodes that canonicalisation removed, where the backend would have run them."""
        us, fixed = 0.0, graph.constants
        canonical, folds = self.canonical, self.costs.backend.folds_shapes
        for position in canonical.removed_size_nodes if folds else canonical.removed:
            node = typing.nodes[position]
            assert isinstance(node, CanonicalNode), "a barrier goes nowhere"
            types = tuple(None if a is None else typing.types[a] for a in node.args)
            attributes = tuple(sorted(node.attributes.items()))
            us += self.pricer.alone((node.operator.name, attributes, types, tuple(a in fixed for a in node.args)))
        return us

    def record_written_steps(self, name: str, before: GraphProgram) -> None:
        """Record which steps a pass wrote.

        Args:
            name: of the pass.
            before: the program that it was given.
        """
        if self.program is not before:
            known = {step.outputs: step for step in before.steps}
            new = (s for s in self.program.steps if s.node is None and known.get(s.outputs) != s)
            self.made_by |= {step.outputs: name for step in new}

    # -- passes --------------------------------------------------------------------------------------------------

    def choose_layouts(self) -> None:
        """Put each operator on operands in the order of axes at which the program takes the least time."""
        options = self.options
        strict = options.floats is not None and options.floats.mode == "strict"
        if strict or options.enable or not options.layouts:
            return
        found = with_fewer_transposes(self.program, self.pricer, self.names)
        if found is None:
            return
        program, before = self.program, self._cost()
        self.program = found
        self.find_fused_kernels()
        gain = before - self._cost()
        if gain <= 0.0:
            self.program = program
            return
        self._compile()
        self.totals.gain += gain
        self.laid_out = sum(s.node is None for s in self.program.steps)

    def fuse_for_backend(self) -> None:
        """Rewrite operators to a form that the backend runs as one kernel."""
        plans = fusing_plans(self.program, self.prepared.all_rewrites, self.pricer)
        if self._apply_plans(plans):
            self.find_fused_kernels()

    def merge_distant_siblings(self) -> None:
        """Merge parallel operators of one operand, however far apart they are."""
        self._checkpoint()
        self._merge()
        self.merged = self._changed

    def apply_rules(self) -> None:
        """Apply all rules to windows of the program, from few rewrites to all of them."""
        self._saturate()

    def try_other_orders(self) -> None:
        """Search again from the input in other orders, if merging distant siblings paid."""
        orders = (partial(self._saturate, merging=True), self._neighbours_first)
        for order in () if self.options.reducing_only or self.options.greedy or not self.merged else orders:
            if not self._out_of_budget():
                self._from_input(order)

    def fuse_finally(self) -> None:
        """Introduce operators that no rule but their own definition reads (``Sum``, ``ReduceL2``), where cheaper."""
        rewrites = self.prepared.final_fusions
        for by_level in (False, True):
            if self._out_of_budget() or not rewrites.patterns:
                return
            order = level_order(self.program) if by_level else list(self.program.running)
            regions, _ = cut(self.program, order, self.prepared.adjacent, POLICY.windows[0], fused=self.costs.fusable)
            self._phase([region_of(self.program, r) for r in regions], "fusing operators", rewrites, kind=_CLOSING)

    def split_slow_kernels(self) -> None:
        """Rewrite operators that the backend would fuse to a kernel that is slower than its parts."""
        if self.options.no_tradeoffs or self._out_of_budget():
            return
        self._apply_plans(splitting_plans(self.program, self.prepared.every, self.pricer))

    def reach_integer_kernels(self) -> None:
        """Rewrite what chooses, moves or pools elements so that the backend computes in integers around it."""
        if self._out_of_budget() or not self.movable:
            return
        steps = self.program.steps
        freed = tuple(self.movable.get(s.outputs[0], s) if s.op == "" and any(s.outputs) else s for s in steps)
        program = self.program = replace(self.program, steps=freed)
        self._compile()
        self._apply_plans(integer_plans(program, self.prepared.every, self.pricer))
        if self.program is program:
            self.program = replace(program, steps=steps)

    def align_ranks(self) -> None:
        """Give constants of one element the rank of their other operand, where the backend is faster so."""
        if self.options.no_tradeoffs or self._out_of_budget():
            return
        aligned = align_constant_ranks(self.program, self.pricer, self.names.fresh)
        if aligned is not None:
            self.program = aligned.program
            self.totals.gain += aligned.gain_us
            self.totals.aligned += aligned.count

    def _apply_plans(self, plans: Iterable[tuple[ProgramRegion, RegionPlan]]) -> bool:
        """Replace disjoint regions by plans, as far as weights may grow; True if one was."""
        selection = RegionPlanSelection(
            WeightUsage(self.program), self.pricer.reading_us, self.budget - self.totals.grown
        )
        for region, plan in plans:
            selection.add([(region, plan)])
        self._replace(selection)
        return bool(selection.accepted)

    @property
    def _changed(self) -> bool:
        """Whether something was done since the first stage."""
        return self.program.steps is not self.stages[0][0].steps

    def _merge(self) -> None:
        self._apply_to_regions(
            "merging parallel operators",
            sibling_regions,
            RewriteSet((), self.prepared.all_rewrites.groups),
            SaturationLimits().rounds,
        )

    def _saturate(self, *, merging: bool = False) -> None:
        """Apply rewrites from few and mostly profitable ones to all; merge distant siblings on the way if asked."""
        self._compile()
        sinking = tuple(p for p in self.prepared.all_rewrites.patterns if _selects(p))
        self._apply_to_regions("selecting earlier", selection_regions, RewriteSet(sinking), POLICY.selection_rounds)
        self._shorten()
        if merging:
            self._merge()
            self._compile()
        self._checkpoint()
        if self.options.reducing_only:
            self.totals.before = self._cost() + self.totals.gain
            return
        if self.options.greedy:
            self._rewrite_by_prices()
            return
        if not self.merged:
            self._windows("applying all rules")
        else:
            computes, gained = computation(self.program), self.totals.gain
            if any(o.computes == computes for o in self.orders):
                return
            start = self._cost() if self.orders else 0.0
            if any(o.far_ahead_of(start) for o in self.orders):
                return
            self._windows("applying all rules")
            self.orders.append(
                MergeOrderResult(computes, self.totals.before - gained, self.totals.before - self.totals.gain)
            )
        self._checkpoint()

    def _compile(self, *, grouped: bool = False) -> None:
        """Compile the rules for the numbers of parts that the program has by now."""
        self.prepared = compile_rewrites(
            self.rules, self.program, self.deadline, floats=self.options.floats, grouped=grouped
        )

    def _neighbours_first(self) -> None:
        """Merge neighbours that read the same data, then distant siblings, then apply all rules."""
        self._windows("merging nearby operators", near=True)
        if self._changed:  # else the other orders have done all this
            self._merge()
            self._saturate(merging=True)

    def _from_input(self, order: Callable[[], None]) -> None:
        """Search again from the input in another order; the cheaper of the two results stands."""
        program, totals, stages = self.program, self.totals, self.stages
        (self.program, start), first = stages[0], stages[-1:]
        self.totals = copy.deepcopy(start)
        self.stages = [stages[0], *first]
        try:
            order()
        finally:
            alternative = self.totals
            if alternative.before - alternative.gain >= totals.before - totals.gain or not alternative.before:
                self.program, self.totals, self.stages = program, totals, stages
            self.totals.e_nodes = alternative.e_nodes + totals.e_nodes

    def _apply_to_regions(
        self, what: str, cover: Callable[[GraphProgram], list[list[int]]], rewrites: RewriteSet, rounds: int
    ) -> None:  # fmt: skip
        """Apply rewrites of one kind to their regions, until they gain nothing more."""
        if not rewrites.patterns and not rewrites.groups:
            return
        for _ in range(POLICY.greedy_rounds):
            regions = [region_of(self.program, r) for r in cover(self.program)]
            if self._out_of_budget() or not self._phase(regions, what, rewrites, rounds, kind=what):
                return

    def _shorten(self) -> None:
        """Apply the rewrites after which fewer operators run: few, and mostly profitable."""
        quiet = 0
        for number in range(POLICY.first_rounds if self.options.greedy else POLICY.greedy_rounds):
            order = level_order(self.program) if number % 2 else list(self.program.running)
            regions, _ = cut(self.program, order, self.prepared.adjacent, POLICY.windows[1], fused=self.costs.fusable)
            chosen = [region_of(self.program, r) for r in regions]
            improved = self._phase(chosen, "removing operators", self.prepared.removing, kind=_SHORTENING)
            quiet = 0 if improved else quiet + 1
            if self._out_of_budget() or quiet > 1:
                return

    def _windows(self, what: str, *, near: bool = False) -> None:
        """Every rule (or, near, only merges of neighbours), on windows with different cuts, until nothing improves."""
        quiet, avoid = 0, frozenset[str]()
        for number in range(POLICY.phases):
            level = number % 2 == 1
            order = level_order(self.program) if level else list(self.program.running)
            window = min(self.options.window, POLICY.windows[-1 if near else min(number // 2, len(POLICY.windows) - 1)])
            regions, cuts = cut(self.program, order, self.prepared.adjacent, window, avoid, self.costs.fusable)
            avoid = cuts
            gained, searched = self.totals.gain, len(self.memo)
            if near:
                self._compile(grouped=True)
            chosen = [region_of(self.program, r) for r in regions]
            kind, rewrites = (_NEAR, self.prepared.neighbours) if near else ("", None)
            self._phase(chosen, f"{what}, phase {number + 1}", rewrites, first=number == 0, kind=kind)
            improved = self.totals.gain - gained > POLICY.least_gain * self.totals.before
            looked = (
                len(self.memo) > searched or window == self.options.window
            )  # else these regions were searched before
            quiet = 0 if improved else quiet + looked
            if self.totals.e_nodes > self.options.most_nodes:
                self._ended("nodes")
                return
            alone = quiet and len(regions) <= 1  # every cut gives this region
            if self._out_of_budget() or alone or (quiet >= POLICY.quiet_phases and window > POLICY.windows[0]):
                return
            if number % 2 == 1 and number < 2 * len(POLICY.windows):
                self._checkpoint()

    def _rewrite_by_prices(self) -> None:
        """Every rewrite that gains by the prices of its sides, on wide windows with other cuts in every phase, until
        nothing improves."""
        avoid = frozenset[str]()
        for number in range(POLICY.phases):
            order = level_order(self.program) if number % 2 == 1 else list(self.program.running)
            window = min(self.options.window, POLICY.windows[-1])
            regions, avoid = cut(self.program, order, self.prepared.adjacent, window, avoid, self.costs.fusable)
            chosen = [region_of(self.program, r) for r in regions]
            gained = self.totals.gain
            self._phase(chosen, f"rewriting, phase {number + 1}", first=number == 0, kind=_BY_PRICES)
            improved = self.totals.gain - gained > POLICY.least_gain * self.totals.before
            if self.totals.e_nodes > self.options.most_nodes:
                self._ended("nodes")
                return
            if self._out_of_budget() or not improved or len(regions) <= 1:
                return

    def _cost(self) -> float:
        """Modelled cost of the program as it stands, as the first phase over all of it will find it."""
        order, window = list(self.program.running), min(self.options.window, POLICY.windows[0])
        regions, _ = cut(self.program, order, self.prepared.adjacent, window, fused=self.costs.fusable)
        regions_now = [region_of(self.program, r) for r in regions]
        return sum(unchanged_cost(r, lower(r, REGISTRY), self.pricer) for r in regions_now if r.outputs)

    def _checkpoint(self) -> None:
        if not self.stages or self.stages[-1][0].steps is not self.program.steps:
            self.stages.append((self.program, copy.deepcopy(self.totals)))

    def _out_of_budget(self) -> bool:
        if time.monotonic() >= self.deadline:
            self._ended("time")
        elif self.options.memory_limit is not None and resident() > self.options.memory_limit:
            self._ended("memory")
        return self.stopped in ("time", "memory")

    def _ended(self, why: str) -> None:
        self.stopped = max(self.stopped, why, key=ENDS.index)

    def _phase(
        self,
        regions: Sequence[ProgramRegion],
        what: str,
        rewrites: RewriteSet | None = None,
        rounds: int = SaturationLimits().rounds,
        *,
        first: bool = False,
        kind: str = "",
    ) -> bool:
        """Optimise the distinct regions, most frequent first; True if the program improved.

        Args:
            regions: disjoint, and such that all can be replaced at once.
            what: for the progress callback.
            rewrites: the rewrites to apply, if not all.
            rounds: of saturation.
            first: the regions are all of the program, and what they cost is what the model costs.
            kind: of rewrites, if not all: regions of equal signature are searched once for each kind.
        """
        if first:
            self.totals.before = self.totals.gain
        alike: dict[Hashable, list[ProgramRegion]] = {}
        for region in regions:
            if region.outputs:
                alike.setdefault(region.signature, []).append(region)
        ordered = sorted(alike.items(), key=lambda item: -len(item[1]) * item[1][0].running)
        selection = RegionPlanSelection(
            WeightUsage(self.program), self.pricer.reading_us, self.budget - self.totals.grown
        )
        self.totals.regions = max(self.totals.regions, len(regions))
        try:
            for done, (signature, group) in enumerate(ordered):
                if self._out_of_budget():
                    break
                self._report(done, len(ordered), what)
                key = (kind, self.prepared.part_counts, signature)
                if key not in self.memo:
                    share = max(
                        POLICY.phase_nodes // len(ordered),
                        POLICY.region_nodes + POLICY.step_nodes * len(group[0].steps),
                    )
                    self.nodes = min(self.options.node_limit, share)
                    self.pricer.questions.cheap_us = self.options.cheap_us / len(group)
                    self.memo[key] = self._cached_search(key, group[0], rewrites, rounds)
                result = self.memo[key]
                if first:
                    self.totals.before += result.before * len(group)
                if result.plan is not None and self._permitted(group[0], result.plan):
                    sound = [member for member in group if self._representable(member, result.plan)]
                    selection.add([(member, self._with_boundary_costs(member, result.plan)) for member in sound])
        finally:
            self._replace(selection)
        return bool(selection.accepted)

    def _report(self, done: int, total: int | None, what: str) -> None:
        if self.progress is not None:
            self.progress(done, total, what)

    def _permitted(self, region: ProgramRegion, plan: RegionPlan) -> bool:
        return not self.options.no_tradeoffs or dominates(region, plan, self.pricer)

    def _representable(self, region: ProgramRegion, plan: RegionPlan) -> bool:
        """Whether the element types hold the constants that a plan makes of these weights."""
        why = self.representability.of(self.program, region, plan)
        if why:
            self.totals.missed[f"{region.outputs[0]}: {rule_list(plan)} would save {plan.gain:.1f} µs, but {why}"] = (
                None
            )
        return not why

    def _with_boundary_costs(self, region: ProgramRegion, plan: RegionPlan) -> RegionPlan:
        """The plan with what it costs besides its nodes: copies to outputs of the graph, and what is lost where the
        backend ran what the plan takes apart as one: pairs over the region's border, and groups."""
        copies = self._copies_us(region, plan)
        lost = sum(max(0.0, before - after) for before, after in fusions(self.program, region, plan, self.pricer.fused))
        lost += copies + broken_kernel_us(self.program, region, plan, self.pricer)
        if copies and plan.gain - lost <= self.options.least_gain * plan.before:
            lost = plan.gain  # else it would be done again in each phase
        return replace(plan, after=plan.after + lost) if lost > 0 else plan

    def _copies_us(self, region: ProgramRegion, plan: RegionPlan) -> float:
        """Microseconds of the Identities by which outputs of the graph get the values of others (see ``replay``)."""
        us = 0.0
        for output, (piece, number) in zip(region.outputs, plan.results, strict=True):
            source = region.values[number] if piece == OUTSIDE else output
            if source != output and output in self.program.required_names:
                types, fixed = (self.program.types.get(source),), (source in self.program.constant,)
                us += self.pricer.alone(("Identity", (), types, fixed))
        return us

    def _replace(self, selection: RegionPlanSelection) -> None:
        selection.accept_jointly()
        for placed, why in selection.refused:
            plan = placed[0][1]
            self.totals.missed[f"{rule_list(plan)} would save {plan.gain:.1f} µs, but {why}"] = None
        if not selection.accepted:
            return
        self.totals.grown += selection.grown
        self.program = replay(self.program, selection.accepted, self.names)
        for region, plan in selection.accepted:
            self.totals.gain += plan.gain
            for rule, count in plan.rules.items():
                entry = self.totals.used.setdefault(rule, [0, 0.0])
                entry[0] += count
                entry[1] += plan.gain / len(plan.rules)
                self.totals.where.setdefault(rule, {}).update(dict.fromkeys(region.outputs[:4]))

    # -- one region ----------------------------------------------------------------------------------------------

    def _cached_search(
        self, key: _Key, region: ProgramRegion, rewrites: RewriteSet | None, rounds: int
    ) -> RegionResult:
        """The cached result of an earlier run, or the result of a search."""

        def search() -> RegionResult:
            return self._search(region, rewrites, rounds, key[0] == _SHORTENING)

        if self.cache is None:
            return search()
        hits = self.cache.hits
        place = (key, rounds, self.nodes)
        result = self.cache.cached(place, region, search, whole=lambda: time.monotonic() < self.deadline)
        if self.cache.hits > hits:
            self._count(result)
            if result.missed:
                self.totals.missed[f"{region.outputs[0]}: {result.missed}"] = None
        return result

    def _count(self, result: RegionResult) -> None:
        """Add the figures of a region's search to the totals."""
        self.totals.e_nodes += result.e_nodes
        self.totals.quarantined.update(result.quarantined)
        if result.stopped in ("nodes", "steps"):
            self._ended(result.stopped)

    def _search(
        self, region: ProgramRegion, rewrites: RewriteSet | None, rounds: int, shortening: bool
    ) -> RegionResult:
        greedy = self.options.greedy
        prices = self.prices if greedy and rewrites is None else None
        limits = SaturationLimits(self.nodes, rounds, self.deadline, steps=POLICY.matching_steps, prices=prices)
        pricer = self.unweighted if shortening else self.pricer
        first = self.prepared.removing if rewrites is None and not greedy else RewriteSet()
        settings = (self.options.least_gain, self.options.seed, first)
        result = search_region(
            region, rewrites or self.prepared.all_rewrites, REGISTRY, pricer, limits, *settings, exact=not greedy
        )
        self._count(result)
        if result.missed:
            self.totals.missed[f"{region.outputs[0]}: {result.missed}"] = None
        return result

    # -- the end -------------------------------------------------------------------------------------------------

    def result(self) -> SearchResult:
        """What stands now, as a graph."""
        totals = self.totals
        before, gained = totals.before + self.widening_us, totals.gain + self.widening_us
        rewritten = totals.used or totals.aligned or self.laid_out
        changed = self.widened or (self.program.steps is not self.steps and rewritten)
        notes = self.rounding_notes
        if self.laid_out:
            notes += (f"{self.laid_out} operators are written for another order of axes",)
        if self.widened is not None:
            notes += (f"{self.widened.count} operators of half precision are computed in float32",)
        if totals.aligned:
            notes += (f"constants are written at the rank of what they are combined with, {totals.aligned} times",)
        quarantined = list(totals.quarantined.items())[:SHOWN]
        notes += tuple(f"rule {rule} was switched off during the search: {why}" for rule, why in quarantined)
        emitted = None
        graph = self.canonical.graph if totals.gain > 0 and not changed else self.graph
        fewer = len(self.program.running) < sum(n.op != "Constant" for n in self.graph.nodes)
        try:
            if changed or fewer:
                emitted = emit(
                    self.program, REGISTRY, self.budget, self.options.reserved | self.graph.names, made_by="search",
                    passes=self.made_by,
                )  # fmt: skip
            if emitted is not None and self.widened is not None:
                reserved = self.options.reserved | self.graph.names
                emitted = replace(emitted, graph=narrowed(emitted.graph, self.canonical.graph, reserved))
            if emitted is not None and not changed and not _simplified(emitted.graph, self.graph):
                emitted = None
        except UnsupportedNodeForm as error:
            notes += (f"the result cannot be written at the model's opset ({error}), so the input is returned",)
            graph = self.graph
            totals = _Totals(before=totals.before, regions=totals.regions, e_nodes=totals.e_nodes)
        applied = [
            AppliedRule(rule, int(count), tuple(totals.where[rule])[:SHOWN], gain)
            for rule, (count, gain) in sorted(totals.used.items(), key=lambda u: -u[1][1])
        ]
        if emitted is not None and emitted.folded:
            applied.append(AppliedRule("fold", emitted.folded, (), None))
        return SearchResult(
            graph=emitted.graph if emitted is not None else graph, applied=tuple(applied),
            before_us=before, after_us=before - gained, regions=totals.regions,
            distinct_regions=sum(kind in ("", _BY_PRICES) for kind, *_ in self.memo), e_nodes=totals.e_nodes,
            stopped=self.stopped, seconds=time.monotonic() - self.start, near_misses=tuple(totals.missed)[:SHOWN],
            notes=notes, quarantined=dict(totals.quarantined),
            widened=self.widened.count if self.widened is not None and emitted is not None else 0,
            laid_out=self.laid_out if emitted is not None else 0,
            measurements_requested=self.pricer.questions.requested,
            measurements_decisive=self.pricer.questions.changed_choice,
        )  # fmt: skip


def _simplified(graph: Graph, original: Graph) -> bool:
    """Whether a graph that no rule changed computes less: it is without identities or duplicates. That Constants became
    weights is no reason for another graph: no runtime runs them."""
    running, before = (sum(n.op != "Constant" for n in g.nodes) for g in (graph, original))
    return running < before and graph.weight_bytes <= original.weight_bytes


def _selects(pattern: CompiledPattern) -> bool:
    """Whether the pattern moves a selection up: its own operator is one, and the other side's is not."""
    source, target = pattern.source, pattern.target
    return (
        len(source) == 1 and isinstance(source[0], OperatorTerm) and source[0].op in SELECTIONS
        and not (isinstance(target[0], OperatorTerm) and target[0].op in SELECTIONS and pattern.growth >= 0)
    )  # fmt: skip


def _enabled(rule: Rule, options: SearchOptions) -> bool:
    names = {rule.id, rule.family}
    return not names & set(options.disable) and (not options.enable or bool(names & set(options.enable)))

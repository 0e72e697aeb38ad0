"""The search: phases of regions until nothing improves, always holding a complete and valid best so far."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from superopt.cost.model import CostModel
from superopt.egraph.matching import Pattern
from superopt.egraph.rewrites import Prepared, prepare
from superopt.egraph.saturation import Limits, Moves
from superopt.extraction.node_costs import Pricer
from superopt.ir.garbage_collection import rarely_collected
from superopt.ir.graph import Graph
from superopt.ir.terms import App
from superopt.ops import REGISTRY
from superopt.ops.infer import Applied, Typing, infer
from superopt.ops.record import NotCovered
from superopt.passes.backend_fusion import apart, spelled
from superopt.passes.broadcast_rank import ranked
from superopt.passes.canonicalize import tidied
from superopt.passes.fused_kernels import broken_us, kernels_of
from superopt.passes.representability import Losses
from superopt.passes.rounding_guard import kept_verbatim
from superopt.program.program import Program, program_of
from superopt.regions.boundary_cost import fusions
from superopt.regions.cache import RegionCache
from superopt.regions.dominance import frugal
from superopt.regions.emission import emit
from superopt.regions.lowering import Region, lower, region_of
from superopt.regions.partition import cut, level_order
from superopt.regions.phase_order import Order, computation
from superopt.regions.plan import Plan, named
from superopt.regions.plan_selection import Offers
from superopt.regions.region_search import Found, cost_as_it_is, optimise
from superopt.regions.region_selection import SELECTIONS, selection_regions, sibling_regions
from superopt.regions.replay import Names, replay
from superopt.regions.result import AppliedRule, Progress, SearchOptions, SearchResult
from superopt.regions.weight_traffic import Weights
from superopt.rules.rule import Rule
from superopt.runtime.limits import resident

__all__ = ["search"]

_PHASES = 40
_WINDOWS = (14, 30, 1 << 30)  # operators of a region in the first two phases, the next two, and then (at most)
_QUIET = 2  # phases that look at something new and find nothing, the last not of the narrowest windows, before it stops
_LITTLE = 1e-3  # a phase that gains less than this share of the cost has found nothing
_PHASE_NODES = 30_000  # e-nodes of one phase, shared by its distinct regions: many regions get smaller e-graphs
_MATCHING = 100_000  # steps of matching in one region: three times what any region of the corpus takes (34,438)
_FEWEST = 60  # e-nodes that a region may grow by at least, and by three for each of its steps
_DIRECTED = 12  # rounds of a directed phase, at most
_STEPS = 120  # moves in one direction in a row: a selection passes this many operators
_RESERVE = 0.1  # share of the time that is kept for writing the result
_NEAR = "near"  # the kind of moves that only make sense together
_SHORTENING = "shortening"  # the kind of moves after which fewer operators run
_ENDS = ("saturated", "nodes", "steps", "memory", "time")  # why a search ended; what is later here is what is said
_CLOSING = "closing"  # a kind of moves
_SHOWN = 20  # near misses and places that are reported

_Key = tuple[str, tuple[int, ...], Hashable]  # kind of moves (empty: all), the parts they are for, signature


@rarely_collected()
def search(
    graph: Graph,
    rules: Sequence[Rule],
    costs: CostModel,
    options: SearchOptions | None = None,
    progress: Progress | None = None,
) -> SearchResult:
    """Find a cheaper graph that the rules make equal to this one.

    The signature (inputs, outputs, their names and types) is kept, symbolic dimensions stay, barriers are untouched.
    The modelled cost of the result is never above the input's; where nothing is gained, the input itself is returned.
    ``KeyboardInterrupt`` ends the search with the best so far.

    Args:
        graph: a checked graph.
        rules: equalities that hold; each is used in every direction that binds its variables.
        costs: the target's cost model.
        options: settings.
        progress: called with (regions done, regions of this phase, what).
    """
    options = options or SearchOptions()
    start = time.monotonic()
    if options.time_limit is not None and options.time_limit <= 0:
        return SearchResult(graph, stopped="time")
    run = _Run(graph, rules, costs, options, progress, start)
    try:
        run.phases()
        run.close()
        run.apart()
        run.rank()
    except KeyboardInterrupt:
        run.stopped = "interrupted"
    return run.result()


@dataclass
class _Totals:
    """Figures that accumulate over phases."""

    regions: int = 0
    before: float = 0.0
    e_nodes: int = 0
    gain: float = 0.0
    grown: int = 0
    ranked: int = 0  # operators whose constants are written at another rank
    used: dict[str, list[float]] = field(default_factory=dict)  # rule → [count, gain]
    where: dict[str, dict[str, None]] = field(default_factory=dict)
    missed: dict[str, None] = field(default_factory=dict)
    quarantined: dict[str, str] = field(default_factory=dict)


class _Run:
    """One search in progress. ``program`` is the best so far, complete at every moment."""

    def __init__(
        self, graph: Graph, rules: Sequence[Rule], costs: CostModel, options: SearchOptions, progress: Progress | None,
        start: float,
    ) -> None:  # fmt: skip
        self.graph, self.costs, self.options, self.progress, self.start = graph, costs, options, progress, start
        limit = options.time_limit
        self.deadline = float("inf") if limit is None else start + limit * (1 - _RESERVE)  # for emergencies
        chosen = [r for r in rules if _wanted(r, options)]
        read = infer(graph)
        self.tidied = tidied(graph, read)
        typing = infer(self.tidied.graph) if self.tidied.gone else read
        self.program, self.tricks = kept_verbatim(program_of(self.tidied.graph, typing))
        self.program = replace(self.program, finite=options.finite)
        self.totals = _Totals()
        self.steps = self.program.steps
        self.rules = chosen
        self.prepared: Prepared = prepare(chosen, self.program, self.deadline, floats=options.floats)
        self.names = Names(self.program, options.reserved | graph.names)
        weights = graph.weight_bytes
        self.pricer = Pricer(costs.in_context(weights), graph.opset, options.sizes, self.deadline)
        self.totals.gain = self._untidied_us(graph, read)
        self.program = replace(self.program, kernels=kernels_of(self.program, self.pricer))
        self.unweighted = self.pricer.unweighted()  # old weights go as new ones come; a plan that grows needs a gain
        self.cache = RegionCache.of(chosen, self.pricer.costs, graph.opset, options, REGISTRY)
        self.memo: dict[_Key, Found] = {}
        self.losses = Losses()
        self.stages: list[tuple[Program, _Totals]] = []  # what stood after the stages that changed something
        self.merged = False  # merging what is far apart paid, so other orders are tried
        self.orders: list[Order] = []  # of merging, that were searched to their end
        self.stopped = "saturated"
        self.nodes = options.node_limit  # e-nodes of the region at hand, at most
        budget = options.fold_budget_bytes
        self.budget = weights // 10 + (64 << 20) if budget is None else budget

    def _untidied_us(self, graph: Graph, typing: Typing) -> float:
        """Microseconds of what was left out as the graph was read, where the backend would have run it."""
        us, fixed = 0.0, graph.constants
        for position in self.tidied.of_open_sizes if self.costs.backend.tidies else self.tidied.gone:
            node = typing.nodes[position]
            assert isinstance(node, Applied), "a barrier goes nowhere"
            types = tuple(None if a is None else typing.types[a] for a in node.args)
            attributes = tuple(sorted(node.attributes.items()))
            us += self.pricer.alone((node.operator.name, attributes, types, tuple(a in fixed for a in node.args)))
        return us

    # -- phases --------------------------------------------------------------------------------------------------

    def phases(self) -> None:
        """Merge what is far apart, then what is close together; where that pays, in other orders as well.

        A merge of siblings all over the model can stand in the way of one of neighbours (the gates of a cell, or all
        steps of one gate?), and which of the two is better depends on sizes.
        """
        self._spell()
        self._keep()
        self._merge()
        self.merged = self._differs
        self._closer()
        orders = (partial(self._closer, merging=True), self._gates_first)
        for way in orders if self.merged and not self.options.directed else ():
            if not self._over():
                self._another(way)

    def close(self) -> None:
        """What operators do together is written as one that no rule goes on from, where that is cheaper."""
        moves = self.prepared.closing
        for by_level in (False, True):
            if self._over() or not moves.patterns:
                return
            order = level_order(self.program) if by_level else list(self.program.running)
            regions, _ = cut(self.program, order, self.prepared.adjacent, _WINDOWS[0], fused=self.costs.fusable)
            self._phase([region_of(self.program, r) for r in regions], "fusing operators", moves, kind=_CLOSING)

    def apart(self) -> None:
        """What the backend would run as a kernel dearer than its parts is put into other words, after all else."""
        if self.options.frugal or self._over():
            return
        self._take(apart(self.program, self.prepared.every, self.pricer))

    def rank(self) -> None:
        """Constants of one element get the rank of what they are combined with, where the backend is faster so."""
        found = None if self.options.frugal or self._over() else ranked(self.program, self.pricer, self.names.fresh)
        if found is not None:
            self.program = found.program
            self.totals.gain += found.gain_us
            self.totals.ranked += found.count

    def _spell(self) -> None:
        """What the backend runs as one kernel in other words is put into its words, before a rule takes some away."""
        if self._take(spelled(self.program, self.prepared.moves, self.pricer)):
            self.program = replace(self.program, kernels=kernels_of(self.program, self.pricer))

    def _take(self, plans: Iterable[tuple[Region, Plan]]) -> bool:
        """Replace disjoint regions by plans, as far as weights may grow; True if one was."""
        offers = Offers(Weights(self.program), self.pricer.reading_us, self.budget - self.totals.grown)
        for region, plan in plans:
            offers.add([(region, plan)])
        self._replace(offers)
        return bool(offers.taken)

    @property
    def _differs(self) -> bool:
        """Whether something was done since the first stage."""
        return self.program.steps is not self.stages[0][0].steps

    def _merge(self) -> None:
        self._directed(
            "merging parallel operators", sibling_regions, Moves((), self.prepared.moves.groups), Limits().rounds
        )

    def _closer(self, *, merging: bool = False) -> None:
        """From moves that are few and mostly right to all moves everywhere; what is far apart is merged on the way."""
        self._prepare()
        sinking = tuple(p for p in self.prepared.moves.patterns if _selects(p))
        self._directed("selecting earlier", selection_regions, Moves(sinking), _STEPS)
        self._shorten()
        if merging:
            self._merge()
            self._prepare()
        self._keep()
        if self.options.directed:
            self.totals.before = self._cost() + self.totals.gain
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
            self.orders.append(Order(computes, self.totals.before - gained, self.totals.before - self.totals.gain))
        self._keep()

    def _prepare(self, *, grouped: bool = False) -> None:
        """The moves for the parts that there are by now."""
        self.prepared = prepare(self.rules, self.program, self.deadline, floats=self.options.floats, grouped=grouped)

    def _gates_first(self) -> None:
        """What reads the same data is merged before what is far apart, and everything else comes after."""
        self._windows("merging nearby operators", near=True)
        if self._differs:  # else the other orders have done all this
            self._merge()
            self._closer(merging=True)

    def _another(self, way: Callable[[], None]) -> None:
        """Once more from the input, another way; the cheaper of the two results stands."""
        program, totals, stages = self.program, self.totals, self.stages
        (self.program, start), first = stages[0], stages[-1:]
        self.totals = copy.deepcopy(start)
        self.stages = [stages[0], *first]
        try:
            way()
        finally:
            found = self.totals
            if found.before - found.gain >= totals.before - totals.gain or not found.before:
                self.program, self.totals, self.stages = program, totals, stages
            self.totals.e_nodes = found.e_nodes + totals.e_nodes

    def _directed(
        self, what: str, cover: Callable[[Program], list[list[int]]], moves: Moves, rounds: int
    ) -> None:  # fmt: skip
        """Apply moves of one kind to the regions that they are about, until they gain nothing more."""
        if not moves.patterns and not moves.groups:
            return
        for _ in range(_DIRECTED):
            regions = [region_of(self.program, r) for r in cover(self.program)]
            if self._over() or not self._phase(regions, what, moves, rounds, kind=what):
                return

    def _shorten(self) -> None:
        """Moves after which fewer operators run, which are few and mostly right, before all rules have their turn."""
        quiet = 0
        for number in range(_DIRECTED):
            order = level_order(self.program) if number % 2 else list(self.program.running)
            regions, _ = cut(self.program, order, self.prepared.adjacent, _WINDOWS[1], fused=self.costs.fusable)
            chosen = [region_of(self.program, r) for r in regions]
            improved = self._phase(chosen, "removing operators", self.prepared.shortening, kind=_SHORTENING)
            quiet = 0 if improved else quiet + 1
            if self._over() or quiet > 1:
                return

    def _windows(self, what: str, *, near: bool = False) -> None:
        """Every rule (or, near, only merges of neighbours), on windows with different cuts, until nothing improves."""
        quiet, avoid = 0, frozenset[str]()
        for number in range(_PHASES):
            level = number % 2 == 1
            order = level_order(self.program) if level else list(self.program.running)
            window = min(self.options.window, _WINDOWS[-1 if near else min(number // 2, len(_WINDOWS) - 1)])
            regions, cuts = cut(self.program, order, self.prepared.adjacent, window, avoid, self.costs.fusable)
            avoid = cuts
            gained, known = self.totals.gain, len(self.memo)
            if near:
                self._prepare(grouped=True)
            chosen = [region_of(self.program, r) for r in regions]
            kind, moves = (_NEAR, self.prepared.near) if near else ("", None)
            self._phase(chosen, f"{what}, phase {number + 1}", moves, first=number == 0, kind=kind)
            improved = self.totals.gain - gained > _LITTLE * self.totals.before
            looked = len(self.memo) > known or window == self.options.window  # else these regions were searched before
            quiet = 0 if improved else quiet + looked
            if self.totals.e_nodes > self.options.most_nodes:
                self._ended("nodes")
                return
            alone = quiet and len(regions) <= 1  # every cut gives this region
            if self._over() or alone or (quiet >= _QUIET and window > _WINDOWS[0]):
                return
            if number % 2 == 1 and number < 2 * len(_WINDOWS):
                self._keep()

    def _cost(self) -> float:
        """Modelled cost of the program as it stands, as the first phase over all of it will find it."""
        order, window = list(self.program.running), min(self.options.window, _WINDOWS[0])
        regions, _ = cut(self.program, order, self.prepared.adjacent, window, fused=self.costs.fusable)
        found = [region_of(self.program, r) for r in regions]
        return sum(cost_as_it_is(r, lower(r, REGISTRY), self.pricer) for r in found if r.outputs)

    def _keep(self) -> None:
        if not self.stages or self.stages[-1][0].steps is not self.program.steps:
            self.stages.append((self.program, copy.deepcopy(self.totals)))

    def _over(self) -> bool:
        if time.monotonic() >= self.deadline:
            self._ended("time")
        elif self.options.memory_limit is not None and resident() > self.options.memory_limit:
            self._ended("memory")
        return self.stopped in ("time", "memory")

    def _ended(self, why: str) -> None:
        self.stopped = max(self.stopped, why, key=_ENDS.index)

    def _phase(
        self, regions: Sequence[Region], what: str, moves: Moves | None = None, rounds: int = Limits().rounds,
        *, first: bool = False, kind: str = "",
    ) -> bool:  # fmt: skip
        """Optimise the distinct regions, most frequent first; True if the program improved.

        Args:
            regions: disjoint, and such that all can be replaced at once.
            what: for the progress callback.
            moves: what may be done, if not everything.
            rounds: of saturation.
            first: the regions are all of the program, and what they cost is what the model costs.
            kind: of moves, if not everything: regions alike are searched once for each.
        """
        if first:
            self.totals.before = self.totals.gain
        alike: dict[Hashable, list[Region]] = {}
        for region in regions:
            if region.outputs:
                alike.setdefault(region.signature, []).append(region)
        ordered = sorted(alike.items(), key=lambda item: -len(item[1]) * item[1][0].running)
        offers = Offers(Weights(self.program), self.pricer.reading_us, self.budget - self.totals.grown)
        self.totals.regions = max(self.totals.regions, len(regions))
        try:
            for done, (signature, group) in enumerate(ordered):
                if self._over():
                    break
                self._tell(done, len(ordered), what)
                key = (kind, self.prepared.parts, signature)
                if key not in self.memo:
                    share = max(_PHASE_NODES // len(ordered), _FEWEST + 3 * len(group[0].steps))
                    self.nodes = min(self.options.node_limit, share)
                    self.pricer.questions.cheap_us = self.options.cheap_us / len(group)
                    self.memo[key] = self._found(key, group[0], moves, rounds)
                found = self.memo[key]
                if first:
                    self.totals.before += found.before * len(group)
                if found.plan is not None and self._permitted(group[0], found.plan):
                    sound = [member for member in group if self._holds(member, found.plan)]
                    offers.add([(member, self._in_place(member, found.plan)) for member in sound])
        finally:
            self._replace(offers)
        return bool(offers.taken)

    def _tell(self, done: int, total: int | None, what: str) -> None:
        if self.progress is not None:
            self.progress(done, total, what)

    def _permitted(self, region: Region, plan: Plan) -> bool:
        return not self.options.frugal or frugal(region, plan, self.pricer)

    def _holds(self, region: Region, plan: Plan) -> bool:
        """Whether the element types hold the constants that a plan makes of these weights."""
        why = self.losses.of(self.program, region, plan)
        if why:
            self.totals.missed[f"{region.outputs[0]}: {named(plan)} would save {plan.gain:.1f} µs, but {why}"] = None
        return not why

    def _in_place(self, region: Region, plan: Plan) -> Plan:
        """The plan with what is lost where the backend ran what it takes apart as one: pairs over the region's border,
        and groups."""
        lost = sum(max(0.0, before - after) for before, after in fusions(self.program, region, plan, self.pricer.fused))
        lost += broken_us(self.program, region, plan, self.pricer)
        return replace(plan, after=plan.after + lost) if lost > 0 else plan

    def _replace(self, offers: Offers) -> None:
        offers.settle()
        for placed, why in offers.refused:
            plan = placed[0][1]
            self.totals.missed[f"{named(plan)} would save {plan.gain:.1f} µs, but {why}"] = None
        if not offers.taken:
            return
        self.totals.grown += offers.grown
        self.program = replay(self.program, offers.taken, self.names)
        for region, plan in offers.taken:
            self.totals.gain += plan.gain
            for rule, count in plan.rules.items():
                entry = self.totals.used.setdefault(rule, [0, 0.0])
                entry[0] += count
                entry[1] += plan.gain / len(plan.rules)
                self.totals.where.setdefault(rule, {}).update(dict.fromkeys(region.outputs[:4]))

    # -- one region ----------------------------------------------------------------------------------------------

    def _found(self, key: _Key, region: Region, moves: Moves | None, rounds: int) -> Found:
        """What an earlier run found, else what this one does."""

        def search() -> Found:
            return self._search(region, moves, rounds, key[0] == _SHORTENING)

        if self.cache is None:
            return search()
        hits = self.cache.hits
        place = (key, rounds, self.nodes)
        found = self.cache.found(place, region, search, whole=lambda: time.monotonic() < self.deadline)
        if self.cache.hits > hits:
            self._count(found)
            if found.missed:
                self.totals.missed[f"{region.outputs[0]}: {found.missed}"] = None
        return found

    def _count(self, found: Found) -> None:
        """Add the figures of a region's search to the totals."""
        self.totals.e_nodes += found.e_nodes
        self.totals.quarantined.update(found.quarantined)
        if found.stopped in ("nodes", "steps"):
            self._ended(found.stopped)

    def _search(self, region: Region, moves: Moves | None, rounds: int, shortening: bool) -> Found:
        limits = Limits(self.nodes, rounds, self.deadline, steps=_MATCHING)
        pricer = self.unweighted if shortening else self.pricer
        first = self.prepared.shortening if moves is None else Moves()
        settings = (self.options.least_gain, self.options.seed, first)
        found = optimise(region, moves or self.prepared.moves, REGISTRY, pricer, limits, *settings)
        self._count(found)
        if found.missed:
            self.totals.missed[f"{region.outputs[0]}: {found.missed}"] = None
        return found

    # -- the end -------------------------------------------------------------------------------------------------

    def result(self) -> SearchResult:
        """What stands now, as a graph."""
        totals = self.totals
        before = totals.before
        changed = self.program.steps is not self.steps and (totals.used or totals.ranked)
        notes = self.tricks
        if totals.ranked:
            notes += (f"constants are written at the rank of what they are combined with, {totals.ranked} times",)
        emitted = None
        graph = self.tidied.graph if totals.gain > 0 and not changed else self.graph
        try:
            emitted = (
                emit(self.program, REGISTRY, self.budget, self.options.reserved | self.graph.names) if changed else None
            )
        except NotCovered as error:
            notes += (f"the result cannot be written at the model's opset ({error}), so the input is returned",)
            graph = self.graph
            totals = _Totals(before=totals.before, regions=totals.regions, e_nodes=totals.e_nodes)
        applied = [
            AppliedRule(rule, int(count), tuple(totals.where[rule])[:_SHOWN], gain)
            for rule, (count, gain) in sorted(totals.used.items(), key=lambda u: -u[1][1])
        ]
        if emitted is not None and emitted.folded:
            applied.append(AppliedRule("fold", emitted.folded, (), None))
        return SearchResult(
            graph=emitted.graph if emitted is not None else graph, applied=tuple(applied),
            before_us=before, after_us=before - totals.gain, regions=totals.regions,
            distinct_regions=sum(not kind for kind, *_ in self.memo), e_nodes=totals.e_nodes, stopped=self.stopped,
            seconds=time.monotonic() - self.start, near_misses=tuple(totals.missed)[:_SHOWN],
            notes=notes, quarantined=dict(totals.quarantined),
            asked=self.pricer.questions.asked, decided=self.pricer.questions.decided,
        )  # fmt: skip


def _selects(pattern: Pattern) -> bool:
    """Whether the pattern moves a selection up: its own operator is one, and the other side's is not."""
    source, target = pattern.source, pattern.target
    return (
        len(source) == 1 and isinstance(source[0], App) and source[0].op in SELECTIONS
        and not (isinstance(target[0], App) and target[0].op in SELECTIONS and pattern.growth >= 0)
    )  # fmt: skip


def _wanted(rule: Rule, options: SearchOptions) -> bool:
    names = {rule.id, rule.family}
    return not names & set(options.disable) and (not options.enable or bool(names & set(options.enable)))

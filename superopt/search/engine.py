"""The search: phases of regions until nothing improves, always holding a complete and valid best so far."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from superopt.ir.graph import Graph
from superopt.ops import REGISTRY
from superopt.ops.infer import infer
from superopt.ops.record import NotCovered
from superopt.rules.rule import Rule
from superopt.search.confirm import region_graph, timer_of
from superopt.search.costing import Costs, Pricer
from superopt.search.emit import emit
from superopt.search.lower import Region, region_of
from superopt.search.moves import Prepared, prepare
from superopt.search.optimise import Found, optimise
from superopt.search.plan import Plan
from superopt.search.program import program_of
from superopt.search.regions import cut, level_order
from superopt.search.replay import Names, replay
from superopt.search.result import AppliedRule, Progress, SearchOptions, SearchResult
from superopt.search.saturate import Limits, Moves

__all__ = ["search"]

_PHASES = 40
_WINDOWS = (14, 30, 1 << 30)  # operators of a region in the first two phases, the next two, and then (at most)
_QUIET = 3  # phases with different cuts that must find nothing before the search stops
_RESERVE = 0.06  # share of the time that is kept for writing the result
_TIMING = 0.6  # seconds to time a region before and after
_SHOWN = 20  # near misses and places that are reported


def search(
    graph: Graph,
    rules: Sequence[Rule],
    costs: Costs,
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
    gap: float = 0.0
    grown: int = 0
    used: dict[str, list[float]] = field(default_factory=dict)  # rule → [count, gain]
    where: dict[str, dict[str, None]] = field(default_factory=dict)
    missed: dict[str, None] = field(default_factory=dict)
    quarantined: dict[str, str] = field(default_factory=dict)


class _Run:
    """One search in progress. ``program`` is the best so far, complete at every moment."""

    def __init__(
        self, graph: Graph, rules: Sequence[Rule], costs: Costs, options: SearchOptions, progress: Progress | None,
        start: float,
    ) -> None:  # fmt: skip
        self.graph, self.costs, self.options, self.progress, self.start = graph, costs, options, progress, start
        limit = options.time_limit
        self.deadline = float("inf") if limit is None else start + limit * (1 - _RESERVE)
        chosen = [r for r in rules if _wanted(r, options)]
        self.program = program_of(graph, infer(graph))
        self.steps = self.program.steps
        self.prepared: Prepared = prepare(chosen, self.program, self.deadline)
        self.names = Names(self.program)
        self.pricer = Pricer(self._context(), graph.opset, options.sizes, self.deadline)
        self.timer = timer_of(costs) if options.confirm else None
        self.memo: dict[Hashable, Found] = {}
        self.totals = _Totals()
        self.stopped = "saturated"
        weights = sum(w.type.nbytes or 0 for w in graph.weights)
        budget = options.fold_budget_bytes
        self.budget = weights // 10 + (64 << 20) if budget is None else budget

    def _context(self) -> Costs:
        """The cost model for parts of a graph of this size: are its weights still in cache when they are read?"""
        in_context = getattr(self.costs, "in_context", None)
        if in_context is None:
            return self.costs
        found: Costs = in_context(sum(w.type.nbytes or 0 for w in self.graph.weights))
        return found

    # -- phases --------------------------------------------------------------------------------------------------

    def phases(self) -> None:
        """Cut, optimise every distinct region, replace; with other cuts, until nothing improves."""
        quiet, avoid = 0, frozenset[str]()
        for number in range(_PHASES):
            level = number % 2 == 1
            order = level_order(self.program) if level else list(self.program.running)
            window = min(self.options.window, _WINDOWS[min(number // 2, len(_WINDOWS) - 1)])
            regions, cuts = cut(self.program, order, self.prepared.adjacent, window, avoid)
            avoid = cuts if number % 4 < 2 else frozenset()
            improved = self._phase([region_of(self.program, r) for r in regions], number)
            quiet = 0 if improved else quiet + 1
            widest = window == self.options.window
            if self._over() or (widest and (quiet >= _QUIET or (quiet and len(regions) <= 1))):
                return

    def _over(self) -> bool:
        if time.monotonic() >= self.deadline:
            self.stopped = "time"
        elif self.options.memory_limit is not None and _resident() > self.options.memory_limit:
            self.stopped = "memory"
        return self.stopped in ("time", "memory")

    def _phase(self, regions: Sequence[Region], number: int) -> bool:
        """Optimise the distinct regions, most frequent first; True if the program improved."""
        alike: dict[Hashable, list[Region]] = {}
        for region in regions:
            if region.outputs:
                alike.setdefault(region.signature, []).append(region)
        ordered = sorted(alike.items(), key=lambda item: -len(item[1]) * item[1][0].running)
        replacements: list[tuple[Region, Plan]] = []
        self.totals.regions = max(self.totals.regions, len(regions))
        try:
            for done, (signature, group) in enumerate(ordered):
                if self._over():
                    break
                self._tell(done, len(ordered), f"searching, phase {number + 1}")
                if signature not in self.memo:
                    self.memo[signature] = self._optimise(group[0], len(ordered) - done)
                found = self.memo[signature]
                if number == 0:
                    self.totals.before += found.before * len(group)
                if found.plan is not None:
                    replacements += [(r, found.plan) for r in group if self._affordable(found.plan)]
        finally:
            if replacements:
                self._replace(replacements)
        return bool(replacements)

    def _tell(self, done: int, total: int, what: str) -> None:
        if self.progress is not None:
            self.progress(done, total, what)

    def _affordable(self, plan: Plan) -> bool:
        """Whether the new weights still fit the budget; they are counted if so."""
        if self.totals.grown + plan.grown > self.budget and plan.grown > 0:
            self.totals.missed[f"{_named(plan)} would save {plan.gain:.1f} µs, but the weights would grow too much"] = (
                None
            )
            return False
        self.totals.grown += plan.grown
        return True

    def _replace(self, replacements: Sequence[tuple[Region, Plan]]) -> None:
        self.program = replay(self.program, replacements, self.names)
        for region, plan in replacements:
            self.totals.gain += plan.gain
            for rule, count in plan.rules.items():
                entry = self.totals.used.setdefault(rule, [0, 0.0])
                entry[0] += count
                entry[1] += plan.gain / len(plan.rules)
                self.totals.where.setdefault(rule, {}).update(dict.fromkeys(region.outputs[:4]))

    # -- one region ----------------------------------------------------------------------------------------------

    def _optimise(self, region: Region, left: int) -> Found:
        found = self._search(region, self.prepared.moves, left)
        plan = found.plan
        if found.missed:
            self.totals.missed[f"{region.outputs[0]}: {found.missed}"] = None
        if plan is None or self.timer is None:
            return found
        plans = [plan]
        if self.prepared.moves.groups and any(g.rule.id in plan.rules for g in self.prepared.moves.groups):
            other = self._search(region, Moves(self.prepared.moves.patterns), left).plan
            plans += [] if other is None else [other]
        return replace(found, plan=self._confirmed(region, plans))

    def _search(self, region: Region, moves: Moves, left: int) -> Found:
        now = time.monotonic()
        share = min(20.0, max(0.2, 2 * (self.deadline - now) / max(1, left))) if self.deadline < float("inf") else 20.0
        limits = Limits(self.options.node_limit, deadline=min(self.deadline, now + share))
        found = optimise(region, moves, REGISTRY, self.pricer, limits, self.options.least_gain, self.options.seed)
        self.totals.e_nodes += found.e_nodes
        self.totals.gap = max(self.totals.gap, found.gap)
        self.totals.quarantined.update(found.quarantined)
        if found.stopped == "nodes":
            self.stopped = "nodes"
        return found

    def _confirmed(self, region: Region, plans: Sequence[Plan]) -> Plan | None:
        """The plan that is fastest when the region is timed whole, or ``None`` if none beats the region itself."""
        drawn = [region_graph(region, p, self.graph.opset, REGISTRY) for p in (None, *plans)]
        if self.timer is None or any(g is None for g in drawn) or self._over():
            return plans[0]
        seconds = min(_TIMING * len(drawn), max(0.05, (self.deadline - time.monotonic()) / 4))
        before, *after = self.timer([g for g in drawn if g is not None], seconds)
        if before == float("inf"):
            return plans[0]
        best, us = min(zip(plans, after, strict=True), key=lambda p: p[1])
        if us > before * (1 - self.options.least_gain):
            change = (
                "cannot run" if us == float("inf") else f"was measured to take {100 * us / before:.0f} % of the time"
            )
            self.totals.missed[f"{region.outputs[0]}: {_named(best)} should save {best.gain:.1f} µs, but {change}"] = (
                None
            )
            return None
        return replace(best, after=best.before - (before - us))

    # -- the end -------------------------------------------------------------------------------------------------

    def result(self) -> SearchResult:
        """What stands now, as a graph."""
        totals = self.totals
        before = totals.before
        changed = self.program.steps is not self.steps and totals.used
        notes: tuple[str, ...] = ()
        emitted = None
        try:
            emitted = emit(self.program, REGISTRY, self.budget) if changed else None
        except NotCovered as error:
            notes = (f"the result cannot be written at the model's opset ({error}), so the input is returned",)
            totals = _Totals(before=totals.before, regions=totals.regions, e_nodes=totals.e_nodes)
        applied = [
            AppliedRule(rule, int(count), tuple(totals.where[rule])[:_SHOWN], gain)
            for rule, (count, gain) in sorted(totals.used.items(), key=lambda u: -u[1][1])
        ]
        if emitted is not None and emitted.folded:
            applied.append(AppliedRule("fold", emitted.folded, (), None))
        return SearchResult(
            graph=emitted.graph if emitted is not None else self.graph, applied=tuple(applied),
            before_us=before, after_us=before - totals.gain, regions=totals.regions,
            distinct_regions=len(self.memo), e_nodes=totals.e_nodes, stopped=self.stopped,
            seconds=time.monotonic() - self.start, gap=totals.gap, near_misses=tuple(totals.missed)[:_SHOWN],
            notes=notes, quarantined=dict(totals.quarantined),
        )  # fmt: skip


def _wanted(rule: Rule, options: SearchOptions) -> bool:
    names = {rule.id, rule.family}
    return not names & set(options.disable) and (not options.enable or bool(names & set(options.enable)))


def _named(plan: Plan) -> str:
    return ", ".join(sorted(plan.rules)) or "evaluating constants"


def _resident() -> int:
    """Bytes of memory that the process occupies; 0 where the system does not say."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * 4096 if statm.exists() else 0

"""All searches side by side over the same rules and costs: ``python -m lab.search_comparison MODEL...``.

One row a model: the modelled cost (µs) of the input and of what greedy, best-first and superopt's own search make of
it, all read off the written graphs by one function. Exit code 6 if ours is not the cheapest of a model.

What simpler searches reach with the same rules and costs: greedy, and TASO's best-first search over whole graphs. They
are here to be beaten, not to be used. Both rewrite one place at a time: *greedy* applies what gains most while
something gains; *best-first* (Jia et al., TASO, SOSP 2019, algorithm 2) keeps a queue of whole graphs, expands the
cheapest, and keeps what costs less than α times the best so far, so that it passes small hills.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from superopt import cost, formats
from superopt.cost.cost_model import CostModel
from superopt.egraph.egraph import LEAF, PROJECT, EGraph, ENode, TypeClashError
from superopt.egraph.nary_rules import independent, siblings
from superopt.egraph.pattern_compiler import CompiledPattern, PatternMatch, bound
from superopt.egraph.pattern_index import PatternTrie
from superopt.egraph.rule_compiler import CompiledRewrites, compile_rewrites
from superopt.egraph.saturation import instantiate, recipe_of
from superopt.extraction.dag import NODE_US, ExtractionContext, cost_of, problem_of, used_classes
from superopt.extraction.enode_costs import ENodeCostModel
from superopt.ir.graph import Graph
from superopt.ir.terms import AttributeValue, Term
from superopt.ops import REGISTRY
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.ops.shape_inference import infer
from superopt.passes.deliberate_rounding import guard_deliberate_rounding
from superopt.passes.saturation_search import search
from superopt.program.graph_program import GraphProgram, program_of
from superopt.regions.emission import emit
from superopt.regions.partition import segments
from superopt.regions.region_egraph import ProgramRegion, RegionEGraph, lower, region_of
from superopt.regions.region_plan import RegionPlan, plan_of
from superopt.regions.region_search import incumbent_of
from superopt.regions.replay import FreshNames, replay
from superopt.regions.search_result import SearchOptions
from superopt.rules import load_library
from superopt.rules.rule import Rule

__all__ = ["ALPHA", "BaselineSearchResult", "SearchComparisonRow", "best_first", "compare", "greedy", "modelled"]

ALPHA = 1.05
SECONDS = 60.0
_LEAST = 1e-3  # µs that a step of the greedy search gains at least
_QUEUE = 5000  # graphs that wait, at most
_ROOM = 1 << 62  # bytes that folding may add: the baselines have no budget
_SAME = 1 + 1e-4  # costs that differ by less than this share are equal


@dataclass(frozen=True)
class SearchComparisonRow:
    """Modelled microseconds of a model, as it is and as each search leaves it; and how long ours took (s)."""

    model: str
    input: float
    greedy: float
    best_first: float
    ours: float
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether ours is the cheapest."""
        return self.ours <= min(self.input, self.greedy, self.best_first) * _SAME


def compare(graph: Graph, rules: Sequence[Rule], costs: CostModel, seconds: float = SECONDS) -> SearchComparisonRow:
    """Run all searches on a graph.

    Args:
        graph: the model.
        rules: for all alike.
        costs: for all alike; it should answer without measuring.
        seconds: for each of the baselines; ours takes what it takes.
    """
    weights = graph.weight_bytes
    costs = costs.in_context(weights)  # one price for all, whatever became of the weights
    start = time.monotonic()
    own = search(graph, rules, costs, SearchOptions(cache=False, least_gain=0.0)).graph
    took = time.monotonic() - start
    results = (graph, greedy(graph, rules, costs, seconds).graph, best_first(graph, rules, costs, seconds).graph, own)
    before, by_greed, by_queue, by_us = (modelled(g, costs) for g in results)
    return SearchComparisonRow(graph.name, before, by_greed, by_queue, by_us, took)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table (and write it as JSON); 6 if ours is beaten."""
    parser = argparse.ArgumentParser(prog="python -m lab.search_comparison", description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--target", default="", help="profile:NAME; a plain roofline by default")
    parser.add_argument("--rules", type=Path, help="a folder of rules instead of the built-in ones")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each of the baselines")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(arguments)
    rules = rules_of(chosen.rules)
    rows: list[SearchComparisonRow] = []
    print(f"{'model':20} {'input':>11} {'greedy':>11} {'best-first':>11} {'ours':>11} {'ratio':>6} {'s':>6}")
    for path in chosen.models:
        row = compare(formats.load(path), rules, costs_of(chosen.target), chosen.seconds)
        rows.append(row)
        mark = "" if row.holds else "  beaten"
        ratio = row.ours / row.input if row.input else 1.0
        print(f"{path.stem:20} {row.input:11.1f} {row.greedy:11.1f} {row.best_first:11.1f} {row.ours:11.1f}"
              f" {ratio:6.3f} {row.seconds:6.1f}{mark}", flush=True)  # fmt: skip
    if chosen.json is not None:
        chosen.json.write_text(json.dumps([asdict(r) for r in rows], indent=2) + "\n", encoding="utf-8")
    return 0 if all(r.holds for r in rows) else 6


def rules_of(folder: Path | None) -> tuple[Rule, ...]:
    """The admitted built-in rules, or those of a folder as they are (for experiments: nothing is proved here)."""
    return load_library().admitted if folder is None else tuple(load_library(folder, built_in=False).values())


def costs_of(target: str) -> CostModel:
    """A recorded profile by the name of its target; without one, an empty profile, which predicts by roofline."""
    name = target.removeprefix("profile:")
    return cost.ProfileCostModel(cost.load_profile(name) if name else cost.DeviceProfile({"sha256": "roofline"}, {}))


@dataclass(frozen=True)
class BaselineSearchResult:
    """What a baseline found: the graph, its modelled cost, how many graphs were expanded, and whether it ended."""

    graph: Graph
    us: float
    expanded: int
    seconds: float
    finished: bool


@dataclass(frozen=True)
class _Rewrite:
    """One application of a rule: what to write, for which classes, and by how much the cost changes."""

    us: float
    region: int
    roots: tuple[int, ...]
    targets: tuple[Term, ...]
    match: PatternMatch
    why: str


class _State:
    """A program, with the moves that lead on from it."""

    def __init__(self, program: GraphProgram, pricer: ENodeCostModel) -> None:
        self.program, self.pricer = program, pricer

    @cached_property
    def regions(self) -> list[ProgramRegion]:
        """Runs of steps without barriers."""
        runs = segments(self.program, self.program.running)
        return [r for run in runs if (r := region_of(self.program, run)).outputs]

    @cached_property
    def us(self) -> float:
        """The modelled cost."""
        return sum(_Costing(lower(r, REGISTRY), r, self.pricer).us({}) for r in self.regions)

    @cached_property
    def key(self) -> str:
        """Equal for programs that compute the same terms, whatever their names and order."""
        known: dict[str, str] = {}
        for step in self.program.steps:
            args = [None if a is None else known.get(a, a) for a in step.args]
            head = step.node.name if step.op == "" and step.node else step.op
            text = hashlib.sha256(repr((head, step.attributes, args)).encode()).hexdigest()
            known.update((o, f"{text}.{i}") for i, o in enumerate(step.outputs) if o)
        return repr([known.get(v.name, v.name) for v in self.program.graph.outputs])

    def rewrites(self, net: _Net, deadline: float) -> Iterator[_Rewrite]:
        """Every application of every rule, with its gain."""
        for number, region in enumerate(self.regions):
            lowered = lower(region, REGISTRY)
            graph = lowered.graph
            graph.rebuild()
            costing = _Costing(lowered, region, self.pricer)
            before = costing.us({})
            for why, roots, targets, match in list(net.occurrences(graph)):
                if time.monotonic() > deadline:
                    return
                try:
                    made = instantiate(graph, recipe_of(tuple(targets)), match)
                except IllTypedOperator:
                    continue
                pairs = list(zip(roots, made, strict=True))
                if all(graph.type(a) == graph.type(b) for a, b in pairs):
                    after = costing.us({graph.find(a): graph.find(b) for a, b in pairs})
                    if after < float("inf"):
                        yield _Rewrite(after - before, number, tuple(roots), tuple(targets), match, why)

    def after(self, move: _Rewrite) -> _State | None:
        """The program with a move made; ``None`` if it cannot be made by itself."""
        region = self.regions[move.region]
        lowered = lower(region, REGISTRY)
        graph = lowered.graph
        graph.rebuild()
        graph.cause = move.why
        try:
            made = instantiate(graph, recipe_of(tuple(move.targets)), move.match)
            chosen = {root: next(iter(graph.classes[graph.find(new)].nodes)) for root, new in zip(
                move.roots, made, strict=True)}  # fmt: skip
            for root, new in zip(move.roots, made, strict=True):
                graph.union(root, new, move.why)
        except (IllTypedOperator, TypeClashError):
            return None
        graph.rebuild()
        plan = self._plan(region, lowered, {graph.find(r): graph.canonical(n) for r, n in chosen.items()})
        return (
            None
            if plan is None
            else _State(replay(self.program, [(region, plan)], FreshNames(self.program)), self.pricer)
        )

    def _plan(self, region: ProgramRegion, lowered: RegionEGraph, chosen: Mapping[int, ENode]) -> RegionPlan | None:
        graph = lowered.graph
        outputs = [lowered.classes[region.number[o]] for o in region.outputs]
        given = frozenset(n for g in graph.classes.values() for n, b in g.nodes.items() if b in lowered.origin)
        problem = problem_of(graph, ExtractionContext(outputs, input_nodes=given), self.pricer)
        choice = incumbent_of(region, lowered, problem)
        for owner, options in problem.of.items():
            choice.setdefault(owner, options[0]) if options else None
        choice.update((c, problem.index[c, n]) for c, n in chosen.items() if (c, n) in problem.index)
        if used_classes(problem, choice) is None:
            return None
        return plan_of(region, lowered, problem, choice, 0.0, -cost_of(problem, choice))


class _Costing:
    """The cost of a region when some classes are computed as others, which nothing was united with."""

    def __init__(self, lowered: RegionEGraph, region: ProgramRegion, pricer: ENodeCostModel) -> None:
        self.graph, self.pricer = lowered.graph, pricer
        self.origin = lowered.origin
        self.outputs = [lowered.classes[region.number[o]] for o in region.outputs]

    def us(self, instead: Mapping[int, int]) -> float:
        """Microseconds; infinite if a value would depend on itself or cannot be written."""
        graph, pricer = self.graph, self.pricer
        chosen: dict[int, ENode] = {}
        state: dict[int, int] = {}
        reads: dict[int, int] = {}
        total = 0.0
        stack = [(self._at(o, instead), False) for o in self.outputs]
        while stack:
            owner, expanded = stack.pop()
            if expanded:
                state[owner] = 2
                continue
            if owner in state or graph.constant(owner):
                continue
            state[owner] = 1
            node, birth = next(iter(graph.classes[owner].nodes.items()))
            us = pricer.node(graph, node, kept=birth in self.origin).us
            if us == float("inf"):
                return us
            total += us + (0.0 if graph.heads[node[0]].op in (LEAF, PROJECT) else NODE_US)
            chosen[owner] = node
            stack.append((owner, True))
            for need in dict.fromkeys(self._at(a, instead) for a in node[1:] if a != -1):
                if not graph.constant(need):
                    if state.get(need) == 1:
                        return float("inf")
                    reads[need] = reads.get(need, 0) + 1
                    stack.append((need, False))
        return total - self._fused(chosen, reads, instead)

    def _at(self, identity: int, instead: Mapping[int, int]) -> int:
        root = self.graph.find(identity)
        return instead.get(root, root)

    def _fused(self, chosen: Mapping[int, ENode], reads: Mapping[int, int], instead: Mapping[int, int]) -> float:
        outside = {self._at(o, instead) for o in self.outputs}
        saved, taken = 0.0, set[int]()
        for owner, node in reversed(list(chosen.items())):
            best, by = 0.0, -1
            for need in dict.fromkeys(self._at(a, instead) for a in node[1:] if a != -1):
                if need in chosen and reads.get(need) == 1 and need not in outside and need not in taken:
                    us = self.pricer.saving(self.graph, self.graph.heads[chosen[need][0]].op, node)
                    best, by = (us, need) if us > best else (best, by)
            if by >= 0 and owner not in taken:
                taken |= {owner, by}
                saved += best
        return saved


class _Net:
    """All moves as one net of patterns, and the merges of siblings."""

    def __init__(self, prepared: CompiledRewrites) -> None:
        self.groups = prepared.every.groups
        self.trie: PatternTrie[CompiledPattern] = PatternTrie([(p, p.steps, p.depth) for p in prepared.every.patterns])

    def occurrences(self, graph: EGraph) -> Iterator[tuple[str, Sequence[int], Sequence[Term], PatternMatch]]:
        """Rule, roots, what they become, and the binding."""
        found: list[tuple[CompiledPattern, PatternMatch]] = []

        def keep(pattern: CompiledPattern, slots: list[int], registers: list[AttributeValue]) -> None:
            match = bound(graph, pattern, slots, registers)
            if match is not None and (len(match.roots) == 1 or independent(graph, match.roots)):
                found.append((pattern, match))

        self.trie.walk(graph, keep)
        for pattern, match in found:
            yield pattern.rule.id, match.roots, pattern.target, match
        for group, places in zip(self.groups, siblings(graph, self.groups), strict=True):
            yield from group.proposals(graph, places, set())


def modelled(graph: Graph, costs: CostModel, sizes: Mapping[str, int] | None = None) -> float:
    """The modelled cost of a graph in microseconds, by which all searches are compared."""
    pricer = ENodeCostModel(costs, graph.opset, sizes or {})
    return _State(program_of(graph, infer(graph)), pricer).us


def greedy(graph: Graph, rules: Sequence[Rule], costs: CostModel, seconds: float = SECONDS) -> BaselineSearchResult:
    """Apply the rewrite that gains most, again and again, while one gains."""
    start = time.monotonic()
    state, net = _begin(graph, rules, costs)
    expanded, finished = 0, False
    while not finished and time.monotonic() - start < seconds:
        expanded += 1
        gaining = sorted((m for m in state.rewrites(net, start + seconds) if m.us < -_LEAST), key=lambda m: m.us)
        following = (s for m in gaining if (s := state.after(m)) is not None and s.us < state.us - _LEAST)
        better = next(following, None)
        finished = better is None and time.monotonic() - start < seconds
        state = state if better is None else better
    return BaselineSearchResult(_graph(graph, state), state.us, expanded, time.monotonic() - start, finished)


def best_first(
    graph: Graph, rules: Sequence[Rule], costs: CostModel, seconds: float = SECONDS, alpha: float = ALPHA
) -> BaselineSearchResult:
    """Expand the cheapest graph that waits; what costs at least ``alpha`` times the best so far is dropped."""
    start = time.monotonic()
    state, net = _begin(graph, rules, costs)
    best, seen, expanded, count = state, {state.key}, 0, 0
    queue: list[tuple[float, int, _State]] = [(state.us, 0, state)]
    while queue and time.monotonic() - start < seconds:
        _, _, state = heapq.heappop(queue)
        expanded += 1
        limit = alpha * best.us
        for move in sorted(state.rewrites(net, start + seconds), key=lambda m: m.us):
            if state.us + move.us >= limit or time.monotonic() - start >= seconds:
                break
            made = state.after(move)
            if made is None or made.key in seen or made.us >= limit:
                continue
            seen.add(made.key)
            count += 1
            best = made if made.us < best.us else best
            if len(queue) < _QUEUE:
                heapq.heappush(queue, (made.us, count, made))
    return BaselineSearchResult(_graph(graph, best), best.us, expanded, time.monotonic() - start, not queue)


def _begin(graph: Graph, rules: Sequence[Rule], costs: CostModel) -> tuple[_State, _Net]:
    pricer = ENodeCostModel(costs, graph.opset, {})
    program, _ = guard_deliberate_rounding(program_of(graph, infer(graph)))
    return _State(program, pricer), _Net(compile_rewrites(rules, program))


def _graph(graph: Graph, state: _State) -> Graph:
    return graph if state.program.steps == program_of(graph, infer(graph)).steps else emit(
        state.program, REGISTRY, _ROOM).graph  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())

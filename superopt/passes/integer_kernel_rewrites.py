"""Rewrites after which the backend computes in integers: what stands between DequantizeLinear and an operator with such
a kernel, or between one and QuantizeLinear, is written with operators that the backend moves the two past.

Only operators that choose, move or pool elements are rewritten. Their equals come from the rules, in an e-graph of the
chain; the form that is taken leads from the dequantised value to the end of the chain through the backend's operators.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from superopt.cost.integer_kernel_support import DEQUANTIZE, QUANTIZE, IntegerKernelSupport, QdqNodeGroups
from superopt.egraph.egraph import ABSENT, EGraph, ENode
from superopt.egraph.saturation import RewriteSet, SaturationLimits, saturate
from superopt.extraction.dag import Choice, ExtractionProblem, cost_of, problem_of, used_classes
from superopt.extraction.enode_costs import ENodeCostModel
from superopt.ir.graph import Node
from superopt.ops import REGISTRY, moves_or_reduces
from superopt.passes.backend_fusion import as_graph
from superopt.program.graph_program import GraphProgram, ProgramStep
from superopt.regions.boundary_cost import step_application
from superopt.regions.region_egraph import ProgramRegion, lower, region_of
from superopt.regions.region_plan import RegionPlan, plan_of
from superopt.regions.region_search import frame_of, incumbent_of

__all__ = ["integer_plans"]


@dataclass(frozen=True)
class IntegerKernelPolicy:
    """Limits of the search for a form that the backend computes in integers.

    Attributes:
        nodes: e-nodes of a chain's e-graph.
        rounds: rules in a row: a mean over H and W is an average pool with or without what is padded, which is a
            global one, without two axes.
        longest: operators of a chain, and of the form that is taken.
    """

    nodes: int = 400
    rounds: int = 4
    longest: int = 8


POLICY = IntegerKernelPolicy()
_Members = Mapping[int, ENode]


@dataclass(frozen=True)
class _Chain:
    """Steps from a dequantised value to one that has to be reached in integers.

    Attributes:
        source: the dequantised value.
        positions: of the steps, the last first.
        passed: the operators that the backend moves the two past.
        pools: a kernel of integers has to be among them: QuantizeLinear reads the result.
        saved_us: what DequantizeLinear and QuantizeLinear take, which go where the backend computes in integers.
    """

    source: str
    positions: tuple[int, ...]
    passed: frozenset[str]
    pools: bool
    saved_us: float


def integer_plans(
    program: GraphProgram, rewrites: RewriteSet, pricer: ENodeCostModel
) -> Iterator[tuple[ProgramRegion, RegionPlan]]:
    """Plans for disjoint chains, after which the backend computes in integers what is around them.

    Args:
        program: after everything else, since the rules do not tell the backend's operators from their equals.
        rewrites: the rewrites to apply.
        pricer: what operators cost, and the backend.
    """
    kernels = pricer.costs.backend.integers
    chains = () if kernels is None else tuple(_chains(program, kernels, pricer))
    if kernels is None or not chains:
        return
    moving = RewriteSet(tuple(p for p in rewrites.patterns if all(map(moves_or_reduces, p.operators))))
    known: dict[object, RegionPlan | None] = {}
    used = set[int]()
    for chain in chains:
        if time.monotonic() > pricer.deadline:
            return
        if used.intersection(chain.positions):
            continue
        used.update(chain.positions)
        region = region_of(program, sorted(chain.positions))
        key = region.signature, chain.passed, chain.pools, region.number[chain.source]
        if key not in known:
            known[key] = _plan(region, program.steps[chain.positions[0]].outputs[0], chain, kernels, moving, pricer)
        plan = known[key]
        if plan is not None:
            yield region, plan


def _chains(program: GraphProgram, kernels: IntegerKernelSupport, pricer: ENodeCostModel) -> Iterator[_Chain]:
    """The chains that the backend does not move DequantizeLinear or QuantizeLinear past as they are."""
    graph = as_graph(program)
    groups = QdqNodeGroups(graph, kernels)
    for node in graph.nodes:
        if groups.is_candidate(node) and not groups.is_integer(node):
            around = _around(program, groups.members(node), pricer)
            for name in groups.operands(node):
                if not groups.dequantised[name]:
                    yield from _chain(program, name, kernels, False, around)
        elif node.op == QUANTIZE and not node.domain and node.inputs[0] in groups.dequantised:
            inner, source = _within(groups, node.inputs[0])
            if groups.has_one_scale(node) and (inner is None or not groups.is_integer(inner)):
                around = _around(program, (node, source), pricer)
                yield from _chain(program, node.inputs[0], kernels, True, around)


def _within(groups: QdqNodeGroups, name: str) -> tuple[Node | None, Node]:
    """The nearest operator above a value with a kernel of integers, if any, and what dequantises its elements."""
    kernel: Node | None = None
    while (maker := groups.graph.producer[name]).op != DEQUANTIZE:
        kernel = maker if kernel is None and groups.operands(maker) else kernel
        name = maker.inputs[0]
    return kernel, maker


def _around(program: GraphProgram, members: tuple[Node, ...], pricer: ENodeCostModel) -> float:
    """Microseconds of the QuantizeLinear and DequantizeLinear among the members of a group."""
    places = (program.maker.get(node.outputs[0]) for node in members)
    steps = (program.steps[place] for place in places if place is not None)
    return sum(pricer.alone(step_application(program, s)) for s in steps if s.op in (QUANTIZE, DEQUANTIZE))


def _chain(
    program: GraphProgram, name: str, kernels: IntegerKernelSupport, pools: bool, saved_us: float
) -> Iterator[_Chain]:
    """The steps that make a value of a dequantised one, where each is read by the next alone; none where one stays."""
    positions: list[int] = []
    while len(positions) <= POLICY.longest:
        maker = program.maker.get(name)
        step = None if maker is None else program.steps[maker]
        if maker is None or step is None:
            return
        if step.op == DEQUANTIZE or (step.node is not None and step.op == "" and step.node.op == DEQUANTIZE):
            if positions:
                yield _Chain(name, tuple(positions), _passed(program, step, kernels), pools, saved_us)
            return
        moving = [a for a in step.args if a is not None and a not in program.constant]
        alone = len(program.readers.get(name, ())) == 1 and name not in program.pinned
        if not moves_or_reduces(step.op) or len(moving) != 1 or not alone:
            return
        positions.append(maker)
        name = moving[0]


def _passed(program: GraphProgram, dequantizing: ProgramStep, kernels: IntegerKernelSupport) -> frozenset[str]:
    """The operators that the backend moves DequantizeLinear past, of stored numbers as they are here."""
    stored = program.types.get(dequantizing.reads[0])
    unsigned = stored is not None and str(stored.dtype).startswith("u")
    return kernels.passed if unsigned or program.graph.opset.get("", 1) < kernels.unsigned_from else frozenset()


def _plan(
    region: ProgramRegion,
    name: str,
    chain: _Chain,
    kernels: IntegerKernelSupport,
    rewrites: RewriteSet,
    pricer: ENodeCostModel,
) -> RegionPlan | None:
    """The cheapest form of a chain that the backend computes in integers, if it is cheaper than the chain and what
    stands around it."""
    lowered = lower(region, REGISTRY)
    saturate(lowered.graph, rewrites, SaturationLimits(nodes=POLICY.nodes, rounds=POLICY.rounds))
    problem = problem_of(lowered.graph, frame_of(region, lowered), pricer)
    incumbent = incumbent_of(region, lowered, problem)
    owner, source = (lowered.graph.find(lowered.classes[region.number[n]]) for n in (name, chain.source))
    before = cost_of(problem, incumbent) + chain.saved_us
    best: tuple[float, ExtractionProblem, Choice] | None = None
    for members in _forms(lowered.graph, owner, source, chain.passed, kernels, chain.pools, POLICY.longest):
        prices = {o: _us(lowered.graph, node, kernels, pricer) for o, node in members.items()}
        made = _chosen(problem, incumbent, members, prices)
        if made is not None and (us := cost_of(*made)) < (before if best is None else best[0]) - 1e-9:
            best = us, *made
    return None if best is None else plan_of(region, lowered, best[1], best[2], before, best[0])


def _us(graph: EGraph, node: ENode, kernels: IntegerKernelSupport, pricer: ENodeCostModel) -> float:
    """Microseconds of an operator of a form: of its kernel of integers, where it has one."""
    return kernels.shares.get(graph.heads[node[0]].op, 1.0) * pricer.node(graph, node).us


def _forms(
    graph: EGraph,
    owner: int,
    source: int,
    passed: frozenset[str],
    kernels: IntegerKernelSupport,
    pools: bool,
    longest: int,
) -> Iterator[_Members]:
    """The ways from a class to the source by operators that the backend passes, and one kernel of integers if asked."""
    owner, source = graph.find(owner), graph.find(source)
    if owner == source:
        if not pools:
            yield {}
        return
    if longest == 0 or graph.constant(owner):
        return
    for node in tuple(graph.classes[owner].nodes):
        op = graph.heads[node[0]].op
        moving = [a for a in node[1:] if a != ABSENT and not graph.constant(a)]
        kernel = pools and kernels.operands.get(op) == 0
        if len(moving) == 1 and (kernel or op in passed):
            for inner in _forms(graph, moving[0], source, passed, kernels, pools and not kernel, longest - 1):
                if owner not in inner:
                    yield {**inner, owner: node}


def _chosen(
    problem: ExtractionProblem, incumbent: Choice, members: _Members, prices: Mapping[int, float]
) -> tuple[ExtractionProblem, Choice] | None:
    """The problem with the operators of a form at their prices, and the incumbent with the form in it; ``None`` where
    it cannot be written."""
    candidates, choice = list(problem.candidates), dict(incumbent)
    for owner, node in members.items():
        place = problem.index.get((owner, node))
        if place is None:
            return None
        candidates[place] = replace(candidates[place], node=node, us=prices[owner])
        choice[owner] = place
    if any(need not in choice for owner in members for need in candidates[choice[owner]].needs):
        return None
    priced = replace(problem, candidates=tuple(candidates))
    return None if used_classes(priced, choice) is None else (priced, choice)

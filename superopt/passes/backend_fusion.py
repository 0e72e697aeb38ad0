"""Fusions of the backend: rewrites towards and away from the kernels that ONNX Runtime fuses.

Extraction adds up the costs of operators, so it does not see that ``x · (0.5 · (1 + erf(x / √2)))`` takes five kernels
and ``(x · 0.5) · (1 + erf(x / √2))`` one. This pass matches the backend's fusion patterns in the e-graph of the
operators around, before other rules run. A fused group costs as much as its dearest operator.

A fused kernel can also be slower than its parts: ONNX Runtime's SkipLayerNormalization takes several times as long as a
sum and a normalisation. After all other rules, such a sum is rewritten so that the pattern does not match.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import isclose

from superopt.cost.backend_capabilities import CLOSE, COMMUTE, FusedGroup, FusionPattern, groups
from superopt.cost.operator_time_predictor import BROADCASTING, broadcast_spans
from superopt.egraph.egraph import ABSENT, EGraph, ENode
from superopt.egraph.saturation import RewriteSet, SaturationLimits, saturate
from superopt.extraction.dag import Choice, ExtractionProblem, cost_of, problem_of, used_classes
from superopt.extraction.enode_costs import ENodeCostModel
from superopt.ir.graph import Graph, Node
from superopt.ir.terms import AttributeValue
from superopt.ir.types import TensorType
from superopt.ops import REGISTRY
from superopt.ops.operator_definition import UnsupportedNodeForm
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.program.graph_program import FusedKernel, GraphProgram, ProgramStep
from superopt.regions.boundary_cost import step_application
from superopt.regions.region_egraph import ProgramRegion, RegionEGraph, lower, region_of
from superopt.regions.region_plan import RegionPlan, plan_of
from superopt.regions.region_search import frame_of, incumbent_of

__all__ = [
    "FEWEST",
    "RankAlignedProgram",
    "as_graph",
    "splitting_plans",
    "broken_kernel_us",
    "groups_of",
    "fused_kernels",
    "align_constant_ranks",
    "fusing_plans",
]


# -- Kernels that the backend runs for several operators -----------------------------------------------------------
#
# The graph's cost (:func:`superopt.cost.graph_cost`) counts a fused group (a GELU, a normalisation) once, at its
# dearest operator. So does the search, as long as the group is complete: a rewrite that removes one of its operators
# saves nothing, and a rewrite that breaks the group pays for the others.


# Members of the smallest group. A product takes in a Transpose or a scale, and a LayerNormalization a sum, whichever it
# is, also one that a rewrite makes; free in the input alone, they stand in the way of rewrites (train_step_mlp and
# gpt2_last, tiny: 3 % dearer).
FEWEST = 4


def fused_kernels(program: GraphProgram, pricer: ENodeCostModel) -> tuple[FusedKernel, ...]:
    """The groups of a program's steps.

    Args:
        program: as it was read, or with other steps.
        pricer: says which step of a group is the dearest; the first, of several.
    """
    steps = {s.outputs[0]: s for s in program.steps if s.op}
    found: list[FusedKernel] = []
    for group in groups_of(program, pricer):
        made = [node.outputs[0] for node in group.nodes]
        if len(made) >= FEWEST:
            us = {name: pricer.alone(step_application(program, steps[name])) for name in made}
            dearest = max(made, key=lambda name: us[name])
            written = frozenset((n, steps[n].op, steps[n].args) for n in made if steps[n].node is None)
            within, inner = frozenset(made) - {dearest}, frozenset(made[1:])  # the first is the kernel's result
            found.append(FusedKernel(frozenset(made), within, written, inner, sum(us[n] for n in made if n != dearest)))
    return tuple(found)


def groups_of(program: GraphProgram, pricer: ENodeCostModel) -> tuple[FusedGroup, ...]:
    """What the backend runs as one kernel of the program as it stands, no barrier in it and nothing that is evaluated
    before it runs; nodes are known by what they make."""
    found = groups(as_graph(program), pricer.costs.backend.patterns, program.types)
    steps = {s.outputs[0] for s in program.steps if s.op} - program.constant
    return tuple(g for g in found if all(node.outputs[0] in steps for node in g.nodes))


def as_graph(program: GraphProgram) -> Graph:
    """The steps as nodes, for who looks at which operator reads what: nothing that could be run."""
    if all(s.node is not None for s in program.steps):
        return program.graph
    return replace(program.graph, nodes=tuple(s.node or _node(s) for s in program.steps))


def _node(step: ProgramStep) -> Node:
    value = dict(step.attributes).get("value")
    if step.op == "ConstantOfShape" and isinstance(value, int | float):
        return Node(step.name, "Constant", (), step.outputs, {"value_float": float(value)})
    said = {k: v for k, v in step.attributes if isinstance(v, int)}  # along which axis
    return Node(step.name, step.op, tuple(a or "" for a in step.args), step.outputs, said)


def broken_kernel_us(program: GraphProgram, region: ProgramRegion, plan: RegionPlan, pricer: ENodeCostModel) -> float:
    """Microseconds of steps that run by themselves once a plan has taken others out of their kernel.

    Args:
        program: in which the region is.
        region: where the plan is to be used.
        plan: what it keeps of the region's steps stays in their kernels, if all of these do.
        pricer: what a step takes by itself.
    """
    kept = {o for piece in plan.nodes if piece.source >= 0 for o in region.steps[piece.source].outputs}
    gone = {o for step in region.steps for o in step.outputs} - kept
    us = 0.0
    for kernel in program.kernels:
        if gone.isdisjoint(kernel.outputs) or not kernel.within <= program.within:
            continue
        us += sum(
            pricer.alone(step_application(program, program.steps[program.maker[o]])) for o in kernel.within - gone
        )
    return us


# -- Rewriting for the backend's fusions ---------------------------------------------------------------------------


_AROUND = 12  # operators of a region: the largest pattern, a normalisation with its scale and bias, has nine
_LIMITS = SaturationLimits(
    nodes=400, rounds=2
)  # two rules in a row: a quotient for a reciprocal, and another order of factors
_FAMILIES = frozenset({"elementwise", "activation", "reduce"})
_Found = tuple[Mapping[str, int], Mapping[int, ENode]]  # what names stand for, and the group's e-nodes by class


def fusing_plans(
    program: GraphProgram, rewrites: RewriteSet, pricer: ENodeCostModel
) -> Iterator[tuple[ProgramRegion, RegionPlan]]:
    """Plans that make groups of operators the backend's own, for disjoint regions.

    Args:
        program: as it was read, with the kernels that it has.
        rewrites: the rewrites to apply.
        pricer: what operators cost, and the backend.
    """
    patterns = tuple(p for p in pricer.costs.backend.patterns if _size(p) >= FEWEST)
    if not patterns:
        return
    light = _light(rewrites)
    last = {p.op for p in patterns}
    taken = {name for kernel in program.kernels for name in kernel.outputs}
    used: set[int] = set()
    known: dict[object, RegionPlan | None] = {}
    for position in reversed(program.running):
        if time.monotonic() > pricer.deadline:
            return
        step = program.steps[position]
        if step.op not in last or step.outputs[0] in taken or position in used:
            continue
        around = _around(program, position, used)
        if len(around) < FEWEST:
            continue
        region = region_of(program, sorted(around))
        if region.signature not in known:
            known[region.signature] = _plan(region, step.outputs[0], patterns, light, pricer)
        plan = known[region.signature]
        if plan is not None:
            used |= around
            yield region, plan


def splitting_plans(
    program: GraphProgram, rewrites: RewriteSet, pricer: ENodeCostModel
) -> Iterator[tuple[ProgramRegion, RegionPlan]]:
    """Plans after which the backend runs operators by themselves that it would run as a kernel dearer than they are.

    Args:
        program: after everything else, since other rules do not speak of what these make.
        rewrites: the rewrites to apply.
        pricer: what operators cost, and the backend.
    """
    light = _light(rewrites)
    known: dict[object, RegionPlan | None] = {}
    for group in (g for g in groups_of(program, pricer) if g.slow_ns > 0.0):
        if time.monotonic() > pricer.deadline:
            return
        names = [node.outputs[0] for node in group.nodes]
        region = region_of(program, sorted(program.maker[n] for n in names))
        if region.signature not in known:
            known[region.signature] = _splitting_plan(region, names, group, light, pricer)
        plan = known[region.signature]
        if plan is not None:
            yield region, plan


def _splitting_plan(
    region: ProgramRegion, names: list[str], group: FusedGroup, rewrites: RewriteSet, pricer: ENodeCostModel
) -> RegionPlan | None:
    """The cheapest way to write an operator of a group otherwise, if that is cheaper than the group's kernel."""
    lowered, problem, incumbent = _saturated(region, rewrites, pricer)
    graph = lowered.graph
    owners = [graph.find(lowered.classes[region.number[name]]) for name in names]
    own = [problem.candidates[incumbent[o]] for o in owners]
    kernel = group.us(max(candidate.us for candidate in own), pricer.static(region.types[names[0]]))
    best: tuple[float, ExtractionProblem, Choice] | None = None
    for owner, candidate in zip(owners, own, strict=True):
        for node in sorted(graph.classes[owner].nodes, key=lambda n: graph.classes[owner].nodes[n]):
            place = problem.index.get((owner, node))
            if place is None or graph.heads[node[0]].op == graph.heads[candidate.node[0]].op:
                continue
            # a dearer form has the place of a cheaper one that needs the same
            form = replace(problem.candidates[place], node=node, us=pricer.node(graph, node, kept=False).us)
            other = replace(
                problem, candidates=(*problem.candidates[:place], form, *problem.candidates[place + 1 :])
            )  # fmt: skip
            choice = {**incumbent, owner: place}
            if any(n not in choice for n in form.needs) or used_classes(other, choice) is None:
                continue
            us = cost_of(other, choice)
            if us < kernel and (best is None or us < best[0]):
                best = us, other, choice
    return None if best is None else plan_of(region, lowered, best[1], best[2], kernel, best[0])


def _saturated(
    region: ProgramRegion, rewrites: RewriteSet, pricer: ENodeCostModel
) -> tuple[RegionEGraph, ExtractionProblem, Choice]:
    """A region with its equals, what they cost, and the region as it is."""
    lowered = lower(region, REGISTRY)
    saturate(lowered.graph, rewrites, _LIMITS)
    problem = problem_of(lowered.graph, frame_of(region, lowered), pricer)
    return lowered, problem, incumbent_of(region, lowered, problem)


def _light(rewrites: RewriteSet) -> RewriteSet:
    return RewriteSet(tuple(p for p in rewrites.patterns if all(_is_light(op) for op in p.operators)))


def _size(pattern: FusionPattern) -> int:
    return 1 + sum(_size(a) for a in pattern.args if isinstance(a, FusionPattern))


def _is_light(op: str) -> bool:
    return op == "ConstantOfShape" or (op in REGISTRY and REGISTRY[op].family in _FAMILIES)


def _around(program: GraphProgram, position: int, used: set[int]) -> set[int]:
    """A step and those before it that nobody else reads, which work element by element or along an axis."""
    found, grown = {position}, True
    while grown and len(found) < _AROUND:
        grown = False
        for name in dict.fromkeys(a for p in sorted(found) for a in program.steps[p].args if a is not None):
            maker = program.maker.get(name)
            if maker is None or maker in found or maker in used or name in program.constant or name in program.pinned:
                continue
            step = program.steps[maker]
            if _is_light(step.op) and len(step.outputs) == 1 and set(program.readers.get(name, ())) <= found:
                found.add(maker)
                grown = True
    return found


def _plan(
    region: ProgramRegion, name: str, patterns: tuple[FusionPattern, ...], rewrites: RewriteSet, pricer: ENodeCostModel
) -> RegionPlan | None:
    lowered, problem, incumbent = _saturated(region, rewrites, pricer)
    graph = lowered.graph
    owner = graph.find(lowered.classes[region.number[name]])
    best: tuple[float, ExtractionProblem, Choice] | None = None
    for pattern in patterns:
        for _, members in _at(graph, pattern, owner, {}, {}):
            made = _chosen(problem, incumbent, members)
            if made is None or used_classes(*made) is None:
                continue
            us = cost_of(*made)
            if best is None or us < best[0]:
                best = us, *made
    before = cost_of(problem, incumbent)
    if best is None or best[0] >= before - 1e-9:
        return None
    return plan_of(region, lowered, best[1], best[2], before, best[0])


def _chosen(
    problem: ExtractionProblem, incumbent: Choice, members: Mapping[int, ENode]
) -> tuple[ExtractionProblem, Choice] | None:
    """The problem in which a group costs what its dearest e-node does, and the incumbent with the group in it."""
    places = {owner: problem.index.get((owner, node)) for owner, node in members.items()}
    if any(place is None for place in places.values()):
        return None
    candidates, choice = list(problem.candidates), dict(incumbent)
    dearest = max(members, key=lambda owner: problem.candidates[places[owner] or 0].us)
    for owner, place in places.items():
        assert place is not None
        known = candidates[place]
        candidates[place] = replace(known, node=members[owner], us=known.us if owner == dearest else 0.0)
        choice[owner] = place
    if any(need not in choice for owner in members for need in candidates[choice[owner]].needs):
        return None
    return replace(problem, candidates=tuple(candidates)), choice


def _at(
    graph: EGraph, what: FusionPattern | float | str, owner: int, names: Mapping[str, int], members: Mapping[int, ENode]
) -> Iterator[_Found]:  # fmt: skip
    """The ways in which a class is what a pattern says; as deep as the pattern (see
    :mod:`superopt.cost.backend_capabilities`)."""
    owner = graph.find(owner)
    constant = graph.constant(owner)
    if isinstance(what, str):
        fits = constant or not what.startswith(("scalar", "constant"))
        known = not what.startswith("scalar") or _value(graph, owner) is not None
        if fits and known and names.get(what, owner) == owner:
            yield {**names, what: owner}, members
    elif isinstance(what, float):
        value = _value(graph, owner) if constant else None
        if value is not None and isclose(value, what, rel_tol=CLOSE):
            yield names, members
    elif owner in members:
        if graph.heads[members[owner][0]].op == what.op:
            yield names, members
    elif not constant:
        for node in tuple(graph.classes[owner].nodes):
            given, rest = node[1 : 1 + len(what.args)], node[1 + len(what.args) :]
            if graph.heads[node[0]].op != what.op or len(given) < len(what.args):
                continue
            if all(a == ABSENT or graph.constant(a) for a in rest) and _is_innermost(graph, node):
                for order in (given, given[::-1])[: 2 if what.op in COMMUTE else 1]:
                    yield from _arguments(graph, what.args, order, names, {**members, owner: node})


def _is_innermost(graph: EGraph, node: ENode) -> bool:
    """Whether an e-node that works along axes keeps them, and works along the last: nothing else is a kernel's."""
    attributes = dict(graph.heads[node[0]].attributes)
    if "axes" not in attributes:
        return True
    kind, axes = graph.type(node[1]), attributes["axes"]
    rank = 0 if isinstance(kind, tuple) else len(kind.shape or ())
    return axes in ((rank - 1,), (-1,)) and attributes.get("keepdims", 1) == 1


def _arguments(
    graph: EGraph, args: tuple[FusionPattern | float | str, ...], given: tuple[int, ...], names: Mapping[str, int],
    members: Mapping[int, ENode],
) -> Iterator[_Found]:  # fmt: skip
    if not args:
        yield names, members
        return
    for found in _at(graph, args[0], given[0], names, members):
        yield from _arguments(graph, args[1:], given[1:], *found)


def _value(graph: EGraph, owner: int) -> float | None:
    """The number that a class of one element is; a weight of one value is its generator, too."""
    kind = graph.type(owner)
    if isinstance(kind, tuple) or kind.elements != 1 or not kind.dtype.is_float:
        return None
    for node in graph.classes[owner].nodes:
        head = graph.heads[node[0]]
        if head.op == "ConstantOfShape":
            value: AttributeValue = dict(head.attributes).get("value", 0.0)
            return float(value) if isinstance(value, int | float) else None
    return None


# -- Ranks of constants --------------------------------------------------------------------------------------------
#
# Constants of one element get the rank of the tensor that they are combined with. ``[256, 7, 7, 1] · []`` takes ONNX
# Runtime twenty times as long as ``[256, 7, 7, 1] · [1, 1, 1, 1]``: it coalesces axes from the last, and where the
# shorter shape ends before axes of one element, each element is a loop of its own
# (:mod:`superopt.cost.operator_time_predictor`). No rule states this, because both sides are the same operator. No bit
# changes.


_SIGNED = frozenset({"Max", "Min", "PRelu", "Where"})  # the sign of a 0 of theirs depends on the loop
_LEAST = 0.1  # of an operator's time, which has to be saved: prices of shapes that are nearly alike differ by less


@dataclass(frozen=True)
class RankAlignedProgram:
    """A program with constants of other ranks, how many operators read them, and the microseconds that it saves."""

    program: GraphProgram
    count: int
    gain_us: float


def align_constant_ranks(
    program: GraphProgram, pricer: ENodeCostModel, fresh: Callable[[str], str]
) -> RankAlignedProgram | None:
    """The program with constants of one element at the ranks that are cheaper; ``None`` where none is.

    What the backend runs as one kernel is left as it is, because it knows the kernel by its constants too.

    Args:
        program: after everything else.
        pricer: what operators cost, and the backend.
        fresh: of a name makes one that is not taken.
    """
    kernels = {node.outputs[0] for group in groups_of(program, pricer) for node in group.nodes}
    running = set(program.running)
    full: dict[tuple[str, int], ProgramStep] = {}
    types: dict[str, TensorType] = {}
    steps, count, gain = list(program.steps), 0, 0.0
    for position in sorted(running):
        step = program.steps[position]
        if step.op not in BROADCASTING - _SIGNED or len(step.outputs) != 1 or step.outputs[0] in kernels:
            continue
        rank = len(program.types[step.outputs[0]].shape or ())
        short = [a for a in step.args if a is not None and _is_short(program, a, rank)]
        saved = _saved_us(program, step, {a: _full(program.types[a], rank) for a in short}, pricer) if short else 0.0
        if saved <= 0.0:
            continue
        for name in short:
            if (name, rank) not in full:
                made = fresh(f"{name}_rank{rank}")
                full[name, rank] = ProgramStep("Reshape", (name,), (("shape", (1,) * rank),), (made,), None, made)
                types[made] = _full(program.types[name], rank)
        args = tuple(full[a, rank].outputs[0] if a in short else a for a in step.args)
        steps[position] = replace(step, args=args, node=None)
        count, gain = count + 1, gain + saved
    if not count:
        return None
    return RankAlignedProgram(program.with_steps([*full.values(), *steps], types, types), count, gain)


def _is_short(program: GraphProgram, name: str, rank: int) -> bool:
    kind = program.types[name]
    return name in program.constant and kind.elements == 1 and len(kind.shape or ()) < rank


def _full(kind: TensorType, rank: int) -> TensorType:
    return TensorType(kind.dtype, (1,) * rank)


def _saved_us(program: GraphProgram, step: ProgramStep, full: dict[str, TensorType], pricer: ENodeCostModel) -> float:
    """Microseconds that an operator takes less where it reads its constants at full rank."""
    own = [None if a is None else program.types[a] for a in step.args]
    wide = [None if a is None else full.get(a, program.types[a]) for a in step.args]
    shapes = [[pricer.static(t).shape or () for t in types if t is not None] for types in (own, wide)]
    before, after = (broadcast_spans([[d for d in s if isinstance(d, int)] for s in given]) for given in shapes)
    if after >= before:
        return 0.0
    record, opset = REGISTRY[step.op], program.graph.opset.get(REGISTRY[step.op].domain, 1)
    try:
        if record.apply(wide, dict(step.attributes))[1] != (program.types[step.outputs[0]],):
            return 0.0
        record.write(dict(step.attributes), wide, opset)
    except (IllTypedOperator, UnsupportedNodeForm):
        return 0.0
    fixed = tuple(a is not None and a in program.constant for a in step.args)
    now, then = (pricer.alone((step.op, step.attributes, tuple(types), fixed)) for types in (own, wide))
    return now - then if now - then > _LEAST * now else 0.0

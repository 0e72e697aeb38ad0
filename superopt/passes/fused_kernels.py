"""What of a program the backend runs as one kernel, known by more than pairs: a GELU written out, a normalisation.

The whole's price (:func:`superopt.cost.graph_cost`) counts such a group once, at what the dearest of it takes. So does
the search, as long as the group is whole: a rewrite that takes an operator out of it (``x / √2`` as ``x · 0.71``, or
into the weights before it) saves nothing then, and one that leaves the others to run one by one is seen to cost.
"""

from __future__ import annotations

from dataclasses import replace

from superopt.cost.fusion import Group, groups
from superopt.extraction.node_costs import Pricer
from superopt.ir.graph import Graph, Node
from superopt.program.program import Kernel, Program
from superopt.program.step import Step
from superopt.regions.boundary_cost import applied
from superopt.regions.lowering import Region
from superopt.regions.plan import Plan

__all__ = ["FEWEST", "broken_us", "groups_of", "kernels_of"]

# Members of the smallest group. A product takes in a Transpose or a scale, and a LayerNormalization a sum, whichever it
# is, also one that a rewrite makes; free in the input alone, they stand in the way of rewrites (train_step_mlp and
# gpt2_last, tiny: 3 % dearer).
FEWEST = 4


def kernels_of(program: Program, pricer: Pricer) -> tuple[Kernel, ...]:
    """The groups of a program's steps.

    Args:
        program: as it was read, or with other steps.
        pricer: says which step of a group is the dearest; the first, of several.
    """
    steps = {s.outputs[0]: s for s in program.steps if s.op}
    found: list[Kernel] = []
    for group in groups_of(program, pricer):
        made = [node.outputs[0] for node in group.nodes]
        if len(made) >= FEWEST:
            us = {name: pricer.alone(applied(program, steps[name])) for name in made}
            dearest = max(made, key=lambda name: us[name])
            written = frozenset((n, steps[n].op, steps[n].args) for n in made if steps[n].node is None)
            within, inner = frozenset(made) - {dearest}, frozenset(made[1:])  # the first is the kernel's result
            found.append(Kernel(frozenset(made), within, written, inner, sum(us[n] for n in made if n != dearest)))
    return tuple(found)


def groups_of(program: Program, pricer: Pricer) -> tuple[Group, ...]:
    """What the backend runs as one kernel of the program as it stands, no barrier in it and nothing that is evaluated
    before it runs; nodes are known by what they make."""
    found = groups(_as_it_stands(program), pricer.costs.backend.patterns, program.types)
    steps = {s.outputs[0] for s in program.steps if s.op} - program.constant
    return tuple(g for g in found if all(node.outputs[0] in steps for node in g.nodes))


def _as_it_stands(program: Program) -> Graph:
    """The steps as nodes, for who looks at which operator reads what: nothing that could be run."""
    if all(s.node is not None for s in program.steps):
        return program.graph
    return replace(program.graph, nodes=tuple(s.node or _node(s) for s in program.steps))


def _node(step: Step) -> Node:
    value = dict(step.attributes).get("value")
    if step.op == "ConstantOfShape" and isinstance(value, int | float):
        return Node(step.name, "Constant", (), step.outputs, {"value_float": float(value)})
    said = {k: v for k, v in step.attributes if isinstance(v, int)}  # along which axis
    return Node(step.name, step.op, tuple(a or "" for a in step.args), step.outputs, said)


def broken_us(program: Program, region: Region, plan: Plan, pricer: Pricer) -> float:
    """Microseconds of steps that run by themselves once a plan has taken others out of their kernel.

    Args:
        program: in which the region is.
        region: where the plan is to be used.
        plan: what it keeps of the region's steps stays in their kernels, if all of these do.
        pricer: what a step takes by itself.
    """
    kept = {o for piece in plan.pieces if piece.source >= 0 for o in region.steps[piece.source].outputs}
    gone = {o for step in region.steps for o in step.outputs} - kept
    us = 0.0
    for kernel in program.kernels:
        if gone.isdisjoint(kernel.made) or not kernel.within <= program.within:
            continue
        us += sum(pricer.alone(applied(program, program.steps[program.maker[o]])) for o in kernel.within - gone)
    return us

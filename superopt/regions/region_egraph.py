"""A region of a program as an e-graph, and its signature. Regions with equal signatures are searched once.

Values of a region are numbered by first occurrence: leaves and outputs as the steps name them. The signature contains
operators, attributes, wiring, types, which leaves are constant, and facts about their elements. It does not contain the
elements.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_

import numpy as np

from superopt.egraph.egraph import ABSENT, EGraph, is_multi
from superopt.ir.size_polynomial import Dim
from superopt.ir.types import TensorType
from superopt.ops.operator_definition import Operator
from superopt.ops.operator_semantics import IllTypedOperator, IndexCondition
from superopt.program.graph_program import GraphProgram, ProgramStep, WeightFacts, facts_of_reals
from superopt.program.value_analysis import ANYTHING, ValueFacts, rounded_facts

__all__ = ["RegionEGraph", "ProgramRegion", "lower", "region_of"]

_DEEP = 24  # weight-only steps that are drawn into a region with each step that uses them


@dataclass(frozen=True, eq=False)
class ProgramRegion:
    """Steps of a program that are optimised together.

    Attributes:
        positions: of the running steps in the program.
        steps: in order; weight-only steps that they draw on come first.
        running: how many of the steps, the last ones, run at inference time.
        leaves: values from outside, in order of first use.
        values: all values by number: leaves, then outputs of the steps.
        outputs: values that something outside needs.
        rewritten_constants: constant leaves that rewrites computed: evaluated in float64, they are not exact.
        apart: outputs whose names must stay, where there are several: each is a value, even if two are equal.
        within: positions of steps that cost nothing, because the backend runs them in the kernel of a dearer one.
        inner: values by number that only their kernel reads, and what it costs that something else does.
        kernels: steps that the backend runs as one, as far as they are in the region.
    """

    positions: tuple[int, ...]
    steps: tuple[ProgramStep, ...]
    running: int
    leaves: tuple[str, ...]
    values: tuple[str, ...]
    outputs: tuple[str, ...]
    types: Mapping[str, TensorType]
    constant: frozenset[str]
    facts: Mapping[str, WeightFacts]
    leaf_value_facts: Mapping[str, ValueFacts]
    rewritten_constants: frozenset[str] = frozenset()
    apart: tuple[str, ...] = ()
    within: frozenset[int] = frozenset()
    inner: tuple[tuple[int, float], ...] = ()
    kernels: tuple[frozenset[int], ...] = ()

    @cached_property
    def number(self) -> Mapping[str, int]:
        return {n: i for i, n in enumerate(self.values)}

    @cached_property
    def signature(self) -> Hashable:
        """Equal for regions that search cannot tell apart."""
        number = self.number
        leaves = tuple(
            (
                self.types[n],
                n in self.constant,
                self.facts.get(n),
                n in self.rewritten_constants,
                self.leaf_value_facts[n],
            )
            for n in self.leaves
        )
        steps = tuple(
            (s.op, s.attributes, tuple(None if a is None else number[a] for a in s.args), tuple(map(bool, s.outputs)))
            for s in self.steps
        )
        outputs, apart = (tuple(number[o] for o in names) for names in (self.outputs, self.apart))
        kernels = tuple(tuple(sorted(k)) for k in self.kernels)
        return (leaves, steps, self.running, outputs, apart, tuple(sorted(self.within)), self.inner, kernels)


def region_of(program: GraphProgram, positions: Sequence[int]) -> ProgramRegion:
    """The region of these running steps (positions in the program, ascending; no barriers among them)."""
    chosen = [program.steps[i] for i in positions]
    made = {o for s in chosen for o in s.outputs if o}
    drawn = _weight_steps(program, chosen, made)
    steps = [*drawn, *chosen]
    inside = {o for s in steps for o in s.outputs if o}
    leaves: dict[str, None] = {}
    renamed: list[ProgramStep] = []
    for step in steps:
        args = tuple(None if a is None else a if a in inside else program.same.get(a, a) for a in step.args)
        leaves.update((a, None) for a in args if a is not None and a not in inside)
        renamed.append(step if args == step.args else ProgramStep(
            step.op, args, step.attributes, step.outputs, step.node, step.name, step.rules))  # fmt: skip
    members = set(positions)
    beside = {n for s in chosen for n in s.reads if n not in s.args}  # shapes that the members' nodes read
    outputs = tuple(
        o for s in chosen for o in s.outputs
        if o and (o in program.pinned or o in beside or any(r not in members for r in program.readers.get(o, ())))
    )  # fmt: skip
    values = (*leaves, *(o for s in steps for o in s.outputs if o))
    pinned = tuple(o for o in outputs if o in program.pinned)
    return ProgramRegion(
        tuple(positions), tuple(renamed), len(chosen), tuple(leaves), values, outputs,
        {n: program.types[n] for n in values},
        frozenset(n for n in values if n in program.constant),
        {n: program.facts[n] for n in leaves if n in program.facts},
        {n: rounded_facts(program.value_facts.get(n, ANYTHING), program.types[n].dtype) for n in leaves},
        frozenset(
            n for n in leaves
            if n in program.constant and n in program.maker and program.steps[program.maker[n]].node is None
        ),
        pinned if len(pinned) > 1 else (),
        frozenset(i for i, s in enumerate(renamed) if not program.within.isdisjoint(s.outputs)),
        tuple((i, program.inner[n]) for i, n in enumerate(values) if n in program.inner),
        _kernels(program, renamed),
    )  # fmt: skip


def _kernels(program: GraphProgram, steps: Sequence[ProgramStep]) -> tuple[frozenset[int], ...]:
    """Which of these steps run as one."""
    found: dict[int, set[int]] = {}
    for position, step in enumerate(steps):
        for output in step.outputs:
            for number in program.kernels_of.get(output, ()):
                found.setdefault(number, set()).add(position)
    return tuple(frozenset(members) for _, members in sorted(found.items()))


def _weight_steps(program: GraphProgram, chosen: Sequence[ProgramStep], made: set[str]) -> list[ProgramStep]:
    """Weight-only steps behind the arguments of the chosen ones that rules may look behind, in order; a few dozen."""
    found: set[int] = set()
    for step in chosen:
        todo = [a for a in step.args if a is not None and a not in made and a in program.constant]
        budget = _DEEP
        while todo and budget:
            position = program.maker.get(todo.pop())
            if position is not None and position not in found and program.is_drawn(program.steps[position]):
                budget -= 1
                found.add(position)
                todo.extend(a for a in program.steps[position].args if a is not None)
    return [program.steps[i] for i in sorted(found)]


@dataclass(frozen=True, eq=False)
class RegionEGraph:
    """An e-graph of a region.

    Attributes:
        classes: the class (birth id) of every value, by number.
        origin: birth id of an e-node → the step of the region that it stands for.
    """

    graph: EGraph
    classes: tuple[int, ...]
    origin: Mapping[int, int]


def lower(region: ProgramRegion, operators: Mapping[str, Operator]) -> RegionEGraph:
    """The e-graph that holds exactly the region.

    Raises:
        IllTypedOperator: a step does not fit its record (the program was not read by :func:`program_of`).
    """
    assumed: set[IndexCondition] = set()
    for step in region.steps:
        types = [None if a is None else region.types[a] for a in step.args]
        assumed.update(operators[step.op].apply(types, dict(step.attributes))[0].obligations)
    graph = EGraph(operators, frozenset(assumed))
    classes: dict[str, int] = {}
    for number, name in enumerate(region.leaves):
        constant, exact = name in region.constant, name in region.constant and name not in region.rewritten_constants
        classes[name] = graph.leaf(number, region.types[name], constant, region.leaf_value_facts[name], exact=exact)
        _add_facts(graph, number, classes[name], region.types[name], region.facts.get(name))
    origin: dict[int, int] = {}
    below: dict[str, tuple[int, int]] = {}
    for position, step in enumerate(region.steps):
        args = tuple(ABSENT if a is None else classes[a] for a in step.args)
        made = graph.add(step.op, step.attributes, args)
        origin.setdefault(made, position)
        _add_narrow_constants(graph, step, args, made)
        under = [below.get(a, (0, 0)) for a in step.args if a is not None]
        mine = (1 + max((d for d, _ in under), default=0), reduce(or_, (m for _, m in under), 0) | 1 << position)
        for index, output in enumerate(step.outputs):
            if output:
                below[output] = mine
                classes[output] = graph.project(made, index) if is_multi(operators[step.op]) else made
                _add_facts(graph, number=-1, leaf=made, kind=region.types[output], known=_constant_facts(step))
    graph.input_nodes = {classes[n]: known for n, known in below.items()}
    for known in classes.values():
        graph.classes[graph.find(known)].original = True
    return RegionEGraph(graph, tuple(classes[n] for n in region.values), origin)


def _add_narrow_constants(graph: EGraph, step: ProgramStep, args: tuple[int, ...], made: int) -> None:
    """Read the constants of an elementwise operator without their leading axes of one element as well.

    Broadcasting puts such axes in front of a constant of fewer axes, so both forms are equal by definition; rules are
    about the one with the fewest axes.
    """
    if graph.operators[step.op].family != "elementwise" or "Reshape" not in graph.operators:
        return
    shapes = [_shape(graph, a) for a in args if a != ABSENT and not graph.constant(a)]
    rank = max((len(s) for s in shapes), default=0)
    narrow = tuple(_narrowed(graph, a, rank) if a != ABSENT and graph.constant(a) else a for a in args)
    if narrow != args:
        graph.union(made, graph.add(step.op, step.attributes, narrow), "")


def _narrowed(graph: EGraph, constant: int, rank: int) -> int:
    """A constant of at most so many axes without its leading axes of one element."""
    shape = _shape(graph, constant)
    ones = next((n for n, size in enumerate(shape) if size != 1), len(shape))
    return graph.add("Reshape", (("shape", shape[ones:]),), (constant,)) if ones and len(shape) <= rank else constant


def _shape(graph: EGraph, identity: int) -> tuple[Dim, ...]:
    kind = graph.type(identity)
    return (kind.shape or ()) if isinstance(kind, TensorType) else ()


def _constant_facts(step: ProgramStep) -> WeightFacts | None:
    """What a Constant says, as a weight would."""
    values = dict(step.attributes).get("values") if step.op == "Constant" else None
    if not isinstance(values, tuple) or not values or not all(isinstance(v, float) for v in values):
        return None
    return facts_of_reals(np.array(values))


def _add_facts(graph: EGraph, number: int, leaf: int, kind: TensorType, known: WeightFacts | None) -> None:
    """A weight of one value is also the generator that makes it, so that rules about constants see it."""
    if known is None:
        return
    if known.range is not None:
        graph.ranges[number] = known.range
    if known.uniform is not None and "ConstantOfShape" in graph.operators and kind.shape is not None:
        attributes = (("dtype", str(kind.dtype)), ("shape", tuple(kind.shape)), ("value", known.uniform))
        try:
            graph.union(leaf, graph.add("ConstantOfShape", attributes, ()), "")
        except IllTypedOperator:
            return

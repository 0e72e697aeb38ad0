"""Emission of a program as a graph: unchanged nodes verbatim, new nodes in the model's opset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from superopt.ir.graph import PASS, PRECOMPUTED, RULES, Graph, Node, Weight, constant, unused_name
from superopt.ir.size_polynomial import Dim
from superopt.ir.types import TensorType
from superopt.ops.operator_definition import Operator
from superopt.ops.reshape_and_transpose import sizes_of, symbolic_shape
from superopt.program.constant_folding import FoldedWeightData, data_of, folded_weight, weights_behind
from superopt.program.graph_program import ComputedWeightData, GraphProgram, ProgramStep
from superopt.regions.replay import FreshNames

__all__ = ["EmittedGraph", "emit"]


@dataclass(frozen=True)
class ConstantFoldingPolicy:
    """Which of the model's own computations of constants are stored evaluated.

    Attributes:
        growth: share of the model's weights by which all of these together may make the weights grow. The runtime
            evaluates the others as it loads the model, so that storing them gains nothing at run time.
        least: bytes that they may grow by in any case: as much as the nodes take of the file.
    """

    growth: float = 0.005
    least: int = 4096


POLICY = ConstantFoldingPolicy()


@dataclass(frozen=True)
class EmittedGraph:
    """The graph, and how many constants were folded, with the bytes that the model's weights grew by."""

    graph: Graph
    folded: int
    grown: int


@dataclass
class _Literals:
    """Compile-time operands (shapes, axes), one weight for equal ones."""

    names: FreshNames
    made: dict[tuple[str, tuple[int, ...], bytes], Weight] = field(default_factory=dict)

    def name(self, array: np.ndarray, hint: str) -> str:
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self.made:
            self.made[key] = constant(self.names.fresh(hint), array)
        return self.made[key].name


def emit(
    program: GraphProgram, operators: Mapping[str, Operator], budget: int, reserved: AbstractSet[str] = frozenset(), *,
    made_by: str = "", passes: Mapping[tuple[str, ...], str] = MappingProxyType({}),
) -> EmittedGraph:  # fmt: skip
    """The program as a graph with the signature of the model.

    Args:
        program: the steps.
        operators: their records.
        budget: bytes by which folding constants may make the weights grow; what does not fit stays as nodes.
        reserved: names that nothing new may have.
        made_by: the pass that new nodes name which no rule wrote; "": none.
        passes: by a step's outputs, the pass that wrote it, where that is another.

    Raises:
        UnsupportedNodeForm: a step cannot be written at the model's opset (extraction chooses none such).
    """
    graph = program.graph
    names = FreshNames(program, reserved)
    weights, grown, handed = _fold(program, budget)
    made = {w.name for w in weights} | handed.keys()
    weights, alike, saved = _shared(weights, program)
    grown -= saved
    weights, renamed = _renamed_weights(program, weights, names)
    alike = {**renamed, **{n: renamed.get(w, w) for n, w in alike.items()}, **handed}
    literals, unruled = _Literals(names), {PASS: made_by} if made_by else {}
    node_names = {s.node.name for s in program.steps if s.node is not None}
    nodes: list[Node] = []
    for step in _needed(program, made):
        written_by = {PASS: passes[step.outputs]} if step.outputs in passes else unruled
        node = step.node if step.node is not None else _node(program, step, operators, literals, node_names, written_by)
        if not alike.keys().isdisjoint(node.inputs):
            node = replace(node, inputs=tuple(alike.get(i, i) for i in node.inputs))
        nodes.append(node)
    for name in sorted(alike.keys() & program.outputs):
        handing = unused_name(f"{name}_identity", node_names)
        nodes.append(Node(handing, "Identity", (alike[name],), (name,), metadata=unruled))
    read = {n for node in nodes for n in node.reads} | program.outputs
    fed = {v.name for v in graph.inputs}
    used_before = {n for node in graph.nodes for n in node.reads}
    kept = tuple(w for w in graph.weights if w.name in read or w.name in fed or w.name not in used_before)
    known = {o for node in nodes for o in node.outputs}
    result = replace(
        graph, nodes=tuple(nodes), weights=(*kept, *weights, *literals.made.values()),
        values=tuple(v for v in graph.values if v.name in known),
    )  # fmt: skip
    return EmittedGraph(result.checked(), len(weights), grown)


def _fold(program: GraphProgram, budget: int) -> tuple[list[Weight], int, dict[str, str]]:
    """Constants that running steps read and that rewrites made outputs of, smallest growth first, within the budget;
    and those that need no weight of their own, because they are one of the model's, which some exporters hand on.
    """
    wanted: dict[str, None] = {}
    captured: set[str] = set()
    for position in program.running:
        step = program.steps[position]
        captured |= set(step.node.captures) if step.op == "" and step.node else set()
        wanted.update((n, None) for n in step.reads if n in program.maker and n in program.constant)
    own = program.computed_constants or ()
    outputs = [n for n in program.outputs if n in program.maker and n in program.constant and n not in own]
    chosen = {n for n in wanted if n not in program.pinned} | {n for n in outputs if n not in captured}
    weights: list[Weight] = []
    constants = program.graph.constants
    computed = {n: data for n in chosen if (data := data_of(program, n)) is not None}
    handed = {n: whole for n, data in computed.items() if (whole := _handed_on(data)) in constants}
    running = {n for p in program.running for n in program.steps[p].reads} | program.outputs | set(handed.values())
    grown, most = 0, sum(w.type.nbytes or 0 for w in constants.values() if w.data is not None)
    own_growth, own_budget = 0, max(POLICY.least, int(POLICY.growth * most))  # of what the model itself computes
    released: set[str] = set()
    for name in sorted(computed.keys() - handed.keys(), key=lambda n: (program.types[n].nbytes or 0, n)):
        if grown + (program.types[name].nbytes or 0) - most > budget:
            continue  # whatever it is made of
        data = computed[name]
        sources = (weights_behind(data) & constants.keys()) - running - released  # others went in an earlier search
        size = (program.types[name].nbytes or 0) - sum(constants[a].type.nbytes or 0 for a in sources)
        itself = isinstance(data, ComputedWeightData) and size > 0 and name not in program.outputs
        if grown + size > budget or (itself and own_growth + size > own_budget):
            continue
        grown += size
        own_growth += size if itself else 0
        released |= sources
        weights.append(folded_weight(program, name, data))
    return weights, grown, handed


def _handed_on(data: FoldedWeightData | ComputedWeightData) -> str:
    """The value whose elements these are, unchanged; nothing where an operator makes others of them."""
    name = data.output
    for step in reversed(data.steps):
        if name in step.outputs:
            if step.op != "Identity" or step.args[0] is None:
                return ""
            name = step.args[0]
    return name


def _renamed_weights(
    program: GraphProgram, weights: Sequence[Weight], names: FreshNames
) -> tuple[list[Weight], dict[str, str]]:
    """The weights, none of them named as an output of the model, and the new names of those that were.

    ONNX allows an initializer to be an output; not every tool that reads ONNX does. A node hands it out instead.
    """
    renamed = {w.name: names.fresh(f"{w.name}_value") for w in weights if w.name in program.outputs}
    return [replace(w, name=renamed.get(w.name, w.name)) for w in weights], renamed


def _shared(weights: Sequence[Weight], program: GraphProgram) -> tuple[list[Weight], dict[str, str], int]:
    """One weight for equal computations on equal weights: those kept, what stands for the others, and bytes saved.

    Regions that repeat (the steps of an unrolled LSTM) each fold the same weights. Large weights are told apart by
    name: reading all of a model to find two that are equal takes longer than much of the search.
    """
    first: dict[tuple[object, str], Weight] = {}
    alike: dict[str, str] = {}
    saved = 0
    for weight in weights:
        assert isinstance(weight.data, FoldedWeightData | ComputedWeightData), "a folded weight is computed from others"
        kept = first.setdefault((weight.type, weight.data.described(program.same)), weight)
        if kept is not weight:
            alike[weight.name] = kept.name
            saved += weight.type.nbytes or 0
    return [w for w in weights if w.name not in alike], alike, saved


def _needed(program: GraphProgram, made: set[str]) -> list[ProgramStep]:
    """The steps left when these values are weights, in order."""
    needed: set[int] = set()
    stack = list(program.running)
    stack += [program.maker[o] for o in program.outputs if o in program.maker and o not in made]
    while stack:
        position = stack.pop()
        if position in needed:
            continue
        needed.add(position)
        stack.extend(program.maker[n] for n in program.steps[position].reads if n in program.maker and n not in made)
    return [program.steps[i] for i in sorted(needed)]


def _node(
    program: GraphProgram, step: ProgramStep, operators: Mapping[str, Operator], literals: _Literals, taken: set[str],
    unruled: Mapping[str, str],
) -> Node:  # fmt: skip
    types = [None if a is None else program.types[a] for a in step.args]
    step = _without_inference(step, types, operators)
    record = operators[step.op]
    form = record.write(dict(step.attributes), types, program.graph.opset.get(record.domain, 1))
    name = unused_name(f"{step.name}_{step.op}", taken)
    made = {p: literals.name(a, f"{name}_{'shape' if a.ndim else 'value'}") for p, a in form.literals.items()}
    inputs = form.names(step.args, made)
    metadata = {RULES: ",".join(step.rules)} if step.rules else dict(unruled)
    if program.is_constant(step):
        metadata[PRECOMPUTED] = "true"
    return Node(name, record.name, inputs, step.outputs, dict(form.attributes), record.domain, metadata=metadata)


def _without_inference(
    step: ProgramStep, types: Sequence[TensorType | None], operators: Mapping[str, Operator]
) -> ProgramStep:
    """A Reshape that copies open sizes and would infer another, as an Unsqueeze or Squeeze where it is one.

    Beside a size that turns out to be 0 none can be inferred.
    """
    shape = types[0].shape if step.op == "Reshape" and types[0] is not None else None
    if shape is None:
        return step
    wanted = sizes_of(dict(step.attributes)["shape"], "shape")
    if all(isinstance(w, int) for w in wanted) or not {0, -1} <= set(symbolic_shape(wanted, shape)):
        return step
    for op, few, many in (("Unsqueeze", shape, wanted), ("Squeeze", wanted, shape)):
        axes = _added(few, many)
        if axes and op in operators:
            return replace(step, op=op, attributes=(("axes", axes),))
    return step


def _added(few: Sequence[Dim], many: Sequence[Dim]) -> tuple[int, ...]:
    """Which axes of size 1 the one shape has besides those of the other; none where that is not all they differ by."""
    left, axes = list(few), []
    for axis, size in enumerate(many):
        if left and left[0] == size:
            left.pop(0)
        elif size == 1:
            axes.append(axis)
        else:
            return ()
    return () if left else tuple(axes)

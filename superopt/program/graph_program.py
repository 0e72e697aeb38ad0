"""A graph as a list of steps over named values. Regions are cut from it, and optimised regions replace parts of it.

A step is an operator in canonical form, or a *barrier*: a node that superopt has no record of, which stays unchanged.
Values that depend on weights alone are *constant*: they take no time at run time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np

from superopt.ir.errors import InvalidModel, SuperoptError
from superopt.ir.graph import ArrayWeightData, Graph, Node, Weight, WeightData, constant, topological_order
from superopt.ir.interpreter_settings import side_by_side
from superopt.ir.terms import Attributes, is_open
from superopt.ir.types import TensorType
from superopt.ops import REGISTRY
from superopt.ops.constants_and_shapes import weight_of
from superopt.ops.operator_definition import UnsupportedNodeForm
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.ops.shape_inference import CanonicalNode, InferredTypes
from superopt.program.value_analysis import ANYTHING, OPAQUE, ValueFacts, array_facts, result_facts
from superopt.runtime.node_execution import run_constants

__all__ = [
    "CONSTANTS",
    "FusedKernel",
    "WeightFacts",
    "GraphProgram",
    "ComputedConstants",
    "ComputedWeightData",
    "ProgramStep",
    "sizes_bounded",
    "computation_text",
    "facts_of_reals",
    "only_moves_elements",
    "program_of",
]


@dataclass(frozen=True, eq=False)
class ProgramStep:
    """One operator application, or a barrier (``op`` is empty).

    Attributes:
        args: value names, ``None`` for an absent optional argument.
        outputs: value names by output; ``""`` where nothing reads it.
        node: the model's node, as long as the step is unchanged; always there for a barrier.
        name: what a new node is to be called.
        rules: ids of the rules that made it.
    """

    op: str
    args: tuple[str | None, ...]
    attributes: Attributes
    outputs: tuple[str, ...]
    node: Node | None
    name: str
    rules: tuple[str, ...] = ()

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Every value the step needs; a node of the model that is kept also reads its axes, shapes, sizes …"""
        if self.op == "" and self.node:
            return self.node.reads
        own = tuple(a for a in self.args if a is not None)
        return tuple(dict.fromkeys((*own, *self.node.reads))) if self.node else own


@dataclass(frozen=True)
class ConstantEvaluationPolicy:
    """Which constants are read, evaluated and kept.

    Attributes:
        elements_read: of a weight whose elements are looked at: uniform values, ranges of positions.
        compared_bytes: of a weight, up to which equal contents are recognised.
        evaluated_bytes: of constants that the model computes, and of what they are made of, that are evaluated.
        kept_bytes: up to which an evaluated weight stays in memory.
        kept_weights: times that, of all that stay.
        room_bytes: that any constant on the way may have, like the growth that a search allows itself.
        room_factor: or this many times what it is made of: a transpose, a cast and a padding are within it.
        steps: that make one constant, or all that are looked at first: the runtime loads as many in a second or two.
    """

    elements_read: int = 1 << 16
    compared_bytes: int = 1 << 20
    evaluated_bytes: int = 16 << 20
    kept_bytes: int = 32 << 20
    kept_weights: int = 8
    room_bytes: int = 64 << 20
    room_factor: int = 4
    steps: int = 20_000


CONSTANTS = ConstantEvaluationPolicy()
_LOOKED_AT: WeakKeyDictionary[WeightData, ValueFacts] = WeakKeyDictionary()  # what elements say, as far as it was asked


@dataclass(frozen=True)
class WeightFacts:
    """What is known of a weight's elements: the one value of all, or the range of integers."""

    uniform: float | None = None
    range: tuple[int, int] | None = None


@dataclass(frozen=True)
class FusedKernel:
    """Values that steps make which run as one kernel.

    Attributes:
        outputs: the values.
        within: all but that of the dearest step.
        written: value, operator and arguments of those steps that are no nodes of the model.
        inner: the values that nothing else reads.
        broken_us: microseconds of all but the dearest step by themselves: what it costs that something else reads an
            inner value.
    """

    outputs: frozenset[str]
    within: frozenset[str]
    written: frozenset[tuple[str, str, tuple[str | None, ...]]] = frozenset()
    inner: frozenset[str] = frozenset()
    broken_us: float = 0.0


@dataclass(frozen=True, eq=False)
class GraphProgram:
    """Steps in execution order, with the types and constancy of values.

    Attributes:
        types: of every value a step's arguments and outputs name, where known.
        constant: names of values that depend on weights alone.
        facts: of weights, and of small constants that the model computes.
        same: weight or such a constant → the first one with equal contents.
        computed_constants: the constants that the model itself computes, as the runtime does.
        kernels: steps of the input that the backend runs as one.
        finite: whoever feeds it promises finite numbers; else an input's may be anything that the model handles.
    """

    graph: Graph
    steps: tuple[ProgramStep, ...]
    types: Mapping[str, TensorType]
    constant: frozenset[str]
    facts: Mapping[str, WeightFacts]
    same: Mapping[str, str] = field(default_factory=dict)
    computed_constants: ComputedConstants | None = None
    kernels: tuple[FusedKernel, ...] = ()
    finite: bool = False

    @cached_property
    def within(self) -> frozenset[str]:
        """What steps make that cost nothing beside another of their kernel, as long as all of it is there."""
        return frozenset[str]().union(*(k.within for k in self.complete_kernels))

    @cached_property
    def inner(self) -> Mapping[str, float]:
        """Values that only their kernel reads, and what it costs that something else does."""
        return {name: kernel.broken_us for kernel in self.complete_kernels for name in kernel.inner}

    @cached_property
    def complete_kernels(self) -> tuple[FusedKernel, ...]:
        """The kernels of which all steps are there."""
        there = {o for s in self.steps if s.node is not None for o in s.outputs}
        new = {(s.outputs[0], s.op, s.args) for s in self.steps if s.node is None}
        return tuple(k for k in self.kernels if k.written <= new and k.outputs <= there | {w[0] for w in k.written})

    @cached_property
    def kernels_of(self) -> Mapping[str, tuple[int, ...]]:
        """Value → numbers of the complete kernels that make it."""
        found: dict[str, tuple[int, ...]] = {}
        for number, kernel in enumerate(self.complete_kernels):
            found.update((o, (*found.get(o, ()), number)) for o in kernel.outputs)
        return found

    @cached_property
    def value_facts(self) -> Mapping[str, ValueFacts]:
        """Facts of the numbers in every value that a step reads or makes; of what is not there, nothing is known."""
        weights = self.graph.constants
        read = {n: w.data for n, w in weights.items() if w.data is not None and w.type.dtype.is_float}
        _read_elements(read.values())
        found = {v.name: ANYTHING if self.finite else OPAQUE for v in self.graph.inputs}
        found.update((n, _facts_of(read[n]) if n in read else ANYTHING) for n in weights)
        for step in self.steps:
            if step.op == "":
                found.update((o, OPAQUE) for o in step.outputs if o)
                continue
            given = [None if a is None else found.get(a, ANYTHING) for a in step.args]
            types = [None if a is None else self.types.get(a) for a in step.args]
            made = result_facts(
                step.op,
                dict(step.attributes),
                given,
                types,
                self.is_constant(step),
                [self._uniform(a) for a in step.args],
            )
            found.update((o, self._facts_of_mask(o, made)) for o in step.outputs if o)
        return found

    def _facts_of_mask(self, name: str, known: ValueFacts) -> ValueFacts:
        """With what the elements of a constant say that the model computes and that may be infinite, as masks are."""
        computed = self.computed_constants
        if known.regular or computed is None or name not in self.constant or not self.types[name].dtype.is_float:
            return known
        held = computed.small([name], CONSTANTS.evaluated_bytes, CONSTANTS.evaluated_bytes).get(name)
        if held is None:
            return known
        own = array_facts(held)
        return known._replace(finite=known.finite or own.finite, regular=own.regular, masked=own.masked)

    def _uniform(self, name: str | None) -> float | None:
        """The one value of a weight's elements, or of a generated constant's."""
        if name is None:
            return None
        position = self.maker.get(name)
        if position is not None and self.steps[position].op == "ConstantOfShape":
            value = dict(self.steps[position].attributes).get("value")
            return float(value) if isinstance(value, int | float) else None
        known = self.facts.get(name)
        return None if known is None else known.uniform

    @cached_property
    def maker(self) -> Mapping[str, int]:
        """Value → position of the step that makes it."""
        return {o: i for i, s in enumerate(self.steps) for o in s.outputs if o}

    @cached_property
    def outputs(self) -> frozenset[str]:
        """Names of the graph's outputs."""
        return frozenset(v.name for v in self.graph.outputs)

    @cached_property
    def pinned(self) -> frozenset[str]:
        """Names that must stay: graph outputs, and what subgraphs inside barriers capture."""
        captured = {n for s in self.steps if s.op == "" and s.node for n in s.node.captures}
        return self.outputs | captured

    @cached_property
    def required_names(self) -> frozenset[str]:
        """Names that must go on being made: the pinned ones, and what barriers read, which stay bit for bit."""
        return self.pinned | {n for s in self.steps if s.op == "" and s.node for n in s.node.inputs if n}

    @cached_property
    def readers(self) -> Mapping[str, tuple[int, ...]]:
        """Value → positions of the steps that read it."""
        found: dict[str, dict[int, None]] = {}
        for position, step in enumerate(self.steps):
            for name in step.reads:
                found.setdefault(name, {})[position] = None
        return {n: tuple(p) for n, p in found.items()}

    def is_constant(self, step: ProgramStep) -> bool:
        return step.op != "" and all(o == "" or o in self.constant for o in step.outputs)

    def is_drawn(self, step: ProgramStep) -> bool:
        """Whether rules may look behind a constant step: it moves elements of weights or writes a constant.

        What else the model computes is settled; what a rewrite computed is evaluated once, and is a weight like any
        other: its expression would only fill an e-graph with other ways to write it.
        """
        if step.node is None:
            return all(a is None for a in step.args)
        return only_moves_elements(step, self.types)

    @cached_property
    def running(self) -> tuple[int, ...]:
        """Positions of the steps that run at inference time, barriers included."""
        return tuple(i for i, s in enumerate(self.steps) if not self.is_constant(s))

    def with_steps(
        self, steps: Sequence[ProgramStep], types: Mapping[str, TensorType], constant: Iterable[str]
    ) -> GraphProgram:
        """The program with other steps, put in order; steps that nothing needs are dropped."""
        made = {o: i for i, s in enumerate(steps) for o in s.outputs if o}
        needed, stack = set[int](), [made[n] for n in self.outputs if n in made]
        stack += [i for i, s in enumerate(steps) if s.op == ""]
        while stack:
            position = stack.pop()
            if position not in needed:
                needed.add(position)
                stack.extend(made[n] for n in steps[position].reads if n in made)
        kept = [s for i, s in enumerate(steps) if i in needed]
        stand_ins = [Node("", s.op, s.reads, s.outputs) for s in kept]
        order = topological_order(stand_ins, {o: i for i, s in enumerate(kept) for o in s.outputs if o})
        there = {o for s in kept for o in s.outputs}
        gone = {o for s in self.steps for o in s.outputs} - there  # their names may come again for what is no constant
        return replace(
            self, steps=tuple(kept[i] for i in order), types={**self.types, **types},
            constant=(self.constant - gone) | there.intersection(constant),
        )  # fmt: skip


def _read_elements(weights: Iterable[WeightData]) -> None:
    """Read, or draw, the elements of weights that were not looked at yet: models have gigabytes."""
    side_by_side(_facts_of, (data for data in dict.fromkeys(weights) if data not in _LOOKED_AT))


def _facts_of(data: WeightData) -> ValueFacts:
    if data not in _LOOKED_AT:
        _LOOKED_AT[data] = array_facts(data.numpy())
    return _LOOKED_AT[data]


def program_of(graph: Graph, typing: InferredTypes, held: AbstractSet[str] | None = None) -> GraphProgram:
    """The graph in canonical steps.

    A node whose types are not all known, or do not fit its record, is a barrier. So is one that makes a value that is
    held. Tensors of Constants that are kept as data are weights of the program's graph, as a runtime makes them.

    Args:
        graph: a checked graph.
        typing: of it.
        held: values that the runtime computes in integers, and others that stay as they are. ``None``: nobody knows
            which it does, so that all that quantises, dequantises, or reads what was dequantised is a barrier.
    """
    held = _around_quantisation(graph) if held is None else held
    graph, typing = _lifted(graph, typing)
    types = {n: t for n, t in typing.types.items() if t is not None and t.shape is not None}
    constant = set(graph.constants)
    own: list[ProgramStep] = []
    steps: list[ProgramStep] = []
    for node, found in zip(graph.nodes, typing.nodes, strict=True):
        apart = not held.isdisjoint(node.outputs)
        step = _read(node, found, types) if isinstance(found, CanonicalNode) and not apart else None
        if step is None:
            name = next((o for o in node.outputs if o), node.name)
            steps.append(ProgramStep("", (), (), node.outputs, node, node.name or name))
            continue
        steps.append(step)
        known = not any(is_open(v) for _, v in step.attributes) and all(types[o].is_static for o in step.outputs if o)
        if known and all(a is None or a in constant for a in step.args):
            constant.update(o for o in step.outputs if o)
            own.append(step)
    settled = ComputedConstants(graph, own, types)
    same, facts = _weight_facts(graph, _computed(steps, settled))
    return GraphProgram(graph, tuple(steps), types, frozenset(constant), facts, same, settled)


def _around_quantisation(graph: Graph) -> AbstractSet[str]:
    """What quantises and dequantises, what reads dequantised values, and an activation between those and
    QuantizeLinear: they may all be one integer kernel."""
    read = {n.inputs[0] for n in graph.nodes if n.op in ("QuantizeLinear", "DynamicQuantizeLinear")}
    made, integer, held = set[str](), set[str](), set[str]()
    for node in graph.nodes:
        outputs = {o for o in node.outputs if o}
        if node.op in ("QuantizeLinear", "DequantizeLinear"):
            held |= outputs
            made |= outputs if node.op == "DequantizeLinear" else set()
        elif made.intersection(node.inputs) or (outputs & read and integer.intersection(node.inputs)):
            integer |= outputs
    return held | integer


def _lifted(graph: Graph, typing: InferredTypes) -> tuple[Graph, InferredTypes]:
    """A graph whose constants are weights, not nodes, but for those that the graph gives out or that are read as what
    they say; and its types."""
    outputs = {v.name for v in graph.outputs}
    held: dict[str, Weight] = {}
    for node, found in zip(graph.nodes, typing.nodes, strict=True):
        weight = None if isinstance(found, CanonicalNode) else weight_of(node)
        if weight is not None and weight.name not in outputs:
            held[weight.name] = weight
    if not held:
        return graph, typing
    left = [(n, f) for n, f in zip(graph.nodes, typing.nodes, strict=True) if not held.keys() & {*n.outputs}]
    nodes = tuple(n for n, _ in left)
    lifted = replace(graph, nodes=nodes, weights=(*graph.weights, *held.values()))
    return lifted, replace(typing, nodes=tuple(f for _, f in left))


def _computed(steps: Sequence[ProgramStep], settled: ComputedConstants) -> Iterator[Weight]:
    """Small constants that the model computes and something else than another such computation reads."""
    read = {n for s in steps if not any(settled.computed(o) for o in s.outputs if o) for n in s.reads}
    names = [o for s in steps for o in s.outputs if o in read and settled.computed(o)]
    for name, array in settled.small(names, CONSTANTS.compared_bytes, CONSTANTS.evaluated_bytes).items():
        yield Weight(name, settled.types[name], ArrayWeightData(array))


def _read(node: Node, found: CanonicalNode, types: Mapping[str, TensorType]) -> ProgramStep | None:
    if node.captures or any(a is not None and a not in types for a in found.args):
        return None
    given = [None if a is None else types[a] for a in found.args]
    try:
        _, results = found.operator.apply(given, found.attributes)
    except IllTypedOperator:
        return None
    outputs = node.outputs[: len(results)]
    if any(node.outputs[len(results) :]) or any(
        o and types.get(o) != r for o, r in zip(outputs, results, strict=False)
    ):
        return None
    attributes = tuple(sorted(found.attributes.items()))
    name = node.name or next((o for o in outputs if o), "")
    return ProgramStep(found.operator.name, found.args, attributes, outputs, node, name)


def _weight_facts(graph: Graph, computed: Iterable[Weight]) -> tuple[dict[str, str], dict[str, WeightFacts]]:
    same: dict[str, str] = {}
    facts: dict[str, WeightFacts] = {}
    first: dict[tuple[str, str], str] = {}
    for weight in (*graph.constants.values(), *computed):
        name = weight.name
        if weight.data is None:
            continue
        size = weight.type.nbytes
        if size is not None and 0 < size <= CONSTANTS.compared_bytes:
            same[name] = first.setdefault((str(weight.type), weight.data.digest), name)
        known = _facts(weight)
        if known is not None:
            facts[name] = known
    return same, facts


def facts_of_reals(elements: np.ndarray) -> WeightFacts | None:
    """What is known of so many reals, one or more: that all are one number; 0 stands for no −0."""
    signed = bool(np.signbit(elements[elements == 0]).any())
    return WeightFacts(uniform=float(elements[0])) if not signed and bool((elements == elements[0]).all()) else None


def _facts(weight: Weight) -> WeightFacts | None:
    count = weight.type.elements
    if weight.data is None or not isinstance(count, int) or not 0 < count <= CONSTANTS.elements_read:
        return None
    if weight.type.dtype.is_float:
        return facts_of_reals(np.asarray(weight.data.numpy()).reshape(-1))
    if weight.type.dtype == "int64":
        elements = np.asarray(weight.data.numpy())
        return WeightFacts(range=(int(elements.min()), int(elements.max())))
    return None


# -- Constants that the model itself computes ----------------------------------------------------------------------
#
# ONNX Runtime evaluates constants that the model computes, in the model's own types, bit for bit. ``Floor(Mul(w, 10))``
# of float32 weights is what float32 arithmetic gives, not what the reals give. So these values are leaves of the
# search, and no rule matches the steps behind them. Steps that only move elements (transposes, reshapes, slices,
# concatenations, written constants) do not round, so rules may match them.


def only_moves_elements(step: ProgramStep, types: Mapping[str, TensorType]) -> bool:
    """Whether a step only puts elements in other places."""
    given = [None if a is None else types[a] for a in step.args]
    try:
        return REGISTRY[step.op].moves(given, dict(step.attributes))
    except (IllTypedOperator, KeyError):
        return False


def sizes_bounded(steps: Sequence[ProgramStep], types: Mapping[str, TensorType], sources: Iterable[TensorType]) -> bool:
    """Whether no value on the way is much larger than what it is all made of: a tower of Tile and ReduceSum is not."""
    limit = max(CONSTANTS.room_bytes, CONSTANTS.room_factor * sum(t.nbytes or 0 for t in sources))
    sizes = [types[o].nbytes for s in steps for o in s.outputs if o and o in types]
    return all(size is not None and size <= limit for size in sizes)


def computation_text(
    steps: Sequence[ProgramStep], types: Mapping[str, TensorType], sources: Mapping[str, str], output: str
) -> str:
    """Equal for equal computations on sources that are called equal."""
    key: dict[str, str] = {n: f"{types[n]} {called}" for n, called in sources.items()}
    for step in steps:
        args = ",".join("-" if a is None else key[a] for a in step.args)
        text = hashlib.sha256(f"{step.op}({args}){step.attributes!r}".encode()).hexdigest()
        key.update((o, f"{text}.{i}") for i, o in enumerate(step.outputs) if o)
    return key[output]


@dataclass(frozen=True, eq=False)
class ComputedWeightData:
    """Elements of a constant that the model computes, as ONNX Runtime computes it.

    Attributes:
        steps: what computes it, in order; all are the model's own.
        sources: weights that the steps read in canonical form.
    """

    constants: ComputedConstants
    steps: tuple[ProgramStep, ...]
    sources: Mapping[str, Weight]
    output: str

    @cached_property
    def digest(self) -> str:
        """Equal for equal computations on equal weights."""
        return self.described({n: w.data.digest for n, w in self.sources.items() if w.data is not None})

    def described(self, same: Mapping[str, str]) -> str:
        """Equal for equal computations on weights that are called equal."""
        names = {n: same.get(n, n) for n in self.sources}
        return "runtime " + computation_text(self.steps, self.constants.types, names, self.output)

    def numpy(self) -> np.ndarray:
        """Run the steps.

        Raises:
            SuperoptError: ONNX Runtime cannot.
        """
        return self.constants.evaluated(self.output, self.steps)


class ComputedConstants:
    """The constants that a model computes from its weights, by name. Evaluated when they are asked for."""

    def __init__(self, graph: Graph, steps: Iterable[ProgramStep], types: Mapping[str, TensorType]) -> None:
        """``steps``: the model's own, whose results depend on weights alone, in order."""
        self.graph, self.types = graph, types
        self._steps = tuple(steps)
        self._place = {o: i for i, s in enumerate(self._steps) for o in s.outputs if o}
        self._moving: dict[str, bool] = {}
        self._kept: dict[str, np.ndarray] = {}
        self._failed: dict[str, SuperoptError] = {}
        self._room = CONSTANTS.kept_weights * CONSTANTS.kept_bytes  # bytes that are kept of all constants together

    def __contains__(self, name: str) -> bool:
        return name in self._place

    def computed(self, name: str) -> bool:
        """Whether it is such a constant and a step that is more than a movement makes it."""
        if name not in self._place:
            return False
        if name not in self._moving:
            self._moving[name] = only_moves_elements(self._steps[self._place[name]], self.types)
        return not self._moving[name]

    def data(self, name: str) -> ComputedWeightData | None:
        """Where its elements come from; ``None`` where a weight has none or what is on the way is too large."""
        needed, stack = set[int](), [name]
        while stack:
            here = stack.pop()
            position = self._place.get(here)
            if position is None:
                weight = self.graph.constants.get(here)
                if weight is None or weight.data is None:
                    return None
            elif position not in needed:
                needed.add(position)
                if len(needed) > CONSTANTS.steps:
                    return None
                stack.extend(self._reads(self._steps[position]))
        steps = tuple(self._steps[i] for i in sorted(needed))
        constants = self.graph.constants
        args = sorted({a for s in steps for a in s.args if a is not None and a in constants})
        sources = {a: constants[a] for a in args}
        if not steps or not sizes_bounded(steps, self.types, (w.type for w in sources.values())):
            return None
        return ComputedWeightData(self, steps, sources, name)

    def usable(self, name: str) -> ComputedWeightData | None:
        """Where its elements come from, once the runtime has shown that it can compute them."""
        data = self.data(name)
        if data is None or name in self._failed:
            return None
        try:
            data.numpy()
        except SuperoptError:
            return None
        return data

    def small(self, names: Iterable[str], most: int, together: int) -> dict[str, np.ndarray]:
        """The elements of constants that are quickly had, by name, all evaluated in one run if possible.

        Args:
            names: of constants.
            most: bytes of all that one is made of, at most.
            together: the same for all of them.
        """
        chosen: dict[str, ComputedWeightData] = {}
        steps: dict[int, None] = {}
        walked = 0
        for name in dict.fromkeys(names):
            data = self.data(name) if walked <= CONSTANTS.steps else None
            if data is None:
                continue
            walked += len(data.steps)
            sizes = [w.type.nbytes or 0 for w in data.sources.values()]
            sizes += [self.types[o].nbytes or 0 for s in data.steps for o in s.outputs if o]
            if sum(sizes) <= min(most, together):
                together -= sum(sizes)
                chosen[name] = data
                steps.update((self._place[o], None) for s in data.steps for o in s.outputs if o)
        if chosen:
            try:
                self._run(list(chosen), [self._steps[i] for i in sorted(steps)])
            except SuperoptError:
                chosen = {n: d for n, d in chosen.items() if self.usable(n) is not None}
        return {n: d.numpy() for n, d in chosen.items()}

    def evaluated(self, name: str, steps: Sequence[ProgramStep]) -> np.ndarray:
        """The elements of a constant that these steps compute.

        Raises:
            SuperoptError: ONNX Runtime cannot.
        """
        if name in self._failed:
            raise self._failed[name]
        if name in self._kept:
            return self._kept[name]
        try:
            return self._run([name], steps)[name]
        except SuperoptError as error:
            self._failed[name] = error
            raise

    def _reads(self, step: ProgramStep) -> Iterable[str]:
        """What the step's node reads; in canonical form where the node reads more than constants (a shape, say)."""
        known = step.node is not None and all(self._is_known(n) for n in step.node.reads)
        return step.node.reads if known and step.node else [a for a in step.args if a is not None]

    def _is_known(self, name: str) -> bool:
        if name in self._place:
            return True
        weight = self.graph.constants.get(name)
        return weight is not None and weight.data is not None

    def _run(self, wanted: Sequence[str], steps: Sequence[ProgramStep]) -> dict[str, np.ndarray]:
        nodes: list[Node] = []
        weights: dict[str, Weight] = {}
        for step in steps:
            if step.node is not None and all(self._is_known(n) for n in step.node.reads):
                nodes.append(step.node)
            else:
                node, literals = self._written(step)
                nodes.append(node)
                weights.update((w.name, w) for w in literals)
        constants = self.graph.constants
        weights |= {n: constants[n] for node in nodes for n in node.reads if n in constants}
        types = {n: self.types[n] for n in wanted}
        found = run_constants(self.graph, nodes, tuple(weights.values()), types)
        for name, kind in types.items():
            array = found[name]
            if array.dtype != kind.dtype.numpy or array.shape != kind.shape:
                raise InvalidModel(f"the runtime makes {name} {array.dtype}{list(array.shape)}, not {kind}")
            if array.nbytes <= CONSTANTS.kept_bytes and self._room >= array.nbytes:
                self._kept[name] = array
                self._room -= array.nbytes
        return found

    def _written(self, step: ProgramStep) -> tuple[Node, list[Weight]]:
        """The step as a node over constants alone."""
        record = REGISTRY[step.op]
        types = [None if a is None else self.types[a] for a in step.args]
        try:
            form = record.write(dict(step.attributes), types, self.graph.opset.get(record.domain, 1))
        except UnsupportedNodeForm as error:
            raise InvalidModel(f"{step.name} cannot be written by itself: {error}") from error
        names = {place: f"{step.outputs[0]}/literal {place}" for place in form.literals}
        literals = [constant(names[place], array) for place, array in form.literals.items()]
        node = Node(step.name, record.name, form.names(step.args, names), step.outputs, dict(form.attributes),
                    record.domain)  # fmt: skip
        return node, literals

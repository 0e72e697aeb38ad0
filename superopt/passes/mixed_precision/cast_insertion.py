"""Graphs in mixed precision: with Casts where a value is read in another type than it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from superopt.ir.graph import PASS, ArrayWeightData, Graph, Node, Value, Weight, unused_name
from superopt.ir.types import DType, TensorType
from superopt.ops.onnx_node_conversion import dtype_code
from superopt.passes.mixed_precision.half_precision_restrictions import WIDE, HalfPrecisionInputs

__all__ = ["PrecisionAssignment", "SwitchableRoundingGraph", "lowered", "switched"]

_PASS = {PASS: "mixed precision"}


@dataclass(frozen=True)
class PrecisionAssignment:
    """Which operators compute in half precision, and which weights are stored in it.

    Attributes:
        half: the type.
        nodes: the operands of the operators, by position.
        weights: names.
    """

    half: DType
    nodes: Mapping[int, HalfPrecisionInputs]
    weights: frozenset[str]


def lowered(graph: Graph, choice: PrecisionAssignment, *, rounded: bool = False) -> Graph:
    """The graph in mixed precision. Inputs, outputs and what subgraphs read keep their types.

    Args:
        graph: a checked graph.
        choice: what is of half precision.
        rounded: operators compute in float32, and each result that is of half precision is rounded to it: what a
            device does that rounds every result, whatever a runtime fuses.
    """
    return _Lowering(graph, choice, rounded).written()


class _Lowering:
    def __init__(self, graph: Graph, choice: PrecisionAssignment, rounded: bool) -> None:
        self.graph, self.choice, self.rounded = graph, choice, rounded
        self.taken = set(graph.names)
        self.outputs = {v.name for v in graph.outputs}
        self.fixed = self.outputs | {n for node in graph.nodes for n in node.captures}
        self.made_half = {o for i in choice.nodes for o in graph.nodes[i].outputs if o} | choice.weights
        self.read_half = {n for operand in choice.nodes.values() for n in operand.names}
        self.read_wide = set(self.fixed)
        for i, node in enumerate(graph.nodes):
            operand = choice.nodes.get(i)
            places = frozenset[int]() if operand is None else operand.places
            self.read_wide.update(n for k, n in enumerate(node.inputs) if k not in places)
        self.half_names: dict[str, str] = {}
        self.wide_names: dict[str, str] = {}

    def written(self) -> Graph:
        nodes: list[Node] = []
        weights = [self._weight(w) for w in self.graph.weights]
        for name in (*(v.name for v in self.graph.inputs), *self.graph.weight):
            nodes += self._copies(name)
        for i, node in enumerate(self.graph.nodes):
            nodes += self._node(node, self.choice.nodes.get(i))
        values = tuple(self._declared(v) for v in self.graph.values)
        return replace(self.graph, nodes=tuple(nodes), weights=tuple(weights), values=values).checked()

    def _weight(self, weight: Weight) -> Weight:
        if weight.name not in self.choice.weights:
            return weight
        assert weight.data is not None, "only weights with elements are chosen"
        data = ArrayWeightData(np.asarray(weight.data.numpy()).astype(self.choice.half.numpy))
        return replace(weight, type=replace(weight.type, dtype=self.choice.half), data=data)

    def _declared(self, value: Value) -> Value:
        if value.name not in self.made_half or value.name in self.fixed or not isinstance(value.type, TensorType):
            return value
        return replace(value, type=replace(value.type, dtype=self.choice.half))

    def _node(self, node: Node, operand: HalfPrecisionInputs | None) -> list[Node]:
        places = frozenset[int]() if operand is None else operand.places
        inputs = tuple(self._read(n, half=k in places) if n else n for k, n in enumerate(node.inputs))
        if operand is None:
            made = node if inputs == node.inputs else replace(node, inputs=inputs)
            return [made, *(c for o in node.outputs if o for c in self._copies(o))]
        named = {o: self._half(o) for o in node.outputs if o}
        casts: list[Node] = []
        if self.rounded:
            for name, half in named.items():
                exact = unused_name(f"{name}_unrounded", self.taken)
                casts.append(self._cast(exact, half, self.choice.half))
                named[name] = exact
        outputs = tuple(named.get(o, o) for o in node.outputs)
        return [
            replace(node, inputs=inputs, outputs=outputs), *casts,
            *(c for o in node.outputs if o for c in self._copies(o)),
        ]  # fmt: skip

    def _read(self, name: str, *, half: bool) -> str:
        """The name under which a value is read."""
        if half and self.rounded:
            return self._wide(name) if name in self.made_half else self._rounded(name)
        if half:
            return self._half(name)
        return self._wide(name) if name in self.made_half else name

    def _half(self, name: str) -> str:
        if name not in self.half_names:
            own = name in self.made_half and name not in self.fixed
            self.half_names[name] = name if own else unused_name(f"{name}_{self.choice.half}", self.taken)
        return self.half_names[name]

    def _wide(self, name: str) -> str:
        if name not in self.wide_names:
            own = name in self.fixed or name not in self.made_half
            self.wide_names[name] = name if own else unused_name(f"{name}_{WIDE}", self.taken)
        return self.wide_names[name]

    def _rounded(self, name: str) -> str:
        """A value of float32 that was of half precision in between."""
        key = f"{name} rounded"
        if key not in self.wide_names:
            self.wide_names[key] = unused_name(f"{name}_rounded", self.taken)
        return self.wide_names[key]

    def _copies(self, name: str) -> list[Node]:
        """The Casts behind what makes a value."""
        if name in self.made_half:
            wide = name in self.read_wide or (self.rounded and name in self.read_half)
            return [self._cast(self._half(name), self._wide(name), WIDE)] if wide else []
        if name not in self.read_half:
            return []
        narrow = self._cast(name, self._half(name), self.choice.half)
        return [narrow, self._cast(self._half(name), self._rounded(name), WIDE)] if self.rounded else [narrow]

    def _cast(self, source: str, result: str, dtype: DType) -> Node:
        return Node(f"{result}_Cast", "Cast", (source,), (result,), {"to": dtype_code(dtype.value)}, metadata=_PASS)


@dataclass(frozen=True)
class SwitchableRoundingGraph:
    """A graph in which each of some values is rounded to half precision where its switch says so.

    Attributes:
        graph: weights among the values are inputs.
        switches: names of the inputs that say so, by value; a weight is fed rounded instead.
    """

    graph: Graph
    switches: Mapping[str, str]


def switched(graph: Graph, values: Sequence[str], half: DType) -> SwitchableRoundingGraph:
    """The graph with a switch for each value.

    Args:
        graph: a checked graph.
        values: names of inputs, weights and results of nodes.
        half: the type.
    """
    taken, chosen = set(graph.names), frozenset(values)
    inputs = {v.name for v in graph.inputs}
    fed = [w for w in graph.weights if w.name in chosen and w.name not in inputs]
    running = [n for n in values if n not in graph.constants]
    switches = {n: unused_name(f"{n}_switch", taken) for n in running}
    named: dict[str, str] = {}  # of inputs and captured values, which keep their names unrounded
    made: list[Node] = []

    def rounding(name: str, source: str, result: str) -> list[Node]:
        narrow, wide = (unused_name(f"{name}_{kind}", taken) for kind in ("narrow", "wide"))
        return [
            Node("", "Cast", (source,), (narrow,), {"to": dtype_code(half.value)}),
            Node("", "Cast", (narrow,), (wide,), {"to": dtype_code(WIDE.value)}),
            Node("", "Where", (switches[name], wide, source), (result,)),
        ]

    for name in running:
        if name in inputs:
            named[name] = unused_name(f"{name}_switched", taken)
            made += rounding(name, name, named[name])
    for node in graph.nodes:
        own = {o: unused_name(f"{o}_unrounded", taken) for o in node.outputs if o in switches}
        made.append(
            replace(
                node, inputs=tuple(named.get(n, n) for n in node.inputs),
                outputs=tuple(own.get(o, o) for o in node.outputs),
            )
        )  # fmt: skip
        for name, source in own.items():
            made += rounding(name, source, name)
    more = (
        *(Value(w.name, w.type) for w in fed),
        *(Value(s, TensorType(DType.BOOL, ())) for s in switches.values()),
    )
    gone = {w.name for w in fed}
    weights = tuple(w for w in graph.weights if w.name not in gone)
    result = replace(
        graph, nodes=tuple(made), weights=weights, inputs=(*graph.inputs, *more),
    ).checked()  # fmt: skip
    return SwitchableRoundingGraph(result, switches)

"""A graph that gives the magnitudes of its values for outputs, one number for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite

import numpy as np

from superopt.ir.graph import Graph, Node, Value, constant, unused_name
from superopt.ir.types import DType, TensorType
from superopt.ops.onnx_node_conversion import dtype_code
from superopt.ops.shape_inference import InferredTypes
from superopt.passes.mixed_precision.half_precision_restrictions import WIDE, ValueMagnitudes
from superopt.passes.mixed_precision.intermediate_magnitudes import at_poles, in_exponents
from superopt.passes.mixed_precision.policy import POLICY

__all__ = ["MagnitudeInstrumentedGraph", "watched"]

Run = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class MagnitudeInstrumentedGraph:
    """The graph, and the names of its outputs by value.

    Attributes:
        graph: its outputs are scalars.
        most: outputs with the largest magnitude.
        least: of the values that an operator divides by, or the like: with the least that is not 0.
        top: of the values that are exponents: with the largest number.
    """

    graph: Graph
    most: Mapping[str, str]
    least: Mapping[str, str]
    top: Mapping[str, str]

    def observed(self, ordinary: Sequence[Run], extreme: Sequence[Run]) -> dict[str, ValueMagnitudes]:
        """The magnitudes over runs on ordinary inputs, and on extreme ones; infinite where one is not finite."""

        def largest(runs: Sequence[Run], name: str | None) -> float:
            found = [float(run[name]) for run in runs] if name is not None else []
            return max((f if isfinite(f) else inf for f in found), default=0.0)

        def smallest(name: str | None) -> float:
            found = [float(run[name]) for run in ordinary] if name is not None else []
            return min((f for f in found if isfinite(f)), default=0.0)

        def of(name: str, output: str) -> ValueMagnitudes:
            most = largest(ordinary, output)
            reach = max(POLICY.margin * most, largest(extreme, output))
            return ValueMagnitudes(most, smallest(self.least.get(name)), reach, largest(ordinary, self.top.get(name)))

        return {name: of(name, output) for name, output in self.most.items()}


def watched(graph: Graph, typing: InferredTypes) -> MagnitudeInstrumentedGraph:
    """The graph with magnitudes of its float32 values, but for those of weights, for outputs.

    Args:
        graph: a checked graph.
        typing: of it.
    """
    poles = {name for how in typing.nodes for name in at_poles(how, typing)}
    exponents = {name for how in typing.nodes for name in in_exponents(how, typing)}
    taken = set(graph.names)
    infinite = constant(unused_name("infinity", taken), np.array(inf, np.float32))
    most: dict[str, str] = {}
    least: dict[str, str] = {}
    top: dict[str, str] = {}

    def measuring(name: str) -> list[Node]:
        kind = typing.types.get(name)
        if kind is None or kind.dtype != WIDE:
            return []
        size, most[name] = (unused_name(f"{name}_{what}", taken) for what in ("magnitude", "most"))
        made = [Node("", "Abs", (name,), (size,)), Node("", "ReduceMax", (size,), (most[name],), {"keepdims": 0})]
        if name in poles:
            some, positive, least[name] = (
                unused_name(f"{name}_{what}", taken) for what in ("some", "positive", "least")
            )
            made += [
                Node("", "Cast", (size,), (some,), {"to": dtype_code(DType.BOOL.value)}),
                Node("", "Where", (some, size, infinite.name), (positive,)),
                Node("", "ReduceMin", (positive,), (least[name],), {"keepdims": 0}),
            ]
        if name in exponents:
            top[name] = unused_name(f"{name}_top", taken)
            made.append(Node("", "ReduceMax", (name,), (top[name],), {"keepdims": 0}))
        return made

    nodes = [n for value in graph.inputs if value.name not in graph.weight for n in measuring(value.name)]
    for node in graph.nodes:
        nodes += [node, *(n for o in node.outputs if o for n in measuring(o))]
    scalar = TensorType(DType.FLOAT32, ())
    outputs = tuple(Value(name, scalar) for name in (*most.values(), *least.values(), *top.values()))
    result = replace(graph, nodes=tuple(nodes), outputs=outputs, weights=(*graph.weights, infinite))
    return MagnitudeInstrumentedGraph(result.checked(), most, least, top)

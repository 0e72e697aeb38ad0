"""Writing a region of operators in parts (:mod:`superopt.memory.fission`) as nodes of the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from superopt.formats.control_flow_bodies import all_names
from superopt.ir.graph import Graph, Node, Weight, constant, unused_name
from superopt.ir.terms import AttributeValue
from superopt.ir.types import TensorType
from superopt.memory.fission import FissionPartBuilder, FissionRegion, FissionSearchGraph, bounds, form_of
from superopt.memory.size_hiding import FOR_MEMORY
from superopt.memory.slicing import AxisRange
from superopt.ops import REGISTRY
from superopt.ops.operator_definition import Operator, UnsupportedNodeForm
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.ops.shape_inference import CanonicalNode

__all__ = ["FissionResult", "split"]


@dataclass(frozen=True)
class FissionResult:
    """A graph with a region computed in parts.

    Attributes:
        graph: it; the region's result has its name.
        types: of the values that are new.
    """

    graph: Graph
    types: Mapping[str, TensorType]


def split(source: FissionSearchGraph, region: FissionRegion) -> FissionResult | None:
    """The graph with a region computed in parts; ``None`` where a part of it cannot be, or cannot be written."""
    graph, head, way = source.graph, region.nodes[0], region.way
    writer = _Writer(source)
    made: list[tuple[str, TensorType]] = []
    try:
        for low, high in bounds(way, region.parts):
            growth = FissionPartBuilder(source, head, way, low, high)
            if not all(growth.take(at) for at in region.nodes):
                return None
            made.append(writer.part(growth, region.output))
        writer.joined(made, way.axis, region.output)
    except (UnsupportedNodeForm, IllTypedOperator):
        return None
    gone = set(region.nodes)
    nodes = [n for i, n in enumerate(graph.nodes[: head + 1]) if i not in gone]
    nodes += [*writer.nodes, *graph.nodes[head + 1 :]]
    lost = {graph.nodes[i].outputs[0] for i in gone} - {region.output}
    values = tuple(v for v in graph.values if v.name not in lost)
    changed = replace(graph, nodes=tuple(nodes), weights=(*graph.weights, *writer.weights), values=values)
    return FissionResult(changed, writer.types)


class _Writer:
    """Writes parts of a region."""

    def __init__(self, source: FissionSearchGraph) -> None:
        self.source = source
        graph = source.graph
        self.opset = graph.onnx_version or 1
        self.taken = {*all_names(graph), *graph.declared}
        self.named = {n.name for n in graph.nodes}
        self.nodes: list[Node] = []
        self.weights: list[Weight] = []
        self.types: dict[str, TensorType] = {}
        self.literals: dict[tuple[int, ...], str] = {}
        self.cuts: dict[tuple[str, AxisRange], str] = {}

    def part(self, growth: FissionPartBuilder, output: str) -> tuple[str, TensorType]:
        """Write a part; returns the name and type of what it makes of the region's result."""
        source, names, spans = self.source, dict[str, str](), dict[str, AxisRange | None]()
        for step in reversed(growth.steps):
            node, form = source.graph.nodes[step.node], form_of(source, step.node)
            given: list[str | None] = []
            for i, operand in enumerate(form.args):
                dropped = step.node == growth.head and i in growth.way.once and growth.low > 0
                span = step.part.operands.get(i)
                if operand is None or dropped:
                    given.append(None)
                elif span is None:
                    given.append(operand)
                elif operand in names:
                    given.append(self.cut(names[operand], _within(span, spans[operand])))
                else:
                    given.append(self.cut(operand, span))
            name = node.outputs[0]
            names[name] = self.applied(node, form, given, step.part.attributes, step.part.types[0])
            spans[name] = step.part.made
        head = growth.steps[0]
        last = names[output]
        if head.asked is not None:
            last = self.cut(last, _within(head.asked, head.part.made))
        return last, self.types[last]

    def joined(self, parts: Sequence[tuple[str, TensorType]], axis: int | None, output: str) -> None:
        """Write the result from its parts."""
        if axis is not None:
            names, kinds = [n for n, _ in parts], [t for _, t in parts]
            self._write(REGISTRY["Concat"], names, {"axis": axis}, kinds, output, output)
            return
        total, kind = parts[0]
        for i, (name, _) in enumerate(parts[1:], 1):
            made = output if i == len(parts) - 1 else self._fresh(f"{output}_sum", kind)
            self._write(REGISTRY["Add"], [total, name], {}, [kind, kind], made, made)
            total = made

    def cut(self, name: str, span: AxisRange) -> str:
        """A slice of a value; itself where that is all of it."""
        kind = self.types.get(name) or self.source.type(name)
        assert kind is not None
        shape = kind.shape or ()
        if (span.low, span.high) == (0, shape[span.axis]):
            return name
        if (name, span) not in self.cuts:
            sizes = (*shape[: span.axis], span.high - span.low, *shape[span.axis + 1 :])
            made = self.cuts[name, span] = self._fresh(f"{name}_{span.low}", TensorType(kind.dtype, sizes))
            self._write(
                REGISTRY["Slice"], [name],
                {"axes": (span.axis,), "ends": (span.high,), "starts": (span.low,), "steps": (1,)}, [kind], made, made,
            )  # fmt: skip
        return self.cuts[name, span]

    def applied(
        self, node: Node, form: CanonicalNode, given: Sequence[str | None], attributes: Mapping[str, AttributeValue],
        kind: TensorType,
    ) -> str:  # fmt: skip
        """Write an application to what a part gives it, verbatim where only names change."""
        made = self._fresh(f"{node.outputs[0]}_part", kind)
        changed: dict[str, str] = {}
        plain = attributes == form.attributes
        for old, new in zip(form.args, given, strict=True):
            plain &= new is not None or old is None
            if old is not None and new is not None:
                plain &= changed.setdefault(old, new) == new
        if plain:
            name = unused_name(f"{node.name}_part", self.named)
            inputs = tuple(changed.get(n, n) for n in node.inputs)
            metadata = {**node.metadata, **FOR_MEMORY}
            self.nodes.append(replace(node, name=name, inputs=inputs, outputs=(made,), metadata=metadata))
        else:
            types = [None if n is None else self.types.get(n) or self.source.type(n) for n in given]
            self._write(form.operator, given, attributes, types, made, f"{node.name}_part")
        return made

    def _write(
        self, operator: Operator, given: Sequence[str | None], attributes: Mapping[str, AttributeValue],
        types: Sequence[TensorType | None], made: str, name: str,
    ) -> None:  # fmt: skip
        form = operator.write(attributes, types, self.opset)
        literals = {place: self._literal(array) for place, array in form.literals.items()}
        inputs = form.names(given, literals)
        label = unused_name(name, self.named)
        self.nodes.append(Node(label, operator.name, inputs, (made,), form.attributes, metadata=FOR_MEMORY))

    def _literal(self, array: np.ndarray) -> str:
        key = (*array.shape, *map(int, array.ravel()))
        if key not in self.literals:
            self.weights.append(constant(unused_name("fission_sizes", self.taken), array))
            self.literals[key] = self.weights[-1].name
        return self.literals[key]

    def _fresh(self, hint: str, kind: TensorType) -> str:
        name = unused_name(hint, self.taken)
        self.types[name] = kind
        return name


def _within(asked: AxisRange, made: AxisRange | None) -> AxisRange:
    """A span in what was made of the axis."""
    assert made is not None
    return AxisRange(asked.axis, asked.low - made.low, asked.high - made.low)

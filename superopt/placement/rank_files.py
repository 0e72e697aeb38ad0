"""A model file for each rank: its weights' pieces, its own operators, and collectives as nodes.

Collectives are nodes of the domain ``superopt.devices``: AllReduce, AllGather, ReduceScatter and AllToAll, with the
ranks that take part in order (``group``) and the axes that they concern. All else is ONNX: a runtime runs what lies
between the collectives (:mod:`superopt.placement.execution`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from superopt.errors import Unsupported
from superopt.ir.graph import ArrayWeightData, Attribute, Graph, Node, Value, Weight, constant, unused_name
from superopt.ir.terms import Attributes
from superopt.ir.types import TensorType
from superopt.ops import REGISTRY
from superopt.placement.choice import Choice
from superopt.placement.placements import DOMAIN, Spec, coordinates, group_of, local_type
from superopt.placement.schedule import Application, Instruction, Movement
from superopt.placement.strategies import Model

__all__ = ["rank_graphs", "piece_bounds"]


def piece_bounds(shape: Sequence[int], spec: Spec, mesh: Sequence[int], place: Sequence[int]) -> tuple[slice, ...]:
    """Where a device's piece lies in a tensor that is not partial."""
    starts, sizes = [0] * len(shape), list(shape)
    for placement, count, position in zip(spec, mesh, place, strict=True):
        if placement.kind == "split":
            sizes[placement.axis] //= count
            starts[placement.axis] += position * sizes[placement.axis]
    return tuple(slice(a, a + n) for a, n in zip(starts, sizes, strict=True))


def rank_graphs(choice: Choice, model: Model, instructions: Sequence[Instruction]) -> list[Graph]:
    """The graph of each rank, in order.

    Args:
        choice: of placements.
        model: what is placed.
        instructions: the choice's schedule.

    Raises:
        Unsupported: a weight has no elements, and is split.
    """
    return [_RankWriter(choice, model, rank).graph(instructions) for rank in range(prod(choice.mesh))]


class _RankWriter:
    def __init__(self, choice: Choice, model: Model, rank: int) -> None:
        self.choice, self.model, self.rank = choice, model, rank
        self.place = coordinates(rank, choice.mesh)
        self.nodes: list[Node] = []
        self.literals: list[Weight] = []
        self.taken: set[str] = set(self.model.graph.names)
        self.node_names = {n.name for n in self.model.graph.nodes}

    def graph(self, instructions: Sequence[Instruction]) -> Graph:
        """The rank's graph: inputs and outputs have their names and the types of pieces."""
        original = self.model.graph
        for instruction in instructions:
            self.taken.update(o for o in _results(instruction) if o)
        for instruction in instructions:
            if isinstance(instruction, Movement):
                self._write_movement(instruction)
            else:
                self._write_application(instruction)
        used = {n for node in self.nodes for n in node.reads} | {o.name for o in original.outputs}
        weights = [self._piece(w) for n, w in original.constants.items() if n in used]
        moved = any(n.domain == DOMAIN for n in self.nodes)
        return Graph(
            f"{original.name}-{self.rank}", tuple(map(self._value, original.inputs)),
            tuple(map(self._value, original.outputs)), (*weights, *self.literals), tuple(self.nodes),
            {**original.opset, **({DOMAIN: 1} if moved else {})},
            values=tuple(Value(i.target, i.after) for i in instructions if isinstance(i, Movement) and i.collective),
            extras=dict(original.extras),
        ).checked()  # fmt: skip

    def _value(self, value: Value) -> Value:
        spec, kind = self.choice.specs.get(value.name), self.model.types.get(value.name)
        return value if spec is None or kind is None else replace(value, type=local_type(kind, spec, self.choice.mesh))

    def _piece(self, weight: Weight) -> Weight:
        spec = self.choice.specs.get(weight.name)
        if spec is None or all(p.kind != "split" for p in spec):
            return weight
        if weight.data is None:
            raise Unsupported(f"weight {weight.name!r} has no elements", hint="a file for each rank needs them")
        shape = [s for s in weight.type.shape or () if isinstance(s, int)]
        bounds = piece_bounds(shape, spec, self.choice.mesh, self.place)
        piece = np.ascontiguousarray(weight.data.numpy()[bounds])
        return replace(weight, type=replace(weight.type, shape=piece.shape), data=ArrayWeightData(piece))

    # -- nodes -------------------------------------------------------------------------------------------------------

    def _write_application(self, made: Application) -> None:
        operation, whole = made.operation, made.operation.node
        unchanged = made.form.attributes == operation.attributes and made.args == operation.args
        if operation.operator is None or (unchanged and made.outputs == operation.outputs):
            self.nodes.append(whole)
            return
        node = self._written(operation.name, made.form.attributes, made.kinds, made.args, made.outputs, whole.name)
        self.nodes.append(replace(node, doc=whole.doc))

    def _written(
        self, op: str, attributes: Attributes, kinds: Sequence[TensorType | None], args: Sequence[str | None],
        outputs: Sequence[str], name: str,
    ) -> Node:  # fmt: skip
        record = REGISTRY[op]
        form = record.write(dict(attributes), kinds, self.model.graph.opset.get(record.domain, 1))
        places: dict[int, str] = {}
        for place, array in form.literals.items():
            places[place] = unused_name(f"{next(o for o in outputs if o)}_{place}", self.taken)
            self.literals.append(constant(places[place], array))
        return Node(name, op, form.names(args, places), tuple(outputs), dict(form.attributes), domain=record.domain)

    def _write_movement(self, made: Movement) -> None:
        step, name = made.step, unused_name(f"{made.target}_{made.step.op}", self.node_names)
        position = self.place[step.mesh_axis]
        if made.collective:
            self.nodes.append(Node(name, step.op, (made.source,), (made.target,), self._exchange(made), DOMAIN))
        elif step.op == "Slice":
            size = (made.after.shape or ())[step.target.axis]
            assert isinstance(size, int)
            start = position * size
            lists: Attributes = (
                ("axes", (step.target.axis,)), ("ends", (start + size,)), ("starts", (start,)), ("steps", (1,)),
            )  # fmt: skip
            self.nodes.append(self._written("Slice", lists, [made.before], [made.source], [made.target], name))
        elif position == 0:
            self.nodes.append(Node(name, "Identity", (made.source,), (made.target,)))
        else:
            zeros: Attributes = (("dtype", str(made.after.dtype)), ("shape", made.after.shape or ()), ("value", 0.0))
            self.nodes.append(self._written("ConstantOfShape", zeros, [], [], [made.target], name))

    def _exchange(self, made: Movement) -> dict[str, Attribute]:
        step = made.step
        attributes: dict[str, Attribute] = {"group": group_of(self.rank, self.choice.mesh, step.mesh_axis)}
        if step.source.kind == "split":
            attributes["gather_axis"] = step.source.axis
        if step.target.kind == "split":
            attributes["split_axis"] = step.target.axis
        return attributes


def _results(instruction: Instruction) -> tuple[str, ...]:
    return (instruction.target,) if isinstance(instruction, Movement) else instruction.outputs

"""The rank files put together as one ordinary model, so that the model that they came from can judge them.

This reads what was written: rank files and where inputs and outputs lie. It shares no code with what wrote them.
AllReduce becomes an addition, AllGather a Concat, ReduceScatter an addition and a Slice, AllToAll Slices and a Concat.
The result has the inputs and outputs of the original, each output once for every rank that holds a copy of it. Then the
check of rewritten models compares the two, and ``superopt verify`` may prove them equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from superopt.errors import InvalidModel
from superopt.ir.graph import Graph, Node, Value, Weight, constant
from superopt.ir.types import TensorType
from superopt.placement.placements import DOMAIN

__all__ = ["Layout", "composed", "with_copies"]


@dataclass(frozen=True)
class Layout:
    """Where inputs and outputs lie: by name, for each axis of the mesh the tensor's axis that it splits, or none."""

    mesh: tuple[int, ...]
    splits: Mapping[str, tuple[int | None, ...]]

    @property
    def coordinates(self) -> list[tuple[int, ...]]:
        """The place in the mesh of each rank."""
        return list(product(*map(range, self.mesh)))

    def copies(self, name: str) -> int:
        """How many ranks hold the same piece."""
        split = self.splits[name]
        return int(np.prod([n for n, s in zip(self.mesh, split, strict=True) if s is None], dtype=np.int64))


def with_copies(original: Graph, layout: Layout) -> Graph:
    """The original with every output as often as ranks hold copies of it."""
    nodes, outputs = list(original.nodes), list(original.outputs)
    for value in original.outputs:
        for copy in range(1, layout.copies(value.name)):
            name = _copy_name(value.name, copy)
            nodes.append(Node(f"copy of {name}", "Identity", (value.name,), (name,)))
            outputs.append(replace(value, name=name))
    return replace(original, nodes=tuple(nodes), outputs=tuple(outputs))


def composed(original: Graph, types: Mapping[str, TensorType], ranks: Sequence[Graph], layout: Layout) -> Graph:
    """One model that does what all ranks do.

    Args:
        original: for the names and order of inputs and outputs.
        types: of its inputs and outputs.
        ranks: the graphs of the ranks, in order.
        layout: where inputs and outputs lie.

    Raises:
        InvalidModel: the files do not fit together.
    """
    return _Composer(original, types, ranks, layout).graph()


def _copy_name(name: str, copy: int) -> str:
    return f"{name} (copy {copy})"


class _Composer:
    def __init__(
        self, original: Graph, types: Mapping[str, TensorType], ranks: Sequence[Graph], layout: Layout
    ) -> None:
        self.original, self.types, self.ranks, self.layout = original, types, ranks, layout
        if len(ranks) != len(layout.coordinates):
            raise InvalidModel(f"{len(ranks)} rank files for {len(layout.coordinates)} devices")
        self.nodes: list[Node] = []
        self.weights: dict[str, Weight] = {}
        self.shared: dict[tuple[object, ...], str] = {}
        self.named: list[dict[str, str]] = [{} for _ in ranks]
        self.exchanges: list[dict[str, Node]] = [
            {n.outputs[0]: n for n in g.nodes if n.domain == DOMAIN} for g in ranks
        ]

    def graph(self) -> Graph:
        for rank, graph in enumerate(self.ranks):
            for weight in graph.weights:
                self.named[rank][weight.name] = self._weight(weight)
            for value in graph.inputs:
                self.named[rank][value.name] = self._input(rank, value)
            for node in graph.nodes:
                for output in filter(None, node.outputs):
                    self.named[rank][output] = f"rank {rank}: {output}"
        for rank, graph in enumerate(self.ranks):
            for node in graph.nodes:
                if node.domain == DOMAIN:
                    self._exchange(rank, node)
                else:
                    self._copy(rank, node)
        outputs = [replace(v, type=self.types.get(v.name, v.type)) for v in self.original.outputs]
        values = [self._output(v, copy) for v in outputs for copy in range(self.layout.copies(v.name))]
        order = sorted(values, key=lambda v: v.name not in {o.name for o in outputs})
        opset = {d: n for g in self.ranks for d, n in g.opset.items() if d != DOMAIN}
        return Graph(
            self.original.name, self.original.inputs, tuple(order), tuple(self.weights.values()), tuple(self.nodes),
            opset, extras=self.original.extras,
        ).checked()  # fmt: skip

    def _weight(self, weight: Weight) -> str:
        key = (weight.type, id(weight) if weight.data is None else weight.data.digest)
        if key not in self.shared:
            name = f"weight {len(self.shared)}: {weight.name}"
            self.shared[key] = name
            self.weights[name] = replace(weight, name=name)
        return self.shared[key]

    def _constant(self, numbers: Sequence[int]) -> str:
        return self._weight(constant("numbers", np.array(numbers, dtype=np.int64)))

    def _add(self, op: str, inputs: Sequence[str], output: str, **attributes: int) -> str:
        self.nodes.append(Node(f"{op} of {output}", op, tuple(inputs), (output,), dict(attributes)))
        return output

    def _slice(self, source: str, axis: int, start: int, end: int, output: str) -> str:
        numbers = [self._constant([n]) for n in (start, end, axis)]
        return self._add("Slice", [source, *numbers], output)

    def _input(self, rank: int, value: Value) -> str:
        """A rank's piece of an input."""
        name, sizes = value.name, list((self.types[value.name].shape if value.name in self.types else None) or ())
        for number, (axis, count, place) in enumerate(self._splits(value.name, rank)):
            size = sizes[axis]
            assert isinstance(size, int)
            sizes[axis] = size // count
            start = place * (size // count)
            name = self._slice(name, axis, start, start + size // count, f"rank {rank}: {value.name} / {number}")
        return name

    def _splits(self, name: str, rank: int) -> list[tuple[int, int, int]]:
        """Axis, number of pieces and which of them, from the first axis of the mesh on."""
        place, splits = self.layout.coordinates[rank], self.layout.splits.get(name, ())
        rows = zip(splits, self.layout.mesh, place, strict=False)
        return [(axis, count, position) for axis, count, position in rows if axis is not None]

    def _copy(self, rank: int, node: Node) -> None:
        if node.captures:
            raise InvalidModel("a node with bodies that read outer values cannot be composed", where=node.name)
        names = self.named[rank]
        missing = [i for i in node.inputs if i and i not in names]
        if missing:
            raise InvalidModel(f"reads {missing[0]!r}, which nothing defines", where=f"rank {rank}, {node.name}")
        self.nodes.append(
            replace(
                node, name=f"rank {rank}: {node.name}", inputs=tuple(i and names[i] for i in node.inputs),
                outputs=tuple(o and names[o] for o in node.outputs),
            )
        )  # fmt: skip

    # -- collectives -------------------------------------------------------------------------------------------------

    def _exchange(self, rank: int, node: Node) -> None:
        group = self._group(rank, node)
        sources = [self.named[r][self.exchanges[r][node.outputs[0]].inputs[0]] for r in group]
        output, place = self.named[rank][node.outputs[0]], group.index(rank)
        if node.op == "AllReduce":
            self._add("Sum", sources, output)
        elif node.op == "AllGather":
            self._add("Concat", sources, output, axis=_axis(node, "gather_axis"))
        elif node.op == "ReduceScatter":
            axis = _axis(node, "split_axis")
            size = self._size(rank, node, axis)
            self._slice(self._add("Sum", sources, f"{output} / sum"), axis, place * size, (place + 1) * size, output)
        elif node.op == "AllToAll":
            axis = _axis(node, "split_axis")
            size = self._size(rank, node, axis)
            pieces = [
                self._slice(s, axis, place * size, (place + 1) * size, f"{output} / {k}") for k, s in enumerate(sources)
            ]
            self._add("Concat", pieces, output, axis=_axis(node, "gather_axis"))
        else:
            raise InvalidModel(f"{node.op} is no collective", where=f"rank {rank}, {node.name}")

    def _group(self, rank: int, node: Node) -> list[int]:
        """The ranks of a collective, all of which say the same of it."""
        given = node.attributes.get("group")
        group = [r for r in given if isinstance(r, int)] if isinstance(given, tuple) else []
        if rank not in group or not all(r in range(len(self.ranks)) for r in group):
            raise InvalidModel("has no group of ranks with its own", where=f"rank {rank}, {node.name}")
        for other in group:
            found = self.exchanges[other].get(node.outputs[0])
            if found is None or (found.op, dict(found.attributes)) != (node.op, dict(node.attributes)):
                raise InvalidModel(f"rank {other} does not take part", where=f"rank {rank}, {node.name}")
        return group

    def _size(self, rank: int, node: Node, axis: int) -> int:
        """Places of a rank's piece along the axis that a collective splits."""
        declared = self.ranks[rank].declared.get(node.outputs[0])
        size = declared.shape[axis] if isinstance(declared, TensorType) and declared.shape is not None else None
        if not isinstance(size, int):
            raise InvalidModel("does not declare the type of its result", where=f"rank {rank}, {node.name}")
        return size

    # -- outputs -----------------------------------------------------------------------------------------------------

    def _output(self, value: Value, copy: int) -> Value:
        """The output put together of the pieces of ranks that hold its copy of that number."""
        split = self.layout.splits[value.name]
        open_axes = [k for k, s in enumerate(split) if s is None]
        held = list(product(*(range(self.layout.mesh[k]) for k in open_axes)))[copy]
        fixed = dict(zip(open_axes, held, strict=True))
        name = value.name if copy == 0 else _copy_name(value.name, copy)
        whole = self._joined(value.name, split, fixed, (), name)
        if whole != name:
            self._add("Identity", [whole], name)
        return replace(value, name=name)

    def _joined(
        self, name: str, split: Sequence[int | None], fixed: Mapping[int, int], place: tuple[int, ...], output: str
    ) -> str:
        """The pieces below a place in the mesh, put together from the last axis of the mesh on."""
        depth = len(place)
        if depth == len(split):
            rank = self.layout.coordinates.index(place)
            return self.named[rank][name]
        axis = split[depth]
        if axis is None:
            return self._joined(name, split, fixed, (*place, fixed[depth]), output)
        inner = [
            self._joined(name, split, fixed, (*place, k), f"{output} / {depth}.{k}")
            for k in range(self.layout.mesh[depth])
        ]
        return self._add("Concat", inner, f"{output} / joined {depth}.{'.'.join(map(str, place))}", axis=axis)


def _axis(node: Node, name: str) -> int:
    value = node.attributes.get(name)
    if not isinstance(value, int):
        raise InvalidModel(f"has no attribute {name}", where=node.name)
    return value

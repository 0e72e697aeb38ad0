"""Guards: a value under another name, in the same memory, whose sizes the runtime does not know beforehand.

    Reshape(x, zeros + ReduceSum(Cast(Slice(t, to nothing))))

It is ``x`` for every ``x`` and ``t`` (a sum of no elements is 0, and a size of 0 stands for the operand's). The runtime
cannot know so before it runs, since ``t`` is no constant; and no order that is valid has it before ``t`` is there.
Superopt's own inference follows it (the elements of an empty tensor are known), so that the prover sees a ``Reshape``
to the shape there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from superopt.formats.control_flow_bodies import all_names
from superopt.ir.graph import PASS, Graph, Node, Weight, constant, unused_name
from superopt.ir.types import DType, TensorType

__all__ = ["FOR_MEMORY", "OPSET", "SizeHidingReshapes", "measurable"]

FOR_MEMORY = {PASS: "reduce memory"}  # metadata of nodes that are written for less memory
OPSET = 13  # the first in which ReduceSum takes its axes as an operand, or none


def measurable(kind: TensorType | None) -> bool:
    """Whether there is an axis, and elements that are numbers: such a value can say when a guard opens."""
    return kind is not None and bool(kind.shape) and kind.dtype is not DType.STRING


@dataclass
class SizeHidingReshapes:
    """Writes guards.

    Attributes:
        kind: types of values, as far as they are known.
        taken: names of values, and ``named``, of nodes, that there are.
        nodes: that are written, and ``weights``.
        known: guards, by the value and what they come after.
    """

    kind: dict[str, TensorType | None]
    taken: set[str]
    named: set[str]
    nodes: list[Node] = field(default_factory=list)
    weights: list[Weight] = field(default_factory=list)
    known: dict[tuple[str, str], str] = field(default_factory=dict)
    _nothings: dict[str, str] = field(default_factory=dict)  # zero, computed of a value
    _starts: dict[int, str] = field(default_factory=dict)  # zeros, by their number
    _shapes: dict[tuple[str, str], str] = field(default_factory=dict)  # sums of a shape and zero, of a value

    @staticmethod
    def of(graph: Graph, types: Mapping[str, TensorType | None]) -> SizeHidingReshapes:
        """Guards for a graph."""
        taken = {*all_names(graph), *graph.declared}
        return SizeHidingReshapes(dict(types), taken, {n.name for n in graph.nodes})

    def guard(self, name: str, after: str) -> str:
        """The same value, not before another is there, its sizes left open."""
        if (name, after) not in self.known:
            kind = self.kind.get(name)
            shape = self._as_it_is(name, kind)
            if (shape, after) not in self._shapes:
                self._shapes[shape, after] = self.node("Add", (shape, self.nothing(after)), f"{shape}_then")
            made = self.node("Reshape", (name, self._shapes[shape, after]), f"{name}_then")
            self.known[name, after] = made
            self.kind[made] = kind
        return self.known[name, after]

    def node(self, op: str, inputs: tuple[str, ...], output: str, **attributes: int) -> str:
        """Write a node; the name of what it makes."""
        made = unused_name(output, self.taken)
        label = unused_name(made, self.named)
        self.nodes.append(Node(label, op, inputs, (made,), attributes, metadata=FOR_MEMORY))
        return made

    def add_constant(self, hint: str, elements: np.ndarray) -> str:
        """Write a constant; its name."""
        self.weights.append(constant(unused_name(hint, self.taken), elements))
        return self.weights[-1].name

    def _as_it_is(self, name: str, kind: TensorType | None) -> str:
        """The shape that says that all sizes are the operand's. (Its ``Shape``, which is asked for where the number of
        axes is not known, the runtime takes of what the value is made of, if that is a ``Transpose``, and keeps it.)"""
        if kind is None or kind.shape is None:
            return self.node("Shape", (name,), f"{name}_shape")
        return self.zeros(len(kind.shape))

    def nothing(self, name: str) -> str:
        """Zero, computed of a value: the sum of none of its elements."""
        if name not in self._nothings:
            kind = self.kind[name]
            zeros = self.zeros(len(kind.shape or ()) if kind is not None else 0)
            none = self.node("Slice", (name, zeros, zeros), f"{name}_none")
            whole = self.node("Cast", (none,), f"{name}_none_int64", to=7)
            self._nothings[name] = self.node("ReduceSum", (whole,), f"{name}_zero", keepdims=0)
        return self._nothings[name]

    def zeros(self, count: int) -> str:
        """The name of a constant of so many."""
        if count not in self._starts:
            self._starts[count] = self.add_constant(f"zeros_{count}", np.zeros(count, np.int64))
        return self._starts[count]

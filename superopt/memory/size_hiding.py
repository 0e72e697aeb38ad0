"""Sizes hidden from the runtime: how they are, by guards, and which ones should be.

A guard is a value under another name, in the same memory, whose sizes the runtime does not know beforehand.

    Reshape(x, zeros + ReduceSum(Cast(Slice(t, to nothing))))

It is ``x`` for every ``x`` and ``t`` (a sum of no elements is 0, and a size of 0 stands for the operand's). The runtime
cannot know so before it runs, since ``t`` is no constant; and no order that is valid has it before ``t`` is there.
Superopt's own inference follows it (the elements of an empty tensor are known), so that the prover sees a ``Reshape``
to the shape there is.

:func:`best_open` chooses the kernels that should not know the sizes of what they make, for the smallest block. ONNX
Runtime keeps a dead buffer for the next value of the same sizes (:mod:`superopt.memory.runtime_memory_planner`):
where it knows them, a buffer waits, perhaps to the end, while others are alive; where it does not, nothing is worked on
in place. So for each kernel it is a choice, and the block of each choice can be simulated: kernels alike are opened or
closed together, and then one by one, while that gains something. From all of them open and from none, since what holds
the block in several places is seen only when all are open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from superopt.formats.control_flow_bodies import all_names
from superopt.ir.graph import PASS, Graph, Node, Weight, constant, unused_name
from superopt.ir.types import DType, TensorType
from superopt.memory.inplace_kernels import NCHWC, RENAMING
from superopt.memory.runtime_memory_planner import ALIGNMENT, planned

__all__ = ["FOR_MEMORY", "OPSET", "SizeHidingReshapes", "best_open", "kernel_of", "measurable"]

FOR_MEMORY = {PASS: "reduce memory"}  # metadata of nodes that are written for less memory
OPSET = 13  # the first in which ReduceSum takes its axes as an operand, or none
_WORK = 200_000  # nodes of plans that are simulated: three seconds


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


def kernel_of(ran: Graph) -> dict[str, str]:
    """By value, the first result of the kernel in whose memory it is; inputs and what renames them are left out."""
    found: dict[str, str] = {}
    for node in ran.nodes:
        renames = (node.domain, node.op) in RENAMING and node.inputs[0] not in ran.constants
        if renames and node.inputs[0] in found:
            found[node.outputs[0]] = found[node.inputs[0]]
        elif not renames:
            found.update((o, node.outputs[0]) for o in node.outputs if o)
    return found


def best_open(ran: Graph, types: Mapping[str, TensorType], closed: Set[str] = frozenset()) -> frozenset[str]:
    """What kernels make whose sizes are best hidden, by their first results; nothing where that gains nothing.

    Args:
        ran: a lowered graph whose nodes stand in the order of execution.
        types: of its values.
        closed: first results of kernels that need to know them.
    """
    return _Search(ran, types, closed).best()


class _Search:
    def __init__(self, ran: Graph, types: Mapping[str, TensorType], closed: Set[str]) -> None:
        self.ran, self.types = ran, types
        self.left = _WORK
        self.results = {n.outputs[0]: n.outputs for n in ran.nodes if n.outputs}
        self.single = [g for g in _together(ran, types) if g.isdisjoint(closed)]
        kinds: dict[object, set[str]] = {}
        for group in self.single:
            kinds.setdefault(self._kind(group), set()).update(group)
        self.alike = [frozenset(k) for k in kinds.values()]

    def best(self) -> frozenset[str]:
        none = frozenset[str]()
        everything = none.union(*self.alike)
        ways = [self._descended(start, self.alike) for start in (everything, none)]
        found = min(ways, key=self._cost)
        found = self._descended(found, self.single)
        return found if self._cost(found)[0] < self._cost(none)[0] else none

    def _descended(self, chosen: frozenset[str], groups: Sequence[frozenset[str]]) -> frozenset[str]:
        """What is left when no group, opened or closed, makes it cheaper."""
        cost, improved = self._cost(chosen), True
        while improved and self.left > 0:
            improved = False
            for group in groups:
                other = chosen - group if group <= chosen else chosen | group
                price = self._cost(other)
                if price < cost:
                    chosen, cost, improved = other, price, True
        return chosen

    def _cost(self, chosen: frozenset[str]) -> tuple[int, int, int]:
        """The block, bytes that are taken over all steps, and how many kernels are open: each needs views."""
        self.left -= len(self.ran.nodes)
        opened = {o for k in chosen for o in self.results[k]}
        plan = planned(self.ran, self.types, opened=opened)
        return plan.block, sum(plan.occupied), len(chosen)

    def _kind(self, group: frozenset[str]) -> object:
        made = {n.outputs[0]: n for n in self.ran.nodes if n.outputs and n.outputs[0] in group}
        kinds = Counter((n.domain, n.op, self.types.get(o), tuple(self.types.get(i) for i in n.inputs))
                        for o, n in made.items())  # fmt: skip
        return frozenset(kinds.items())


def _together(ran: Graph, types: Mapping[str, TensorType]) -> Iterator[frozenset[str]]:
    """Kernels that are opened or closed as one: those of a chain in the blocked layout, since a view within it would
    copy the value out of the layout and back; the others by themselves. What makes less than a buffer's least size is
    left as it is."""
    chain: dict[str, str] = {}

    def root(name: str) -> str:
        while chain.get(name, name) != name:
            name = chain[name]
        return name

    maker = kernel_of(ran)
    made = {n.outputs[0]: n for n in ran.nodes if n.outputs}
    for node in ran.nodes:
        for name in node.reads if node.domain == NCHWC else ():
            if name in maker and made[maker[name]].domain == NCHWC:
                chain[root(node.outputs[0])] = root(maker[name])
    groups: dict[str, set[str]] = {}
    for name in dict.fromkeys(maker.values()):
        groups.setdefault(root(name), set()).add(name)
    for group in groups.values():
        if any((types[n].nbytes or 0) > ALIGNMENT for n in group if n in types):
            yield frozenset(group)

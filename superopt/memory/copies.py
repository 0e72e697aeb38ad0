"""Writing a plan that computes values again as a graph that ONNX Runtime runs as planned.

Left alone, the runtime's elimination of common subexpressions merges a copy with what it repeats, and its walk back
from the results may run copies long before they are needed. Both are prevented by a *guard* on what a copy reads:

    Reshape(x, zeros + ReduceSum(Cast(Slice(t, to nothing))))

It is ``x`` for every ``x`` and ``t`` (a sum of no elements is 0, and a size of 0 stands for the operand's), under
another name, in the same memory. The runtime cannot know so before it runs, since ``t`` is no constant; and since ``t``
is what is made right before the copy is planned to run, no order that is valid runs the copy earlier. Superopt's own
inference follows it (the elements of an empty tensor are known), so that the prover sees a ``Reshape`` to the shape
there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from superopt.ir.graph import Graph, Node, Value, Weight, constant, unused_name
from superopt.ir.types import DType, TensorType
from superopt.memory.recompute import Step, Task, Timetable

__all__ = ["OPSET", "Pin", "Planned", "Written", "written"]

OPSET = 13  # the first in which ReduceSum takes its axes as an operand, or none


@dataclass(frozen=True)
class Planned:
    """A graph as its planner sees it.

    Attributes:
        graph: it.
        nodes: those that run, one for each op of the task.
        names: of the task's values, by number.
        task: ops, sizes, what is held.
        types: of the graph's values, as far as they are known.
    """

    graph: Graph
    nodes: tuple[Node, ...]
    names: tuple[str, ...]
    task: Task
    types: Mapping[str, TensorType]

    @property
    def ordered(self) -> Graph:
        """The graph with its nodes in the order of the task."""
        running = {id(n) for n in self.nodes}
        return replace(self.graph, nodes=(*(n for n in self.graph.nodes if id(n) not in running), *self.nodes))

    def measurable(self, value: int) -> bool:
        """Whether a value can say when a guard opens (or a copy of it, which has its number among the originals)."""
        return _measurable(self.types.get(self.names[value]))


def _measurable(kind: TensorType | None) -> bool:
    """Whether there is an axis, and elements that are numbers."""
    return kind is not None and bool(kind.shape) and kind.dtype is not DType.STRING


@dataclass(frozen=True)
class Pin:
    """A guard for the order alone: these steps read a value no sooner than another step has been executed.

    Attributes:
        steps: positions in the timetable.
        value: what they read: by number, or a constant by its name (which is then none to the runtime).
        after: position of the step that comes before them; -1: none does, and only the sizes are left open.
    """

    steps: tuple[int, ...]
    value: int | str
    after: int


def written(planned: Planned, timetable: Timetable, pins: Iterable[Pin] = (), *, sizes_known: bool) -> Written:
    """The graph with nodes in the timetable's order and copies, guarded.

    Args:
        planned: what the timetable is of.
        timetable: the plan.
        pins: where the order would not be kept else.
        sizes_known: whether the runtime is told the sizes of what passes a guard: it may fuse what it cannot else, and
            keeps dead memory for values of the same size.
    """
    return _Writer(planned, sizes_known).graph(timetable, list(pins))


@dataclass(frozen=True)
class Written:
    """A plan as a graph.

    Attributes:
        graph: its nodes in the order of the plan.
        names: of the plan's values, by number, copies included.
    """

    graph: Graph
    names: tuple[str, ...]


@dataclass
class _Writer:
    planned: Planned
    sizes_known: bool
    nodes: list[Node] = field(default_factory=list)
    weights: list[Weight] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    guards: dict[tuple[str, str], str] = field(default_factory=dict)  # of a value, after another
    nothings: dict[str, str] = field(default_factory=dict)  # zero, computed of a value
    starts: dict[int, str] = field(default_factory=dict)  # zeros, by their number
    shapes: dict[tuple[str, str], str] = field(default_factory=dict)  # sums of a shape and what is computed of a value
    literals: dict[tuple[int, ...], str] = field(default_factory=dict)  # shapes whose rows are left open

    def __post_init__(self) -> None:
        graph = self.planned.graph
        self.taken = {*graph.weight, *graph.declared, *(o for n in graph.nodes for o in n.outputs)}
        self.named = {n.name for n in graph.nodes}
        self.kind: dict[str, TensorType | None] = dict(self.planned.types)

    def graph(self, timetable: Timetable, pins: Sequence[Pin]) -> Written:
        given, names = self.planned.graph, list(self.planned.names)
        running = {id(n) for n in self.planned.nodes}
        self.nodes += [n for n in given.nodes if id(n) not in running]
        for value in timetable.original[len(names) :]:
            names.append(unused_name(f"{names[value]}_again", self.taken))
            self.kind[names[-1]] = self.planned.types.get(names[value])
        opened: dict[str, str] = {}
        for fed in () if self.sizes_known else given.inputs:
            if fed.name not in given.weight and self._measurable(fed.name):
                opened[fed.name] = self._guard(fed.name, fed.name)
        run, done, after = set[int](), set[tuple[int, tuple[str, ...]]](), ""
        pinned: dict[int, list[tuple[str, str]]] = {}
        for pin in pins:
            made = [names[v] for v in timetable.steps[pin.after].makes] if pin.after >= 0 else list(opened)
            after_it = next(filter(self._measurable, made), "")
            for at in pin.steps if after_it else ():
                read = names[pin.value] if isinstance(pin.value, int) else pin.value
                pinned.setdefault(at, []).append((opened.get(read, read), after_it))
        for at, step in enumerate(timetable.steps):
            node = self._executed(step, names)
            node = replace(node, inputs=tuple(opened.get(n, n) for n in node.inputs))
            through: dict[str, str] = {}  # what it reads: the last guard that it passes already
            for read, earlier in pinned.get(at, ()):
                if read != earlier or read not in through:  # any guard leaves sizes open
                    through[read] = self._guard(through.get(read, read), earlier)
            node = replace(node, inputs=tuple(through.get(n, n) for n in node.inputs))
            if step.op in run:
                node = self._copied(node, step, names, after, done)
            else:
                run.add(step.op)
                after = next((o for o in node.outputs if self._measurable(o)), after)
            done.add((step.op, node.reads))
            self.nodes.append(node if self.sizes_known else self._open(node))
        graph = replace(
            given, nodes=tuple(self.nodes), weights=(*given.weights, *self.weights),
            values=(*given.values, *self.values),
        )  # fmt: skip
        return Written(graph, tuple(names))

    def _executed(self, step: Step, names: Sequence[str]) -> Node:
        """The step's node, with the names of what it reads and makes."""
        node, op = self.planned.nodes[step.op], self.planned.task.ops[step.op]
        own = {self.planned.names[a]: names[b] for a, b in zip(op.reads, step.reads, strict=True)}
        made = {self.planned.names[a]: names[b] for a, b in zip(op.makes, step.makes, strict=True)}
        return replace(
            node, inputs=tuple(own.get(n, n) for n in node.inputs), outputs=tuple(made.get(n, n) for n in node.outputs)
        )

    def _copied(
        self, node: Node, step: Step, names: Sequence[str], after: str, done: set[tuple[int, tuple[str, ...]]]
    ) -> Node:
        """A copy, reading what it needs through guards as far as others in its place do, and as it is new."""
        node = replace(node, name=unused_name(f"{node.name}_again", self.named))
        guarded = {n: self.guards[n, after] for n in node.inputs if (n, after) in self.guards}
        node = replace(node, inputs=tuple(guarded.get(n, n) for n in node.inputs))
        if (step.op, node.reads) not in done or self.planned.task.ops[step.op].view:
            return node
        own = [n for n in node.inputs if n in self.kind]
        graph = self.planned.graph
        source = min(own, key=lambda n: (n in graph.constants, n in graph.weight))
        guard = self._guard(source, after)
        return replace(node, inputs=tuple(guard if n == source else n for n in node.inputs))

    def _open(self, node: Node) -> Node:
        """The node; a ``Reshape`` is not told the number of rows: it would make the sizes known again."""
        shape = self.planned.graph.constants.get(node.inputs[1]) if node.op == "Reshape" and not node.domain else None
        if shape is None or shape.data is None:
            return node
        sizes = tuple(map(int, shape.data.numpy().ravel()))
        if not sizes or min(sizes) < 1:
            return node  # it is told as much already
        if sizes not in self.literals:
            self.weights.append(constant(unused_name(f"{shape.name}_rows", self.taken), np.array([-1, *sizes[1:]])))
            self.literals[sizes] = self.weights[-1].name
        return replace(node, inputs=(node.inputs[0], self.literals[sizes]), attributes={})

    def _measurable(self, name: str) -> bool:
        """Whether a value can say when a guard opens."""
        return _measurable(self.kind.get(name))

    def _guard(self, name: str, after: str) -> str:
        """The same value, not before another is there."""
        if (name, after) not in self.guards:
            kind = self.kind.get(name)
            shape = self._as_it_is(name, kind)
            if (shape, after) not in self.shapes:
                self.shapes[shape, after] = self._node("Add", (shape, self._nothing(after)), f"{shape}_then")
            guard = self.guards[name, after] = self._node("Reshape", (name, self.shapes[shape, after]), f"{name}_then")
            self.kind[guard] = kind
            if self.sizes_known and kind is not None:
                self.values.append(Value(guard, kind))
        return self.guards[name, after]

    def _as_it_is(self, name: str, kind: TensorType | None) -> str:
        """The shape that says that all sizes are the operand's. (Its ``Shape``, which is asked for where the number of
        axes is not known, the runtime takes of what the value is made of, if that is a ``Transpose``, and keeps it.)"""
        if kind is None or kind.shape is None:
            return self._node("Shape", (name,), f"{name}_shape")
        return self._zeros(len(kind.shape))

    def _nothing(self, name: str) -> str:
        """Zero, computed of a value: the sum of none of its elements."""
        if name not in self.nothings:
            kind = self.kind[name]
            zeros = self._zeros(len(kind.shape or ()) if kind is not None else 0)
            none = self._node("Slice", (name, zeros, zeros), f"{name}_none")
            whole = self._node("Cast", (none,), f"{name}_none_int64", to=7)
            self.nothings[name] = self._node("ReduceSum", (whole,), f"{name}_zero", keepdims=0)
        return self.nothings[name]

    def _zeros(self, count: int) -> str:
        if count not in self.starts:
            self.weights.append(constant(unused_name(f"zeros_{count}", self.taken), np.zeros(count, np.int64)))
            self.starts[count] = self.weights[-1].name
        return self.starts[count]

    def _node(self, op: str, inputs: tuple[str, ...], output: str, **attributes: int) -> str:
        made = unused_name(output, self.taken)
        self.nodes.append(Node(unused_name(made, self.named), op, inputs, (made,), attributes))
        return made

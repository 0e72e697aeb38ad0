"""Writing a plan that computes values again as a graph that ONNX Runtime runs as planned.

Left alone, the runtime's elimination of common subexpressions merges a copy with what it repeats, and its walk back
from the results may run copies long before they are needed. Both are prevented by a *guard* on what a copy reads
(:mod:`superopt.memory.size_hiding`), which opens with what is made right before the copy is planned to run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from superopt.ir.graph import Graph, Node, Value, unused_name
from superopt.ir.types import TensorType
from superopt.memory.rematerialization_schedule import (
    RematerializationProblem,
    RematerializationSchedule,
    RematerializationStep,
)
from superopt.memory.size_hiding import FOR_MEMORY, SizeHidingReshapes, measurable

__all__ = ["ExecutionOrderConstraint", "RematerializationInputGraph", "LoweredRematerialization", "written"]


@dataclass(frozen=True)
class RematerializationInputGraph:
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
    task: RematerializationProblem
    types: Mapping[str, TensorType]

    @property
    def ordered(self) -> Graph:
        """The graph with its nodes in the order of the task."""
        running = {id(n) for n in self.nodes}
        return replace(self.graph, nodes=(*(n for n in self.graph.nodes if id(n) not in running), *self.nodes))

    def measurable(self, value: int) -> bool:
        """Whether a value can say when a guard opens (or a copy of it, which has its number among the originals)."""
        return measurable(self.types.get(self.names[value]))


@dataclass(frozen=True)
class ExecutionOrderConstraint:
    """A guard for the order alone: these steps read a value no sooner than another step has been executed.

    Attributes:
        steps: positions in the timetable.
        value: what they read: by number, or a constant by its name (which is then none to the runtime).
        after: position of the step that comes before them; -1: none does, and only the sizes are left open.
    """

    steps: tuple[int, ...]
    value: int | str
    after: int


def written(
    planned: RematerializationInputGraph,
    timetable: RematerializationSchedule,
    pins: Iterable[ExecutionOrderConstraint] = (),
    *,
    sizes_known: bool,
) -> LoweredRematerialization:
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
class LoweredRematerialization:
    """A plan as a graph.

    Attributes:
        graph: its nodes in the order of the plan.
        names: of the plan's values, by number, copies included.
    """

    graph: Graph
    names: tuple[str, ...]


@dataclass
class _Writer:
    planned: RematerializationInputGraph
    sizes_known: bool
    values: list[Value] = field(default_factory=list)
    literals: dict[tuple[int, ...], str] = field(default_factory=dict)  # shapes whose rows are left open

    def __post_init__(self) -> None:
        self.guards = SizeHidingReshapes.of(self.planned.graph, self.planned.types)
        self.nodes, self.weights = self.guards.nodes, self.guards.weights
        self.taken, self.named = self.guards.taken, self.guards.named

    def graph(
        self, timetable: RematerializationSchedule, pins: Sequence[ExecutionOrderConstraint]
    ) -> LoweredRematerialization:
        given, names = self.planned.graph, list(self.planned.names)
        running = {id(n) for n in self.planned.nodes}
        self.nodes += [n for n in given.nodes if id(n) not in running]
        for value in timetable.original[len(names) :]:
            names.append(unused_name(f"{names[value]}_again", self.taken))
            self.guards.kind[names[-1]] = self.planned.types.get(names[value])
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
        return LoweredRematerialization(graph, tuple(names))

    def _executed(self, step: RematerializationStep, names: Sequence[str]) -> Node:
        """The step's node, with the names of what it reads and makes."""
        node, op = self.planned.nodes[step.op], self.planned.task.ops[step.op]
        own = {self.planned.names[a]: names[b] for a, b in zip(op.reads, step.reads, strict=True)}
        made = {self.planned.names[a]: names[b] for a, b in zip(op.makes, step.makes, strict=True)}
        return replace(
            node, inputs=tuple(own.get(n, n) for n in node.inputs), outputs=tuple(made.get(n, n) for n in node.outputs)
        )

    def _copied(
        self,
        node: Node,
        step: RematerializationStep,
        names: Sequence[str],
        after: str,
        done: set[tuple[int, tuple[str, ...]]],
    ) -> Node:
        """A copy, reading what it needs through guards as far as others in its place do, and as it is new."""
        name = unused_name(f"{node.name}_again", self.named)
        node = replace(node, name=name, metadata={**node.metadata, **FOR_MEMORY})
        known = self.guards.known
        guarded = {n: known[n, after] for n in node.inputs if (n, after) in known}
        node = replace(node, inputs=tuple(guarded.get(n, n) for n in node.inputs))
        if (step.op, node.reads) not in done or self.planned.task.ops[step.op].view:
            return node
        own = [n for n in node.inputs if n in self.guards.kind]
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
            self.literals[sizes] = self.guards.add_constant(f"{shape.name}_rows", np.array([-1, *sizes[1:]]))
        return replace(node, inputs=(node.inputs[0], self.literals[sizes]), attributes={})

    def _measurable(self, name: str) -> bool:
        """Whether a value can say when a guard opens."""
        return measurable(self.guards.kind.get(name))

    def _guard(self, name: str, after: str) -> str:
        """The same value, not before another is there."""
        new = (name, after) not in self.guards.known
        guard, kind = self.guards.guard(name, after), self.guards.kind.get(name)
        if new and self.sizes_known and kind is not None:
            self.values.append(Value(guard, kind))
        return guard

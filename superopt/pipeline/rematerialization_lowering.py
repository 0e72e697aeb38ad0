"""A plan that computes values again as a graph that ONNX Runtime runs as planned.

A plan's order is not the runtime's: that walks back from the results, and numbers what it fuses anew. So a plan is
written, the order that is run is read off, and what strays from the plan is *pinned*: it reads what it needs through a
guard (:mod:`superopt.memory.rematerialization_graph`) that opens after the step which the plan has before it. A few
rounds suffice, and what takes least of them is taken: by what the arena is asked for, since the model of the planner is
not exact on files with guards.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, takewhile

from superopt import formats
from superopt.ir.graph import Graph, Node
from superopt.memory.rematerialization_graph import (
    ExecutionOrderConstraint,
    LoweredRematerialization,
    RematerializationInputGraph,
    written,
)
from superopt.memory.rematerialization_schedule import RematerializationSchedule, prompt
from superopt.pipeline.activation_memory_reduction import arena_of
from superopt.pipeline.memory_timeline import ActivationFootprint, footprint_of
from superopt.runtime.onnx_runtime import NCHWC
from superopt.runtime.synthetic_tensors import feeds_for

__all__ = ["RematerializedGraph", "realised"]

_ROUNDS = 6  # of looking at the order that is run, and pinning what strays from the plan
_FAR = 8  # steps by which a kernel that strays from its place is no matter
_SMALL = 1 / 500  # of the block: sizes that are no matter
_INTO, _PLAIN = "ReorderInput", "ReorderOutput"  # copies into and out of the blocked layout


@dataclass(frozen=True)
class RematerializedGraph:
    """A plan as a graph, and the bytes of the block that the arena is asked for when it is run."""

    graph: Graph
    block: int


def realised(
    planned: RematerializationInputGraph,
    plan: RematerializationSchedule,
    *,
    sizes: Mapping[str, int] | None = None,
    sizes_known: bool = False,
    deadline: float = float("inf"),
) -> RematerializedGraph:
    """A plan as a graph that ONNX Runtime runs as planned, as far as pins can see to that.

    Args:
        planned: the graph.
        plan: of its task.
        sizes: what symbolic dimensions are counted at.
        sizes_known: see :func:`superopt.memory.rematerialization_graph.written`.
        deadline: on the monotonic clock, after which what was found has to do.

    Raises:
        InvalidModel, Unsupported, ResourceLimit: ONNX Runtime cannot run it, or not with its arena watched.
        UnsupportedNodeForm: an input is no tensor.
    """
    feeds = feeds_for(planned.graph, sizes or {})
    plan = prompt(planned.task, plan)
    pins: dict[ExecutionOrderConstraint, None] = {}
    best: RematerializedGraph | None = None
    for _ in range(_ROUNDS):
        made = written(planned, plan, pins, sizes_known=sizes_known)
        graph = replace(made.graph, nodes=_backwards(made.graph))
        arena = arena_of(graph, sizes or {})
        if best is None or arena.block < best.block:
            best = RematerializedGraph(graph, arena.block)
        found = footprint_of(formats.from_bytes(arena.ran), graph, feeds, sizes=sizes)
        fresh = dict.fromkeys(p for p in _Run(planned, plan, made, found).pins() if p not in pins)
        if not fresh or time.monotonic() > deadline:
            break
        pins |= fresh
    assert best is not None
    return best


def _backwards(graph: Graph) -> tuple[Node, ...]:
    """Its nodes, as late in the file as they stand early in the plan, as far as they can: the runtime walks back from
    the results, the node with the greatest number first."""
    made = {o: i for i, n in enumerate(graph.nodes) for o in n.outputs if o}
    needs = [len({made[n] for n in node.reads if n in made}) for node in graph.nodes]
    readers: list[dict[int, None]] = [{} for _ in graph.nodes]
    for i, node in enumerate(graph.nodes):
        for name in node.reads:
            if name in made:
                readers[made[name]][i] = None
    ready = [-i for i, count in enumerate(needs) if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        order.append(-heapq.heappop(ready))
        for reader in readers[order[-1]]:
            needs[reader] -= 1
            if not needs[reader]:
                heapq.heappush(ready, -reader)
    return tuple(graph.nodes[i] for i in order)


@dataclass(frozen=True)
class _Run:
    """A plan, how it was written, and how ONNX Runtime runs that."""

    planned: RematerializationInputGraph
    plan: RematerializationSchedule
    made: LoweredRematerialization
    found: ActivationFootprint

    @cached_property
    def at(self) -> dict[str, int]:
        """Positions of the kernels that make values."""
        return {o: i for i, n in enumerate(self.found.ran.nodes) for o in n.outputs if o}

    @cached_property
    def maker(self) -> dict[int, int]:
        """Steps that make values."""
        return {v: i for i, step in enumerate(self.plan.steps) for v in step.makes}

    @cached_property
    def places(self) -> list[int]:
        """Of each step the position of its kernel; -1 where it is within that of another step."""
        names, at = self.made.names, self.at
        return [max((at[names[v]] for v in s.makes if names[v] in at), default=-1) for s in self.plan.steps]

    def kernel(self, step: int) -> tuple[set[int], dict[int, None]]:
        """The steps that are executed within the kernel of a step, and the values of the runtime's that they read."""
        within, stack, read = {step}, [step], dict[int, None]()
        while stack:
            for value in self.plan.steps[stack.pop()].reads:
                inside = self.maker.get(value, -1)
                if inside < 0 or self.made.names[value] in self.at:
                    read[value] = None
                elif inside not in within:
                    within.add(inside)
                    stack.append(inside)
        return within, read

    def pin(self, within: Iterable[int], value: int, after: int) -> ExecutionOrderConstraint:
        """A guard on a value that a kernel reads."""
        return ExecutionOrderConstraint(
            tuple(sorted(i for i in within if value in self.plan.steps[i].reads)), value, after
        )

    def pins(self) -> Iterator[ExecutionOrderConstraint]:
        """Where the runtime strays from the plan."""
        yield from self.strays()
        yield from self.guards_of_known_sizes()
        yield from self.undone()
        yield from self.blocked()

    def strays(self) -> Iterator[ExecutionOrderConstraint]:
        """Pins for steps that are run well before the one that the plan has before them, and, where that one is itself
        run late, for it and those before it that are: each after its own predecessor."""
        seen: list[tuple[int, int]] = []  # steps that a guard may wait for, and their places
        for i, (step, place) in enumerate(zip(self.plan.steps, self.places, strict=True)):
            if place < 0:
                continue
            late = takewhile(lambda s, place=place: s[1] - place > _FAR, reversed(seen))  # type: ignore[misc]
            for (later, _), (after, _) in pairwise(((i, place), *late)):
                if not any(self.maker.get(v) == after for v in self.plan.steps[later].reads):
                    yield from self._waiting(later, after)
            if any(self.planned.measurable(self.plan.original[v]) for v in step.makes):
                seen.append((i, place))

    def _waiting(self, step: int, after: int) -> Iterator[ExecutionOrderConstraint]:
        """A guard before a kernel, of which this is the last step: on the latest value that it reads which is one of
        the runtime's, too."""
        within, read = self.kernel(step)
        if read:
            pin = self.pin(within, max(read, key=lambda v: self.maker.get(v, -1)), after)
            if pin.steps[0] > after:
                yield pin

    def guards_of_known_sizes(self) -> Iterator[ExecutionOrderConstraint]:
        """Guards on what kernels read whose results have sizes that the runtime knows, though it does not know those of
        all that they read (a product that sums over the rows): else their buffers wait for results of the same size."""
        number = {n: i for i, n in enumerate(self.made.names)}
        outputs = {v.name for v in self.found.ran.outputs}
        for node in self.found.ran.nodes:
            if all(n in self.found.known for n in node.reads):
                continue
            for name in node.outputs:
                kind = self.found.known.get(name)
                step = self.maker.get(number.get(name, -1), -1)
                if kind is None or not kind.is_static or name in outputs or step < 0 or not self._large(name):
                    continue
                within, read = self.kernel(step)
                yield from (self.pin(within, v, -1) for v in read if self._guardable(v))

    def undone(self) -> Iterator[ExecutionOrderConstraint]:
        """Guards on what kernels were to read, where the runtime has them read instead what that is made of, which is
        read no more in the plan (a ``Transpose``, which products do themselves): else both are kept."""
        number, steps = {n: i for i, n in enumerate(self.made.names)}, self.plan.steps
        root, last = list(range(len(self.plan.original))), dict[int, int]()
        for step, place in zip(steps, self.places, strict=True):
            if self.planned.task.ops[step.op].view:
                root[step.makes[0]] = root[step.reads[0]]
            last.update((root[v], max(last.get(root[v], -1), place)) for v in step.reads)
        for i, place in enumerate(self.places):
            if place < 0:
                continue
            within, read = self.kernel(i)
            actual = dict.fromkeys(self.found.ran.nodes[place].reads)
            instead = {
                root[v] for n in actual if (v := number.get(n, -1)) in self.maker and v not in read
                and last.get(root[v], -1) < place - _FAR and self._large(n)
            }  # fmt: skip
            for value in read if instead else ():
                if (
                    self.made.names[value] not in actual and self._guardable(value) and root[value] == value
                    and any(root[v] in instead for v in steps[self.maker[value]].reads)
                ):  # fmt: skip
                    yield self.pin(within, value, self.maker[value])

    def blocked(self) -> Iterator[ExecutionOrderConstraint]:
        """Guards on the operands of what the runtime runs in its blocked layout, where that is one kernel, whose copies
        are made for it alone, at a step that takes more than the plan has alive: it is left as it is where its filter
        is no constant, or its operand's channels are not known."""
        nodes, taken = self.found.ran.nodes, self.found.plan.occupied
        for i, place in enumerate(self.places):
            if place < 0 or nodes[place].op != _PLAIN or not self._large(nodes[place].outputs[0]):
                continue
            token = nodes[place].inputs[0]
            inner = self.at.get(token, -1)
            alone = inner >= 0 and self._copied_in(nodes[inner]) and self.readers[token] == 1
            if alone and max(taken[inner], taken[place]) > self.plan.peak:
                within, read = self.kernel(i)
                makers = [self.maker[v] for v in read if self._guardable(v)]
                yield from (self.pin(within, v, self.maker[v]) for v in read if self._guardable(v))
                yield from (self._filters(within, max(makers)) if makers else ())

    def _copied_in(self, node: Node) -> bool:
        """Whether a kernel of the blocked layout reads no result of another one."""
        makers = [self.found.ran.nodes[self.at[n]] for n in node.reads if n in self.at]
        return node.domain == NCHWC and all(m.domain != NCHWC or m.op == _INTO for m in makers)

    def _filters(self, within: Iterable[int], after: int) -> Iterator[ExecutionOrderConstraint]:
        """Guards on the constants with an axis of channels and more that steps read."""
        for i in within:
            for name in self.planned.nodes[self.plan.steps[i].op].reads:
                held = self.planned.graph.constants.get(name)
                if held is not None and len(held.type.shape or ()) > 2 and i > after:
                    yield ExecutionOrderConstraint((i,), name, after)

    @cached_property
    def readers(self) -> Counter[str]:
        """How many of the runtime's kernels read each value."""
        return Counter(n for node in self.found.ran.nodes for n in node.reads)

    def _large(self, name: str) -> bool:
        kind = self.found.types.get(name)
        return kind is not None and (kind.nbytes or 0) > _SMALL * self.found.plan.block

    def _guardable(self, value: int) -> bool:
        return value in self.maker and self.planned.measurable(self.plan.original[value])

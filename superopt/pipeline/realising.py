"""A plan that computes values again as a graph that ONNX Runtime runs as planned.

A plan's order is not the runtime's: that walks back from the results, and numbers what it fuses anew. So a plan is
written, the order that is run is read off, and what strays from the plan is *pinned*: it reads what it needs through a
guard (:mod:`superopt.memory.copies`) that opens after the step which the plan has before it. A few rounds suffice, and
what takes least of them is taken.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, takewhile

from superopt.ir.graph import Graph, Node
from superopt.memory import Pin, Planned, Timetable, Written, prompt, written
from superopt.pipeline.footprint import footprint

__all__ = ["realised"]

_ROUNDS = 6  # of looking at the order that is run, and pinning what strays from the plan
_FAR = 8  # steps by which a kernel that strays from its place is no matter


def realised(
    planned: Planned, plan: Timetable, *, sizes: Mapping[str, int] | None = None, sizes_known: bool = False,
    deadline: float = float("inf"),
) -> Graph:  # fmt: skip
    """A plan as a graph that ONNX Runtime runs as planned, as far as pins can see to that.

    Args:
        planned: the graph.
        plan: of its task.
        sizes: what symbolic dimensions are counted at.
        sizes_known: see :func:`superopt.memory.written`.
        deadline: on the monotonic clock, after which what was found has to do.

    Raises:
        InvalidModel, Unsupported, ResourceLimit: ONNX Runtime cannot run it.
    """
    plan = prompt(planned.task, plan)
    pins: dict[Pin, None] = {}
    best: tuple[int, Graph] | None = None
    for _ in range(_ROUNDS):
        made = written(planned, plan, pins, sizes_known=sizes_known)
        graph = replace(made.graph, nodes=_backwards(made.graph))
        found = footprint(graph, sizes=sizes)
        if best is None or found.plan.block < best[0]:
            best = found.plan.block, graph
        fresh = dict.fromkeys(p for p in _strays(planned, plan, made, found.ran.nodes) if p not in pins)
        if not fresh or time.monotonic() > deadline:
            break
        pins |= fresh
    assert best is not None
    return best[1]


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


def _strays(planned: Planned, plan: Timetable, made: Written, ran: Sequence[Node]) -> Iterator[Pin]:
    """Pins for steps that are run well before the one that the plan has before them, and, where that one is itself run
    late, for it and those before it that are: each after its own predecessor."""
    at = {o: i for i, n in enumerate(ran) for o in n.outputs if o}
    maker = {v: i for i, step in enumerate(plan.steps) for v in step.makes}
    seen: list[tuple[int, int]] = []  # steps that a guard may wait for, and their places
    for i, step in enumerate(plan.steps):
        place = max((at[made.names[v]] for v in step.makes if made.names[v] in at), default=-1)
        if place < 0:
            continue  # within another kernel
        late = takewhile(lambda s, place=place: s[1] - place > _FAR, reversed(seen))  # type: ignore[misc]
        for (later, _), (after, _) in pairwise(((i, place), *late)):
            if not any(maker.get(v) == after for v in plan.steps[later].reads):
                yield from _pin(plan, made, maker, at, later, after)
        if any(planned.measurable(plan.original[v]) for v in step.makes):
            seen.append((i, place))


def _pin(
    plan: Timetable, made: Written, maker: Mapping[int, int], at: Mapping[str, int], step: int, after: int
) -> Iterator[Pin]:
    """A guard before a kernel, of which this is the last step: on the latest value that it reads which is one of the
    runtime's, too."""
    within, stack, read = {step}, [step], dict[int, None]()
    while stack:
        for value in plan.steps[stack.pop()].reads:
            inside = maker.get(value, -1)
            if inside < 0 or made.names[value] in at:
                read[value] = None
            elif inside not in within:
                within.add(inside)
                stack.append(inside)
    if not read:
        return
    chosen = max(read, key=lambda v: maker.get(v, -1))
    steps = tuple(sorted(i for i in within if chosen in plan.steps[i].reads))
    if steps[0] > after:
        yield Pin(steps, chosen, after)

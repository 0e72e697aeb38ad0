"""A plan that computes values again as a graph that ONNX Runtime runs as planned.

A plan's order is not the runtime's: that walks back from the results, and numbers what it fuses anew. So a plan is
written, the order that is run is read off, and what strays from the plan is *pinned*: it reads what it needs through a
guard (:mod:`superopt.memory.copies`) that opens after the step which the plan has before it. A few rounds suffice.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from superopt import formats
from superopt.cost.trial import with_values
from superopt.ir.graph import Graph, Node
from superopt.memory import Pin, Planned, Timetable, Written, written
from superopt.memory.order import as_executed
from superopt.runtime.onnx_runtime import ONNX_RUNTIME

__all__ = ["realised"]

_ROUNDS = 6  # of looking at the order that is run, and pinning what strays from the plan
_FAR = 8  # steps by which a kernel that strays from its place is no matter


def realised(planned: Planned, plan: Timetable, *, sizes_known: bool = False, deadline: float = float("inf")) -> Graph:
    """A plan as a graph that ONNX Runtime runs as planned, as far as pins can see to that.

    Args:
        planned: the graph.
        plan: of its task.
        sizes_known: see :func:`superopt.memory.written`.
        deadline: on the monotonic clock, after which what was found has to do.

    Raises:
        InvalidModel, Unsupported, ResourceLimit: ONNX Runtime cannot run it.
    """
    pins: dict[tuple[int, ...], Pin] = {}
    for _ in range(_ROUNDS):
        made = written(planned, plan, pins.values(), sizes_known=sizes_known)
        graph = replace(made.graph, nodes=_backwards(made.graph))
        lowered = formats.from_bytes(ONNX_RUNTIME.lowered(formats.to_onnx_bytes(with_values(graph))))
        fresh = {p.steps: p for p in _strays(plan, made, as_executed(lowered, graph)) if p.steps not in pins}
        if not fresh or time.monotonic() > deadline:
            break
        pins |= fresh
    return graph


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


def _strays(plan: Timetable, made: Written, ran: Sequence[Node]) -> Iterator[Pin]:
    """Pins for steps that are run well before the one that the plan has before them."""
    at = {o: i for i, n in enumerate(ran) for o in n.outputs if o}
    maker = {v: i for i, step in enumerate(plan.steps) for v in step.makes}
    before = last = -1
    for i, step in enumerate(plan.steps):
        place = max((at[made.names[v]] for v in step.makes if made.names[v] in at), default=-1)
        if place < 0:
            continue  # within another kernel
        if last - place > _FAR and (pin := _pin(plan, made, maker, at, i, before)) is not None:
            yield pin
        before, last = i, place


def _pin(
    plan: Timetable, made: Written, maker: Mapping[int, int], at: Mapping[str, int], step: int, after: int
) -> Pin | None:
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
        return None
    chosen = max(read, key=lambda v: maker.get(v, -1))
    steps = tuple(sorted(i for i in within if chosen in plan.steps[i].reads))
    return Pin(steps, chosen, after) if steps[0] > after else None

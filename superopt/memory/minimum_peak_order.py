"""The order of a graph's nodes for the least memory alive at once.

What is alive after some nodes have run depends on which they are, not on their order, so the least peak is a shortest
path over such sets (dynamic programming over the ideals of the partial order; Liberis and Lane, arXiv 1910.05110),
found as Dijkstra finds one. A node that frees what it makes, and needs no more than the peak so far,
runs at once: it only makes room for whatever comes later. Where there are too many sets,
a beam goes on: its result is an order, but not known to be the best one. In large graphs the order given is kept but
for nodes that only make room.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from superopt.ir.graph import Node
from superopt.memory.liveness import Lifetime, alive, lifetimes

__all__ = ["WORK", "MinimumPeakOrder", "least_peak"]

WORK = 300_000  # nodes that are tried as the next, over all sets that are looked at
_LARGE = 1000  # nodes beyond which sets are not looked at: there are too many, and each takes longer
_HUGE = 5000  # nodes beyond which the order given stands
_BEAM = 8  # sets that are kept at a time beyond that
_BEAM_WORK = 3 * WORK  # nodes that a beam tries: many that could all be next (a split's parts) take the square of them


@dataclass(frozen=True)
class MinimumPeakOrder:
    """An order of nodes.

    Attributes:
        order: positions of the nodes in what was given.
        peak: bytes alive at once.
        exact: no order has a lower peak.
    """

    order: tuple[int, ...]
    peak: int
    exact: bool


def least_peak(
    nodes: Sequence[Node],
    size: Callable[[str], int],
    inputs: Iterable[str],
    outputs: Iterable[str],
    renames: Callable[[Node], bool],
    *,
    work: int = WORK,
) -> MinimumPeakOrder:
    """An order of the nodes with the least peak that is found, never one above that of the order given.

    Args:
        nodes: in a valid order.
        size: bytes of a value by name.
        inputs: values that are there before.
        outputs: values that are needed after the last node.
        renames: whether a node's first output is its first operand's memory.
        work: how often a node may be tried as the next; beyond that a beam finds an order.
    """
    inputs, outputs = list(inputs), list(outputs)

    def spans(order: Iterable[int]) -> list[Lifetime]:
        return lifetimes([nodes[i] for i in order], size, inputs, outputs, renames)

    given = max(alive(spans(range(len(nodes))), len(nodes)))
    if not nodes or len(nodes) > _HUGE:
        return MinimumPeakOrder(tuple(range(len(nodes))), given, not nodes)
    found, exact = _Walk(nodes, spans(range(len(nodes))), outputs).best(work)
    peak = max(alive(spans(found), len(nodes)))
    if peak >= given:
        return MinimumPeakOrder(tuple(range(len(nodes))), given, exact)
    return MinimumPeakOrder(tuple(found), peak, exact)


@dataclass(frozen=True)
class _State:
    """A set of nodes that have run, as bits; the next that may; bytes alive, and the most there were."""

    done: int
    ready: int
    alive: int
    peak: int
    last: tuple[int, ...]
    before: _State | None

    def order(self) -> list[int]:
        parts: list[tuple[int, ...]] = []
        state: _State | None = self
        while state is not None:
            parts.append(state.last)
            state = state.before
        return [i for part in reversed(parts) for i in part]


class _Walk:
    """Sets of nodes, from none to all."""

    def __init__(self, nodes: Sequence[Node], values: Sequence[Lifetime], outputs: Iterable[str]) -> None:
        makers = {o: i for i, n in enumerate(nodes) for o in n.outputs if o}
        self.tried = 0
        self.full = (1 << len(nodes)) - 1
        self.needs = [0] * len(nodes)
        self.next = [0] * len(nodes)
        for i, node in enumerate(nodes):
            for name in node.reads:
                if name in makers:
                    self.needs[i] |= 1 << makers[name]
                    self.next[makers[name]] |= 1 << i
        self.ready = sum(1 << i for i, needs in enumerate(self.needs) if not needs)
        spans = {v.name: v for v in values}
        of = {n: n for n in spans}
        for node in nodes:
            for name in node.outputs:
                if name and name not in of and node.inputs and node.inputs[0] in of:
                    of[name] = of[node.inputs[0]]
        kept = {of[n] for n in outputs if n in of}
        self.readers: dict[str, int] = dict.fromkeys(spans, 0)
        self.reads: list[list[tuple[str, int]]] = []
        for i, node in enumerate(nodes):
            roots = dict.fromkeys(of[n] for n in node.reads if n in of)
            for name in roots:
                self.readers[name] |= 1 << i
            self.reads.append([(n, spans[n].size) for n in roots if n not in kept])
        self.made = [sum(spans[o].size for o in n.outputs if o in spans) for n in nodes]
        unread = {n for n, by in self.readers.items() if not by} - kept
        self.wasted = [sum(spans[o].size for o in n.outputs if o in unread) for n in nodes]
        self.start = sum(v.size for v in values if v.start < 0)

    def best(self, work: int) -> tuple[list[int], bool]:
        """An order, and whether it has the least peak: sets of nodes by their peak, the fullest first; a beam where
        there are too many."""
        first = self._after_free_nodes(_State(0, self.ready, self.start, self.start, (), None))
        if len(self.needs) > _LARGE:
            return self._eager(first).order(), False
        queue = [(first.peak, 0, 0, first)]
        known = {first.done: first.peak}
        ticket = count(1)
        while queue and self.tried < work:
            state = heapq.heappop(queue)[3]
            if state.done == self.full:
                return state.order(), True
            if known[state.done] < state.peak:
                continue
            for node in _bits(state.ready):
                other = self._after_free_nodes(self._after(state, node))
                if other.peak < known.get(other.done, other.peak + 1):
                    known[other.done] = other.peak
                    heapq.heappush(queue, (other.peak, -other.done.bit_count(), next(ticket), other))
        return self._beam(first).order(), False

    def _eager(self, state: _State) -> _State:
        """The order given, but for nodes that only make room: those run at once."""
        while state.done != self.full:
            low = state.ready & -state.ready
            state = self._after_free_nodes(self._after(state, low.bit_length() - 1))
        return state

    def _deep(self, state: _State) -> _State:
        """What the last node made ready first, else the order given: one part after another."""
        fresh = 0
        while state.done != self.full:
            choice = state.ready & fresh or state.ready
            before = state.ready
            state = self._after_free_nodes(self._after(state, (choice & -choice).bit_length() - 1))
            fresh = state.ready & ~before
        return state

    def _beam(self, first: _State) -> _State:
        level, whole, most = {first.done: first}, None, self.tried + _BEAM_WORK
        while level:
            if self.tried > most:
                best = min(level.values(), key=lambda s: (s.peak, s.alive, s.done))
                ways = [self._eager(best), self._deep(best), *([] if whole is None else [whole])]
                return min(ways, key=lambda s: s.peak)
            found: dict[int, _State] = {}
            for state in level.values():
                for node in _bits(state.ready):
                    other = self._after_free_nodes(self._after(state, node))
                    if other.done == self.full:
                        whole = other if whole is None or other.peak < whole.peak else whole
                    elif other.done not in found or other.peak < found[other.done].peak:
                        found[other.done] = other
            few = sorted(found.values(), key=lambda s: (s.peak, s.alive, s.done))[:_BEAM]
            level = {s.done: s for s in few if whole is None or s.peak < whole.peak}
        assert whole is not None  # the nodes are in a valid order, so that every state leads to all of them
        return whole

    def _after(self, state: _State, node: int) -> _State:
        self.tried += 1
        done = state.done | 1 << node
        gone = sum(size for name, size in self.reads[node] if not self.readers[name] & ~done)
        during = state.alive + self.made[node]
        ready = state.ready & ~(1 << node)
        for after in _bits(self.next[node]):
            if not self.needs[after] & ~done:
                ready |= 1 << after
        left = during - gone - self.wasted[node]
        return _State(done, ready, left, max(state.peak, during), (node,), state)

    def _after_free_nodes(self, state: _State) -> _State:
        """The state after all nodes have run that only make room."""
        moved = True
        while moved:
            moved = False
            for node in _bits(state.ready):
                other = self._after(state, node)
                if other.alive <= state.alive and other.peak <= state.peak:
                    state, moved = other, True
                    break
        return state


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low

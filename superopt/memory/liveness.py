"""The ideal memory of a graph: what is alive at each step, wherever it lies, and what no order goes below."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from superopt.ir.graph import Node

__all__ = ["Lifetime", "alive", "lifetimes", "unavoidable"]


@dataclass(frozen=True)
class Lifetime:
    """A value with memory of its own, needed from step ``start`` to step ``end``, both included.

    What is there before the first step starts at -1; what is needed after the last ends at the number of steps.
    """

    name: str
    size: int
    start: int
    end: int


def lifetimes(
    nodes: Sequence[Node],
    size: Callable[[str], int],
    inputs: Iterable[str],
    outputs: Iterable[str],
    renames: Callable[[Node], bool],
) -> list[Lifetime]:
    """When which value is needed, in this order of the nodes.

    Args:
        nodes: in order of execution.
        size: bytes of a value by name.
        inputs: values that are there before; those that nothing reads are left out. Values that are neither these nor
            made by a node (weights) are left out, too.
        outputs: values that are needed after the last node.
        renames: whether a node's first output is its first operand's memory.
    """
    root: dict[str, str] = {}
    start: dict[str, int] = dict.fromkeys(inputs, -1)
    for step, node in enumerate(nodes):
        for slot, name in enumerate(node.outputs):
            if slot == 0 and renames(node):
                root[name] = root.get(node.inputs[0], node.inputs[0])
            elif name:
                start[name] = step
    end: dict[str, int] = {n: at for n, at in start.items() if at >= 0}
    for step, node in enumerate(nodes):
        end.update((root.get(n, n), step) for n in node.reads if root.get(n, n) in start)
    end.update((root.get(n, n), len(nodes)) for n in outputs if root.get(n, n) in start)
    return [Lifetime(n, size(n), at, end[n]) for n, at in start.items() if n in end]


def alive(values: Iterable[Lifetime], steps: int) -> list[int]:
    """Bytes that are alive at each step."""
    change = [0] * (steps + 2)
    for value in values:
        change[max(value.start, 0)] += value.size
        change[min(value.end, steps) + 1] -= value.size
    return list(accumulate(change))[: max(steps, 1)]


def unavoidable(nodes: Sequence[Node], values: Collection[Lifetime], shared: Callable[[Node], int]) -> int:
    """Bytes that are alive at some node in every order of the nodes.

    While a node runs, a value is alive that the node reads or makes, and one that is made before it and read after it
    in every order: made by what it depends on, read by what depends on it.

    Args:
        nodes: in a valid order.
        values: :func:`lifetimes` in that order.
        shared: bytes of a node's results that may be kept in memory of its operands.
    """
    makers = {o: i for i, n in enumerate(nodes) for o in n.outputs if o}
    root = {v.name: v for v in values}
    before = [0] * len(nodes)  # sets of nodes as bits: what a node depends on, and itself
    for step, node in enumerate(nodes):
        before[step] = 1 << step
        for name in node.reads:
            if name in makers:
                before[step] |= before[makers[name]]
    del makers
    after = [1 << i for i in range(len(nodes))]
    for step in range(len(nodes) - 1, -1, -1):
        rest = before[step] & ~(1 << step)
        while rest:
            low = rest & -rest
            after[low.bit_length() - 1] |= 1 << step
            rest ^= low
    readers = _readers(nodes, root)
    most = 0
    for step, node in enumerate(nodes):
        needed = 0
        for value in root.values():
            made = value.start < 0 or before[step] >> value.start & 1
            read = value.end >= len(nodes) or readers[value.name] & after[step]
            if made and (read or value.start == step):
                needed += value.size
        most = max(most, needed - shared(node))
    return most


def _readers(nodes: Sequence[Node], root: Collection[str]) -> dict[str, int]:
    """For each value with memory of its own the nodes that read it or what is kept in it, as bits."""
    of: dict[str, str] = {n: n for n in root}
    found: dict[str, int] = dict.fromkeys(root, 0)
    for step, node in enumerate(nodes):
        for name in node.reads:
            if name in of:
                found[of[name]] |= 1 << step
        for name in node.outputs:
            if name and name not in of and node.inputs and node.inputs[0] in of:
                of[name] = of[node.inputs[0]]
    return found

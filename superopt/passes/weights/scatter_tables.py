"""Writes to positions that are known, as tables of which element of which tensor stands where afterwards.

``ScatterND`` and ``ScatterElements`` without a reduction have no record: which of two writes to one place is the last
is for the runtime to say. Where all positions are known and no two are equal, it has nothing to say, and the result is
made of what is written and of what is left of what it is written into.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

import numpy as np

from superopt.ir.graph import Node
from superopt.passes.weights.slice_analysis import Values

__all__ = ["Made", "Writes"]

_LARGEST = 1 << 22  # elements of a table; 32 MiB of it. A relative position bias is added to a million at once (MViTv2)
_LONGEST = 64  # writes one into the other; each has a table, and more parts than are joined are not to be had of more


@dataclass(frozen=True)
class Made:
    """Which element stands where.

    Attributes:
        at: their numbers by position; 1 long on the last ``free`` axes, which all tensors have whole.
        sources: tensors, the sizes by which their elements are numbered, and the number of the first.
        free: how many axes no position is about.
        behind: positions of the steps whose writes are in it, but for the last.
    """

    at: np.ndarray
    sources: tuple[tuple[str, tuple[int, ...], int], ...]
    free: int
    behind: frozenset[int] = frozenset()

    @property
    def count(self) -> int:
        """How many elements have numbers."""
        return sum(prod(sizes) for _, sizes, _ in self.sources)


@dataclass
class Writes:
    """The steps of a program that write to known positions."""

    values: Values
    found: dict[int, Made | None] = field(default_factory=dict)

    def made(self, position: int) -> Made | None:
        """What a step makes; ``None`` where it does not write, or not to positions that are known and different."""
        for at in reversed([position, *self._into(position)]):
            if at not in self.found:
                self.found[at] = self._made(at)
        return self.found[position]

    def behind(self, position: int) -> frozenset[int]:
        """The steps that are not needed where a step is written as what it makes."""
        made = self.found.get(position)
        return frozenset() if made is None else made.behind

    def _into(self, position: int) -> Iterator[int]:
        """The writes that a write is made into, the latest first, each read by the next one alone."""
        program = self.values.program
        for _ in range(_LONGEST):
            node = _node(program.steps[position].node)
            maker = None if node is None else program.maker.get(node.inputs[0])
            if node is None or maker is None or _node(program.steps[maker].node) is None:
                return
            if program.readers.get(node.inputs[0]) != (position,) or node.inputs[0] in program.outputs:
                return
            yield maker
            position = maker

    def _made(self, position: int) -> Made | None:
        program = self.values.program
        node = _node(program.steps[position].node) if program.steps[position].op == "" else None
        kinds = [program.types.get(n) for n in node.inputs] if node is not None else []
        if node is None or len(kinds) != 3 or any(k is None or k.shape is None for k in kinds):
            return None
        data, updates = program.types[node.inputs[0]], program.types[node.inputs[2]]
        if not data.dtype.is_float or updates.dtype != data.dtype or program.types.get(node.outputs[0]) != data:
            return None
        indices = self.values.array(node.inputs[1]) if node.inputs[1] in program.constant else None
        if indices is None or not indices.size or indices.dtype.kind != "i" or not indices.ndim:
            return None
        places = _of_scatter_nd(indices) if node.op == "ScatterND" else _of_scatter_elements(indices, node)
        shape = data.shape or ()
        if places is None or len(places) > len(shape):
            return None
        free = len(shape) - len(places)
        if (updates.shape or ()) != (*places[0].shape, *shape[len(places) :]):
            return None
        known = tuple(d for d in shape[: len(places)] if isinstance(d, int))
        if len(known) < len(places) or not 0 < prod(known) <= _LARGEST:
            return None
        return self._over(position, node, places, known, free)

    def _over(
        self, position: int, node: Node, places: tuple[np.ndarray, ...], known: tuple[int, ...], free: int
    ) -> Made | None:
        """The table of what is written into, with the numbers of what is written put into it."""
        within = all(bool(((p >= -n) & (p < n)).all()) for p, n in zip(places, known, strict=True))
        if not within:
            return None
        wrapped = tuple(p + n * (p < 0) for p, n in zip(places, known, strict=True))
        flat = np.ravel_multi_index(wrapped, known)
        hit = np.zeros(prod(known), dtype=bool)
        hit[flat] = True
        if int(hit.sum()) < flat.size:
            return None
        ones = (1,) * free
        into = self.found.get(self.values.program.maker.get(node.inputs[0], -1))
        inner = next(iter(self._into(position)), None)
        if into is None or inner is None or into.free != free:
            into = Made(np.arange(prod(known)).reshape(*known, *ones), ((node.inputs[0], (*known, *ones), 0),), free)
            behind = frozenset[int]()
        else:
            behind = into.behind | {inner}
        sizes = (*places[0].shape, *ones)
        if into.count + prod(sizes) > 2 * _LARGEST:
            return None
        at = into.at.reshape(-1).copy()
        at[flat.reshape(-1)] = into.count + np.arange(prod(sizes))
        sources = (*into.sources, (node.inputs[2], sizes, into.count))
        return Made(at.reshape(into.at.shape), sources, free, behind)


def _node(node: Node | None) -> Node | None:
    """A node that writes, the last write to a place being what stands there."""
    if node is None or node.op not in ("ScatterND", "ScatterElements") or node.domain not in ("", "ai.onnx"):
        return None
    return node if node.attributes.get("reduction", b"none") in (b"none", "none") else None


def _of_scatter_nd(indices: np.ndarray) -> tuple[np.ndarray, ...] | None:
    """Of every write, the positions on the first axes."""
    return tuple(np.moveaxis(indices, -1, 0)) if indices.shape[-1] else None


def _of_scatter_elements(indices: np.ndarray, node: Node) -> tuple[np.ndarray, ...] | None:
    """Of every write, the positions on all axes: its own, but for one."""
    axis = node.attributes.get("axis", 0)
    if not isinstance(axis, int) or not -indices.ndim <= axis < indices.ndim:
        return None
    grids: list[np.ndarray] = list(np.indices(indices.shape))
    grids[axis] = indices
    return tuple(grids)

"""How a tensor lies on devices: on each axis of a mesh it is replicated, split along an axis, or a partial sum.

A tensor on ``d`` devices is a tensor with a leading device axis: the pieces, one a device. Replicated: each piece is
the tensor. Split along ``k``: the pieces, one after the other along ``k``, are the tensor. Partial: their sum is. On a
mesh of several axes a tensor has a placement for each: it is placed by the first, each piece by the next. (GSPMD, Xu et
al., 2021; the placements of PyTorch's DTensor.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from superopt.ir.types import TensorType

__all__ = [
    "DOMAIN",
    "PARTIAL",
    "REPLICATED",
    "Placement",
    "Spec",
    "coordinates",
    "group_of",
    "groups_of",
    "local_type",
    "parse_placement",
    "split",
]


DOMAIN = "superopt.devices"  # of the nodes in rank files by which devices exchange pieces


@dataclass(frozen=True, order=True)
class Placement:
    """Of a tensor along one axis of a mesh: "replicated", "partial", or "split" along ``axis``."""

    kind: str
    axis: int = -1

    def __str__(self) -> str:
        return f"split {self.axis}" if self.kind == "split" else self.kind


Spec = tuple[Placement, ...]  # one for each axis of a mesh
REPLICATED, PARTIAL = Placement("replicated"), Placement("partial")


def split(axis: int) -> Placement:
    """Split along an axis of the tensor."""
    return Placement("split", axis)


def parse_placement(text: str) -> Placement:
    """The placement that ``str`` wrote.

    Raises:
        ValueError: the text is none.
    """
    kind, _, axis = text.partition(" ")
    if kind == "split":
        return split(int(axis))
    if text not in (REPLICATED.kind, PARTIAL.kind):
        raise ValueError(f"{text!r} is no placement")
    return Placement(text)


@lru_cache(maxsize=1 << 16)
def local_type(kind: TensorType, spec: Spec, mesh: tuple[int, ...]) -> TensorType | None:
    """The type of a device's piece; ``None`` where an axis does not divide.

    Args:
        kind: of the tensor, of known sizes.
        spec: its placements.
        mesh: devices along each axis of the mesh.
    """
    shape = [s for s in kind.shape or () if isinstance(s, int)]
    for placement, count in zip(spec, mesh, strict=True):
        if placement.kind == "split":
            axis = placement.axis
            if axis >= len(shape) or not shape[axis] or shape[axis] % count:
                return None
            shape[axis] //= count
    return replace(kind, shape=tuple(shape))


def coordinates(rank: int, mesh: Sequence[int]) -> tuple[int, ...]:
    """The place of a rank in the mesh; the last axis is the fastest."""
    found = []
    for count in reversed(mesh):
        rank, place = divmod(rank, count)
        found.append(place)
    return tuple(reversed(found))


def group_of(rank: int, mesh: Sequence[int], axis: int) -> tuple[int, ...]:
    """The ranks that differ from one along an axis of the mesh alone, in order."""
    stride = prod(mesh[axis + 1 :])
    first = rank - coordinates(rank, mesh)[axis] * stride
    return tuple(first + k * stride for k in range(mesh[axis]))


def groups_of(mesh: Sequence[int], axis: int) -> list[tuple[int, ...]]:
    """All groups of ranks along an axis of the mesh, each once."""
    return list(dict.fromkeys(group_of(rank, mesh, axis) for rank in range(prod(mesh))))

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

from superopt.ir.types import TensorType

__all__ = [
    "DOMAIN",
    "PARTIAL",
    "REPLICATED",
    "Placement",
    "Spec",
    "local_type",
    "parse_placement",
    "piece_shape",
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


def piece_shape(shape: Sequence[int], placement: Placement, count: int) -> tuple[int, ...] | None:
    """The shape of one of ``count`` pieces; ``None`` where the axis does not divide into so many."""
    if placement.kind != "split":
        return tuple(shape)
    if placement.axis >= len(shape) or shape[placement.axis] % count or not shape[placement.axis]:
        return None
    return tuple(s // count if k == placement.axis else s for k, s in enumerate(shape))


@lru_cache(maxsize=1 << 16)
def local_type(kind: TensorType, spec: Spec, mesh: tuple[int, ...]) -> TensorType | None:
    """The type of a device's piece; ``None`` where an axis does not divide.

    Args:
        kind: of the tensor, of known sizes.
        spec: its placements.
        mesh: devices along each axis of the mesh.
    """
    shape: tuple[int, ...] | None = tuple(s for s in kind.shape or () if isinstance(s, int))
    for placement, count in zip(spec, mesh, strict=True):
        shape = None if shape is None else piece_shape(shape, placement, count)
    return None if shape is None else replace(kind, shape=shape)

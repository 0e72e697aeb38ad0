"""What a graph, or a part of one, asks of a machine: facts that no clock enters."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Demand"]


@dataclass(frozen=True)
class Demand:
    """Floating-point operations, bytes moved, and kernels that the runtime starts, in one inference."""

    flops: int = 0
    bytes: int = 0
    kernels: int = 0

    def __add__(self, other: Demand) -> Demand:
        return Demand(self.flops + other.flops, self.bytes + other.bytes, self.kernels + other.kernels)

    def no_more_than(self, other: Demand) -> bool:
        """Whether nothing of it is more, and something less."""
        mine, theirs = self._all, other._all
        return all(m <= t for m, t in zip(mine, theirs, strict=True)) and mine != theirs

    @property
    def _all(self) -> tuple[int, int, int]:
        return self.flops, self.bytes, self.kernels

"""Disjoint sets: things are joined, and asked who they are with.

Union by size with path halving (Tarjan and van Leeuwen, J. ACM 31(2), 1984): near constant time per call, no recursion.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["DisjointSets"]

T = TypeVar("T", bound=Hashable)


class DisjointSets(Generic[T]):
    """A partition of whatever was named so far; a thing that was never joined is a set of its own."""

    def __init__(self) -> None:
        self._parent: dict[T, T] = {}
        self._size: dict[T, int] = {}

    def find(self, thing: T) -> T:
        """The representative of the set that a thing is in: the same for all of them, until sets are joined."""
        parent = self._parent
        if thing not in parent:
            parent[thing], self._size[thing] = thing, 1
        while parent[thing] != thing:
            parent[thing] = parent[parent[thing]]
            thing = parent[thing]
        return thing

    def join(self, a: T, b: T) -> None:
        """Make one set of the sets of two things."""
        large, small = self.find(a), self.find(b)
        if large == small:
            return
        if self._size[large] < self._size[small]:
            large, small = small, large
        self._parent[small] = large
        self._size[large] += self._size.pop(small)

"""Work that is mostly done outside the interpreter, on two cores."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["side_by_side"]

_AT_ONCE = 2  # one a core of the smallest machine that is supported; what two hold in memory, not what all do
T = TypeVar("T")
R = TypeVar("R")


def side_by_side(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """``[work(i) for i in items]``, two at a time, for work that lets go of the interpreter's lock.

    Raises:
        What the first item that failed raised; those that have begun are waited for.
    """
    found = list(items)
    if len(found) < _AT_ONCE:
        return [work(item) for item in found]
    with ThreadPoolExecutor(_AT_ONCE, "beside") as pool:
        return list(pool.map(work, found))

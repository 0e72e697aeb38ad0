"""Settings of the Python interpreter: its garbage collector, and work outside of its lock."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from typing import TypeVar

__all__ = ["rarely_collected", "side_by_side"]


# -- Garbage collection --------------------------------------------------------------------------------------------
#
# The cyclic collector is delayed where very many long-lived values without cycles are created.


_RARELY = 1_000_000  # new containers before the collector looks at the youngest
_lock = Lock()
_held: list[tuple[int, int, int]] = []  # the thresholds to come back to, once for each that holds it back


@contextmanager
def rarely_collected() -> Iterator[None]:
    """Collect rarely in the body; nested and in several threads alike. (It took a fifth of a search's time.)

    What was made in the body counts as old afterwards: it is looked at in the next full collection, not at once.
    """
    with _lock:
        usual = gc.get_threshold()
        _held.append(_held[0] if _held else usual)
        gc.set_threshold(max(_RARELY, usual[0]) if usual[0] else 0, 20, 50)
    try:
        yield
    finally:
        with _lock:
            usual = _held.pop()
            if not _held:
                if not gc.get_freeze_count():  # otherwise what somebody else froze would be thawed
                    gc.freeze()
                    gc.unfreeze()
                gc.set_threshold(*usual)


# -- Parallel map --------------------------------------------------------------------------------------------------
#
# For work that releases the interpreter's lock, on two cores.


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

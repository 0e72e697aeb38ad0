"""Python's cyclic garbage collector, held back where very many values are made that live long and form no cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

__all__ = ["rarely_collected"]

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

"""Runs that take too long are ended, by ONNX Runtime's own switch.

Apart from what a model's types say of it, which takes longer to import than a process takes that only runs one.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from superopt.ir.errors import ResourceLimit

__all__ = ["stopped_after", "watching"]


@contextlib.contextmanager
def stopped_after(options: Any, seconds: float | None) -> Iterator[None]:
    """Let ONNX Runtime's run options end the run when the time is over (it looks between two nodes).

    Raises:
        ResourceLimit: the run was ended.
    """
    if seconds is None:
        yield
        return
    over = threading.Event()

    def stop() -> None:
        over.set()
        options.terminate = True

    with _WATCH.over(seconds, stop):
        try:
            yield
        except Exception as error:
            if over.is_set():
                raise ResourceLimit(f"running it takes more than {seconds:.0f} s") from error
            raise


class _Watch:
    """One thread that calls what is overdue: to start a thread for each run would take longer than many runs do."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[int, tuple[float, Callable[[], None]]] = {}
        self._number = 0
        self._wakes = float("inf")
        self.thread: threading.Thread | None = None

    @contextlib.contextmanager
    def over(self, seconds: float, call: Callable[[], None]) -> Iterator[None]:
        """Call this when the body has taken longer than that."""
        until = time.monotonic() + seconds
        with self._changed:
            self._number += 1
            number = self._number
            self._due[number] = until, call
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="superopt-watch", daemon=True)
                self.thread.start()
            elif until < self._wakes:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                del self._due[number]

    def _run(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for until, call in self._due.values():
                    if until <= now:
                        call()
                self._wakes = min((until for until, _ in self._due.values() if until > now), default=float("inf"))
                self._changed.wait(None if self._wakes == float("inf") else self._wakes - now)


_WATCH = _Watch()


def watching() -> threading.Thread | None:
    """The thread that ends runs, if there is one: a process that is forked starts another."""
    return _WATCH.thread


def _watch_anew() -> None:
    """In a process that was forked, the thread is gone, and may have held what it waits with."""
    global _WATCH
    _WATCH = _Watch()


os.register_at_fork(after_in_child=_watch_anew)

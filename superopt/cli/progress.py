"""What a long command is at: a bar on a terminal, elsewhere a plain line on standard error now and then."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from rich.console import Console

from superopt.ir.errors import printable

__all__ = ["LINES_EVERY", "Lines", "Progress"]

_TO_STANDARD_ERROR = partial(os.write, 2)
LINES_EVERY = 30.0  # seconds between plain lines: a log of a two-minute run has four


class Progress:
    """A callback ``(done, total, what)`` for as long as the command runs.

    Args:
        what: what it begins with.
    """

    def __init__(self, what: str = "starting") -> None:
        self.what = what

    def __enter__(self) -> Callable[[int, int | None, str], None]:
        self.lines: Lines | None = None
        if not sys.stderr.isatty():
            self.lines = Lines(self.what)
            self.lines.start()
            return self.lines.update
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.bar = Bar(*columns, console=Console(file=sys.stderr, highlight=False), transient=True)
        self.task = self.bar.add_task(self.what, total=None)
        self.bar.start()
        return self._update

    def _update(self, done: int, total: int | None, what: str) -> None:
        self.bar.update(self.task, completed=done, total=total, description=printable(what, 60))

    def __exit__(self, *_: Any) -> None:
        if self.lines is not None:
            self.lines.end()
        else:
            self.bar.stop()


class Lines(threading.Thread):
    """Writes a line every so many seconds until it is ended; it holds nothing that a copy of the process waits for.

    Args:
        what: what the command begins with.
        every: seconds.
        write: takes a line.
    """

    def __init__(
        self, what: str, *, every: float = LINES_EVERY, write: Callable[[bytes], object] = _TO_STANDARD_ERROR
    ) -> None:  # fmt: skip
        super().__init__(name="superopt-progress", daemon=True)
        self._state: tuple[int, int | None, str] = (0, None, what)
        self._every, self._write, self._over = every, write, threading.Event()

    def update(self, done: int, total: int | None, what: str) -> None:
        """What the command is at."""
        self._state = done, total, what

    def line(self, seconds: float) -> str:
        """``superopt: checking (60 s so far)``."""
        done, total, what = self._state
        of = f"{done} of {total}, " if total else ""
        return f"superopt: {printable(what, 100)} ({of}{seconds:.0f} s so far)\n"

    def run(self) -> None:
        """Until :meth:`end`."""
        began = time.monotonic()
        while not self._over.wait(self._every):
            try:
                self._write(self.line(time.monotonic() - began).encode("utf-8", "backslashreplace"))
            except OSError:  # nobody reads standard error: the result matters, not this
                return

    def end(self) -> None:
        """No further line is written."""
        self._over.set()
        self.join()

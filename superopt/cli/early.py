"""Ctrl-C while the command's imports still run: one line and exit code 130, not a traceback out of some module.

Importing this module takes the signal over where Python's own handler stands; :func:`done` gives it back. What comes
before the first import of superopt is Python's own start, which cannot be helped.
"""

from __future__ import annotations

import os
import signal

__all__ = ["done"]


def _quit(*_: object) -> None:
    os.write(2, b"superopt: interrupted; nothing was written\n")
    os._exit(130)


def _take_over() -> bool:
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    try:
        signal.signal(signal.SIGINT, _quit)
    except ValueError:  # not the main thread: no signal arrives here
        return False
    return True


_taken = _take_over()


def done() -> None:
    """Give the signal back to Python's own handler."""
    if _taken and signal.getsignal(signal.SIGINT) is _quit:
        signal.signal(signal.SIGINT, signal.default_int_handler)

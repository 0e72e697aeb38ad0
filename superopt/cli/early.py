"""Ctrl-C before a command is at work: one line and exit code 130, not a traceback out of some module.

Importing this module takes the signal over where Python's own handler stands; :func:`done` gives it back. So does
:func:`begin` once more, while the arguments are read. What comes before the first import of superopt is Python's own
start, which cannot be helped.
"""

from __future__ import annotations

import os
import signal

__all__ = ["begin", "done"]


def _quit(*_: object) -> None:
    os.write(2, b"superopt: interrupted; nothing was written\n")
    os._exit(130)


def begin() -> None:
    """Take the signal over, if nobody else has."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        try:
            signal.signal(signal.SIGINT, _quit)
        except ValueError:
            return  # not the main thread: no signal arrives here


def done() -> None:
    """Give the signal back to Python's own handler."""
    if signal.getsignal(signal.SIGINT) is _quit:
        signal.signal(signal.SIGINT, signal.default_int_handler)


begin()

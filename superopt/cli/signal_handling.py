"""What must stand before anything is imported: open standard streams, and an end by Ctrl-C that is one line.

Importing this module opens ``/dev/null`` where a standard descriptor is closed (else the next file that is opened, a
model for example, would get its number, and what libraries print would go into it), and takes the signals that end
a command over where nobody else has; from :func:`done` on they raise. So does :func:`begin` once more, while the
arguments are read.
What comes before the first import of superopt is Python's own start, which cannot be helped.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # of signal, without its enum: a Ctrl-C may fall in that
import os
import sys
from _collections_abc import Callable  # which os has loaded

TYPE_CHECKING = False  # typing's, which is not loaded yet
if TYPE_CHECKING:
    from types import FrameType

__all__ = ["CLOSED", "begin", "done", "interrupted", "quit_at_once"]


def _closed() -> frozenset[int]:
    """The standard descriptors that were closed, now open on /dev/null."""
    found = set()
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            found.add(number)
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
    return frozenset(found)


def _quit(*_: object) -> None:
    os.write(2, b"superopt: interrupted; nothing was written\n")
    os._exit(130)


_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SOON = 0.02  # seconds until an interrupt that fell into an import or a finalizer is looked at again
_PATIENCE = 250  # looks: five seconds, longer than any import takes
_tries: list[int] = []
_seen: list[int] = []
_ending: list[object] = []
_main = os.getpid()
_hook = sys.excepthook
_unraisable_hook = sys.unraisablehook


def _imports_or_finalizes(frame: FrameType | None) -> bool:
    """Whether a module is being imported or an object finalized.

    A compiled module that is interrupted may take the process with it. What a finalizer raises is printed and lost,
    and what it was to remove stays.
    """
    while frame is not None:
        code = frame.f_code
        if code.co_filename == "<frozen importlib._bootstrap>" or code.co_name == "__del__":
            return True
        if code.co_name == "__call__" and code.co_filename.endswith("weakref.py"):
            return True
        frame = frame.f_back
    return False


def _again(number: int) -> None:
    """Deliver this interrupt once more, soon."""
    signal.signal(signal.SIGALRM, lambda _, at: _interrupt(number, at))
    signal.setitimer(signal.ITIMER_REAL, _SOON)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """What Python's own handler does, remembered, and as soon as nothing is being imported or finalized.

    A process that was forked from a command inherits this; what its parent sends it ends it as if it had not.
    """
    if os.getpid() != _main and number != signal.SIGINT:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    _tries.append(number)
    if len(_tries) < _PATIENCE and _imports_or_finalizes(frame):
        _again(number)
        return
    _seen.append(number)
    raise KeyboardInterrupt


def interrupted() -> bool:
    """Whether Ctrl-C was pressed since the command is at work."""
    return bool(_seen)


def _exchange(old: tuple[object, ...], new: Callable[[int, FrameType | None], None]) -> None:
    """Put a handler in the place of these; in another thread than the main one no signal arrives."""
    try:
        for number in _ENDS:
            if signal.getsignal(number) in old:
                signal.signal(number, new)
    except ValueError:
        return


def begin() -> None:
    """Take Ctrl-C, SIGTERM and SIGHUP over, where nobody else has."""
    _exchange((signal.default_int_handler, signal.SIG_DFL, _interrupt), _quit)


def done() -> None:
    """From here on they raise KeyboardInterrupt, so that temporary files go and the best so far is kept.

    Where it is raised before the command has begun, or as it returns, nobody catches it: that is one line, too.
    """
    _exchange((_quit,), _interrupt)
    sys.excepthook = _uncaught
    sys.unraisablehook = _unraisable


def _unraisable(lost: sys.UnraisableHookArgs) -> None:
    """An interrupt that fell into a callback of the interpreter is lost there: deliver it again."""
    if lost.exc_type is KeyboardInterrupt and _seen:
        _again(_seen[-1])
        return
    _unraisable_hook(lost)


def _uncaught(kind: type[BaseException], error: BaseException, trace: object) -> None:
    if kind is KeyboardInterrupt and _seen:
        _quit()
    _hook(kind, error, trace)  # type: ignore[arg-type]


def quit_at_once(last: bytes, code: int) -> None:
    """From here on a further signal ends the process with this line, if it is not empty, and this code."""

    def end(*_: object) -> None:
        os.write(2, last)
        os._exit(code)

    _ending.append(end)
    _exchange((_quit, _interrupt, *_ending), end)


CLOSED = _closed()
begin()

"""What the system refuses for want of something, as errors that blame the machine and name the remedy."""

from __future__ import annotations

import errno
import os
import re
import resource
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from superopt.ir.errors import InvalidModel, MachineLimit, ResourceLimit, SuperoptError, UsageError, printable

__all__ = ["quoted_error", "resource_limit", "superopt_error", "system_limits"]

_MORE_MEMORY = "try --memory-limit, or a machine with more"
_MORE_DISK = "free disk space, or name another folder for temporary files with TMPDIR"


def _open_files() -> str:
    return f"too many open files: this process may have {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}"


# By the system's number: the error, what it says, and the remedy.
_LIMITS: Mapping[int, tuple[type[SuperoptError], Callable[[], str], str]] = {
    errno.EMFILE: (MachineLimit, _open_files, "raise the limit, for example with ulimit -n 1024"),
    errno.ENFILE: (MachineLimit, lambda: "too many open files on this machine", "end other programs"),
    errno.ENOSPC: (MachineLimit, lambda: "no space left on the disk", _MORE_DISK),
    errno.EDQUOT: (MachineLimit, lambda: "the disk quota is used up", _MORE_DISK),
    errno.ENOMEM: (ResourceLimit, lambda: "out of memory", _MORE_MEMORY),
    errno.EFBIG: (ResourceLimit, lambda: "a file is larger than files may be here", "raise the limit: ulimit -f"),
}
_BAD_ALLOC = "std::bad_alloc"  # C++ libraries' word for it, in exceptions of any type
_NO_THREAD = "can't start new thread"  # Python's words, whatever the system lacks for it
_NUMBERS = {os.strerror(number): number for number in _LIMITS}
_QUOTED = re.compile("|".join(map(re.escape, _NUMBERS)))


def resource_limit(error: BaseException, where: str = "") -> SuperoptError | None:
    """The error for a limit of the system; ``None`` where the exception is about something else.

    Args:
        error: what was raised.
        where: what the system was asked for; the file that the exception names, by default.
    """
    number = error.errno if isinstance(error, OSError) else None
    if number is None or number not in _LIMITS:
        return None
    kind, what, hint = _LIMITS[number]
    return kind(what(), where=where or printable(str(getattr(error, "filename", None) or "")), hint=hint)


def quoted_error(error: Exception) -> OSError | None:
    """The system's error that a library quotes in the message of its own, if it is one of these limits."""
    found = _QUOTED.search(str(error))
    if found is None:
        return None
    return OSError(_NUMBERS[found[0]], found[0])


def superopt_error(error: Exception) -> SuperoptError:
    """Any exception as an error of the hierarchy: a bug is an internal error."""
    if isinstance(error, SuperoptError):
        return error
    if isinstance(error, MemoryError) or _BAD_ALLOC in str(error):
        return ResourceLimit("out of memory", hint=_MORE_MEMORY)
    if isinstance(error, RecursionError):
        return InvalidModel("nested too deeply")
    if isinstance(error, OSError):
        where = printable(str(error.filename or ""))
        return resource_limit(error) or UsageError(error.strerror or str(error), where=where)
    if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        return MachineLimit("no further thread can be started", hint="free memory, or raise the limits: ulimit -u, -v")
    text = f"internal error: {type(error).__name__}: {error}"
    return SuperoptError(text, hint="please report it (SUPEROPT_DEBUG=1 shows where)")


@contextmanager
def system_limits(where: str = "") -> Iterator[None]:
    """Raises :class:`MachineLimit` or :class:`ResourceLimit` where the system refuses the body something for want of
    it."""
    try:
        yield
    except OSError as error:
        limit = resource_limit(error, where)
        if limit is None:
            raise
        raise limit from error

"""Everything superopt raises on purpose, as one hierarchy.

    SuperoptError                 exit 1   internal: a bug in superopt
    ├── UsageError                exit 2   the command line or an argument is wrong
    │   └── InvalidOption         exit 2   an option that does not exist, or a value that it does not take
    ├── InvalidModel              exit 3   the file is not a valid (or is a hostile) model
    ├── Unsupported               exit 4   valid, but --strict asked for what we cannot do
    ├── NotEquivalent             exit 5   two models differ, or a rewrite failed its check
    ├── Regression                exit 6   a cost went over its threshold
    ├── ResourceLimit             exit 7   a limit was reached before there was a result
    │   ├── BackendUnavailable    exit 7   the device or library that was asked for is not here
    │   └── OutOfTime             exit 7   the time limit came before the end of a part that must be whole
    ├── MachineLimit              exit 7   this machine has too few open files, too little disk, no temporary folder
    └── Interrupted               exit 130 Ctrl-C before there was a result

An error says where, what, and what next. ``str(error)`` is the whole message.
"""

from __future__ import annotations

import errno
import os
import re
import resource
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

__all__ = [
    "BackendUnavailable",
    "Interrupted",
    "InvalidModel",
    "InvalidOption",
    "MachineLimit",
    "NotEquivalent",
    "OutOfTime",
    "Regression",
    "ResourceLimit",
    "SuperoptError",
    "Unsupported",
    "UsageError",
    "internal_error",
    "out_of_memory",
    "printable",
    "quoted_error",
    "resource_limit",
    "superopt_error",
    "system_limits",
]


def printable(text: str, limit: int = 120) -> str:
    """A hostile name made safe to print: control characters escaped, length bounded."""
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: limit + 1])
    return safe if len(text) <= limit else f"{safe[:limit]}… ({len(text)} characters)"


class SuperoptError(Exception):
    """Base of all errors raised on purpose.

    Args:
        what: what is wrong, in the user's terms.
        where: file, node, JSON pointer or column at which it is wrong.
        hint: what to do next.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        self.what = what
        self.where = where
        self.hint = hint
        super().__init__(what)

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        return f"{head}; {self.hint}" if self.hint else head

    def within(self, where: str) -> SuperoptError:
        """The same error, with an outer location put in front of its own."""
        return type(self)(self.what, where=f"{where}, {self.where}" if self.where else where, hint=self.hint)


class UsageError(SuperoptError):
    exit_code = 2


class InvalidOption(UsageError):
    """An option that does not exist, or a value that it does not take.

    Args:
        what: as of every error.
        option: the option's name, as the caller wrote it.
        suggestion: the name or the value that was probably meant, if there is one.
        where, hint: as of every error; the hint names the suggestion by default.
    """

    def __init__(
        self, what: str, *, option: str = "", suggestion: str = "", where: str = "", hint: str = ""
    ) -> None:  # fmt: skip
        super().__init__(what, where=where, hint=hint or (f"did you mean {suggestion}?" if suggestion else ""))
        self.option = option
        self.suggestion = suggestion

    def within(self, where: str) -> InvalidOption:
        outer = super().within(where)
        return InvalidOption(
            self.what, option=self.option, suggestion=self.suggestion, where=outer.where, hint=self.hint
        )


class InvalidModel(SuperoptError):
    exit_code = 3


class Unsupported(SuperoptError):
    exit_code = 4


class NotEquivalent(SuperoptError):
    exit_code = 5


class Regression(SuperoptError):
    exit_code = 6


class ResourceLimit(SuperoptError):
    exit_code = 7


class BackendUnavailable(ResourceLimit):
    pass


class MachineLimit(SuperoptError):
    """The model is not to blame: elsewhere, or once this machine has what it lacks, the same call succeeds. So this is
    no :class:`ResourceLimit`, by which a runtime may refuse a model."""

    exit_code = 7


class OutOfTime(ResourceLimit):
    pass


class Interrupted(SuperoptError):
    exit_code = 130


# -- Errors of the system ------------------------------------------------------------------------------------------
#
# Refusals of the operating system as errors that name the machine as the cause, and a remedy.


_MEMORY_LIMITS = {resource.RLIMIT_DATA: "-d", resource.RLIMIT_AS: "-v"}  # by the option of ulimit


def _memory_limit() -> str:
    """The least limit of this process's memory, and how it is raised; empty where there is none."""
    limits = {resource.getrlimit(kind)[0]: option for kind, option in _MEMORY_LIMITS.items()}
    limits.pop(resource.RLIM_INFINITY, None)
    if not limits:
        return ""
    least = min(limits)
    return f"this process may take {least >> 20} MiB: raise the limit (ulimit {limits[least]})"


def _more_memory() -> str:
    return (
        f"{limit}, or try --memory-limit"
        if (limit := _memory_limit())
        else "try --memory-limit, or a machine with more"
    )


_MORE_DISK = "free disk space, or name another folder for temporary files with TMPDIR"


def _open_files() -> str:
    return f"too many open files: this process may have {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}"


# By the system's number: the error, what it says, and the remedy.
_LIMITS: Mapping[int, tuple[type[SuperoptError], Callable[[], tuple[str, str]]]] = {
    errno.EMFILE: (MachineLimit, lambda: (_open_files(), "raise the limit, for example with ulimit -n 1024")),
    errno.ENFILE: (MachineLimit, lambda: ("too many open files on this machine", "end other programs")),
    errno.ENOSPC: (MachineLimit, lambda: ("no space left on the disk", _MORE_DISK)),
    errno.EDQUOT: (MachineLimit, lambda: ("the disk quota is used up", _MORE_DISK)),
    errno.ENOMEM: (ResourceLimit, lambda: ("out of memory", _more_memory())),
    errno.EFBIG: (ResourceLimit, lambda: ("a file is larger than files may be here", "raise the limit: ulimit -f")),
}
_BAD_ALLOC = "std::bad_alloc"  # the text of C++ libraries, in exceptions of any type
_NO_THREAD = "can't start new thread"  # Python's text, whatever the system lacks for it
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
    kind, text = _LIMITS[number]
    what, hint = text()
    return kind(what, where=where or printable(str(getattr(error, "filename", None) or "")), hint=hint)


def quoted_error(error: Exception) -> OSError | None:
    """The system's error that a library quotes in the message of its own, if it is one of these limits."""
    found = _QUOTED.search(str(error))
    if found is None:
        return None
    return OSError(_NUMBERS[found[0]], found[0])


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out.

    Python and C extensions raise SystemError where an allocation fails at a place that has no exception for it; so it
    says that only in a process whose memory is limited.
    """
    if isinstance(error, SystemError):
        return bool(_memory_limit())
    return isinstance(error, MemoryError) or _BAD_ALLOC in str(error)


def superopt_error(error: Exception) -> SuperoptError:
    """Any exception as an error of the hierarchy: a bug is an internal error."""
    if isinstance(error, SuperoptError):
        return error
    if out_of_memory(error):
        kind = MachineLimit if isinstance(error, SystemError) else ResourceLimit
        return kind("out of memory", hint=_more_memory())
    if isinstance(error, RecursionError):
        return InvalidModel("nested too deeply")
    if isinstance(error, OSError):
        where = printable(str(error.filename or ""))
        return resource_limit(error) or UsageError(error.strerror or str(error), where=where)
    if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        return MachineLimit("no further thread can be started", hint="free memory, or raise the limits: ulimit -u, -v")
    return internal_error(f"{type(error).__name__}: {error}")


def internal_error(what: str) -> SuperoptError:
    """A fault of superopt's own."""
    return SuperoptError(f"internal error: {what}", hint="please report it (SUPEROPT_DEBUG=1 shows where)")


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

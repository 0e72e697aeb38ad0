"""Errors of the operating system and of SQLite, told apart: what happened, in words, and what the operator can do.

Without imports of the service, so that the child that does a job can use it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

__all__ = ["DISK_FULL", "OUT_OF_MEMORY", "SystemErrorMeaning", "meaning"]

DISK_FULL = "disk-full"
OUT_OF_MEMORY = "out-of-memory"


@dataclass(frozen=True)
class SystemErrorMeaning:
    """What an error means.

    Attributes:
        kind: of the problem that a client is told.
        text: for the client: no path, nothing of the machine.
        remedy: for the operator.
        retry_after: seconds after which it may be over.
    """

    kind: str
    text: str
    remedy: str
    retry_after: int


_FULL = SystemErrorMeaning(
    DISK_FULL, "the disk of the service is full", "free some of it, or move --data to a larger one", 60
)
_FILES = SystemErrorMeaning(
    "too-many-files",
    "the service has too many files open",
    "raise the limit (ulimit -n), or allow fewer connections",
    5,
)
_NOT_WRITABLE = SystemErrorMeaning(
    "not-writable", "the service may not write in its own folder; its operator has to look at it",
    "give the user of the service the folder of --data, on a disk that is mounted for writing", 300,
)  # fmt: skip
_MEMORY = SystemErrorMeaning(
    OUT_OF_MEMORY, "the machine of the service has no memory left", "run fewer workers on it", 30
)
_BROKEN = SystemErrorMeaning(
    "disk-error", "the disk of the service reports errors; its operator has to look at it", "see the system's log", 300
)
_MEANINGS: Mapping[int | str, SystemErrorMeaning] = {
    errno.ENOSPC: _FULL, errno.EDQUOT: _FULL, "SQLITE_FULL": _FULL,
    errno.EMFILE: _FILES, errno.ENFILE: _FILES,
    errno.EACCES: _NOT_WRITABLE, errno.EPERM: _NOT_WRITABLE, errno.EROFS: _NOT_WRITABLE,
    "SQLITE_READONLY": _NOT_WRITABLE, "SQLITE_PERM": _NOT_WRITABLE,
    errno.ENOMEM: _MEMORY, "SQLITE_NOMEM": _MEMORY,
    errno.EIO: _BROKEN, "SQLITE_IOERR": _BROKEN, "SQLITE_CORRUPT": _BROKEN,
}  # fmt: skip


def meaning(error: BaseException | None) -> SystemErrorMeaning | None:
    """What an error means, or the one that it was raised from; ``None`` where it says nothing of the machine."""
    return next((_MEANINGS[code] for code in _codes(error) if code in _MEANINGS), None)


def _codes(error: BaseException | None) -> Iterator[int | str]:
    while error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            yield error.errno
        if name := getattr(error, "sqlite_errorname", ""):
            yield "_".join(str(name).split("_")[:2])
        error = error.__cause__

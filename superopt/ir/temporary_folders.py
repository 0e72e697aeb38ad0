"""Temporary folders that do not outlive their process.

Each process has one folder of its own in the folder of temporary files, and its temporary folders lie there. It is
removed when the process ends. What a process leaves that is killed is removed by the next one: a process holds a lock
(``flock``) on its folder, and the system gives that up when the process and its forks are gone, however they end.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from superopt.ir.errors import MachineLimit, printable, resource_limit

__all__ = ["TemporaryFolder", "own_folder", "remove_abandoned"]

_PREFIX = "superopt-run-"  # of a process's folder: whatever begins so, is the user's and is not locked, is removed
_ANOTHER = "name a folder that can be written, with room for the model's weights, with TMPDIR"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_own: dict[str, Path] = {}  # this process's folder, by the folder of temporary files
_cleared: set[str] = set()  # folders of temporary files
_lock = threading.Lock()


class TemporaryFolder:
    """A folder that is removed at the end of the body, or else with its process.

    Args:
        kind: what is in it: the beginning of its name.

    Raises:
        MachineLimit: there can be none.
    """

    def __init__(self, kind: str) -> None:
        own = own_folder()
        with _unusable(own):
            self.path = Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=own))

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove it; what cannot be removed now (no descriptor is free) goes with the process."""
        shutil.rmtree(self.path, ignore_errors=True)


def own_folder() -> Path:
    """The folder of this process in the folder of temporary files, locked. A fork shares its parent's.

    Raises:
        MachineLimit: there can be none.
    """
    with _lock, _unusable(None):
        base = tempfile.gettempdir()
        if base not in _own or not _own[base].is_dir():
            remove_abandoned()
            _own[base] = _locked(base)
        return _own[base]


def _locked(base: str) -> Path:
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        try:
            descriptor = os.open(path, _FOLDER)
        except FileNotFoundError:  # another process took it for abandoned before it was locked
            continue
        except OSError:
            path.rmdir()
            raise
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # so did this one, and removes it now
            os.close(descriptor)
            continue
        except OSError:  # this file system has no locks, so nobody takes it for abandoned
            pass
        if not path.is_dir():
            os.close(descriptor)
            continue
        atexit.register(_remove, path, os.getpid())
        return path


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)


def remove_abandoned() -> None:
    """Remove, once in this process, what processes of this user left that are gone."""
    with suppress(OSError):
        base = tempfile.gettempdir()
        if base in _cleared:
            return
        _cleared.add(base)
        for entry in list(os.scandir(base)):
            if entry.name.startswith(_PREFIX):
                with suppress(OSError):  # it is in use, or somebody else's
                    _remove_unlocked(entry.path)


def _remove_unlocked(path: str) -> None:
    descriptor = os.open(path, _FOLDER)
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(descriptor)


@contextmanager
def _unusable(folder: Path | None) -> Iterator[None]:
    """Raises :class:`MachineLimit` where the body cannot make a folder in the folder of temporary files."""
    try:
        yield
    except OSError as error:
        where = printable(str(folder or tempfile.tempdir or "the folder of temporary files"))
        found = resource_limit(error, where)
        if found is None:
            reason = error.strerror or str(error)
            found = MachineLimit(f"temporary files cannot be written: {reason}", where=where, hint=_ANOTHER)
        raise found from error

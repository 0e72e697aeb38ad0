"""Files that hold weights: opened without being fooled, read or mapped where they lie, few of them open at a time."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from superopt.formats.memory_map import MemoryMap
from superopt.ir.errors import InvalidModel, SuperoptError, printable
from superopt.ir.system_errors import resource_limit

__all__ = ["CHUNK", "HOLE", "OPEN_FLAGS", "MappedFile", "kind_of", "only_regular", "open_plain", "reason", "unreadable"]

CHUNK = 4 << 20
HOLE = bytes(CHUNK)
_HELD = 16  # files that stay open: a model may have one for each weight
_SMALL = 1 << 20  # bytes that are read as fast as they are mapped, or faster
OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_KINDS = (
    (stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"), (stat.S_ISSOCK, "a socket"), (stat.S_ISLNK, "a symbolic link"),
)  # fmt: skip


_held: set[int] = set()  # which files stay open, by identity: a set, for a lock must not be taken in __del__


def open_plain(path: Path) -> int:
    """A read-only descriptor of a regular file; never blocks on a FIFO or a device.

    Raises:
        InvalidModel: it is missing, not readable, or not a regular file. MachineLimit: the system opens no more files.
    """
    try:
        if not stat.S_ISREG((found := os.stat(path)).st_mode):  # before open: opening a device may have effects
            raise InvalidModel(f"is {kind_of(found.st_mode)}, not a file")
        descriptor = os.open(path, OPEN_FLAGS)
    except (OSError, ValueError) as error:
        raise unreadable(error) from error
    return only_regular(descriptor)


def unreadable(error: OSError | ValueError, what: str = "cannot be read", where: str = "") -> SuperoptError:
    """The model is to blame, unless the system has not enough of something."""
    return resource_limit(error, where) or InvalidModel(f"{what}: {reason(error)}", where=where)


def only_regular(descriptor: int) -> int:
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise InvalidModel(f"is {kind_of(mode)}, not a file")
    return descriptor


def kind_of(mode: int) -> str:
    return next((name for test, name in _KINDS if test(mode)), "not a regular file")


def reason(error: OSError | ValueError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


class MappedFile:
    """A file whose bytes are read or mapped when first needed.

    The first files of a process stay open, and survive renaming or removal of their names. Further ones are opened each
    time they are read, as is one that was pickled into a worker process: it must still be the same file.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._take(path, descriptor)

    def _take(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._absolute = path.absolute()
        self.size = os.fstat(descriptor).st_size
        self._identity = _identity(descriptor)
        self._descriptor = descriptor if len(_held) < _HELD else None
        if self._descriptor is None:
            os.close(descriptor)
        else:
            _held.add(id(self))

    @contextlib.contextmanager
    def _open(self) -> Iterator[int]:
        """A descriptor for as long as the body takes.

        Raises:
            InvalidModel: the file is gone, or another one has its name. MachineLimit: the system opens no more files.
        """
        if self._descriptor is not None:
            yield self._descriptor
            return
        try:
            descriptor = open_plain(self._absolute)
        except SuperoptError as error:
            raise error.within(printable(str(self.path))) from error
        try:
            self._refuse_another(descriptor)
            yield descriptor
        finally:
            os.close(descriptor)

    def window(self, offset: int, length: int) -> memoryview:
        """A part of the file: a small one is read, a large one has its own mapping, which goes with its last array.

        The mapping of the whole file would keep every page it was ever read from in the process's memory. Who makes the
        file shorter *while* a large part is mapped ends the process (SIGBUS): reading it takes five times as long.

        Raises:
            InvalidModel: the file became shorter since it was opened.
        """
        if length <= _SMALL:
            return memoryview(b"".join(self.chunks(offset, length)))
        start = offset - offset % mmap.ALLOCATIONGRANULARITY
        with self._open() as descriptor:
            if os.fstat(descriptor).st_size < offset + length:
                raise self._shorter()
            mapped = MemoryMap(descriptor, offset + length - start, offset=start)
        return mapped.array()[offset - start :].data

    def chunks(self, offset: int, length: int) -> Iterator[bytes | memoryview]:
        """The bytes from ``offset``, a few MiB at a time, without keeping them mapped; holes are not read.

        Raises:
            InvalidModel: the file became shorter since it was opened.
        """
        end = offset + length
        with self._open() as descriptor:
            while offset < end:
                piece: bytes | memoryview
                if hole := min(self._hole(descriptor, offset), end) - offset:
                    piece = memoryview(HOLE)[:hole]
                else:
                    piece = os.pread(descriptor, min(CHUNK, end - offset), offset)
                if not piece:
                    raise self._shorter()
                yield piece
                offset += len(piece)

    def _shorter(self) -> InvalidModel:
        return InvalidModel("the file was truncated while it was being read", where=printable(str(self.path)))

    def _hole(self, descriptor: int, offset: int) -> int:
        """Where the hole at ``offset`` ends, ``offset`` itself where there is none."""
        try:
            return os.lseek(descriptor, offset, os.SEEK_DATA)
        except (OSError, AttributeError) as error:  # ENXIO: nothing but a hole up to the end
            whole = os.fstat(descriptor).st_size == self.size
            return self.size if whole and getattr(error, "errno", 0) == errno.ENXIO else offset

    def __getstate__(self) -> dict[str, object]:
        return {"path": self._absolute, "identity": self._identity}

    def __setstate__(self, state: dict[str, object]) -> None:
        path = state["path"]
        assert isinstance(path, Path)
        self._take(path, open_plain(path))
        self._identity = state["identity"]  # type: ignore[assignment]
        self.refuse_changed()

    def refuse_changed(self) -> None:
        """Pass a file that is as it was when it was opened.

        Raises:
            InvalidModel: somebody wrote into it, or it was opened again and is another.
        """
        with self._open() as descriptor:
            self._refuse_another(descriptor)

    def _refuse_another(self, descriptor: int) -> None:
        if _identity(descriptor) != self._identity:
            hint = "run it again when nobody writes there"
            raise InvalidModel(
                "the file changed since the model was loaded", where=printable(str(self.path)), hint=hint
            )

    def __del__(self) -> None:
        descriptor = self.__dict__.get("_descriptor")
        if descriptor is not None:
            _held.discard(id(self))
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _identity(descriptor: int) -> tuple[int, int, int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

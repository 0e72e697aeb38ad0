"""Files that hold weights: opened without being fooled, read or mapped where they lie, few of them open at a time."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import stat
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from functools import cache
from math import prod
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from superopt.ir.errors import InvalidModel, SuperoptError, printable, resource_limit

__all__ = [
    "CHUNK",
    "HOLE",
    "SharedScratchFile",
    "MappedFile",
    "MemoryMap",
    "OPEN_FLAGS",
    "ScratchArray",
    "kind_of",
    "located",
    "only_regular",
    "open_plain",
    "reason",
    "scratch",
    "unreadable",
]


# -- Memory maps ---------------------------------------------------------------------------------------------------
#
# Maps parts of files without keeping a file descriptor. Python's ``mmap`` duplicates the descriptor, so a process that
# maps each weight needs as many descriptors as weights (1,319 for ResNet-152; systems allow 256 or 1,024). The system
# needs a descriptor only while it creates a map.


_FAILED = ctypes.c_void_p(-1).value


@cache
def _libc() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_longlong,
    )  # fmt: skip
    library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    library.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return library


class MemoryMap:
    """Bytes of a file, mapped until the last array of them is gone.

    Args:
        descriptor: of the file; it may be closed afterwards.
        length: bytes, at least one.
        offset: of the first byte, a multiple of ``mmap.ALLOCATIONGRANULARITY``.
        private: the bytes may be written, which changes neither the file nor other maps.

    Raises:
        OSError: the system refuses it.
    """

    def __init__(self, descriptor: int, length: int, *, offset: int = 0, private: bool = False) -> None:
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if private else 0)
        kind = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
        address = _libc().mmap(None, length, protection, kind, descriptor, offset)
        if address == _FAILED:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        unmap = weakref.finalize(self, _libc().munmap, address, length)
        unmap.atexit = False  # at the end of the process, threads of a runtime may still read it
        self._address, self._length = address, length
        self.__array_interface__ = {"version": 3, "shape": (length,), "typestr": "|u1", "data": (address, not private)}

    def array(self) -> np.ndarray:
        """The bytes. What is made of this array keeps the map."""
        return np.asarray(self)

    def drop_pages(self) -> None:
        """Give the memory back; all bytes are the file's again, those of a private map that were written, too."""
        _libc().madvise(self._address, self._length, mmap.MADV_DONTNEED)


# -- Files of weights ----------------------------------------------------------------------------------------------


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


# -- The scratch file ----------------------------------------------------------------------------------------------
#
# Arrays in an unlinked file, whose pages the system keeps in memory while there is room. The search, the cost model,
# the check and the writer read seeded weights one after the other. As arrays they would occupy the model's size all the
# time; as maps of a file they occupy pages only while they are read.


_FREE = 4  # times an array's size that must be free on the disk


def _nameless() -> int:
    """A file that nobody else can open, and whose bytes go with the process; one that can be given a name, if the
    system has such."""
    try:
        return os.open(tempfile.gettempdir(), os.O_TMPFILE | os.O_RDWR, 0o600)
    except (AttributeError, OSError):
        descriptor, name = tempfile.mkstemp(prefix="superopt-")
        os.unlink(name)
        return descriptor


class _Arena:
    """A file for the arrays of one process, emptied when the last of them is gone."""

    def __init__(self) -> None:
        self.descriptor = _nameless()
        self.owner = os.getpid()
        self._end = self._live = 0
        self._named = False
        self._lock = Lock()
        self.last = False  # nothing more is put there: the file goes with the last array

    def put(self, size: int, blocks: Iterable[memoryview]) -> int:
        """Where the bytes were written, so many.

        Raises:
            OSError: there is no room.
        """
        space = os.fstatvfs(self.descriptor)
        if space.f_bavail * space.f_frsize < _FREE * size:
            raise OSError("no room for a scratch file")
        with self._lock:
            start = at = self._end
            self._end += -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
            self._live += 1
        try:
            for block in blocks:
                while block:
                    done = os.pwrite(self.descriptor, block, at)
                    block, at = block[done:], at + done
        except OSError:
            self.release()
            raise
        return start

    def release(self) -> None:
        """One array is gone. A child of the process, which reads the same file, changes nothing in it."""
        if os.getpid() != self.owner:
            return
        with self._lock:
            self._live -= 1
            if not self._live:
                if self.last:
                    os.close(self.descriptor)
                    return
                if self._named:  # somebody else may still read what was in it
                    os.close(self.descriptor)
                    self.descriptor, self._named = _nameless(), False
                os.ftruncate(self.descriptor, 0)
                self._end = 0

    def name(self, path: Path) -> None:
        """Make the file appear under a name as well.

        Raises:
            OSError: the system cannot, or the name is on another disk.
        """
        held = Path(f"/proc/self/fd/{self.descriptor}")
        os.link(held, path, src_dir_fd=self.descriptor, follow_symlinks=True)  # whatever folder: the path is absolute
        self._named = True

    def found(self) -> None:
        """One more array is known to lie here."""
        with self._lock:
            self._live += 1


_arenas: list[_Arena] = []  # the process's own, and those of its ancestors, from which it reads


def _arena() -> _Arena:
    if not _arenas or _arenas[-1].owner != os.getpid():
        _arenas.append(_Arena())
    return _arenas[-1]


class ScratchArray:
    """An array in the process's scratch file.

    Args:
        shape, dtype: its.
        blocks: its elements, row-major; each is written before the next is asked for.

    Raises:
        OSError: it cannot be written there.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, blocks: Iterable[np.ndarray]) -> None:
        self._dtype, self._shape, self.size = dtype, shape, prod(shape) * dtype.itemsize
        arena = _arena()
        raw = (np.ascontiguousarray(block).reshape(-1).view(np.uint8).data for block in blocks)
        self.start = arena.put(self.size, raw)
        self._arena = arena

    def array(self) -> np.ndarray:
        """The elements, read-only; their memory goes with the array."""
        mapped = _Elements(self._arena.descriptor, self.size, offset=self.start)
        mapped.held = self
        return mapped.array().view(self._dtype).reshape(self._shape)

    @property
    def file(self) -> tuple[int, int]:
        """Which file the elements lie in: its device and number."""
        facts = os.fstat(self._arena.descriptor)
        return facts.st_dev, facts.st_ino

    def name(self, path: Path) -> bool:
        """Whether the file that the elements lie in, from ``start`` on, could be made to appear under a name."""
        try:
            self._arena.name(path)
        except OSError:
            return False
        return True

    def __del__(self) -> None:
        if "_arena" in self.__dict__:  # it was written
            self._arena.release()


_Place = tuple[int, int, tuple[int, ...], np.dtype]  # of an array: which file (none: handed), where, shape and type


class SharedScratchFile:
    """A file for the arrays that a copy of this process makes, which stay when the copy has ended.

    A context manager of the process that makes the copy; its end is that of what arrives.
    """

    def __init__(self) -> None:
        self._arena = _Arena()

    def __enter__(self) -> SharedScratchFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._arena.last = True
        self._arena.found()
        self._arena.release()

    def owned(self) -> None:
        """From here on this process, a copy, puts its arrays there."""
        self._arena.owner = os.getpid()
        self._arena.found()  # this process: it empties nothing that another may come to read
        _arenas.append(self._arena)

    def place(self, held: ScratchArray) -> _Place:
        """Where an array lies, as :meth:`at` of the other process understands it."""
        own = [-1 if a is self._arena else i for i, a in enumerate(_arenas) if a is held._arena]
        return own[0], held.start, held._shape, held._dtype

    def at(self, place: _Place) -> ScratchArray:
        """The array at a place."""
        number, start, shape, dtype = place
        made = ScratchArray.__new__(ScratchArray)
        made._dtype, made._shape, made.size, made.start = dtype, shape, prod(shape) * dtype.itemsize, start
        made._arena = self._arena if number < 0 else _arenas[number]
        made._arena.found()
        return made


class _Elements(MemoryMap):
    """Elements in memory; they are there as long as this is."""

    held: ScratchArray


def located(array: np.ndarray) -> ScratchArray | None:
    """Where the elements of an array lie, if that is the scratch file and they are all that lies there."""
    whole, base = array, array.base
    while isinstance(base, np.ndarray):
        whole, base = base, base.base
    if not isinstance(base, _Elements) or not array.flags.c_contiguous or array.nbytes != whole.nbytes:
        return None
    return base.held


def scratch(array: np.ndarray) -> ScratchArray | None:
    """A copy of the elements in the scratch file, or ``None`` where there is no room for one."""
    try:
        return ScratchArray(array.shape, array.dtype, (array,))
    except OSError:
        return None  # what is not kept is made again

"""Arrays in a file without a name, whose pages the system keeps in memory while there is room.

Elements that are expensive to make (seeded draws) are read by the search, the cost model, the check, the race and the
writer in turn. Held as arrays they would take the model's size all the while; mapped for each reader from a file, they
take pages that go with the reader.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable
from math import prod
from pathlib import Path
from threading import Lock

import numpy as np

from superopt.formats.memory_map import MemoryMap

__all__ = ["Handed", "Scratch", "located", "scratch"]

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


class Scratch:
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


class Handed:
    """A file for the arrays that a copy of this process makes, which stay when the copy has ended.

    A context manager of the process that makes the copy; its end is that of what arrives.
    """

    def __init__(self) -> None:
        self._arena = _Arena()

    def __enter__(self) -> Handed:
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

    def place(self, held: Scratch) -> _Place:
        """Where an array lies, as :meth:`at` of the other process understands it."""
        own = [-1 if a is self._arena else i for i, a in enumerate(_arenas) if a is held._arena]
        return own[0], held.start, held._shape, held._dtype

    def at(self, place: _Place) -> Scratch:
        """The array at a place."""
        number, start, shape, dtype = place
        made = Scratch.__new__(Scratch)
        made._dtype, made._shape, made.size, made.start = dtype, shape, prod(shape) * dtype.itemsize, start
        made._arena = self._arena if number < 0 else _arenas[number]
        made._arena.found()
        return made


class _Elements(MemoryMap):
    """Elements in memory; they are there as long as this is."""

    held: Scratch


def located(array: np.ndarray) -> Scratch | None:
    """Where the elements of an array lie, if that is the scratch file and they are all that lies there."""
    whole, base = array, array.base
    while isinstance(base, np.ndarray):
        whole, base = base, base.base
    if not isinstance(base, _Elements) or not array.flags.c_contiguous or array.nbytes != whole.nbytes:
        return None
    return base.held


def scratch(array: np.ndarray) -> Scratch | None:
    """A copy of the elements in the scratch file, or ``None`` where there is no room for one."""
    try:
        return Scratch(array.shape, array.dtype, (array,))
    except OSError:
        return None  # what is not kept is made again

"""Arrays in a file without a name, whose pages the system keeps in memory while there is room.

Elements that are expensive to make (seeded draws) are read by the search, the cost model, the check, the race and the
writer in turn. Held as arrays they would take the model's size all the while; mapped for each reader from a file, they
take pages that go with the reader.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from threading import Lock

import numpy as np

__all__ = ["Scratch", "scratch"]

_FREE = 4  # times an array's size that must be free on the disk


class _Arena:
    """A file for the arrays of one process, emptied when the last of them is gone."""

    def __init__(self) -> None:
        self.descriptor, name = tempfile.mkstemp(prefix="superopt-")
        os.unlink(name)
        self.owner = os.getpid()
        self._end = self._live = 0
        self._lock = Lock()

    def put(self, content: memoryview) -> int:
        """Where the bytes were written.

        Raises:
            OSError: there is no room.
        """
        space = os.fstatvfs(self.descriptor)
        if space.f_bavail * space.f_frsize < _FREE * content.nbytes:
            raise OSError("no room for a scratch file")
        with self._lock:
            start = self._end
            self._end += -(-content.nbytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
            self._live += 1
        try:
            done = 0
            while done < content.nbytes:
                done += os.pwrite(self.descriptor, content[done:], start + done)
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
                os.ftruncate(self.descriptor, 0)
                self._end = 0


_arenas: list[_Arena] = []  # the process's own, and those of its ancestors, from which it reads


def _arena() -> _Arena:
    if not _arenas or _arenas[-1].owner != os.getpid():
        _arenas.append(_Arena())
    return _arenas[-1]


class Scratch:
    """An array in the process's scratch file.

    Raises:
        OSError: it cannot be written there.
    """

    def __init__(self, array: np.ndarray) -> None:
        self._dtype, self._shape, self._size = array.dtype, array.shape, array.nbytes
        arena = _arena()
        self._start = arena.put(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        self._arena = arena

    def array(self) -> np.ndarray:
        """The elements, read-only; their memory goes with the array."""
        mapped = mmap.mmap(self._arena.descriptor, self._size, access=mmap.ACCESS_READ, offset=self._start)
        return np.frombuffer(mapped, self._dtype).reshape(self._shape)

    def __del__(self) -> None:
        if "_arena" in self.__dict__:  # it was written
            self._arena.release()


def scratch(array: np.ndarray) -> Scratch | None:
    """A copy of the elements in the scratch file, or ``None`` where there is no room for one."""
    try:
        return Scratch(array)
    except OSError:
        return None  # what is not kept is made again

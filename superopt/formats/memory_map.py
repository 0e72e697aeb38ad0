"""Parts of files in memory, without a file descriptor for as long as they are there.

Python's ``mmap`` duplicates the descriptor that it is given, so a process that maps each weight by itself needs as many
descriptors as it has weights (1,319 for ResNet-152; systems allow 256 or 1,024). The system needs a descriptor only
while it makes a map.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from functools import cache
from typing import Any

import numpy as np

__all__ = ["MemoryMap"]

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

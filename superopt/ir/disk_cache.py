"""The disk cache: values that take seconds to compute and depend on superopt's own files, kept between runs.

A file is named by a digest of everything its contents follow from, so that it is never out of date: when something
changes, the name does. It appears whole or not at all, and is read only if its checksum holds, if nobody but the user
could have written it, and if it consists of nothing but the classes that the caller names: reading runs no code. What
everybody would make in the first run ships with the wheel (:mod:`superopt.passes.precompile`): it is asked first.
"""

from __future__ import annotations

import errno
import hashlib
import io
import logging
import os
import pickle
import stat
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from threading import get_ident
from typing import Any

from superopt.ir.errors import MachineLimit, printable
from superopt.ir.interpreter_settings import rarely_collected
from superopt.ir.size_polynomial import SizePolynomial
from superopt.ir.temporary_folders import own_folder

__all__ = [
    "SHIPPED",
    "UNKEPT",
    "OPTIMIZER_PACKAGES",
    "SEARCH_PACKAGES",
    "cache_directory",
    "check_cache",
    "packed",
    "unpacked",
    "code_digest",
    "store_object",
    "load_object",
    "report_write_failure",
]

_FORMAT = b"superopt.kept/1 "
_LARGEST = 256 << 20  # bytes of a file that is read
_DAMAGED = (
    OSError, zlib.error, pickle.UnpicklingError, ValueError, TypeError, AttributeError, EOFError, IndexError,
    KeyError,
)  # fmt: skip
SEARCH_PACKAGES = ("program", "egraph", "extraction", "regions", "passes")  # whose code decides what a search finds
OPTIMIZER_PACKAGES = (  # whose code decides what an optimisation returns
    *SEARCH_PACKAGES, "assignment", "cost", "formats", "ir", "memory", "ops", "pipeline", "report", "rules", "runtime",
    "verifier",
)  # fmt: skip
UNKEPT: set[str] = set()  # folders that are reported
SHIPPED = Path(__file__).resolve().parents[1] / "compiled"  # what ships with the wheel; a checkout makes its own


def cache_directory() -> Path:
    """Where measurements are kept: ``$SUPEROPT_CACHE``, ``$XDG_CACHE_HOME/superopt`` or ``~/.cache/superopt``; for as
    long as this process lasts where there is no home directory, as for a container's user without a name."""
    own = os.environ.get("SUPEROPT_CACHE")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "superopt"
    except RuntimeError:
        return _homeless()


def _homeless() -> Path:
    try:
        folder = own_folder() / "cache"
    except MachineLimit as error:
        folder = Path(os.devnull) / "cache"  # where nothing can be kept
        report_write_failure(folder, str(error))
    else:
        report_write_failure(folder, "there is no home directory")
    return folder


def report_write_failure(folder: Path, reason: str) -> None:
    """Log, once for a folder, that what is found is not kept for the next run.

    Args:
        folder: of the cache, or in it.
        reason: why nothing can be written there that lasts.
    """
    if str(folder) in UNKEPT:
        return
    UNKEPT.add(str(folder))
    logging.getLogger("superopt").warning(
        "superopt keeps nothing for its next run in %s: %s; SUPEROPT_CACHE names another folder",
        printable(str(folder)), reason,
    )  # fmt: skip


def check_cache() -> None:
    """Report a cache folder that cannot be written, before forks of this process find it out one by one."""
    folder = cache_directory()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        report_write_failure(folder, error.strerror or str(error))


@lru_cache(maxsize=8)
def code_digest(*packages: str, data: tuple[str, ...] = ()) -> str:
    """SHA-256 of the sources of packages of superopt.

    Args:
        packages: names of folders of superopt.
        data: patterns of other files in them that decide what the code does: ``*.toml``.

    Raises:
        ValueError: superopt has no such folder, so the digest would not follow the code it is meant for.
    """
    root = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for package in packages:
        folder = root / package
        if not folder.is_dir():
            raise ValueError(f"superopt has no package {package!r}")
        for path in sorted({p for pattern in ("*.py", *data) for p in folder.rglob(pattern)}):
            digest.update(f"\n{package}/{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


@lru_cache(maxsize=64)
def _by_name(classes: tuple[type, ...]) -> dict[tuple[str, str], type]:
    return {(c.__module__, c.__qualname__): c for c in classes}


class _Reader(pickle.Unpickler):
    """Makes values of the named classes and of Python's own containers, and nothing else."""

    def __init__(self, payload: bytes, classes: Iterable[type]) -> None:
        super().__init__(io.BytesIO(payload))
        self._classes = _by_name(tuple(classes))

    def find_class(self, module: str, name: str) -> type:
        found = self._classes.get((module, name))
        if found is None:
            raise pickle.UnpicklingError(f"{module}.{name} does not belong here")
        return found


def load_object(folder: str, name: str, classes: Iterable[type]) -> object | None:
    """What was kept under a name, or ``None``: not there, damaged, or not only the user's to write.

    Args:
        folder: a folder of the cache.
        name: a digest of what the contents follow from.
        classes: of the values that may be in it.
    """
    shipped, path = SHIPPED / folder / f"{name}.zlib", cache_directory() / folder / name
    try:
        if shipped.is_file():
            return _read(zlib.decompress(shipped.read_bytes()), classes)
        for place in (path.parent, path):
            facts = place.stat()
            if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or (hasattr(os, "getuid") and facts.st_uid != os.getuid()):
                return None
        if path.stat().st_size > _LARGEST:
            return None
        value = _read(path.read_bytes(), classes)
        os.utime(path)  # used: not among the first to go
    except _DAMAGED:
        return None  # it is made again
    return value


def _read(content: bytes, classes: Iterable[type]) -> object:
    """What a file holds.

    Raises:
        ValueError: it is not what was written. Others of ``_DAMAGED``: it is not of these classes.
    """
    head, _, payload = content.partition(b"\n")
    if head != _FORMAT + hashlib.sha256(payload).hexdigest().encode():
        raise ValueError("the checksum does not hold")
    with rarely_collected():
        found: object = _Reader(payload, classes).load()
    return found


def packed(value: object) -> bytes:
    """A value as bytes, for a part of an object that is kept: it is read by :func:`unpacked` when it is wanted."""
    return zlib.compress(pickle.dumps(_Shared().of(value), protocol=5), 9)


def unpacked(content: bytes, classes: Iterable[type]) -> Any:
    """What :func:`packed` wrote.

    Args:
        content: a part of an object that :func:`load_object` has read, whose checksum holds.
        classes: of the values that may be in it.
    """
    return _Reader(zlib.decompress(content), classes).load()


def store_object(folder: str, name: str, value: object, most: int) -> bool:
    """Keep a value for the next run; whether that was possible: a full or read-only disk costs time then, nothing else.

    Args:
        folder: a folder of the cache.
        name: see :func:`load_object`.
        value: of classes that :func:`load_object` will be told.
        most: files that the folder holds at most; beyond, the quarter that was not used for longest goes.
    """
    payload = pickle.dumps(_Shared().of(value), protocol=5)
    root = cache_directory()
    place = root / folder
    partial = place / f".{name}.{os.getpid()}.{get_ident()}"
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        place.chmod(0o700)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(_FORMAT + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload)
        partial.replace(place / name)
        _tidy(place, most)
    except OSError as error:
        report_write_failure(root, error.strerror or str(error))
        return False
    finally:
        with suppress(OSError):
            partial.unlink()  # there only where it could not be written, or an interrupt came
    return True


class _Shared:
    """Makes what is equal in a value one object, so that it is written, read and held once. Of rules' moves, nine
    tuples in ten are such.

    What is compared by identity, or can change, stays apart, and its parts are replaced by equal ones in place. Frozen
    dataclasses count as equal where their fields are the same objects, or mappings of such.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], object] = {}
        self._done: dict[int, tuple[object, object]] = {}  # by identity: what it was, which stays alive, and is now

    def of(self, value: object) -> object:
        """The same value, its parts shared."""
        found = self._done.get(id(value))
        if found is None:
            found = self._done[id(value)] = value, self._with_shared_parts(value)
        return found[1]

    def _with_shared_parts(self, value: object) -> object:
        kind = type(value)
        if kind in (str, int, bytes, SizePolynomial):
            return self._known.setdefault((kind, value), value)
        if isinstance(value, tuple) and kind is tuple:
            parts = tuple(map(self.of, value))
            return self._known.setdefault((kind, *map(id, parts)), parts)
        if isinstance(value, dict) and kind is dict:
            value.update({key: self.of(part) for key, part in value.items()})
        elif is_dataclass(value):
            if hasattr(value, "__dict__"):
                vars(value).update({key: self.of(part) for key, part in vars(value).items()})
            if kind.__hash__ is not object.__hash__:
                parts = tuple(self._key(self.of(getattr(value, f.name))) for f in fields(value))
                return self._known.setdefault((kind, *parts), value)
        return value

    def _key(self, part: object) -> object:
        if isinstance(part, dict):
            return frozenset((self.of(key), id(held)) for key, held in part.items())
        return id(part)


def _tidy(place: Path, most: int) -> None:
    if len(os.listdir(place)) <= most:
        return
    used: dict[Path, int] = {}
    for path in place.iterdir():
        with suppress(FileNotFoundError):  # another process tidies, too
            used[path] = path.stat().st_mtime_ns
    for path in sorted(used, key=lambda p: used[p], reverse=True)[most - most // 4 :]:
        path.unlink(missing_ok=True)

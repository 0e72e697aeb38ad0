"""Files by the SHA-256 of their content. A blob appears complete or not at all, and equal content is kept once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Set
from pathlib import Path

from superopt.server.jobs.database_blobs import DatabaseBlobs

__all__ = ["SPARE", "Blobs", "IncomingBlob", "has_room"]

_DIGEST = re.compile(r"[0-9a-f]{64}")
_CHUNK = 1 << 20
SPARE = 256 << 20  # bytes of the disk that are left alone


def has_room(folder: Path, size: int) -> bool:
    """Whether so many bytes more leave the folder's disk some."""
    return shutil.disk_usage(folder).free >= size + SPARE


class IncomingBlob:
    """A file being received: hashed and counted as it is written, removed unless it is kept."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        descriptor, name = tempfile.mkstemp(dir=blobs.incoming, prefix="in-")
        self._file = os.fdopen(descriptor, "wb")
        self.path = Path(name)
        self._hash = hashlib.sha256()
        self.size = 0
        self.head = b""  # the first bytes, by which foreign files are recognised

    def write(self, chunk: bytes | memoryview) -> None:
        """Append.

        Raises:
            OSError: the disk is full.
        """
        if len(self.head) < 64:
            self.head = (self.head + bytes(chunk[:64]))[:64]
        self._file.write(chunk)
        self._hash.update(chunk)
        self.size += len(chunk)

    def keep(self) -> str:
        """Make it a blob; returns its digest."""
        self._file.close()
        digest = self._hash.hexdigest()
        self._blobs.place(self.path, digest)
        return digest

    def __enter__(self) -> IncomingBlob:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._file.close()  # writes what is left, which a full disk does not take
        finally:
            self.path.unlink(missing_ok=True)


class Blobs:
    """The store below one folder: ``blobs/ab/<digest>``, ``incoming/`` for what is arriving, ``work/`` for jobs.

    With ``copies`` each blob is in the database too, and one that another host made is fetched from there.
    """

    def __init__(self, data: Path, copies: DatabaseBlobs | None = None) -> None:
        self.copies = copies
        self.root, self.incoming, self.work = (data / name for name in ("blobs", "incoming", "work"))
        for folder in (self.root, self.incoming, self.work):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def path(self, digest: str) -> Path:
        """Where a blob lies.

        Raises:
            ValueError: this is no digest.
        """
        if not _DIGEST.fullmatch(digest):
            raise ValueError("not a SHA-256 digest")
        return self.root / digest[:2] / digest

    def place(self, source: Path, digest: str) -> None:
        """Move a complete file into the store."""
        target = self.path(digest)
        target.parent.mkdir(exist_ok=True, mode=0o700)
        if self.copies is not None:
            self.copies.put(source, digest)
        os.utime(source)  # its age starts now, and an equal one's again, so it is not swept before it is referred to
        os.replace(source, target)
        source.unlink(missing_ok=True)  # POSIX's rename does nothing where both are links to one file

    def adopt(self, source: Path) -> tuple[str, int]:
        """Move a file of a job's folder into the store; returns digest and size."""
        found = hashlib.sha256()
        with source.open("rb") as file:
            while chunk := file.read(_CHUNK):
                found.update(chunk)
            size = file.tell()
            os.fsync(file.fileno())
        self.place(source, found.hexdigest())
        return found.hexdigest(), size

    def copy(self, digest: str, target: Path) -> None:
        """Copy a blob out; a copy, because a job may do what it likes with its files."""
        shutil.copyfile(self.fetched(digest), target)

    def fetched(self, digest: str) -> Path:
        """Where a blob lies, once it is here; there is no file where it is not kept any more.

        Raises:
            ValueError: this is no digest.
        """
        path = self.path(digest)
        if self.copies is not None and not path.is_file():
            path.parent.mkdir(exist_ok=True, mode=0o700)
            self.copies.get(digest, path)
        return path

    def all(self) -> Iterator[tuple[str, os.stat_result]]:
        """Every blob with its facts."""
        for folder in self.root.iterdir():
            for entry in folder.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    yield entry.name, entry.stat()

    def sweep(self, wanted: Set[str], working: Set[str], age: float) -> int:
        """Remove blobs not ``wanted``, job folders not ``working`` and stale uploads, if older than ``age`` seconds.

        Returns:
            How many were removed.
        """
        limit = time.time() - age
        removed = 0 if self.copies is None else self.copies.sweep(wanted, age)
        for name, facts in list(self.all()):
            if name not in wanted and facts.st_mtime < limit:
                removed += self._remove(name, limit)
        for folder in self.work.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if folder.name not in working and folder.stat().st_mtime < limit:
                    shutil.rmtree(folder, ignore_errors=True)
                    removed += 1
        return removed

    def _remove(self, digest: str, limit: float) -> bool:
        """Remove a blob unless it was placed again meanwhile: its last look is where nobody else is."""
        path, aside = self.path(digest), self.incoming / f"old-{uuid.uuid4().hex}"
        try:
            os.rename(path, aside)
        except FileNotFoundError:
            return False
        young = aside.stat().st_mtime >= limit
        if young:
            with contextlib.suppress(FileExistsError):  # placed once more
                os.link(aside, path)
        aside.unlink()
        return not young

    def sweep_incoming(self, age: float) -> None:
        """Remove uploads that a dead process left behind."""
        for path in self.incoming.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < time.time() - age:
                    path.unlink()

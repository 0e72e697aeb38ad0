"""Opening files that a model names, and writing files so that nothing half-written is ever seen.

A model is input from strangers: the files it points to must be plain files inside its own directory. Everything is
decided on an open descriptor (``fstat``), so a file cannot be swapped between the check and the use.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from superopt.formats.mapped_file import (
    CHUNK,
    HOLE,
    OPEN_FLAGS,
    MappedFile,
    kind_of,
    only_regular,
    open_plain,
    reason,
    unreadable,
)
from superopt.ir.errors import InvalidModel, SuperoptError, UsageError, printable, resource_limit

__all__ = ["AtomicFileReplacement", "open_inside", "read_plain", "refuse_unwritable", "replace_file"]

_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_COPY = "copy the model and what it points to into a folder of their own (cp -rL follows links)"


def read_plain(path: Path, limit: int) -> bytes:
    """All bytes of a regular file.

    Raises:
        InvalidModel: it cannot be read, or is longer than ``limit`` bytes.
    """
    with os.fdopen(open_plain(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        try:
            content = b"" if size > limit else file.read(size + 1)  # room for what is asked for is taken at once
            while size < len(content) <= limit and (more := file.read(CHUNK)):  # it grows, or its length is not told
                content += more
        except OSError as error:
            raise unreadable(error) from error
        if max(size, len(content)) > limit:
            raise InvalidModel(
                f"is {max(size, len(content))} bytes long; the limit for this kind of file is {limit}",
                hint="keep the weights of a large model in a file beside it (ONNX external data, or safetensors)",
            )
        return content


def open_inside(directory: Path, location: str) -> MappedFile:
    """The file that a model in ``directory`` points to.

    Refused: absolute paths, ``..``, symbolic links anywhere below the directory, files with several hard links
    (one name of which may lie outside), and whatever is not a regular file.

    Raises:
        InvalidModel: the location is refused or cannot be opened.
    """
    where = f"external data {printable(location)!r}"
    parts = [p for p in location.replace("\\", "/").split("/") if p != "."] or [""]
    elsewhere = ":" in parts[0] if os.name == "nt" else parts[0].endswith(":") and len(parts) > 1  # C:\x, file:/x
    if not location or "\0" in location or location.startswith(("/", "\\")) or elsewhere:
        raise InvalidModel("only a relative path below the model's directory is accepted", where=where)
    if any(p in ("..", "") for p in parts):
        raise InvalidModel("the path leaves the model's directory or has empty parts", where=where)
    try:
        descriptor = _walk(directory, parts)
    except OSError as error:
        raise unreadable(error, "cannot be opened", where) from error
    except InvalidModel as error:
        raise error.within(where) from error
    if (links := os.fstat(descriptor).st_nlink) > 1:
        os.close(descriptor)
        raise InvalidModel(
            f"the file has {links} hard links, so it may belong to somebody else", where=where, hint=_COPY
        )
    return MappedFile(directory.joinpath(*parts), descriptor)


def _walk(directory: Path, parts: list[str]) -> int:
    """Open ``directory/parts`` one component at a time, following no link."""
    here = os.open(directory, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        for part in parts[:-1]:
            inner = os.open(part, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _NO_FOLLOW, dir_fd=here)
            os.close(here)
            here = inner
        mode = os.stat(parts[-1], dir_fd=here, follow_symlinks=False).st_mode
        if not stat.S_ISREG(mode):
            raise InvalidModel(f"is {kind_of(mode)}, not a file", hint=_COPY if stat.S_ISLNK(mode) else "")
        return only_regular(os.open(parts[-1], OPEN_FLAGS | _NO_FOLLOW, dir_fd=here))
    finally:
        os.close(here)


class AtomicFileReplacement:
    """Files written under temporary names and renamed together at the end; on an error nothing remains.

    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> with AtomicFileReplacement() as files:
    ...     files.add(folder / "a.txt", [b"one", b"two"], force=False)
    >>> (folder / "a.txt").read_bytes()
    b'onetwo'
    """

    def __init__(self) -> None:
        self._pending: list[tuple[str, Path]] = []

    def add(self, path: Path, chunks: Iterable[bytes | memoryview], *, force: bool) -> None:
        """Write one file under a temporary name beside ``path``. Chunks that are all zero become holes.

        Raises:
            UsageError: the file exists and ``force`` is false, or it cannot be written.
        """
        _refuse_existing(path, force)
        try:
            descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:80]}.", suffix=".tmp")
        except (OSError, ValueError) as error:
            raise _unwritable(error, printable(str(path))) from error
        self._pending.append((temporary, path))
        try:
            with os.fdopen(descriptor, "wb") as file:
                for chunk in chunks:
                    if len(chunk) >= 4096 and not any_nonzero(chunk):
                        file.seek(len(chunk), os.SEEK_CUR)
                    else:
                        file.write(chunk)
                file.truncate(file.tell())
                os.fchmod(file.fileno(), 0o666 & ~_umask())
        except OSError as error:
            raise _unwritable(error, printable(str(path))) from error

    def __enter__(self) -> AtomicFileReplacement:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if kind is None:
                self._rename()
        except OSError as error:
            path = printable(str(self._pending[0][1]))
            raise _unwritable(error, path) from error
        finally:
            for temporary, _ in self._pending:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)

    def _rename(self) -> None:
        """Give all files their names. Later ones speak of earlier ones: who ends the process in between leaves none of
        the old ones beside what they do not speak of, and an interrupt waits until all have theirs."""
        interrupt: KeyboardInterrupt | None = None
        late = [path for _, path in self._pending[1:]]
        while self._pending or late:
            try:
                while late:
                    late[0].unlink(missing_ok=True)
                    del late[0]
                temporary, path = self._pending[0]
                if os.path.lexists(temporary):  # it is not where an interrupt came when it had its name already
                    os.replace(temporary, path)
                del self._pending[0]
            except KeyboardInterrupt as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt


def _unwritable(error: OSError | ValueError, where: str) -> SuperoptError:
    """The path that was given is to blame, unless the system has not enough of something."""
    limit = resource_limit(error, where)
    if limit is None:
        return UsageError(f"cannot be written: {reason(error)}", where=where)
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    hint = "free disk space there, or write to another place with -o" if full else limit.hint
    return type(limit)(f"cannot be written: {limit.what}", where=where, hint=hint)


_OVERWRITE = "choose another name, or overwrite it: --force (-f), in Python force=True"


def _refuse_existing(path: Path, force: bool) -> None:
    where = printable(str(path))
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot be written: {reason(error)}", where=where) from error
    if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
        raise UsageError(f"is {kind_of(mode)}; a file cannot be written there", where=where)
    if not force:
        raise UsageError("exists already", where=where, hint=_OVERWRITE)


def refuse_unwritable(path: Path, *, force: bool) -> None:
    """Say before any work what writing a file would say after it.

    Raises:
        UsageError: it exists and ``force`` is false, or its folder is missing or read-only.
    """
    _refuse_existing(path, force)
    where = printable(str(path))
    try:
        mode = os.stat(path.parent).st_mode
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot be written: {reason(error)}", where=where) from error
    if not stat.S_ISDIR(mode):
        raise UsageError("cannot be written: what should be its folder is a file", where=where)
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UsageError("cannot be written: its folder is read-only", where=where)


def any_nonzero(chunk: bytes | memoryview) -> bool:
    """Whether a chunk holds any byte that is not zero."""
    if isinstance(chunk, memoryview) and chunk.obj is HOLE:
        return False
    return bool(np.frombuffer(chunk, np.uint8).any())


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def replace_file(path: Path, content: bytes, *, force: bool = False) -> None:
    """Write a whole small file so that it is either there complete or not at all.

    Raises:
        UsageError: it exists and ``force`` is false, or cannot be written.
    """
    with AtomicFileReplacement() as files:
        files.add(path, [content], force=force)

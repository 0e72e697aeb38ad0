"""The standard streams as a command finds them: closed, full, of an ASCII locale, or endless."""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from superopt.cli.signal_handling import CLOSED
from superopt.ir.errors import InvalidModel, ResourceLimit, SuperoptError, UsageError, resource_limit

__all__ = [
    "copy_input", "discard_output", "output_closed", "output_error", "prepare", "read_input", "stop_output",
    "write_data",
]  # fmt: skip

_CHUNK = 1 << 20
# First bytes of a serialised ModelProto: its fields by number, each with the wire type that onnx.proto gives it. What
# begins otherwise is no model, which is worth knowing before the rest of an endless stream is read.
_TAGS = {(1, 0), (5, 0)} | {(number, 2) for number in (2, 3, 4, 6, 7, 8, 14, 20, 25, 26)}


class _NoOutput(io.TextIOBase):
    """Stands for a standard output that is closed: whoever writes to it has nowhere to write to."""

    def write(self, _: str) -> int:
        raise UsageError("standard output is closed", hint="the result has nowhere to go: write > FILE, or > /dev/null")

    def isatty(self) -> bool:
        return False


class _Patient(io.TextIOWrapper):
    """A standard error that may be full or gone: what cannot be said is not said, and the exit code stands."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError:
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except (OSError, ValueError):
            return


def prepare() -> None:
    """Make the streams safe to use; names that the locale's encoding lacks are written with escapes."""
    if sys.stdin is None or 0 in CLOSED:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115  # for the whole process
    if sys.stdout is None or 1 in CLOSED:
        sys.stdout = _NoOutput()
    if sys.stderr is None or 2 in CLOSED:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # for the whole process
    elif sys.stderr is sys.__stderr__ and isinstance(sys.stderr, io.TextIOWrapper):
        encoding = sys.stderr.encoding
        raw = sys.stderr.detach()
        sys.stderr = _Patient(raw, encoding=encoding, errors="backslashreplace", line_buffering=True)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def output_closed() -> bool:
    return isinstance(sys.stdout, _NoOutput)


def discard_output() -> None:
    """Throw away what would be shown, because the result goes into a file and the output is closed."""
    if output_closed():
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # for the whole process


def stop_output() -> None:
    """Let nothing more be written to a standard output that failed, not even by Python's own end."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write_data(data: bytes) -> None:
    """Bytes to standard output.

    Raises:
        UsageError: it is closed.
    """
    if output_closed():
        sys.stdout.write("")
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def output_error(error: OSError) -> SuperoptError | None:
    """What an error that names no file says of standard output, or of temporary files where that has room; ``None``
    where it is about something else."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    if error.filename is not None or not (full or error.errno in (errno.EIO, errno.EBADF)):
        return None
    if error.errno == errno.ENOSPC and not _may_be_full():
        return resource_limit(error, "the folder of temporary files")
    return (ResourceLimit if full else UsageError)(f"cannot be written: {error.strerror}", where="standard output")


def _may_be_full() -> bool:
    """Whether standard output can have no space left: a device, or a file on a disk that has none."""
    try:
        mode = os.fstat(1).st_mode
        return stat.S_ISCHR(mode) or (stat.S_ISREG(mode) and not os.fstatvfs(1).f_bavail)
    except OSError:
        return False


def copy_input(path: Path, limit: int) -> None:
    """Standard input into a file.

    Args:
        path: the file.
        limit: bytes of the largest model there can be.

    Raises:
        UsageError: it is closed.
        InvalidModel: there is much of it, and it does not begin as a model does.
        ResourceLimit: there is more of it than the limit.
    """
    with path.open("wb") as file:
        for number, chunk in enumerate(_chunks(limit, "model.onnx")):
            if not number and len(chunk) == _CHUNK and not _may_be_model(chunk):
                raise InvalidModel("is not a model", where="standard input", hint="ONNX or a superopt JSON graph")
            file.write(chunk)


def read_input(limit: int) -> bytes:
    """All of standard input.

    Args:
        limit: bytes that it may have.

    Raises:
        UsageError: it is closed.
        ResourceLimit: there is more of it than the limit.
    """
    return b"".join(_chunks(limit, "FILE"))


def _chunks(limit: int, example: str) -> Iterator[bytes]:
    if 0 in CLOSED:
        raise UsageError("standard input is closed", hint=f"name a file, or send one: … < {example}")
    size = 0
    while chunk := sys.stdin.buffer.read(_CHUNK):
        size += len(chunk)
        if size > limit:
            raise ResourceLimit(f"is longer than {limit} bytes", where="standard input", hint="name a file")
        yield chunk


def _may_be_model(head: bytes) -> bool:
    text = head[:64].removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n")
    number = head[0] & 0x7F if head[0] < 0x80 else (head[0] & 0x7F) | head[1] << 7
    return text[:1] in (b"", b"{") or (number >> 3, number & 7) in _TAGS

"""Finished tasks in one file that only grows, so that a run that was killed goes on where it was."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from superopt.ir.errors import UsageError, printable

__all__ = ["TaskJournal"]

_HEAD = {"format": "superopt.journal", "version": 1}
_KINDS = {"key": str, "result": dict}  # of a row


class TaskJournal:
    """A line of JSON for each finished task, by the digest of everything that decides it.

    A line that was cut off by a kill is dropped when the file is opened again; one that is no row is as good as absent.
    One process at a time writes it.

    Args:
        path: the file, made where there is none; its folder, too.

    Raises:
        UsageError: it is no journal, or one of another version, or another process has it open.
        OSError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab+", buffering=0)  # what cannot be written is not tried again when it is closed
        try:
            self._rows = self._read(path)
        except BaseException:
            self._file.close()
            raise

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                "another run has it open", where=str(path), hint="wait for it, or name another file"
            ) from None
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1
        head, *rows = map(_parsed, content[:whole].split(b"\n")[:-1] or [json.dumps(_HEAD).encode()])
        if isinstance(head, dict) and head.get("format") == _HEAD["format"] and head != _HEAD:
            raise UsageError(
                f"is a journal of version {printable(str(head.get('version')))}, and this superopt writes "
                f"{_HEAD['version']}", where=str(path), hint="move it away: its tasks are then done again",
            )  # fmt: skip
        if head != _HEAD or (content and not whole and not _begun(content)):
            raise UsageError("is not a journal of superopt", where=str(path), hint="name another file")
        self._file.truncate(whole)
        if not whole:
            self._append(_HEAD)
        return {r["key"]: r["result"] for r in rows if isinstance(r, dict) and {k: type(r[k]) for k in r} == _KINDS}

    def _append(self, row: Mapping[str, Any]) -> None:
        line = memoryview(json.dumps(row, allow_nan=True).encode() + b"\n")
        while line:
            line = line[self._file.write(line) :]

    def get(self, key: str) -> dict[str, Any] | None:
        """The result of a finished task."""
        return self._rows.get(key)

    def put(self, key: str, data: Mapping[str, Any]) -> None:
        """Note a finished task; of two results of one task the last counts.

        Raises:
            OSError: it cannot be written. What was written of the line is as good as absent.
        """
        if self._rows.get(key) != data:
            self._rows[key] = dict(data)
            self._append({"key": key, "result": data})

    def close(self) -> None:
        """Let another process have it."""
        self._file.close()

    def __enter__(self) -> TaskJournal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _parsed(line: bytes) -> Any:
    """What a line says; ``None`` where it is no JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _begun(content: bytes) -> bool:
    """Whether a file without a whole line may be a journal whose first line was cut off."""
    return json.dumps(_HEAD).encode().startswith(content)

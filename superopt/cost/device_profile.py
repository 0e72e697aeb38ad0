"""Profiles: files of measured records of one device, shipped as recorded or growing in the user's cache.

A file is JSON Lines. The first line is the header (schema, device, versions, threads, payload digest); each other line
is a :class:`~superopt.cost.measurement_record.MeasurementRecord`. A recorded profile is sorted by key and in gzip. The
user's own store is plain text, because it grows by appending while measuring. It is appended to under a lock, so that
two processes may share it. A line that a crash cut short is dropped at the next read.
"""

from __future__ import annotations

import difflib
import gzip
import hashlib
import json
import logging
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from superopt.cost.measurement_record import MeasurementKey, MeasurementRecord
from superopt.cost.operator_time_predictor import OperatorFeatures, traits_of
from superopt.ir.disk_cache import cache_directory, code_digest, load_object, report_write_failure, store_object
from superopt.ir.errors import InvalidModel, UsageError, printable

__all__ = [
    "DeviceProfile",
    "DeviceProfileStore",
    "cache_directory",
    "load_profile",
    "profile_names",
    "read_profile",
    "shipped_header",
    "write_profile",
]

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

SCHEMA = "superopt.profile/1"
_FOLDER, _MOST = "profiles", 8
_log = logging.getLogger("superopt")
_Parsed = tuple[str, str, tuple[MeasurementRecord, ...]]


@dataclass(frozen=True)
class DeviceProfile:
    """A recorded profile: the header as written, and records by key text."""

    header: Mapping[str, Any]
    records: Mapping[str, MeasurementRecord] = field(default_factory=dict)


def _lines(records: Iterable[MeasurementRecord]) -> list[str]:
    ordered = sorted(records, key=lambda r: r.key.text)
    return [json.dumps(r.as_data(), sort_keys=True, separators=(",", ":")) for r in ordered]


def write_profile(path: Path, header: Mapping[str, Any], records: Iterable[MeasurementRecord]) -> None:
    """Write a recorded profile, atomically; the same header and records give the same bytes.

    Raises:
        OSError: the file cannot be written.
    """
    lines = _lines(records)
    payload = "\n".join(lines)
    head = {**header, "schema": SCHEMA, "records": len(lines), "sha256": hashlib.sha256(payload.encode()).hexdigest()}
    text = json.dumps(head, sort_keys=True, separators=(",", ":")) + "\n" + payload + "\n"
    _replace(path, gzip.compress(text.encode(), mtime=0))


def _replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(name, path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def read_profile(path: Path) -> DeviceProfile:
    """Read a recorded profile.

    Raises:
        UsageError: there is no such file.
        InvalidModel: it is not a profile, or its payload is not what its header says.
    """
    where = str(path)
    try:
        head, digest, records = _parsed(path.read_bytes())
        header = json.loads(head)
    except FileNotFoundError as error:
        raise UsageError("there is no such profile", where=where) from error
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = printable(str(error)) or type(error).__name__
        raise InvalidModel(f"not a profile: {reason}", where=where, hint="record it again") from error
    if not isinstance(header, dict) or header.get("schema") != SCHEMA:
        raise InvalidModel(f"not a profile of schema {SCHEMA}", where=where, hint="record it again")
    if header.get("sha256") != digest:
        raise InvalidModel("its records are not those that were recorded", where=where, hint="record it again")
    return DeviceProfile(header, {r.key.text: r for r in records})


@lru_cache(maxsize=2)
def _parsed(content: bytes) -> _Parsed:
    """The header of a file as text, the digest of its records, and the records; cached in the process and on disk."""
    name = hashlib.sha256(content + code_digest("cost", "ops", "ir").encode()).hexdigest()
    found = load_object(_FOLDER, name, (MeasurementKey, MeasurementRecord, OperatorFeatures))
    if isinstance(found, tuple):
        return found
    read = _read(content)
    for record in read[2]:  # what a predictor looks at, kept with the key
        _ = record.key.text, traits_of(record.key)
    store_object(_FOLDER, name, read, _MOST)
    return read


def _read(content: bytes) -> _Parsed:
    head, _, payload = gzip.decompress(content).decode().partition("\n")
    json.loads(head)  # what it says is looked at first
    lines = [line for line in payload.splitlines() if line]  # a profile without a record is one too
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return head, digest, tuple(MeasurementRecord.from_data(json.loads(line)) for line in lines)


def profile_names() -> tuple[str, ...]:
    """Names of the profiles that ship with superopt."""
    folder = resources.files("superopt.cost").joinpath("profiles")
    if not folder.is_dir():
        return ()
    return tuple(sorted(f.name.removesuffix(".jsonl.gz") for f in folder.iterdir() if f.name.endswith(".jsonl.gz")))


def _shipped(name: str) -> AbstractContextManager[Path]:
    return resources.as_file(resources.files("superopt.cost").joinpath("profiles", f"{name}.jsonl.gz"))


def shipped_header(name: str) -> Mapping[str, Any]:
    """The header of a shipped profile, read without its records in a tenth of the time.

    Raises:
        InvalidModel: the file is damaged.
    """
    with _shipped(name) as path:
        try:
            with gzip.open(path, "rt", encoding="utf-8") as file:
                header = json.loads(file.readline())
        except (OSError, EOFError, ValueError) as error:
            raise InvalidModel(f"not a profile: {error}", where=str(path), hint="install superopt again") from error
    if not isinstance(header, dict):
        raise InvalidModel("not a profile", where=str(path), hint="install superopt again")
    return header


def load_profile(name: str) -> DeviceProfile:
    """A shipped profile by name, or any by path.

    Raises:
        UsageError: there is none of that name. InvalidModel: the file is damaged.
    """
    if name in profile_names():
        with _shipped(name) as path:
            return read_profile(path)
    if os.sep in name or name.endswith(".gz"):
        return read_profile(Path(name))
    near = difflib.get_close_matches(name, profile_names(), 1, 0.5)
    known = ", ".join(profile_names()) or "none is shipped; record one with `superopt profile --target cpu --out FILE`"
    hint = f"did you mean profile:{near[0]}? " if near else ""
    raise UsageError(f"there is no profile {printable(name)!r}", hint=f"{hint}profiles: {known}; a path works too")


@contextmanager
def _locked(file: IO[bytes]) -> Iterator[None]:
    if fcntl is None:  # no advisory locks here: an append of one short line stays whole in practice
        yield
        return
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
        file.flush()
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


class DeviceProfileStore:
    """The user's growing profile of this device. A failure of the disk is logged, and is no error.

    Two processes may share one: lines are appended under a lock where the system has one.
    """

    def __init__(self, name: str, header: Mapping[str, Any], directory: Path | None = None) -> None:
        safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "device"
        self.path = (directory or cache_directory()) / f"{safe[:150]}.jsonl"
        self._header = {**header, "schema": SCHEMA}
        self._records: dict[str, MeasurementRecord] = {}
        self._writable = True
        self._load()

    @classmethod
    def of(cls, records: Iterable[MeasurementRecord]) -> DeviceProfileStore:
        """A store of these records that is not on disk."""
        made = cls.__new__(cls)
        made.path, made._header, made._writable = Path(os.devnull), {}, False
        made._records = {r.key.text: r for r in records}
        return made

    def __len__(self) -> int:
        return len(self._records)

    def get(self, key_text: str) -> MeasurementRecord | None:
        """The record under a key."""
        return self._records.get(key_text)

    @property
    def records(self) -> tuple[MeasurementRecord, ...]:
        """All records, in order of arrival."""
        return tuple(self._records.values())

    def add(self, record: MeasurementRecord) -> None:
        """Add a record, here and on disk (if the disk allows)."""
        self._records[record.key.text] = record
        if not self._writable:
            return
        line = json.dumps(record.as_data(), sort_keys=True, separators=(",", ":")) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._append(line.encode())
        except OSError as error:
            self._writable = False
            report_write_failure(self.path.parent, error.strerror or str(error))

    def know(self, records: Iterable[MeasurementRecord]) -> None:
        """Add records that are on disk already."""
        self._records.update((r.key.text, r) for r in records)

    def _append(self, line: bytes) -> None:
        with open(self.path, "a+b") as file, _locked(file):
            end = file.seek(0, os.SEEK_END)
            if end:
                file.seek(end - 1)
                if file.read(1) != b"\n":  # another process was cut short in the middle of a line
                    line = b"\n" + line
            else:
                file.write(json.dumps(self._header, sort_keys=True, separators=(",", ":")).encode() + b"\n")
            file.write(line)

    def _load(self) -> None:
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            report_write_failure(self.path.parent, error.strerror or str(error))
            self._writable = False
            return
        if not content:
            return
        head, *lines = content.split(b"\n")
        if not self._is_mine(head):
            self._set_aside()
            return
        dropped = 0
        for line in filter(None, lines):
            try:
                record = MeasurementRecord.from_data(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                dropped += 1
                continue
            self._records[record.key.text] = record
        if dropped:
            path = printable(str(self.path))
            _log.warning("%s: %d damaged lines are dropped; they are measured again", path, dropped)
            self._rewrite()

    def _is_mine(self, head: bytes) -> bool:
        try:
            header = json.loads(head)
        except (ValueError, RecursionError):
            return False
        return isinstance(header, dict) and header.get("schema") == SCHEMA

    def _set_aside(self) -> None:
        aside = self.path.with_suffix(f".damaged-{time.time_ns():x}")
        try:
            os.replace(self.path, aside)
            note = f"moved to {aside.name}, and it is measured afresh"
        except OSError:
            self._writable = False
            note = "it cannot be moved away, so measurements are not kept"
        _log.warning("%s is not a profile: %s", printable(str(self.path)), note)

    def _rewrite(self) -> None:
        head = json.dumps(self._header, sort_keys=True, separators=(",", ":"))
        content = ("\n".join([head, *_lines(self._records.values())]) + "\n").encode()
        try:
            _replace(self.path, content)
        except OSError as error:
            self._writable = False
            report_write_failure(self.path.parent, error.strerror or str(error))

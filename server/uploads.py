"""Uploads that go on where they were cut: the tus protocol 1.0.0 (https://tus.io), with creation and termination.

An upload is a file below ``uploads/`` and what is known of it in another; how much has arrived is the file's size,
which no crash falsifies. A job that is made of uploads takes them as they are: they can be used again until they are
too old.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from superopt.server.blobs import Blobs, has_room
from superopt.server.body import Upload, is_file_name, model_of, packed, recognised
from superopt.server.problems import Problem

__all__ = ["Resumable", "Uploads"]

_HEX = re.compile(r"[0-9a-f]{32}")
_HEAD = 64


@dataclass(frozen=True)
class Resumable:
    """An upload: whose, how long it will be in bytes, and its file's name."""

    id: str
    owner: str
    length: int
    filename: str


class Uploads:
    """The uploads of a service.

    Args:
        data: the service's folder.
        blobs: what jobs are made of.
        most: bytes of one upload.
        many: unfinished and unused ones that one owner may have.
    """

    def __init__(self, data: Path, blobs: Blobs, most: int, many: int) -> None:
        self._folder = data / "uploads"
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._blobs = blobs
        self.most = most
        self._many = many
        self._busy: set[str] = set()

    def create(self, owner: str, length: int, filename: str) -> Resumable:
        """A new one, empty.

        Raises:
            Problem: 413 too long, 422 a name that is none, 429 too many, 503 no room on the disk.
        """
        if length > self.most:
            raise Problem(413, "too-large", f"an upload has {self.most} bytes at most")
        if not is_file_name(filename):
            raise Problem(422, "invalid-model", f"{filename[:80]!r} is no name for a file; send Upload-Metadata: "
                          "filename and the name in base64")  # fmt: skip
        theirs = [u for u in self._all() if u.owner == owner]
        if len(theirs) >= self._many:
            raise Problem(429, "quota", f"you have {len(theirs)} uploads; DELETE some", retry_after=60)
        due = sum(u.length for u in self._all())
        for path in self._folder.glob("*.part"):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                due -= path.stat().st_size
        if not has_room(self._folder, due + length):
            raise Problem(503, "unavailable", "the disk has no room for an upload of this length", retry_after=600)
        made = Resumable(uuid.uuid4().hex, owner, length, filename)
        self._file(made.id).touch(mode=0o600)
        self._facts(made.id).write_text(json.dumps(asdict(made)))
        return made

    def find(self, upload_id: str, owner: str) -> Resumable:
        """One by its id.

        Raises:
            Problem: 404 where there is none of this owner.
        """
        if _HEX.fullmatch(upload_id):
            try:
                found = Resumable(**json.loads(self._facts(upload_id).read_text()))
            except FileNotFoundError:
                found = None
            if found is not None and found.owner == owner:
                return found
        raise _gone()

    def offset(self, upload: Resumable) -> int:
        """Bytes that have arrived.

        Raises:
            Problem: 404 where it was removed meanwhile.
        """
        try:
            return self._file(upload.id).stat().st_size
        except FileNotFoundError:
            raise _gone() from None

    async def append(self, upload: Resumable, offset: int, chunks: AsyncIterator[bytes]) -> int:
        """Add what comes; all that came before a connection was cut stays.

        Returns:
            Bytes that have arrived.

        Raises:
            Problem: 404 where it was removed meanwhile; 409 where the offset is another, or somebody is adding to it;
                413 where more comes than was said.
        """
        if upload.id in self._busy:
            raise Problem(409, "conflict", "another request is adding to this upload")
        if offset != (here := self.offset(upload)):
            raise Problem(409, "conflict", f"{here} bytes have arrived: go on there; HEAD says so too")
        self._busy.add(upload.id)
        try:
            with self._opened(upload) as file:
                async for chunk in chunks:
                    if here + len(chunk) > upload.length:
                        raise Problem(413, "too-large", f"more than the {upload.length} bytes that were announced")
                    file.write(chunk)
                    here += len(chunk)
        finally:
            self._busy.discard(upload.id)
        return self.offset(upload)

    def _opened(self, upload: Resumable) -> BinaryIO:
        """To add to it; one that was removed is not made again."""
        try:
            return os.fdopen(os.open(self._file(upload.id), os.O_WRONLY | os.O_APPEND), "ab")
        except FileNotFoundError:
            raise _gone() from None

    def remove(self, upload: Resumable) -> None:
        """Forget one."""
        self._facts(upload.id).unlink(missing_ok=True)
        self._file(upload.id).unlink(missing_ok=True)

    def model(self, chosen: Sequence[Resumable]) -> Upload:
        """Uploads as a model: the one that is called ``.onnx`` or ``.json``, and the files of its weights.

        Raises:
            Problem: 409 where one has not arrived; 422 where it is not clear which one the model is.
        """
        for upload in chosen:
            if (here := self.offset(upload)) < upload.length:
                raise Problem(409, "conflict", f"of {upload.filename} {here} bytes of {upload.length} have arrived")
        model = chosen[model_of([u.filename for u in chosen])]
        with self._file(model.id).open("rb") as file:
            media = recognised(file.read(_HEAD), model.length, must_be_json=False)
        beside: Mapping[str, str] = {u.filename: self._adopt(u) for u in chosen if u is not model}
        return Upload(
            self._adopt(model), packed(beside), media, model.filename, sum(u.length for u in chosen)
        )  # fmt: skip

    def _adopt(self, upload: Resumable) -> str:
        other = self._blobs.incoming / f"in-{uuid.uuid4().hex}"
        os.link(self._file(upload.id), other)  # the upload itself stays
        return self._blobs.adopt(other)[0]

    def sweep(self, age: float) -> None:
        """Remove those to which nothing was added for ``age`` seconds."""
        for path in self._folder.glob("*.part"):
            try:
                if path.stat().st_mtime < time.time() - age:
                    path.unlink(missing_ok=True)
                    self._facts(path.stem).unlink(missing_ok=True)
            except FileNotFoundError:
                continue

    def _all(self) -> list[Resumable]:
        found = []
        for path in self._folder.glob("*.json"):
            try:
                found.append(Resumable(**json.loads(path.read_text())))
            except (FileNotFoundError, ValueError):  # gone, or being written
                continue
        return found

    def _file(self, upload_id: str) -> Path:
        return self._folder / f"{upload_id}.part"

    def _facts(self, upload_id: str) -> Path:
        return self._folder / f"{upload_id}.json"


def _gone() -> Problem:
    return Problem(404, "not-found", "there is no such upload, or it is not kept any more")

"""Uploads that go on where they were cut: the tus protocol 1.0.0 (https://tus.io), with creation and termination.

An upload is a file below ``uploads/`` and what is known of it in another; how much has arrived is the file's size,
which no crash falsifies. A job that is made of uploads takes them as they are: they can be used again until they are
too old.

An unfinished upload holds room on the disk for what is still to come, as long as bytes come. One owner's uploads take
a share of the disk at most, so that whatever he announces there is room for others.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from starlette.concurrency import run_in_threadpool

from superopt.server.http.body import ReceivedModel, is_file_name, model_of, packed, recognised
from superopt.server.http.problems import HttpProblem
from superopt.server.jobs.blobs import SPARE, Blobs
from superopt.server.jobs.failure_detection import StallDetector
from superopt.server.settings import ServiceLimits

__all__ = ["ResumableUpload", "Uploads"]

_HEX = re.compile(r"[0-9a-f]{32}")
_HEAD = 64


@dataclass(frozen=True)
class ResumableUpload:
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
        limits: of bytes and numbers.
        clock: seconds of a clock that is never set.
    """

    def __init__(
        self, data: Path, blobs: Blobs, limits: ServiceLimits, clock: Callable[[], float] = time.monotonic
    ) -> None:  # fmt: skip
        self._folder = data / "uploads"
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._blobs = blobs
        self._limits = limits
        self._arrivals = StallDetector[str](clock)
        self._busy: set[str] = set()
        self._reserving = threading.Lock()
        self._idle()  # from now on

    @property
    def most(self) -> int:
        """Bytes of one upload."""
        return self._limits.upload

    def create(self, owner: str, length: int, filename: str) -> ResumableUpload:
        """A new one, empty.

        Raises:
            HttpProblem: 413 too long, 422 a name that is none, 429 too many or too large for one owner, 503 no room on
                the disk.
        """
        if length > self.most:
            raise HttpProblem(413, "too-large", f"an upload has {self.most} bytes at most")
        if not is_file_name(filename):
            raise HttpProblem(422, "invalid-model", f"{filename[:80]!r} is no name for a file; send Upload-Metadata: "
                          "filename and the name in base64")  # fmt: skip
        made = ResumableUpload(uuid.uuid4().hex, owner, length, filename)
        with self._reserving:
            theirs = [u for u in self._all() if u.owner == owner]
            if len(theirs) >= self._limits.uploads and self._forget_empty(theirs):
                theirs = [u for u in self._all() if u.owner == owner]
            if len(theirs) >= self._limits.uploads:
                raise HttpProblem(429, "quota", f"you have {len(theirs)} uploads; DELETE some", retry_after=60)
            self._reserve(made)
            self._file(made.id).touch(mode=0o600)
            self._facts(made.id).write_text(json.dumps(asdict(made)))
            self._idle()
        return made

    def _reserve(self, upload: ResumableUpload) -> None:
        """See that there is room for what is still to come of an upload.

        Raises:
            HttpProblem: 429 where its owner's uploads would take more than their share, 503 where the disk has no room.
        """
        idle, arrived = self._idle(), self._arrived()
        known = {u.id: u for u in self._all()} | {upload.id: upload}
        held = {
            u.id: u.length - arrived.get(u.id, 0)
            for u in known.values() if u.id == upload.id or idle.get(u.id, 0.0) <= self._limits.upload_idle
        }  # fmt: skip
        here = sum(arrived.get(u.id, 0) for u in known.values() if u.owner == upload.owner)
        mine = here + sum(size for i, size in held.items() if known[i].owner == upload.owner)
        others = sum(size for i, size in held.items() if known[i].owner != upload.owner)
        room = shutil.disk_usage(self._folder).free - SPARE + here - others  # for this owner and those still to come
        share = self._limits.upload_share * room if upload.owner else room
        if held[upload.id] > share:
            raise HttpProblem(503, "disk-full", "the disk has no room for an upload of this length", retry_after=600)
        if mine > share:
            raise HttpProblem(
                429,
                "quota",
                f"your uploads would take {mine} bytes of the disk; {int(share)} are allowed "
                "now: finish some and DELETE them",
                retry_after=60,
            )

    def find(self, upload_id: str, owner: str) -> ResumableUpload:
        """One by its id.

        Raises:
            HttpProblem: 404 where there is none of this owner.
        """
        if _HEX.fullmatch(upload_id):
            try:
                found = ResumableUpload(**json.loads(self._facts(upload_id).read_text()))
            except FileNotFoundError:
                found = None
            if found is not None and found.owner == owner:
                return found
        raise _gone()

    def offset(self, upload: ResumableUpload) -> int:
        """Bytes that have arrived.

        Raises:
            HttpProblem: 404 where it was removed meanwhile.
        """
        try:
            return self._file(upload.id).stat().st_size
        except FileNotFoundError:
            raise _gone() from None

    async def append(self, upload: ResumableUpload, offset: int, chunks: AsyncIterator[bytes]) -> int:
        """Add what comes; all that came before a connection was cut stays.

        Returns:
            Bytes that have arrived.

        Raises:
            HttpProblem: 404 where it was removed meanwhile; 409 where the offset is another, or somebody is adding to
                it; 413 where more comes than was said.
        """
        if upload.id in self._busy:
            raise HttpProblem(409, "conflict", "another request is adding to this upload")
        if offset != (here := self.offset(upload)):
            raise HttpProblem(409, "conflict", f"{here} bytes have arrived: go on there; HEAD says so too")
        self._busy.add(upload.id)
        try:
            await run_in_threadpool(self._renew, upload)
            with self._opened(upload) as file:
                async for chunk in chunks:
                    if here + len(chunk) > upload.length:
                        raise HttpProblem(413, "too-large", f"more than the {upload.length} bytes that were announced")
                    file.write(chunk)
                    here += len(chunk)
        finally:
            self._busy.discard(upload.id)
        await run_in_threadpool(self._idle)  # from now on nothing comes
        return self.offset(upload)

    def _renew(self, upload: ResumableUpload) -> None:
        """See that there is still room for an upload that was idle: others may have got it meanwhile."""
        with self._reserving:
            if self._idle().get(upload.id, 0.0) > self._limits.upload_idle:
                self._reserve(upload)

    def _opened(self, upload: ResumableUpload) -> BinaryIO:
        """To add to it; one that was removed is not made again."""
        try:
            return os.fdopen(os.open(self._file(upload.id), os.O_WRONLY | os.O_APPEND), "ab")
        except FileNotFoundError:
            raise _gone() from None

    def remove(self, upload: ResumableUpload) -> None:
        """Forget one."""
        self._facts(upload.id).unlink(missing_ok=True)
        self._file(upload.id).unlink(missing_ok=True)

    def model(self, chosen: Sequence[ResumableUpload]) -> ReceivedModel:
        """Uploads as a model: the one that is called ``.onnx`` or ``.json``, and the files of its weights.

        Raises:
            HttpProblem: 409 where one has not arrived; 422 where it is not clear which one the model is.
        """
        for upload in chosen:
            if (here := self.offset(upload)) < upload.length:
                raise HttpProblem(409, "conflict", f"of {upload.filename} {here} bytes of {upload.length} have arrived")
        model = chosen[model_of([u.filename for u in chosen])]
        with self._file(model.id).open("rb") as file:
            media = recognised(file.read(_HEAD), model.length, must_be_json=False)
        beside: Mapping[str, str] = {u.filename: self._adopt(u) for u in chosen if u is not model}
        return ReceivedModel(
            self._adopt(model), packed(beside), media, model.filename, sum(u.length for u in chosen)
        )  # fmt: skip

    def _adopt(self, upload: ResumableUpload) -> str:
        other = self._blobs.incoming / f"in-{uuid.uuid4().hex}"
        os.link(self._file(upload.id), other)  # the upload itself stays
        return self._blobs.adopt(other)[0]

    def _arrived(self) -> dict[str, int]:
        """Bytes of each upload that are here."""
        found = {}
        for path in self._folder.glob("*.part"):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                found[path.stem] = path.stat().st_size
        return found

    def _idle(self) -> dict[str, float]:
        """For how many seconds nothing has come of each upload."""
        return self._arrivals.observe(self._arrived())

    def _forget_empty(self, uploads: Sequence[ResumableUpload]) -> int:
        """Remove those of which nothing has arrived for so long that nobody seems to send them; how many they are."""
        idle, arrived = self._idle(), self._arrived()
        gone = [u for u in uploads if not arrived.get(u.id) and idle.get(u.id, 0.0) > self._limits.upload_idle]
        for upload in gone:
            self.remove(upload)
        return len(gone)

    def sweep(self, age: float) -> None:
        """Remove those to which nothing was added for ``age`` seconds."""
        for path in self._folder.glob("*.part"):
            try:
                if path.stat().st_mtime < time.time() - age:
                    path.unlink(missing_ok=True)
                    self._facts(path.stem).unlink(missing_ok=True)
            except FileNotFoundError:
                continue

    def _all(self) -> list[ResumableUpload]:
        found = []
        for path in self._folder.glob("*.json"):
            try:
                found.append(ResumableUpload(**json.loads(path.read_text())))
            except (FileNotFoundError, ValueError):  # gone, or being written
                continue
        return found

    def _file(self, upload_id: str) -> Path:
        return self._folder / f"{upload_id}.part"

    def _facts(self, upload_id: str) -> Path:
        return self._folder / f"{upload_id}.json"


def _gone() -> HttpProblem:
    return HttpProblem(404, "not-found", "there is no such upload, or it is not kept any more")

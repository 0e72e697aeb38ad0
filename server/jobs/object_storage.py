"""Models that lie in an object store: read from where the operator allows it, and results written to where he says.

S3 and what speaks its protocol (MinIO, Ceph, R2), by obstore, an extra. Bucket, endpoint and credentials are the
operator's, in the environment as for any S3 client (``AWS_ENDPOINT_URL``, ``AWS_ACCESS_KEY_ID``, …); what a client
writes is the name of an object below a prefix of the operator's, and nothing of it becomes a host or a path. An object
is pinned by its entity tag before the first byte is read, and comes in ranges of that content or not at all. It is
known by the digest of what came, as if it had been sent, so a name with new content is another model.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from superopt.ir.errors import UsageError
from superopt.server.http.body import FILES, ReceivedModel, is_file_name, model_of, packed, recognised
from superopt.server.http.problems import HttpProblem
from superopt.server.jobs.blobs import Blobs, IncomingBlob, has_room
from superopt.server.settings import ServiceLimits

__all__ = ["ObjectStores"]

_SCHEME = "s3://"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_KEY = re.compile(r"[^\x00-\x1f\x7f%?#\\*{}^`<>|\"~\[\]]{0,900}")  # what obstore sends as it is written
_PIECE = 16 << 20  # bytes of one request, which may take half a minute
_PATIENCE = "5s"  # to connect
_TRIES = 2  # again, where a store does not answer
_REMEMBERED = 1024


@dataclass(frozen=True)
class _Place:
    """An object, or with a key that is empty or ends in a slash a folder of them."""

    bucket: str
    key: str

    def __str__(self) -> str:
        return f"{_SCHEME}{self.bucket}/{self.key}"

    @property
    def name(self) -> str:
        return self.key.rsplit("/", 1)[-1]

    def below(self, prefix: _Place) -> bool:
        return self.bucket == prefix.bucket and self.key.startswith(prefix.key)


@dataclass(frozen=True)
class _Pin:
    """A content of an object, by what the store says of it."""

    place: _Place
    size: int
    tag: str


class ObjectStores:
    """The object stores of a service.

    Args:
        prefixes: below which models may be read: ``s3://bucket/folder/``.
        results: below which results are written; none are without.
        blobs: where models go.
        limits: of bytes and seconds.
        piece: bytes of one request.

    Raises:
        UsageError: a prefix is none, or the extra is not installed.
    """

    def __init__(
        self, prefixes: Sequence[str], results: str | None, blobs: Blobs, limits: ServiceLimits, piece: int = _PIECE
    ) -> None:
        self._allowed = tuple(_prefix(p) for p in prefixes)
        self._results = None if results is None else _prefix(results)
        if (self._allowed or self._results) and find_spec("obstore") is None:
            raise UsageError("a store needs obstore", hint="pip install 'superopt[store]'")
        self._blobs, self._limits, self._piece = blobs, limits, piece
        self._known: dict[_Pin, str] = {}  # the blobs of contents that came, the latest last

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Below which models may be read."""
        return tuple(map(str, self._allowed))

    @property
    def results(self) -> str | None:
        """Below which results are written."""
        return None if self._results is None else str(self._results)

    def fetch(self, references: Sequence[str]) -> ReceivedModel:
        """Objects as a model: the one that is called ``.onnx`` or ``.json``, and the files of its weights.

        Args:
            references: of files; one that ends in a slash stands for those directly in that folder.

        Raises:
            HttpProblem: 400 no reference, or no store; 403 not below a prefix; 409 changed meanwhile; 413 too large;
                422 nothing there, or no model; 503 the store does not answer, or the disk has no room.
        """
        pins = [pin for text in dict.fromkeys(references) for pin in self._pinned(self._place(text))]
        names = [pin.place.name for pin in pins]
        model = model_of(names)
        size = sum(pin.size for pin in pins)
        if size > self._limits.upload:
            raise _wrong(413, "too-large", f"{pins[model].place} and what is beside it have {size} bytes; "
                         f"{self._limits.upload} are allowed")  # fmt: skip
        if not has_room(self._blobs.incoming, size):
            raise HttpProblem(503, "unavailable", "the disk has no room for a model of this size", retry_after=600)
        deadline = time.monotonic() + self._limits.body_seconds
        with ExitStack() as stack:  # all of them first: what is kept is swept where no job comes of it within a minute
            spools = {pin: stack.enter_context(IncomingBlob(self._blobs)) for pin in pins if not self._here(pin)}
            for pin, spool in spools.items():
                for piece in self._pieces(pin, deadline):
                    spool.write(piece)
            for pin, spool in spools.items():
                self._known.pop(pin, None)
                self._known[pin] = spool.keep()
            digests = [self._kept(pin, spools) for pin in pins]
        for pin in list(self._known)[:-_REMEMBERED]:
            del self._known[pin]
        with self._blobs.path(digests[model]).open("rb") as file:
            media = recognised(file.read(64), pins[model].size, must_be_json=False)
        beside = {name: digest for n, (name, digest) in enumerate(zip(names, digests, strict=True)) if n != model}
        return ReceivedModel(digests[model], packed(beside), media, names[model], size)

    def deliver(self, files: Mapping[str, Path], folder: str) -> dict[str, str]:
        """Write files below the prefix for results; what is there under these names is written over.

        Args:
            files: by name.
            folder: in which they belong together.

        Returns:
            Their references.

        Raises:
            HttpProblem: 409 there is no such prefix; 503 the store does not take them.
        """
        if self._results is None:
            raise HttpProblem(409, "conflict", "this service writes to no store: superopt serve --store-results "
                          "s3://BUCKET/FOLDER/")  # fmt: skip
        import obstore

        made = {}
        for name, path in files.items():
            place = _Place(self._results.bucket, f"{self._results.key}{folder}/{name}")
            with _said(place), path.open("rb") as file:
                obstore.put(_store(place.bucket), place.key, file, max_concurrency=2)
            made[name] = str(place)
        return made

    def _place(self, text: str) -> _Place:
        """What a client means.

        Raises:
            HttpProblem: 400 or 403.
        """
        if not self._allowed:
            raise _wrong(400, "invalid-parameter", "this service reads from no store; send the model, or have its "
                         "operator start it with --store s3://BUCKET/FOLDER/")  # fmt: skip
        place = _parsed(text)
        if place is None:
            raise _wrong(400, "invalid-parameter", f"{text[:200]!r} is no reference; write s3://BUCKET/KEY")
        if not any(place.below(prefix) for prefix in self._allowed):
            raise _wrong(403, "forbidden", f"{place} is not where this service reads; that is below "
                         f"{', '.join(self.prefixes)}")  # fmt: skip
        return place

    def _pinned(self, place: _Place) -> list[_Pin]:
        """What is there now, of an object or of the files directly in a folder."""
        import obstore

        store = _store(place.bucket)
        with _said(place):
            if place.key and not place.key.endswith("/"):
                found = [obstore.head(store, place.key)]
            else:
                chunks = obstore.list(store, place.key, chunk_size=FILES + 1)
                found = list(next(iter(chunks), ()))
        if len(found) > FILES:
            raise _wrong(413, "too-large", f"more than {FILES} objects are below {place}; name the model's own files")
        pins = [_Pin(_Place(place.bucket, m["path"]), int(m["size"]), str(m["e_tag"] or "")) for m in found]
        pins = [p for p in pins if p.place.key.rpartition("/")[0] == place.key.rpartition("/")[0]]
        if place.key.endswith("/") or not place.key:
            pins = [p for p in pins if p.size and is_file_name(p.place.name)]
        if not pins:
            raise _wrong(422, "invalid-reference", f"there are no files directly in {place}; a reference to one file "
                         "does not end in a slash")  # fmt: skip
        for pin in pins:
            if not is_file_name(pin.place.name):
                raise _wrong(422, "invalid-reference", f"{pin.place}: {pin.place.name[:80]!r} is no name for a file")
            if not pin.tag:
                raise _wrong(422, "invalid-reference", f"{pin.place}: its store gives no ETag by which to hold it")
        return pins

    def _here(self, pin: _Pin) -> bool:
        """Whether this content came before and is still kept; it then stays as long as one that comes now."""
        digest = self._known.get(pin)
        if digest is None:
            return False
        other = self._blobs.incoming / f"in-{uuid.uuid4().hex}"
        try:
            os.link(self._blobs.path(digest), other)
        except FileNotFoundError:
            return False
        self._blobs.place(other, digest)
        return True

    def _kept(self, pin: _Pin, came: Mapping[_Pin, IncomingBlob]) -> str:
        if pin not in came and not self._here(pin):  # swept while others came, which took longer than that
            raise HttpProblem(503, "unavailable", f"{pin.place} is not kept any more; ask again", retry_after=1)
        return self._known[pin]

    def _pieces(self, pin: _Pin, deadline: float) -> Iterator[bytes]:
        import obstore

        for start in range(0, pin.size, self._piece):
            if time.monotonic() > deadline:
                raise HttpProblem(
                    503,
                    "unavailable",
                    f"{pin.place}: the store brought {start} bytes of {pin.size} within "
                    f"{self._limits.body_seconds:g} s",
                    retry_after=60,
                )
            wanted = (start, min(start + self._piece, pin.size))
            with _said(pin.place):
                found = obstore.get(
                    _store(pin.place.bucket), pin.place.key, options={"range": wanted, "if_match": pin.tag}
                )
                piece = bytes(found.bytes())
            if len(piece) != wanted[1] - wanted[0]:
                raise HttpProblem(
                    503, "unavailable", f"{pin.place}: the store brought less than it said", retry_after=10
                )
            yield piece


@lru_cache(maxsize=64)
def _store(bucket: str) -> Any:
    """A bucket, with what the environment says of endpoint, region and credentials."""
    from datetime import timedelta

    from obstore.store import S3Store

    endpoint = next((os.environ[n] for n in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
                     if os.environ.get(n)), "")  # fmt: skip
    options = {"allow_http": endpoint.startswith("http://"), "connect_timeout": _PATIENCE, "timeout": "30s"}
    retries = {"max_retries": _TRIES, "retry_timeout": timedelta(seconds=20)}
    where = {"endpoint": endpoint} if endpoint else {}
    return S3Store(bucket, **where, client_options=options, retry_config=retries)


@contextmanager
def _said(place: _Place) -> Iterator[None]:
    """What a store refuses, as a problem that names the object and nothing of the store's own answer."""
    from obstore import exceptions

    try:
        yield
    except exceptions.PreconditionError:
        raise HttpProblem(409, "conflict", f"{place} was changed while it was read; ask again") from None
    except FileNotFoundError:
        raise _wrong(422, "invalid-reference", f"there is no {place}; look for its name in the store") from None
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError):
        raise _wrong(422, "invalid-reference", f"the store does not give {place} to this service; its operator says "
                     "what the service may do there") from None  # fmt: skip
    except exceptions.BaseError as error:
        kind = "wants something else" if "status code: 4" in str(error) else "does not answer"
        raise HttpProblem(503, "unavailable", f"{place}: the store {kind}", retry_after=10) from error


def _wrong(status: int, kind: str, detail: str) -> HttpProblem:
    return HttpProblem(status, kind, detail, errors=[{"parameter": "source", "detail": detail}])


def _parsed(text: str) -> _Place | None:
    """A reference; ``None`` where it is none. No part of a key is ``.`` or ``..`` or empty."""
    bucket, slash, key = text.removeprefix(_SCHEME).partition("/")
    parts = key.split("/")
    whole = all(part not in ("", ".", "..") for part in (parts if parts[-1] else parts[:-1]))
    good = text.startswith(_SCHEME) and slash and _BUCKET.fullmatch(bucket) and _KEY.fullmatch(key) and whole
    return _Place(bucket, key) if good else None


def _prefix(text: str) -> _Place:
    """A prefix of the operator's, up to a slash.

    Raises:
        UsageError: it is none.
    """
    place = _parsed(text if text.endswith("/") else f"{text}/")
    if place is None:
        raise UsageError(f"{text!r} is no place in a store", hint="write s3://BUCKET/FOLDER/ or s3://BUCKET/")
    return place

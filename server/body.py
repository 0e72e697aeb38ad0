"""Receiving a body: counted, hashed and spooled to disk while it streams; slow, oversize and encoded ones refused."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from superopt.server.blobs import Blobs, Spool
from superopt.server.problems import Problem
from superopt.server.settings import Limits

__all__ = ["GRAPH_JSON", "MULTIPART", "ONNX", "Upload", "receive"]

GRAPH_JSON = "application/vnd.superopt.graph+json"
ONNX = "application/octet-stream"
MULTIPART = "multipart/form-data"
_MEDIA = {
    GRAPH_JSON: GRAPH_JSON, "application/json": GRAPH_JSON,
    ONNX: ONNX, "application/x-onnx": ONNX, "application/onnx": ONNX, "application/vnd.onnx": ONNX,
}  # fmt: skip
_WEIGHTS = "weights.safetensors"
_FIELD = 4096  # bytes of a form field
_FIELDS = 32
_JSON = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*\{")
_SPACE = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*")
_READS = (
    f"send {GRAPH_JSON}, ONNX as {ONNX}, or multipart/form-data with the parts graph and {_WEIGHTS}"
)  # fmt: skip


@dataclass
class Upload:
    """What a client sent, in the store.

    Attributes:
        model: blob of the graph. weights: blob of the safetensors file, if one came with it.
        media: of the graph, by its content.
        fields: the other fields of a form.
    """

    model: str = ""
    weights: str | None = None
    media: str = ""
    filename: str = ""
    size: int = 0
    fields: dict[str, list[str]] = field(default_factory=dict)


async def receive(request: Request, blobs: Blobs, limits: Limits, most: int) -> Upload:
    """Read the body of a request into the store.

    Args:
        request: with a body in one of the media types that are read.
        blobs: where it goes.
        limits: for how slow it may be.
        most: bytes of the whole body.

    Raises:
        Problem: 408, 413, 415 or 422; nothing is kept then.
    """
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise Problem(415, "unsupported-media-type", "encoded (compressed) bodies are not read",
                      headers={"Accept-Encoding": "identity"})  # fmt: skip
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > most:
        raise _too_large(most)
    kind, parameters = parse_options_header(request.headers.get("content-type", ""))
    media = kind.decode("latin-1").lower()
    chunks = _chunks(request, limits, most)
    if media == MULTIPART:
        return await _multipart(chunks, parameters.get(b"boundary", b""), blobs)
    if media not in _MEDIA:
        raise Problem(415, "unsupported-media-type", f"{media[:80] or 'a body without a type'!r} is not read; {_READS}",
                      headers={"Accept-Post": f"{GRAPH_JSON}, {ONNX}, multipart/form-data"})  # fmt: skip
    with Spool(blobs) as spool:
        async for chunk in chunks:
            spool.write(chunk)
        found = _recognised(spool.head, spool.size, must_be_json=_MEDIA[media] == GRAPH_JSON)
        return Upload(spool.keep(), None, found, size=spool.size)


async def _chunks(request: Request, limits: Limits, most: int) -> AsyncIterator[bytes]:
    """The pieces of the body as they come."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limits.body_seconds
    size = 0
    while True:
        patience = min(limits.body_idle, deadline - loop.time())
        try:
            message = await asyncio.wait_for(request.receive(), max(patience, 0.001))
        except TimeoutError:
            raise Problem(408, "body-timeout", f"no data for {limits.body_idle:g} s, or not all of it within "
                          f"{limits.body_seconds:g} s", headers={"Connection": "close"}) from None  # fmt: skip
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > most:
            raise _too_large(most)
        if chunk:
            yield chunk
        if not message.get("more_body", False):
            return


def _too_large(most: int) -> Problem:
    return Problem(413, "too-large", f"the body is larger than {most} bytes; GET /v1/limits shows the limits")


def _recognised(head: bytes, size: int, *, must_be_json: bool) -> str:
    """The media type by content."""
    if size == 0:
        raise Problem(422, "invalid-model", "the model is empty", errors=[{"detail": "is empty"}])
    blank = _SPACE.fullmatch(head) is not None and size > len(head)  # a long run of spaces: the reader will say
    if _JSON.match(head) or blank:
        return GRAPH_JSON
    if must_be_json:
        raise Problem(
            422, "invalid-model", "the body is not a JSON object", errors=[{"detail": "is not a JSON object"}]
        )
    return ONNX


class _Form:
    """The parts of a multipart body, as the parser announces them: files into spools, fields into memory."""

    def __init__(self, blobs: Blobs, stack: ExitStack) -> None:
        self._blobs, self._stack = blobs, stack
        self.upload = Upload()
        self.spools: dict[str, Spool] = {}
        self.ended = False
        self._name, self._value = b"", b""
        self._headers: dict[bytes, bytes] = {}
        self._spool: Spool | None = None
        self._text: bytearray = bytearray()

    def on_part_begin(self) -> None:
        self._headers, self._spool, self._text = {}, None, bytearray()

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def on_header_end(self) -> None:
        self._headers[self._name.lower()] = self._value
        self._name, self._value = b"", b""

    def on_headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._part = options.get(b"name", b"").decode("utf-8", "replace")
        filename = options.get(b"filename", b"").decode("utf-8", "replace")
        if self._part not in ("graph", "weights", _WEIGHTS):
            if sum(map(len, self.upload.fields.values())) >= _FIELDS:
                raise Problem(413, "too-large", f"more than {_FIELDS} form fields")
            return
        slot = "graph" if self._part == "graph" else "weights"
        if slot in self.spools:
            raise Problem(422, "invalid-model", f"the part {slot!r} was sent twice")
        if slot == "graph":
            self.upload.filename = filename
        self._spool = self.spools[slot] = self._stack.enter_context(Spool(self._blobs))

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._spool is not None:
            self._spool.write(memoryview(data)[start:end])
        elif len(self._text) + end - start > _FIELD:
            raise Problem(413, "too-large", f"the form field {self._part[:80]!r} is longer than {_FIELD} bytes")
        else:
            self._text += data[start:end]

    def on_part_end(self) -> None:
        if self._spool is None:
            self.upload.fields.setdefault(self._part, []).append(self._text.decode("utf-8", "replace"))

    def on_end(self) -> None:
        self.ended = True


async def _multipart(chunks: AsyncIterator[bytes], boundary: bytes | str, blobs: Blobs) -> Upload:
    raw = boundary if isinstance(boundary, bytes) else boundary.encode("latin-1")
    if not 0 < len(raw) <= 70:
        raise Problem(415, "unsupported-media-type", "multipart/form-data needs a boundary of 1 to 70 characters")
    with ExitStack() as stack:
        form = _Form(blobs, stack)
        callbacks = {name: getattr(form, name) for name in dir(form) if name.startswith("on_")}
        try:
            parser = MultipartParser(raw, callbacks)  # type: ignore[arg-type]
            async for chunk in chunks:
                parser.write(chunk)
            parser.finalize()
        except FormParserError:
            raise Problem(422, "invalid-model", "the body is not well-formed multipart/form-data") from None
        if not form.ended:
            raise Problem(422, "invalid-model", "the body ends before its last part")
        return _kept(form)


def _kept(form: _Form) -> Upload:
    upload = form.upload
    graph, weights = form.spools.get("graph"), form.spools.get("weights")
    if graph is None or (graph.size == 0 and not upload.filename and "example" in upload.fields):
        return upload  # the caller says whether a graph is needed
    upload.media = _recognised(graph.head, graph.size, must_be_json=False)
    upload.model, upload.size = graph.keep(), graph.size
    if weights is not None and weights.size:
        upload.weights = weights.keep()
        upload.size += weights.size
    return upload

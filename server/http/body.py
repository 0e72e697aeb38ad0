"""Receiving a body: counted, hashed and spooled to disk while it streams; slow, oversize and encoded ones refused.

The head of a request says where its body ends (RFC 9112, sections 3.2, 6.1 and 6.3). Ambiguous heads are refused,
because proxies may read them otherwise.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from superopt.server.http.problems import HttpProblem
from superopt.server.jobs.blobs import Blobs, IncomingBlob
from superopt.server.settings import ServiceLimits

__all__ = [
    "FILES", "GRAPH_JSON", "MODEL_FILE", "MULTIPART", "ONNX", "ReceivedModel", "is_file_name", "model_of", "packed",
    "pieces", "read_head", "receive", "recognised", "sidecars",
]  # fmt: skip

GRAPH_JSON = "application/vnd.superopt.graph+json"
ONNX = "application/octet-stream"
MULTIPART = "multipart/form-data"
_MEDIA = {
    GRAPH_JSON: GRAPH_JSON, "application/json": GRAPH_JSON,
    ONNX: ONNX, "application/x-onnx": ONNX, "application/onnx": ONNX, "application/vnd.onnx": ONNX,
}  # fmt: skip
_WEIGHTS = "weights.safetensors"
_MODEL = (".onnx", ".json")
MODEL_FILE = "model"  # what the model is called where it is worked at
FILES = 256  # files beside a model
_FILE_NAME = re.compile(r"\w[\w\u0300-\u036f .+@#=,()-]*")  # the name of one: no folder, no hidden file, any script
_NAME_BYTES = 200
_ELSEWHERE = frozenset({"example", "source"})  # fields that may say which model, in place of a file
_FIELD = 4096  # bytes of a form field
_FIELDS = 32
_JSON = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*\{")
_SPACE = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*")
_READS = (
    f"send {GRAPH_JSON}, ONNX as {ONNX}, or multipart/form-data with the parts graph and {_WEIGHTS}, or graph and "
    "parts named data, each with the file name that the model has for it (model.onnx.data)"
)  # fmt: skip


@dataclass
class ReceivedModel:
    """What a client sent, in the store.

    Attributes:
        model: blob of the graph.
        weights: what came with it: the blob of the safetensors file, or JSON of names and blobs (:func:`sidecars`).
        media: of the graph, by its content.
        fields: the other fields of a form.
    """

    model: str = ""
    weights: str | None = None
    media: str = ""
    filename: str = ""
    size: int = 0
    fields: dict[str, list[str]] = field(default_factory=dict)


def sidecars(weights: str | None) -> dict[str, str]:
    """The files that came with a model: name → blob."""
    if weights is None:
        return {}
    found: dict[str, str] = json.loads(weights) if weights.startswith("{") else {_WEIGHTS: weights}
    return found


def packed(files: Mapping[str, str]) -> str | None:
    """The files that came with a model, as :func:`sidecars` reads them."""
    if not files:
        return None
    return files[_WEIGHTS] if list(files) == [_WEIGHTS] else json.dumps(dict(files), sort_keys=True)


def model_of(names: Sequence[str]) -> int:
    """Which of several files is the model: a single one, else the only one that is called ``.onnx`` or ``.json``.

    Raises:
        HttpProblem: 422 where that is not clear, or two have one name.
    """
    models = [n for n, name in enumerate(names) if name.endswith(_MODEL) or len(names) == 1]
    if len(models) != 1 or len(set(names)) < len(names):
        raise HttpProblem(422, "invalid-model", f"of {', '.join(names)[:300]} exactly one has to be a model (.onnx or "
                      ".json), and each name may be there once")  # fmt: skip
    return models[0]


async def receive(request: Request, blobs: Blobs, limits: ServiceLimits, most: int) -> ReceivedModel:
    """Read the body of a request into the store.

    Args:
        request: with a body in one of the media types that are read.
        blobs: where it goes.
        limits: for how slow it may be.
        most: bytes of the whole body.

    Raises:
        HttpProblem: 408, 413, 415 or 422; nothing is kept then.
    """
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise HttpProblem(415, "unsupported-media-type", "encoded (compressed) bodies are not read",
                      headers={"Accept-Encoding": "identity"})  # fmt: skip
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > most:
        raise _too_large(most)
    kind, parameters = parse_options_header(request.headers.get("content-type", ""))
    media = kind.decode("latin-1").lower()
    chunks = pieces(request, limits, most)
    if media == MULTIPART:
        return await _multipart(chunks, parameters.get(b"boundary", b""), blobs)
    if media not in _MEDIA:
        raise HttpProblem(
            415,
            "unsupported-media-type",
            f"{media[:80] or 'a body without a type'!r} is not read; {_READS}",
            headers={"Accept-Post": f"{GRAPH_JSON}, {ONNX}, multipart/form-data"},
        )
    with IncomingBlob(blobs) as spool:
        async for chunk in chunks:
            spool.write(chunk)
        found = recognised(spool.head, spool.size, must_be_json=_MEDIA[media] == GRAPH_JSON)
        return ReceivedModel(spool.keep(), None, found, size=spool.size)


async def pieces(request: Request, limits: ServiceLimits, most: int) -> AsyncIterator[bytes]:
    """The pieces of the body as they come."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limits.body_seconds
    size = 0
    while True:
        patience = min(limits.body_idle, deadline - loop.time())
        try:
            message = await asyncio.wait_for(request.receive(), max(patience, 0.001))
        except TimeoutError:
            raise HttpProblem(408, "body-timeout", f"no data for {limits.body_idle:g} s, or not all of it within "
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


def _too_large(most: int) -> HttpProblem:
    return HttpProblem(413, "too-large", f"the body is larger than {most} bytes; GET /v1/limits shows the limits")


def recognised(head: bytes, size: int, *, must_be_json: bool) -> str:
    """The media type of a model by its first bytes.

    Raises:
        HttpProblem: 422 where it is empty, or should be JSON and is not.
    """
    if size == 0:
        raise HttpProblem(422, "invalid-model", "the model is empty", errors=[{"detail": "is empty"}])
    blank = _SPACE.fullmatch(head) is not None and size > len(head)  # a long run of spaces: the reader will say
    if _JSON.match(head) or blank:
        return GRAPH_JSON
    if must_be_json:
        raise HttpProblem(
            422, "invalid-model", "the body is not a JSON object", errors=[{"detail": "is not a JSON object"}]
        )
    return ONNX


def is_file_name(name: str) -> bool:
    """Whether a file beside a model may be called so."""
    return bool(_FILE_NAME.fullmatch(name)) and name != MODEL_FILE and len(name.encode()) <= _NAME_BYTES


class _Form:
    """The parts of a multipart body, as the parser announces them: files into spools, fields into memory."""

    def __init__(self, blobs: Blobs, stack: ExitStack) -> None:
        self._blobs, self._stack = blobs, stack
        self.upload = ReceivedModel()
        self.spools: dict[str, IncomingBlob] = {}
        self.ended = False
        self._name, self._value = b"", b""
        self._headers: dict[bytes, bytes] = {}
        self._spool: IncomingBlob | None = None
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
        if self._part not in ("graph", "weights", _WEIGHTS, "data"):
            if sum(map(len, self.upload.fields.values())) >= _FIELDS:
                raise HttpProblem(413, "too-large", f"more than {_FIELDS} form fields")
            return
        slot = self._slot(filename)
        self._spool = self.spools.get(slot)
        if self._spool is not None and self._spool.size:
            raise HttpProblem(422, "invalid-model", f"{slot[:80] or 'graph'!r} was sent twice")
        if len(self.spools) > FILES:
            raise HttpProblem(413, "too-large", f"more than {FILES} files")
        if slot == "":
            self.upload.filename = filename
        if self._spool is None:  # an empty part before it, as forms send where no file was chosen, left its file open
            self._spool = self.spools[slot] = self._stack.enter_context(IncomingBlob(self._blobs))

    def _slot(self, filename: str) -> str:
        """Under which name a file is kept beside the model; empty is the model."""
        if self._part == "graph":
            return ""
        name = re.split(r"[\\/]", filename)[-1]
        if self._part == _WEIGHTS or (self._part == "weights" and (not name or name.endswith(".safetensors"))):
            return _WEIGHTS
        if not is_file_name(name):
            raise HttpProblem(422, "invalid-model", f"{name[:80]!r} is no name for a file beside a model; the part "
                          f"{self._part!r} needs the file name that the model has for it")  # fmt: skip
        return name

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._spool is not None:
            self._spool.write(memoryview(data)[start:end])
        elif len(self._text) + end - start > _FIELD:
            raise HttpProblem(413, "too-large", f"the form field {self._part[:80]!r} is longer than {_FIELD} bytes")
        else:
            self._text += data[start:end]

    def on_part_end(self) -> None:
        if self._spool is None:
            self.upload.fields.setdefault(self._part, []).append(self._text.decode("utf-8", "replace"))

    def on_end(self) -> None:
        self.ended = True


async def _multipart(chunks: AsyncIterator[bytes], boundary: bytes | str, blobs: Blobs) -> ReceivedModel:
    raw = boundary if isinstance(boundary, bytes) else boundary.encode("latin-1")
    if not 0 < len(raw) <= 70:
        raise HttpProblem(415, "unsupported-media-type", "multipart/form-data needs a boundary of 1 to 70 characters")
    with ExitStack() as stack:
        form = _Form(blobs, stack)
        callbacks = {name: getattr(form, name) for name in dir(form) if name.startswith("on_")}
        try:
            parser = MultipartParser(raw, callbacks)  # type: ignore[arg-type]
            async for chunk in chunks:
                parser.write(chunk)
            parser.finalize()
        except FormParserError:
            raise HttpProblem(422, "invalid-model", "the body is not well-formed multipart/form-data") from None
        if not form.ended:
            raise HttpProblem(422, "invalid-model", "the body ends before its last part")
        return _kept(form)


def _kept(form: _Form) -> ReceivedModel:
    upload = form.upload
    graph = form.spools.get("")
    if graph is None or (graph.size == 0 and not upload.filename and _ELSEWHERE & upload.fields.keys()):
        return upload  # the caller says whether a graph is needed
    upload.media = recognised(graph.head, graph.size, must_be_json=False)
    upload.model, upload.size = graph.keep(), graph.size
    beside = {name: spool for name, spool in form.spools.items() if name and spool.size}
    upload.weights = packed({name: spool.keep() for name, spool in beside.items()})
    upload.size += sum(spool.size for spool in beside.values())
    return upload


@dataclass(frozen=True)
class RequestBodyFraming:
    """Where the body ends.

    Attributes:
        length: of the body in bytes; ``None`` is chunked.
        forwarded: all ``X-Forwarded-For`` as one list, as it came.
    """

    length: int | None
    forwarded: str = ""


def read_head(version: str, headers: Sequence[tuple[bytes, bytes]], *, upgrade: bool, most: int) -> RequestBodyFraming:
    """Check the headers that decide how the rest of the connection is read.

    Args:
        version: of HTTP, as ``1.1``.
        headers: names in lower case.
        upgrade: whether the client asks for another protocol, which is ignored.
        most: bytes of a body.

    Raises:
        HttpProblem: 400, 413, 417, 501 or 505.
    """
    if version not in ("1.0", "1.1"):
        raise HttpProblem(505, "http-version", "HTTP/1.1 and HTTP/1.0 are spoken here")
    seen: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        seen.setdefault(name, []).append(value)
    hosts = seen.get(b"host", ())
    if len(hosts) > 1 or (not hosts and version == "1.1"):
        raise HttpProblem(400, "bad-request", "send exactly one Host header")
    if any(value.strip().lower() != b"100-continue" for value in seen.get(b"expect", ())):
        raise HttpProblem(417, "expectation-failed", "the only expectation that is met is 100-continue")
    length = _length(version, seen, most)
    if upgrade and length != 0:  # the parser takes what follows for the other protocol
        raise HttpProblem(400, "bad-request", "a request to change the protocol cannot have a body; leave Upgrade out")
    return RequestBodyFraming(length, b", ".join(seen.get(b"x-forwarded-for", ())).decode("latin-1"))


def _length(version: str, seen: dict[bytes, list[bytes]], most: int) -> int | None:
    codings, lengths = seen.get(b"transfer-encoding"), seen.get(b"content-length", [])
    if codings is not None:
        if lengths or version == "1.0":
            raise HttpProblem(400, "bad-request", "send Content-Length, or Transfer-Encoding with HTTP/1.1; never both")
        if [coding.strip().lower() for coding in codings] != [b"chunked"]:
            raise HttpProblem(501, "not-implemented", "the only transfer coding that is understood is chunked")
        return None
    if len(lengths) > 1 or not all(value.isdigit() for value in lengths):
        raise HttpProblem(400, "bad-request", "Content-Length is not one number")
    digits = lengths[0].lstrip(b"0") if lengths else b""
    if len(digits) > 18 or int(digits or b"0") > most:
        raise HttpProblem(413, "too-large", f"the body is larger than {most} bytes; GET /v1/limits shows the limits")
    return int(digits or b"0")

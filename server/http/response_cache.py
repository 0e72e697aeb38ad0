"""A cache of responses about the library, which are the same as long as the process lives, as the bytes that were sent.

A kept answer costs a look into a dictionary, whatever it took to make: no routing, no validation, no JSON.
"""

from __future__ import annotations

import gzip
from collections import OrderedDict
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from superopt.server.http.conditional_requests import is_current

__all__ = ["ResponseCache"]

_PLACES = ("/v1/rules", "/v1/operators", "/v1/profiles", "/v1/gallery")
_PAGES = ("/rules",)  # not those of single rules: they say when a certificate was made
_NEVER = ("/certificate", "/trial")  # large, or as many as there are seeds
_MOST = 16 << 20  # bytes that are kept in all
_SHORT = 1024  # bytes below which compressing does not pay
_NAME = 300  # bytes of an address that is kept


@dataclass(frozen=True)
class _Kept:
    headers: list[tuple[bytes, bytes]]
    body: bytes
    packed: bytes
    tag: bytes
    route: str

    @property
    def size(self) -> int:
        return len(self.body) + len(self.packed) + 1024


class ResponseCache:
    """Plain ASGI in front of the routes; a kept answer is what the route said, byte for byte."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._kept: OrderedDict[tuple[str, bytes], _Kept] = OrderedDict()
        self._size = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or scope["method"] != "GET" or not _kept_here(path):
            await self._app(scope, receive, send)
            return
        key = (path, scope["query_string"])
        kept = self._kept.get(key)
        if kept is None:
            kept = await self._ask(key, scope, receive, send)
            if kept is None:
                return
        else:
            self._kept.move_to_end(key)
        scope["superopt.route"] = kept.route
        await _answer(kept, dict(scope["headers"]), send)

    async def _ask(self, key: tuple[str, bytes], scope: Scope, receive: Receive, send: Send) -> _Kept | None:
        """Have the route answer; ``None`` where that went straight to the client, because it is not to be kept."""
        start: Message = {}
        parts: list[bytes] = []

        async def listen(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and message["status"] == 200:
                start = message
            elif not start:
                await send(message)
            else:
                parts.append(message.get("body", b""))

        # The route must not answer 304 to this client's tag: what it says is kept for others.
        asked = [(n, v) for n, v in scope["headers"] if n != b"if-none-match"]
        inner = {**scope, "headers": asked}
        await self._app(inner, receive, listen)
        scope["superopt.route"] = getattr(inner.get("route"), "path_format", "none")
        if not start:
            return None
        body = b"".join(parts)
        tag = dict(start["headers"]).get(b"etag", b"")
        headers = [(n, v) for n, v in start["headers"] if n not in (b"content-length", b"etag")]
        headers.append((b"vary", b"Accept-Encoding"))
        if tag:
            headers.append((b"etag", b"W/" + tag))  # weak: it is the same for both encodings
        packed = gzip.compress(body, 6, mtime=0) if len(body) > _SHORT else b""
        kept = _Kept(headers, body, packed, tag, scope["superopt.route"])
        if len(key[0]) + len(key[1]) <= _NAME:
            self._keep(key, kept)
        return kept

    def _keep(self, key: tuple[str, bytes], kept: _Kept) -> None:
        before = self._kept.pop(key, None)
        self._size += kept.size - (before.size if before else 0)
        self._kept[key] = kept
        while self._size > _MOST:
            _, oldest = self._kept.popitem(last=False)
            self._size -= oldest.size


def _kept_here(path: str) -> bool:
    return path in _PAGES or (path.startswith(_PLACES) and not path.endswith(_NEVER))


async def _answer(kept: _Kept, asked: dict[bytes, bytes], send: Send) -> None:
    headers, body, status = [*kept.headers], kept.body, 200
    if kept.tag and is_current(asked.get(b"if-none-match", b"").decode("latin-1"), kept.tag.decode("latin-1")):
        status, body = 304, b""
        headers = [(n, v) for n, v in headers if n != b"content-type"]
    else:
        if kept.packed and _takes_gzip(asked.get(b"accept-encoding", b"")):
            body = kept.packed
            headers.append((b"content-encoding", b"gzip"))
        headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _takes_gzip(header: bytes) -> bool:
    for part in header.lower().split(b","):
        name, _, quality = part.strip().partition(b";")
        if name.strip() in (b"gzip", b"*"):
            return quality.replace(b" ", b"").rstrip(b"0.") not in (b"q=", b"q")
    return False

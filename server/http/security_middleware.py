"""In front of every route: security headers, refusal of foreign sites and host names, counting, a line of the log."""

from __future__ import annotations

import logging
import re
import secrets
import time
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from superopt.server.http.health import PATHS
from superopt.server.http.logs import REQUESTS
from superopt.server.http.problems import HttpProblem
from superopt.server.optimization_service import OptimizationService
from superopt.server.settings import LOOPBACK

__all__ = ["CSP", "SECURITY", "UNREAD", "SecurityMiddleware", "UnreadBodyTracker"]

CSP = (
    "default-src 'none'; style-src 'self'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; font-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
SECURITY = [
    (b"content-security-policy", CSP.encode()), (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"), (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]  # fmt: skip
log = logging.getLogger(REQUESTS)
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")
UNREAD = "superopt.unread"  # in a scope: whether some of the body has not come
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class UnreadBodyTracker:
    """Whether some of a request's body has not come yet."""

    __slots__ = ("yes",)

    def __init__(self, yes: bool = True) -> None:
        self.yes = yes


_ALL_READ = UnreadBodyTracker(False)


class SecurityMiddleware:
    """Plain ASGI, so that bodies and streams pass through untouched."""

    def __init__(self, app: ASGIApp, service: OptimizationService) -> None:
        self._app = app
        self._service = service
        self._local = service.settings.private

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        began, status, size = time.monotonic(), 0, 0
        request_id = _request_id(scope)
        scope.setdefault("state", {})

        async def marked(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message.get("headers", ()), *SECURITY, (b"x-request-id", request_id.encode())
                ]  # fmt: skip
                if scope.get(UNREAD, _ALL_READ).yes:  # it will be closed: a client is not to ask again on it
                    message["headers"].append((b"connection", b"close"))
                self._count(scope, status)
            else:
                size += len(message.get("body", b""))
            await send(message)

        problem = self._refusal(scope)
        try:
            if problem is not None:
                await problem.response()(scope, receive, marked)
            else:
                await self._app(scope, receive, marked)
        finally:
            seconds = time.monotonic() - began
            outcome = f"{status // 100}xx" if status else "none"  # none: the client left first
            self._service.latency.observe(seconds, {"route": _route(scope), "outcome": outcome})
            level = logging.DEBUG if scope["path"] in PATHS else logging.INFO
            if log.isEnabledFor(level):
                log.log(level, "request", extra=_facts(scope, request_id, status, seconds, size))

    def _refusal(self, scope: Scope) -> HttpProblem | None:
        """A page of another site must not make a browser use the service that only this machine may use."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._local and _name(host) not in LOOPBACK:
            return HttpProblem(403, "forbidden", "this service answers to localhost only")
        origin = headers.get("origin")
        foreign = origin is not None and origin.partition("://")[2] != host
        if scope["method"] not in _SAFE and (foreign or headers.get("sec-fetch-site") == "cross-site"):
            return HttpProblem(403, "forbidden", "requests from pages of other sites are refused")
        return None

    def _count(self, scope: Scope, status: int) -> None:
        method = scope["method"] if scope["method"] in _SAFE | {"POST", "PUT", "PATCH", "DELETE"} else "other"
        key = (method, _route(scope), status)
        self._service.requests[key] = self._service.requests.get(key, 0) + 1


def _route(scope: Scope) -> str:
    """The template of the address, by which requests are counted."""
    route = scope.get("route")
    known = scope.get("superopt.route") or getattr(route, "path_format", None)
    return known or getattr(route, "path", None) or "none"


def _request_id(scope: Scope) -> str:
    """The id that a proxy or the client gave the request, or a new one."""
    given = Headers(scope=scope).get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)


def _facts(scope: Scope, request_id: str, status: int, seconds: float, size: int) -> dict[str, Any]:
    """What a line of the log says of a request; not its query, which may hold what is private."""
    client = scope.get("client")
    state = scope.get("state") or {}
    return {
        "request": request_id, "method": scope["method"], "path": scope["path"], "route": _route(scope),
        "status": status, "seconds": round(seconds, 6), "bytes": size, "client": client[0] if client else None,
        "key": state.get("key"), "job": state.get("job"),
    }  # fmt: skip


def _name(host: str) -> str | None:
    """The host name of a Host header."""
    try:
        return urlsplit(f"//{host}").hostname if "@" not in host else None
    except ValueError:
        return None

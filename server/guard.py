"""In front of every route: security headers, refusal of foreign sites and host names, counting."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from superopt.server.problems import Problem
from superopt.server.service import Service
from superopt.server.settings import LOOPBACK

__all__ = ["CSP", "SECURITY", "UNREAD", "Guard", "Unread"]

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
UNREAD = "superopt.unread"  # in a scope: whether some of the body has not come
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class Unread:
    """Whether some of a request's body has not come yet."""

    __slots__ = ("yes",)

    def __init__(self, yes: bool = True) -> None:
        self.yes = yes


_ALL_READ = Unread(False)


class Guard:
    """Plain ASGI, so that bodies and streams pass through untouched."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        self._local = service.settings.private

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *SECURITY]
                if scope.get(UNREAD, _ALL_READ).yes:  # it will be closed: a client is not to ask again on it
                    message["headers"].append((b"connection", b"close"))
                self._count(scope, message["status"])
            await send(message)

        problem = self._refusal(scope)
        if problem is not None:
            await problem.response()(scope, receive, marked)
        else:
            await self._app(scope, receive, marked)

    def _refusal(self, scope: Scope) -> Problem | None:
        """A page of another site must not make a browser use the service that only this machine may use."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._local and _name(host) not in LOOPBACK:
            return Problem(403, "forbidden", "this service answers to localhost only")
        origin = headers.get("origin")
        foreign = origin is not None and origin.partition("://")[2] != host
        if scope["method"] not in _SAFE and (foreign or headers.get("sec-fetch-site") == "cross-site"):
            return Problem(403, "forbidden", "requests from pages of other sites are refused")
        return None

    def _count(self, scope: Scope, status: int) -> None:
        route = scope.get("route")
        method = scope["method"] if scope["method"] in _SAFE | {"POST", "PUT", "DELETE"} else "other"
        known = scope.get("superopt.route") or getattr(route, "path_format", None)
        path = known or getattr(route, "path", None) or "none"
        key = (method, path, status)
        self._service.requests[key] = self._service.requests.get(key, 0) + 1


def _name(host: str) -> str | None:
    """The host name of a Host header."""
    try:
        return urlsplit(f"//{host}").hostname if "@" not in host else None
    except ValueError:
        return None

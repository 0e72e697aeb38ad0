"""HEAD is GET without the body (RFC 9110, section 9.3.2), for every resource that does not answer it by itself."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["ASKED", "HeadAsGet"]

ASKED = "superopt.head"  # in a scope: a HEAD that is routed as a GET


class HeadAsGet:
    """Plain ASGI in front of the routes.

    Args:
        app: that answers GET.
        routes: among them those that answer HEAD by themselves.
    """

    def __init__(self, app: ASGIApp, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self._own = [r for r in routes if isinstance(r, Route) and "HEAD" in (r.methods or ())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD" or self._answers(scope):
            await self._app(scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        inner = {**scope, "method": "GET", ASKED: True}
        try:
            await self._app(inner, receive, without_body)
        finally:
            scope.update({name: inner[name] for name in ("route", "superopt.route") if name in inner})

    def _answers(self, scope: Scope) -> bool:
        return any(route.matches(scope)[0] is Match.FULL for route in self._own)

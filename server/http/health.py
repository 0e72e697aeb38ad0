"""Whether the service lives and can take jobs: looked at all the time, so that to answer takes no thread and no wait.

Whoever asks gets what the last look found. So an answer waits neither for the database nor for the threads that
requests share, and :class:`superopt.server.http.connection.HttpConnection` gives it in the moment it is asked for.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from pathlib import Path

from anyio import CapacityLimiter, to_thread
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from superopt.server.http.problems import HttpProblem
from superopt.server.jobs.job_watch import ended
from superopt.server.jobs.store import JobStore

__all__ = ["PATHS", "HealthMonitor", "HealthCheckMiddleware"]

PATHS = frozenset({"/livez", "/readyz"})
_EVERY = 0.25  # seconds from the end of a look to the next
_OLD = 3.0  # seconds after which a look that has not ended counts as one that failed
_ROOM = 1 << 18  # bytes that a small job leaves on the disk
_NO_DATABASE = "the database does not answer"


class HealthMonitor:
    """What the last look found.

    Args:
        store: whose database is asked.
        folder: that has to be writable, with some room on its disk.
    """

    def __init__(self, store: JobStore, folder: Path) -> None:
        self._store = store
        self._folder = folder
        self._found: tuple[str, int] | None = ("the service is starting", 1)  # what is wrong, and when to ask again
        self._at = time.monotonic()
        self._own = CapacityLimiter(1)  # a thread that waits behind no request
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Look once, and from now on."""
        await self._once()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Look no more."""
        await ended(self._task)

    def wrong(self) -> HttpProblem | None:
        """Why no job can be accepted; ``None`` where one can."""
        found = self._found if time.monotonic() - self._at < _OLD else (_NO_DATABASE, 2)
        return found and HttpProblem(503, "unavailable", found[0], retry_after=found[1])

    def answer(self, path: str) -> Response:
        """The answer of one of :data:`PATHS`."""
        problem = self.wrong() if path == "/readyz" else None
        return JSONResponse({"status": "ok"}) if problem is None else problem.response()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_EVERY)
            await self._once()

    async def _once(self) -> None:
        self._found = await to_thread.run_sync(self._look, limiter=self._own)
        self._at = time.monotonic()

    def _look(self) -> tuple[str, int] | None:
        try:
            self._store.look()
        except SQLAlchemyError:
            return _NO_DATABASE, 2
        try:
            if not os.access(self._folder, os.W_OK):
                return "the data folder cannot be written", 10
            return ("the data folder's disk is full", 10) if shutil.disk_usage(self._folder).free < _ROOM else None
        except OSError as error:
            return f"the data folder: {error.strerror}", 10


class HealthCheckMiddleware:
    """Plain ASGI in front of the routes: answers without waiting for anything, so that it need not be a task."""

    def __init__(self, app: ASGIApp, health: HealthMonitor) -> None:
        self._app = app
        self._health = health

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "GET" and scope["path"] in PATHS:
            scope["superopt.route"] = scope["path"]
            await self._health.answer(scope["path"])(scope, receive, send)
        else:
            await self._app(scope, receive, send)

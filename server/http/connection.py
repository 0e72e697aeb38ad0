"""One connection: uvicorn's HTTP/1.1 protocol, which reads no more than it may, and does not wait for ever.

llhttp parses, in C and strictly, but holds a header line in memory until it ends, however long it becomes. So this
protocol decides how much is read from the socket at a time, counts what the parser was given and what came out, and
ends what goes over a limit before a key is asked for or the application sees a request.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from enum import Enum, auto
from functools import partial
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from superopt.server.http.body import read_head
from superopt.server.http.connections import OpenConnections
from superopt.server.http.health import PATHS
from superopt.server.http.problems import MEDIA, HttpProblem
from superopt.server.http.security_middleware import SECURITY, UNREAD, UnreadBodyTracker
from superopt.server.http.socket_transport import BUFFER, HEAD, CountedWriteTransport

__all__ = ["HttpConnection"]

_FRAMING = 1 << 12  # bytes of chunk sizes and extensions beyond those of the body; then the body is mostly framing
_DRAIN = 1 << 18  # bytes that are still read from a refused client; then it has to stop sending to read the answer
_HEALTH = frozenset(path.encode() for path in PATHS)  # answered at once, and to whoever has too many requests in hand
_ASKS_HEALTH = re.compile(rb"GET /(?:livez|readyz)[ ?]").match


class _Reading(Enum):
    NOTHING = auto()  # of the next request
    HEAD = auto()
    BODY = auto()
    DEAF = auto()  # what comes is thrown away: an answer that ends the connection is due, or was given


class HttpConnection(HttpToolsProtocol):
    """See the module. ``connections`` is shared by all connections of the process."""

    def __init__(self, connections: OpenConnections, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._door = connections
        self._limits = connections.limits
        self._reading = _Reading.NOTHING
        self._fresh = True  # nothing was asked yet
        self._head = self._lines = 0  # bytes and header lines of the request that is being read
        self._left: int | None = 0  # bytes of its body to come; None where it is chunked
        self._body = self._framing = self._bare = 0  # bytes of it: all, what is around it, and since some of it came
        self._since = self._last = self.loop.time()  # the client's turn began; it sent something
        self._owners: deque[str] = deque()  # of requests that are not answered yet
        self._last_word: HttpProblem | None = None  # to be said once they are
        self._upgrade = False
        self._unread = UnreadBodyTracker()  # of the request that is being read
        self._held = b""  # was read, and waits for its turn
        self._urgent = self._parsing = False  # what was asked last is to be answered at once; the parser is at work
        self._at_once: tuple[Any, Any] | None = None  # a request, and who answers it
        self._pieces: list[bytes] = []  # of the body
        self.leaving = False  # the last answer was written

    # --- coming and going --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count it; refuse it where there is no room."""
        self._raw = transport
        self._out = CountedWriteTransport(transport, self)
        super().connection_made(self._out)  # type: ignore[arg-type]
        self._host = self.client[0] if self.client else "local"
        problem = self._door.arrive(self, self._host)
        if problem is not None:
            self._refuse(problem)
            if not self._door.dismiss(self):
                self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it. Nothing refers to itself any more: a crowd that leaves is not left to the garbage collector."""
        self._gone()
        self._out.forget()
        self._last_word = None
        if self.cycle is None:
            super().connection_lost(exc)
            return
        if not self.cycle.response_complete:
            self.cycle.disconnected = True
        self._door.queue(self.loop, self._host, partial(self._let_go, exc))  # whoever waits for it wakes up in turn

    def _let_go(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.cycle = self.scope = None  # type: ignore[assignment]
        self.pipeline.clear()

    def _gone(self) -> None:
        self._door.leave(self)
        while self._owners:
            self._door.end(self._owners.popleft())

    @property
    def deaf(self) -> bool:
        """Whether nothing that comes is of interest any more."""
        return self._reading is _Reading.DEAF and not self.leaving

    @property
    def held(self) -> bool:
        """Whether what was read waits for its turn."""
        return bool(self._held)

    def evict(self) -> None:
        """Close it at once: another connection needs the room."""
        if self._reading is _Reading.BODY and not self.leaving:
            self._refuse(HttpProblem(408, "body-timeout", "the service is full, and no more of the body came"))
        self._gone()
        if self._door.dismiss(self):
            self._raw.close()
        else:
            self.abort()

    def abort(self) -> None:
        """Close it, whatever is unsent."""
        self._raw.abort()

    def waited(self, now: float) -> float:
        """For how many seconds it is the client's turn."""
        return now - self._since

    def silent(self, now: float) -> float:
        """For how many seconds nothing of a body has come."""
        return now - self._last if self._reading is _Reading.BODY and not self.flow.read_paused else 0.0

    def close(self) -> None:
        """Close it once all is written; where something may still come, so that the client reads the answer first."""
        if self._reading in (_Reading.BODY, _Reading.DEAF):
            self._leave()
        else:
            self._raw.close()

    def _leave(self) -> None:
        """End this side of the connection, and throw away what comes for a moment; a close would reset it."""
        if self.leaving or self._raw.is_closing():
            return
        self.leaving, self._reading, self._since, self._body = True, _Reading.DEAF, self.loop.time(), 0
        self._door.waits(self, True)
        if self._raw.can_write_eof():
            self._raw.write_eof()
        self._raw.resume_reading()

    # --- reading -----------------------------------------------------------------------------------------------

    def room(self, hint: int) -> memoryview:
        """Where the next bytes go, and how many at most: never beyond a body whose length is known."""
        if self._reading is _Reading.BODY:
            return HEAD if self._left is None else BUFFER[: max(self._left, 1)]
        return BUFFER if self._reading is _Reading.DEAF else HEAD

    def received(self, count: int) -> None:
        """Parse what was read.

        Args:
            count: bytes in the buffer.
        """
        if self._reading is _Reading.DEAF:
            self._body += count
            if self._body > _DRAIN and self.leaving:
                self._raw.pause_reading()
            return
        self._last = self.loop.time()
        if self._door.busy and not (self._reading is _Reading.NOTHING and _ASKS_HEALTH(BUFFER[:count])):
            self._held = bytes(BUFFER[:count])
            self._raw.pause_reading()
            self._door.queue(self.loop, self._host, self._read_held)
        else:
            with self._door.work(self.loop):
                self._read(BUFFER[:count])

    def _read_held(self) -> None:
        """It is the turn of what was read before."""
        held, self._held = self._held, b""
        if self.parser is None or self._raw.is_closing() or self._reading is _Reading.DEAF:
            return
        self._read(held)
        if not self.flow.read_paused:
            self._out.resume_reading()

    def _read(self, data: bytes | memoryview) -> None:
        body, reading, count = self._body, self._reading, len(data)
        self._head += count
        self._parsing = True
        try:
            self.parser.feed_data(data)
            self._check_progress(count, body, reading)
            self._hand_over()
        except httptools.HttpParserUpgrade:  # what follows is in another protocol
            self._deafen()
        except httptools.HttpParserCallbackError as error:
            self._refuse(_meant(error))
        except httptools.HttpParserError as error:
            self._refuse(_malformed(error))
        except HttpProblem as problem:
            self._refuse(problem)
        finally:
            self._parsing = False
            self._answer_at_once()

    def _check_progress(self, count: int, body: int, before: _Reading) -> None:
        """What is not finished yet must not be too large already."""
        if self._reading is _Reading.BODY and before is _Reading.BODY and self._left is None:
            came = self._body - body
            self._framing += count - came
            self._bare = 0 if came else self._bare + count
            if self._bare > self._limits.header_bytes:
                raise HttpProblem(
                    431, "header-too-large", "chunk extensions or trailers are larger than all headers may be"
                )
            if self._framing > _FRAMING + self._body:
                raise HttpProblem(400, "bad-request", "chunk sizes, extensions and trailers are more than the body")
        elif self._reading is not _Reading.BODY and self._head > self._limits.header_bytes:
            raise self._too_large()

    def _too_large(self) -> HttpProblem:
        limit = self._limits
        return HttpProblem(
            431, "header-too-large",
            f"the headers are more than {limit.headers} lines, a line is longer than {limit.header_line} bytes, or all "
            f"of them are longer than {limit.header_bytes} bytes",
        )  # fmt: skip

    # --- what the parser says: an exception in here ends parsing ------------------------------------------------

    def on_message_begin(self) -> None:
        """The first byte of a request line."""
        if self._reading is not _Reading.NOTHING or self._owners:
            self._head = 0  # it began somewhere in what was read: what came before is another's
        if not self._fresh:
            self._since = self._last
        self._fresh, self._upgrade, self._lines = False, False, 0
        self._reading = _Reading.HEAD
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A piece of the request's target."""
        super().on_url(url)
        if len(self.url) > self._limits.url_bytes:
            raise HttpProblem(414, "url-too-long", f"the address is longer than {self._limits.url_bytes} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header line; a trailer is counted, and dropped."""
        self._lines += 1
        if self._lines > self._limits.headers or len(name) + len(value) + 4 > self._limits.header_line:
            raise self._too_large()
        if self._reading is _Reading.HEAD:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The application is called for what passes."""
        size = len(self.parser.get_method()) + len(self.url) + 14 + sum(len(n) + len(v) + 4 for n, v in self.headers)
        if size > self._limits.header_bytes:
            raise self._too_large()
        self._upgrade = self.parser.should_upgrade()
        version = self.parser.get_http_version()
        head = read_head(version, self.headers, upgrade=self._upgrade, most=self._door.body)
        if len(self.pipeline) >= self._limits.pipelined:
            raise HttpProblem(
                429, "quota", f"more than {self._limits.pipelined} requests without waiting for an answer"
            )
        owner = self._door.client(self._host, head.forwarded)
        always = self.url.partition(b"?")[0] in _HEALTH
        if not self._door.begin(owner, always=always):
            raise HttpProblem(429, "quota", "too many requests of this address are in hand", retry_after=1)
        self._owners.append(owner)
        if owner != self._host:
            self.scope["client"] = (owner, 0)
        self._urgent = always and head.length == 0
        try:
            super().on_headers_complete()
        except BaseException:  # the address is not understood
            self._door.end(self._owners.pop())
            raise
        if self._upgrade:
            self.cycle.keep_alive = False
        scope: Any = self.scope
        scope[UNREAD] = self._unread = UnreadBodyTracker()
        self._door.waits(self, False)
        self._reading, self._left, self._since = _Reading.BODY, head.length, self._last
        self._body = self._framing = self._bare = 0
        if head.length != 0 and not self._upgrade:
            self.flow.pause_reading()  # until the application asks for it

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._body += len(body)
        if self._left is not None:
            self._left -= len(body)
        elif self._body > self._door.body:
            raise HttpProblem(413, "too-large", f"the body is larger than {self._door.body} bytes")
        self._pieces.append(body)

    def _hand_over(self) -> None:
        """Give the application what came of the body: once for all of what was read, however small the chunks."""
        if self._pieces:
            pieces, self._pieces = b"".join(self._pieces), []
            super().on_body(pieces)

    def on_message_complete(self) -> None:
        """All of a request is here."""
        self._reading, self._head = _Reading.NOTHING, 0
        self._unread.yes = False
        self._hand_over()
        super().on_message_complete()

    # --- answering ---------------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        """The oldest unanswered request is answered; what is still to come of it will not be read."""
        if self._owners:
            self._door.end(self._owners.popleft())
        if self._reading is _Reading.BODY and not self._owners:
            self.server_state.total_requests += 1
            self._leave()
            return
        super().on_response_complete()
        self._unset_keepalive_if_required()  # the sweep knows the time
        if not self._owners and not self.leaving:
            self._since = self.loop.time()
            self._door.waits(self, True)
            if self._last_word is not None:
                self._say(self._last_word)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if self._urgent and self._parsing:  # not one that waited behind another
            self._at_once = cycle, app
        else:
            self._door.queue(self.loop, self._host, partial(self._begin, cycle, app))

    def _answer_at_once(self) -> None:
        """Run to its end what waits for nothing (:mod:`superopt.server.http.health`); a task would wait for its
        turn."""
        if self._at_once is None:
            return
        (cycle, app), self._at_once = self._at_once, None
        if cycle.disconnected:
            return
        if cycle.scope["method"] != "GET" or self.flow.write_paused:
            super()._start_asgi_task(cycle, app)
            return
        try:
            cycle.run_asgi(app).send(None)
        except StopIteration:
            return
        raise AssertionError("an answer about health waited for something")

    def _begin(self, cycle: Any, app: Any) -> None:
        if not cycle.disconnected:
            super()._start_asgi_task(cycle, app)

    def _deafen(self) -> None:
        self.flow.pause_reading()
        self._reading, self._body = _Reading.DEAF, 0

    def _refuse(self, problem: HttpProblem) -> None:
        """Answer with a problem, after the answers that are due before it, and close."""
        self._door.count(problem.kind, problem.status)
        problem.with_traceback(None)  # its frames know this connection, which keeps it for a while
        if self._reading is _Reading.BODY:  # the application has its request, or would get it next
            if self._owners:
                self._door.end(self._owners.pop())
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.pipeline:
                self.pipeline.popleft()
            elif self.cycle.response_started:
                self._raw.abort()
                return
        self._pieces = []
        self._deafen()
        if self._owners:
            self._last_word = problem
        else:
            self._say(problem)

    def _say(self, problem: HttpProblem) -> None:
        body = json.dumps(problem.body).encode()
        headers = [
            *self.server_state.default_headers, *SECURITY, (b"content-type", MEDIA.encode()),
            *((n.lower().encode(), v.encode()) for n, v in problem.headers.items()),
            (b"content-length", b"%d" % len(body)), (b"connection", b"close"),
        ]  # fmt: skip
        lines = b"".join(b"%s: %s\r\n" % header for header in headers)
        self._out.write(STATUS_LINE[problem.status] + lines + b"\r\n" + body)
        self._leave()

    # --- time --------------------------------------------------------------------------------------------------

    def tick(self, now: float, passed: float) -> None:
        """Look whether the client is too slow.

        Args:
            now: the loop's time.
            passed: seconds since the last look.
        """
        if self._out.stuck(now, self._limits):
            self._door.count("slow-reader")
            self._raw.abort()
        elif self._raw.is_closing():
            return  # it ends when all is written
        elif self.leaving:
            if now - self._since > self._limits.linger_seconds:
                self._raw.abort()
        elif self._reading is _Reading.BODY:
            self._tick_body(now, passed)
        elif not self._owners:
            self._tick_head(now)

    def _tick_head(self, now: float) -> None:
        waited = now - self._since
        if self.held:
            return
        if self._reading is _Reading.HEAD and waited > self._limits.header_seconds:
            self._refuse(
                HttpProblem(408, "header-timeout", f"the headers took longer than {self._limits.header_seconds:g} s")
            )
        elif waited > (self._limits.header_seconds if self._fresh else self._limits.idle_seconds):
            self._raw.close()  # nothing was asked

    def _tick_body(self, now: float, passed: float) -> None:
        if (
            self.held or self.flow.read_paused or self.cycle.waiting_for_100_continue
        ):  # it is not the client that is waited for
            self._since += passed
        late = now - self._since - self._limits.rate_grace
        if late > 0 and self._body < self._limits.body_rate * (late + self._limits.rate_grace):
            self._refuse(
                HttpProblem(408, "body-timeout", f"the body brings less than {self._limits.body_rate} bytes a second")
            )


def _meant(error: httptools.HttpParserCallbackError) -> HttpProblem:
    """What a callback of the parser raised."""
    found = error.__context__
    return found if isinstance(found, HttpProblem) else _malformed(error)


def _malformed(error: Exception) -> HttpProblem:
    why = str(error.__context__ or error)
    return HttpProblem(400, "bad-request", f"this is not HTTP/1.1: {why[:200]}")

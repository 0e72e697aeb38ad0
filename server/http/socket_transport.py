"""Between the socket and a connection: how much is read at a time, and a close that lets the answer be read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from superopt.server.settings import ConnectionLimits

if TYPE_CHECKING:
    from superopt.server.http.connection import HttpConnection

__all__ = ["BUFFER", "HEAD", "CountedWriteTransport", "BoundedReadProtocol"]

BUFFER = memoryview(bytearray(1 << 16))  # of all connections: what is read is parsed before anything else is read
HEAD = BUFFER[: 1 << 12]  # at a time, so that few pipelined requests are parsed before reading is paused


class BoundedReadProtocol(asyncio.BufferedProtocol):
    """What the transport talks to; uvicorn's protocol has no say in how much is read."""

    def __init__(self, connection: HttpConnection) -> None:
        self.connection_made = connection.connection_made  # type: ignore[method-assign,assignment]
        self.connection_lost = connection.connection_lost  # type: ignore[method-assign]
        self.eof_received = connection.eof_received  # type: ignore[method-assign]
        self.pause_writing = connection.pause_writing  # type: ignore[method-assign]
        self.resume_writing = connection.resume_writing  # type: ignore[method-assign]
        self.get_buffer = connection.room  # type: ignore[method-assign,assignment]
        self.buffer_updated = connection.received  # type: ignore[method-assign,assignment]


class _Nobody:
    """Whose a transport is once its connection is lost: nothing is read or written any more."""

    leaving = deaf = True
    held = False

    def close(self) -> None:
        """It is closed."""


_NOBODY = _Nobody()


class CountedWriteTransport:
    """The transport as uvicorn's protocol sees it: counts what is written, and closes so that it can be read."""

    def __init__(self, transport: asyncio.Transport, connection: HttpConnection) -> None:
        self._transport = transport
        self._connection: HttpConnection | _Nobody = connection
        self._written = 0
        self._taken = (0.0, 0)  # when this many bytes of it were taken; 0.0: nothing is unsent
        self.get_extra_info = transport.get_extra_info

    def forget(self) -> None:
        """The connection is lost."""
        self._connection = _NOBODY

    def write(self, data: bytes) -> None:
        if not self._connection.leaving:
            self._written += len(data)
            self._transport.write(data)

    def close(self) -> None:
        self._connection.close()

    def is_closing(self) -> bool:
        return self._connection.leaving or self._transport.is_closing()

    def pause_reading(self) -> None:
        if not self._connection.leaving:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._connection.deaf and not self._connection.held:
            self._transport.resume_reading()

    def stuck(self, now: float, limits: ConnectionLimits) -> bool:
        """Whether the client takes its answers more slowly than it may.

        Args:
            now: the loop's time.
            limits: for the rate.
        """
        unsent = self._transport.get_write_buffer_size()
        taken = self._written - unsent
        since, before = self._taken
        if not unsent:
            self._taken = (0.0, 0)
        elif not since:
            self._taken = (now, taken)
        elif now - since > limits.rate_grace:
            if taken - before < limits.response_rate * (now - since):
                return True
            self._taken = (now, taken)
        return False

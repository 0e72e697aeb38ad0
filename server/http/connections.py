"""All open connections: how many there may be, which one goes when there are too many, and who is too slow.

As in nginx, a connection that only waits for its client gives way to a new one (``ngx_drain_connections``): so many
half-sent requests cost their sender his own connections, and nobody else an answer. Among those the oldest of
the address with the most connections goes first. And requests are begun in turn, address by address.
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from superopt.server.http.problems import HttpProblem
from superopt.server.settings import ConnectionLimits

if TYPE_CHECKING:
    from superopt.server.http.connection import HttpConnection

__all__ = ["OpenConnections"]

log = logging.getLogger("superopt.serve")
_EVERY = 0.5  # seconds between two looks at all connections: by so much a time limit may be exceeded
# Between two looks at the network: by so much /readyz comes later, however many requests are in hand.
_AT_ONCE = 8  # requests that are begun, of some 0.2 ms each
_WORK = 0.002  # seconds of parsing
_MOMENT = 1.0  # seconds that a connection may wait for its client, where its address has too many
_SILENT = 1.0  # seconds without a byte after which a body may give way, where there is no room for another connection
_LONGEST = 64  # characters of an address
_CROWD = 64  # open connections from which looking for garbage among all that is new would be felt as a pause
_YOUNG = 10  # collections of what is young after which the old is due, as Python's own default has it
_GARBAGE = 30.0  # seconds between two looks for garbage, however many connections there are
_TELL = 60.0  # seconds between two lines of the log about what was refused


@dataclass(eq=False, slots=True)
class _Address:
    name: str
    open: int = 0
    requests: int = 0
    waiting: dict[HttpConnection, None] = field(default_factory=dict)  # for their clients, the longest waiting first


class OpenConnections:
    """The connections of one process, by client address.

    Args:
        limits: of the door.
        body: bytes of the largest body.
    """

    def __init__(self, limits: ConnectionLimits, body: int) -> None:
        self.limits = limits
        self.body = body
        self.refused: Counter[tuple[str, int]] = Counter()  # (kind, status; 0 is a connection that was just closed)
        self._told: Counter[tuple[str, int]] = Counter()
        self._tell_at = 0.0
        self._collected = 0.0  # when garbage was looked for
        self._trusted = ProxyHeadersMiddleware(_nothing, list(limits.trusted_proxies)).trusted_hosts
        self._all: dict[HttpConnection, _Address] = {}
        self._closing: dict[HttpConnection, float] = {}  # those that count no more, and when their patience ends
        self._addresses: dict[str, _Address] = {}
        self._sweeping: asyncio.Handle | None = None
        self._worked = -1.0  # seconds since the last look at the network; negative: none yet
        self._taking_turns = False
        self._queues: dict[str, deque[Callable[[], None]]] = {}  # requests that wait for their turn, by sender

    def __len__(self) -> int:
        return len(self._all)

    def count(self, kind: str, status: int = 0) -> None:
        """Note a refusal, for ``/metrics`` and the log."""
        self.refused[kind, status] += 1

    # --- connections -------------------------------------------------------------------------------------------

    def arrive(self, connection: HttpConnection, host: str) -> HttpProblem | None:
        """Count a new connection; another one may have to go. A problem if there is no room at all."""
        if self._sweeping is None:
            self._sweeping = connection.loop.call_later(_EVERY, self._sweep, connection.loop)
        if len(self._all) >= self.limits.connections and not self._make_room(connection.loop.time()):
            return HttpProblem(503, "unavailable", "too many connections are open", retry_after=5)
        address = self._address(host)
        address.open += 1
        self._all[connection] = address
        address.waiting[connection] = None
        return None

    def dismiss(self, connection: HttpConnection) -> bool:
        """Count it no more: it is being closed. False where so many are that it had better be gone at once."""
        self.leave(connection)
        if len(self._closing) >= self.limits.connections // 4:
            return False
        self._closing[connection] = connection.loop.time() + self.limits.linger_seconds
        return True

    def leave(self, connection: HttpConnection) -> None:
        """Forget a connection; again does nothing."""
        self._closing.pop(connection, None)
        address = self._all.pop(connection, None)
        if address is not None:
            address.open -= 1
            address.waiting.pop(connection, None)
            self._tidy(address)

    def waits(self, connection: HttpConnection, yes: bool) -> None:
        """Whether it is the client's turn: such a connection may give way."""
        address = self._all.get(connection)
        if address is not None:
            address.waiting.pop(connection, None)
            if yes:
                address.waiting[connection] = None

    def _thin_out(self, address: _Address, now: float) -> Iterator[None]:
        """Close what an address has too much of, the longest waiting first; who came this moment may yet ask."""
        if address.name in self._trusted:
            return
        many = address.open - self.limits.connections_per_address
        for connection in [c for c in address.waiting if c.waited(now) > _MOMENT][:many]:
            if connection in address.waiting:
                self.count("evicted")
                connection.evict()
                yield

    def _make_room(self, now: float) -> bool:
        """Close a connection that waits for its client, or whose body has stalled; false if there is none."""
        crowded = max((a for a in self._addresses.values() if a.waiting), key=lambda a: a.open, default=None)
        if crowded is not None:
            self.count("evicted")
            next(iter(crowded.waiting)).evict()
            return True
        stalled = [c for c in self._all if c.silent(now) > _SILENT]
        if stalled:
            max(stalled, key=lambda c: (self._all[c].open, c.silent(now))).evict()
        return bool(stalled)

    # --- requests ----------------------------------------------------------------------------------------------

    def client(self, host: str, forwarded: str) -> str:
        """Whose request it is: the sender's, or whom a trusted proxy names: the last address that is not a proxy's."""
        if not forwarded or host not in self._trusted:
            return host
        named, _ = self._trusted.get_trusted_client_address(forwarded)
        return named if len(named) < _LONGEST and _network(named) else host

    def begin(self, host: str, *, always: bool = False) -> bool:
        """Count a request of a client in hand; false if it has too many, unless it is to be answered ``always``."""
        address = self._address(host)
        if address.requests >= self.limits.connections_per_address and not always and host not in self._trusted:
            self._tidy(address)
            return False
        address.requests += 1
        return True

    def end(self, host: str) -> None:
        """A request was answered, or never will be."""
        address = self._address(host)
        address.requests -= 1
        self._tidy(address)

    @property
    def busy(self) -> bool:
        """Whether enough was done since the last look at the network; the rest has to wait its turn."""
        return self._worked > _WORK

    @contextmanager
    def work(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Count the time that something takes."""
        if self._worked < 0:
            self._worked = 0.0
            loop.call_soon(self._look)
        began = time.perf_counter()
        try:
            yield
        finally:
            self._worked += time.perf_counter() - began

    def _look(self) -> None:
        self._worked = -1.0

    def queue(self, loop: asyncio.AbstractEventLoop, host: str, start: Callable[[], None]) -> None:
        """Have something done when it is its sender's turn: a little of it between two looks at the network."""
        self._queues.setdefault(host, deque()).append(start)
        if not self._taking_turns:
            self._taking_turns = True
            loop.call_soon(self._turns, loop)

    def _turns(self, loop: asyncio.AbstractEventLoop) -> None:
        until = time.perf_counter() + _WORK
        for _ in range(_AT_ONCE):
            host = next(iter(self._queues))
            waiting = self._queues.pop(host)
            act = waiting.popleft()
            if waiting:
                self._queues[host] = waiting  # behind all others
            act()  # it may queue up again
            if not self._queues or time.perf_counter() > until:
                break
        self._taking_turns = bool(self._queues)
        if self._queues:
            loop.call_soon(self._turns, loop)

    def _address(self, host: str) -> _Address:
        name = _network(host) or host
        found = self._addresses.get(name)
        if found is None:
            found = self._addresses[name] = _Address(name)
        return found

    def _tidy(self, address: _Address) -> None:
        if not address.open and not address.requests:
            self._addresses.pop(address.name, None)

    # --- time --------------------------------------------------------------------------------------------------

    def _sweep(self, loop: asyncio.AbstractEventLoop, steps: Iterator[None] | None = None) -> None:
        """Look at all connections, a few between two looks at the network."""
        steps = steps or self._look_at_all(loop.time())
        until = time.perf_counter() + _WORK
        for _ in steps:
            if time.perf_counter() > until:
                self._sweeping = loop.call_soon(self._sweep, loop, steps)
                return
        busy = self._all or self._closing
        self._sweeping = loop.call_later(_EVERY, self._sweep, loop) if busy else None

    def _look_at_all(self, now: float) -> Iterator[None]:
        for connection in list(self._all):
            if connection in self._all:
                connection.tick(now, _EVERY)
                yield
        for address in [a for a in self._addresses.values() if a.open > self.limits.connections_per_address]:
            yield from self._thin_out(address, now)
        for connection in [c for c, until in self._closing.items() if now > until]:
            connection.abort()
            yield
        if now >= self._tell_at and self.refused != self._told:
            new = self.refused - self._told
            log.warning("refused: %s", ", ".join(f"{n} × {status or ''} {kind}" for (kind, status), n in new.items()))
            self._told, self._tell_at = self.refused.copy(), now + _TELL
        rest = len(self._all) < _CROWD or now - self._collected > _GARBAGE
        if rest and gc.get_count()[2] >= _YOUNG:  # the supervisor leaves it to this
            self._collected = now
            gc.collect()


@lru_cache(maxsize=4096)
def _network(host: str) -> str:
    """By what a client is known: an IPv4 address, or the /64 that one IPv6 client has to itself; else empty."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv6Address):
        mapped = address.ipv4_mapped
        return str(mapped) if mapped else str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


async def _nothing(*_: object) -> None:
    """The middleware wants an application; only its list of proxies is used."""

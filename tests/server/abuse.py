"""By hand: strangers at the door: ``python tests/server/abuse.py [URL] [--seconds 10]``; on loopback only.

Without a URL it starts services of its own, one without keys and one with. While each attack goes on, another process
asks for ``/readyz`` on new connections from the same address, twenty times a second. Prints how long that took and how
far the service's memory grew. Exit code 1 where an answer took over 200 ms or failed, or memory grew by over 64 MiB.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import multiprocessing
import os
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlsplit

GET = b"GET %s HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/vnd.superopt.graph+json\r\n"
RESERVE = (
    b"POST /v1/uploads HTTP/1.1\r\nHost: localhost\r\nTus-Resumable: 1.0.0\r\nUpload-Length: 8589934592\r\n"
    b"Upload-Metadata: filename bS5vbm54\r\nContent-Length: 0\r\n"
)
MOST = 64 << 20  # bytes that one attacker sends at most


@dataclass
class Attack:
    """Where to, how many connections, and until when."""

    host: str
    port: int
    count: int
    until: float
    key: str = ""  # an API key that the attackers have, where the service wants one
    answers: Counter[str] = field(default_factory=Counter)

    async def crowd(self, one: Callable[[], Awaitable[None]]) -> None:
        """``count`` of them at once, each again when it is thrown out, at most twenty times a second."""

        async def again() -> None:
            while time.monotonic() < self.until:
                with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                    async with asyncio.timeout(max(self.until - time.monotonic(), 0.01)):
                        await one()
                await asyncio.sleep(0.05)

        await asyncio.gather(*(again() for _ in range(self.count)))

    @contextlib.asynccontextmanager
    async def connection(self, limit: int = 1 << 16):  # type: ignore[no-untyped-def]
        """A connection, of which ``limit`` bytes are read ahead."""
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=limit)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def pour(self, head: bytes, more: bytes, pause: float = 0.0) -> None:
        """Send a head and then the same bytes over and over, until the service answers or hangs up."""

        async def send(writer: asyncio.StreamWriter) -> None:
            sent = 0
            while sent < MOST:
                writer.write(more)
                sent += len(more)
                await (asyncio.sleep(pause) if pause else writer.drain())

        async with self.connection() as (reader, writer):
            writer.write(head)
            sending = asyncio.create_task(send(writer))
            try:
                self.note(await reader.read(4096))
            finally:
                sending.cancel()
                with contextlib.suppress(OSError, asyncio.CancelledError):
                    await sending

    async def converse(self, requests: Sequence[bytes]) -> None:
        """Send requests in turn, over and over, on one connection that stays open, each when the last is answered."""
        async with self.connection() as (reader, writer):
            for turn in range(1 << 30):
                writer.write(requests[turn % len(requests)])
                head = await reader.readuntil(b"\r\n\r\n")
                self.note(head)
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]
                await reader.readexactly(int(length or b"0"))

    def note(self, answer: bytes) -> None:
        """Count an answer by its status."""
        self.answers[answer[9:12].decode("latin-1") or "closed"] += 1


async def endless_header(a: Attack) -> None:
    await a.crowd(lambda: a.pour(GET % b"/livez" + b"X: ", b"a" * 65536))


async def endless_lines(a: Attack) -> None:
    await a.crowd(lambda: a.pour(GET % b"/livez", b"X: a\r\n" * 1000))


async def endless_url(a: Attack) -> None:
    await a.crowd(lambda: a.pour(b"GET /", b"a" * 65536))


async def half_open(a: Attack) -> None:
    await a.crowd(lambda: a.pour(GET % b"/livez" + b"X: ", b"a", pause=1.0))


async def slow_bodies(a: Attack) -> None:
    await a.crowd(lambda: a.pour(POST + b"Content-Length: 100000\r\n\r\n{", b" ", pause=1.0))


async def bodies_nobody_reads(a: Attack) -> None:
    await a.crowd(lambda: a.pour(GET % b"/readyz" + b"Content-Length: 100000000\r\n\r\n", b" " * 65536))


async def chunk_extensions(a: Attack) -> None:
    await a.crowd(lambda: a.pour(POST + b"Transfer-Encoding: chunked\r\n\r\n1;", b"a" * 65536))


async def tiny_chunks(a: Attack) -> None:
    await a.crowd(lambda: a.pour(POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", b"1\r\n \r\n" * 10000))


async def endless_trailers(a: Attack) -> None:
    await a.crowd(lambda: a.pour(POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n", b"X: a\r\n" * 1000))


async def pipelines(a: Attack) -> None:
    await a.crowd(lambda: a.pour(b"", (GET % b"/v1/limits" + b"\r\n") * 1000))


async def garbage(a: Attack) -> None:
    await a.crowd(lambda: a.pour(b"\x16\x03\x01\x00\xa5\x01\x00", b"\x00\xff" * 1000))


async def slow_readers(a: Attack) -> None:
    async def one() -> None:
        async with a.connection(limit=1024) as (_, writer):  # asyncio stops reading there
            for _ in range(200):  # 16 are taken at a time
                writer.write(GET % b"/v1/rules" + b"\r\n")
                await asyncio.sleep(0.2)

    await a.crowd(one)


async def flood(a: Attack) -> None:
    """As many requests as the service answers, on connections that stay open."""
    paths = (b"/livez", b"/v1/limits", b"/v1/rules", b"/nowhere", b"/v1/jobs/00000000-0000-0000-0000-000000000000")
    await a.crowd(lambda: a.converse([GET % path + b"\r\n" for path in paths]))


async def reservations(a: Attack) -> None:
    """Uploads that announce gigabytes, of which not a byte comes."""
    await a.crowd(lambda: a.converse([RESERVE + _bearer(a.key)]))


async def connects(a: Attack) -> None:
    """Connections that come and go without a word."""

    async def one() -> None:
        async with a.connection():
            a.answers["connected"] += 1

    await a.crowd(one)


ATTACKS = (
    endless_header, endless_lines, endless_url, half_open, slow_bodies, bodies_nobody_reads, chunk_extensions,
    tiny_chunks, endless_trailers, pipelines, garbage, slow_readers, flood, connects, reservations,
)  # fmt: skip


def _bearer(key: str) -> bytes:
    """The end of a head, with a key where there is one."""
    return (f"Authorization: Bearer {key}\r\n\r\n" if key else "\r\n").encode()


def ask(host: str, port: int, path: bytes, patience: float, key: str = "", head: bytes = GET) -> bytes:
    """One answer, on a connection of its own; empty where none came in time."""
    found = b""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=patience) as connection:
        connection.sendall((head % path if path else head) + b"Connection: close\r\n" + _bearer(key))
        while piece := connection.recv(65536):
            found += piece
    return found


def may_upload(host: str, port: int, key: str) -> bool:
    """Whether the service takes an upload from somebody who has announced none."""
    return ask(host, port, b"", 30, key, RESERVE.replace(b"8589934592", b"1048576")).startswith(b"HTTP/1.1 201")


def resident(host: str, port: int, key: str = "") -> float:
    """MiB that the service's process has in memory."""
    lines = ask(host, port, b"/metrics", 30, key).decode().splitlines()
    return next((float(line.split()[1]) / 2**20 for line in lines if line.startswith("process_resident")), 0.0)


def _watch(host: str, port: int, key: str, pipe: Connection) -> None:
    times: list[float] = []
    failed, memory, late, slept = 0, 0.0, 0.0, time.monotonic()
    while not pipe.poll(0.05):
        began = time.monotonic()
        late = max(late, began - slept - 0.05)
        failed += not ask(host, port, b"/readyz", 10).startswith(b"HTTP/1.1 200")
        times.append(time.monotonic() - began)
        if len(times) % 10 == 1:
            memory = max(memory, resident(host, port, key))
        slept = time.monotonic()
    pipe.send((sorted(times), failed, max(memory, resident(host, port, key)), late))


def _attackers(url: str, name: str, count: int, seconds: float, key: str, pipe: Connection) -> None:
    """In a process of their own: strangers come from elsewhere, and are not to take the processor from the measured."""
    os.nice(1)
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    kind = next(a for a in ATTACKS if a.__name__ == name)
    pipe.send(raid(url, kind, count, seconds, key))


@dataclass(frozen=True)
class Outcome:
    """What was seen of a service under attack.

    Attributes:
        times: seconds of each ``/readyz``, the shortest first.
        failed: how many of them were no 200.
        memory: MiB at most.
        late: seconds by which the watcher's own sleep ended too late at worst: what this machine makes of any process.
        answers: what the attackers were told.
    """

    times: list[float]
    failed: int
    memory: float
    late: float
    answers: Counter[str]


def raid(
    url: str, kind: Callable[[Attack], Awaitable[None]], count: int, seconds: float, key: str = ""
) -> Counter[str]:  # fmt: skip
    """Attack a service; what it answered. Arguments as of :func:`attack`."""
    place = urlsplit(url)
    assert place.hostname in ("127.0.0.1", "::1", "localhost"), "only one's own machine is attacked"
    made = Attack(place.hostname, place.port or 80, count, time.monotonic() + seconds, key)
    asyncio.run(kind(made))  # type: ignore[arg-type]
    return made.answers


def attack(
    url: str, kind: Callable[[Attack], Awaitable[None]], count: int, seconds: float, key: str = ""
) -> Outcome:  # fmt: skip
    """Attack a service while another process watches it.

    Args:
        url: of the service, on loopback.
        kind: one of :data:`ATTACKS`.
        count: connections at once.
        seconds: how long.
        key: an API key, where the service wants one.
    """
    place = urlsplit(url)
    host, port = place.hostname or "", place.port or 80
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    watcher = spawn.Process(target=_watch, args=(host, port, key, theirs), daemon=True)
    watcher.start()
    told, tells = spawn.Pipe()
    attackers = spawn.Process(target=_attackers, args=(url, kind.__name__, count, seconds, key, tells), daemon=True)
    attackers.start()
    try:
        assert told.poll(seconds + 60), "the attackers do not come back"
        answers = told.recv()
        attackers.join()
    finally:
        ours.send("enough")
    assert ours.poll(60), "the watcher got no answer"
    times, failed, memory, late = ours.recv()
    watcher.join()
    return Outcome(times, failed, memory, late, answers)


def run(url: str, count: int, seconds: float, only: str, key: str = "") -> bool:
    """All attacks; whether the service held."""
    place = urlsplit(url)
    for path in (b"/v1/rules", b"/v1/limits", b"/readyz", b"/metrics"):  # what is kept once does not count
        ask(place.hostname or "", place.port or 80, path, 30, key)
    before = resident(place.hostname or "", place.port or 80, key)
    print(f"{url}: {before:.0f} MiB at the start")
    held = True
    for kind in ATTACKS:
        if only and only not in kind.__name__:
            continue
        found = attack(url, kind, count, seconds, key)
        worst, p99 = found.times[-1], found.times[int(0.99 * (len(found.times) - 1))]
        good = worst <= 0.2 and not found.failed and found.memory - before <= 64
        held &= good
        print(
            f"{kind.__name__:20} /readyz {len(found.times):4d} times, worst {1000 * worst:5.0f} ms, "
            f"p99 {1000 * p99:5.0f} ms, {found.failed} failed; "
            f"a sleep {1000 * found.late:3.0f} ms late; memory {found.memory - before:+5.0f} MiB; "
            f"told {dict(found.answers.most_common(5))}{'' if good else '   DID NOT HOLD'}",
            flush=True,
        )
    return held


def own(count: int, seconds: float, only: str) -> bool:
    """The same against services started here: without a key, and with one."""
    from service_testing import free_port, start, stop

    from superopt.server.http.keys import ApiKeyStore
    from superopt.server.jobs.database import JobDatabase
    from superopt.server.settings import ServiceSettings

    held = True
    for with_key in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            settings = ServiceSettings(data=Path(folder), port=free_port())
            attackers = other = ""
            if with_key:
                database = JobDatabase(settings.url)
                database.migrate()
                attackers, other = (ApiKeyStore(database).add(name) for name in ("attackers", "somebody else"))
                database.close()
            live = start(settings)
            try:
                print("with a key" if with_key else "without keys", end=", ")
                held &= run(live.url, count, seconds, only, attackers)
                if with_key:
                    uploads = may_upload("127.0.0.1", settings.port, other)
                    print(f"another key {'may' if uploads else 'MAY NOT'} upload")
                    held &= uploads
            finally:
                stop(live)
    return held


def main() -> int:
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of every write to a connection that was closed
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?")
    parser.add_argument("--count", type=int, default=500, help="connections at once")
    parser.add_argument("--seconds", type=float, default=10, help="of each attack")
    parser.add_argument("--only", default="", help="attacks whose name has this in it")
    given = parser.parse_args()
    if given.url:
        held = run(given.url, given.count, given.seconds, given.only)
    else:
        held = own(given.count, given.seconds, given.only)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())

"""What strangers do before the service asks for a key: too much, too slowly, too often, or two things at once."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from abuse import ATTACKS, GET, POST, ask, may_upload, raid, resident
from service_testing import Live, free_port, start, stop, tiny, until

from superopt.server.http.connections import OpenConnections
from superopt.server.http.keys import ApiKeyStore
from superopt.server.jobs.database import JobDatabase
from superopt.server.settings import ConnectionLimits, ServiceLimits, ServiceSettings

DOCS = Path(__file__).resolve().parents[2] / "docs" / "service.md"
LIVEZ = GET % b"/livez"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
TIGHT = ConnectionLimits(
    header_seconds=1.5, idle_seconds=1.5, rate_grace=1.5, linger_seconds=0.5, connections=40, connections_per_address=10
)
ANSWER = re.compile(rb"HTTP/1\.1 (?=\d{3} )")


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A service without workers that is soon impatient and soon full."""
    limits = ServiceLimits(body=1 << 20, body_idle=60.0)
    started = start(
        ServiceSettings(tmp_path_factory.mktemp("door"), port=free_port(), workers=0, door=TIGHT, limits=limits)
    )
    started.http.close()  # a connection that is kept would count
    yield started
    stop(started)


def connect(live: Live, sent: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", live.settings.port), timeout=20, source_address=(source, 0))
    made.sendall(sent)
    return made


def rest(connection: socket.socket) -> bytes:
    """All that comes until the service closes the connection."""
    found = b""
    with contextlib.closing(connection):
        try:
            while piece := connection.recv(1 << 16):
                found += piece
        except ConnectionResetError:
            pass
    return found


def told(answer: bytes) -> tuple[int, str]:
    """Status and problem of the last answer."""
    head, _, body = answer[list(ANSWER.finditer(answer))[-1].start() :].partition(b"\r\n\r\n")
    status = int(head[9:12])
    if b"problem+json" not in head:
        return status, ""
    assert b"connection: close" in head.lower()
    assert b"content-security-policy" in head
    document = json.loads(body)
    assert document["status"] == status
    assert document["title"]
    assert document["detail"]
    return status, document["type"].removeprefix("urn:superopt:problem:")


REFUSED: dict[str, tuple[bytes, int, str]] = {
    "a header line without an end": (LIVEZ + b"X: " + b"a" * 40_000, 431, "header-too-large"),
    "a header name without an end": (LIVEZ + b"a" * 40_000, 431, "header-too-large"),
    "a long header line": (LIVEZ + b"X: " + b"a" * 8_192 + b"\r\n\r\n", 431, "header-too-large"),
    "many header lines": (LIVEZ + b"X: y\r\n" * 100 + b"\r\n", 431, "header-too-large"),
    "long headers in all": (LIVEZ + (b"X: " + b"a" * 4_000 + b"\r\n") * 5 + b"\r\n", 431, "header-too-large"),
    "empty lines without an end": (b"\r\n" * 20_000, 431, "header-too-large"),
    "an address without an end": (b"GET /" + b"a" * 40_000, 414, "url-too-long"),
    "a long address": (GET % (b"/" + b"a" * 8_192) + b"\r\n", 414, "url-too-long"),
    "no Host": (b"GET /livez HTTP/1.1\r\n\r\n", 400, "bad-request"),
    "two Hosts": (LIVEZ + b"Host: other\r\n\r\n", 400, "bad-request"),
    "another protocol": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "bad-request"),
    "HTTP/2 at once": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "bad-request"),
    "HTTP/3.1": (b"GET / HTTP/3.1\r\nHost: localhost\r\n\r\n", 400, "bad-request"),
    "HTTP/0.9": (b"GET /livez HTTP/0.9\r\n\r\n", 505, "http-version"),
    "a NUL in a header": (LIVEZ + b"X: a\0b\r\n\r\n", 400, "bad-request"),
    "a header without a colon": (LIVEZ + b"nothing\r\n\r\n", 400, "bad-request"),
    "a blank before the colon": (LIVEZ + b"Content-Length : 3\r\n\r\nabc", 400, "bad-request"),
    "a lone line feed": (b"GET /livez HTTP/1.1\nHost: localhost\n\n", 400, "bad-request"),
    "an address beyond ASCII": (b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "bad-request"),
    "an address for proxies": (b"CONNECT example.org:443 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "bad-request"),
    "both lengths": (POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "bad-request"),
    "both, turned round": (CHUNKED[:-2] + b"Content-Length: 3\r\n\r\n0\r\n\r\n", 400, "bad-request"),
    "two lengths": (POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400, "bad-request"),
    "a list of lengths": (POST + b"Content-Length: 3, 3\r\n\r\nabc", 400, "bad-request"),
    "a negative length": (POST + b"Content-Length: -3\r\n\r\n", 400, "bad-request"),
    "a length beyond 64 bits": (POST + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n", 400, "bad-request"),
    "an absurd length": (POST + b"Content-Length: 999999999999\r\n\r\n", 413, "too-large"),
    "another coding": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501, "not-implemented"),
    "two codings": (POST + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n", 501, "not-implemented"),
    "chunks in HTTP/1.0": (
        b"POST /v1/jobs HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "bad-request",
    ),
    "a chunk size beyond 64 bits": (CHUNKED + b"f" * 30 + b"\r\n", 400, "bad-request"),
    "chunk extensions without an end": (CHUNKED + b"1;" + b"a" * 40_000, 400, "bad-request"),
    "chunk extensions one after the other": (CHUNKED + (b"1;" + b"a" * 500 + b"\r\n{\r\n") * 50, 400, "bad-request"),
    "tiny chunks": (CHUNKED + b"1\r\n \r\n" * 10_000, 400, "bad-request"),
    "trailers without an end": (CHUNKED + b"1\r\n{\r\n0\r\nX: " + b"a" * 40_000, 400, "bad-request"),
    "an expectation": (LIVEZ + b"Expect: magic\r\n\r\n", 417, "expectation-failed"),
    "a body for another protocol": (
        POST + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 99\r\n\r\n" + LIVEZ, 400, "bad-request",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_before_the_application_sees_it(tight: Live, what: str) -> None:
    sent, status, kind = REFUSED[what]
    connection = connect(tight)
    with contextlib.suppress(ConnectionError):  # it may be refused before all of it is sent
        connection.sendall(sent)
    assert told(rest(connection)) == (status, kind)


ANSWERED = {
    "a long address": (GET % (b"/" + b"a" * 8_000) + b"Connection: close\r\n\r\n", 404),
    "as many headers as may be": (LIVEZ + b"X: y\r\n" * 98 + b"Connection: close\r\n\r\n", 200),
    "a long header": (LIVEZ + b"Connection: close\r\nX: " + b"a" * 8_000 + b"\r\n\r\n", 200),
    "HTTP/1.0": (b"GET /livez HTTP/1.0\r\nHost: localhost\r\n\r\n", 200),
    "another protocol is not offered": (LIVEZ + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n" + LIVEZ, 200),
    "an empty line first": (b"\r\n" + LIVEZ + b"Connection: close\r\n\r\n", 200),
    "a body that nobody wants": (LIVEZ + b"Content-Length: 1000000\r\n\r\n" + b" " * 1000, 200),
}


def test_health_is_answered_wherever_it_stands_in_a_row_of_requests(tight: Live) -> None:
    asked = [b"/livez", b"/readyz", b"/v1/limits", b"/readyz", b"/nowhere", b"/livez?x=1"]
    sent = b"".join(GET % path + b"\r\n" for path in asked)
    head = b"HEAD /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = rest(connect(tight, sent + head))
    statuses = [int(answer[found.end() : found.end() + 3]) for found in ANSWER.finditer(answer)]
    assert statuses == [200, 200, 200, 200, 404, 200, 200]
    evil = rest(connect(tight, b"GET /readyz HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"))
    assert told(evil) == (403, "forbidden")  # as everywhere, where no key is set
    assert b"content-security-policy" in evil
    body = rest(connect(tight, GET % b"/readyz" + b"Content-Length: 3\r\nConnection: close\r\n\r\nabc"))
    assert told(body)[0] == 200


@pytest.mark.parametrize("what", ANSWERED)
def test_what_is_answered_once_and_then_closed(tight: Live, what: str) -> None:
    sent, status = ANSWERED[what]
    answer = rest(connect(tight, sent))
    assert len(ANSWER.findall(answer)) == 1
    assert told(answer)[0] == status


def test_a_body_in_chunks_with_trailers(tight: Live) -> None:
    body = tiny("chunked")
    sent = b"%x;name=value\r\n%s\r\n" % (len(body), body)
    trailers = b"0\r\nAuthorization: Bearer so_x_y\r\nHost: evil.example\r\n\r\n"
    answer = rest(connect(tight, POST + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + sent + trailers))
    assert told(answer)[0] == 202
    for piece in (16, 50):  # small chunks are no attack by themselves
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in _pieces(tiny(f"in {piece}"), piece))
        sent = POST + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + chunks + b"0\r\n\r\n"
        assert told(rest(connect(tight, sent)))[0] == 202


def _pieces(text: bytes, size: int) -> list[bytes]:
    return [text[i : i + size] for i in range(0, len(text), size)]


def test_chunks_beyond_the_largest_body(tight: Live) -> None:
    connection = connect(tight, CHUNKED)
    with contextlib.suppress(ConnectionError):
        for _ in range(20):
            connection.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
    assert told(rest(connection)) == (413, "too-large")


def test_trailers_without_an_end_after_a_large_body(tight: Live) -> None:
    connection = connect(tight, CHUNKED + b"80000\r\n" + b" " * 0x80000 + b"\r\n0\r\n")
    with contextlib.suppress(ConnectionError):
        connection.sendall(b"X: " + b"a" * 100_000)
    assert told(rest(connection)) == (431, "header-too-large")


def test_the_client_is_told_to_go_on_only_when_its_body_is_wanted(tight: Live) -> None:
    body = tiny("expected")
    head = POST + b"Expect: 100-continue\r\nConnection: close\r\nContent-Length: %d\r\n" % len(body)
    connection = connect(tight, head + b"\r\n")
    assert connection.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.sendall(body)
    assert told(rest(connection))[0] == 202
    refused = head.replace(b"graph+json", b"nonsense")
    answer = rest(connect(tight, refused + b"\r\n"))
    assert b" 100 " not in answer
    assert told(answer)[0] == 415


def test_whoever_is_answered_before_the_body_is_told_that_the_connection_ends(tight: Live) -> None:
    head = POST.replace(b"/v1/jobs", b"/v1/jobs?nonsense=1")
    for length, ends in ((100_000, True), (2, False)):
        with contextlib.closing(connect(tight, head + b"Content-Length: %d\r\n\r\n{}" % length)) as connection:
            answer = connection.recv(1 << 16)
            assert answer.startswith(b"HTTP/1.1 400")
            assert (b"connection: close" in answer.lower()) == ends
    with contextlib.closing(connect(tight, POST + b"Content-Length: 2\r\n\r\n{}")) as connection:
        assert b"connection: close" not in connection.recv(1 << 16).lower()  # it was read: more may be asked here


def test_requests_one_after_the_other_are_answered_in_order(tight: Live) -> None:
    paths = (b"/livez", b"/v1/limits", b"/nowhere", b"/readyz")
    sent = b"".join(GET % path + b"\r\n" for path in paths) + LIVEZ + b"Connection: close\r\n\r\n"
    answer = rest(connect(tight, sent))
    assert [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]] == [200, 200, 404, 200, 200]


def test_more_requests_than_may_wait(tight: Live) -> None:
    answer = rest(connect(tight, (GET % b"/v1/limits" + b"\r\n") * 40))
    parts = answer.split(b"HTTP/1.1 ")[1:]
    assert [int(part[:3]) for part in parts] == [200] * (TIGHT.pipelined + 1) + [429]
    assert told(answer) == (429, "quota")


def test_a_refused_request_does_not_hide_the_answer_to_one_before_it(tight: Live) -> None:
    answer = rest(connect(tight, LIVEZ + b"\r\n" + LIVEZ + b"X: " + b"a" * 30_000))
    assert len(ANSWER.findall(answer)) == 2
    assert answer.startswith(b"HTTP/1.1 200")
    assert told(answer) == (431, "header-too-large")


# --- time ------------------------------------------------------------------------------------------------------


def test_headers_that_do_not_end_in_time(tight: Live) -> None:
    halves = [connect(tight, LIVEZ), connect(tight, LIVEZ + b"\r\n" + LIVEZ[:9])]
    trickle = connect(tight, b"G")
    stopped = threading.Event()
    threading.Thread(target=_trickle, args=(trickle, LIVEZ[1:] + b"X: " + b"a" * 999, stopped), daemon=True).start()
    try:
        for connection in (*halves, trickle):
            assert told(rest(connection)) == (408, "header-timeout")
    finally:
        stopped.set()


def _trickle(connection: socket.socket, text: bytes, stopped: threading.Event) -> None:
    for byte in text:
        try:
            connection.sendall(bytes([byte]))
        except OSError:
            return
        if stopped.wait(0.2):
            return


def test_connections_that_ask_nothing_are_closed_without_a_word(tight: Live) -> None:
    silent, asked = connect(tight), connect(tight, LIVEZ + b"\r\n")
    assert rest(silent) == b""
    assert rest(asked).count(b"HTTP/1.1 ") == 1


def test_a_body_that_comes_too_slowly(tight: Live) -> None:
    connection = connect(tight, POST + b"Content-Length: 100000\r\n\r\n")
    stopped = threading.Event()
    threading.Thread(target=_trickle, args=(connection, b" " * 1000, stopped), daemon=True).start()
    try:
        assert told(rest(connection)) == (408, "body-timeout")
    finally:
        stopped.set()


def test_answers_that_are_not_read(tight: Live) -> None:
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", tight.settings.port))
        connection.settimeout(30)
        with pytest.raises(ConnectionError):
            _ask_and_ask(connection)


def _ask_and_ask(connection: socket.socket) -> None:
    for _ in range(10_000):  # until what is unread fills all buffers, and a while longer
        connection.sendall(GET % b"/v1/rules" + b"\r\n")
        time.sleep(0.01)


# --- how many --------------------------------------------------------------------------------------------------


def gauge(live: Live, name: str, source: str) -> float:
    connection = connect(live, GET % b"/metrics" + b"Connection: close\r\n\r\n", source)
    lines = rest(connection).decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(name + " "))


def quiet(live: Live) -> None:
    until(lambda: gauge(live, "superopt_connections", "127.0.0.9") <= 1, 20)


def test_half_open_connections_make_way_for_their_own_address_and_others(tight: Live) -> None:
    quiet(tight)
    half = [connect(tight, LIVEZ) for _ in range(TIGHT.connections + 20)]
    for source in ("127.0.0.1", "127.0.0.2"):
        assert told(rest(connect(tight, LIVEZ + b"Connection: close\r\n\r\n", source)))[0] == 200
    for connection in half:
        connection.close()
    quiet(tight)


def test_an_address_has_so_many_requests_in_hand(tight: Live) -> None:
    quiet(tight)
    head = POST + b"Content-Length: 100000\r\n\r\n" + b" " * 90_000
    held = [connect(tight, head) for _ in range(TIGHT.connections_per_address)]
    until(lambda: gauge(tight, "superopt_connections", "127.0.0.9") > TIGHT.connections_per_address, 10)
    asked = GET % b"/v1/limits" + b"Connection: close\r\n\r\n"
    refused = rest(connect(tight, asked))
    assert told(refused) == (429, "quota")
    assert b"retry-after" in refused
    assert told(rest(connect(tight, GET % b"/readyz" + b"Connection: close\r\n\r\n")))[0] == 200
    assert told(rest(connect(tight, asked, "127.0.0.2")))[0] == 200
    for connection in held:
        connection.close()
    quiet(tight)
    assert told(rest(connect(tight, asked)))[0] == 200


def test_no_room_where_every_connection_is_busy() -> None:
    class Busy:
        """A connection of a client whose request is being worked at."""

        def __init__(self, loop: Any) -> None:
            self.loop = loop

        def silent(self, now: float) -> float:
            return 0.0

    loop = type("Loop", (), {"time": lambda self: 0.0, "call_later": lambda self, *_: None})()
    connections = OpenConnections(replace(TIGHT, connections=3), 100)
    for number in range(3):
        busy: Any = Busy(loop)
        assert connections.arrive(busy, f"10.0.0.{number}") is None
        connections.waits(busy, False)
    late: Any = Busy(loop)
    refused = connections.arrive(late, "10.0.0.9")
    assert refused is not None
    assert (refused.status, refused.kind, refused.headers) == (503, "unavailable", {"Retry-After": "5"})
    assert len(connections) == 3


def test_turns_are_taken_address_by_address() -> None:
    said: list[str] = []
    soon: list[tuple[Any, ...]] = []
    loop: Any = type("Loop", (), {"call_soon": lambda self, *what: soon.append(what)})()
    connections = OpenConnections(TIGHT, 100)
    for number in range(5):
        connections.queue(loop, "many", lambda number=number: said.append(f"many {number}"))
    connections.queue(loop, "one", lambda: said.append("one"))
    connections.queue(loop, "again", lambda: connections.queue(loop, "again", lambda: said.append("again")))
    while soon:
        act, *arguments = soon.pop()
        act(*arguments)
    assert said.index("one") == 1
    assert sorted(said) == ["again", *(f"many {n}" for n in range(5)), "one"]


# --- all at once -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("with_key", [False, True], ids=["without keys", "with a key"])
def test_the_service_answers_and_stays_small_under_abuse(with_key: bool, tmp_path: Path) -> None:
    """The short form of ``python tests/server/abuse.py``; that one also says how quickly it answers."""
    settings = ServiceSettings(tmp_path, port=free_port(), workers=0)
    attackers = other = ""
    if with_key:
        database = JobDatabase(settings.url)
        database.migrate()
        attackers, other = (ApiKeyStore(database).add(name) for name in ("attackers", "somebody else"))
        database.close()
    live = start(settings)
    over = threading.Event()
    answers: list[bytes] = []

    def watch() -> None:
        while not over.wait(0.05):
            answers.append(ask("127.0.0.1", settings.port, b"/readyz", 30))

    watcher = threading.Thread(target=watch)
    try:
        for path in (b"/v1/rules", b"/v1/limits", b"/readyz", b"/metrics"):
            ask("127.0.0.1", settings.port, path, 30, attackers)
        before = resident("127.0.0.1", settings.port, attackers)
        watcher.start()
        for kind in ATTACKS:
            raid(live.url, kind, 100, 0.2, attackers)
        until(lambda: resident("127.0.0.1", settings.port, attackers), 30)  # none of it is in hand any more
        assert resident("127.0.0.1", settings.port, attackers) - before <= 64
        assert not with_key or may_upload("127.0.0.1", settings.port, other)
    finally:
        over.set()
        watcher.join()
        stop(live)
    assert answers
    assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)

"""Whose request it is, what can be set, and heads of requests, without a running service."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from superopt import TIME_LIMIT, Options
from superopt.ir.errors import UsageError
from superopt.server.http.body import read_head
from superopt.server.http.connections import OpenConnections
from superopt.server.http.problems import HttpProblem
from superopt.server.settings import ConnectionLimits, ServiceLimits, ServiceSettings

DOCS = Path(__file__).resolve().parents[2] / "docs" / "service.md"


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("203.0.113.7", "198.51.100.1", "203.0.113.7"),  # nobody's proxy
        ("10.0.0.5", "", "10.0.0.5"),
        ("10.0.0.5", "198.51.100.1", "198.51.100.1"),
        ("10.0.0.5", "1.2.3.4, 198.51.100.1", "198.51.100.1"),  # what the client made up comes first
        ("10.0.0.5", "1.2.3.4, 198.51.100.1, 10.0.0.6", "198.51.100.1"),  # two proxies
        ("10.0.0.5", "1.2.3.4, nonsense", "10.0.0.5"),
        ("10.0.0.5", "a" * 8000, "10.0.0.5"),
        ("2001:db8::5", "198.51.100.1", "198.51.100.1"),
    ],
)
def test_whose_request_it_is(peer: str, forwarded: str, client: str) -> None:
    connections = OpenConnections(ConnectionLimits(trusted_proxies=("10.0.0.0/24", "2001:db8::5")), 100)
    assert connections.client(peer, forwarded) == client


def test_a_client_does_not_become_another_by_another_address_of_its_network() -> None:
    connections = OpenConnections(ConnectionLimits(connections_per_address=2), 100)
    assert [connections.begin(f"2001:db8::{n}") for n in range(3)] == [True, True, False]
    assert connections.begin("2001:db8:0:1::1")
    assert [connections.begin(name) for name in ("192.0.2.1", "::ffff:192.0.2.1", "192.0.2.1")] == [True, True, False]
    connections.end("192.0.2.1")
    assert connections.begin("::ffff:192.0.2.1")


# --- settings --------------------------------------------------------------------------------------------------


def test_every_limit_can_be_set_and_is_documented() -> None:
    text = DOCS.read_text()
    for variable, name in ConnectionLimits.variables().items():
        assert f"`{variable}`" in text, variable
        if name != "trusted_proxies":
            assert getattr(ConnectionLimits.from_environment({variable: "7"}), name) == 7
            for wrong in ("0", "-1", "many", "nan", "1e99"):
                with pytest.raises(UsageError, match=variable):
                    ConnectionLimits.from_environment({variable: wrong})
    assert ConnectionLimits.from_environment({}) == ConnectionLimits()
    proxies = ConnectionLimits.from_environment(
        {"SUPEROPT_TRUSTED_PROXIES": "10.0.0.5, 192.168.0.0/16"}
    ).trusted_proxies
    assert proxies == ("10.0.0.5", "192.168.0.0/16")
    with pytest.raises(UsageError, match="neither an address nor a network"):
        ConnectionLimits(trusted_proxies=("proxy.example",))
    assert len(ConnectionLimits.variables()) == len(fields(ConnectionLimits))


def test_a_search_may_take_what_it_may_take_elsewhere() -> None:
    limits = ServiceLimits()
    assert limits.search_seconds == TIME_LIMIT == Options().time_limit
    assert limits.search_seconds < limits.most_search_seconds < limits.job_seconds


def test_a_service_behind_a_proxy_needs_a_key(tmp_path: Path) -> None:
    from superopt.server import serve

    with pytest.raises(UsageError, match="without an API key"):
        serve(ServiceSettings(tmp_path, door=ConnectionLimits(trusted_proxies=("127.0.0.1",))))


def test_more_connections_than_open_files(tmp_path: Path) -> None:
    from superopt.server import serve

    with pytest.raises(UsageError, match="SUPEROPT_CONNECTIONS"):
        serve(ServiceSettings(tmp_path, door=ConnectionLimits(connections=10**9)))


def test_few_open_files_leave_fewer_connections_than_by_default() -> None:
    """In a process of its own, whose limit cannot be raised again."""
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128));"
        "from pathlib import Path; from superopt.server.jobs import supervisor;"
        "from superopt.server.settings import ServiceSettings;"
        "print(supervisor._with_room(ServiceSettings(Path('.'))).door.connections, supervisor._handles())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["51", "9"]
    assert "of 1000 connections 51 may be open at once: this process may have 128 open files" in done.stderr


def test_heads_that_are_not_ambiguous() -> None:
    host = (b"host", b"localhost")
    assert read_head("1.1", [host], upgrade=False, most=9).length == 0
    assert read_head("1.0", [(b"content-length", b"009")], upgrade=False, most=9).length == 9
    assert read_head("1.1", [host, (b"transfer-encoding", b"Chunked")], upgrade=False, most=9).length is None
    for version, headers, status in (
        ("1.1", [host, (b"content-length", b"10")], 413),
        ("1.1", [host, (b"content-length", b"")], 400),
        ("1.1", [host, (b"content-length", b"\xb2")], 400),
        ("2.0", [host], 505),
    ):
        with pytest.raises(HttpProblem) as refused:
            read_head(version, headers, upgrade=False, most=9)
        assert refused.value.status == status

"""The documented configuration of nginx, in front of a service: whose request is whose, and what is passed on."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from service_testing import GRAPH, Live, free_port, start, stop, tiny, until

from superopt.server.http.keys import ApiKeyStore
from superopt.server.jobs.database import JobDatabase
from superopt.server.settings import ConnectionLimits, ServiceLimits, ServiceSettings

DOCS = Path(__file__).resolve().parents[2] / "docs" / "service.md"
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
MAIN = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
    access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f;
    uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    {documented}
}}
"""
MOST = 3  # requests in hand of one client


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Live, str, str]]:
    """A service that trusts nginx on the same machine, nginx' address, and a key."""
    if NGINX is None:
        pytest.skip("no nginx here: apt-get install nginx-light")
    folder = tmp_path_factory.mktemp("nginx")
    door = ConnectionLimits(trusted_proxies=("127.0.0.1",), connections_per_address=MOST)
    settings = ServiceSettings(
        folder / "data", port=free_port(), workers=0, door=door, limits=ServiceLimits(body_idle=30.0)
    )
    settings.data.mkdir()
    database = JobDatabase(settings.url)
    database.migrate()
    key = ApiKeyStore(database).add("somebody")
    database.close()
    port = free_port()
    [documented] = re.findall(r"```nginx\n(.*?)```", DOCS.read_text(), re.DOTALL)
    documented = documented.replace("127.0.0.1:8000", f"127.0.0.1:{settings.port}")
    assert "listen 80;" in documented
    text = MAIN.format(folder=folder, documented=documented.replace("listen 80;", f"listen 127.0.0.1:{port};"))
    (folder / "nginx.conf").write_text(text)
    live = start(settings)
    proxy = subprocess.Popen([NGINX, "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")])
    url = f"http://127.0.0.1:{port}"
    try:
        until(lambda: _answers(url), 30)
        yield live, url, key
    finally:
        proxy.terminate()
        proxy.wait(20)
        stop(live)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").status_code == 200
    except httpx.TransportError:
        return False


def client(url: str, address: str) -> httpx.Client:
    """A client with an address of its own: all of 127/8 is this machine."""
    return httpx.Client(base_url=url, transport=httpx.HTTPTransport(local_address=address), timeout=30)


def test_a_job_goes_through(proxied: tuple[Live, str, str]) -> None:
    _, url, key = proxied
    headers = {"Content-Type": GRAPH, "Authorization": f"Bearer {key}", "Host": "superopt.example",
               "Origin": "https://superopt.example"}  # fmt: skip
    with client(url, "127.0.0.2") as somebody:
        made = somebody.post("/v1/jobs", content=tiny("proxied"), headers=headers)
        assert made.status_code == 202, made.text
        assert somebody.post("/v1/jobs", content=tiny(), headers={"Content-Type": GRAPH}).status_code == 401
        foreign = somebody.post("/v1/jobs", content=tiny(), headers={**headers, "Origin": "https://evil.example"})
        assert foreign.status_code == 403
        with somebody.stream("GET", f"{made.headers['location']}/events") as stream:
            assert any(line == "event: queued" for line in stream.iter_lines())


def test_limits_count_clients_whatever_they_say_they_are(proxied: tuple[Live, str, str]) -> None:
    _, url, key = proxied
    with client(url, "127.0.0.3") as busy, client(url, "127.0.0.4") as other:
        headers = {"Content-Type": GRAPH, "Authorization": f"Bearer {key}"}
        job = other.post("/v1/jobs", content=tiny("watched"), headers=headers).headers["location"]
        streams = []
        for number in range(MOST):  # each stream is a request in hand
            request = busy.build_request("GET", f"{job}/events", headers={"X-Forwarded-For": f"192.0.2.{number}"})
            streams.append(busy.send(request, stream=True))
            assert streams[-1].status_code == 200
        for spoofed in ({}, {"X-Forwarded-For": "192.0.2.77"}, {"X-Forwarded-For": "127.0.0.1"}):
            refused = busy.get("/v1/limits", headers=spoofed)
            assert (refused.status_code, refused.json()["type"]) == (429, "urn:superopt:problem:quota")
        assert other.get("/v1/limits").status_code == 200
        assert busy.get("/readyz").status_code == 200
        for stream in streams:
            stream.close()
        until(lambda: busy.get("/v1/limits").status_code == 200, 30)

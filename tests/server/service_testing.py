"""What the service's tests share: a small graph, a live server, waiting."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import sqlalchemy as sa

from superopt.server.jobs.database import JobDatabase, jobs
from superopt.server.jobs.supervisor import to_json
from superopt.server.settings import ServiceSettings

__all__ = [
    "GRAPH",
    "POSTGRES",
    "TINY",
    "Live",
    "Stopwatch",
    "files_below",
    "free_port",
    "postgres",
    "set_clock",
    "start",
    "stop",
    "tiny",
    "until",
]

POSTGRES = Path("/usr/lib/postgresql/15/bin")
GRAPH = "application/vnd.superopt.graph+json"
TINY: dict[str, Any] = {
    "format": "superopt.graph", "version": 1, "name": "tiny", "opset": {"": 21},
    "inputs": [{"name": "x", "dtype": "float32", "shape": [4, 8]}],
    "weights": [{"name": "w", "dtype": "float32", "shape": [8], "random": {"seed": 1, "scale": 0.1}}],
    "nodes": [{"op": "Relu", "inputs": ["x"], "outputs": ["p"]}, {"op": "Relu", "inputs": ["p"], "outputs": ["q"]},
              {"op": "Add", "inputs": ["q", "w"], "outputs": ["y"]}],
    "outputs": [{"name": "y"}],
}  # fmt: skip


def tiny(name: str = "tiny") -> bytes:
    """A graph that optimizes in a moment; a name of its own makes it a model of its own."""
    return json.dumps({**TINY, "name": name}).encode()


def until(true: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait for something to become true."""
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return found


def files_below(folder: Path) -> list[str]:
    """Blobs and job folders that are on disk."""
    found = (Path(place) / name for place, _, names in os.walk(folder) for name in names)  # folders may vanish under it
    return sorted(str(path.relative_to(folder)) for path in found)


@dataclass
class Stopwatch:
    """A clock that tests set."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def set_clock(database: JobDatabase, seconds: float) -> None:
    """As if the clock had been set by so many seconds since all that is written was written."""
    with database.write() as connection:
        times = ("created", "started", "due")
        connection.execute(sa.update(jobs).values({name: jobs.c[name] - seconds for name in times}))


@dataclass
class Live:
    """A running service."""

    url: str
    settings: ServiceSettings
    process: subprocess.Popen[bytes]
    http: httpx.Client

    def post(self, body: bytes, media: str = GRAPH, **query: Any) -> httpx.Response:
        return self.http.post("/v1/jobs", content=body, headers={"Content-Type": media}, params=query)

    def state(self, response: httpx.Response) -> str:
        return str(self.http.get(response.headers["location"]).json()["state"])

    def succeeded(self, response: httpx.Response) -> bool:
        """Whether a job has ended well; fails at once, with its problem, where it ended otherwise."""
        job = self.http.get(response.headers["location"]).json()
        assert job["state"] in ("queued", "running", "succeeded"), job
        return bool(job["state"] == "succeeded")

    def worker_pids(self) -> list[int]:
        """Processes that the server started, without their children."""
        found: list[int] = []
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # a thread that ended meanwhile
                found += map(int, (task / "children").read_text().split())
        return found


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def start(settings: ServiceSettings) -> Live:
    """A server process, ready."""
    program = "import sys; from superopt.server.jobs.supervisor import from_json, serve; serve(from_json(sys.argv[1]))"
    process = subprocess.Popen([sys.executable, "-c", program, to_json(settings)], start_new_session=True)
    url = f"http://127.0.0.1:{settings.port}"
    http = httpx.Client(base_url=url, timeout=60)

    def ready() -> bool:
        assert process.poll() is None, "the server ended"
        try:
            return http.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    until(ready, 60)
    return Live(url, settings, process, http)


def stop(live: Live) -> None:
    live.http.close()
    live.process.terminate()
    live.process.wait(20)


@contextmanager
def postgres() -> Iterator[str]:
    """Debian's PostgreSQL on a port of its own, in a temporary folder; the URL of an empty database."""
    user = "postgres" if os.geteuid() == 0 else None  # it refuses to run as root
    folder = Path(tempfile.mkdtemp(prefix="superopt-pg-", dir="/tmp"))
    if user:
        shutil.chown(folder, user)
    port = free_port()

    def run(*command: str) -> None:
        subprocess.run(command, check=True, user=user, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                       env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"})  # fmt: skip

    run(f"{POSTGRES}/initdb", "-D", f"{folder}/data", "-U", "superopt", "-A", "trust", "--no-sync")
    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
    run(f"{POSTGRES}/pg_ctl", "-D", f"{folder}/data", "-w", "-o", options, "-l", f"{folder}/log", "start")
    try:
        yield f"postgresql://superopt@127.0.0.1:{port}/postgres"
    finally:
        run(f"{POSTGRES}/pg_ctl", "-D", f"{folder}/data", "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)

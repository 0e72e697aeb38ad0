"""By hand: 50 jobs while workers, the server and the database's connections are killed; every job ends exactly once.

``python tests/server/chaos.py [--postgres] [--jobs 50] [--clock]`` prints a line of figures, and fails if a job is
lost, ends twice, or has a wrong result. With ``--clock`` the clock is set hours back or forward beside every kill: all
times that are written down are moved the other way, which is the same to whoever compares them with the time of day.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).parent))
from service_testing import GRAPH, Live, free_port, postgres, set_clock, start, stop

from superopt.formats import from_bytes
from superopt.server.jobs.database import JobDatabase
from superopt.server.settings import ServiceLimits, ServiceSettings
from superopt.verifier.check.differential import check

TINY = Path(__file__).resolve().parents[2] / "corpus" / "tiny"


def body(number: int) -> bytes:
    document = json.loads((TINY / ("lora.json" if number % 2 else "deep_linear.json")).read_text())
    return json.dumps({**document, "name": f"chaos-{number}"}).encode()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--postgres", action="store_true", help="a PostgreSQL of its own instead of SQLite")
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--clock", action="store_true", help="set the clock beside every kill")
    given = parser.parse_args()
    kinds = itertools.cycle(["worker", "connections", "worker", "server"])
    with tempfile.TemporaryDirectory() as folder, postgres() if given.postgres else nullcontext() as url:
        settings = ServiceSettings(
            data=Path(folder), port=free_port(), workers=2, lease=3.0, database=url,
            limits=ServiceLimits(search_seconds=0.5, attempts=50),
        )  # fmt: skip
        service = [start(settings)]
        try:
            run(service, given.jobs, kinds, clock=given.clock)
        finally:
            stop(service[0])


def run(service: list[Live], count: int, kinds: Iterator[str], *, clock: bool) -> None:
    """Submit, kill until everything has ended, compare; ``service`` holds the server of the moment."""
    began = time.monotonic()
    jobs = [service[0].post(body(n), GRAPH).json()["id"] for n in range(count)]
    killed: Counter[str] = Counter()
    while left := unfinished(service[0], jobs):
        if time.monotonic() - began < 150:  # then it may finish in peace
            what = next(kinds)
            killed[what] += 1
            service[0] = kill(service[0], what)
            if clock:
                database = JobDatabase(service[0].settings.url)
                set_clock(database, random.choice((-7200.0, 7200.0)))
                database.close()
            print(f"{time.monotonic() - began:5.1f} s: {left} left; killed a {what}", file=sys.stderr)
        time.sleep(random.uniform(3, 6))
    seconds = round(time.monotonic() - began)
    attempts = verify(service[0], jobs)
    print({"jobs": len(jobs), "killed": dict(killed), "attempts": attempts, "seconds": seconds})


def unfinished(live: Live, jobs: list[str]) -> int:
    states = [get(live, f"/v1/jobs/{job}").json()["state"] for job in jobs]
    return sum(state in ("queued", "running") for state in states)


def get(live: Live, path: str) -> httpx.Response:
    while True:
        answer = live.http.get(path)
        if answer.status_code != 503:
            return answer
        time.sleep(0.2)


def kill(live: Live, what: str) -> Live:
    if what == "worker":
        pids = live.worker_pids()
        if pids:
            os.kill(random.choice(pids), signal.SIGKILL)
    elif what == "server":
        os.killpg(live.process.pid, signal.SIGKILL)
        live.process.wait()
        return start(live.settings)
    elif live.settings.database is not None:
        database = JobDatabase(live.settings.url)
        with database.write() as connection:
            connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            )
        database.close()
    return live


def verify(live: Live, jobs: list[str]) -> int:
    database = JobDatabase(live.settings.url)
    with database.read() as connection:
        ends = dict(
            connection.exec_driver_sql("SELECT job, count(*) FROM events WHERE kind = 'finished' GROUP BY job").all()
        )
    database.close()
    attempts = 0
    for number, job in enumerate(jobs):
        assert ends[job] == 1, (job, ends[job])
        found = get(live, f"/v1/jobs/{job}").json()
        assert found["state"] == "succeeded", found
        attempts += found["attempt"]
        if number % 10 == 0:
            result = from_bytes(get(live, f"/v1/jobs/{job}/result").content)
            assert check(from_bytes(body(number)), result).verdict == "passed"
    return attempts


if __name__ == "__main__":
    main()

"""Two worker hosts that share nothing but a database: processes and data folders of their own, one of them killed."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from service_testing import GRAPH, Live, files_below, free_port, start, stop, tiny, until

from superopt.server.jobs.database import JobDatabase
from superopt.server.jobs.database_blobs import DatabaseBlobs
from superopt.server.settings import ServiceLimits, ServiceSettings

JOBS = int(os.environ.get("SUPEROPT_TEST_JOBS", "6"))
HOW = {"target": "profile:cpu-epyc-2core", "time_limit": 20}
LIMITS = ServiceLimits(search_seconds=20.0, attempts=20, per_minute=500, active=500, grace=1.0)


@contextmanager
def host(folder: Path, url: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker host of two workers, with a folder of its own."""
    command = [sys.executable, "-m", "superopt.cli", "worker", "--apart", "--workers", "2"]
    process = subprocess.Popen([*command, "--data", str(folder), "--database", url], start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(30)


def results(live: Live, count: int) -> list[bytes]:
    """Submit models, wait until all have ended well, and fetch their results."""
    answers = [live.post(tiny(f"host-{n}"), GRAPH, **HOW) for n in range(count)]
    until(lambda: all(live.succeeded(a) for a in answers), 600)
    found = []
    for answer in answers:
        result = live.http.get(f"{answer.headers['location']}/result")
        assert result.status_code == 200, result.text
        found.append(result.content)
    return found


@pytest.mark.slow
def test_two_hosts_one_killed_each_job_once(postgres_url: str, tmp_path: Path) -> None:
    emptied(postgres_url)
    settings = ServiceSettings(
        tmp_path / "api", port=free_port(), workers=0, database=postgres_url, apart=True, lease=3.0, poll=0.1,
        limits=LIMITS,
    )  # fmt: skip
    live = start(settings)
    try:
        with host(tmp_path / "one", postgres_url) as one, host(tmp_path / "two", postgres_url):
            answers = [live.post(tiny(f"host-{n}"), GRAPH, **HOW) for n in range(JOBS)]
            assert all(a.status_code == 202 for a in answers)
            until(lambda: sum([live.succeeded(a) for a in answers]) >= JOBS // 6, 300)
            os.killpg(one.pid, signal.SIGKILL)
            one.wait()
            found = results(live, JOBS)  # the same models: jobs that are done answer for them
            until(lambda: all(live.succeeded(a) for a in answers), 60)
        ends, workers = told(postgres_url)
        assert set(ends) >= {a.json()["id"] for a in answers}
        assert set(ends.values()) == {1}
        assert len(workers) >= 2
    finally:
        stop(live)
    alone = start(ServiceSettings(tmp_path / "alone", port=free_port(), workers=1, poll=0.1, limits=LIMITS))
    try:
        assert results(alone, JOBS) == found
    finally:
        stop(alone)


def told(url: str) -> tuple[dict[str, int], set[str]]:
    """How often each job ended, and who worked."""
    database = JobDatabase(ServiceSettings(Path(), database=url).url)
    with database.read() as connection:
        ends = dict(
            connection.exec_driver_sql("SELECT job, count(*) FROM events WHERE kind = 'finished' GROUP BY job").all()
        )
        workers = set(connection.exec_driver_sql("SELECT worker FROM jobs WHERE worker IS NOT NULL").scalars())
    database.close()
    return ends, workers


def emptied(url: str) -> None:
    database = JobDatabase(ServiceSettings(Path(), database=url).url)
    with database.write() as connection:
        connection.exec_driver_sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    database.close()


def test_copies_are_whole_and_swept(database: JobDatabase, tmp_path: Path) -> None:
    copies = DatabaseBlobs(database)
    for content in (b"", b"x", os.urandom((2 << 20) + 7)):
        source = tmp_path / "source"
        source.write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        copies.put(source, digest)
        copies.put(source, digest)
        assert copies.get(digest, tmp_path / "there")
        assert (tmp_path / "there").read_bytes() == content
        assert copies.sweep({digest}, 0.0) == 0
        assert copies.sweep(set(), 3600.0) == 0
        assert copies.sweep(set(), -1.0) == 1
        (tmp_path / "there").unlink()
        assert not copies.get(digest, tmp_path / "there")
    assert files_below(tmp_path) == sorted(p for p in files_below(tmp_path) if "jobs.sqlite" in p or p == "source")


def test_a_damaged_copy_is_none(database: JobDatabase, tmp_path: Path) -> None:
    copies = DatabaseBlobs(database)
    (tmp_path / "source").write_bytes(b"something")
    copies.put(tmp_path / "source", "0" * 64)
    assert not copies.get("0" * 64, tmp_path / "there")
    assert not (tmp_path / "there").exists()

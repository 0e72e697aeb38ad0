"""What a worker makes of a disk that is full for a while, and of a child that gets no more memory."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from service_testing import GRAPH, tiny, until
from test_store import submission

from superopt.server.jobs.blobs import IncomingBlob
from superopt.server.jobs.worker import JobWorker
from superopt.server.settings import ServiceLimits, ServiceSettings

TINY = Path(__file__).resolve().parents[2] / "corpus" / "tiny"
OPTIONS = {"target": "profile:cpu-epyc-2core", "time_limit": 2.0, "seed": 0, "sizes": {}}


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobWorker]:
    """A worker in a thread, with the engine loaded in its nursery."""
    limits = ServiceLimits(retry_first=0.1, search_seconds=2.0)
    made = JobWorker(ServiceSettings(tmp_path_factory.mktemp("worker"), lease=10.0, poll=0.02, limits=limits))
    made.database.migrate()
    thread = threading.Thread(target=made.run, daemon=True)
    thread.start()
    yield made
    made.stop()
    thread.join(30)


def enqueue(worker: JobWorker, body: bytes) -> str:
    with IncomingBlob(worker.blobs) as spool:
        spool.write(body)
        model = spool.keep()
    asked = replace(submission(model), options=OPTIONS, media=GRAPH, model=model, cache_key=model)
    return str(worker.store.enqueue(asked)[0]["id"])


def ended(worker: JobWorker, job_id: str) -> Any:
    return until(lambda: (job := worker.store.job(job_id)) and job["finished"] and job, 120)


def child_of(worker: JobWorker) -> int:
    """The process that does the job in hand; 0 where there is none."""
    with suppress(OSError, IndexError, AssertionError):
        pid = worker.nursery.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    return 0


def test_a_job_that_met_a_full_disk_is_done_when_there_is_room(
    worker: JobWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, met = worker.blobs.copy, 0

    def full_twice(digest: str, target: Path) -> None:
        nonlocal met
        met += 1
        if met <= 2:
            raise OSError(errno.ENOSPC, "No space left on device", str(target))
        copy(digest, target)

    monkeypatch.setattr(worker.blobs, "copy", full_twice)
    job_id = enqueue(worker, tiny("met a full disk"))
    job = ended(worker, job_id)
    assert (job["state"], job["deferrals"], job["error"]) == ("succeeded", 2, None)
    told = [row["data"].get("because", "") for row in worker.store.events_after(job_id, 0) if row["kind"] == "queued"]
    assert [text.partition(";")[0] for text in told] == ["", *["the disk of the service is full"] * 2]
    until(lambda: not list(worker.blobs.work.iterdir()), 10)


def test_a_child_that_is_killed_for_memory_is_tried_again_with_less(worker: JobWorker) -> None:
    job_id = enqueue(worker, (TINY / "lora.json").read_bytes())
    first = until(lambda: child_of(worker), 60)
    os.kill(first, signal.SIGKILL)  # as the system does where memory ends
    job = ended(worker, job_id)
    assert (job["state"], job["attempt"], job["outputs"]["reduced"]) == ("succeeded", 1, True)
    assert worker.store.cached(job["cache_key"]) is None  # another may have more memory


def test_a_child_that_is_killed_for_memory_each_time_says_what_was_tried(worker: JobWorker) -> None:
    job_id = enqueue(worker, (TINY / "deep_linear.json").read_bytes())
    killed: set[int] = set()

    def over() -> bool:
        pid = child_of(worker)
        if pid and pid not in killed:
            killed.add(pid)
            os.kill(pid, signal.SIGKILL)
        job = worker.store.job(job_id)
        return job is not None and job["finished"] is not None

    until(over, 120)
    job = ended(worker, job_id)
    assert (job["state"], len(killed)) == ("failed", 2)
    assert job["error"]["type"] == "crashed"
    assert "SIGKILL" in job["error"]["detail"]
    assert "with a quarter of the budgets, too" in job["error"]["detail"]


def test_memory_is_what_the_limits_of_the_service_leave_of_a_job_s() -> None:
    code = (
        "import resource; from superopt.server.jobs.child import process_memory\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))\n"
        "print(process_memory({'memory': 8 << 30}), process_memory({'memory': 1 << 20}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(1 << 30), str(1 << 20)]

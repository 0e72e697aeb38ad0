"""The job table, on SQLite and on PostgreSQL: every job ends exactly once, whoever dies when."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from service_testing import Stopwatch

from superopt.server.http.problems import HttpProblem
from superopt.server.jobs.database import MIGRATIONS, JobDatabase, jobs, now
from superopt.server.jobs.retention import JobRetention
from superopt.server.jobs.store import JobClaim, JobStore, JobSubmission
from superopt.server.settings import ServiceLimits

OUTPUTS: dict[str, Any] = {"status": "unchanged", "files": {"json": {"sha256": "a" * 64, "size": 10}}, "input": 5,
                           "without": {}}  # fmt: skip


def submission(request: str = "r", **more: Any) -> JobSubmission:
    return JobSubmission(owner="me", request=request, name="m", options={"seed": 0}, media="x", model="b" * 64,
                      weights=None, cache_key=f"cache {request}", **more)  # fmt: skip


def claimed(store: JobStore, lease: float = 30.0) -> JobClaim:
    found = store.claim("w", lease)
    assert found is not None
    return found


def kinds(store: JobStore, job_id: str) -> list[tuple[int, str]]:
    return [(row["seq"], row["kind"]) for row in store.events_after(job_id, 0)]


def fall_silent(store: JobStore, clock: Stopwatch) -> None:
    """All workers are silent for longer than their lease, and somebody sees it."""
    store.watch()
    clock.now += 31.0


def test_a_job_from_start_to_end(store: JobStore) -> None:
    job, new = store.enqueue(submission())
    assert new
    held = claimed(store)
    assert (held.id, held.attempt, held.options) == (job["id"], 1, {"seed": 0})
    assert store.claim("w2", 30) is None
    store.progress(held, {"done": 1})
    assert store.heartbeat(held) == "go on"
    assert store.succeed(held, OUTPUTS)
    found = store.job(job["id"])
    assert found is not None
    assert (found["state"], found["outputs"], found["lease_seconds"]) == ("succeeded", OUTPUTS, None)
    assert kinds(store, job["id"]) == [(1, "queued"), (2, "started"), (3, "progress"), (4, "finished")]
    assert abs(found["created"] - time.time()) < 5


def test_migrations_can_run_again_and_side_by_side(database: JobDatabase) -> None:
    threads = [threading.Thread(target=database.migrate) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.read() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM schema_version").scalar_one() == len(MIGRATIONS)


def test_an_equal_job_is_answered_from_the_cache(store: JobStore) -> None:
    store.enqueue(submission())
    store.succeed(claimed(store), OUTPUTS)
    again, new = store.enqueue(submission())
    assert new
    assert (again["state"], again["cached"], again["outputs"]) == ("succeeded", True, OUTPUTS)
    assert kinds(store, again["id"]) == [(1, "finished")]


def test_idempotency_key_and_own_id(store: JobStore) -> None:
    first, _ = store.enqueue(submission(idempotency_key="k"))
    second, new = store.enqueue(submission(idempotency_key="k"))
    assert (second["id"], new) == (first["id"], False)
    with pytest.raises(HttpProblem) as reused:
        store.enqueue(submission("other", idempotency_key="k"))
    assert reused.value.status == 422
    stranger, new = store.enqueue(replace(submission(idempotency_key="k"), owner="you"))
    assert new
    assert stranger["id"] != first["id"]
    own = str(uuid.uuid4())
    assert store.enqueue(submission(id=own))[1]
    assert not store.enqueue(submission(id=own))[1]
    for other in (submission("other", id=own), replace(submission(id=own), owner="you")):
        with pytest.raises(HttpProblem) as taken:
            store.enqueue(other)
        assert taken.value.status == 409


def test_the_same_key_at_the_same_time_makes_one_job(store: JobStore) -> None:
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(store.enqueue(submission(idempotency_key="k"))[0]["id"]))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


def test_many_workers_claim_each_job_once(store: JobStore) -> None:
    wanted = [store.enqueue(submission(str(n)))[0]["id"] for n in range(60)]
    done: list[str] = []

    def work(name: str) -> None:
        while (held := store.claim(name, 30)) is not None:
            done.append(held.id)
            assert store.succeed(held, OUTPUTS)

    threads = [threading.Thread(target=work, args=(f"w{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(done) == Counter(wanted)
    assert store.counts() == {"succeeded": 60}


def test_a_silent_worker_is_fenced_out(store: JobStore, clock: Stopwatch) -> None:
    job, _ = store.enqueue(submission())
    dead = claimed(store)
    fall_silent(store, clock)
    taken = claimed(store)
    assert taken.attempt == 2
    assert store.heartbeat(dead) == "lost"
    store.progress(dead, {"done": 9})
    assert not store.succeed(dead, OUTPUTS)
    assert not store.fail(dead, {"what": "x"})
    store.release(dead)
    assert store.succeed(taken, OUTPUTS)
    assert not store.succeed(taken, OUTPUTS)
    assert [kind for _, kind in kinds(store, job["id"])] == ["queued", "started", "started", "finished"]


def test_a_job_that_kills_its_workers_ends(store: JobStore, clock: Stopwatch) -> None:
    job, _ = store.enqueue(submission())
    for _ in range(2):
        claimed(store)
        fall_silent(store, clock)
    assert store.claim("w", 30) is None
    assert store.reap() == 1
    found = store.job(job["id"])
    assert found is not None
    assert (found["state"], found["error"]["type"], found["model"]) == ("failed", "job-lost", None)
    assert store.reap() == 0


def test_a_worker_that_shuts_down_gives_its_job_back(store: JobStore) -> None:
    job, _ = store.enqueue(submission())
    for attempt in range(1, 6):  # more often than a job may lose its worker
        held = claimed(store)
        assert (held.id, held.attempt) == (job["id"], attempt)
        store.release(held)
    assert store.counts() == {"queued": 1}


def test_cancel(store: JobStore, clock: Stopwatch) -> None:
    waiting, _ = store.enqueue(submission())
    found = store.cancel(waiting["id"])
    assert found is not None
    assert found["state"] == "cancelled"
    assert store.claim("w", 30) is None
    running, _ = store.enqueue(submission())
    held = claimed(store)
    store.cancel(running["id"])
    assert store.heartbeat(held) == "cancel"
    assert store.succeed(held, OUTPUTS)  # it came too late: the cancellation was first
    assert store.counts() == {"cancelled": 2}
    assert store.cached(held.cache_key) is None
    orphan, _ = store.enqueue(submission())
    claimed(store)
    store.cancel(orphan["id"])
    fall_silent(store, clock)
    assert store.claim("w", 30) is None
    assert store.reap() == 1
    assert store.counts() == {"cancelled": 3}
    assert store.cancel("nothing") is None


def test_quotas(database: JobDatabase) -> None:
    small = JobStore(database, ServiceLimits(per_minute=3, active=2, queued=3))
    small.enqueue(submission("1"))
    small.enqueue(submission("2"))
    for owner, what in (("me", "quota"), ("you", None), ("them", "queue-full")):
        order = replace(submission("3"), owner=owner)
        if what is None:
            small.enqueue(order)
            continue
        with pytest.raises(HttpProblem) as over:
            small.enqueue(order)
        assert (over.value.status, over.value.kind) == (429, what)
        assert "Retry-After" in over.value.headers
    for _ in range(3):
        small.succeed(claimed(small), OUTPUTS, cache=False)
    small.enqueue(submission("3"))
    with pytest.raises(HttpProblem):
        small.enqueue(submission("4"))
    small.enqueue(submission("5", per_minute=10, active=10))  # a key's own quota


def test_retention_and_what_is_referred_to(database: JobDatabase) -> None:
    store = JobStore(database, ServiceLimits(retention=100, disk=30))
    for n in range(3):
        store.enqueue(submission(str(n)))
        store.succeed(claimed(store), OUTPUTS)
    waiting, _ = store.enqueue(submission("waiting"))
    held = claimed(store)
    retention = JobRetention(database, store.limits)
    retention.expire()
    assert store.counts() == {"succeeded": 2, "running": 1}  # 15 bytes each, 30 may be kept
    wanted, working = retention.references()
    assert wanted == {"a" * 64, "b" * 64}
    assert working == {f"{waiting['id']}-{held.attempt}"}
    with database.write() as connection:
        connection.execute(sa.update(jobs).values(finished=now() - 200.0))
    retention.expire()
    assert store.counts() == {}

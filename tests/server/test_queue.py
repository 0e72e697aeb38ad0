"""Who is next and who is dead: owners take turns, and no clock that is set decides whether a worker lives."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
import sqlalchemy as sa
from service_testing import Stopwatch, set_clock
from test_store import OUTPUTS, claimed, submission

from superopt.server.jobs.database import JobDatabase, jobs, now
from superopt.server.jobs.store import JobStore
from superopt.server.jobs.usage import histogram_rows, usage_of
from superopt.server.settings import ServiceLimits

HOURS = 7200.0


def enqueue(store: JobStore, owner: str, count: int) -> list[str]:
    """Jobs of an owner, which SQLite's clock is to tell from one another."""
    time.sleep(0.002)
    return [store.enqueue(replace(submission(f"{owner} {n}"), owner=owner))[0]["id"] for n in range(count)]


def drain(store: JobStore) -> list[tuple[str, str]]:
    """Owner and id of every job in the order in which they are begun."""
    found = []
    while (held := store.claim("w", 30)) is not None:
        store.succeed(held, OUTPUTS, cache=False)
        found.append((held.owner, held.id))
    return found


@pytest.mark.parametrize("counts", [(20, 20), (30, 10), (39, 1), (14, 13, 13)])
def test_owners_take_turns_however_many_jobs_one_has(store: JobStore, counts: Sequence[int]) -> None:
    owners = [f"owner {n}" for n in range(len(counts))]
    for owner, count in zip(owners, counts, strict=True):
        enqueue(store, owner, count)
    order = [owner for owner, _ in drain(store)]
    assert len(order) == sum(counts)
    for rank in range(max(counts)):
        waits = [[p for p, o in enumerate(order, 1) if o == owner][rank : rank + 1] for owner in owners]
        seen = [w[0] for w in waits if w]
        assert max(seen) - min(seen) < len(owners)  # the n-th job of each waits as long, but for a turn
    first = [order.index(owner) for owner in owners]
    assert first == list(range(len(owners)))


def test_an_owner_who_comes_later_waits_for_one_job_of_each_other(store: JobStore) -> None:
    enqueue(store, "many", 8)
    enqueue(store, "some", 2)
    for _ in range(3):
        store.succeed(claimed(store), OUTPUTS, cache=False)
    [late] = enqueue(store, "late", 1)
    assert drain(store)[0] == ("late", late)


def test_what_is_said_to_come_first_does(store: JobStore) -> None:
    ids = [*enqueue(store, "a", 5), *enqueue(store, "b", 3), *enqueue(store, "c", 1)]
    store.succeed(claimed(store), OUTPUTS, cache=False)
    said = {}
    for job_id in ids[1:]:
        job = store.job(job_id)
        assert job is not None
        said[job_id] = store.ahead(job)
    order = [job_id for _, job_id in drain(store)]
    assert {job_id: order.index(job_id) for job_id in order} == said


@pytest.mark.parametrize("step", [-HOURS, 0.0, HOURS])
def test_a_killed_job_is_taken_whatever_the_clock_says(
    store: JobStore, database: JobDatabase, clock: Stopwatch, step: float
) -> None:
    [job_id] = enqueue(store, "me", 1)
    dead = claimed(store)
    store.watch()
    set_clock(database, step)
    clock.now += 29.0
    assert store.claim("w2", 30) is None  # its worker has said nothing for less than its lease
    clock.now += 2.0
    taken = claimed(store)
    assert (taken.id, taken.attempt) == (job_id, 2)
    assert store.heartbeat(dead) == "lost"
    store.watch()
    clock.now += 31.0
    assert store.reap() == 1  # the last attempt died, too: it ends
    assert store.counts() == {"failed": 1}


@pytest.mark.parametrize("step", [-HOURS, HOURS])
def test_a_job_that_lives_is_left_alone_whatever_the_clock_says(
    store: JobStore, database: JobDatabase, clock: Stopwatch, step: float
) -> None:
    enqueue(store, "me", 1)
    held = claimed(store)
    other = JobStore(database, store.limits, clock)
    for _ in range(20):
        assert store.heartbeat(held) == "go on"
        assert other.claim("w2", 30) is None
        assert other.reap() == 0
        set_clock(database, step)
        clock.now += 20.0
    assert store.succeed(held, OUTPUTS)


def test_an_observer_that_begins_late_waits_for_a_lease_of_its_own(store: JobStore, database: JobDatabase) -> None:
    enqueue(store, "me", 1)
    claimed(store)
    late = Stopwatch(1_000_000.0)  # another machine's
    other = JobStore(database, store.limits, late)
    assert other.claim("w2", 30) is None
    late.now += 31.0
    assert other.claim("w2", 30) is not None


def test_quotas_of_a_minute_end_where_the_clock_is_set_back(database: JobDatabase) -> None:
    store = JobStore(database, ServiceLimits(per_minute=2))
    enqueue(store, "me", 2)
    set_clock(database, -HOURS)
    enqueue(store, "me", 1)


def test_a_job_that_met_a_full_disk_waits_and_is_tried_again(store: JobStore, database: JobDatabase) -> None:
    [job_id] = enqueue(store, "me", 1)
    full = {"type": "disk-full", "status": 503, "detail": "the disk is full"}
    assert store.defer(claimed(store), full)
    job = store.job(job_id)
    assert job is not None
    assert (job["state"], job["error"]["type"]) == ("queued", "disk-full")
    assert "tried again in 5 s" in job["error"]["detail"]
    assert store.claim("w", 30) is None
    for step in (6.0, -HOURS):  # later; or the clock was set back, so that it would wait for hours
        set_clock(database, step)
        held = claimed(store)
        assert store.job(job_id)["error"] is None  # type: ignore[index]
        store.defer(held, full)
    set_clock(database, HOURS)
    assert store.succeed(claimed(store), OUTPUTS)


def test_a_disk_that_stays_full_ends_a_job_at_last(database: JobDatabase) -> None:
    store = JobStore(database, ServiceLimits(retries=2))
    [job_id] = enqueue(store, "me", 1)
    full = {"type": "disk-full", "status": 503, "detail": "the disk is full"}
    for again in (True, True, False):
        assert store.defer(claimed(store), full) is again
        set_clock(database, HOURS)
    assert store.job(job_id)["state"] == "failed"  # type: ignore[index]


def test_what_owners_use_is_counted(store: JobStore, database: JobDatabase, clock: Stopwatch) -> None:
    enqueue(store, "me", 4)
    held = claimed(store)
    clock.now += 2.0
    store.succeed(held, OUTPUTS)
    held = claimed(store)
    clock.now += 40.0
    store.fail(held, {"what": "x"})
    store.stop(claimed(store))
    store.cancel(enqueue(store, "you", 1)[0])
    mine, yours = usage_of(database)
    assert {k: mine[k] for k in ("key", "submitted", "succeeded", "failed", "cancelled", "seconds")} == {
        "key": "me", "submitted": 4, "succeeded": 1, "failed": 1, "cancelled": 1, "seconds": 42.0,
    }  # fmt: skip
    assert (yours["key"], yours["cancelled"]) == ("you", 1)
    assert usage_of(database, "you") == [yours]
    ran = {(outcome, le): count for metric, outcome, le, count, _ in histogram_rows(database) if metric == "run"}
    assert ran == {("succeeded", "2.5"): 1, ("failed", "60"): 1, ("cancelled", "0.1"): 1}


def test_a_database_of_an_older_version_is_brought_up_to_date(database: JobDatabase) -> None:
    with database.write() as connection:
        for statement in (
            "DROP TABLE webhooks", "DROP TABLE owners", "DROP TABLE histograms",
            "DELETE FROM schema_version WHERE version > 3",
            *(f"ALTER TABLE jobs DROP COLUMN {c}" for c in ("lease_seconds", "beats", "deferrals", "due")),
            "ALTER TABLE api_keys DROP COLUMN operator", "ALTER TABLE jobs ADD COLUMN lease DOUBLE PRECISION",
            "INSERT INTO jobs (id, owner, request, name, state, options, media, cache_key, attempt, losses, cancel, "
            "created, cached, events, lease) VALUES ('j', 'me', 'r', 'm', 'running', '{}', 'x', 'c', 1, 0, "
            "false, 1000.0, false, 1, 2000.0)",
        ):  # fmt: skip
            connection.exec_driver_sql(statement)
    database.migrate()
    database.migrate()
    clock = Stopwatch()
    store = JobStore(database, ServiceLimits(), clock)
    assert store.claim("w", 30) is None
    clock.now += 16.0
    held = claimed(store)
    assert (held.id, held.attempt) == ("j", 2)
    with database.read() as connection:
        assert connection.execute(sa.select(jobs.c.started <= now())).scalar_one()

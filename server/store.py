"""The job table: enqueue, claim, heartbeat, progress, finish, cancel. Each is one transaction and safe to repeat.

A worker holds a job by a lease that it renews. ``attempt`` grows with every claim and is the fencing token: whoever
writes names the attempt it believes in, and a worker that was taken for dead writes nothing any more. So a job ends
exactly once, whichever process dies when.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Result
from sqlalchemy.exc import IntegrityError

from superopt.server.body import sidecars
from superopt.server.database import Database, events, jobs, now, pins, results
from superopt.server.problems import Problem
from superopt.server.settings import Limits

__all__ = ["FINAL", "Claim", "Pulse", "Store", "Submission", "reusable"]

FINAL = frozenset({"succeeded", "failed", "cancelled"})
Pulse = Literal["go on", "cancel", "lost"]
_WAITING = ("queued", "running")
_CUT_SHORT = frozenset({"time", "interrupted"})  # how searches stop that went no further
Row = dict[str, Any]


def _counted(*where: sa.ColumnElement[bool]) -> sa.ScalarSelect[int]:
    return sa.select(sa.func.count()).select_from(jobs).where(*where).scalar_subquery()


# What every submission asks and writes is made once: that takes longer than the database does.
_REUSE = (
    sa.update(results).where(results.c.cache_key == sa.bindparam("key")).values(created=now())
    .returning(results.c.outputs)
)  # fmt: skip
_QUEUE = sa.insert(jobs).values(created=now()).returning(jobs)
_ANSWER = sa.insert(jobs).values(created=now(), finished=now()).returning(jobs)
_PINNED = sa.select(pins.c.job)
_NOTE = sa.insert(events).values(at=now())
# Jobs that wait, those of one owner, and those it submitted within a minute.
_OWNED, _UNFINISHED = jobs.c.owner == sa.bindparam("owner"), jobs.c.state.in_(_WAITING)
_USE = sa.select(
    _counted(_UNFINISHED), _counted(_OWNED, _UNFINISHED), _counted(_OWNED, jobs.c.created > now() - 60.0)
)  # fmt: skip


@dataclass(frozen=True)
class Submission:
    """What a client asks for. ``request`` is the digest of all of it, by which repeats are recognised."""

    owner: str
    request: str
    name: str
    options: Mapping[str, Any]
    media: str
    model: str
    weights: str | None
    cache_key: str
    id: str | None = None
    idempotency_key: str | None = None
    per_minute: int | None = None
    active: int | None = None


@dataclass(frozen=True)
class Claim:
    """A job that this worker holds."""

    id: str
    attempt: int
    options: Mapping[str, Any] = field(hash=False)
    media: str
    model: str
    weights: str | None
    cache_key: str


class Store:
    """The job table of one database."""

    def __init__(self, database: Database, limits: Limits) -> None:
        self.database = database
        self.limits = limits

    # --- clients -----------------------------------------------------------------------------------------------

    def enqueue(self, what: Submission) -> tuple[Row, bool]:
        """Put a job into the queue, or find the one that the same client put there before.

        Returns:
            The job, and whether it is new.

        Raises:
            Problem: 409 or 422 where the id or idempotency key stands for something else; 429 over a quota.
        """
        for _ in range(3):  # a concurrent twin may win the race for the unique key; then it is found
            try:
                with self.database.write() as connection:
                    if (found := self._earlier(connection, what)) is not None:
                        return found, False
                    self._within_quota(connection, what)
                    return self._insert(connection, what), True
            except IntegrityError:
                continue
        raise Problem(409, "conflict", "another request with the same key is being accepted; try again")

    def _earlier(self, connection: Connection, what: Submission) -> Row | None:
        if what.id is not None:
            found = _one(connection.execute(sa.select(jobs).where(jobs.c.id == what.id)))
            if found is not None and (found["owner"] != what.owner or found["request"] != what.request):
                raise Problem(409, "conflict", f"job {what.id} exists and asks for something else")
            return found
        if what.idempotency_key is None:
            return None
        mine = sa.and_(jobs.c.owner == what.owner, jobs.c.idempotency_key == what.idempotency_key)
        found = _one(connection.execute(sa.select(jobs).where(mine)))
        if found is not None and found["request"] != what.request:
            raise Problem(422, "idempotency-key-reused", "this Idempotency-Key was used for a different request")
        return found

    def _within_quota(self, connection: Connection, what: Submission) -> None:
        waiting, mine, recent = connection.execute(_USE, {"owner": what.owner}).one()
        if waiting >= self.limits.queued:
            raise Problem(429, "queue-full", "too many jobs are waiting", retry_after=10)
        if mine >= (what.active or self.limits.active):
            raise Problem(429, "quota", "you have too many unfinished jobs", retry_after=10)
        if recent >= (what.per_minute or self.limits.per_minute):
            raise Problem(429, "quota", "you submitted too many jobs within a minute", retry_after=30)

    def _insert(self, connection: Connection, what: Submission) -> Row:
        outputs = connection.execute(_REUSE, {"key": what.cache_key}).scalar_one_or_none()
        values: dict[str, Any] = {
            "id": what.id or str(uuid.uuid4()), "owner": what.owner, "idempotency_key": what.idempotency_key,
            "request": what.request, "name": what.name, "options": dict(what.options), "media": what.media,
            "model": what.model, "weights": what.weights, "cache_key": what.cache_key,
            "state": "queued", "attempt": 0, "losses": 0, "cancel": False, "cached": False, "events": 1,
        }  # fmt: skip
        if outputs is not None:
            values |= {"state": "succeeded", "cached": True, "outputs": outputs}
        row = dict(connection.execute(_QUEUE if outputs is None else _ANSWER, values).mappings().one())
        kind, data = ("finished", {"state": "succeeded", "cached": True}) if outputs else ("queued", {})
        _note(connection, row["id"], 1, kind, data)
        return row

    def job(self, job_id: str) -> Row | None:
        """A job by its id."""
        with self.database.read() as connection:
            return _one(connection.execute(sa.select(jobs).where(jobs.c.id == job_id)))

    def ahead(self, created: float) -> int:
        """How many queued jobs came before."""
        with self.database.read() as connection:
            return connection.execute(
                sa.select(sa.func.count()).select_from(jobs).where(jobs.c.state == "queued", jobs.c.created < created)
            ).scalar_one()

    def cancel(self, job_id: str) -> Row | None:
        """Ask for a job's end: a queued one ends now, a running one when its worker notices, a finished one stays."""
        with self.database.write() as connection:
            ended = connection.execute(
                sa.update(jobs).where(jobs.c.id == job_id, jobs.c.state == "queued")
                .values(state="cancelled", cancel=True, finished=now(), model=None, weights=None,
                        events=jobs.c.events + 1)
                .returning(jobs.c.events)
            ).scalar_one_or_none()  # fmt: skip
            if ended is not None:
                _note(connection, job_id, ended, "finished", {"state": "cancelled"})
            else:
                connection.execute(
                    sa.update(jobs).where(jobs.c.id == job_id, jobs.c.state == "running").values(cancel=True)
                )
            return _one(connection.execute(sa.select(jobs).where(jobs.c.id == job_id)))

    def events_after(self, job_id: str, seq: int) -> Sequence[Row]:
        """The events of a job that come after number ``seq``, in order."""
        with self.database.read() as connection:
            statement = sa.select(events).where(events.c.job == job_id, events.c.seq > seq).order_by(events.c.seq)
            return [dict(row) for row in connection.execute(statement).mappings()]

    def pulses(self, job_ids: Iterable[str]) -> dict[str, tuple[str, int]]:
        """State and number of events of several jobs, in one query; jobs that are gone are missing."""
        with self.database.read() as connection:
            statement = sa.select(jobs.c.id, jobs.c.state, jobs.c.events).where(jobs.c.id.in_(list(job_ids)))
            return {row.id: (row.state, row.events) for row in connection.execute(statement)}

    def counts(self) -> dict[str, int]:
        """Jobs by state."""
        with self.database.read() as connection:
            statement = sa.select(jobs.c.state, sa.func.count().label("jobs")).group_by(jobs.c.state)
            return {row.state: row.jobs for row in connection.execute(statement)}

    def look(self) -> None:
        """Read a row, to see whether that can be done."""
        with self.database.read() as connection:
            connection.execute(sa.select(jobs.c.id).limit(1)).first()

    # --- workers -----------------------------------------------------------------------------------------------

    def claim(self, worker: str, lease: float) -> Claim | None:
        """Take the oldest job that waits, or whose worker is silent; nobody else gets it while the lease is renewed."""
        expired = sa.and_(jobs.c.state == "running", jobs.c.lease < now())
        free = sa.or_(jobs.c.state == "queued", sa.and_(expired, jobs.c.losses + 1 < self.limits.attempts))
        first = (
            sa.select(jobs.c.id).where(free, jobs.c.cancel.is_(False)).order_by(jobs.c.created).limit(1)
            .with_for_update(skip_locked=True)
        )  # fmt: skip
        lost = sa.case((jobs.c.state == "running", 1), else_=0)
        with self.database.read() as connection:  # an idle worker takes no locks
            if connection.execute(sa.select(jobs.c.id).where(free, jobs.c.cancel.is_(False)).limit(1)).first() is None:
                return None
        with self.database.write() as connection:
            row = connection.execute(
                sa.update(jobs).where(jobs.c.id == first.scalar_subquery())
                .values(state="running", attempt=jobs.c.attempt + 1, losses=jobs.c.losses + lost, worker=worker,
                        lease=now() + lease, started=now(), events=jobs.c.events + 1)
                .returning(jobs)
            ).mappings().one_or_none()  # fmt: skip
            if row is None:
                return None
            _note(connection, row["id"], row["events"], "started", {"attempt": row["attempt"]})
            return Claim(**{name: row[name] for name in Claim.__dataclass_fields__})

    def heartbeat(self, held: Claim, lease: float) -> Pulse:
        """Renew the lease, and learn whether to go on."""
        with self.database.write() as connection:
            cancel = connection.execute(
                sa.update(jobs).where(*_holding(held)).values(lease=now() + lease).returning(jobs.c.cancel)
            ).scalar_one_or_none()
        return "lost" if cancel is None else "cancel" if cancel else "go on"

    def progress(self, held: Claim, data: Mapping[str, Any]) -> None:
        """Add a progress event; nothing if the job is not held any more."""
        with self.database.write() as connection:
            seq = connection.execute(
                sa.update(jobs).where(*_holding(held)).values(events=jobs.c.events + 1).returning(jobs.c.events)
            ).scalar_one_or_none()
            if seq is not None:
                _note(connection, held.id, seq, "progress", data)

    def cached(self, cache_key: str) -> Mapping[str, Any] | None:
        """The outputs of an equal job that succeeded."""
        with self.database.read() as connection:
            return connection.execute(
                sa.select(results.c.outputs).where(results.c.cache_key == cache_key)
            ).scalar_one_or_none()

    def succeed(self, held: Claim, outputs: Mapping[str, Any], *, cache: bool = True, cached: bool = False) -> bool:
        """End a held job with its outputs; false if it is held no more. A cancellation that came before wins."""
        with self.database.write() as connection:
            state = self._end(connection, held, "succeeded", {"outputs": dict(outputs), "cached": cached})
            if state == "succeeded" and cache:
                connection.execute(sa.delete(results).where(results.c.cache_key == held.cache_key))
                connection.execute(
                    sa.insert(results).values(cache_key=held.cache_key, created=now(), outputs=dict(outputs))
                )
            return state is not None

    def fail(self, held: Claim, error: Mapping[str, Any]) -> bool:
        """End a held job with a problem, and let go of its input; false if it is held no more."""
        with self.database.write() as connection:
            values = {"error": dict(error), "model": None, "weights": None}
            return self._end(connection, held, "failed", values) is not None

    def stop(self, held: Claim) -> bool:
        """End a held job as cancelled; false if it is held no more."""
        with self.database.write() as connection:
            return self._end(connection, held, "cancelled", {"model": None, "weights": None}) is not None

    def release(self, held: Claim) -> None:
        """Put a held job back at the head of the queue: this worker is shutting down."""
        with self.database.write() as connection:
            seq = connection.execute(
                sa.update(jobs).where(*_holding(held))
                .values(state="queued", lease=None, worker=None, events=jobs.c.events + 1).returning(jobs.c.events)
            ).scalar_one_or_none()  # fmt: skip
            if seq is not None:
                _note(connection, held.id, seq, "queued", {"because": "the worker is shutting down"})

    def _end(self, connection: Connection, held: Claim, state: str, values: Mapping[str, Any]) -> str | None:
        final = sa.case((jobs.c.cancel, "cancelled"), else_=state)
        row = connection.execute(
            sa.update(jobs).where(*_holding(held))
            .values(**values, state=final, finished=now(), lease=None, events=jobs.c.events + 1)
            .returning(jobs.c.state, jobs.c.events)
        ).one_or_none()  # fmt: skip
        if row is None:
            return None
        _note(connection, held.id, row.events, "finished", {"state": row.state})
        return str(row.state)

    # --- housekeeping ------------------------------------------------------------------------------------------

    def reap(self) -> int:
        """End jobs that no worker can finish: lost too often, or cancelled while their worker died."""
        error = {
            "type": "job-lost", "status": 422, "detail": "the process that ran this job died each time it was tried",
        }  # fmt: skip
        lost = sa.or_(jobs.c.cancel, jobs.c.losses + 1 >= self.limits.attempts)
        with self.database.write() as connection:
            rows = connection.execute(
                sa.update(jobs).where(jobs.c.state == "running", jobs.c.lease < now(), lost)
                .values(state=sa.case((jobs.c.cancel, "cancelled"), else_="failed"), finished=now(), lease=None,
                        error=sa.case((jobs.c.cancel, sa.null()), else_=sa.literal(error, sa.JSON)),
                        model=None, weights=None, events=jobs.c.events + 1)
                .returning(jobs.c.id, jobs.c.state, jobs.c.events)
            ).all()  # fmt: skip
            for row in rows:
                _note(connection, row.id, row.events, "finished", {"state": row.state})
            return len(rows)

    def expire(self) -> None:
        """Forget what is older than the retention, and the oldest of what is over the disk limit."""
        limit = now() - self.limits.retention
        with self.database.write() as connection:
            connection.execute(sa.delete(jobs).where(jobs.c.finished < limit, jobs.c.id.not_in(_PINNED)))
            connection.execute(sa.delete(results).where(results.c.created < limit))
            self._fit(connection)

    def _fit(self, connection: Connection) -> None:
        left = self.limits.disk
        old: list[str] = []
        statement = sa.select(jobs.c.id, jobs.c.outputs, jobs.c.id.in_(_PINNED).label("pinned"))
        statement = statement.where(jobs.c.state == "succeeded")
        for row in connection.execute(statement.order_by(sa.desc("pinned"), jobs.c.finished.desc())):
            left -= sum(f["size"] for f in row.outputs["files"].values()) + row.outputs["input"]
            if left < 0 and not row.pinned:
                old.append(row.id)
        if old:
            connection.execute(sa.delete(jobs).where(jobs.c.id.in_(old)))
            kept = sa.select(jobs.c.cache_key)
            connection.execute(sa.delete(results).where(results.c.cache_key.not_in(kept)))

    def references(self) -> tuple[frozenset[str], frozenset[str]]:
        """Blobs that something refers to, and the names of the folders of jobs that run."""
        wanted: set[str] = set()
        with self.database.read() as connection:
            for row in connection.execute(sa.select(jobs.c.model, jobs.c.weights, jobs.c.outputs)):
                wanted |= {digest for digest in (row.model, *sidecars(row.weights).values()) if digest}
                wanted |= {f["sha256"] for f in (row.outputs or {"files": {}})["files"].values()}
            for outputs in connection.execute(sa.select(results.c.outputs)).scalars():
                wanted |= {f["sha256"] for f in outputs["files"].values()}
            running = connection.execute(sa.select(jobs.c.id, jobs.c.attempt).where(jobs.c.state == "running"))
            return frozenset(wanted), frozenset(f"{row.id}-{row.attempt}" for row in running)


def reusable(outputs: Mapping[str, Any]) -> bool:
    """Whether a result answers for an equal job: not if its search was cut short, for another one may find more."""
    return outputs.get("stopped") not in _CUT_SHORT


def _holding(held: Claim) -> tuple[sa.ColumnElement[bool], ...]:
    return jobs.c.id == held.id, jobs.c.attempt == held.attempt, jobs.c.state == "running"


def _note(connection: Connection, job_id: str, seq: int, kind: str, data: Mapping[str, Any]) -> None:
    connection.execute(_NOTE, {"job": job_id, "seq": seq, "kind": kind, "data": dict(data)})


def _one(found: Result[Any]) -> Row | None:
    row = found.mappings().one_or_none()
    return None if row is None else dict(row)

"""The job table: enqueue, claim, heartbeat, progress, finish, cancel. Each is one transaction and safe to repeat.

A worker holds a job by a lease that it renews with a counter of heartbeats. Other workers watch the counter: where it
stands still for as long as the lease says, by the stopwatch of the observer, the job may be taken. No time of day is
compared for it. ``attempt`` grows with every claim and is the fencing token: whoever writes names the attempt it
believes in, and a worker that was taken for dead writes nothing any more. So a job ends exactly once, whichever process
dies when.

Owners take turns: the next job is the oldest one of the owner for whom none was begun for the longest.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Result
from sqlalchemy.exc import IntegrityError

from superopt.server.http.problems import HttpProblem
from superopt.server.jobs.database import JobDatabase, events, jobs, now, owners, results, webhooks
from superopt.server.jobs.failure_detection import StallDetector
from superopt.server.jobs.usage import QUEUE_WAIT, RUN_TIME, add_usage, observe_seconds, take_turn
from superopt.server.settings import ServiceLimits

__all__ = ["FINAL", "WAITING", "JobClaim", "JobStore", "JobSubmission", "Pulse"]

FINAL = frozenset({"succeeded", "failed", "cancelled"})
Pulse = Literal["go on", "cancel", "lost"]
WAITING = ("queued", "running")
_LOST = {"type": "job-lost", "status": 422, "detail": "the process that ran this job died each time it was tried"}
Row = dict[str, Any]


@dataclass(frozen=True)
class JobSubmission:
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
    webhook: tuple[str, str] | None = None  # where its end is told, and the secret that signs it


@dataclass(frozen=True)
class JobClaim:
    """A job that this worker holds; ``began`` is by the clock of its store."""

    id: str
    owner: str
    attempt: int
    losses: int
    deferrals: int
    options: Mapping[str, Any] = field(hash=False)
    media: str
    model: str
    weights: str | None
    cache_key: str
    waited: float  # seconds from its submission to this attempt, by the database's clock
    began: float


def _counted(*where: sa.ColumnElement[bool]) -> sa.ScalarSelect[int]:
    return sa.select(sa.func.count()).select_from(jobs).where(*where).scalar_subquery()


# What every submission asks and writes is made once: that takes longer than the database does.
_REUSE = (
    sa.update(results).where(results.c.cache_key == sa.bindparam("key")).values(created=now())
    .returning(results.c.outputs)
)  # fmt: skip
_QUEUE = sa.insert(jobs).values(created=now()).returning(jobs)
_ANSWER = sa.insert(jobs).values(created=now(), finished=now()).returning(jobs)
_NOTE = sa.insert(events).values(at=now())
_RUNNING = jobs.c.state == "running"
# Jobs that wait, those of one owner, and those it submitted within a minute.
_OWNED, _UNFINISHED = jobs.c.owner == sa.bindparam("owner"), jobs.c.state.in_(WAITING)
_MINUTE = jobs.c.created.between(now() - 60.0, now())  # not what is dated later: the clock was set back since
_USE = sa.select(_counted(_UNFINISHED), _counted(_OWNED, _UNFINISHED), _counted(_OWNED, _MINUTE))
_TURN = sa.func.coalesce(
    sa.select(owners.c.turn).where(owners.c.owner == jobs.c.owner).correlate(jobs).scalar_subquery(), 0
)  # fmt: skip


class JobStore:
    """The job table of one database.

    Args:
        database: it is in.
        limits: of quotas and attempts.
        clock: seconds of a clock that is never set, by which silent workers are noticed.
    """

    def __init__(
        self, database: JobDatabase, limits: ServiceLimits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.database = database
        self.limits = limits
        self._clock = clock
        self._heartbeats = StallDetector[str](clock)

    # --- clients -----------------------------------------------------------------------------------------------

    def enqueue(self, what: JobSubmission) -> tuple[Row, bool]:
        """Put a job into the queue, or find the one that the same client put there before.

        Returns:
            The job, and whether it is new.

        Raises:
            HttpProblem: 409 or 422 where the id or idempotency key stands for something else; 429 over a quota.
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
        raise HttpProblem(409, "conflict", "another request with the same key is being accepted; try again")

    def _earlier(self, connection: Connection, what: JobSubmission) -> Row | None:
        if what.id is not None:
            found = _one(connection.execute(sa.select(jobs).where(jobs.c.id == what.id)))
            if found is not None and (found["owner"] != what.owner or found["request"] != what.request):
                raise HttpProblem(409, "conflict", f"job {what.id} exists and asks for something else")
            return found
        if what.idempotency_key is None:
            return None
        mine = sa.and_(jobs.c.owner == what.owner, jobs.c.idempotency_key == what.idempotency_key)
        found = _one(connection.execute(sa.select(jobs).where(mine)))
        if found is not None and found["request"] != what.request:
            raise HttpProblem(422, "idempotency-key-reused", "this Idempotency-Key was used for a different request")
        return found

    def _within_quota(self, connection: Connection, what: JobSubmission) -> None:
        waiting, mine, recent = connection.execute(_USE, {"owner": what.owner}).one()
        if waiting >= self.limits.queued:
            raise HttpProblem(429, "queue-full", "too many jobs are waiting", retry_after=10)
        if mine >= (what.active or self.limits.active):
            raise HttpProblem(429, "quota", "you have too many unfinished jobs", retry_after=10)
        if recent >= (what.per_minute or self.limits.per_minute):
            raise HttpProblem(429, "quota", "you submitted too many jobs within a minute", retry_after=30)

    def _insert(self, connection: Connection, what: JobSubmission) -> Row:
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
        cached = {"succeeded": 1} if outputs else {}
        add_usage(connection, what.owner, submitted=1, **cached)
        if what.webhook is not None:
            url, secret = what.webhook
            connection.execute(sa.insert(webhooks).values(job=row["id"], url=url, secret=secret, state="waiting"))
        return row

    def job(self, job_id: str) -> Row | None:
        """A job by its id."""
        with self.database.read() as connection:
            return _one(connection.execute(sa.select(jobs).where(jobs.c.id == job_id)))

    def ahead(self, job: Mapping[str, Any]) -> int:
        """How many queued jobs are begun before this one, where no more come: owners take turns."""
        queued = jobs.c.state == "queued"
        place = (_TURN.label("turn"), sa.func.min(jobs.c.created).label("oldest"))
        waiting = sa.select(jobs.c.owner, *place, sa.func.count().label("jobs")).where(queued).group_by(jobs.c.owner)
        before = sa.tuple_(jobs.c.created, jobs.c.id) < sa.tuple_(job["created"], job["id"])
        with self.database.read() as connection:
            earlier = connection.execute(sa.select(_counted(queued, jobs.c.owner == job["owner"], before)))
            mine = int(earlier.scalar_one())
            rows = connection.execute(waiting).all()
        turns = {row.owner: (row.turn, row.oldest) for row in rows}
        own = turns.get(job["owner"], (0, job["created"]))
        others = (row for row in rows if row.owner != job["owner"])
        return mine + sum(min(int(row.jobs), mine + int(turns[row.owner] < own)) for row in others)

    def cancel(self, job_id: str) -> Row | None:
        """Ask for a job's end: a queued one ends now, a running one when its worker notices, a finished one stays."""
        with self.database.write() as connection:
            ended = connection.execute(
                sa.update(jobs).where(jobs.c.id == job_id, jobs.c.state == "queued")
                .values(state="cancelled", cancel=True, finished=now(), model=None, weights=None,
                        events=jobs.c.events + 1)
                .returning(jobs.c.owner, jobs.c.events)
            ).one_or_none()  # fmt: skip
            if ended is not None:
                _note(connection, job_id, ended.events, "finished", {"state": "cancelled"})
                add_usage(connection, ended.owner, cancelled=1)
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

    def watch(self) -> list[sa.ColumnElement[bool]]:
        """Look at the heartbeats of all jobs that run; conditions that hold for those whose workers are silent.

        A worker that is busy has to look, too: silence counts from when it was first seen.
        """
        wanted = sa.select(jobs.c.id, jobs.c.attempt, jobs.c.beats, jobs.c.lease_seconds).where(_RUNNING)
        with self.database.read() as connection:
            rows = connection.execute(wanted).all()
        silence = self._heartbeats.observe({row.id: (row.attempt, row.beats) for row in rows})
        return [
            sa.and_(_RUNNING, jobs.c.id == row.id, jobs.c.attempt == row.attempt, jobs.c.beats == row.beats)
            for row in rows if silence[row.id] > row.lease_seconds
        ]  # fmt: skip

    def claim(self, worker: str, lease: float) -> JobClaim | None:
        """Take a job that waits, or whose worker is silent; nobody else gets it while there are heartbeats.

        Args:
            worker: who takes it.
            lease: seconds of silence after which it is taken for dead.
        """
        tried = self.limits.retry_most  # a due time that is further off was written before the clock was set back
        due = sa.or_(jobs.c.due.is_(None), jobs.c.due <= now(), jobs.c.due > now() + tried)
        lost = sa.and_(sa.or_(*self.watch(), sa.false()), jobs.c.losses + 1 < self.limits.attempts)
        free = sa.and_(sa.or_(sa.and_(jobs.c.state == "queued", due), lost), jobs.c.cancel.is_(False))
        first = sa.select(jobs.c.id).where(free).order_by(_TURN, jobs.c.created, jobs.c.id).limit(1)
        with self.database.read() as connection:  # an idle worker takes no locks
            if connection.execute(sa.select(jobs.c.id).where(free).limit(1)).first() is None:
                return None
        losses = jobs.c.losses + sa.case((_RUNNING, 1), else_=0)
        with self.database.claim() as connection:
            row = connection.execute(
                sa.update(jobs).where(jobs.c.id == first.scalar_subquery(), free)
                .values(state="running", attempt=jobs.c.attempt + 1, losses=losses, worker=worker, beats=0, due=None,
                        lease_seconds=lease, started=now(), error=sa.null(), events=jobs.c.events + 1)
                .returning(jobs)
            ).mappings().one_or_none()  # fmt: skip
            if row is None:
                return None
            waited = max(0.0, row["started"] - row["created"])
            take_turn(connection, row["owner"])
            _note(connection, row["id"], row["events"], "started", {"attempt": row["attempt"]})
            if row["attempt"] == 1:
                observe_seconds(connection, QUEUE_WAIT, "started", waited)
        own = {name: row[name] for name in JobClaim.__dataclass_fields__ if name in row}
        return JobClaim(**own, waited=waited, began=self._clock())

    def heartbeat(self, held: JobClaim) -> Pulse:
        """Renew the lease, and learn whether to go on."""
        with self.database.write() as connection:
            cancel = connection.execute(
                sa.update(jobs).where(*_holding(held)).values(beats=jobs.c.beats + 1).returning(jobs.c.cancel)
            ).scalar_one_or_none()
        return "lost" if cancel is None else "cancel" if cancel else "go on"

    def progress(self, held: JobClaim, data: Mapping[str, Any]) -> None:
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

    def succeed(self, held: JobClaim, outputs: Mapping[str, Any], *, cache: bool = True, cached: bool = False) -> bool:
        """End a held job with its outputs; false if it is held no more. A cancellation that came before wins."""
        with self.database.write() as connection:
            state = self._end(connection, held, "succeeded", {"outputs": dict(outputs), "cached": cached})
            if state == "succeeded" and cache:
                connection.execute(sa.delete(results).where(results.c.cache_key == held.cache_key))
                connection.execute(
                    sa.insert(results).values(cache_key=held.cache_key, created=now(), outputs=dict(outputs))
                )
            return state is not None

    def fail(self, held: JobClaim, error: Mapping[str, Any]) -> bool:
        """End a held job with a problem, and let go of its input; false if it is held no more."""
        with self.database.write() as connection:
            values = {"error": dict(error), "model": None, "weights": None}
            return self._end(connection, held, "failed", values) is not None

    def stop(self, held: JobClaim) -> bool:
        """End a held job as cancelled; false if it is held no more."""
        with self.database.write() as connection:
            return self._end(connection, held, "cancelled", {"model": None, "weights": None}) is not None

    def release(self, held: JobClaim) -> None:
        """Put a held job back into the queue: this worker is shutting down."""
        self._back(held, "the worker is shutting down", {})

    def defer(self, held: JobClaim, error: Mapping[str, Any]) -> bool:
        """Put a held job back for a while, longer each time, with the problem that it met; after many times it fails.

        Returns:
            Whether it is tried again.
        """
        if held.deferrals >= self.limits.retries:
            self.fail(held, error)
            return False
        pause = min(self.limits.retry_first * 2.0 ** min(held.deferrals, 30), self.limits.retry_most)
        because = f"{error['detail']}; tried again in {pause:g} s"
        values = {"error": {**error, "detail": because}, "due": now() + pause, "deferrals": jobs.c.deferrals + 1}
        self._back(held, because, values)
        return True

    def _back(self, held: JobClaim, because: str, values: Mapping[str, Any]) -> None:
        with self.database.write() as connection:
            seq = connection.execute(
                sa.update(jobs).where(*_holding(held))
                .values(state="queued", lease_seconds=None, worker=None, events=jobs.c.events + 1, **values)
                .returning(jobs.c.events)
            ).scalar_one_or_none()  # fmt: skip
            if seq is not None:
                _note(connection, held.id, seq, "queued", {"because": because})

    def _end(self, connection: Connection, held: JobClaim, state: str, values: Mapping[str, Any]) -> str | None:
        final = sa.case((jobs.c.cancel, "cancelled"), else_=state)
        row = connection.execute(
            sa.update(jobs).where(*_holding(held))
            .values(**values, state=final, finished=now(), lease_seconds=None, events=jobs.c.events + 1)
            .returning(jobs.c.state, jobs.c.events)
        ).one_or_none()  # fmt: skip
        if row is None:
            return None
        seconds = self._clock() - held.began
        received = (values.get("outputs") or {}).get("input", 0)
        _note(connection, held.id, row.events, "finished", {"state": row.state})
        add_usage(connection, held.owner, **{row.state: 1}, seconds=seconds, input_bytes=received)
        observe_seconds(connection, RUN_TIME, row.state, seconds)
        return str(row.state)

    def reap(self) -> int:
        """End jobs that no worker can finish: lost too often, or cancelled while their worker died."""
        silent = self.watch()
        if not silent:
            return 0
        lost = sa.or_(jobs.c.cancel, jobs.c.losses + 1 >= self.limits.attempts)
        with self.database.write() as connection:
            rows = connection.execute(
                sa.update(jobs).where(sa.or_(*silent), lost)
                .values(state=sa.case((jobs.c.cancel, "cancelled"), else_="failed"), finished=now(), lease_seconds=None,
                        error=sa.case((jobs.c.cancel, sa.null()), else_=sa.literal(_LOST, sa.JSON)),
                        model=None, weights=None, events=jobs.c.events + 1)
                .returning(jobs.c.id, jobs.c.owner, jobs.c.state, jobs.c.events)
            ).all()  # fmt: skip
            for row in rows:
                _note(connection, row.id, row.events, "finished", {"state": row.state})
                add_usage(connection, row.owner, **{row.state: 1})
            return len(rows)


def _holding(held: JobClaim) -> tuple[sa.ColumnElement[bool], ...]:
    return jobs.c.id == held.id, jobs.c.attempt == held.attempt, jobs.c.state == "running"


def _note(connection: Connection, job_id: str, seq: int, kind: str, data: Mapping[str, Any]) -> None:
    connection.execute(_NOTE, {"job": job_id, "seq": seq, "kind": kind, "data": dict(data)})


def _one(found: Result[Any]) -> Row | None:
    row = found.mappings().one_or_none()
    return None if row is None else dict(row)

"""What is kept, and for how long: finished jobs, results of equal jobs, and the blobs that they refer to.

A job that is pinned has a short link, and is kept until it is let go.
"""

from __future__ import annotations

import secrets

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from superopt.server.http.body import sidecars
from superopt.server.http.problems import HttpProblem
from superopt.server.jobs.database import JobDatabase, jobs, now, pins, results
from superopt.server.settings import ServiceLimits

__all__ = ["JobRetention", "PinnedJobs"]

_PINNED = sa.select(pins.c.job)

_LETTERS = "23456789abcdefghijkmnpqrstuvwxyz"  # none that look alike; 12 of them are 60 bits
_LENGTH = 12


class JobRetention:
    """The retention of one database."""

    def __init__(self, database: JobDatabase, limits: ServiceLimits) -> None:
        self._database = database
        self._limits = limits

    def expire(self) -> None:
        """Forget what is older than the retention, and the oldest of what is over the disk limit."""
        limit = now() - self._limits.retention
        with self._database.write() as connection:
            connection.execute(sa.delete(jobs).where(jobs.c.finished < limit, jobs.c.id.not_in(_PINNED)))
            connection.execute(sa.delete(results).where(results.c.created < limit))
            self._fit(connection)

    def _fit(self, connection: Connection) -> None:
        left = self._limits.disk
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
        with self._database.read() as connection:
            for row in connection.execute(sa.select(jobs.c.model, jobs.c.weights, jobs.c.outputs)):
                wanted |= {digest for digest in (row.model, *sidecars(row.weights).values()) if digest}
                wanted |= {f["sha256"] for f in (row.outputs or {"files": {}})["files"].values()}
            for outputs in connection.execute(sa.select(results.c.outputs)).scalars():
                wanted |= {f["sha256"] for f in outputs["files"].values()}
            running = connection.execute(sa.select(jobs.c.id, jobs.c.attempt).where(jobs.c.state == "running"))
            return frozenset(wanted), frozenset(f"{row.id}-{row.attempt}" for row in running)


class PinnedJobs:
    """The pinned jobs of one database."""

    def __init__(self, database: JobDatabase, limits: ServiceLimits) -> None:
        self._database = database
        self._limits = limits

    def pin(self, job_id: str, owner: str) -> str:
        """Keep a job that succeeded; its link's last part, the same when asked again.

        Raises:
            HttpProblem: 404 where it is gone, 409 where it has no result, 429 where the owner has pinned too much.
        """
        with self._database.write() as connection:
            known = connection.execute(sa.select(pins.c.id).where(pins.c.job == job_id)).scalar_one_or_none()
            if known is not None:
                return str(known)
            job = connection.execute(sa.select(jobs.c.state).where(jobs.c.id == job_id)).one_or_none()
            if job is None:
                raise HttpProblem(404, "not-found", "there is no such job, or it is not kept any more")
            if job.state != "succeeded":
                raise HttpProblem(409, "conflict", f"the job is {job.state}; what is pinned is a result")
            mine = connection.execute(
                sa.select(sa.func.count()).select_from(pins).where(pins.c.owner == owner)
            ).scalar_one()  # fmt: skip
            if mine >= self._limits.pins:
                raise HttpProblem(429, "quota", f"you have pinned {mine} jobs; DELETE the pin of one", retry_after=60)
            made = "".join(secrets.choice(_LETTERS) for _ in range(_LENGTH))
            connection.execute(sa.insert(pins).values(id=made, job=job_id, owner=owner, created=now()))
            return made

    def unpin(self, job_id: str) -> None:
        """Let a job go when it is old; again does nothing."""
        with self._database.write() as connection:
            connection.execute(sa.delete(pins).where(pins.c.job == job_id))

    def of(self, job_id: str) -> str | None:
        """The link of a job, where it is pinned."""
        with self._database.read() as connection:
            return connection.execute(sa.select(pins.c.id).where(pins.c.job == job_id)).scalar_one_or_none()

    def job(self, pin: str) -> str | None:
        """The job of a link."""
        with self._database.read() as connection:
            return connection.execute(sa.select(pins.c.job).where(pins.c.id == pin)).scalar_one_or_none()

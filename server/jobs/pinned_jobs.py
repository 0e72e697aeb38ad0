"""Short links that stay: a job that is pinned is kept until it is let go."""

from __future__ import annotations

import secrets

import sqlalchemy as sa

from superopt.server.http.problems import HttpProblem
from superopt.server.jobs.database import JobDatabase, jobs, now, pins
from superopt.server.settings import ServiceLimits

__all__ = ["PinnedJobs"]

_LETTERS = "23456789abcdefghijkmnpqrstuvwxyz"  # none that look alike; 12 of them are 60 bits
_LENGTH = 12


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

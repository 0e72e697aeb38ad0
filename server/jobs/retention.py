"""What is kept, and for how long: finished jobs, results of equal jobs, and the blobs that they refer to."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from superopt.server.http.body import sidecars
from superopt.server.jobs.database import JobDatabase, jobs, now, pins, results
from superopt.server.settings import ServiceLimits

__all__ = ["JobRetention"]

_PINNED = sa.select(pins.c.job)


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

"""How long a job has run and what its reader may expect, from the jobs that ended before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import sqlalchemy as sa

from superopt.server.jobs.database import Database, jobs, now
from superopt.server.settings import Limits

__all__ = ["Wait", "expected_wait"]

_RECENT = 20  # jobs whose durations are looked at: enough for a median, and of today


@dataclass(frozen=True)
class Wait:
    """What a page says of a job that has not ended.

    Attributes:
        elapsed: seconds since it was sent, or since its work began.
        expects: what comes, in words.
    """

    elapsed: float
    expects: str


def expected_wait(database: Database, limits: Limits, job: Mapping[str, Any], ahead: int) -> Wait:
    """What to expect of a job.

    Args:
        database: of the jobs.
        limits: of the service.
        job: its row.
        ahead: queued jobs that come first.
    """
    with database.read() as connection:
        clock = connection.execute(sa.select(now())).scalar_one()
        if job["state"] != "running" or job["started"] is None:
            return Wait(max(0.0, clock - job["created"]), _queue(connection, ahead))
    seconds = float(job["options"].get("time_limit", limits.search_seconds))
    expects = f"The search takes at most {seconds:g} s; checking and drawing the result come after it."
    return Wait(max(0.0, clock - job["started"]), expects)


def _queue(connection: sa.Connection, ahead: int) -> str:
    """When the work on a queued job begins."""
    count = sa.select(sa.func.count()).select_from(jobs).where(jobs.c.state == "running")
    running = connection.execute(count).scalar_one()
    before = ahead + running
    if not before:
        return "It begins as soon as a worker is free."
    words = f"{before} {'job is' if before == 1 else 'jobs are'} before it"
    rows = connection.execute(
        sa.select(jobs.c.started, jobs.c.finished)
        .where(jobs.c.state == "succeeded", jobs.c.cached.is_(False), jobs.c.started.is_not(None))
        .order_by(jobs.c.finished.desc()).limit(_RECENT)
    ).all()  # fmt: skip
    took = [finished - started for started, finished in rows if finished >= started]
    if not took:
        return f"{words}."
    return f"{words}; recent jobs took about {_duration(median(took))} each."


def _duration(seconds: float) -> str:
    """A rough time: seconds below two minutes, minutes above."""
    return f"{max(1, round(seconds))} s" if seconds < 120 else f"{round(seconds / 60)} min"

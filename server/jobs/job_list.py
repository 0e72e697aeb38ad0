"""The jobs of one owner: a page of them, by what is asked; and their cancellation, many at once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from superopt.server.http.parameters import wrong
from superopt.server.jobs.database import JobDatabase, jobs
from superopt.server.jobs.store import FINAL, WAITING

__all__ = ["MOST", "STATES", "JobFilter", "list_jobs", "read_wanted"]

STATES = (*WAITING, *sorted(FINAL))
MOST = 200  # jobs of a page, and of one request that cancels
_CURSOR = re.compile(r"([0-9]{1,12}\.[0-9]{1,9})_([0-9a-f-]{36})")
_HEX = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


@dataclass(frozen=True)
class JobFilter:
    """Which jobs: all filters must fit, and those that are empty do.

    Attributes:
        states: one of them.
        ids: one of them.
        name: is in the job's name.
        before: created and id of the job after which the page begins, the newest first.
        limit: of the page.
    """

    states: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    name: str = ""
    before: tuple[float, str] | None = None
    limit: int = 50

    @property
    def narrow(self) -> bool:
        """Whether there is any filter."""
        return bool(self.states or self.ids or self.name)


def read_wanted(states: Sequence[str], ids: Sequence[str], name: str, after: str, limit: int) -> JobFilter:
    """Filters as they came.

    Raises:
        HttpProblem: 400, naming the parameter.
    """
    if "\0" in name:
        raise wrong("name", "holds a NUL, which no name does")
    unknown = [s for s in states if s not in STATES]
    if unknown:
        raise wrong("state", f"{unknown[0][:40]!r} is none of {', '.join(STATES)}")
    if len(ids) > MOST or not all(_HEX.fullmatch(i) for i in ids):
        raise wrong("id", f"holds what is no job's id, or more than {MOST}")
    if not 1 <= limit <= MOST:
        raise wrong("limit", f"is not a number from 1 to {MOST}")
    cursor = _CURSOR.fullmatch(after)
    if after and cursor is None:
        raise wrong("after", "is no cursor; follow the address that an answer has under next")
    before = (float(cursor[1]), cursor[2]) if cursor else None
    return JobFilter(tuple(dict.fromkeys(states)), tuple(dict.fromkeys(ids)), name[:200], before, limit)


def list_jobs(database: JobDatabase, owner: str, wanted: JobFilter) -> tuple[list[Mapping[str, Any]], str | None]:
    """A page of an owner's jobs, the newest first.

    Returns:
        The jobs, and what to ask for after them; ``None`` where there are no more.
    """
    fits = [jobs.c.owner == owner]
    if wanted.states:
        fits.append(jobs.c.state.in_(wanted.states))
    if wanted.ids:
        fits.append(jobs.c.id.in_(wanted.ids))
    if wanted.name:
        fits.append(sa.func.lower(jobs.c.name).contains(wanted.name.lower(), autoescape=True))
    if wanted.before is not None:
        created, job = wanted.before
        fits.append(sa.or_(jobs.c.created < created, sa.and_(jobs.c.created == created, jobs.c.id < job)))
    statement = sa.select(jobs).where(*fits).order_by(jobs.c.created.desc(), jobs.c.id.desc()).limit(wanted.limit + 1)
    with database.read() as connection:
        rows: list[Mapping[str, Any]] = [dict(row) for row in connection.execute(statement).mappings()]
    more = len(rows) > wanted.limit
    rows = rows[: wanted.limit]
    return rows, f"{rows[-1]['created']!r}_{rows[-1]['id']}" if more else None

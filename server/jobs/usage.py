"""What owners used, and how long jobs waited and ran: counted in the database, to which every worker adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from superopt.server.http.histogram import JOB_SECONDS, bucket_of
from superopt.server.jobs.database import JobDatabase, histograms, keys, owners

__all__ = ["QUEUE_WAIT", "RUN_TIME", "add_usage", "histogram_rows", "observe_seconds", "take_turn", "usage_of"]

QUEUE_WAIT = "queue_wait"
RUN_TIME = "run"
_COLUMNS = ("submitted", "succeeded", "failed", "cancelled", "seconds", "input_bytes")
_ADD = sa.text(
    f"INSERT INTO owners (owner, {', '.join(_COLUMNS)}) VALUES (:owner, {', '.join(f':{c}' for c in _COLUMNS)}) "
    f"ON CONFLICT (owner) DO UPDATE SET {', '.join(f'{c} = owners.{c} + excluded.{c}' for c in _COLUMNS)}"
)
_TURN = sa.text(
    "INSERT INTO owners (owner, turn) VALUES (:owner, (SELECT coalesce(max(turn), 0) + 1 FROM owners)) "
    "ON CONFLICT (owner) DO UPDATE SET turn = excluded.turn"
)
_OBSERVE = sa.text(
    "INSERT INTO histograms (metric, outcome, le, count, sum) VALUES (:metric, :outcome, :le, 1, :seconds) "
    "ON CONFLICT (metric, outcome, le) DO UPDATE SET count = histograms.count + 1, sum = histograms.sum + excluded.sum"
)


def take_turn(connection: Connection, owner: str) -> None:
    """A job of this owner is begun: all others who wait come first now."""
    connection.execute(_TURN, {"owner": owner})


def add_usage(connection: Connection, owner: str, **more: float) -> None:
    """Add to what an owner used; the columns of the table are the names."""
    connection.execute(_ADD, dict.fromkeys(_COLUMNS, 0) | {"owner": owner} | more)


def observe_seconds(connection: Connection, metric: str, outcome: str, seconds: float) -> None:
    """Add an observation to a histogram; a clock that was set back meanwhile makes it 0, not less."""
    seconds = max(0.0, seconds)
    where = {"metric": metric, "outcome": outcome, "le": bucket_of(seconds, JOB_SECONDS), "seconds": seconds}
    connection.execute(_OBSERVE, where)


def histogram_rows(database: JobDatabase) -> Sequence[tuple[str, str, str, int, float]]:
    """Every bucket that holds something: metric, outcome, upper bound, observations, sum of seconds."""
    with database.read() as connection:
        return [tuple(row) for row in connection.execute(sa.select(histograms))]


def usage_of(database: JobDatabase, owner: str | None = None) -> list[Mapping[str, Any]]:
    """What owners used.

    Args:
        database: of the service.
        owner: only this one; all where there is none.
    """
    wanted = sa.select(owners, keys.c.name).select_from(owners.outerjoin(keys, owners.c.owner == keys.c.id))
    if owner is not None:
        wanted = wanted.where(owners.c.owner == owner)
    with database.read() as connection:
        rows = connection.execute(wanted.order_by(owners.c.owner)).mappings()
        return [{"key": row["owner"], "name": row["name"] or "", **{c: row[c] for c in _COLUMNS}} for row in rows]

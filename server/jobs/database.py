"""The tables, their migrations, and one way in: SQLite in WAL mode, or PostgreSQL, with the database's own clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateColumn
from sqlalchemy.sql.functions import FunctionElement

__all__ = [
    "JobDatabase", "events", "histograms", "jobs", "keys", "now", "owners", "pins", "results", "webhooks",
]  # fmt: skip

T = TypeVar("T")
metadata = sa.MetaData()


class now(FunctionElement[float]):  # noqa: N801  (reads as a function in statements)
    """Seconds since 1970 by the database's clock, so that processes need not agree on the time."""

    type = sa.Double()
    inherit_cache = True
    name = "now_seconds"


@compiles(now, "sqlite")
def _now_sqlite(element: now, compiler: Any, **options: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(now, "postgresql")
def _now_postgresql(element: now, compiler: Any, **options: Any) -> str:
    return "(extract(epoch from clock_timestamp())::double precision)"


keys = sa.Table(
    "api_keys", metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("hash", sa.Text, nullable=False),  # SHA-256 of the secret, which has 256 random bits
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("disabled", sa.Boolean, nullable=False, default=False),
    sa.Column("per_minute", sa.Integer),
    sa.Column("active", sa.Integer),
    sa.Column("operator", sa.Boolean, nullable=False, server_default=sa.false()),  # may see the usage of every key
)  # fmt: skip

jobs = sa.Table(
    "jobs", metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("idempotency_key", sa.Text),
    sa.Column("request", sa.Text, nullable=False),  # digest of what was asked
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),  # queued, running, succeeded, failed, cancelled
    sa.Column("options", sa.JSON, nullable=False),
    sa.Column("media", sa.Text, nullable=False),  # of the input graph
    sa.Column("model", sa.Text),  # blobs
    sa.Column("weights", sa.Text),
    sa.Column("cache_key", sa.Text, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False, default=0),  # the fencing token
    sa.Column("losses", sa.Integer, nullable=False, default=0),  # attempts that ended with the death of a worker
    sa.Column("worker", sa.Text),
    sa.Column("lease_seconds", sa.Double),  # of silence after which its worker is taken for dead
    sa.Column("beats", sa.Integer, nullable=False, server_default="0"),  # heartbeats: a counter, not a time
    sa.Column("deferrals", sa.Integer, nullable=False, server_default="0"),  # attempts that met a full disk
    sa.Column("due", sa.Double),  # when a deferred job may be tried again
    sa.Column("cancel", sa.Boolean, nullable=False, default=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("started", sa.Double),
    sa.Column("finished", sa.Double),
    sa.Column("cached", sa.Boolean, nullable=False, default=False),
    sa.Column("outputs", sa.JSON),  # what a successful attempt left: blob digests, sizes, status
    sa.Column("error", sa.JSON),  # the problem a failed one ended with
    sa.Column("events", sa.Integer, nullable=False, default=0),
    sa.UniqueConstraint("owner", "idempotency_key"),
    sa.Index("jobs_by_state", "state", "created"),
    sa.Index("jobs_by_owner", "owner", "created"),
)  # fmt: skip

events = sa.Table(
    "events", metadata,
    sa.Column("job", sa.Text, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("data", sa.JSON, nullable=False),
)  # fmt: skip

results = sa.Table(
    "results", metadata,
    sa.Column("cache_key", sa.Text, primary_key=True),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("outputs", sa.JSON, nullable=False),
)  # fmt: skip

pins = sa.Table(
    "pins", metadata,
    sa.Column("id", sa.Text, primary_key=True),  # the last part of the link
    sa.Column("job", sa.Text, sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False, unique=True),
    sa.Column("owner", sa.Text, nullable=False, index=True),
    sa.Column("created", sa.Double, nullable=False),
)  # fmt: skip

owners = sa.Table(
    "owners", metadata,
    sa.Column("owner", sa.Text, primary_key=True),  # as in jobs: a key's id, or empty
    sa.Column("turn", sa.BigInteger, nullable=False, server_default="0"),  # grows with every job of any owner
    sa.Column("submitted", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("succeeded", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("failed", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("cancelled", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("seconds", sa.Double, nullable=False, server_default="0"),  # of workers
    sa.Column("input_bytes", sa.BigInteger, nullable=False, server_default="0"),
)  # fmt: skip

histograms = sa.Table(
    "histograms", metadata,
    sa.Column("metric", sa.Text, primary_key=True),
    sa.Column("outcome", sa.Text, primary_key=True),
    sa.Column("le", sa.Text, primary_key=True),  # upper bound of a bucket, as Prometheus writes it
    sa.Column("count", sa.BigInteger, nullable=False),
    sa.Column("sum", sa.Double, nullable=False),
)  # fmt: skip

webhooks = sa.Table(
    "webhooks", metadata,
    sa.Column("job", sa.Text, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("url", sa.Text, nullable=False),
    sa.Column("secret", sa.Text),  # of the client's choice; forgotten when nothing more is sent
    sa.Column("state", sa.Text, nullable=False),  # waiting, delivered, given-up
    sa.Column("tries", sa.Integer, nullable=False, server_default="0"),
    sa.Column("due", sa.Double),
    sa.Column("answer", sa.Text),  # what the last try met
    sa.Index("webhooks_by_state", "state"),
)  # fmt: skip

parts = sa.Table(
    "blob_parts", metadata,
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("part", sa.Integer, primary_key=True),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
)  # fmt: skip

versions = sa.Table(
    "schema_version", metadata,
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("applied", sa.Double, nullable=False),
)  # fmt: skip


def _add_columns(connection: Connection, table: sa.Table, *names: str) -> None:
    """Give an older table columns; the first step of a new database has made them already."""
    there = {column["name"] for column in sa.inspect(connection).get_columns(table.name)}
    for name in names:
        if name not in there:
            column = CreateColumn(table.c[name]).compile(dialect=connection.dialect)
            connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {column}")


def _count_heartbeats(connection: Connection) -> None:
    """Leases are observed, not dated: a job that runs begins its silence anew, with the lease that was the default."""
    _add_columns(connection, keys, "operator")
    _add_columns(connection, jobs, "lease_seconds", "beats", "deferrals", "due")
    if "lease" in {column["name"] for column in sa.inspect(connection).get_columns("jobs")}:
        connection.execute(sa.update(jobs).where(jobs.c.state == "running").values(lease_seconds=15.0))
        connection.exec_driver_sql("ALTER TABLE jobs DROP COLUMN lease")
    metadata.create_all(connection, [owners, histograms, webhooks])


# Each step takes the schema from its position to the next. Released steps are never edited, only followed.
MIGRATIONS: tuple[Callable[[Connection], None], ...] = (
    lambda connection: metadata.create_all(connection, [keys, jobs, events, results]),
    lambda connection: metadata.create_all(connection, [pins]),
    lambda connection: metadata.create_all(connection, [parts]),
    _count_heartbeats,
)
_LOCK = 0x5EED0709  # PostgreSQL advisory lock under which one process migrates
_TURNS = 0x5EED070A  # and that under which one worker claims, so that the next sees whose turn it was


class JobDatabase:
    """An engine with two ways to use it: ``read`` and ``write``, each one transaction."""

    def __init__(self, url: str) -> None:
        self.sqlite = url.startswith("sqlite")
        self._turn: AbstractContextManager[object] = threading.Lock() if self.sqlite else nullcontext()
        options: dict[str, Any] = {"connect_args": {"timeout": 30}} if self.sqlite else {
            "pool_pre_ping": True, "connect_args": {"connect_timeout": 10},
        }  # fmt: skip
        self.engine: Engine = sa.create_engine(url, pool_size=8, max_overflow=8, pool_timeout=30, **options)
        self._reading = self.engine.execution_options(reading=True)
        if self.sqlite:
            event.listen(self.engine, "connect", _tune)
            event.listen(self.engine, "begin", _begin)

    def migrate(self) -> None:
        """Bring the schema up to date; safe from several processes at once, and again."""
        with self.write() as connection:
            if not self.sqlite:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
            metadata.create_all(connection, [versions])
            done = connection.execute(sa.select(sa.func.coalesce(sa.func.max(versions.c.version), 0))).scalar_one()
            for number, step in enumerate(MIGRATIONS[done:], done + 1):
                step(connection)
                connection.execute(sa.insert(versions).values(version=number, applied=now()))

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that only reads."""
        with self._reading.begin() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that writes; on SQLite it takes the write lock at once, so it cannot deadlock later.

        SQLite lets one write at a time, and those who wait look again at growing intervals; the threads of one process
        do better to queue.
        """
        with self._turn, self.engine.begin() as connection:
            yield connection

    @contextmanager
    def claim(self) -> Iterator[Connection]:
        """:meth:`write` for one worker at a time: on SQLite every write is."""
        with self.write() as connection:
            if not self.sqlite:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_TURNS)))
            yield connection

    def persist(self, action: Callable[[], T], seconds: float) -> T:
        """Do something that must survive a lost connection: again, for up to ``seconds``, while connecting fails.

        Raises:
            DBAPIError: the database did not come back in time, or the statement itself is at fault.
        """
        deadline = time.monotonic() + seconds
        pause = 0.05
        while True:
            try:
                return action()
            except DBAPIError as error:
                passing = isinstance(error, OperationalError) or error.connection_invalidated
                if not passing or time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 1.0)

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()


def _tune(connection: Any, record: Any) -> None:
    connection.isolation_level = None  # transactions are begun below, not by the driver's guesses
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "busy_timeout=30000"):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Connection) -> None:
    reading = connection.get_execution_options().get("reading", False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")

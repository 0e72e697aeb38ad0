"""Everything the service can be told, as one value."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from superopt.ir.errors import UsageError

__all__ = ["LOOPBACK", "Limits", "Settings", "default_data"]

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
MIB, GIB = 1 << 20, 1 << 30


def default_data() -> Path:
    """Where jobs are kept when nobody says otherwise: ``~/.local/share/superopt``."""
    return Path.home() / ".local" / "share" / "superopt"


@dataclass(frozen=True)
class Limits:
    """What a request, a job and the store may take; ``GET /v1/limits`` shows them. Bytes and seconds.

    Attributes:
        sync_body: body of ``POST /v1/optimize``.
        body: body of a job (graph and weights together).
        body_idle: longest pause between two pieces of a body.
        body_seconds: longest time for a whole body.
        sync_seconds: how long ``POST /v1/optimize`` waits before it answers 202 and leaves the job running.
        wait: most that ``Prefer: wait`` is honoured.
        search_seconds: time limit of the search where the request names none.
        most_search_seconds: largest time limit that a request may name.
        job_seconds: wall time of one attempt, all included; then the best so far is asked for.
        last_words: how long it may take to hand that over before it is killed.
        job_memory: address space of the child that does the work.
        result: largest file that the child may write; a larger result has no ONNX representation.
        attempts: how often a job is tried when its worker dies.
        per_minute: jobs an API key may submit in a minute.
        active: unfinished jobs an API key may have.
        queued: unfinished jobs in all.
        retention: how long a finished job and its files are kept.
        grace: age at which a file that nothing refers to is removed.
        disk: bytes that finished jobs may keep; the oldest go first.
        streams: progress streams open at once.
    """

    sync_body: int = MIB
    body: int = 512 * MIB
    body_idle: float = 10.0
    body_seconds: float = 600.0
    sync_seconds: float = 180.0
    wait: float = 60.0
    search_seconds: float = 60.0
    most_search_seconds: float = 300.0
    job_seconds: float = 600.0
    last_words: float = 20.0
    job_memory: int = 8 * GIB
    result: int = 2 * GIB
    attempts: int = 3
    per_minute: int = 600
    active: int = 200
    queued: int = 2000
    retention: float = 86_400.0
    grace: float = 60.0
    disk: int = 20 * GIB
    streams: int = 200


@dataclass(frozen=True)
class Settings:
    """Where the service listens, where it keeps things, and its limits.

    Attributes:
        host, port: where it listens. Anything but loopback needs an API key.
        workers: worker processes that ``serve`` starts.
        data: folder of blobs, private job folders and the embedded database; shared by all processes.
        database: an SQLAlchemy URL; ``None`` is SQLite in ``data``.
        corpus: folder of example models for the pages, if it is there.
        lease: seconds after which a silent worker is taken for dead.
        poll: seconds between two looks at the job table.
    """

    data: Path
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    database: str | None = None
    corpus: Path | None = None
    lease: float = 15.0
    poll: float = 0.25
    limits: Limits = field(default_factory=Limits)

    @property
    def url(self) -> str:
        """The database's URL.

        Raises:
            UsageError: it is neither SQLite nor PostgreSQL.
        """
        if self.database is None:
            return f"sqlite:///{self.data.absolute() / 'jobs.sqlite'}"
        if self.database.startswith(("postgresql://", "postgres://")):
            return "postgresql+psycopg://" + self.database.split("://", 1)[1]
        if self.database.startswith(("postgresql+psycopg://", "sqlite:///")):
            return self.database
        raise UsageError("the database URL is not understood", hint="write postgresql://user@host/name or leave it out")

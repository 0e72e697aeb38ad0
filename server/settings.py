"""Everything the service can be told, as one value."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from superopt import TIME_LIMIT
from superopt.ir.errors import UsageError

__all__ = [
    "LOG_FORMATS",
    "LOG_LEVELS",
    "LOOPBACK",
    "WEBHOOKS",
    "ConnectionLimits",
    "ServiceLimits",
    "ServiceSettings",
    "default_data",
]

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
MIB, GIB = 1 << 20, 1 << 30
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("auto", "json", "text")
WEBHOOKS = ("off", "public", "any")


def default_data() -> Path:
    """Where jobs are kept when nobody says otherwise: ``superopt`` below ``$XDG_DATA_HOME``, or ``~/.local/share``.

    Raises:
        UsageError: there is neither that nor a home directory.
    """
    named = Path(os.environ.get("XDG_DATA_HOME", ""))
    if named.is_absolute():  # the specification has relative ones ignored
        return named / "superopt"
    try:
        return Path.home() / ".local" / "share" / "superopt"
    except RuntimeError:
        raise UsageError(
            "there is no home directory in which jobs could be kept", hint="--data DIR, or SUPEROPT_DATA"
        ) from None


@dataclass(frozen=True)
class ServiceLimits:
    """What a request, a job and the store may take; ``GET /v1/limits`` shows them. Bytes and seconds.

    Attributes:
        sync_body: body of ``POST /v1/optimize``.
        body: body of a job (graph and weights together).
        upload: of one resumable upload, which comes in pieces of ``body`` at most.
        uploads: resumable uploads that one owner may have.
        upload_share: part of the disk, without what is kept on it otherwise, that the uploads of one API key may take,
            what has arrived and what is announced together. With a half there is as much room for all others.
        upload_idle: seconds without a byte after which an unfinished upload holds no room on the disk any more; one of
            which nothing has arrived then makes way for another one of its owner. Clients go on within seconds; a
            router takes minutes to restart.
        body_idle: longest pause between two pieces of a body.
        body_seconds: longest time for a whole body.
        sync_seconds: how long ``POST /v1/optimize`` waits before it answers 202 and leaves the job running.
        wait: most that ``Prefer: wait`` is honoured.
        search_seconds: time limit of the search where the request names none: that of the other doors.
        most_search_seconds: largest time limit that a request may name.
        job_seconds: wall time of one attempt, all included; then the best so far is asked for.
        last_words: how long it may take to hand that over before it is killed.
        job_memory: address space of the child that does the work.
        result: largest file that the child may write.
        inline: largest result that is one text or protobuf message; the weights of a larger one are in a file.
        attempts: how often a job is tried when its worker dies.
        retries: how often a job that met a full disk is tried again; with the pauses, for about four hours.
        retry_first: seconds before the first of these, doubled each time.
        retry_most: the longest of these pauses.
        per_minute: jobs an API key may submit in a minute.
        active: unfinished jobs an API key may have.
        queued: unfinished jobs in all.
        retention: how long a finished job and its files are kept.
        grace: age at which a file that nothing refers to is removed.
        disk: bytes that finished jobs may keep; the oldest go first.
        pins: finished jobs that one owner may keep beyond the retention.
        webhook_seconds: for one delivery of a web-hook.
        webhook_tries: deliveries that are tried; with the pauses, for about two and a half hours.
        webhook_first: seconds before the second of these, four times as many before each later one.
        webhook_most: the longest of these pauses.
        streams: progress streams open at once.
        streams_per_address: of them, those of one client address.
    """

    sync_body: int = MIB
    body: int = 512 * MIB
    upload: int = 8 * GIB
    uploads: int = 20
    upload_share: float = 0.5
    upload_idle: float = 300.0
    body_idle: float = 10.0
    body_seconds: float = 600.0
    sync_seconds: float = 180.0
    wait: float = 60.0
    search_seconds: float = TIME_LIMIT
    most_search_seconds: float = 2 * TIME_LIMIT
    job_seconds: float = 3 * TIME_LIMIT
    last_words: float = 20.0
    job_memory: int = 8 * GIB
    result: int = 8 * GIB
    inline: int = 2 * GIB
    attempts: int = 3
    retries: int = 50
    retry_first: float = 5.0
    retry_most: float = 300.0
    per_minute: int = 600
    active: int = 200
    queued: int = 2000
    retention: float = 86_400.0
    grace: float = 60.0
    disk: int = 20 * GIB
    pins: int = 100
    webhook_seconds: float = 10.0
    webhook_tries: int = 8
    webhook_first: float = 5.0
    webhook_most: float = 3600.0
    streams: int = 200
    streams_per_address: int = 100


@dataclass(frozen=True)
class ConnectionLimits:
    """What a connection may take before its request is understood, and how slow it may be. Bytes and seconds.

    Each can be set in the environment: ``SUPEROPT_`` and the name in capitals. What is answered: ``docs/service.md``.

    Attributes:
        header_bytes: request line and headers of one request together. 16 KiB is what Node.js and h11 take.
        header_line: one header line. 8 KiB is what nginx and Apache take.
        headers: how many header lines. 100 is what Apache and hyper take.
        url_bytes: the request's target. RFC 9110 asks for 8,000 at least.
        header_seconds: from connecting, or from the first byte of a later request, to the end of its headers.
        idle_seconds: an open connection without a request, after its last answer.
        connections: open at once. Each takes up to 30 KiB while it has said nothing wrong.
        connections_per_address: of them, those of one client address (IPv6: one /64), and its requests in hand.
        pipelined: requests that one connection may send before the first is answered.
        body_rate: bytes a second that a body brings on average, once ``rate_grace`` is over. Kestrel asks for 240.
        response_rate: bytes a second of an answer that its client takes.
        rate_grace: seconds before a rate is judged.
        linger_seconds: how long a refused client may read its answer while it still sends.
        trusted_proxies: addresses or networks whose ``X-Forwarded-For`` is believed.
    """

    header_bytes: int = 16_384
    header_line: int = 8_192
    headers: int = 100
    url_bytes: int = 8_192
    header_seconds: float = 10.0
    idle_seconds: float = 15.0
    connections: int = 1000
    connections_per_address: int = 256
    pipelined: int = 8
    body_rate: int = 240
    response_rate: int = 240
    rate_grace: float = 10.0
    linger_seconds: float = 2.0
    trusted_proxies: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.trusted_proxies:
            try:
                ipaddress.ip_network(name)
            except ValueError:
                raise UsageError(f"{name!r} is neither an address nor a network",
                                 hint="a trusted proxy is written 10.0.0.5 or 10.0.0.0/24") from None  # fmt: skip

    @classmethod
    def variables(cls) -> Mapping[str, str]:
        """Environment variable → name of the limit."""
        return {f"SUPEROPT_{f.name.upper()}": f.name for f in fields(cls)}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], **given: Any) -> ConnectionLimits:
        """The limits as the environment says; what is given otherwise wins.

        Raises:
            UsageError: a variable is not a positive number, or a proxy is no address.
        """
        found: dict[str, Any] = {}
        for variable, name in cls.variables().items():
            text = environment.get(variable, "").strip()
            if not text or name in given:
                continue
            if name == "trusted_proxies":
                found[name] = tuple(part.strip() for part in text.split(",") if part.strip())
            else:
                found[name] = _positive(variable, text, type(getattr(cls, name)))
        return cls(**found, **given)


def _positive(variable: str, text: str, kind: type) -> Any:
    try:
        value = kind(text)
    except ValueError:
        value = 0
    if not 0 < value < 1e12:  # a NaN is refused as well
        whole = "whole " if kind is int else ""
        raise UsageError(
            f"{variable} is {text!r}, which is no positive {whole}number", hint="docs/service.md lists them"
        )
    return value


@dataclass(frozen=True)
class ServiceSettings:
    """Where the service listens, where it keeps things, and its limits.

    Attributes:
        host, port: where it listens. Anything but loopback needs an API key.
        workers: worker processes that ``serve`` starts.
        data: folder of blobs, private job folders and the embedded database; shared by all processes.
        apart: hosts have folders of their own, and files travel through the database.
        database: an SQLAlchemy URL; ``None`` is SQLite in ``data``.
        corpus: folder of example models for the pages, if it is there.
        stores: prefixes in object stores below which models may be named (``s3://bucket/folder/``).
        store_results: prefix below which results are written there.
        lease: seconds after which a silent worker is taken for dead.
        poll: seconds between two looks at the job table.
        log_level: the least of :data:`LOG_LEVELS` that is logged.
        log_format: "json" is an object a line, "text" for people, "auto" text where standard error is a terminal.
        access_log: whether each request is logged.
        webhooks: where the end of a job may be told: nowhere ("off"), at "public" addresses, or at "any", those of
            private networks among them.
        limits, door: what requests and jobs may take, and what connections may.
    """

    data: Path
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    database: str | None = None
    apart: bool = False
    corpus: Path | None = None
    stores: tuple[str, ...] = ()
    store_results: str | None = None
    lease: float = 15.0
    poll: float = 0.25
    log_level: str = "info"
    log_format: str = "auto"
    access_log: bool = True
    webhooks: str = "off"
    limits: ServiceLimits = field(default_factory=ServiceLimits)
    door: ConnectionLimits = field(default_factory=ConnectionLimits)

    def __post_init__(self) -> None:
        for name, given, known in (
            ("log level", self.log_level, LOG_LEVELS), ("log format", self.log_format, LOG_FORMATS),
            ("webhooks", self.webhooks, WEBHOOKS),
        ):  # fmt: skip
            if given not in known:
                raise UsageError(f"{name}: {given!r} is none of {', '.join(known)}")

    @property
    def private(self) -> bool:
        """Whether only this machine is served: no other one can connect, and no proxy speaks for others."""
        return self.host in LOOPBACK and not self.door.trusted_proxies

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

"""Web-hooks: the end of a job is told at an address of the client's, signed, and tried again for hours.

Signed as https://www.standardwebhooks.com has it: HMAC-SHA-256 under a secret that the client sent with the job. The
name in the address is resolved here, all that it resolves to is looked at, and the connection goes to what was looked
at: a name that is resolved once more may lead into the operator's network. No redirect is followed, and nothing of an
answer is used but its status.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import http.client
import ipaddress
import json
import logging
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import SplitResult, urlsplit

import sqlalchemy as sa
from anyio import CapacityLimiter, to_thread
from sqlalchemy.exc import SQLAlchemyError

from superopt.server.http.parameters import wrong
from superopt.server.jobs.database import JobDatabase, jobs, now, webhooks
from superopt.server.jobs.job_watch import ended
from superopt.server.jobs.store import FINAL
from superopt.server.settings import ServiceLimits

__all__ = ["ForbiddenAddress", "WebhookDispatcher", "may_reach", "post", "signature"]


log = logging.getLogger("superopt.webhooks")
_AT_ONCE = 4  # deliveries, so that an address that does not answer delays few others
_EVERY = 1.0  # seconds between two looks
_SECRET = re.compile(r"[\x21-\x7e]{16,200}")
_URL_BYTES = 2000


_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_COMPATIBLE = ipaddress.IPv6Network("::/96")  # an IPv4 address in the last four bytes, too
_LOCAL_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")


class ForbiddenAddress(Exception):
    """The address leads into a private network."""


def is_address(host: str) -> bool:
    """Whether a host is written as an IP address, not as a name."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def may_reach(address: str) -> bool:
    """Whether an IP address is one of the public internet, whatever other address it stands for."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return all(a.is_global and not a.is_multicast for a in _meant(found)) and found not in _LOCAL_NAT64


def _meant(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> Iterator[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """The address, and those that a gateway or this machine would make of it."""
    if not isinstance(address, ipaddress.IPv6Address) or address.ipv4_mapped is None:
        yield address
    if isinstance(address, ipaddress.IPv6Address):
        inner = (address.ipv4_mapped, address.sixtofour, *(address.teredo or ()))
        yield from (a for a in inner if a is not None)
        if address in _NAT64 or address in _COMPATIBLE:
            yield ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)


def post(url: str, headers: Mapping[str, str], body: bytes, *, seconds: float, private: bool) -> int:
    """Send a body.

    Args:
        url: of HTTP or HTTPS.
        headers: besides Host and Content-Length.
        body: is sent as it is.
        seconds: for all of it.
        private: whether it may go to a private network.

    Returns:
        The status of the answer.

    Raises:
        ForbiddenAddress: the name resolves to an address that is not public.
        OSError: nobody answers in time.
    """
    place = urlsplit(url)
    host, secure = place.hostname or "", place.scheme == "https"
    port = place.port or (443 if secure else 80)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(entry[4][0]) for entry in found]
    if not private and not all(map(may_reach, addresses)):
        raise ForbiddenAddress(url)
    connection = _Pinned(host, port, addresses[0], seconds, ssl.create_default_context() if secure else None)
    watchdog = threading.Timer(seconds, connection.abort)
    watchdog.start()
    try:
        target = (place.path or "/") + (f"?{place.query}" if place.query else "")
        connection.request("POST", target, body, dict(headers))
        return connection.getresponse().status
    except http.client.HTTPException as error:
        raise OSError(f"the answer is not understood: {type(error).__name__}") from error
    finally:
        watchdog.cancel()
        connection.close()


class _Pinned(http.client.HTTPConnection):
    """A connection to an address that was looked at, under the name that it was found by."""

    def __init__(self, host: str, port: int, address: str, seconds: float, secure: ssl.SSLContext | None) -> None:
        super().__init__(host, port, timeout=seconds)
        self._address, self._secure = address, secure
        self.default_port = 443 if secure else 80  # what the Host header leaves out

    def connect(self) -> None:
        self.sock = socket.create_connection((self._address, self.port), self.timeout)
        if self._secure is not None:
            self.sock = self._secure.wrap_socket(self.sock, server_hostname=self.host)

    def abort(self) -> None:
        """End it from another thread; whoever waits for it gets an ``OSError``."""
        if self.sock is not None:
            with suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)


class WebhookDispatcher:
    """The web-hooks of one database.

    Args:
        database: it is in.
        mode: one of :data:`superopt.server.settings.WEBHOOKS`.
        limits: for how often and how long an address is tried.
    """

    def __init__(self, database: JobDatabase, mode: str, limits: ServiceLimits) -> None:
        self._database, self._mode, self._limits = database, mode, limits
        self._threads = CapacityLimiter(_AT_ONCE)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Deliver what is due, from now on."""
        if self._mode != "off":
            self._tasks = [asyncio.create_task(self._run()) for _ in range(_AT_ONCE)]

    async def stop(self) -> None:
        """Deliver no more; what was not delivered is after the next start."""
        for task in self._tasks:
            await ended(task)

    def accept(self, url: str, secret: str) -> tuple[str, str] | None:
        """What a client asks for.

        Args:
            url: where the end of its job is to be told; empty where nowhere.
            secret: that signs it.

        Raises:
            HttpProblem: 400 where this service tells nobody, or not there, or the secret is none.
        """
        if not url:
            return None
        if self._mode == "off":
            raise wrong("webhook", "this service sends no web-hooks; have its operator start it with --webhooks public")
        place = _place(url)
        if place is None or len(url) > _URL_BYTES:
            raise wrong("webhook", "is no address; write https://HOST/PATH, without a user")
        if self._mode != "any" and is_address(place.hostname or "") and not may_reach(place.hostname or ""):
            raise wrong("webhook", "addresses of private networks are not told anything here")
        if not _SECRET.fullmatch(secret):
            raise wrong(
                "webhook", "send the secret that is to sign it as Webhook-Secret: 16 to 200 visible ASCII characters"
            )
        return url, secret

    def of(self, job_id: str) -> Mapping[str, Any] | None:
        """How far the web-hook of a job is, where it has one."""
        wanted = sa.select(webhooks.c.state, webhooks.c.tries, webhooks.c.answer).where(webhooks.c.job == job_id)
        with self._database.read() as connection:
            found = connection.execute(wanted).mappings().one_or_none()
        return None if found is None else dict(found)

    async def _run(self) -> None:
        while True:
            try:
                busy = await to_thread.run_sync(self.deliver_next, limiter=self._threads)
            except SQLAlchemyError as error:
                log.warning("the database does not answer: %s", type(error).__name__)
                busy = False
            if not busy:
                await asyncio.sleep(_EVERY)

    def deliver_next(self) -> bool:
        """Try one that is due; false where there is none."""
        row = self._next()
        if row is None:
            return False
        body = _message(row)
        headers = {"Content-Type": "application/json", "User-Agent": "superopt", **_signed(row, body)}
        try:
            status = post(
                row["url"], headers, body, seconds=self._limits.webhook_seconds, private=self._mode == "any"
            )  # fmt: skip
            delivered, answer = 200 <= status < 300, str(status)
        except ForbiddenAddress:
            delivered, answer = False, "the address is not allowed"
        except (OSError, ValueError) as error:
            log.debug("web-hook of job %s: %s", row["job"], error)
            delivered, answer = False, "no answer"
        self._note(row, delivered, answer)
        return True

    def _next(self) -> Mapping[str, Any] | None:
        """Take one that is due; for as long as a try may last nobody else does."""
        most = self._limits.webhook_most  # what is due later than that was written before the clock was set back
        due = sa.or_(webhooks.c.due.is_(None), webhooks.c.due <= now(), webhooks.c.due > now() + most)
        wanted = (
            sa.select(webhooks.c.job).join(jobs, jobs.c.id == webhooks.c.job)
            .where(webhooks.c.state == "waiting", jobs.c.state.in_(FINAL), due)
            .order_by(webhooks.c.tries, jobs.c.finished).limit(1)
        )  # fmt: skip
        with self._database.read() as connection:
            if connection.execute(wanted).first() is None:
                return None
        with self._database.write() as connection:
            chosen = wanted.with_for_update(skip_locked=True, of=webhooks).scalar_subquery()
            pause = min(self._limits.webhook_most, 4.0 * self._limits.webhook_seconds)
            taken = connection.execute(
                sa.update(webhooks).where(webhooks.c.job == chosen, webhooks.c.state == "waiting", due)
                .values(due=now() + pause, tries=webhooks.c.tries + 1).returning(webhooks)
            ).mappings().one_or_none()  # fmt: skip
            if taken is None:
                return None
            job = connection.execute(sa.select(jobs).where(jobs.c.id == taken["job"])).mappings().one()
            return {**taken, "finished": job}

    def _note(self, row: Mapping[str, Any], delivered: bool, answer: str) -> None:
        limits = self._limits
        state = "delivered" if delivered else "given-up" if row["tries"] >= limits.webhook_tries else "waiting"
        pause = min(limits.webhook_first * 4.0 ** (row["tries"] - 1), limits.webhook_most)
        values: dict[str, Any] = {"state": state, "answer": answer, "due": now() + pause}
        if state != "waiting":
            values |= {"secret": None, "due": None}
        with self._database.write() as connection:
            connection.execute(sa.update(webhooks).where(webhooks.c.job == row["job"]).values(**values))
        log.info("web-hook", extra={"job": row["job"], "state": state, "tries": row["tries"], "answer": answer})


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """The value of ``webhook-signature``.

    Args:
        secret: as the client sent it; ``whsec_`` and base64 stands for the bytes.
        message_id: the value of ``webhook-id``.
        timestamp: that of ``webhook-timestamp``.
        body: of the request.
    """
    key = secret.encode()
    if secret.startswith("whsec_"):
        try:
            key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        except binascii.Error:
            key = secret.encode()
    signed = b"%s.%d.%s" % (message_id.encode(), timestamp, body)
    return f"v1,{base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()}"


def _signed(row: Mapping[str, Any], body: bytes) -> dict[str, str]:
    moment, message_id = int(time.time()), f"job.finished.{row['job']}"
    return {
        "webhook-id": message_id, "webhook-timestamp": str(moment),
        "webhook-signature": signature(row["secret"], message_id, moment, body),
    }  # fmt: skip


def _message(row: Mapping[str, Any]) -> bytes:
    job = row["finished"]
    base, outputs = f"/v1/jobs/{job['id']}", job["outputs"] or {}
    links = {"self": base} | ({"result": f"{base}/result", "report": f"{base}/report"} if outputs else {})
    data = {
        "id": job["id"],
        "state": job["state"],
        "name": job["name"],
        "status": outputs.get("status"),
        "links": links,
    }
    moment = datetime.fromtimestamp(job["finished"], UTC).isoformat(timespec="milliseconds")
    return json.dumps({"type": "job.finished", "timestamp": moment, "data": data}).encode()


def _place(url: str) -> SplitResult | None:
    """An address of HTTP; ``None`` where it is none."""
    try:
        found = urlsplit(url)
        good = found.scheme in ("http", "https") and found.hostname and found.port != 0 and "@" not in found.netloc
    except ValueError:
        return None
    return found if good and url.isascii() and url.isprintable() and " " not in url else None

"""API keys. Only the SHA-256 of a key's secret is stored; the secret has 256 random bits, so that is enough.

``python -m superopt.server.http.keys [--data DIR | --database URL] add NAME | list | usage | disable ID``
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import json
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from superopt.server.jobs.database import JobDatabase, keys, now
from superopt.server.jobs.usage import usage_of
from superopt.server.settings import ServiceSettings, default_data

__all__ = ["ANYONE", "ApiCaller", "ApiKeyStore"]

_PREFIX = "so"
_NOBODY = hashlib.sha256(secrets.token_bytes(32)).hexdigest()
_REMEMBER = 5.0  # seconds for which "is there any key" is not asked again


@dataclass(frozen=True)
class ApiCaller:
    """Who asks: the key's id (empty where no key is set), its own quotas, where it has any, and whether it is an
    operator's, who may see what all keys do."""

    owner: str = ""
    per_minute: int | None = None
    active: int | None = None
    operator: bool = False


ANYONE = ApiCaller(operator=True)  # of a service that only this machine can reach


class ApiKeyStore:
    """The keys of one database."""

    def __init__(self, database: JobDatabase) -> None:
        self._database = database
        self._any = (0.0, False)

    def remembered(self) -> bool | None:
        """Whether a key is needed, if that was asked a moment ago; never waits."""
        asked, found = self._any
        return found if asked and time.monotonic() - asked <= _REMEMBER else None

    def any(self) -> bool:
        """Whether a key is needed."""
        if self.remembered() is None:
            with self._database.read() as connection:
                found = connection.execute(sa.select(keys.c.id).where(~keys.c.disabled).limit(1)).first()
            self._any = (time.monotonic(), found is not None)
        return self._any[1]

    def caller(self, text: str) -> ApiCaller | None:
        """Whose key this is; takes the same time whether or not the key exists."""
        prefix, _, rest = text.partition("_")
        identity, _, secret = rest.partition("_")
        with self._database.read() as connection:
            row = connection.execute(sa.select(keys).where(keys.c.id == identity, ~keys.c.disabled)).one_or_none()
        given = hashlib.sha256(secret.encode()).hexdigest()
        right = hmac.compare_digest(given, row.hash if row is not None else _NOBODY)
        if row is None or not right or prefix != _PREFIX:
            return None
        return ApiCaller(row.id, row.per_minute, row.active, row.operator)

    def add(
        self, name: str, *, per_minute: int | None = None, active: int | None = None, operator: bool = False
    ) -> str:  # fmt: skip
        """Make a key; the text that is returned is nowhere else."""
        identity, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        with self._database.write() as connection:
            connection.execute(
                sa.insert(keys).values(
                    id=identity, name=name, hash=hashlib.sha256(secret.encode()).hexdigest(), created=now(),
                    disabled=False, per_minute=per_minute, active=active, operator=operator,
                )
            )  # fmt: skip
        self._any = (0.0, False)
        return f"{_PREFIX}_{identity}_{secret}"

    def disable(self, identity: str) -> bool:
        """Refuse a key from now on; false if there is none."""
        with self._database.write() as connection:
            done = connection.execute(sa.update(keys).where(keys.c.id == identity).values(disabled=True))
        self._any = (0.0, False)
        return bool(done.rowcount)

    def all(self) -> list[tuple[str, str, bool]]:
        """(id, name, disabled) of every key."""
        with self._database.read() as connection:
            statement = sa.select(keys.c.id, keys.c.name, keys.c.disabled).order_by(keys.c.created)
            return [(row.id, row.name, row.disabled) for row in connection.execute(statement)]


def main() -> None:
    """Manage the keys of a service from its own machine."""
    parser = argparse.ArgumentParser(prog="python -m superopt.server.http.keys", description="API keys of the service")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("SUPEROPT_DATA", default_data())))
    parser.add_argument("--database", default=os.environ.get("SUPEROPT_DATABASE"))
    commands = parser.add_subparsers(dest="command", required=True)
    adding = commands.add_parser("add", help="make a key and print it, once")
    adding.add_argument("name")
    adding.add_argument("--per-minute", type=int, help="jobs a minute")
    adding.add_argument("--active", type=int, help="unfinished jobs")
    adding.add_argument("--operator", action="store_true", help="may see in /metrics and /v1/usage what all keys use")
    commands.add_parser("list", help="show the keys")
    commands.add_parser("usage", help="show what each key used, as JSON lines")
    commands.add_parser("disable", help="refuse a key from now on").add_argument("id")
    given = parser.parse_args()
    given.data.mkdir(parents=True, exist_ok=True, mode=0o700)
    database = JobDatabase(ServiceSettings(data=given.data, database=given.database).url)
    database.migrate()
    store = ApiKeyStore(database)
    match given.command:
        case "add":
            limits = {"per_minute": given.per_minute, "active": given.active}
            print(store.add(given.name, **limits, operator=given.operator))
        case "usage":
            for row in usage_of(database):
                print(json.dumps(row))
        case "list":
            for identity, name, disabled in store.all():
                print(identity, name, "disabled" if disabled else "")
        case "disable" if not store.disable(given.id):
            parser.error(f"there is no key {given.id}")
    database.close()


if __name__ == "__main__":
    main()

"""Blobs in the database besides the folder, so that hosts with folders of their own see each other's."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Set
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from superopt.server.jobs.database import JobDatabase, now, parts

__all__ = ["DatabaseBlobs"]

_PART = 1 << 20  # bytes of a row


class DatabaseBlobs:
    """Every blob of every host, in rows of a megabyte."""

    def __init__(self, database: JobDatabase) -> None:
        self.database = database

    def put(self, path: Path, digest: str) -> None:
        """Copy a file in, whole or not at all; one that is there begins its age anew.

        Raises:
            OSError: the file cannot be read.
        """
        with self.database.write() as connection:
            known = sa.update(parts).where(parts.c.digest == digest, parts.c.part == 0).values(created=now())
            if connection.execute(known).rowcount:
                return
        try:
            with self.database.write() as connection, path.open("rb") as file:
                part = 0
                while (chunk := file.read(_PART)) or not part:  # an empty file is one empty part
                    row = {"digest": digest, "part": part, "content": chunk}
                    connection.execute(sa.insert(parts).values(created=now()), row)
                    part += 1
        except IntegrityError:
            return  # another host was first

    def get(self, digest: str, target: Path) -> bool:
        """Write a blob to a file that is there whole or not at all; false if there is none."""
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        found = hashlib.sha256()
        number = 0
        try:
            with partial.open("wb") as file:
                while True:
                    wanted = sa.select(parts.c.content).where(parts.c.digest == digest, parts.c.part == number)
                    with self.database.read() as connection:
                        chunk = connection.execute(wanted).scalar_one_or_none()
                    if chunk is None:
                        break
                    file.write(chunk)
                    found.update(chunk)
                    number += 1
            if not number or found.hexdigest() != digest:
                return False
            partial.replace(target)
            return True
        finally:
            partial.unlink(missing_ok=True)

    def sweep(self, wanted: Set[str], age: float) -> int:
        """Remove blobs not ``wanted``, if older than ``age`` seconds; returns how many."""
        with self.database.read() as connection:
            old = connection.execute(sa.select(parts.c.digest).where(parts.c.part == 0, parts.c.created < now() - age))
            gone = [digest for digest in old.scalars() if digest not in wanted]
        for digest in gone:
            with self.database.write() as connection:
                first = sa.delete(parts).where(
                    parts.c.digest == digest, parts.c.part == 0, parts.c.created < now() - age
                )
                if connection.execute(first).rowcount:  # not put again meanwhile
                    connection.execute(sa.delete(parts).where(parts.c.digest == digest))
        return len(gone)

"""Finished pieces of work on disk, named by the digest of everything that decides them, and when to stop working.

A chunk is written whole or not at all, so a run can be killed at any time and goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path

from superopt.fleet.environment_digest import libraries
from superopt.formats.safe_file_access import replace_file
from superopt.ir import disk_cache

__all__ = ["UNBOUNDED", "ResourceBounds", "DiscoveryResultCache", "ResourceBoundsExceeded", "code_digest", "digest_of"]


class ResourceBoundsExceeded(Exception):
    """The time or memory that was given is used up; what is finished is kept."""


@dataclass(frozen=True)
class ResourceBounds:
    """When to give up: a ``time.time()`` value, and bytes of this process."""

    deadline: float | None = None
    memory: int | None = None

    @property
    def left(self) -> float:
        """Seconds, none of them negative; infinite where no deadline is set."""
        return inf if self.deadline is None else max(0.0, self.deadline - time.time())

    def passed(self) -> bool:
        """Whether there is no time left to begin anything."""
        return self.deadline is not None and time.time() > self.deadline

    def check(self) -> None:
        """Raise :class:`ResourceBoundsExceeded` when a bound is passed."""
        if self.passed():
            raise ResourceBoundsExceeded("time")
        if self.memory is not None and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > self.memory:
            raise ResourceBoundsExceeded("memory")


UNBOUNDED = ResourceBounds()


def digest_of(*parts: object) -> str:
    """SHA-256 of JSON data."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


_LAST = frozenset({"__init__.py", "discover.py", "minimise.py"})  # what happens after themes were explored


@cache
def code_digest(*, whole: bool = False) -> str:
    """SHA-256 of the sources and the libraries that decide what is found and proved: other code, other chunks.

    Args:
        whole: also those that only decide what becomes of explored themes.
    """
    digest = hashlib.sha256(json.dumps(libraries(), sort_keys=True).encode())
    packages = ("ir", "ops", "runtime", "rules", "verifier", *disk_cache.SEARCH_PACKAGES)  # besides this one
    digest.update(disk_cache.code_digest(*packages).encode())
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        if whole or file.name not in _LAST:
            digest.update(f"{file.name}".encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class DiscoveryResultCache:
    """A folder of JSON chunks; ``folder`` may be ``None``, then nothing is kept."""

    folder: Path | None

    def get(self, key: str) -> dict[str, object] | None:
        """The chunk of a digest. A file that cannot be read as one is as good as absent."""
        if self.folder is None:
            return None
        try:
            data = json.loads((self.folder / key[:2] / f"{key}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return data if isinstance(data, dict) else None

    def put(self, key: str, data: Mapping[str, object]) -> None:
        """Keep a chunk."""
        if self.folder is None:
            return
        path = self.folder / key[:2]
        path.mkdir(parents=True, exist_ok=True)
        replace_file(path / f"{key}.json", json.dumps(data).encode(), force=True)

"""Finished pieces of work on disk, named by the digest of everything that decides them.

A chunk is written whole or not at all, so a run can be killed at any time and goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["Chunks", "code_digest", "digest_of"]


def digest_of(*parts: object) -> str:
    """SHA-256 of JSON data."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


_LAST = frozenset({"__init__.py", "discover.py", "minimise.py"})  # what happens after themes were explored


@cache
def code_digest(*, whole: bool = False) -> str:
    """SHA-256 of the sources that decide what is found and proved: other code, other chunks.

    Args:
        whole: also those that only decide what becomes of explored themes.
    """
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for package in ("ir", "ops", "runtime", "rules", "verifier", "search", "discovery"):
        for file in sorted((root / package).glob("*.py")):
            if package == "discovery" and file.name in _LAST and not whole:
                continue
            digest.update(f"{package}/{file.name}".encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class Chunks:
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
        place = self.folder / key[:2]
        place.mkdir(parents=True, exist_ok=True)
        partial = place / f".{key}.{os.getpid()}"
        partial.write_text(json.dumps(data), encoding="utf-8")
        partial.replace(place / f"{key}.json")

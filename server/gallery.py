"""What was recorded of the corpus' models (:mod:`superopt.server.gallery_record`): results that open without a job."""

from __future__ import annotations

import gzip
import json
import logging
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

__all__ = ["ResultGallery"]

log = logging.getLogger("superopt.serve")
_FORMAT = "superopt.gallery"


class ResultGallery:
    """The folder ``results`` of a corpus folder: ``NAME.json.gz`` each. Without it there is nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder / "results" if folder is not None else None

    @cached_property
    def names(self) -> frozenset[str]:
        """The models of which something was recorded."""
        paths = self._folder.glob("*.json.gz") if self._folder is not None and self._folder.is_dir() else ()
        return frozenset(path.name.removesuffix(".json.gz") for path in paths)

    @lru_cache(maxsize=16)  # noqa: B019  (one service per process)
    def entry(self, name: str) -> dict[str, Any] | None:
        """What is kept of a model, as JSON data (``superopt.gallery``); nothing where it is not known."""
        if self._folder is None or name not in self.names:
            return None
        path = self._folder / f"{name}.json.gz"
        try:
            found = json.loads(gzip.decompress(path.read_bytes()))
        except (OSError, ValueError, EOFError) as error:
            log.warning("%s: %s", path, error)
            return None
        return found if isinstance(found, dict) and found.get("format") == _FORMAT else None

    @lru_cache(maxsize=64)  # noqa: B019
    def comparison(self, name: str) -> bytes:
        """Input and result of a model as one graph, ready to send; empty where it is not known."""
        entry = self.entry(name)
        return json.dumps(entry["comparison"], separators=(",", ":")).encode() if entry is not None else b""

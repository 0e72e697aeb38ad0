"""Rows of long measurements, one file a model, so that a run that was cut short goes on where it stopped."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from superopt.fleet.environment_digest import content_digest
from superopt.formats import load_with_files
from superopt.formats.safe_file_access import replace_file
from superopt.ir import disk_cache
from superopt.ir.errors import SuperoptError

__all__ = ["RowCache", "code_digest", "file_digest", "model_digest"]

_PACKAGES = (*disk_cache.OPTIMIZER_PACKAGES, "benchmark")  # whose code figures depend on


@dataclass(frozen=True)
class RowCache:
    """A folder of rows.

    Attributes:
        folder: where they are; ``None`` keeps none.
        stamp: what a row depends on beside its model; a row with another one is not used.
    """

    folder: Path | None
    stamp: str

    def get(self, model: Path) -> dict[str, Any] | None:
        """The row of an earlier run, if it was made by the same code of the same model."""
        if self.folder is None or not (place := self._place(model)).is_file():
            return None
        try:
            row = json.loads(place.read_text(encoding="utf-8"))
        except ValueError:
            return None
        same = isinstance(row, dict) and (row.get("stamp"), row.get("file")) == (self.stamp, model_digest(model))
        return row if same else None

    def put(self, model: Path, row: dict[str, Any], content: str) -> dict[str, Any]:
        """Keep a model's row; returns it with what it depends on.

        Args:
            model: its file.
            row: what was found.
            content: :func:`model_digest` from before: a row of a model that changed meanwhile is not kept.
        """
        made = {"model": model.stem, **row, "stamp": self.stamp, "file": content}
        if self.folder is not None and model_digest(model) == content:
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(self._place(model), json.dumps(made, indent=1).encode(), force=True)
        return made

    def rows(
        self, models: Sequence[Path], fresh: Callable[[Path], dict[str, Any]], *, seconds: float,
        progress: Callable[[int, int | None, str], None],
    ) -> tuple[list[dict[str, Any]], list[str]]:  # fmt: skip
        """A row a model, kept or made now, and the names of those for which no time was left.

        Args:
            models: in this order.
            fresh: makes a model's row.
            seconds: after which no further row is begun.
            progress: called with (done, total, name).
        """
        rows: list[dict[str, Any]] = []
        left_out: list[str] = []
        deadline = time.monotonic() + seconds
        for number, path in enumerate(models):
            progress(number, len(models), path.stem)
            row = self.get(path)
            if row is None and time.monotonic() >= deadline:
                left_out.append(path.stem)
                continue
            content = model_digest(path)
            rows.append(row or self.put(path, fresh(path), content))
        return rows, left_out

    def _place(self, model: Path) -> Path:
        assert self.folder is not None
        return self.folder / f"{model.stem}.json"


def file_digest(path: Path) -> str:
    """Of a file's content; empty where there is none."""
    return content_digest(path)[:16] if path.is_file() else ""


def model_digest(path: Path) -> str:
    """Of a model's content, that of the files which hold its weights included."""
    try:
        files = load_with_files(path)[1]
    except SuperoptError:
        files = (path,)
    return " ".join(map(file_digest, files))


def code_digest() -> str:
    """Of the rules, and of superopt's own code as far as results and figures depend on it."""
    return disk_cache.code_digest(*_PACKAGES, data=("*.toml", "proofs.json"))

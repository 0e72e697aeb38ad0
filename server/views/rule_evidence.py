"""What is recorded of the rules beside their verdicts: what each gains by itself, and who checked its proof."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

__all__ = ["RuleEvidence"]

log = logging.getLogger("superopt.serve")


class RuleEvidence:
    """The files beside the rules; read once. What is not there is not known."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def _gains(self) -> Mapping[str, Any]:
        return self._read("gains.json")

    @cached_property
    def _record(self) -> Mapping[str, Any]:
        return self._read("certificates/record.json")

    def gain(self, rule_id: str) -> Mapping[str, Any] | None:
        """``lhs_us``, ``rhs_us`` (microseconds) and their ``source``: both sides costed at the sizes of discovery."""
        found = self._gains.get(rule_id)
        return found if found and found["lhs_us"] is not None and found["rhs_us"] is not None else None

    def certified(self, digest: str) -> Mapping[str, Any] | None:
        """When a rule's certificate was checked, by which solvers, and how many goals they answered."""
        row = self._record.get("rules", {}).get(digest)
        if row is None:
            return None
        solvers = [f"{name} {release}" for name, release in self._record["solvers"].items()]
        return {"date": self._record["date"], "solvers": solvers, "goals": row["goals"], "points": row["points"]}

    def _read(self, name: str) -> Mapping[str, Any]:
        path = self._folder / name
        try:
            found = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            log.warning("%s: %s", path, error)
            return {}
        return found if isinstance(found, dict) else {}

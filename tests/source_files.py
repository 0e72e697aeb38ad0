"""The Python files of the package and of the laboratory."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
_ROOMS = ("superopt", "server", "verifier", "rules", "lab")  # three of them are linked into the first


def sources() -> list[Path]:
    return [p for room in _ROOMS for p in sorted((ROOT / room).rglob("*.py")) if "node_modules" not in p.parts]

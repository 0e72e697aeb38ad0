"""The census of verdicts in floating point: as JSON data, and as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from superopt.report.terminal import table

__all__ = ["census_data", "show_census"]


Rows = Sequence[Mapping[str, Any]]


def census_data(counts: Mapping[tuple[str, str], int], lost: Rows, broken: Rows) -> dict[str, Any]:
    """``superopt.floats_census``: directions by type and verdict, those that ``standard`` does not use, and breaches.

    Args:
        counts: (type, verdict) → directions.
        lost: rule, direction, verdict and the worst point of what is not used.
        broken: recorded conditions that a point was against.
    """
    by_type: dict[str, dict[str, int]] = {}
    for (dtype, kind), count in sorted(counts.items()):
        by_type.setdefault(dtype, {})[kind] = count
    return {
        "format": "superopt.floats_census", "version": 1, "directions": by_type, "unused": list(lost),
        "breaches": list(broken),
    }  # fmt: skip


def show_census(console: Console, data: Mapping[str, Any]) -> None:
    """Print the counts, and what was found against recorded conditions."""
    types = list(data["directions"])
    kinds = sorted({kind for row in data["directions"].values() for kind in row})
    rows = [(kind, *(str(data["directions"][t].get(kind, 0)) for t in types)) for kind in kinds]
    console.print(table("verdict", *types, rows=rows, numeric=tuple(range(1, len(types) + 1))))
    for breach in data["breaches"]:
        far = breach["error"] or "infinitely many"
        where = f"{breach['rule']} {breach['direction']} in {breach['type']}"
        console.print(f"{where}: off by {far} allowances", markup=False)
    console.print(f"{len(data['unused'])} directions unused by default in float32, {len(data['breaches'])} breaches")

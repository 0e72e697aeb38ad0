"""How a discovery run grew with the size of terms, from its ``run.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from superopt.ir.errors import UsageError
from superopt.report.terminal import table

__all__ = ["growth", "show_growth"]


def growth(run: Mapping[str, Any]) -> list[dict[str, float]]:
    """A row for every number of operators a side, the themes together.

    ``terms``, ``classes`` and ``coincidences`` are of terms up to that size; ``candidates`` and ``rules`` those whose
    larger side has that size (a named expression over leaves counts by its operators); ``seconds`` the CPU time
    until all terms of that size were built, and ``mb`` the largest process by then. Those that an older log does not
    tell are left out.

    Raises:
        UsageError: not the log of a discovery run.
    """
    themes = run.get("themes")
    if run.get("format") != "superopt.discovery" or not isinstance(themes, list):
        raise UsageError("not the log of a discovery run", hint="run.json in the folder that superopt discover wrote")
    sizes = {int(level["size"]) for theme in themes for level in theme["levels"]}
    sizes |= {int(key.split("_")[1]) for theme in themes for key in theme if key.startswith("size_")}
    rows = []
    for size in sorted(sizes - {0}):
        row: dict[str, float] = {"size": size}
        for key in ("terms", "classes", "coincidences"):
            row[key] = sum(max((v[key] for v in t["levels"] if v["size"] <= size), default=0) for t in themes)
        for key in ("candidates", "rules"):
            if any(f"size_{size}_{key}" in t for t in themes):
                row[key] = sum(t.get(f"size_{size}_{key}", 0) for t in themes)
        for key, merge in (("seconds", sum), ("mb", max)):
            reached = [
                max(float(t.get(f"size_{n}_{key}", 0)) for n in range(1, size + 1))
                for t in themes
                if f"size_1_{key}" in t
            ]
            if reached:
                row[key] = merge(reached)
        rows.append(row)
    return rows


def show_growth(console: Console, run: Mapping[str, Any]) -> None:
    """The table, and what the whole run came to."""
    columns = ("terms", "classes", "coincidences", "candidates", "rules", "seconds", "mb")
    titles = ("terms", "classes", "equal", "candidates", "rules", "CPU s", "peak MB")
    rows = [
        (str(int(r["size"])), *(f"{r[c]:,.1f}" if c in ("seconds", "mb") and c in r else f"{int(r[c]):,}" if c in r
                                else "–" for c in columns))
        for r in growth(run)
    ]  # fmt: skip
    console.print(table("size", *titles, rows=rows, numeric=tuple(range(len(columns) + 1))))
    console.print(
        f"size: operators a side. {len(run['themes'])} themes; {run['candidates']:,} candidates: {run['derived']:,} "
        f"derived, {run['refuted']:,} refuted, {run['unknown']:,} not proved; {run['proved']:,} rules proved, "
        f"{run['kept']:,} kept; {run['cpu_seconds']:,.0f} CPU s, {run['seconds']:,.0f} s with {run['workers']} "
        f"workers, {run['peak_mb']:,.0f} MB"
    )

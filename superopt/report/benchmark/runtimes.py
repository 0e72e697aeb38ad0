"""Graphs times runtimes, on the terminal and as a Markdown table (``docs/runtimes.md``)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from superopt.ir.errors import printable
from superopt.report.terminal import table

__all__ = ["runtimes_table", "show_runtimes"]


def show_runtimes(console: Console, data: Mapping[str, Any]) -> None:
    """A row a model: the input and ours in each runtime, and the best of all pairs."""
    head, rows = _cells(data)
    console.print(table(*head, rows=rows, numeric=tuple(range(1, len(head) - 1))))
    console.print(escape(_summary(data)))
    if data["left_out"]:
        console.print(escape(f"left for another run: {printable(', '.join(data['left_out']), 400)}"))


def runtimes_table(data: Mapping[str, Any]) -> str:
    """The same in Markdown."""
    head, rows = _cells(data)
    lines = ["|".join(("", *cells, "")) for cells in (head, ["---"] * len(head), *rows)]
    versions = ", ".join(f"{name} {version}" for name, version in data["runtimes"].items())
    return "\n".join([*lines, "", f"{_summary(data)}. {versions}; {data['date']}.", ""])


def _cells(data: Mapping[str, Any]) -> tuple[list[str], list[tuple[str, ...]]]:
    names = list(data["runtimes"])
    head = ["model", f"input, {names[0]}", *(f"input, {n}" for n in names[1:]), *(f"ours, {n}" for n in names),
            *(f"ours ÷ input, {n}" for n in names), "best"]  # fmt: skip
    return head, [_row(row, names) for row in data["rows"]]


def _row(row: Mapping[str, Any], names: Sequence[str]) -> tuple[str, ...]:
    if "pairs" not in row:
        return (str(row["model"]), printable(str(row.get("error", "")), 60), *("" for _ in range(3 * len(names))))
    pairs = {(p["graph"], p["runtime"]): p for p in row["pairs"]}
    ours = row["ours"]
    made = [pairs[ours[n]["graph"], n] if n in ours else None for n in names]
    best = row["best"]
    graph = "input" if best["graph"] == "input" else f"ours for {best['graph']}"
    return (
        str(row["model"]), f"{pairs['input', names[0]]['ms']:.2f} ms",
        *(_ratio(pairs["input", n]) for n in names[1:]), *(_ratio(p) for p in made),
        *(_ratio(ours.get(n)) for n in names), f"{best['ratio']:.3f}: {graph} in {best['runtime']}",
    )  # fmt: skip


def _ratio(found: Mapping[str, Any] | None) -> str:
    return "failed" if found is None else f"{found['ratio']:.3f} ±{found['spread']:.3f}"


def _summary(data: Mapping[str, Any]) -> str:
    """Geometric means over the models that were timed."""
    rows = [row for row in data["rows"] if "pairs" in row]
    if not rows:
        return "no model was timed"
    best = _mean([row["best"]["ratio"] for row in rows])
    ours = [
        f"ours ÷ input in {name} x{_mean(found):.3f} (worst {max(found):.3f})"
        for name in data["runtimes"]
        if (found := [row["ours"][name]["ratio"] for row in rows if name in row["ours"]])
    ]
    return f"geometric means over {len(rows)} models: best pair x{best:.3f}; {'; '.join(ours)}"


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))

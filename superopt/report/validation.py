"""How a terminal shows the costs put to the test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape

from superopt.ir.errors import printable
from superopt.report.quantities import time_text
from superopt.report.terminal import table

__all__ = ["show_repetition", "show_validation"]


def show_validation(console: Console, data: Mapping[str, Any]) -> None:
    """A line per model, a line per rewrite, and the summary (``superopt bench --cost``)."""
    rows = [_model(m) for m in data["models"]]
    console.print(
        table("model", "predicted", "measured", "error", "spread", "profiled in", rows=rows, numeric=(1, 2, 3, 4, 5))
    )
    if data["pairs"]:
        pairs = [_pair(p) for p in data["pairs"]]
        console.print(table("model", "rewritten for", "predicted", "measured", "", rows=pairs, numeric=(2, 3)))
    found = data["summary"]
    if found["median_error"] is not None:
        console.print(
            f"sum of parts against the whole: {found['models']} models, median error {found['median_error']:.1%}, "
            f"worst {found['worst_error']:.1%}, Spearman {found['spearman']:.3f}"
        )
    if found["direction_right"] is not None:
        console.print(
            f"direction right in {found['pairs_right']} of {found['pairs_beyond']} pairs "
            f"({found['direction_right']:.1%}) that measure more than {found['least_change']:.0%} faster "
            f"({found['pairs_faster']}) or slower, of {found['models_of_pairs']} models; {found['pairs']} were measured"
        )
    if left := data.get("left_out"):
        console.print(f"left for another run: {escape(printable(', '.join(left), 400))}")
    held = data["held_out"]
    console.print(
        f"predictor on {held['records']} records that were held out: median error {held['median']:.1%}, 90th "
        f"percentile {held['worst_tenth']:.0%}, Spearman {held['rank']:.3f}; {held['within_one']:.0%} within σ, "
        f"{held['within_two']:.0%} within 2σ"
    )


def _model(row: Mapping[str, Any]) -> tuple[str, ...]:
    name = printable(row["name"], 40)
    if row["failure"]:
        return name, printable(row["failure"], 60), "", "", "", ""
    return (
        name, time_text(row["predicted_us"]), time_text(row["measured_us"]), f"{row['error']:+.1%}",
        f"{row['spread']:.1%}", f"{row['seconds']:.1f} s",
    )  # fmt: skip


def _pair(row: Mapping[str, Any]) -> tuple[str, ...]:
    name = printable(row["name"], 40)
    if row["failure"]:
        return name, row["how"], "", "", printable(row["failure"], 60)
    verdict = ("right" if row["right"] else "WRONG") if row["counts"] else "no clear change"
    return name, row["how"], f"x{row['predicted']:.3f}", f"x{row['measured']:.3f}", verdict


def show_repetition(console: Console, data: Mapping[str, Any]) -> None:
    """What two cold profilings of a model took and how they differ (``superopt bench --cold``)."""
    (first, second), (one, two) = data["seconds"], data["cpu_seconds"]
    console.print(
        f"[bold]{escape(printable(data['name']))}[/bold] profiled twice from nothing: {data['records']} measurements "
        f"in {first:.1f} s and {second:.1f} s ({one:.1f} s and {two:.1f} s of CPU); "
        f"the runs differ by {data['median_difference']:.1%} (median), "
        f"{data['on_ratios']:.1%} on ratios"
    )

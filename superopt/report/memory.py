"""Memory over steps, shown in a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from superopt.report.quantities import bytes_text
from superopt.report.terminal import table
from superopt.report.timeline import tops

__all__ = ["show_memory"]

_ROWS, _WIDTH, _SHOWN = 24, 40, 8  # rows of the timeline, cells of its longest bar, buffers at the peak


def show_memory(console: Console, path: str, facts: Mapping[str, Any]) -> None:
    """Print what the activations take: in sum, over the steps, and who holds the peak.

    Args:
        console: where.
        path: the model's, as given.
        facts: :func:`superopt.pipeline.memory_timeline.footprint_data`.
    """
    console.print(path, markup=False, highlight=False)
    size = {k: bytes_text(v) for k, v in facts.items() if k.endswith("_bytes")}
    console.print(
        f"activations {size['peak_bytes']} in {facts['runtime']}: inputs {size['inputs_bytes']}, outputs "
        f"{size['outputs_bytes']}, one block of {size['block_bytes']}; weights {size['weight_bytes']}\n"
        f"alive at once in this order {size['alive_bytes']}; at least in any order {size['bound_bytes']}",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip
    steps = facts["steps"]
    if not steps:
        return
    most = max(max(s["taken_bytes"] for s in steps), 1)
    rows = []
    for top in tops(steps, _ROWS):
        full, lives = top["taken_bytes"] * _WIDTH // most, top["alive_bytes"] * _WIDTH // most
        bar = "█" * min(lives, full) + "░" * (full - min(lives, full))
        rows.append((f"{top['step']}", bytes_text(top["taken_bytes"]), bar, f"{top['op']} {top['node']}"))
    console.print(table("step", "memory", "█ alive, ░ reserved besides", "operator", rows=rows))
    held = [
        (
            bytes_text(b["bytes"]),
            f"{b['from']}-{b['to']}",
            ", ".join(b["values"][:3]) + (", …" * (len(b["values"]) > 3)),
        )
        for b in facts["peak_buffers"][:_SHOWN]
    ]
    console.print(table("bytes", "steps", f"held at step {facts['peak_step']}", rows=held))

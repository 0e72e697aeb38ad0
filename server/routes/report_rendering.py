"""What a report becomes on a page: bars, plot, steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from superopt.report.headline import headline
from superopt.report.memory_timeline_plot import timelines
from superopt.report.quantities import unbroken
from superopt.report.roofline_plot import roofline
from superopt.server.views.charts import cost_bars, staircase

__all__ = ["shown"]


def shown(report: Mapping[str, Any]) -> dict[str, Any]:
    """Values for ``report.html`` from a report's JSON data."""
    data = report.get("roofline") or {}
    if report["status"] == "unchanged":
        data = {k: v for k, v in data.items() if k != "after"}
    plot, note = roofline(data)
    way = report.get("derivation") or {}
    stairs = staircase([way["before_us"], *(s["us"] for s in way["steps"])]) if way else ""
    return {
        "report": report, "head": headline(report), "bars": cost_bars(data), "plot": plot, "plot_note": note,
        "steps": way, "stairs": stairs, "memory": unbroken(timelines(report.get("memory") or {})),
    }  # fmt: skip

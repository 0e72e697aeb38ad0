"""Arithmetic intensity and the roofline: where a graph's operators stand below what the device reaches at best.

Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", Communications of the ACM, 2009.
"""

from __future__ import annotations

from typing import Any

from superopt.cost.graph_costs import GraphCost
from superopt.cost.peaks import Peaks

__all__ = ["ceilings", "operator_rows", "roofline_data"]


def operator_rows(found: GraphCost) -> list[dict[str, Any]]:
    """Time, FLOPs, bytes and intensity by operator, the costliest first."""
    rows: dict[str, dict[str, Any]] = {}
    for (_, op, estimate), (flops, moved) in zip(found.per_node, found.per_node_work, strict=True):
        row = rows.setdefault(op, {"op": op, "count": 0, "us": 0.0, "flops": 0, "bytes": 0})
        row["count"] += 1
        row["us"] += estimate.us
        row["flops"] += flops
        row["bytes"] += moved
    for row in rows.values():
        row["intensity"] = row["flops"] / row["bytes"] if row["bytes"] else None
    return sorted(rows.values(), key=lambda r: (-r["us"], r["op"]))


def ceilings(peaks: Peaks | None) -> dict[str, Any]:
    """The part of :func:`roofline_data` that is about the device; empty where its ceilings were not measured."""
    if peaks is None:
        return {}
    return {
        "device": peaks.device, "flops_per_second": peaks.flops_per_second,
        "bytes_per_second": peaks.bytes_per_second, "cache_bytes_per_second": peaks.cache_bytes_per_second,
    }  # fmt: skip


def roofline_data(before: GraphCost, after: GraphCost | None, peaks: Peaks | None) -> dict[str, Any]:
    """What a roofline plot needs, as JSON data: ceilings (none where they were not measured) and operators by side."""
    sides = {"before": operator_rows(before)}
    if after is not None:
        sides["after"] = operator_rows(after)
    return {**ceilings(peaks), **sides}

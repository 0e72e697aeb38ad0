"""How a terminal shows recorded profiles: those that ship, and one that was just recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape

from superopt import cost as costs
from superopt.ir.errors import printable
from superopt.report.quantities import count_text, time_text
from superopt.report.terminal import table
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.runtime.protocol import released

__all__ = [
    "coverage_data", "profile_rows", "recorded_data", "show_coverage", "show_profiles", "show_recorded",
]  # fmt: skip


def profile_rows() -> list[dict[str, Any]]:
    """The profiles that ship with superopt as JSON data: name, target, the header of each, and how this machine
    compares (``calibration``, ``None`` until an optimisation has measured it, and where it is of no ``processor``;
    ``runtime_here``)."""
    known = costs.known_calibrations()
    here = released(ONNX_RUNTIME)
    headers = {name: costs.shipped_header(name) for name in costs.profile_names()}
    return [
        {
            "name": name, "target": f"profile:{name}", **header,
            "processor": costs.BACKENDS[str(header["backend"])].processor,
            "calibration": asdict(known[name]) if name in known else None, "runtime_here": here,
        }
        for name, header in headers.items()
    ]  # fmt: skip


def show_profiles(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """A line per profile: what it was recorded on, when, and how much it holds."""
    if not rows:
        console.print("no profile ships with this superopt; record one with superopt profile")
        return
    lines = [
        (
            f"profile:{row['name']}", printable(str(row.get("device", ""))), str(row.get("cores", "")),
            printable(str(row.get("runtime", ""))), str(row["records"]), str(row.get("date", ""))[:10],
        )
        for row in rows
    ]  # fmt: skip
    console.print(table("target", "device", "cores", "runtime", "records", "date", rows=lines, numeric=(2, 4)))
    for row in rows:
        if (found := row["calibration"]) is not None:
            factors = ", ".join(f"{bound} ×{factor:.2f}" for bound, factor in found["factors"].items())
            console.print(
                f"this machine against {printable(row['name'])}: {factors} (single records ±{found['sigma']:.0%}; "
                f"{found['records']} timed in {found['seconds']:.1f} s)", markup=False
            )  # fmt: skip
        elif row["processor"]:
            console.print(f"this machine against {printable(row['name'])}: not measured yet", markup=False)
        else:
            console.print(
                f"{printable(row['name'])}: no processor; its prices stand as they were recorded", markup=False
            )
        recorded, here = str(row.get("runtime", "")), row["runtime_here"]
        if recorded != here and recorded.partition(" ")[0] == here.partition(" ")[0]:
            console.print(
                f"{printable(row['name'])} was recorded with {printable(recorded)}, and {here} runs here: what this "
                "machine measures itself is right, recorded prices of operators that have changed since are not; "
                "superopt profile records anew", markup=False
            )  # fmt: skip


def recorded_data(file: str, header: Mapping[str, Any], summary: Mapping[str, Any]) -> dict[str, Any]:
    """What a recording did, as JSON data."""
    return {"format": "superopt.recorded", "version": 1, "file": file, **summary, "header": dict(header)}


def show_recorded(console: Console, data: Mapping[str, Any]) -> None:
    """What was measured, how much of what the optimiser asks for, and whether the machine was steady."""
    share = data["answered"] / data["asked"] if data["asked"] else 1.0
    console.print(
        f"wrote {data['records']} records to {escape(printable(data['file']))}; {data['measured']} measured now, in "
        f"{data['seconds']:.0f} s"
    )
    console.print(
        f"{data['planned']} of {data['models']} models were searched, {data['settled']} of them ask for nothing more; "
        f"of {data['asked']} questions asked now, {data['answered']} are answered ({share:.1%})"
    )
    header = data["header"]
    latest = header["added"][-1] if data["measured"] and header.get("added") else header
    peaks, sentinels = header.get("peaks", {}), latest.get("sentinels", {})
    if peaks:
        speeds = (count_text(peaks["flops_per_s"], "FLOP/s"), count_text(peaks["bytes_per_s"], "B/s"))
        console.print(f"ceilings: {speeds[0]}, {speeds[1]} from memory")
    if sentinels:
        spread = ", ".join(
            f"{name} ±{100 * s['spread']:.1f} %" for name, s in sorted(sentinels.items()) if isinstance(s, Mapping)
        )
        console.print(
            f"drift: {sentinels['blocks']} blocks, {sentinels['repeated']} timed again, {sentinels['drifted']} of them "
            f"still off; sentinels {spread}"
        )
    if not data["complete"]:
        console.print(
            "not complete: the same command goes on where this one stopped (add --extend to keep its figures)"
        )


def coverage_data(file: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How much of what optimising models asks for a profile holds, as JSON data."""
    asked, answered = (sum(row[k] for row in rows) for k in ("asked", "answered"))
    return {
        "format": "superopt.coverage", "version": 1, "profile": file, "asked": asked, "answered": answered,
        "models": [dict(row) for row in rows],
    }  # fmt: skip


def show_coverage(console: Console, data: Mapping[str, Any]) -> None:
    """A line per model: questions of its optimisation, measured answers, and how much of its cost is measured."""
    lines = [
        (
            printable(row["name"], 60), str(row["asked"]), str(row["answered"]), time_text(row["before_us"]),
            f"{row['before_measured']:.0%}", time_text(row["after_us"]), f"{row['after_measured']:.0%}",
        )
        for row in data["models"]
    ]  # fmt: skip
    titles = ("model", "asked", "measured", "before", "of it measured", "after", "of it measured")
    console.print(table(*titles, rows=lines, numeric=(1, 2, 3, 4, 5, 6)))
    share = data["answered"] / data["asked"] if data["asked"] else 1.0
    console.print(
        f"{escape(printable(data['profile']))} holds {data['answered']} of the {data['asked']} answers that optimising "
        f"these models asks for ({share:.1%}); the others are predicted"
    )

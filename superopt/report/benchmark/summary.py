"""Figures of a benchmark: per tool, over all models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from superopt.report.corpus.model import geometric_mean

__all__ = ["Summary", "cell", "names", "summaries"]

_WORDS = {"timeout": "timed out", "crash": "crashed"}
LOSS = 1.02  # a ratio above this is a loss: two runs of one and the same model differ by less


@dataclass(frozen=True)
class Summary:
    """One tool over all models.

    Attributes:
        timed: models whose result ran and was right.
        mean: geometric mean of time after ÷ before over those.
        overall: the same over all models; where the tool failed, the input is what is left to run (a ratio of 1).
        best, worst: the extreme ratios and their models.
        losses: models that became slower than the input.
        wrong, crashed, timeouts: failures.
        seconds: median time of the optimiser itself.
    """

    tool: str
    version: str
    timed: int
    mean: float
    overall: float
    best: tuple[float, str]
    worst: tuple[float, str]
    losses: int
    wrong: int
    crashed: int
    timeouts: int
    seconds: float
    missing: str = ""


def names(data: Mapping[str, Any]) -> list[str]:
    """The tools, superopt first."""
    return ["superopt", *data["tools"]]


def summaries(data: Mapping[str, Any]) -> list[Summary]:
    """The summary of every tool, superopt first."""
    return [_summary(name, data) for name in names(data)]


def _summary(name: str, data: Mapping[str, Any]) -> Summary:
    facts = data["tools"].get(name, {"version": data["superopt"]["version"]})
    rows = [r for r in data["rows"] if "tools" in r]
    found = [(r["tools"][name], r["model"]) for r in rows if name in r["tools"]]
    timed = [(t["ratio"], model) for t, model in found if "ratio" in t]
    ratios = [ratio for ratio, _ in timed]
    statuses = [t["status"] for t, _ in found]
    seconds = [t["seconds"] for t, _ in found if t.get("seconds")]
    return Summary(
        tool=name, version=facts.get("version", ""), timed=len(timed), mean=geometric_mean(ratios),
        overall=geometric_mean([*ratios, *([1.0] * (len(found) - len(timed)))]),
        best=min(timed, default=(1.0, "")), worst=max(timed, default=(1.0, "")),
        losses=sum(r > LOSS for r in ratios), wrong=statuses.count("wrong"), crashed=statuses.count("crash"),
        timeouts=statuses.count("timeout"), seconds=median(seconds) if seconds else 0.0,
        missing=f"{facts['missing']}; {facts['next']}" if "missing" in facts else "",
    )  # fmt: skip


def cell(row: Mapping[str, Any], name: str) -> str:
    """What a tool did to a model: its ratio, or how it failed."""
    tool = row.get("tools", {}).get(name)
    if tool is None:
        return ""
    return f"{tool['ratio']:.3f}" if "ratio" in tool else _WORDS.get(str(tool["status"]), str(tool["status"]))


def ordered(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rows by our ratio, best first; what has none at the end."""
    return sorted(rows, key=lambda r: (r.get("tools", {}).get("superopt", {}).get("ratio", 9.0), r["model"]))

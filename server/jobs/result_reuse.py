"""Whether a result is final: one that was cut short, or whose check was not finished, answers for no equal request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["reusable", "unfinished"]

_LIMITS = {"time": "its time limit", "interrupted": "the job's time limit"}


def unfinished(outputs: Mapping[str, Any]) -> str:
    """Why another run of the same request may give another result, as a sentence; empty where it would not.

    Args:
        outputs: what a job left; its ``check`` is missing where there was nothing to compare.
    """
    told = []
    stopped = str(outputs.get("stopped"))
    if stopped in _LIMITS:
        seconds = outputs.get("time_limit") if stopped == "time" else None
        told.append(f"stopped at {_LIMITS[stopped]}" + ("" if seconds is None else f" of {seconds:g} s"))
    check = outputs.get("check") or {}
    reason = f" ({check['reason']})" if check.get("reason") else ""
    if check.get("verdict") == "failed":
        told.append(f"a better graph failed its check{reason}, so this is the input")
    elif check.get("verdict") == "skipped":
        told.append(f"a better graph could not be checked{reason}, so this is the input")
    if outputs.get("reduced"):
        told.append("the job ran out of memory and was searched again with less")
    return "; ".join(told)


def reusable(outputs: Mapping[str, Any]) -> bool:
    """Whether a result answers for an equal job."""
    return not unfinished(outputs)

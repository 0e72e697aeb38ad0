"""What a rule's page begins with: what the rule gains, an example, and its verdicts in floating point in few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from superopt.report.quantities import scientific_text, speedup_text, time_text

__all__ = ["example_of", "float_rows", "gain_text", "reach_text"]

_SAME = 0.02  # share of the time below which a side is not called faster
_FLOATS: Mapping[str, str] = {
    "safe": "safe", "conditional": "safe under a condition", "unsafe": "unsafe: used by --float fast at most",
    "unknown": "not known, so it is not used",
}  # fmt: skip


def gain_text(rule: Mapping[str, Any], gain: Mapping[str, Any] | None) -> str:
    """What a rule gains by itself, in words.

    Args:
        rule: the catalogue's entry.
        gain: microseconds of both sides (:meth:`superopt.server.views.evidence.Evidence.gain`), where they are
            recorded.
    """
    if gain is None:
        return "Its gain is not recorded."
    left, right = float(gain["lhs_us"]), float(gain["rhs_us"])
    way = "left to right" if right <= left else "right to left"
    before, after = max(left, right), min(left, right)
    if before <= 0.0 or after >= before * (1.0 - _SAME):
        return f"Nothing by itself: each side takes {time_text(before)}, estimated."
    unused = "" if way in rule["directions"] else " That direction is not used: a name would be unbound."
    if after == 0.0:
        return f"All {time_text(before)} from {way}, estimated: what remains depends on weights alone.{unused}"
    times = f"{time_text(before)} → {time_text(after)}"
    return f"{speedup_text(after / before)} faster from {way}: {times}, estimated at the sizes of discovery.{unused}"


def reach_text(runs: Sequence[Mapping[str, Any]]) -> str:
    """In which recorded models a rule is applied, in words; of the run in which these are most."""
    most = max(runs, key=lambda run: len(run["fires"]), default=None)
    if most is None or not most["fires"]:
        return ""
    fires = most["fires"]
    names = ", ".join(f["name"] for f in fires[:3])
    first = ", among them" if len(fires) > 3 else ":"
    return f"Applied in {len(fires)} of {len(most['data'].rows)} recorded models{first} {names}."


def example_of(trial: Mapping[str, Any] | None) -> str:
    """A rule at small sizes, in words: shapes of its tensors, and how far the sides differ.

    Args:
        trial: JSON data (``superopt.trial``); none where the rule was not evaluated.
    """
    if trial is None or trial["outcome"] == "none":
        return ""
    shapes = ", ".join(f"{name}: {kind}" for name, kind in trial["inputs"].items())
    outputs = ", ".join(o["type"] for o in trial["outputs"])
    worst = max((o["difference32"] for o in trial["outputs"]), default=0.0)
    same = "equal" if trial["outcome"] == "equal" else "different"
    near = "bit for bit" if worst == 0.0 else f"within {scientific_text(worst, 1)}"
    return f"With {shapes} both sides give {outputs}, {same}{f' in float32 {near}' if same == 'equal' else ''}."


def float_rows(floats: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Verdicts in floating point with a short form each, and whether the long one says more."""
    return [{**f, "short": (short := _FLOATS.get(f["verdict"], f["verdict"])), "more": f["sentence"] != short}
            for f in floats]  # fmt: skip

"""The first sentences of a report: how much faster the result is, whether it is safe, what changed.

They are made from the report's JSON data, so that the service's pages and ``--html`` say the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from superopt.ir.errors import printable
from superopt.report.optimization_report import certainty, outcome
from superopt.report.quantities import scientific_text, speedup_text, time_text

__all__ = ["ReportHeadline", "headline", "measured_claim", "price_basis"]

_CHANGED = 3  # operators whose counts are named
_CLOSE = 0.005  # modelled ratios this near to 1 are the same time
_SEARCH_ENDS = {"time": "its time limit", "memory": "its memory limit", "interrupted": "an interrupt"}
_INSTEAD = {
    "simpler": "Simpler",
    "memory": "Less memory",
    "precision": "Half precision",
    "runs": "Runs where the original does not",
}  # of being faster
_PROVED = frozenset({"proved_all_sizes", "evaluated"})
_REFERENCES = {
    "original": "the original model in ONNX Runtime", "float64": "a float64 reference",
    "original and float64": "the original model in ONNX Runtime and a float64 reference",
}  # fmt: skip


@dataclass(frozen=True)
class ReportHeadline:
    """What a reader asks first.

    Attributes:
        outcome: "faster", "slower", "no difference" or "unchanged".
        claim: the outcome in a few words, ``3.7 × faster``.
        basis: the times behind the claim, and whether they were measured.
        safety: what was checked and proved.
        changes: nodes and operators, before and after.
    """

    outcome: str
    claim: str
    basis: str
    safety: str
    changes: str


def headline(report: Mapping[str, Any]) -> ReportHeadline:
    """The first sentences of a report.

    Args:
        report: its JSON data (``superopt.report``).
    """
    if report["status"] == "unchanged":
        claim = ("unchanged", "Unchanged", _unchanged(report))
    elif report.get("measured"):
        claim = _measured(report)
    else:
        claim = _modelled(report)
    instead = _INSTEAD.get((report.get("reason") or {}).get("code", ""))
    if instead is not None and report["status"] != "unchanged":
        claim = ("no difference" if claim[0] == "faster" else claim[0], instead, claim[2])
    return ReportHeadline(*claim, _safety(report), _changes(report))


def _unchanged(report: Mapping[str, Any]) -> str:
    if reason := (report.get("reason") or {}).get("text"):
        return f"{reason[0].upper()}{printable(reason[1:], 600)}."
    ended = _SEARCH_ENDS.get(report["search"]["stopped"])
    if ended is None:
        return "The search found no faster equivalent graph."
    seconds = report["search"]["seconds"]
    began = f"{ended[0].upper()}{ended[1:]} ended the search after {seconds:.1f} s"
    return f"{began}, before it found a faster equivalent graph."


def _measured(report: Mapping[str, Any]) -> tuple[str, str, str]:
    m = report["measured"]
    ratio, spread, rounds = float(m["ratio"]), _uncertainty(m), int(m["runs"])
    before = float(m["before_ms"]) * 1e3
    device = printable(str((m.get("circumstances") or {}).get("device") or report["target"]), 80)
    basis = (
        f"{time_text(before)} → {time_text(before * ratio)}, measured on {device}: {ratio:.3f} of the original’s time "
        f"({certainty(spread, rounds)})."
    )
    claim = measured_claim(ratio, spread, rounds)
    reason = report.get("reason") or {}
    if claim[0] == "no difference" and reason.get("code") == "faster":
        claim = ("faster", f"About {speedup_text(ratio)} faster")
        basis = f"{basis} {reason['text'][0].upper()}{printable(reason['text'][1:], 300)}."
    return (*claim, basis)


def _uncertainty(m: Mapping[str, Any]) -> float:
    """Of a measurement in a report: ``null`` is infinite, and a report of before has the interquartile range alone."""
    recorded = m.get("uncertainty", m.get("spread", 0.0))
    return inf if recorded is None else float(recorded)


def measured_claim(ratio: float, spread: float, rounds: int | None = None) -> tuple[str, str]:
    """The outcome of a measurement, and its claim.

    Args:
        ratio: of after ÷ before.
        spread: what is written behind ±.
        rounds: of the measurement; ``None`` where there are enough of them.
    """
    found = outcome(ratio, spread) if rounds is None else outcome(ratio, spread, rounds)
    if found == "no difference":
        return found, "No measurable difference"
    return found, f"{speedup_text(ratio)} {found}"


def _modelled(report: Mapping[str, Any]) -> tuple[str, str, str]:
    before, after = float(report["cost"]["before_us"]), float(report["cost"]["after_us"])
    if before <= 0 or after <= 0:
        return "no difference", "Simpler", "Its time was neither measured nor estimated."
    ratio = after / before
    basis = (
        f"{time_text(before)} → {time_text(after)}, estimated by the cost model for {printable(report['target'], 80)}, "
        f"not measured: {ratio:.3f} of the original’s time."
    )
    if abs(ratio - 1.0) < _CLOSE:
        return "no difference", "Simpler, in the same estimated time", basis
    found = "faster" if ratio < 1.0 else "slower"
    return found, f"About {speedup_text(ratio)} {found}", basis


def price_basis(share: float) -> str:
    """What the cost model's estimate rests on, in words.

    Args:
        share: of the cost that rests on measured operator times.
    """
    if share >= 0.995:
        return "from measured times of all operators"
    if share <= 0.005:
        return "without measured times of these operators"
    return f"{share:.0%} of it from measured operator times, the rest interpolated"


def _safety(report: Mapping[str, Any]) -> str:
    if report["status"] == "unchanged":
        return "Nothing was changed: the result is the original model, so there was nothing to check."
    return f"{_check(report['check'])} {_proofs(report)}".strip()


def _check(check: Mapping[str, Any]) -> str:
    reason = printable(str(check.get("reason") or ""), 300)
    if check["verdict"] != "passed":
        return f"The check against the original {'failed' if check['verdict'] == 'failed' else 'was not run'}" + (
            f": {reason}." if reason else "."
        )
    trials, worst = int(check["trials"]), check.get("max_rel_error")
    against = _REFERENCES.get(check.get("reference", ""), "the original model")
    error = "" if worst is None else f" (largest relative error {scientific_text(worst)})"
    times = f"{trials} sets of generated inputs" if trials != 1 else "one set of generated inputs"
    return f"Checked: the outputs agree with {against} on {times}{error}."


def _proofs(report: Mapping[str, Any]) -> str:
    applied = report.get("rules_applied") or ()
    if precision := report.get("precision"):
        within = f"within the budget of {precision['budget']:g} of an output’s largest element"
        return f"Half precision rounds more than the original does: {within}."
    if report.get("algorithms"):
        return "Fast algorithms (Winograd, Strassen) are used; their rounding errors are within the limit of this mode."
    if not applied:
        return ""
    if all(a["verdict"] in _PROVED for a in applied):
        return "Every applied rule is proved for all sizes."
    return "Not every applied rule is proved for all sizes; the table of rules says which."


def _changes(report: Mapping[str, Any]) -> str:
    before, after = report["operators"]["before"], report["operators"]["after"]
    nodes = report["nodes"]
    if report["status"] == "unchanged":
        return "Nothing."
    moved = {op: after.get(op, 0) - before.get(op, 0) for op in dict.fromkeys((*before, *after))}
    most = sorted((op for op, by in moved.items() if by), key=lambda op: -abs(moved[op]))
    named = [f"{printable(op, 40)} {before.get(op, 0)} → {after.get(op, 0)}" for op in most[:_CHANGED]]
    more = len(most) - len(named)
    said = "; ".join([*named, *([f"{more} more operators"] if more > 0 else [])])
    return f"{nodes['before']} → {nodes['after']} nodes" + (f": {said}." if said else ", with other weights.")

"""The first sentences of a report: how much faster, on what basis, whether it is safe, what changed."""

from __future__ import annotations

from typing import Any

import pytest

from superopt.report.headline import headline, price_basis
from superopt.report.quantities import scientific_text, speedup_text, unbroken


def report(**changes: Any) -> dict[str, Any]:
    """A report's JSON data, as far as its headline goes."""
    return {
        "status": "improved", "target": "cpu", "cost": {"before_us": 100.0, "after_us": 40.0, "measured_share": 1.0},
        "measured": {"before_ms": 2.0, "after_ms": 0.54, "ratio": 0.269, "runs": 15, "spread": 0.004,
                     "circumstances": {"device": "AMD EPYC"}},
        "check": {"verdict": "passed", "trials": 20, "max_rel_error": 1.6e-6, "reference": "original", "reason": ""},
        "nodes": {"before": 38, "after": 22}, "search": {"stopped": "saturated", "seconds": 3.0},
        "operators": {"before": {"MatMul": 12, "Add": 4}, "after": {"MatMul": 4, "Add": 4}},
        "rules_applied": [{"rule": "r", "verdict": "proved_all_sizes"}, {"rule": "fold", "verdict": "evaluated"}],
        **changes,
    }  # fmt: skip


def measured(ratio: float, spread: float, runs: int = 15) -> dict[str, Any]:
    return {**report()["measured"], "ratio": ratio, "spread": spread, "runs": runs}


def test_a_speedup_is_a_factor_and_its_ratio_comes_second() -> None:
    head = headline(report())
    assert head.claim == "3.7 × faster"
    assert head.basis.startswith("2.00 ms → 538.0 µs, measured on AMD EPYC: 0.269 of the original’s time (±0.004")


@pytest.mark.parametrize(
    ("ratio", "spread", "runs", "claim"),
    [
        (0.5, 0.1, 15, "2.0 × faster"), (1.25, 0.1, 15, "1.25 × slower"), (0.06, 0.01, 9, "17 × faster"),
        (0.976, 0.03, 15, "No measurable difference"), (0.5, 0.0, 1, "No measurable difference"),
    ],
)  # fmt: skip
def test_a_claim_is_made_beyond_the_uncertainty_alone(ratio: float, spread: float, runs: int, claim: str) -> None:
    assert headline(report(measured=measured(ratio, spread, runs))).claim == claim


def test_an_estimate_says_that_it_is_one() -> None:
    head = headline(report(measured=None))
    assert head.claim == "About 2.5 × faster"
    assert "estimated by the cost model for cpu, not measured" in head.basis
    same = {"before_us": 100.0, "after_us": 99.9, "measured_share": 1.0}
    assert headline(report(measured=None, cost=same)).claim == "Simpler, in the same estimated time"
    unpriced = {"before_us": 0.0, "after_us": 0.0, "measured_share": 0.0}
    assert headline(report(measured=None, cost=unpriced)).claim == "Simpler"


@pytest.mark.parametrize(
    ("stopped", "said"),
    [
        ("saturated", "The search found no faster equivalent graph."),
        ("nodes", "The search found no faster equivalent graph."),
        ("time", "Its time limit ended the search after 3.0 s"), ("memory", "Its memory limit ended the search"),
    ],
)  # fmt: skip
def test_what_is_unchanged_says_why(stopped: str, said: str) -> None:
    check = {"verdict": "skipped", "trials": 0, "reference": "float64", "reason": "nothing was changed"}
    head = headline(report(status="unchanged", search={"stopped": stopped, "seconds": 3.0}, check=check))
    assert head.claim == "Unchanged"
    assert head.basis.startswith(said)
    assert "there was nothing to check" in head.safety
    assert "trials" not in head.safety


def test_a_reports_own_reason_and_uncertainty_are_used() -> None:
    reason = {"code": "time", "text": "the search ended after 3 s; continue it with a longer time limit"}
    head = headline(report(status="unchanged", reason=reason))
    assert head.basis == "The search ended after 3 s; continue it with a longer time limit."
    unsure = {**measured(0.9, 0.01), "uncertainty": 0.2}
    assert headline(report(measured=unsure)).claim == "No measurable difference"
    unknown = headline(report(measured={**measured(0.9, 0.01), "uncertainty": None}))
    assert (unknown.claim, "too few to say how far it may be off" in unknown.basis) == (
        "No measurable difference",
        True,
    )
    together = {"code": "faster", "text": "rounds alone are in doubt; prices and rounds together say 0.92 ± 0.05"}
    about = headline(report(measured=unsure, reason=together))
    assert (about.claim, about.outcome) == ("About 1.11 × faster", "faster")
    assert about.basis.endswith("Rounds alone are in doubt; prices and rounds together say 0.92 ± 0.05.")
    simpler = headline(report(measured=measured(0.99, 0.03), reason={"code": "simpler", "text": "fewer nodes"}))
    assert (simpler.claim, simpler.outcome) == ("Simpler", "no difference")


def test_safety_says_what_was_checked_and_proved() -> None:
    assert headline(report()).safety == (
        "Checked: the outputs agree with the original model in ONNX Runtime on 20 sets of generated inputs (largest "
        "relative error 1.6×10⁻⁶). Every applied rule is proved for all sizes."
    )
    tested = [{"rule": "r", "verdict": "tested"}]
    assert "Not every applied rule is proved" in headline(report(rules_applied=tested)).safety
    assert "Fast algorithms" in headline(report(algorithms=[{"where": "conv"}])).safety
    skipped = {"verdict": "skipped", "trials": 0, "reference": "original", "reason": "the time ran out"}
    assert headline(report(check=skipped)).safety.startswith("The check against the original was not run: the time")


def test_changes_name_the_operators_that_changed_most() -> None:
    assert headline(report()).changes == "38 → 22 nodes: MatMul 12 → 4."
    same = {"before": {"Conv": 1}, "after": {"Conv": 1}}
    assert headline(report(operators=same)).changes == "38 → 22 nodes, with other weights."
    evil = {"before": {"\x1b[31m<b>": 3}, "after": {}}
    assert "\x1b" not in headline(report(operators=evil)).changes


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("16.4 µs → 10.6 µs", 3), ("Add 4 → 0; Conv 6 → 3", 4), ("Conv → Relu", 0),
        ("100 % measured", 1), ("3.7 × faster", 1), ("12 nodes", 1), ("2.3 MiB of 4 GiB", 2),
        ("41.2 GFLOP/s at 3", 1), ("±0.004, 15 interleaved", 0), ("conv 3 apples", 0), ("1.2 Gnats", 0),
    ],
)  # fmt: skip
def test_numbers_stay_with_their_units(text: str, kept: int) -> None:
    found = unbroken(text)
    assert found.count("\u00a0") == kept
    assert found.replace("\u00a0", " ") == text


def test_quantities_as_people_write_them() -> None:
    assert [scientific_text(v) for v in (1.6e-6, 0.0, 12345.0)] == ["1.6×10⁻⁶", "0", "1.2×10⁴"]
    assert [speedup_text(r) for r in (0.269, 0.649, 1.1)] == ["3.7 ×", "1.54 ×", "1.10 ×"]
    assert [price_basis(s)[:4] for s in (1.0, 0.0, 0.75)] == ["from", "with", "75% "]

"""What an optimisation did: the report's data and JSON (``model``), and how a terminal shows it (``terminal``)."""

from __future__ import annotations

from superopt.report.model import (
    Algorithm,
    Applied,
    Check,
    CheckFailure,
    CheckPower,
    Cost,
    Errors,
    Measured,
    Nodes,
    Opaque,
    Outcome,
    Questions,
    Report,
    RuntimeFault,
    Search,
    Tradeoff,
    Values,
    Verification,
    Work,
    certainty,
    operator_counts,
    outcome,
)

__all__ = [
    "Algorithm", "Applied", "Check", "CheckFailure", "CheckPower", "Cost", "Errors", "Measured", "Nodes", "Opaque",
    "Outcome", "Questions", "Report", "RuntimeFault", "Search", "Tradeoff", "Values", "Verification", "Work",
    "certainty", "operator_counts", "outcome",
]  # fmt: skip

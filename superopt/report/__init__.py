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
    FileSize,
    Kept,
    Nodes,
    Opaque,
    Outcome,
    Precision,
    Questions,
    Reason,
    Report,
    RuntimeFault,
    Search,
    Tradeoff,
    Values,
    Verification,
    Work,
    operator_counts,
)
from superopt.runtime.measurement import Measurement, certainty, outcome

__all__ = [
    "Algorithm", "Applied", "Check", "CheckFailure", "CheckPower", "Cost", "Errors", "FileSize", "Kept",
    "Measurement", "Nodes", "Opaque", "Outcome", "Precision", "Questions", "Reason", "Report", "RuntimeFault",
    "Search", "Tradeoff", "Values", "Verification", "Work", "certainty", "operator_counts", "outcome",
]  # fmt: skip

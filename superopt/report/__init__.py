"""What an optimisation did: the report's data and JSON (``optimization_report``), and how a terminal shows it."""

from __future__ import annotations

from superopt.report.optimization_report import (
    AppliedRuleReport,
    CheckFailure,
    CheckPower,
    CheckReport,
    CostReport,
    FastAlgorithmReport,
    FileSize,
    Float32ReasonReport,
    MeasurementRequestReport,
    MemoryTimeTradeoffReport,
    MixedPrecisionReport,
    NodeCounts,
    NumericalErrorReport,
    OpaqueOperators,
    Report,
    ResourceUsageReport,
    ResultDigest,
    RuntimeFault,
    SearchStatistics,
    StatusReason,
    VerificationReport,
    WeightRewriteReport,
    operator_counts,
)
from superopt.runtime.paired_measurement import PairedMeasurement, certainty, outcome

__all__ = [
    "FastAlgorithmReport", "AppliedRuleReport", "CheckReport", "CheckFailure", "CheckPower", "CostReport",
    "NumericalErrorReport", "FileSize", "Float32ReasonReport", "PairedMeasurement", "NodeCounts", "OpaqueOperators",
    "ResultDigest", "MixedPrecisionReport", "MeasurementRequestReport", "StatusReason", "Report", "RuntimeFault",
    "SearchStatistics", "MemoryTimeTradeoffReport", "WeightRewriteReport", "VerificationReport", "ResourceUsageReport",
    "certainty", "operator_counts", "outcome",
]  # fmt: skip

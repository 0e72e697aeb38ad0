"""The work on one model: optimise, inspect, cost, explain. :mod:`superopt.pipeline.driver` has the order of passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from superopt.ir.lazy_names import lazy_names

if TYPE_CHECKING:
    from superopt.pipeline.inspection import cost, inspect, rule_matches
    from superopt.pipeline.memory_timeline import memory_report
    from superopt.pipeline.optimization import Result, load, optimize
    from superopt.pipeline.options import EFFORTS, Options, Progress
    from superopt.pipeline.paired_benchmark import measure
    from superopt.pipeline.stepwise_derivation import Derivation, derive, explained

__all__ = [
    "EFFORTS", "Derivation", "Options", "Progress", "Result", "cost", "derive", "explained", "inspect", "load",
    "measure", "optimize", "memory_report", "rule_matches",
]  # fmt: skip

_HOMES = {
    **dict.fromkeys(("Derivation", "derive", "explained"), "stepwise_derivation"),
    **dict.fromkeys(("cost", "inspect", "rule_matches"), "inspection"),
    **dict.fromkeys(("Result", "load", "optimize"), "optimization"),
    **dict.fromkeys(("EFFORTS", "Options", "Progress"), "options"),
    "measure": "paired_benchmark",
    "memory_report": "memory_timeline",
}  # an optimisation does not need what explains one

if not TYPE_CHECKING:  # so that names that do not exist are seen
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)

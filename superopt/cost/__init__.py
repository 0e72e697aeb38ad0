"""Milliseconds: what operators and graphs cost on a device, measured, recorded or predicted, always saying which."""

from __future__ import annotations

from superopt.cost.bench import BenchRow, Prediction, bench, geometric_mean, spearman, validate
from superopt.cost.fusion import ONNX_RUNTIME_CPU, Backend, Fusion
from superopt.cost.measured import MeasuredCpu
from superopt.cost.model import CostModel
from superopt.cost.profile import Profile, Store, load_profile, profile_names, read_profile, write_profile
from superopt.cost.record import Estimate, Key, Record
from superopt.cost.recorded import RecordedProfile
from superopt.cost.target import for_target, record
from superopt.cost.whole import GraphCost, Work, graph_cost, graph_work, work

__all__ = [
    "ONNX_RUNTIME_CPU", "Backend", "BenchRow", "CostModel", "Estimate", "Fusion", "GraphCost", "Key", "MeasuredCpu",
    "Prediction", "Profile", "Record", "RecordedProfile", "Store", "Work", "bench", "for_target", "geometric_mean",
    "graph_cost", "graph_work", "load_profile", "profile_names", "read_profile", "record", "spearman", "validate",
    "work", "write_profile",
]  # fmt: skip

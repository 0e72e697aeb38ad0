"""Milliseconds: what operators and graphs cost on a device, measured, recorded or predicted, always saying which."""

from __future__ import annotations

from superopt.cost.bench import BenchRow, Prediction, bench, geometric_mean, spearman, validate
from superopt.cost.fusion import BACKENDS, ONNX_RUNTIME_CPU, Backend, Fusion
from superopt.cost.measured import MeasuredCpu
from superopt.cost.model import CostModel
from superopt.cost.profile import Profile, Store, load_profile, profile_names, read_profile, write_profile
from superopt.cost.record import Estimate, Key, Record
from superopt.cost.recorded import RecordedProfile
from superopt.cost.target import device_of, for_target
from superopt.cost.whole import GraphCost, Work, graph_cost, graph_work, work

__all__ = [
    "BACKENDS", "ONNX_RUNTIME_CPU", "Backend", "BenchRow", "CostModel", "Estimate", "Fusion", "GraphCost", "Key",
    "MeasuredCpu", "Prediction", "Profile", "Record", "RecordedProfile", "Store", "Work", "bench", "device_of",
    "for_target", "geometric_mean", "graph_cost", "graph_work", "load_profile", "profile_names", "read_profile",
    "spearman", "validate", "work", "write_profile",
]  # fmt: skip

"""Milliseconds: what operators and graphs cost on a device, measured, recorded or predicted, always saying which."""

from __future__ import annotations

from superopt.cost.calibrated import known_calibrations
from superopt.cost.demand import Demand
from superopt.cost.fusion import BACKENDS, ONNX_RUNTIME_CPU, OPENVINO_CPU, Backend, Fusion
from superopt.cost.graph_costs import GraphCost, Work, graph_cost, graph_work, node_work, timeline, work
from superopt.cost.measured import MeasuredCpu
from superopt.cost.model import CostModel, Racing
from superopt.cost.peaks import Peaks, peaks_of_header
from superopt.cost.profile import (
    Profile,
    Store,
    load_profile,
    profile_names,
    read_profile,
    shipped_header,
    write_profile,
)
from superopt.cost.record import Estimate, Key, Record
from superopt.cost.recorded import RecordedProfile
from superopt.cost.roofline import ceilings, operator_rows, roofline_data
from superopt.cost.target import device_of, for_target

__all__ = [
    "BACKENDS", "ONNX_RUNTIME_CPU", "OPENVINO_CPU", "Backend", "CostModel", "Demand", "Estimate", "Fusion", "GraphCost",
    "Key", "MeasuredCpu", "Peaks", "Racing", "Profile", "Record", "RecordedProfile", "Store", "Work",
    "ceilings", "device_of", "for_target", "graph_cost", "graph_work", "known_calibrations", "load_profile",
    "node_work", "operator_rows", "peaks_of_header", "profile_names", "read_profile", "shipped_header",
    "roofline_data", "timeline", "work", "write_profile",
]  # fmt: skip

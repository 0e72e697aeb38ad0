"""What operators and graphs cost on a device, in microseconds: measured, recorded or predicted.

The modules in the order in which a price is found:

1. ``target_cost_models``: from the name of a target to its cost model.
2. ``measurement_record``: one operator application (``MeasurementKey``, ``MeasurementRequest``) and its measured time
   (``MeasurementRecord``).
3. ``device_profile``: files of records: the shipped profiles, and the store that grows on this machine.
4. ``profile_calibration``: scales a shipped profile to this machine.
5. ``cost_model``: the price of one operator application (``CostModel``), read from a profile (``ProfileCostModel``).
6. ``operator_time_predictor``: the price of an application without a record: a roofline per operator and its nearest
   records.
7. ``roofline_ceilings``: the ceilings of a device.
8. ``backend_capabilities``: what a backend runs as one kernel.
9. ``cache_model``: which data an inference reads from which cache.
10. ``graph_costs``: the price, the work and the memory of a whole graph.
11. ``measured_cost_models``: prices that are measured on request. ``operator_timing`` times on the CPU, ``cuda_timing``
    on a GPU.
12. ``profile_recorder``: records a new profile.

Optimising under a recorded profile needs neither ``measured_cost_models`` nor what it builds on, so those are imported
on request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from superopt.cost.backend_capabilities import (
    BACKENDS,
    ONNX_RUNTIME_CPU,
    OPENVINO_CPU,
    BackendCapabilities,
    ProducerConsumerFusion,
)
from superopt.cost.cost_model import CostModel, DeviceGraphTimer, ProfileCostModel
from superopt.cost.device_profile import (
    DeviceProfile,
    DeviceProfileStore,
    load_profile,
    profile_names,
    read_profile,
    shipped_header,
    write_profile,
)
from superopt.cost.graph_costs import GraphCost, GraphResourceUsage, graph_cost, graph_work, node_work, timeline, work
from superopt.cost.measurement_record import CostEstimate, MeasurementKey, MeasurementRecord
from superopt.cost.roofline_ceilings import (
    DevicePeakPerformance,
    ceilings,
    operator_rows,
    peaks_of_header,
    roofline_data,
)
from superopt.cost.target_cost_models import device_of, for_target
from superopt.ir.lazy_names import lazy_names
from superopt.ops.flops_and_bytes import InferenceWork

if TYPE_CHECKING:
    from superopt.cost.measured_cost_models import MeasuredCpuCostModel
    from superopt.cost.profile_calibration import list_calibrations

__all__ = [
    "BACKENDS", "ONNX_RUNTIME_CPU", "OPENVINO_CPU", "BackendCapabilities", "CostModel", "InferenceWork", "CostEstimate",
    "ProducerConsumerFusion", "GraphCost", "MeasurementKey", "MeasuredCpuCostModel", "DevicePeakPerformance",
    "DeviceGraphTimer", "DeviceProfile", "MeasurementRecord", "ProfileCostModel", "DeviceProfileStore",
    "GraphResourceUsage", "ceilings", "device_of", "for_target", "graph_cost", "graph_work", "list_calibrations",
    "load_profile", "node_work", "operator_rows", "peaks_of_header", "profile_names", "read_profile", "shipped_header",
    "roofline_data", "timeline", "work", "write_profile",
]  # fmt: skip

if not TYPE_CHECKING:  # a recorded profile needs nothing that measures
    __getattr__, __dir__ = lazy_names(
        __name__, {"MeasuredCpuCostModel": "measured_cost_models", "list_calibrations": "profile_calibration"}
    )

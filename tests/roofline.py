"""A cost model for tests: a roofline, with the fusions of ONNX Runtime."""

from __future__ import annotations

from superopt.cost.cost_model import CostModel
from superopt.cost.measurement_record import CostEstimate
from superopt.cost.roofline_ceilings import DevicePeakPerformance


class Roofline(CostModel):
    """``2 µs + max(FLOPs / 20 GF/s, bytes / 10 GB/s)``, exact."""

    def __init__(self, dispatch: float = 2.0) -> None:
        super().__init__(None)
        self.dispatch = dispatch
        self.asked = 0

    @property
    def cache_bytes(self):
        return None

    def application(self, op, attributes, arg_types, out_types, constant_args=(), *, after=None, ask=True):
        self.asked += 1
        return super().application(op, attributes, arg_types, out_types, constant_args, after=after)

    def peaks(self):
        return DevicePeakPerformance("roofline", 20e9, 10e9, 40e9, 8 << 20)

    def in_context(self, working_set):
        return self  # there is no cache; what is asked is counted in one place

    def _view(self):
        return CostEstimate(0.2, "measured")

    def _fused(self, types, outs, slot):
        return CostEstimate(0.0, "free")

    def _lookup(self, question):
        flops, moved = question.work
        return CostEstimate(self.dispatch + max(flops / 20e3, moved / 10e3), "measured")

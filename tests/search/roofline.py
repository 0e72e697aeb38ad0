"""A cost model for tests: a roofline, with the fusions of ONNX Runtime."""

from __future__ import annotations

from superopt.cost.fusion import ONNX_RUNTIME_CPU
from superopt.cost.model import work_of
from superopt.cost.peaks import Peaks
from superopt.cost.record import Estimate


class Roofline:
    """``2 µs + max(FLOPs / 20 GF/s, bytes / 10 GB/s)``, exact."""

    backend = ONNX_RUNTIME_CPU

    def __init__(self, dispatch: float = 2.0) -> None:
        self.dispatch = dispatch
        self.asked = 0

    def application(self, op, attributes, arg_types, out_types, *, constant_args=(), after=None):
        self.asked += 1
        if arg_types and all(c or t is None for c, t in zip(constant_args, arg_types, strict=False)) and constant_args:
            return Estimate(0.0, "free")
        if op in self.backend.views:
            return Estimate(0.2, "measured")
        if after is not None and self.fusable(after, op):
            return Estimate(0.0, "free")
        flops, moved = work_of(op, dict(attributes), arg_types, out_types)
        return Estimate(self.dispatch + max(flops / 20e3, moved / 10e3), "measured")

    def fusable(self, producer, consumer, *, constant_others=True):
        return self.backend.fusable(producer, consumer, constant_others=constant_others)

    def peaks(self):
        return Peaks("roofline", 20e9, 10e9, 40e9, 8 << 20)

"""PyTorch (extra ``torch``): modules as graphs, and a backend of ``torch.compile``."""

from superopt.frontend.pytorch.backend import TorchCompileReport, TorchRegionReport, backend, explain
from superopt.frontend.pytorch.onnx_export import from_torch

__all__ = ["TorchCompileReport", "TorchRegionReport", "backend", "explain", "from_torch"]

"""PyTorch (extra ``torch``): modules as graphs, and a backend of ``torch.compile``."""

from superopt.frontend.pytorch.backend import Explanation, Region, backend, explain
from superopt.frontend.pytorch.exporting import from_torch

__all__ = ["Explanation", "Region", "backend", "explain", "from_torch"]

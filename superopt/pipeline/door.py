"""``superopt.optimize``: of a model in a file or in memory, and of a PyTorch module with example inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from superopt.pipeline.optimise import Result
from superopt.pipeline.optimise import optimize as of_model

__all__ = ["optimize"]


def optimize(model: Any, example_inputs: Sequence[Any] | None = None, **settings: Any) -> Result:
    """Find a faster graph that computes the same, check it, and report: see :func:`superopt.pipeline.optimize`.

    Args:
        model: a path, bytes, an ONNX ModelProto or a Graph; a ``torch.nn.Module`` with ``example_inputs``.
        example_inputs: positional arguments of a call of the module (extra ``torch``).
        settings: options; ``target``, ``time_limit``, ``effort`` and others.
    """
    if example_inputs is not None:
        from superopt.pipeline.pytorch import from_torch  # PyTorch is an extra

        model = from_torch(model, example_inputs)
    return of_model(model, **settings)

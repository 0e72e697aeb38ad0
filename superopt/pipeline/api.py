"""``superopt.optimize``: of a model in a file or in memory, and of a PyTorch module with example inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from superopt.ir.errors import InvalidOption, Unsupported
from superopt.ir.graph import Graph
from superopt.pipeline.keyword_options import Settings, options_of
from superopt.pipeline.optimization import Result
from superopt.pipeline.optimization import optimize as of_model
from superopt.pipeline.options import Options, Progress, quiet

if TYPE_CHECKING:
    import onnx
    import torch

__all__ = ["optimize"]

_TRAINING = "the module is in training mode: call module.eval() first for the model as it runs at inference"


def optimize(
    model: str | Path | bytes | onnx.ModelProto | Graph | torch.nn.Module,
    example_inputs: Sequence[Any] | torch.Tensor | None = None,
    *,
    options: Options | None = None,
    progress: Progress = quiet,
    **settings: Unpack[Settings],
) -> Result:
    """Find a faster graph that computes the same, check it, and report.

    ``superopt.optimize("model.onnx", time_limit=30).save("faster.onnx")``;
    ``superopt.optimize(module.eval(), example_inputs=(x,))``.

    Args:
        model: a path, bytes, an ONNX ModelProto or a Graph; a ``torch.nn.Module`` with ``example_inputs``.
        example_inputs: positional arguments of a call of the module, or its only one (extra ``torch``).
        options: settings together; single ones take their place.
        progress: called with (done, total, what).
        settings: ``target``, ``time_limit``, ``effort`` and the other options of ``superopt optimize``, by the same
            names: ``float="strict"`` is ``--float strict``, ``dim={"N": 8}`` is ``--dim N=8``, ``check=False`` is
            ``--no-check``.

    Raises:
        InvalidOption: there is no such option, or it does not take the value. UsageError: what is given is no model.
        InvalidModel: the model is broken. ResourceLimit: no machine could run it.
        Unsupported: ``strict`` and a node is opaque, or PyTorch does not export the module.
    """
    chosen = options_of(options, settings)
    if not _is_module(model):
        if example_inputs is not None:
            raise InvalidOption(
                f"a {type(model).__name__} is no torch.nn.Module, and takes none", where="example_inputs",
                option="example_inputs", hint="leave it out",
            )  # fmt: skip
        return of_model(model, options=chosen, progress=progress)
    if example_inputs is None:
        raise InvalidOption(
            "a torch.nn.Module needs the arguments of a call", where="example_inputs", option="example_inputs",
            hint="write superopt.optimize(module, example_inputs=(x,))",
        )  # fmt: skip
    module: Any = model
    result = of_model(_exported(module, example_inputs), options=chosen, progress=progress)
    if not module.training:
        return result
    return replace(result, report=replace(result.report, notes=(_TRAINING, *result.report.notes)))


def _is_module(model: Any) -> bool:
    """Whether it is a torch.nn.Module; PyTorch is not imported to know."""
    return any((c.__module__, c.__name__) == ("torch.nn.modules.module", "Module") for c in type(model).__mro__)


def _exported(module: Any, example_inputs: Any) -> Graph:
    """The module's graph; an error names the training mode where that may be why.

    Raises:
        UsageError: the example inputs are no sequence. Unsupported: PyTorch does not export it.
    """
    from superopt.pipeline.pytorch import from_torch  # PyTorch is an extra

    try:
        return from_torch(module, example_inputs)
    except Unsupported as error:
        if not module.training:
            raise
        raise Unsupported(error.what, where=error.where, hint=_TRAINING) from None

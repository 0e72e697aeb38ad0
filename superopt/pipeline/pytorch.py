"""PyTorch modules at the front door: optimised, explained, and as a backend of ``torch.compile`` (extra ``torch``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from superopt.frontend import pytorch
from superopt.frontend.pytorch import TorchCompileReport, explain, from_torch
from superopt.ir.graph import Graph
from superopt.pipeline.keyword_options import options_of
from superopt.pipeline.optimization import optimize
from superopt.pipeline.options import Options

__all__ = ["TorchCompileReport", "backend", "explain", "from_torch"]

QUICK = {"effort": "quick", "time_limit": 30.0}


def backend(
    module: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """``torch.compile(model, backend="superopt", options={"effort": "default"})``.

    Args:
        module: a region, as ``torch.compile`` hands it over.
        example_inputs: of its first call.
        options: settings of ``superopt.optimize`` for the region's graph and for that of its backward pass; a quick
            search by default. ``{"effort": "none"}`` runs them as they are exported.
        mode: not used.

    Raises:
        InvalidOption: there is no such setting, or it does not take the value.
    """
    settings = {**QUICK, **(options or {})}
    as_exported = settings["effort"] == "none"
    chosen = options_of(None, {k: v for k, v in settings.items() if k != "effort" or not as_exported})
    if as_exported:
        return pytorch.backend(module, example_inputs)
    return pytorch.backend(module, example_inputs, rewrite=partial(optimised, chosen))


def optimised(options: Options, graph: Graph) -> Graph:
    """The graph that ``superopt.optimize`` makes of one."""
    return optimize(graph, options=options).graph

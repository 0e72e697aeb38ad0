"""Two whole models side by side on this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from superopt import formats, report
from superopt.ir.graph import Graph
from superopt.runtime.limits import refuse_unbounded
from superopt.runtime.race import Clock, race
from superopt.verifier.differential import make_inputs

__all__ = ["LARGE", "measure"]

LARGE = 1 << 30  # bytes of weights above which a model is handled through files and place by place, to bound memory
_ROUNDS = 15


def measure(
    before: Graph,
    after: Graph,
    *,
    sizes: Mapping[str, int],
    seed: int = 0,
    rounds: int = _ROUNDS,
    burst: int = 3,
    threads: int = 1,
    time_limit: float = 30.0,
) -> report.Measured:
    """Time two graphs side by side under ONNX Runtime with all its own optimisations.

    With one thread the clock is the thread's CPU time, which other load on the machine does not disturb.

    Raises:
        ResourceLimit: running them would take too long or too much memory. InvalidModel, Unsupported: ONNX Runtime
            cannot run them.
    """
    clock: Clock = "cpu" if threads == 1 else "wall"
    for graph in (before, after):
        refuse_unbounded(graph, sizes)
    feeds: Mapping[str, np.ndarray[Any, Any]] = make_inputs(before, seed, "normal", sizes=sizes)
    with tempfile.TemporaryDirectory(prefix="superopt-") as folder:
        models = [_runnable(graph, Path(folder) / f"{i}.onnx") for i, graph in enumerate((before, after))]
        result = race(models, feeds, rounds=rounds, burst=burst, threads=threads, clock=clock, time_limit=time_limit)
    return report.Measured(
        result.ms[0], result.ms[1], result.ratios[1], result.rounds, result.spread[1], dict(result.circumstances)
    )


def _runnable(graph: Graph, path: Path) -> bytes | Path:
    """The model as ONNX Runtime takes it: bytes, or a file where they would not fit one message."""
    if sum(w.type.nbytes or 0 for w in graph.weights) <= LARGE:
        return formats.to_onnx_bytes(graph)
    formats.save(graph, path)
    return path

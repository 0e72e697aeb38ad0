"""Algorithms with fewer multiplications on a model as it is, without a search: ``superopt algorithms apply``.

What ``superopt optimize`` does last (:mod:`superopt.pipeline.fewer`), alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from superopt import TIME_LIMIT
from superopt import cost as costs
from superopt.ir.errors import UsageError, printable
from superopt.ir.graph import Graph
from superopt.pipeline.fewer import Formed, Setting, with_forms
from superopt.pipeline.judge import Judgement
from superopt.pipeline.optimise import load
from superopt.pipeline.options import quiet
from superopt.rules.floats import MODES
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.verifier.differential import check_rewrite
from superopt.verifier.running import Bench

__all__ = ["Outcome", "apply_algorithms"]

_RACE_SECONDS = 30.0


@dataclass(frozen=True)
class Outcome:
    """What became of a model.

    Attributes:
        graph: the result: the input, where ``formed`` is ``None``.
        formed: what the result has, and what is known of it.
        reason: why the input came back, or nothing.
    """

    graph: Graph
    formed: Formed | None
    reason: str = ""


def apply_algorithms(
    model: str | Path | bytes | Graph,
    *,
    floats: str = "standard",
    target: str = "cpu",
    sizes: Mapping[str, int] | None = None,
    threads: int = 1,
    seed: int = 0,
    inputs: int = 3,
    time_limit: float = TIME_LIMIT,
    progress: Callable[[int, int | None, str], None] = quiet,
) -> Outcome:
    """Rewrite operators by algorithms with fewer multiplications where that is faster and accurate enough.

    Args:
        model: a path, bytes or a graph.
        floats: the budget of errors: "strict" allows nothing, so the input comes back.
        target: "cpu" races the whole models on this machine; "profile:NAME" decides by recorded prices.
        sizes: what symbolic dimensions are costed and run at.
        threads: of the race.
        seed: of inputs.
        inputs: on which errors are measured.
        time_limit: seconds after which no further forms are tried.
        progress: called with (done, total, what).

    Raises:
        InvalidModel, ResourceLimit: the model cannot be read or run. UsageError: a bad setting.
    """
    if floats not in MODES:
        raise UsageError(f"floats={printable(floats)!r} is none of {', '.join(MODES)}")
    deadline = time.monotonic() + time_limit
    graph, known, notes = load(model), dict(sizes or {}), list[str]()
    setting = Setting(
        floats, known, seed, threads, ONNX_RUNTIME, races=target == "cpu", seconds=_RACE_SECONDS,
        left=lambda: deadline - time.monotonic(), inputs=inputs,
    )  # fmt: skip
    with (
        costs.for_target(target, threads=threads, sizes=known, time_limit=time_limit, progress=progress) as priced,
        Bench() as own,
    ):
        formed = with_forms(
            graph, graph, priced, setting, own,
            lambda made, slack: check_rewrite(graph, made, seed=seed, sizes=known, bench=own, slack=slack),
            lambda made, cost: (Judgement("faster"), None), notes, progress,
        )  # fmt: skip
    if formed is None:
        return Outcome(graph, None, "; ".join(notes) or "no form of any operator gains enough")
    return Outcome(formed.graph, formed)

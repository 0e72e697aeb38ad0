"""Applying bilinear algorithms to a model: choose, check, errors against a budget, a race of the whole models.

Off unless it is asked for (``superopt algorithms apply``), because results are as accurate as the budget says and not
as accurate as they were. What comes back is never slower as far as a race can tell, and never over the budget on the
inputs that were tried; else it is the input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from superopt import TIME_LIMIT, formats, report
from superopt import cost as costs
from superopt.ir.errors import UsageError, printable
from superopt.ir.graph import Graph
from superopt.ops.infer import infer
from superopt.pipeline.judge import LOOKS, Comparison, demand_of
from superopt.pipeline.optimise import load
from superopt.pipeline.options import quiet
from superopt.pipeline.racing import measure
from superopt.runtime import reference
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.runtime.race import race
from superopt.search.bilinear.choosing import GROWTH, Choice, choose, rewritten
from superopt.verifier.differential import CheckResult, check_rewrite, make_inputs

__all__ = ["MOST_ERROR", "Accuracy", "Outcome", "accuracy", "apply_algorithms"]

# By mode: the largest error that a result may have, relative to an output's largest element, against float64. Besides,
# it may have at most GROWTH times the model's own.
MOST_ERROR: Mapping[str, float] = {"strict": 0.0, "standard": 1e-5, "fast": 1e-4}
_LESS = (6.0, 3.0)  # growth of errors of algorithms that are tried in turn where those of the mode are too inaccurate
_ROUNDS, _SITE_SECONDS = 5, 6.0  # of the race of one site's forms
_RACE_SECONDS = 30.0


@dataclass(frozen=True)
class Accuracy:
    """Largest errors against float64, relative to the largest element of the output, over so many random inputs."""

    before: float
    after: float
    inputs: int

    def within(self, mode: str) -> bool:
        """Whether a mode's budget allows it."""
        return self.after <= MOST_ERROR[mode] and self.after <= GROWTH[mode] * self.before


@dataclass(frozen=True)
class Outcome:
    """What became of a model.

    Attributes:
        graph: the result: the input, where ``reason`` says why.
        choices: operators that were rewritten in what was tried last.
        checked, errors, measured: what is known of that; ``None`` where it did not get so far.
        reason: why the input came back, or nothing.
    """

    graph: Graph
    choices: tuple[Choice, ...]
    checked: CheckResult | None = None
    errors: Accuracy | None = None
    measured: report.Measured | None = None
    reason: str = ""


def accuracy(before: Graph, after: Graph, *, sizes: Mapping[str, int], seed: int = 0, inputs: int = 3) -> Accuracy:
    """Errors of two graphs in ONNX Runtime against the first in float64, on the same standard normal inputs.

    Raises:
        InvalidModel, Unsupported, ResourceLimit: one of them cannot be run.
    """
    sessions = [ONNX_RUNTIME.load(formats.to_onnx_bytes(graph)) for graph in (before, after)]
    worst = [0.0, 0.0]
    for number in range(inputs):
        feeds = make_inputs(before, seed + number, "normal", sizes=sizes)
        exact = reference.run(before, feeds, sizes=sizes)
        for side, session in enumerate(sessions):
            made = session.run(feeds, list(exact))
            worst[side] = max(worst[side], *(_error(made[name], value) for name, value in exact.items()))
    return Accuracy(worst[0], worst[1], inputs)


def _error(made: np.ndarray, exact: np.ndarray) -> float:
    if exact.dtype.kind != "f" or not exact.size:
        return 0.0
    return float(np.abs(made.astype(np.float64) - exact).max() / (np.abs(exact).max() or 1.0))


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
        target: "cpu" times forms on this machine; "profile:NAME" decides by recorded prices and races nothing.
        sizes: symbolic dimensions, for the race; operators of symbolic sizes are left alone.
        threads: of the race.
        seed: of inputs.
        inputs: on which errors are measured.
        time_limit: seconds that measuring prices may take.
        progress: called with (done, total, what).

    Raises:
        InvalidModel, ResourceLimit: the model cannot be read or run. UsageError: a bad setting.
    """
    if floats not in GROWTH:
        raise UsageError(f"floats={printable(floats)!r} is none of {', '.join(GROWTH)}")
    graph, known = load(model), dict(sizes or {})
    typing = infer(graph)
    timing = partial(_timed, threads=threads, seed=seed) if target == "cpu" else None
    with costs.for_target(target, threads=threads, sizes=known, time_limit=time_limit, progress=progress) as priced:
        found = Outcome(graph, (), reason="no form of any operator gains enough")
        for growth in (GROWTH[floats], *(less for less in _LESS if less < GROWTH[floats])):
            chosen = choose(graph, priced, growth=growth, typing=typing, timing=timing, progress=progress)
            if not chosen:
                return found
            found = _judged(graph, chosen, floats, priced, known, threads, seed, inputs, target, progress)
            if found.errors is not None and found.errors.within(floats):
                return found
        return found


def _judged(
    graph: Graph, chosen: Sequence[Choice], floats: str, priced: costs.CostModel, sizes: Mapping[str, int],
    threads: int, seed: int, inputs: int, target: str, progress: Callable[[int, int | None, str], None],
) -> Outcome:  # fmt: skip
    after, choices = rewritten(graph, chosen), tuple(chosen)
    progress(0, None, "checking")
    checked = check_rewrite(graph, after, seed=seed, sizes=sizes)
    if checked.verdict != "passed":
        return Outcome(graph, choices, checked, reason=f"the check {checked.verdict}: {checked.reason}")
    errors = accuracy(graph, after, sizes=sizes, seed=seed, inputs=inputs)
    if not errors.within(floats):
        why = f"errors grow from {errors.before:.1e} to {errors.after:.1e}, which {floats!r} does not allow"
        return Outcome(graph, choices, checked, errors, reason=why)
    prices = [costs.graph_cost(g, priced, sizes=sizes) for g in (graph, after)]
    compared = Comparison(demand_of(prices[0]), demand_of(prices[1]), prices[1].us / prices[0].us)
    measured = None
    if target == "cpu":
        progress(0, None, "measuring")
        measured = measure(graph, after, sizes=sizes, seed=seed, threads=threads, rounds=LOOKS[-1],
                           time_limit=_RACE_SECONDS)  # fmt: skip
        compared = replace(compared, measured=measured)
    judged = compared.judged()
    return Outcome(after if judged.taken else graph, choices, checked, errors, measured, judged.reason)


def _timed(graphs: Sequence[Graph], *, threads: int, seed: int) -> list[float]:
    """Medians of what each takes of the first, in a race on this machine."""
    feeds = make_inputs(graphs[0], seed, "normal", sizes={})
    models = [formats.to_onnx_bytes(graph) for graph in graphs]
    result = race(
        models, feeds, rounds=_ROUNDS, burst=2, threads=threads, clock="cpu" if threads == 1 else "wall",
        time_limit=_SITE_SECONDS, seed=seed,
    )  # fmt: skip
    return list(result.ratios)

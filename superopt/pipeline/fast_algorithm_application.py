"""Algorithms with fewer multiplications on a model as it is, without a search: ``superopt algorithms apply``.

What ``superopt optimize`` does for what its search found (:mod:`superopt.pipeline.fast_algorithm_proposals`), alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from superopt import TIME_LIMIT
from superopt import cost as costs
from superopt.ir.errors import UsageError, printable
from superopt.ir.graph import Graph
from superopt.ops.shape_inference import infer
from superopt.pipeline.candidate import Proposals, first_accepted
from superopt.pipeline.candidate_evaluation import CandidateEvaluator
from superopt.pipeline.candidate_proposals import CandidateProposer
from superopt.pipeline.fast_algorithm_proposals import FastAlgorithmSubstitution
from superopt.pipeline.optimization import load
from superopt.pipeline.optimization_context import OptimizationContext
from superopt.pipeline.optimization_task import OptimizationTask
from superopt.pipeline.options import Options, quiet
from superopt.pipeline.time_budget import TimeBudget
from superopt.report import PairedMeasurement
from superopt.rules import RuleLibrary
from superopt.rules.float_verdicts import MODES
from superopt.verifier.check.shared_weight_sessions import SharedWeightSessions

__all__ = ["FastAlgorithmResult", "apply_algorithms"]


@dataclass(frozen=True)
class FastAlgorithmResult:
    """What became of a model.

    Attributes:
        graph: the result: the input, where ``algorithms`` is ``None``.
        algorithms: what the result has, and what is known of it.
        measured: a paired benchmark of the input and the result, if there was one.
        reason: why the input came back, or nothing.
    """

    graph: Graph
    algorithms: FastAlgorithmSubstitution | None
    measured: PairedMeasurement | None = None
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
) -> FastAlgorithmResult:
    """Rewrite operators by algorithms with fewer multiplications where prices say that it pays and errors allow it.

    Args:
        model: a path, bytes or a graph.
        floats: the budget of errors: "strict" allows nothing, so the input comes back.
        target: "cpu" also lets a benchmark of the whole models on this machine refuse; "profile:NAME" has prices alone.
        sizes: what symbolic dimensions are costed and run at.
        threads: of the paired benchmark.
        seed: of inputs.
        inputs: on which errors are measured.
        time_limit: seconds after which no further forms are tried.
        progress: called with (done, total, what).

    Raises:
        InvalidModel, ResourceLimit: the model cannot be read or run. UsageError: a bad setting.
    """
    if floats not in MODES:
        raise UsageError(f"floats={printable(floats)!r} is none of {', '.join(MODES)}")
    graph, known, budget = load(model), dict(sizes or {}), TimeBudget.of(time_limit)
    typing = infer(graph, known)
    options = Options(target, time_limit, seed=seed, sizes=known, threads=threads, floats=floats)
    budget.expect(graph, typing, known)
    with costs.for_target(target, threads=threads, sizes=known, time_limit=time_limit, progress=progress) as priced:
        task = OptimizationTask(graph, typing, RuleLibrary({}), priced, options, progress, budget, known)
        with SharedWeightSessions() as bench:
            context = OptimizationContext(task, bench, inputs=inputs)
            candidate = first_accepted(_proposals(context), CandidateEvaluator(context))
    if candidate.algorithms is None:
        reason = "; ".join(context.log.notes) or "no fast algorithm of any operator gains enough"
        return FastAlgorithmResult(graph, None, reason=reason)
    return FastAlgorithmResult(candidate.graph, candidate.algorithms, candidate.measurement)


def _proposals(context: OptimizationContext) -> Proposals:
    yield from CandidateProposer(context).with_algorithms(context.input.search)
    return context.input

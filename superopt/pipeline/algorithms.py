"""Algorithms with fewer multiplications on a model as it is, without a search: ``superopt algorithms apply``.

What ``superopt optimize`` does for what its search found (:mod:`superopt.pipeline.fast_algorithms`), alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from superopt import TIME_LIMIT
from superopt import cost as costs
from superopt.ir.errors import UsageError, printable
from superopt.ir.graph import Graph
from superopt.ops.infer import infer
from superopt.pipeline.budget import TimeBudget
from superopt.pipeline.candidate import Proposals, first_accepted
from superopt.pipeline.context import Context
from superopt.pipeline.evaluation import Evaluator
from superopt.pipeline.fast_algorithms import Substitution
from superopt.pipeline.optimization import load
from superopt.pipeline.options import Options, quiet
from superopt.pipeline.proposals import Proposer
from superopt.pipeline.task import Task
from superopt.report import Measurement
from superopt.rules import Library
from superopt.rules.floats import MODES
from superopt.verifier.check.sessions import Bench

__all__ = ["AlgorithmOutcome", "apply_algorithms"]


@dataclass(frozen=True)
class AlgorithmOutcome:
    """What became of a model.

    Attributes:
        graph: the result: the input, where ``algorithms`` is ``None``.
        algorithms: what the result has, and what is known of it.
        measured: a paired benchmark of the input and the result, if there was one.
        reason: why the input came back, or nothing.
    """

    graph: Graph
    algorithms: Substitution | None
    measured: Measurement | None = None
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
) -> AlgorithmOutcome:
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
        task = Task(graph, typing, Library({}), priced, options, progress, budget, known)
        with Bench() as bench:
            context = Context(task, bench, inputs=inputs)
            candidate = first_accepted(_proposals(context), Evaluator(context))
    if candidate.algorithms is None:
        reason = "; ".join(context.log.notes) or "no fast algorithm of any operator gains enough"
        return AlgorithmOutcome(graph, None, reason=reason)
    return AlgorithmOutcome(candidate.graph, candidate.algorithms, candidate.measurement)


def _proposals(context: Context) -> Proposals:
    yield from Proposer(context).with_algorithms(context.input.search)
    return context.input

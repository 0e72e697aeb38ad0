"""The driver: the passes of an optimisation, in the order in which they run.

The model comes with its functions inlined, its types inferred and its prices known
(:mod:`superopt.pipeline.optimization`). Each pass takes a candidate, which is the input at first, and returns the same
or another one. What else a pass learns is in the context.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from superopt.formats.weight_data import refuse_changed_files
from superopt.pipeline.candidate import Candidate, first_accepted
from superopt.pipeline.candidate_evaluation import CandidateEvaluator
from superopt.pipeline.candidate_proposals import CandidateProposer
from superopt.pipeline.certification import certify
from superopt.pipeline.memory_reduction import reduce_memory
from superopt.pipeline.optimization_context import OptimizationContext
from superopt.pipeline.optimization_task import OptimizationTask
from superopt.pipeline.options import FLOAT32
from superopt.pipeline.reporting import result_of
from superopt.pipeline.result import Result
from superopt.pipeline.runtime_fault_avoidance import avoid_runtime_fault, find_runtime_fault
from superopt.verifier.check.shared_weight_sessions import SharedWeightSessions

__all__ = ["PASSES", "Pass", "run_passes"]


@dataclass(frozen=True)
class Pass:
    """A step of an optimisation.

    Attributes:
        name: as the documentation has it.
        run: returns the candidate that the next pass starts from.
    """

    name: str
    run: Callable[[Candidate, OptimizationContext], Candidate]


def rewrite(candidate: Candidate, context: OptimizationContext) -> Candidate:
    """The candidate loop: propose, accept by timing, check; on a refusal exclude its cause and propose again."""
    candidate = first_accepted(CandidateProposer(context).proposals(), CandidateEvaluator(context))
    task = context.task
    if candidate.graph is task.graph and task.options.measure and candidate.measurement is None:
        return replace(candidate, measurement=context.acceptance.benchmark(task.graph, sizes=task.sizes))
    return candidate


def choose_precision(candidate: Candidate, context: OptimizationContext) -> Candidate:
    """Write the candidate in mixed precision, where that is asked for and keeps to the budget of errors."""
    if context.task.options.precision == FLOAT32 or context.task.budget.interrupted:
        return candidate
    from superopt.pipeline.mixed_precision import in_mixed_precision  # here, because it loads the assignment solver

    return in_mixed_precision(candidate, context)


PASSES: tuple[Pass, ...] = (
    # First, because every later check holds results to what the model says, not to what the runtime makes of it.
    Pass("find runtime fault", find_runtime_fault),
    # Weight rewrites, rules, fast algorithms: the fastest candidate that timing accepts and the check passes.
    Pass("rewrite", rewrite),
    # Behind the rewrites, because a schedule is one of a fixed set of nodes.
    Pass("reduce memory", reduce_memory),
    # Behind everything that changes nodes, so that what is proved is what is returned.
    Pass("certify", certify),
    # Behind the rewrites, because the runtime may leave the rewritten graph right.
    Pass("avoid runtime fault", avoid_runtime_fault),
    # Last, because what it returns is equal up to a budget of errors, and every other pass checks for equality.
    Pass("choose precision", choose_precision),
)


def run_passes(task: OptimizationTask) -> Result:
    """Optimise: the input is returned where nothing better is found and checked.

    Args:
        task: what is optimised, and how.

    Raises:
        InvalidModel: a file of the model changed meanwhile.
    """
    task.budget.expect(task.graph, task.typing, task.options.sizes)
    with SharedWeightSessions() as bench:
        context = OptimizationContext(task, bench)
        candidate = context.input
        for each in PASSES:
            candidate = each.run(candidate, context)
    if task.budget.interrupted:
        candidate = replace(candidate, search=replace(candidate.search, stopped="interrupted"))
    result = result_of(candidate, context)
    refuse_changed_files(task.graph)  # some of the result would be of the one, some of the other
    return result

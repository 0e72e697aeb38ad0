"""Models that the runtime's own optimiser breaks: the fault is reported, and avoided where an equal graph avoids it.

The model is run with the optimiser and without it first (:mod:`superopt.pipeline.runtime_faults`). Where it is broken,
the result is, in this order: the rewritten graph, if the optimiser leaves that right; the model with copies of a few
values, which keep the optimiser from its rewrite (:mod:`superopt.pipeline.optimizer_barriers`); the model. All are held
to what the model computes with the optimiser off.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from superopt import report
from superopt.ir.errors import InvalidModel, ResourceLimit, Unsupported, UsageError
from superopt.ir.graph import Graph
from superopt.pipeline.acceptance_policy import Decision
from superopt.pipeline.candidate import Candidate
from superopt.pipeline.check_policy import CHECKS
from superopt.pipeline.context import Context
from superopt.pipeline.optimizer_barriers import fewest_copies
from superopt.pipeline.runtime_faults import Fault, Unoptimised
from superopt.runtime.limits import LARGE, refuse_unbounded
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.verifier.check.differential import CheckResult

__all__ = ["RuntimeFault", "avoid_runtime_fault", "find_runtime_fault"]

_NOT_RUN = (InvalidModel, ResourceLimit, Unsupported, UsageError, MemoryError)  # with which a model does not run here
_LISTED = 4  # copied values in a note
_HINT = "a session with graph_optimization_level = ORT_DISABLE_ALL computes what the model says"


@dataclass(frozen=True)
class CheckedCopies:
    """The model with copies of values, which passed the check."""

    graph: Graph
    values: tuple[str, ...]
    check: CheckResult


@dataclass(frozen=True)
class RuntimeFault:
    """What the runtime's optimiser breaks in the model.

    Attributes:
        fault: what differs.
        copies: the model with copies that avoid it, if there is such a graph.
        avoided: how the result avoids it; "": it does not.
    """

    fault: Fault
    copies: CheckedCopies | None
    avoided: Literal["", "rewritten", "copies"] = ""

    def reported(self) -> report.RuntimeFault:
        """As the report has it."""
        fault = self.fault
        if self.avoided == "copies" and self.copies is not None:
            return report.RuntimeFault(fault.refusal, fault.outputs, "copies", self.copies.values)
        if self.avoided:
            return report.RuntimeFault(fault.refusal, fault.outputs, self.avoided)
        return report.RuntimeFault(fault.refusal, fault.outputs)


def find_runtime_fault(candidate: Candidate, context: Context) -> Candidate:
    """Run the model with the runtime's optimiser and without, and note what differs. The model stays as it is."""
    task = context.task
    options, graph = task.options, task.graph
    if not options.check or options.runtime != ONNX_RUNTIME.name or graph.weight_bytes > LARGE:
        return candidate
    if any(w.data is None for w in graph.weights) or task.budget.check_seconds > CHECKS.fault_share * task.budget.left:
        return candidate
    if task.effort.one_pass and task.budget.check_seconds > CHECKS.least_seconds + CHECKS.brief_fault_seconds:
        return candidate
    until = task.budget.left * (1.0 - CHECKS.fault_share)
    try:
        refuse_unbounded(graph, options.sizes, typing=task.typing)
        model = _unoptimised(context)
        fault = model.fault(graph)
    except _NOT_RUN:
        return candidate  # the check will say so
    except KeyboardInterrupt:  # there is no result yet: the search finds what it can in little time
        task.budget.interrupt()
        return candidate
    if fault is not None:
        context.log.limit(fault.words())
        context.fault = RuntimeFault(fault, _checked_copies(context, model, until))
    context.bench.drop(graph)  # its sessions are gone, and may have been large
    return candidate


def avoid_runtime_fault(candidate: Candidate, context: Context) -> Candidate:
    """A graph that the runtime's optimiser leaves right in the place of one that it breaks, if there is one."""
    fault, task = context.fault, context.task
    if fault is None:
        return candidate
    changed = candidate.graph is not task.graph
    if changed and _leaves_right(candidate.graph, context):
        context.fault = replace(fault, avoided="rewritten")
        context.log.note("the result avoids that: ONNX Runtime runs it right, with its optimisations and without")
        return candidate
    copies = fault.copies
    if copies is None:
        how = f"no equal graph was found that avoids that, so the input is returned; {_HINT}"
        context.log.note(how)
        if not changed:
            return candidate
        reason = "no equal graph avoids what the runtime breaks"
        return _without_proofs(replace(context.unchanged(candidate, Decision(None, reason)), measurement=None), context)
    names = ", ".join(copies.values[:_LISTED]) + (", …" if len(copies.values) > _LISTED else "")
    context.fault = replace(fault, avoided="copies")
    context.log.note(
        f"the result avoids that: it is the model with a copy of {names}, which no optimisation of ONNX Runtime's "
        "looks through"
    )
    search = replace(candidate.search, graph=copies.graph, applied=())
    with_copies = Candidate(search, context.cost_of(copies.graph), decision=Decision("runs"), check=copies.check)
    return _without_proofs(with_copies, context)


def _without_proofs(candidate: Candidate, context: Context) -> Candidate:
    """A candidate, of which nothing that was proved of another is said."""
    context.verification, context.pareto = None, ()
    return candidate


def _checked_copies(context: Context, model: Unoptimised, until: float) -> CheckedCopies | None:
    """The model with copies that avoid the fault, looked for until so many seconds are left."""
    task = context.task
    try:
        copies = fewest_copies(task.graph, lambda made: task.budget.left >= until and model.fault(made) is None)
        check = None if copies is None else context.check(copies[0])
    except _NOT_RUN:
        return None
    except KeyboardInterrupt:
        task.budget.interrupt()
        return None
    if copies is None or check is None or check.verdict != "passed":
        return None
    return CheckedCopies(*copies, check)


def _unoptimised(context: Context) -> Unoptimised:
    task = context.task
    return Unoptimised(
        task.graph, task.typing, task.options.seed, task.options.sizes, context.bench,
        lambda: min(CHECKS.fault_run_seconds, task.budget.left),
    )  # fmt: skip


def _leaves_right(graph: Graph, context: Context) -> bool:
    """Whether the optimiser leaves a graph right that was made of the model."""
    try:
        return _unoptimised(context).fault(graph) is None
    except _NOT_RUN:
        return False

"""An optimisation of a model that the runtime's own optimiser may break: that is told, and avoided where it can be.

The model is run both ways first (:mod:`.runtime_faults`). Where it is broken, the result is, in this order: the
rewritten graph, if the optimiser leaves that right; the model with copies of a few values, which keep the optimiser
from what it does (:mod:`superopt.pipeline.optimizer_barriers`); the model. All are held to what the model computes with
the optimiser off.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from superopt import cost as costs
from superopt import report
from superopt.formats import onnx_bytes
from superopt.ir.errors import InvalidModel, ResourceLimit, Unsupported, UsageError
from superopt.ir.graph import Graph, structural_hash
from superopt.pipeline.acceptance_policy import Judgement
from superopt.pipeline.context import Task
from superopt.pipeline.driver import attempt
from superopt.pipeline.optimizer_barriers import fewest_copies
from superopt.pipeline.reporting import reason_of, reported_check
from superopt.pipeline.result import Result
from superopt.pipeline.result_check import UNCHANGED, check_result
from superopt.pipeline.runtime_faults import Fault, Unoptimised
from superopt.runtime.limits import LARGE, refuse_unbounded
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.verifier.check.differential import EXACT, CheckResult
from superopt.verifier.check.sessions import Bench

__all__ = ["attempt_beside_faults"]

_NOT_RUN = (InvalidModel, ResourceLimit, Unsupported, UsageError, MemoryError)  # with which a model does not run here

_RUN = 20.0  # seconds for one run
_SPENT = 0.3  # share of the time that is left, which looking for copies may take: the rest is the search's
_NAMED = 4  # copied values in a note
_HINT = "a session with graph_optimization_level = ORT_DISABLE_ALL computes what the model says"


@dataclass(frozen=True)
class _Copied:
    """The model with copies of values, checked."""

    graph: Graph
    values: tuple[str, ...]
    checked: CheckResult


def attempt_beside_faults(task: Task) -> Result:
    """Optimise a model, and avoid what the runtime's own optimiser breaks in it.

    Raises:
        InvalidModel: a file of the model changed meanwhile.
    """
    with Bench() as bench:
        fault, copied = _looked_for(task, bench)
        bench.drop(task.graph)  # its sessions are gone, and may have been large
        if fault is None:
            return attempt(task, bench)
        task = replace(task, notes=(*task.notes, fault.words()))
        result = attempt(task, bench)
        rewritten = result.graph is not task.graph and _is_right(task, result.graph, bench)
    if rewritten:
        how = "the result avoids that: ONNX Runtime runs it right, with its optimisations and without"
        return _told(result, report.RuntimeFault(fault.refusal, fault.outputs, "rewritten"), how)
    if copied is not None:
        names = ", ".join(copied.values[:_NAMED]) + (", …" if len(copied.values) > _NAMED else "")
        how = (
            f"the result avoids that: it is the model with a copy of {names}, which no optimisation of ONNX Runtime's "
            "looks through"
        )
        found = report.RuntimeFault(fault.refusal, fault.outputs, "copies", copied.values)
        return _told(_with_graph(result, task, copied.graph, copied.checked), found, how)
    how = f"no equal graph was found that avoids that, so the input is returned; {_HINT}"
    return _told(_with_graph(result, task, task.graph, None), report.RuntimeFault(fault.refusal, fault.outputs), how)


def _looked_for(task: Task, bench: Bench) -> tuple[Fault | None, _Copied | None]:
    """What is broken, and the model with copies that avoid it, if there is such a graph."""
    options, graph = task.options, task.graph
    if not options.check or options.runtime != ONNX_RUNTIME.name or graph.weight_bytes > LARGE:
        return None, None
    if any(w.data is None for w in graph.weights):
        return None, None
    task.budget.expect(graph, task.typing, options.sizes)
    until = task.budget.left * (1.0 - _SPENT)
    if task.budget.needs > _SPENT * task.budget.left:
        return None, None
    try:
        refuse_unbounded(graph, options.sizes, typing=task.typing)
        known = _unoptimised(task, bench)
        fault = known.fault(graph)
    except _NOT_RUN:
        return None, None  # the check will say so
    except KeyboardInterrupt:  # there is no result yet: the search finds what it can in little time
        task.budget.hurry()
        return None, None
    return fault, None if fault is None else _copied(task, bench, known, until)


def _copied(task: Task, bench: Bench, known: Unoptimised, until: float) -> _Copied | None:
    """The model with copies that avoid what is broken, looked for until so many seconds are left."""
    try:
        found = fewest_copies(task.graph, lambda made: task.budget.left >= until and known.fault(made) is None)
        if found is None:
            return None
        checked = check_result(task.graph, found[0], task.typing, task.options, task.budget, bench, EXACT)
    except _NOT_RUN:
        return None
    except KeyboardInterrupt:
        task.budget.hurry()
        return None
    return _Copied(*found, checked) if checked.verdict == "passed" else None


def _unoptimised(task: Task, bench: Bench) -> Unoptimised:
    options, budget = task.options, task.budget
    return Unoptimised(task.graph, task.typing, options.seed, options.sizes, bench, lambda: min(_RUN, budget.left))


def _is_right(task: Task, graph: Graph, bench: Bench) -> bool:
    """Whether the optimiser leaves a graph right that was made of the model."""
    try:
        return _unoptimised(task, bench).fault(graph) is None
    except _NOT_RUN:
        return False


def _told(result: Result, fault: report.RuntimeFault, how: str) -> Result:
    told = replace(result.report, runtime_fault=fault, notes=(*result.report.notes, how))
    return replace(result, report=told)


def _with_graph(result: Result, task: Task, graph: Graph, checked: CheckResult | None) -> Result:
    """A result with another graph, which rests on no rule; ``checked``: of what the check found, if it is not the
    model."""
    if graph is result.graph:
        return result
    told, cost = result.report, costs.graph_cost(graph, task.costs, sizes=task.sizes)
    made = replace(
        told,
        status="unchanged" if checked is None else "improved",
        reason=reason_of(Judgement(None, "no equal graph avoids what the runtime breaks") if checked is None
                         else Judgement("runs")),
        file=report.FileSize(onnx_bytes(task.graph), onnx_bytes(graph)),
        check=reported_check(checked or UNCHANGED),
        cost=replace(told.cost, after_us=cost.us),
        measured=None,
        nodes=replace(told.nodes, after=len(graph.nodes)),
        operators={**told.operators, "after": report.operator_counts(graph)},
        work=replace(
            told.work, flops_after=cost.flops, bytes_after=cost.bytes, intensity_after=cost.intensity,
            weight_bytes_after=cost.weight_bytes, peak_activation_bytes_after=cost.peak_activation_bytes,
        ),
        rules_applied=(),
        algorithms=(), errors=None, values=None, verification=None, pareto=(), roofline=None,
        result=report.Outcome(structural_hash(graph)),
    )  # fmt: skip
    return Result(graph, result.original, made)

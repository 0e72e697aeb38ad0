"""Models that the runtime's own optimiser breaks: the fault is reported, and avoided where an equal graph avoids it.

The model is run with the optimiser and without it first (:mod:`superopt.pipeline.runtime_optimizer_faults`). Where it
is broken, the result is, in this order: the rewritten graph, if the optimiser leaves that right; the model with copies
of a few values, which keep the optimiser from its rewrite (:mod:`superopt.pipeline.runtime_fault_avoidance`); the
model. All are held to what the model computes with the optimiser off.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Literal

from superopt import report
from superopt.formats.control_flow_bodies import all_names
from superopt.ir.errors import InvalidModel, ResourceLimit, Unsupported, UsageError
from superopt.ir.graph import PASS, Graph, Node, unused_name
from superopt.ir.types import DType, TensorType
from superopt.ops.shape_inference import infer
from superopt.pipeline.acceptance_policy import AcceptanceDecision
from superopt.pipeline.candidate import Candidate
from superopt.pipeline.check_policy import CHECKS
from superopt.pipeline.optimization_context import OptimizationContext
from superopt.pipeline.runtime_optimizer_faults import RuntimeOptimizerFault, UnoptimizedRuntimeReference
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.runtime.resource_limits import LARGE, refuse_unbounded
from superopt.verifier.check.differential import CheckResult

__all__ = ["avoid_runtime_fault", "fewest_copies", "find_runtime_fault", "RuntimeFaultAvoidance", "with_copies"]

_NOT_RUN = (InvalidModel, ResourceLimit, Unsupported, UsageError, MemoryError)  # with which a model does not run here
_LISTED = 4  # copied values in a note
_HINT = "a session with graph_optimization_level = ORT_DISABLE_ALL computes what the model says"


@dataclass(frozen=True)
class FaultAvoidingCopies:
    """The model with copies of values, which passed the check."""

    graph: Graph
    values: tuple[str, ...]
    check: CheckResult


@dataclass(frozen=True)
class RuntimeFaultAvoidance:
    """What the runtime's optimiser breaks in the model.

    Attributes:
        fault: what differs.
        copies: the model with copies that avoid it, if there is such a graph.
        avoided: how the result avoids it; "": it does not.
    """

    fault: RuntimeOptimizerFault
    copies: FaultAvoidingCopies | None
    avoided: Literal["", "rewritten", "copies"] = ""

    def reported(self) -> report.RuntimeFault:
        """As the report has it."""
        fault = self.fault
        if self.avoided == "copies" and self.copies is not None:
            return report.RuntimeFault(fault.refusal, fault.outputs, "copies", self.copies.values)
        if self.avoided:
            return report.RuntimeFault(fault.refusal, fault.outputs, self.avoided)
        return report.RuntimeFault(fault.refusal, fault.outputs)


def find_runtime_fault(candidate: Candidate, context: OptimizationContext) -> Candidate:
    """Run the model with the runtime's optimiser and without, and note what differs. The model stays as it is."""
    task = context.task
    options, graph = task.options, task.graph
    if not options.check or options.runtime != ONNX_RUNTIME.name or graph.weight_bytes > LARGE:
        return candidate
    if any(w.data is None for w in graph.weights) or task.budget.check_seconds > CHECKS.fault_share * task.budget.left:
        return candidate
    if task.effort.brief_check and task.budget.check_seconds > CHECKS.least_seconds + CHECKS.brief_fault_seconds:
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
        context.fault = RuntimeFaultAvoidance(fault, _checked_copies(context, model, until))
    context.bench.drop(graph)  # its sessions are gone, and may have been large
    return candidate


def avoid_runtime_fault(candidate: Candidate, context: OptimizationContext) -> Candidate:
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
        return _without_proofs(
            replace(context.unchanged(candidate, AcceptanceDecision(None, reason)), measurement=None), context
        )
    names = ", ".join(copies.values[:_LISTED]) + (", …" if len(copies.values) > _LISTED else "")
    context.fault = replace(fault, avoided="copies")
    context.log.note(
        f"the result avoids that: it is the model with a copy of {names}, which no optimisation of ONNX Runtime's "
        "looks through"
    )
    search = replace(candidate.search, graph=copies.graph, applied=())
    with_copies = Candidate(
        search, context.cost_of(copies.graph), decision=AcceptanceDecision("runs"), check=copies.check
    )
    return _without_proofs(with_copies, context)


def _without_proofs(candidate: Candidate, context: OptimizationContext) -> Candidate:
    """A candidate, of which nothing that was proved of another is said."""
    context.verification, context.pareto = None, ()
    return candidate


def _checked_copies(
    context: OptimizationContext, model: UnoptimizedRuntimeReference, until: float
) -> FaultAvoidingCopies | None:
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
    return FaultAvoidingCopies(*copies, check)


def _unoptimised(context: OptimizationContext) -> UnoptimizedRuntimeReference:
    task = context.task
    return UnoptimizedRuntimeReference(
        task.graph, task.typing, task.options.seed, task.options.sizes, context.bench,
        lambda: min(CHECKS.fault_run_seconds, task.budget.left),
    )  # fmt: skip


def _leaves_right(graph: Graph, context: OptimizationContext) -> bool:
    """Whether the optimiser leaves a graph right that was made of the model."""
    try:
        return _unoptimised(context).fault(graph) is None
    except _NOT_RUN:
        return False


# -- Copies between operators ------------------------------------------------------------------------------------------
#
# Copies of values between operators that a runtime's optimiser fuses or removes wrongly.
#
# Every fusion matches a chain of operators. A ``Concat`` of one tensor copies it, bit for bit and at every element
# type, and no optimiser of ONNX Runtime 1.32 looks through it; neither does it through a ``Max`` of one tensor, which
# copies a scalar. So a chain with a copy in it is not matched, and the graph computes what it did.


_MAX = frozenset({
    DType.FLOAT16, DType.FLOAT32, DType.FLOAT64, DType.INT32, DType.INT64, DType.UINT32, DType.UINT64,
})  # fmt: skip  # element types of ONNX Runtime's kernel


def fewest_copies(graph: Graph, right: Callable[[Graph], bool]) -> tuple[Graph, tuple[str, ...]] | None:
    """The graph with few copies, so that it is right, and the values that are copied; ``None`` if copies do not help.

    All values between operators are copied first. Then halves, quarters, … of the copies are left out as long as it
    stays right (Zeller's ddmin): what is left is minimal in that every single copy is needed.

    Args:
        graph: what is wrong.
        right: whether a graph runs, and right. It may give up, by saying no.
    """
    chosen = _copyable(graph)
    if not chosen or not right(with_copies(graph, chosen)):
        return None
    parts = 2
    while len(chosen) > 1:
        size = -(-len(chosen) // parts)
        pieces = [chosen[i : i + size] for i in range(0, len(chosen), size)]
        for piece in (*pieces, *([n for n in chosen if n not in p] for p in pieces if len(pieces) > 2)):
            if piece and len(piece) < len(chosen) and right(with_copies(graph, piece)):
                parts = 2 if piece in pieces else max(2, parts - 1)
                chosen = list(piece)
                break
        else:
            if parts >= len(chosen):
                break
            parts = min(len(chosen), 2 * parts)
    return with_copies(graph, chosen), tuple(chosen)


def _copyable(graph: Graph) -> list[str]:
    """Values that one operator makes and another reads, and that an operator can copy."""
    types = infer(graph).types
    read = {n for node in graph.nodes for n in node.inputs if n}
    made = [o for node in graph.nodes for o in node.outputs if o in read]
    return [n for n in made if (kind := types.get(n)) is not None and _copies(kind) is not None]


def _copies(kind: TensorType) -> str | None:
    """The operator that copies a tensor of a type."""
    if kind.shape is None:
        return None
    if kind.shape:
        return "Concat"
    return "Max" if kind.dtype in _MAX else None


def with_copies(graph: Graph, values: Collection[str]) -> Graph:
    """The graph, each operator reading a copy of these values; an output of the graph, and a subgraph, do not."""
    types = infer(graph).types
    taken = set(all_names(graph))
    copies: dict[str, str] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes.append(replace(node, inputs=tuple(copies.get(n, n) for n in node.inputs)))
        for name in node.outputs:
            kind = types.get(name) if name in values else None
            if kind is None or (op := _copies(kind)) is None:
                continue
            copies[name] = unused_name(f"{name}_copy", taken)
            attributes = {"axis": 0} if op == "Concat" else {}
            made_by = {PASS: "avoid runtime fault"}
            nodes.append(Node(copies[name], op, (name,), (copies[name],), attributes, metadata=made_by))
    return replace(graph, nodes=tuple(nodes))

"""The model at another version of ONNX's operators, compared with the input before anything is searched."""

from __future__ import annotations

from superopt.formats.function_inlining import functions_in
from superopt.formats.opset_conversion import at_opset
from superopt.ir.errors import NotEquivalent, Unsupported, printable
from superopt.ir.graph import Graph
from superopt.pipeline.function_inlining import inline_functions
from superopt.pipeline.options import Options
from superopt.pipeline.result_check import skipped
from superopt.pipeline.time_budget import TimeBudget
from superopt.report.quantities import bytes_text
from superopt.runtime.resource_limits import LARGE
from superopt.verifier.check.differential import check

__all__ = ["written_at_opset"]

_NAMED = 3  # nodes that a message names


def written_at_opset(given: Graph, options: Options, budget: TimeBudget) -> tuple[Graph, tuple[str, ...]]:
    """The model at the version that the options ask for, and a note; the model itself where it is at that version.

    Args:
        given: a checked model.
        options: ``opset``, and how the check runs.
        budget: of time.

    Raises:
        Unsupported: a node cannot be written at that version, or may mean something else and could not be run.
        NotEquivalent: ONNX Runtime computes something else.
    """
    assert options.opset is not None
    graph = inline_functions(given, options)[0].graph if functions_in(given) else given
    converted = at_opset(graph, options.opset)
    if converted.graph is graph:
        return given, ()
    found = skipped("it was not compared")
    if graph.weight_bytes > LARGE:
        found = skipped(f"it was not compared, since its weights are more than {bytes_text(LARGE)}")
    elif options.check or converted.unproved:
        found = check(
            graph, converted.graph, seed=options.seed, trials=1, sizes=options.sizes, time_limit=budget.left_or_none,
            patience=budget.check_timeout,
        )  # fmt: skip
    if found.verdict == "failed":
        raise NotEquivalent(f"at opset {options.opset} the model computes something else: {found.reason}")
    if converted.unproved and found.verdict != "passed":
        named = printable(", ".join(converted.unproved[:_NAMED]), 300)
        raise Unsupported(f"at opset {options.opset} {named} may mean something else: {found.reason}")
    ran = "it computes the same" if found.verdict == "passed" else found.reason
    count = f"{converted.rewritten} nodes are written otherwise"
    note = f"written at opset {options.opset} instead of {graph.onnx_version}: {count}; {ran}"
    return converted.graph, (note,)

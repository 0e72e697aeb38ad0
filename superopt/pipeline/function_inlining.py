"""A model's own functions in an optimisation: bodies in place of calls while it lasts, calls again in the result.

The search, prices, the check and benchmarks see the bodies, so nothing ends at a call. A call whose body the result
still holds, node for node, is a call again: the model keeps its structure. A body that was rewritten stays in the place
of its call, as another call of its function may gain nothing by that rewrite, or lose. ``functions="inline"`` leaves
all bodies in place of calls, for runtimes that do not know functions.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from superopt.formats.function_inlining import InlinedGraph, inlined, with_calls
from superopt.ir.errors import InvalidModel, ResourceLimit, Unsupported, UsageError
from superopt.ir.graph import Graph
from superopt.pipeline.options import Options
from superopt.pipeline.result import Result
from superopt.report import ResultDigest
from superopt.runtime.onnx_runtime import run
from superopt.runtime.resource_limits import LARGE, bounded_memory, refuse_unbounded
from superopt.verifier.check.differential import make_inputs
from superopt.verifier.check.shared_weight_sessions import SharedWeightSessions

__all__ = ["inline_functions", "restore_calls"]

_RUN = 20.0  # seconds for one run of the model, which is not timed
_LISTED = 4  # functions that a note names


def inline_functions(given: Graph, options: Options) -> tuple[InlinedGraph, tuple[str, ...]]:
    """A model with bodies in place of calls of its functions, and what there is to say of calls that stay.

    ONNX Runtime runs the model both ways, and all calls stay if it makes other values of the bodies.
    """
    found = inlined(given)
    notes = tuple(
        f"calls of the model's function {name} stay as they are, and what is behind them is not followed: {why}"
        for name, why in list(found.refused.items())[:_LISTED]
    )
    if found.calls and (why := _difference(given, found.graph, options)):
        return InlinedGraph(given), (f"calls of the model's functions stay as they are: {why}",)
    return found, notes


def _difference(given: Graph, made: Graph, options: Options) -> str:
    """Why bodies are not what the runtime makes of calls; "" where they are, or where no run can say."""
    if given.weight_bytes > LARGE or any(w.data is None for w in given.weights):
        return ""
    try:
        refuse_unbounded(made, options.sizes)
        feeds = make_inputs(given, options.seed, sizes=options.sizes)
        with bounded_memory(), SharedWeightSessions() as bench:
            try:
                first = run(bench.session(given, optimise=False), feeds, time_limit=_RUN)
            except (InvalidModel, Unsupported, UsageError):
                return ""  # a model that does not run, or not on these inputs: the check will say so
            second = run(bench.session(made, optimise=False), feeds, time_limit=_RUN)
    except (ResourceLimit, MemoryError):
        return ""
    except (InvalidModel, Unsupported, UsageError) as error:
        return f"with bodies in their places the model does not run: {error.what}"
    odd = [name for name, array in first.items() if not _equal(array, second[name])]
    return f"with bodies in their places, output {odd[0]!r} is another" if odd else ""


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    if a.dtype == object or b.dtype == object:
        return repr(a.tolist()) == repr(b.tolist())
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"))


def restore_calls(result: Result, given: Graph, before: InlinedGraph, options: Options) -> Result:
    """A result as it is returned: of the model as it came, with calls where their bodies are unchanged.

    Args:
        result: of the model with bodies in place of calls.
        given: the model.
        before: how that was made.
        options: ``functions`` says whether there are to be calls.
    """
    if not before.calls:
        return result
    if options.functions == "inline" or result.by_values:  # certificates are about graphs with bodies in them
        return replace(result, original=given)
    graph = given if result.graph is before.graph else with_calls(result.graph, before, given)
    pareto = tuple(replace(p, graph=with_calls(p.graph, before, given)) for p in result.pareto)
    told = replace(result.report, result=ResultDigest(graph))
    return replace(result, graph=graph, original=given, report=told, pareto=pareto)

"""Optimising a model: load → inline functions → types, rules, prices → passes → report → restore calls."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from superopt import cost as costs
from superopt import formats
from superopt.ir.disk_cache import check_cache
from superopt.ir.errors import ResourceLimit, Unsupported, UsageError, printable, system_limits
from superopt.ir.graph import Graph
from superopt.ir.interpreter_settings import rarely_collected
from superopt.ir.size_polynomial import symbols
from superopt.ir.temporary_folders import remove_abandoned
from superopt.ir.types import TensorType
from superopt.ops import REGISTRY
from superopt.ops.shape_inference import CanonicalNode, InferredTypes, OpaqueNode, infer
from superopt.pipeline.driver import run_passes
from superopt.pipeline.function_inlining import inline_functions, restore_calls
from superopt.pipeline.keyword_options import options_of
from superopt.pipeline.optimization_task import OptimizationTask
from superopt.pipeline.options import ALGORITHMS, EFFORTS, VALUES, Options, Progress, quiet
from superopt.pipeline.result import Result
from superopt.pipeline.shape_defaults import default_sizes
from superopt.pipeline.time_budget import TimeBudget
from superopt.rules import RuleLibrary, load_library
from superopt.rules.peepholes import peephole_library
from superopt.runtime.blas_threads import one_blas_thread
from superopt.runtime.resource_limits import refuse_unbounded
from superopt.verifier.z3_solver import require_solver

if TYPE_CHECKING:
    import onnx

__all__ = ["Result", "chosen_rules", "is_proto", "load", "optimize", "select_rules"]


def load(model: str | Path | bytes | onnx.ModelProto | Graph) -> Graph:
    """A graph from a path, ONNX or JSON bytes, an ONNX proto, or a graph as it is.

    Raises:
        UsageError: it is none of these. InvalidModel, ResourceLimit: as :func:`superopt.formats.load` does.
    """
    if isinstance(model, Graph):
        return model
    if isinstance(model, bytes):
        return formats.from_bytes(model)
    if isinstance(model, str | Path):
        return formats.load(Path(model))
    if not is_proto(model):
        raise UsageError(f"{type(model).__name__} is no model", hint="a path, bytes, an ONNX ModelProto, or a Graph")
    return formats.from_onnx(model)


def is_proto(model: object) -> TypeGuard[onnx.ModelProto]:
    """Whether it is an ONNX ModelProto; ONNX is not imported for this, and the class may be a copy of its own."""
    return type(model).__name__ == "ModelProto"


@rarely_collected()
@one_blas_thread()
@system_limits()
def optimize(
    model: str | Path | bytes | onnx.ModelProto | Graph,
    *,
    options: Options | None = None,
    progress: Progress = quiet,
    **settings: Any,
) -> Result:
    """Find a faster graph that computes the same, check it, and report.

    Args:
        model: a path, bytes, ``onnx.ModelProto`` or ``Graph``.
        options: settings.
        progress: called with (done, total, what).
        **settings: single fields of ``options``: ``optimize("m.onnx", time_limit=10)``.

    Raises:
        InvalidModel: the model is broken. ResourceLimit: no machine could run it; MachineLimit: this one cannot.
        Unsupported: ``strict`` and a node is opaque. UsageError: a bad setting, or one that needs an extra.
    """
    options = options_of(options, settings)
    if options.certify:
        require_solver()
    remove_abandoned()
    check_cache()
    budget = TimeBudget.of(options.time_limit)
    progress(0, None, "loading")
    given, written = load(model), tuple[str, ...]()
    if options.opset is not None:
        from superopt.pipeline.opset_conversion import written_at_opset  # here, because few are written at another

        given, written = written_at_opset(given, options, budget)
    before, notes = inline_functions(given, options)
    graph = before.graph
    typing = infer(graph, options.sizes)
    try:
        refuse_unbounded(graph, options.sizes, typing=typing, absurd=True)
    except ResourceLimit as error:
        raise (error.within(str(model)) if isinstance(model, str | Path) else error) from None
    if options.strict:
        _refuse_opaque(graph, typing)
    library = select_rules(options, {n.operator.name for n in typing.nodes if isinstance(n, CanonicalNode)})
    sizes = default_sizes(graph, options.sizes)
    began = time.monotonic()
    with costs.for_target(
        options.target,
        progress=progress,
        sizes=sizes,
        threads=options.threads,
        time_limit=budget.measuring,
        runtime=options.runtime,
        calibrate=EFFORTS[options.effort].calibrates,
    ) as model_costs:
        budget.extend(time.monotonic() - began)
        notes = (*written, *notes, *_unknown_sizes(graph, options.sizes))
        result = run_passes(
            OptimizationTask(graph, typing, library, model_costs, options, progress, budget, sizes, notes)
        )
    return restore_calls(result, given, before, options)


def select_rules(options: Options, operators: Collection[str] = REGISTRY) -> RuleLibrary:
    """The library the options ask for. Rules of the user's own are proved, or tested exactly, before they are used.

    Args:
        options: settings.
        operators: of the model, by their records.

    Raises:
        RuleError: a rule does not parse, is false (the message holds the counterexample), or cannot be shown true.
    """
    library = chosen_rules(options, operators)
    if options.rules is None:
        return library
    from superopt.verifier.admission import admit  # here, because it loads Z3, which most runs do not need

    return admit(library)


def chosen_rules(options: Options, operators: Collection[str] = REGISTRY) -> RuleLibrary:
    """The library the options ask for, with the verdicts that are stored: nothing is proved.

    Args:
        options: settings. Where the effort uses peepholes only, and unless they enable rules by name, these are chosen,
            and rules of the user's own.
        operators: of the model, by their records.

    Raises:
        RuleError: a rule does not parse.
    """
    others = (ALGORITHMS, VALUES)
    disabled = tuple(name for name in options.disable if name not in others)
    peepholes_only = EFFORTS[options.effort].peepholes_only and not options.enable
    if peepholes_only and options.rules is None and not disabled:
        return peephole_library(operators)
    library = load_library(options.rules).select(enable=options.enable, disable=disabled, beside=others)
    if peepholes_only:
        left = load_library().rules.keys() - peephole_library(operators).rules.keys()
        library = replace(library, chosen=frozenset(library if library.chosen is None else library.chosen) - left)
    return library


def _refuse_opaque(graph: Graph, typing: InferredTypes) -> None:
    for node, known in zip(graph.nodes, typing.nodes, strict=True):
        if isinstance(known, OpaqueNode):
            raise Unsupported(
                f"{node.op} is not understood: {known.reason}",
                where=f"node {node.name!r}",
                hint="without --strict it is carried through untouched",
            )


def _unknown_sizes(graph: Graph, sizes: Mapping[str, int]) -> list[str]:
    """Notes on sizes that are given for dimensions which no value of the model has."""
    kinds = [t for t in graph.declared.values() if isinstance(t, TensorType)]
    known = dict.fromkeys(n for t in kinds for d in t.shape or () for n in sorted(symbols(d)))
    has = f"its symbolic ones are {printable(', '.join(known), 200)}" if known else "all of its sizes are fixed"
    return [
        f"the model has no dimension {printable(n)!r} to cost at {sizes[n]}: {has}" for n in sizes if n not in known
    ]

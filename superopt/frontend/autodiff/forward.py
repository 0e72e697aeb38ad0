"""Forward mode on graphs: tangents beside values, in topological order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from superopt.frontend.autodiff.extension import Extension, at_sizes
from superopt.frontend.autodiff.reverse import (
    _nothing,
    chosen_inputs,
    chosen_outputs,
    moving_values,
    refusal,
    site_of,
)
from superopt.ir.errors import SuperoptError
from superopt.ir.graph import Graph
from superopt.ops.derivative.expressions import Expr
from superopt.ops.derivative.modes import is_still, push

__all__ = ["jvp", "tangents"]


def jvp(
    graph: Graph,
    outputs: Sequence[str] | None = None,
    inputs: Sequence[str] | None = None,
    *,
    keep_outputs: bool = False,
    sizes: Mapping[str, int] | None = None,
) -> Graph:
    """Jacobian-vector products: how the outputs move when the inputs move along given tangents.

    Args:
        graph: any graph, loaded or built.
        outputs: names of real values; all real outputs by default.
        inputs: names of inputs or weights that move; all real inputs by default.
        keep_outputs: whether the result has the model's outputs, too, before the tangents.
        sizes: symbolic dimensions to fix first.

    Returns:
        A graph with an input ``tangent INPUT`` for each of ``inputs`` and an output ``tangent OUTPUT`` for each of
        ``outputs``, of their types.

    Raises:
        UsageError: a name is not known, or is no real tensor.
        NotDifferentiable: a node on the way has no derivative; names it.
    """
    extension = Extension(at_sizes(graph, sizes or {}))
    of, to = chosen_outputs(extension, outputs), chosen_inputs(extension, inputs)
    moved = tangents(
        extension, {name: extension.input(f"tangent {name}", extension.expr(name).type) for name in to}, of
    )
    kept = tuple(extension.graph.outputs) if keep_outputs else ()
    return extension.result((*kept, *(extension.named(moved[name], f"tangent {name}", "tangent") for name in of)))


def tangents(extension: Extension, given: Mapping[str, Expr], outputs: Sequence[str]) -> dict[str, Expr]:
    """The tangent of each output, emitted.

    Args:
        extension: the graph, which grows.
        given: tangents of values.
        outputs: values whose tangents are wanted.

    Raises:
        NotDifferentiable: a node on the way has no derivative; names it.
    """
    found: dict[str, Expr] = dict(given)
    moving = moving_values(extension, list(given))
    needed = _needed(extension, outputs)
    for step in extension.steps:
        if needed.isdisjoint(step.node.outputs) or not found.keys() & set(step.node.reads):
            continue
        site = site_of(extension, step, moving & found.keys())
        if not site.wanted or is_still(site):
            continue
        names = [None if a is None else str(a.term) for a in site.args]
        moved = [found.get(n) if n is not None and p in site.wanted else None for p, n in enumerate(names)]
        try:
            for name, part in zip(step.node.outputs, push(site, moved), strict=False):
                if part is not None and name:
                    found[name] = extension.emit(part, "tangent")
        except SuperoptError as reason:
            raise refusal(step, reason) from None
    return {name: found.get(name) or _nothing(extension, name) for name in outputs}


def _needed(extension: Extension, outputs: Sequence[str]) -> set[str]:
    """Values that the outputs depend on."""
    needed = set(outputs)
    for step in reversed(extension.steps):
        if not needed.isdisjoint(step.node.outputs):
            needed.update(step.node.reads)
    return needed

"""Reverse mode on graphs: partial adjoints summed, in reverse topological order. The result is a graph again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from superopt.frontend.autodiff.graph_extension import GraphExtension, NodeExpression, at_sizes
from superopt.ir.errors import SuperoptError, UsageError, printable
from superopt.ir.graph import Graph, Node, Value, Weight, label
from superopt.ir.types import TensorType
from superopt.ops.derivative.pullback_pushforward import is_still, pull
from superopt.ops.derivative.typed_terms import (
    DifferentiationSite,
    NotDifferentiable,
    TypedTerm,
    added,
    apply,
    constant,
)
from superopt.ops.shape_inference import CanonicalNode, OpaqueNode

__all__ = ["adjoints", "chosen_inputs", "chosen_outputs", "gradients", "moving_values", "site_of", "vjp"]

NO_WAY = "differentiate a part of the model without it, or replace it by operators that superopt knows"


def gradients(
    graph: Graph,
    outputs: Sequence[str] | None = None,
    inputs: Sequence[str] | None = None,
    *,
    keep_outputs: bool = False,
    sizes: Mapping[str, int] | None = None,
) -> Graph:
    """The gradient of the sum of all elements of the outputs with respect to inputs, as a graph of ONNX operators.

    Args:
        graph: any graph, loaded or built.
        outputs: names of real values; all real outputs by default. One with several elements counts as their sum.
        inputs: names of inputs or weights; all real inputs by default.
        keep_outputs: whether the result has the model's outputs, too, before the gradients.
        sizes: symbolic dimensions to fix first.

    Returns:
        A graph with the same inputs and an output ``d OUTPUT/d INPUT`` for each of ``inputs``, of its type
        (``OUTPUT`` is ``sum`` where there are several). It can be differentiated again.

    Raises:
        UsageError: a name is not known, or is no real tensor.
        NotDifferentiable: a node on the way has no derivative; names it.

    >>> import numpy as np
    >>> from superopt.frontend import GraphBuilder
    >>> from superopt.runtime.reference import run
    >>> b = GraphBuilder("lecture")
    >>> x1, x2 = b.input("x1", "float32", ()), b.input("x2", "float32", ())
    >>> b.output(b.op("Log", x1) + x1 * x2 - b.op("Sin", x2), "y")
    >>> found = run(gradients(b.build()), {"x1": np.float32(2), "x2": np.float32(5)})
    >>> {name: round(float(value), 4) for name, value in found.items()}
    {'d y/d x1': 5.5, 'd y/d x2': 1.7163}
    """
    extension = GraphExtension(at_sizes(graph, sizes or {}))
    of, to = chosen_outputs(extension, outputs), chosen_inputs(extension, inputs)
    seeds = {name: constant(1, extension.expr(name).dtype, extension.expr(name).shape) for name in of}
    expressions = adjoints(extension, seeds, to)
    kept_values = tuple(extension.graph.outputs) if keep_outputs else ()
    values = [extension.named(expressions[name], derivative_name(of, name)) for name in to]
    return extension.result((*kept_values, *values))


@dataclass(frozen=True)
class GradientNodes:
    """What a graph has to grow by to have gradients, and their names."""

    nodes: tuple[Node, ...]
    weights: tuple[Weight, ...]
    types: Mapping[str, TensorType | None]
    gradients: tuple[str, ...]


def seeded(graph: Graph, outputs: Sequence[str], inputs: Sequence[str]) -> GradientNodes:
    """The parts of :func:`gradients` that the graph does not have, under names that it does not use."""
    extension = GraphExtension(graph)
    of, to = chosen_outputs(extension, outputs), chosen_inputs(extension, inputs)
    seeds = {name: constant(1, extension.expr(name).dtype, extension.expr(name).shape) for name in of}
    expressions = adjoints(extension, seeds, to)
    names = tuple(str(extension.emit(expressions[name]).term) for name in to)
    fresh = {o for n in extension.nodes for o in n.outputs} | {w.name for w in extension.weights.values()}
    types = {name: extension.types.get(name) for name in fresh}
    return GradientNodes(tuple(extension.nodes), tuple(extension.weights.values()), types, names)


def vjp(
    graph: Graph,
    outputs: Sequence[str] | None = None,
    inputs: Sequence[str] | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
) -> Graph:
    """Vector-Jacobian products: as :func:`gradients`, with an input ``cotangent OUTPUT`` for each output.

    The result ``d/d INPUT`` is the sum over all elements of all outputs of the cotangent times their derivative.
    """
    extension = GraphExtension(at_sizes(graph, sizes or {}))
    of, to = chosen_outputs(extension, outputs), chosen_inputs(extension, inputs)
    seeds = {name: extension.input(f"cotangent {name}", extension.expr(name).type) for name in of}
    expressions = adjoints(extension, seeds, to)
    return extension.result([extension.named(expressions[name], f"d/d {name}") for name in to])


def derivative_name(outputs: Sequence[str], name: str) -> str:
    """The name of a gradient among the outputs."""
    return f"d {outputs[0] if len(outputs) == 1 else 'sum'}/d {name}"


def adjoints(extension: GraphExtension, seeds: Mapping[str, TypedTerm], inputs: Sequence[str]) -> dict[str, TypedTerm]:
    """The cotangent of each input, emitted.

    Args:
        extension: the graph, which grows.
        seeds: cotangents of values.
        inputs: values whose cotangents are wanted.

    Raises:
        NotDifferentiable: a node on the way has no derivative; names it.
    """
    moving = moving_values(extension, inputs)
    makers = made_for_one(extension, seeds)
    parts: dict[str, list[TypedTerm]] = {name: [seed] for name, seed in seeds.items()}
    whole: dict[str, TypedTerm] = {}

    def adjoint(name: str) -> TypedTerm | None:
        if name not in whole and name in parts:
            summed = added(parts[name])
            assert summed is not None
            whole[name] = extension.emit(summed)
        return whole.get(name)

    for step in reversed(extension.steps):
        given_expressions = [adjoint(name) for name in step.node.outputs]
        if all(g is None for g in given_expressions) or not moving.intersection(step.node.reads):
            continue
        site = site_of(extension, step, moving, makers)
        if not site.wanted or is_still(site):
            continue
        try:
            expressions = pull(site, given_expressions[: len(site.outputs())])
            for position, part in sorted(expressions.items()):
                name = str(site.arg(position).term)
                parts.setdefault(name, []).append(extension.emit(part))
        except SuperoptError as reason:
            raise refusal(step, reason) from None
    return {name: adjoint(name) or _nothing(extension, name) for name in inputs}


def _nothing(extension: GraphExtension, name: str) -> TypedTerm:
    """The cotangent of what does not matter."""
    x = extension.expr(name)
    return constant(0, x.dtype, x.shape) if x.type.is_static else apply("Sub", x, x)


def refusal(step: NodeExpression, reason: SuperoptError) -> NotDifferentiable:
    """Why a node cannot be differentiated, with its name and what to do."""
    return NotDifferentiable(reason.what, where=label(step.node), hint=reason.hint or NO_WAY)


def made_for_one(extension: GraphExtension, seeds: Collection[str]) -> dict[str, NodeExpression]:
    """Values that one node reads, once, and that get no other cotangent: with the nodes that make them."""
    reads = Counter(name for step in extension.steps for name in step.node.reads)
    return {
        step.node.outputs[0]: step
        for step in extension.steps
        if isinstance(step.applied, CanonicalNode) and len(step.node.outputs) == 1
        and reads[step.node.outputs[0]] == 1 and step.node.outputs[0] not in seeds
    }  # fmt: skip


def site_of(
    extension: GraphExtension,
    step: NodeExpression,
    moving: set[str],
    makers: Mapping[str, NodeExpression] = MappingProxyType({}),
) -> DifferentiationSite:
    """A node as a site of differentiation.

    Args:
        extension: the graph.
        step: the node.
        moving: values that move.
        makers: of values that are made for one node alone.

    Raises:
        NotDifferentiable: it is control flow, or superopt does not know what it computes.
    """
    if not isinstance(step.applied, CanonicalNode):
        control = step.node.captures or step.node.op in ("If", "Loop", "Scan")
        why = "control flow has no derivative here" if control else step.applied.reason
        raise NotDifferentiable(why, where=label(step.node), hint=NO_WAY)
    args = extension.operands(step.applied)
    names = step.applied.args
    wanted = frozenset(p for p, a in enumerate(args) if a is not None and a.dtype.is_float and names[p] in moving)
    beside = {p: site_of(extension, makers[n], moving) for p, n in enumerate(names) if n is not None and n in makers}
    return DifferentiationSite(step.applied.operator.name, args, step.applied.attributes, wanted, beside)


def moving_values(extension: GraphExtension, inputs: Sequence[str]) -> set[str]:
    """Values that depend on inputs: reals, and whatever a node makes of them of which nothing is known.

    What a known operator gives as an integer does not move.
    """
    moving = set(inputs)
    for step in extension.steps:
        if moving.intersection(step.node.reads):
            for name in step.node.outputs:
                kind = extension.types.get(name)
                if kind is None or kind.dtype.is_float or isinstance(step.applied, OpaqueNode):
                    moving.add(name)
    return moving


def chosen_outputs(extension: GraphExtension, names: Sequence[str] | None) -> tuple[str, ...]:
    """The values to differentiate; all real outputs by default.

    Raises:
        UsageError: a name is not known or no real tensor, or there is none.
    """
    if names is None:
        names = [v.name for v in extension.graph.outputs if real(extension, v)]
    return _checked(extension, names, "output", [v.name for v in extension.graph.outputs])


def chosen_inputs(extension: GraphExtension, names: Sequence[str] | None) -> tuple[str, ...]:
    """The values to differentiate with respect to; all real inputs by default.

    Raises:
        UsageError: a name is not known or no real tensor, or there is none.
    """
    if names is None:
        fixed = {w.name for w in extension.graph.weights}
        names = [v.name for v in extension.graph.inputs if real(extension, v) and v.name not in fixed]
    return _checked(extension, names, "input", [v.name for v in extension.graph.inputs])


def real(extension: GraphExtension, value: Value) -> bool:
    kind = extension.types.get(value.name)
    return kind is not None and kind.dtype.is_float


def _checked(extension: GraphExtension, names: Sequence[str], what: str, there: Sequence[str]) -> tuple[str, ...]:
    listing = ", ".join(printable(n, 40) for n in there[:12])
    if not names:
        raise UsageError(f"the model has no real {what}", hint=f"its {what}s: {listing}")
    for name in names:
        kind = extension.types.get(name)
        if kind is None:
            raise UsageError(f"no value is named {printable(name)!r}", hint=f"{what}s: {listing}")
        if not kind.dtype.is_float:
            raise UsageError(f"{printable(name)!r} is {kind}, which has no derivative", hint=f"{what}s: {listing}")
    return tuple(names)

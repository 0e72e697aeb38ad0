"""Forward mode on graphs, and what it makes with reverse mode: second order, linear parts, a joint backward pass.

Tangents are computed beside values, in topological order. :func:`modes` says which mode is cheaper. :func:`joint` makes
a model and its backward pass two graphs; the second gets from the first what both need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from superopt.frontend.autodiff.graph_extension import GraphExtension, at_sizes
from superopt.frontend.autodiff.reverse_mode import (
    _nothing,
    adjoints,
    chosen_inputs,
    chosen_outputs,
    derivative_name,
    moving_values,
    refusal,
    site_of,
    vjp,
)
from superopt.ir.errors import SuperoptError, UsageError
from superopt.ir.graph import Graph, Node, Value, constant
from superopt.ir.types import TensorType
from superopt.ops.derivative.pullback_pushforward import is_still, push
from superopt.ops.derivative.typed_terms import TypedTerm
from superopt.ops.derivative.typed_terms import constant as number
from superopt.ops.flops_and_bytes import arithmetic
from superopt.ops.shape_inference import infer
from superopt.runtime.reference import run

__all__ = [
    "ForwardBackwardGraphs",
    "JacobianModeCosts",
    "hessian_vector",
    "joint",
    "jvp",
    "linearize",
    "modes",
    "tangents",
]


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
    extension = GraphExtension(at_sizes(graph, sizes or {}))
    of, to = chosen_outputs(extension, outputs), chosen_inputs(extension, inputs)
    moved = tangents(
        extension, {name: extension.input(f"tangent {name}", extension.expr(name).type) for name in to}, of
    )
    kept_values = tuple(extension.graph.outputs) if keep_outputs else ()
    return extension.result(
        (*kept_values, *(extension.named(moved[name], f"tangent {name}", "tangent") for name in of))
    )


def tangents(extension: GraphExtension, given: Mapping[str, TypedTerm], outputs: Sequence[str]) -> dict[str, TypedTerm]:
    """The tangent of each output, emitted.

    Args:
        extension: the graph, which grows.
        given: tangents of values.
        outputs: values whose tangents are wanted.

    Raises:
        NotDifferentiable: a node on the way has no derivative; names it.
    """
    expressions: dict[str, TypedTerm] = dict(given)
    moving = moving_values(extension, list(given))
    needed = _needed(extension, outputs)
    for step in extension.steps:
        if needed.isdisjoint(step.node.outputs) or not expressions.keys() & set(step.node.reads):
            continue
        site = site_of(extension, step, moving & expressions.keys())
        if not site.wanted or is_still(site):
            continue
        names = [None if a is None else str(a.term) for a in site.args]
        moved = [expressions.get(n) if n is not None and p in site.wanted else None for p, n in enumerate(names)]
        try:
            for name, part in zip(step.node.outputs, push(site, moved), strict=False):
                if part is not None and name:
                    expressions[name] = extension.emit(part, "tangent")
        except SuperoptError as reason:
            raise refusal(step, reason) from None
    return {name: expressions.get(name) or _nothing(extension, name) for name in outputs}


def _needed(extension: GraphExtension, outputs: Sequence[str]) -> set[str]:
    """Values that the outputs depend on."""
    needed = set(outputs)
    for step in reversed(extension.steps):
        if not needed.isdisjoint(step.node.outputs):
            needed.update(step.node.reads)
    return needed


def hessian_vector(
    graph: Graph,
    output: str | None = None,
    inputs: Sequence[str] | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
) -> Graph:
    """The Hessian of an output times a vector: forward mode over reverse mode.

    Args:
        graph: any graph.
        output: the function; the only real output by default. Several elements count as their sum.
        inputs: names of inputs or weights; all real inputs by default.
        sizes: symbolic dimensions to fix first.

    Returns:
        A graph with an input ``tangent INPUT`` for each (the vector) and an output ``H tangent INPUT`` for each.
    """
    extension = GraphExtension(at_sizes(graph, sizes or {}))
    of = chosen_outputs(extension, None if output is None else [output])
    if len(of) != 1:
        raise UsageError(f"a Hessian is of one output; the model has {', '.join(of)}", hint="name one")
    to = chosen_inputs(extension, inputs)
    y = extension.expr(of[0])
    expressions = adjoints(extension, {of[0]: number(1, y.dtype, y.shape)}, to)
    first = extension.result([extension.named(expressions[name], derivative_name(of, name)) for name in to])
    second = jvp(first, None, to)
    names = {f"tangent {derivative_name(of, name)}": f"H tangent {name}" for name in to}
    return _renamed(second, names)


def linearize(
    graph: Graph,
    at: Mapping[str, np.ndarray],
    outputs: Sequence[str] | None = None,
    inputs: Sequence[str] | None = None,
) -> Graph:
    """The linear part of a model at a point: a graph from tangents of inputs to tangents of outputs.

    Args:
        graph: any graph.
        at: an array for every input.
        outputs: names of real values; all real outputs by default.
        inputs: names of inputs that move; all real inputs by default.

    Returns:
        :func:`jvp` with everything that does not depend on the tangents computed, in float64, and kept as weights.
    """
    shapes = {v.name: v for v in graph.inputs}
    if missing := [name for name in shapes if name not in at and name not in graph.weight]:
        raise UsageError(f"the point has no value for {', '.join(missing)}")
    static = replace(graph, inputs=tuple(_at_point(v, at) for v in graph.inputs), values=())
    whole = jvp(static, outputs, inputs)
    free = {v.name for v in whole.inputs} - shapes.keys()
    moving = set(free)
    for node in whole.nodes:
        if moving.intersection(node.reads):
            moving.update(node.outputs)
    kept_nodes = tuple(n for n in whole.nodes if moving.intersection(n.outputs))
    read = {name for n in kept_nodes for name in n.reads} | {v.name for v in whole.outputs}
    fixed = sorted(name for name in read if name not in moving and name not in whole.constants)
    zeros = {v.name: np.zeros(*_layout(v)) for v in whole.inputs if v.name in free}
    values = run(whole, {**{k: np.asarray(v) for k, v in at.items()}, **zeros}, outputs=fixed) if fixed else {}
    types = infer(whole).types
    weights = [w for w in whole.weights if w.name in read and w.name not in values]
    for name, value in values.items():
        kind = types[name]
        weights.append(constant(name, value if kind is None else value.astype(kind.dtype.numpy)))
    inputs_left = tuple(v for v in whole.inputs if v.name in free)
    return replace(
        whole, name=f"{graph.name}, linear part", nodes=kept_nodes, weights=tuple(weights), inputs=inputs_left,
        values=(),
    ).checked()  # fmt: skip


@dataclass(frozen=True)
class JacobianModeCosts:
    """What a whole Jacobian costs in each mode, in FLOPs: passes times the work of one.

    Attributes:
        passes: number of passes by mode: input elements forward, output elements reverse.
        flops: work of one pass by mode, the forward computation included.
    """

    passes: Mapping[str, int]
    flops: Mapping[str, int]

    @property
    def total(self) -> dict[str, int]:
        """Work of the whole Jacobian by mode."""
        return {mode: self.passes[mode] * self.flops[mode] for mode in self.passes}

    @property
    def cheaper(self) -> str:
        """The mode with less work: "forward" or "reverse"."""
        total = self.total
        return "forward" if total["forward"] < total["reverse"] else "reverse"

    def __str__(self) -> str:
        parts = [
            f"{mode}: {self.passes[mode]} passes of {self.flops[mode]:,} FLOPs, {self.total[mode]:,} in all"
            for mode in ("forward", "reverse")
        ]
        return f"{'; '.join(parts)}; cheaper: {self.cheaper}"


def modes(
    graph: Graph,
    outputs: Sequence[str] | None = None,
    inputs: Sequence[str] | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
) -> JacobianModeCosts:
    """Which mode is cheaper for the whole Jacobian of outputs with respect to inputs, and by how much.

    Raises:
        UsageError: a size is not known.
    """
    fixed = at_sizes(graph, sizes or {})
    extension = GraphExtension(fixed)
    of, to = chosen_outputs(extension, outputs), chosen_inputs(extension, inputs)
    counts = {}
    for mode, names in (("forward", to), ("reverse", of)):
        elements = [extension.expr(name).type.elements for name in names]
        if not all(isinstance(e, int) for e in elements):
            raise UsageError("the work depends on sizes that are not known", hint="fix them, for example --dim N=8")
        counts[mode] = sum(e for e in elements if isinstance(e, int))
    return JacobianModeCosts(counts, {"forward": work(jvp(fixed, of, to)), "reverse": work(vjp(fixed, of, to))})


def work(graph: Graph) -> int:
    """FLOPs of a graph of known sizes."""
    return arithmetic(infer(graph))


def _at_point(value: Value, at: Mapping[str, np.ndarray]) -> Value:
    """An input with the shape that it has at the point."""
    array = at.get(value.name)
    if array is None or not isinstance(value.type, TensorType):
        return value
    return replace(value, type=TensorType(value.type.dtype, tuple(map(int, np.shape(array)))))


def _layout(value: Value) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and element type of an input of known sizes."""
    assert isinstance(value.type, TensorType)
    assert value.type.shape is not None
    return tuple(d for d in value.type.shape if isinstance(d, int)), value.type.dtype.numpy


def _renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    def new(values: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(v, v) for v in values)

    nodes = tuple(replace(n, inputs=new(n.inputs), outputs=new(n.outputs)) for n in graph.nodes)
    outputs = tuple(replace(v, name=names.get(v.name, v.name)) for v in graph.outputs)
    return replace(graph, nodes=nodes, outputs=outputs)


@dataclass(frozen=True)
class ForwardBackwardGraphs:
    """Forward and backward pass.

    Attributes:
        forward: the model, with what is kept for the backward pass among its outputs, after its own.
        kept: what that is.
        backward: from inputs of the model, what was kept, and an input ``cotangent OUTPUT`` for each output to outputs
            ``d/d INPUT``.
    """

    forward: Graph
    kept: tuple[str, ...]
    backward: Graph


def joint(graph: Graph, outputs: Sequence[str], inputs: Sequence[str]) -> ForwardBackwardGraphs:
    """Reverse mode without computing anything twice: :func:`vjp`, cut where the cotangents come in.

    Args:
        graph: the model.
        outputs: what has cotangents.
        inputs: with respect to what.

    Raises:
        NotDifferentiable: a node on the way has no derivative; names it.
    """
    whole = vjp(graph, outputs, inputs)
    given = {v.name for v in graph.inputs}
    moving = {v.name for v in whole.inputs} - given
    depends = set(given)
    for node in whole.nodes:
        moving.update(node.outputs if moving.intersection(node.reads) else ())
        depends.update(node.outputs if depends.intersection(node.reads) else ())

    def late(node: Node) -> bool:
        """It needs cotangents, or no input at all: then it is there wherever it is read."""
        return bool(moving.intersection(node.outputs)) or not depends.intersection(node.outputs)

    behind = tuple(n for n in whole.nodes if late(n))
    made = {o for n in behind for o in n.outputs}
    read = {name for n in behind for name in n.reads} | {v.name for v in whole.outputs}
    own = {o for n in graph.nodes for o in n.outputs}
    more = tuple(n for n in whole.nodes if not late(n) and not own.intersection(n.outputs))
    before = {o for n in (*graph.nodes, *more) for o in n.outputs}
    kept = tuple(sorted(read & before - made))
    wanted = {name for n in more for name in n.reads}
    constants: tuple[Node, ...] = ()
    for node in reversed(behind):  # also what is made of constants alone
        if not moving.intersection(node.outputs) and wanted.intersection(node.outputs):
            constants = (node, *constants)
            wanted.update(node.reads)
    weights = {w.name: w for w in (*whole.weights, *graph.weights)}
    forward = replace(
        graph, nodes=(*graph.nodes, *(n for n in constants if not own.intersection(n.outputs)), *more),
        weights=tuple(weights.values()),
    )  # fmt: skip
    types = infer(forward).types
    shown = {v.name for v in graph.outputs}
    forward = replace(forward, outputs=(*graph.outputs, *(Value(n, types[n]) for n in kept if n not in shown)))
    backward = replace(
        whole, nodes=behind, values=(),
        inputs=(*(v for v in whole.inputs if v.name in read), *(Value(n, types[n]) for n in kept)),
        weights=tuple(w for w in whole.weights if w.name in read),
    )  # fmt: skip
    return ForwardBackwardGraphs(_pruned(forward), kept, backward.checked())


def _pruned(graph: Graph) -> Graph:
    """Without weights that nothing reads."""
    read = {name for n in graph.nodes for name in n.reads} | {v.name for v in graph.outputs}
    return replace(graph, weights=tuple(w for w in graph.weights if w.name in read)).checked()

"""Second order and linear parts, made of the two modes; and which of the two is cheaper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from superopt.frontend.autodiff.extension import Extension, at_sizes
from superopt.frontend.autodiff.forward import jvp
from superopt.frontend.autodiff.reverse import adjoints, chosen_inputs, chosen_outputs, derivative_name, vjp
from superopt.ir.errors import UsageError
from superopt.ir.graph import Graph, Value, constant
from superopt.ir.types import TensorType
from superopt.ops.derivative.expressions import constant as number
from superopt.ops.infer import infer
from superopt.ops.work import arithmetic
from superopt.runtime.reference import run

__all__ = ["ModeReport", "hessian_vector", "linearize", "modes"]


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
    extension = Extension(at_sizes(graph, sizes or {}))
    of = chosen_outputs(extension, None if output is None else [output])
    if len(of) != 1:
        raise UsageError(f"a Hessian is of one output; the model has {', '.join(of)}", hint="name one")
    to = chosen_inputs(extension, inputs)
    y = extension.expr(of[0])
    found = adjoints(extension, {of[0]: number(1, y.dtype, y.shape)}, to)
    first = extension.result([extension.named(found[name], derivative_name(of, name)) for name in to])
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
class ModeReport:
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
) -> ModeReport:
    """Which mode is cheaper for the whole Jacobian of outputs with respect to inputs, and by how much.

    Raises:
        UsageError: a size is not known.
    """
    fixed = at_sizes(graph, sizes or {})
    extension = Extension(fixed)
    of, to = chosen_outputs(extension, outputs), chosen_inputs(extension, inputs)
    counts = {}
    for mode, names in (("forward", to), ("reverse", of)):
        elements = [extension.expr(name).type.elements for name in names]
        if not all(isinstance(e, int) for e in elements):
            raise UsageError("the work depends on sizes that are not known", hint="fix them, for example --dim N=8")
        counts[mode] = sum(e for e in elements if isinstance(e, int))
    return ModeReport(counts, {"forward": work(jvp(fixed, of, to)), "reverse": work(vjp(fixed, of, to))})


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

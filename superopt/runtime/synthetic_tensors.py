"""Data for a run of a graph that was read without data: elements of its inputs and of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from superopt.formats.weight_data import shape_of
from superopt.ir.errors import printable
from superopt.ir.graph import ArrayWeightData, Graph, Weight, constant
from superopt.ir.symbolic_size_binding import at_sizes
from superopt.ir.types import DType, OpaqueType, TensorType
from superopt.ops import REGISTRY
from superopt.ops.operator_definition import UnsupportedNodeForm
from superopt.ops.operator_semantics import ScalarCall, subexpressions
from superopt.ops.shape_inference import CanonicalNode, infer

__all__ = ["without_elements", "feeds_for", "sample", "with_values"]

_PIECEWISE = frozenset({"max", "min", "less", "select"})
_TOTAL = _PIECEWISE | {
    "add", "mul", "exp", "erf", "tanh", "sin", "cos", "atan", "floor", "ceil", "round", "abs", "sign", "equal", "not",
    "and", "or", "xor",
}  # fmt: skip


def sample(kind: TensorType, seed: int = 0, *, integer: int = 1) -> np.ndarray:
    """Elements of a static type: reals in [0.25, 1) (valid for logarithms, roots and divisors alike), integers all
    ``integer`` (1: a valid divisor; 0: a valid index even into an axis of length 1), booleans mixed.
    """
    shape = tuple(int(str(d)) for d in kind.shape or ())
    generator = np.random.default_rng(seed)
    if kind.dtype is DType.STRING:
        return np.full(shape, "a", dtype=object)
    if kind.dtype is DType.BOOL:
        return generator.random(shape) < 0.5
    if kind.dtype.is_integer:
        return np.full(shape, integer, dtype=kind.dtype.numpy)
    return (generator.random(shape, dtype=np.float32) * 0.75 + 0.25).astype(kind.dtype.numpy)


def with_values(graph: Graph) -> Graph:
    """The graph with random elements for its shape-only weights."""
    if all(w.data is not None for w in graph.weights):
        return graph
    filled = [
        w if w.data is not None else replace(constant(w.name, sample(w.type, i)), doc=w.doc)
        for i, w in enumerate(graph.weights)
    ]
    return replace(graph, weights=tuple(filled))


def without_elements(weight: Weight) -> Weight:
    """The weight with elements that take no memory, for a model file whose weights are elsewhere."""
    zero = np.zeros((), weight.type.dtype.numpy)
    return replace(weight, data=ArrayWeightData(np.broadcast_to(zero, shape_of(weight.type))))


def feeds_for(graph: Graph, sizes: Mapping[str, int] | None = None, *, integer: int = 1) -> dict[str, np.ndarray]:
    """An array for each input of the graph that no weight gives a default.

    Args:
        graph: its inputs must be tensors of known rank.
        sizes: values of symbolic dimensions; one that is not named is ``UNSPECIFIED``.
        integer: what integer inputs are filled with.

    Raises:
        UnsupportedNodeForm: an input is not a tensor of known rank.
    """
    feeds: dict[str, np.ndarray] = {}
    bent = len(graph.nodes) == 1 and _is_piecewise(graph)
    for position, value in enumerate(graph.inputs):
        if value.name in graph.weight:
            continue
        if value.type is None or isinstance(value.type, OpaqueType) or value.type.shape is None:
            unknown = "is no tensor" if isinstance(value.type, OpaqueType) else "is of unknown rank"
            raise UnsupportedNodeForm(f"the input {printable(value.name)!r} {unknown}")
        drawn = sample(at_sizes(value.type, sizes or {}), position, integer=integer)
        feeds[value.name] = _of_both_signs(drawn, position) if bent else drawn
    return feeds


def _is_piecewise(graph: Graph) -> bool:
    """Whether the one operator of a graph treats positive and negative numbers differently, and is defined for all:
    ONNX Runtime's PRelu takes ten times as long on alternating signs as on one sign."""
    (node,) = graph.nodes
    if node.domain or node.op not in REGISTRY:
        return False
    typing = infer(graph)
    found = typing.nodes[0]
    if not isinstance(found, CanonicalNode):
        return False
    kinds = [None if a is None else typing.types[a] for a in found.args]
    bodies = [c.body for c in found.operator.apply(kinds, found.attributes)[0].outputs]
    functions = {s.function for b in bodies for s in subexpressions(b) if isinstance(s, ScalarCall)}
    return not functions.isdisjoint(_PIECEWISE) and functions <= _TOTAL


def _of_both_signs(drawn: np.ndarray, seed: int) -> np.ndarray:
    if drawn.dtype.kind != "f":
        return drawn
    return np.where(np.random.default_rng(seed + 1).random(drawn.shape) < 0.5, -drawn, drawn).astype(drawn.dtype)

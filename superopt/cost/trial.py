"""Small graphs to be timed: one operator applied to data that no kernel can shortcut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from superopt.cost.measurement_request import Question
from superopt.formats.tensors import shape_of
from superopt.ir.graph import ArrayData, Graph, Node, Value, Weight, constant
from superopt.ir.poly import Poly, symbols, value_at
from superopt.ir.terms import AttributeValue
from superopt.ir.types import DType, OpaqueType, TensorType
from superopt.ops import REGISTRY
from superopt.ops.infer import Applied, infer
from superopt.ops.meaning import Call, subexpressions
from superopt.ops.record import NotCovered

__all__ = [
    "UNSPECIFIED", "application_graph", "at_sizes", "emptied", "feeds_for", "sample", "sizes_fed", "value_at_sizes",
    "with_values",
]  # fmt: skip

UNSPECIFIED = 8  # what a symbolic size is costed at when the caller does not say
_BENDING = frozenset({"max", "min", "less", "select"})
_EVERYWHERE = _BENDING | {
    "add", "mul", "exp", "erf", "tanh", "sin", "cos", "atan", "floor", "ceil", "round", "abs", "sign", "equal", "not",
    "and", "or", "xor",
}  # fmt: skip
_OPSET = 21  # what trials are written at, unless the operator is younger


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


def application_graph(question: Question) -> Graph:
    """A graph of one application: constant arguments become weights, which the runtime may pack ahead of time.

    Raises:
        NotCovered: the operator cannot be written as an ONNX node, or a type is not static.
    """
    op, attributes, arg_types, fixed = question.op, question.attributes, question.args, question.fixed
    if op not in REGISTRY:
        raise NotCovered(f"superopt has no operator {op}")
    if not all(t is None or t.is_static for t in (*arg_types, *question.outs)):
        raise NotCovered(f"the sizes of {op}'s arguments are not known")
    operator = REGISTRY[op]
    opset = max(_OPSET, operator.since)
    form = operator.write(attributes, arg_types, opset)
    given = [None if t is None else f"{'w' if fixed[i] else 'a'}{i}" for i, t in enumerate(arg_types)]
    names = form.names(given, {slot: f"c{slot}" for slot in form.literals})
    weights = [constant(f"c{slot}", array) for slot, array in form.literals.items()]
    inputs: list[Value] = []
    for item in dict.fromkeys(i for i in form.inputs if isinstance(i, int)):
        kind = arg_types[item]
        if kind is not None and fixed[item]:
            weights.append(_weight(op, item, kind))
        elif kind is not None:
            inputs.append(Value(f"a{item}", kind))
    outputs = tuple(Value(f"y{i}", t) for i, t in enumerate(question.outs))
    node = Node("trial", op, names, tuple(v.name for v in outputs), dict(form.attributes), operator.domain)
    opsets = {"": opset} if not operator.domain else {"": opset, operator.domain: 1}
    return Graph("trial", tuple(inputs), outputs, tuple(weights), (node,), opsets)


def _weight(op: str, item: int, kind: TensorType) -> Weight:
    """A constant argument; its elements are drawn when it is timed, unless they decide how long that takes."""
    if (op, item) == ("Pow", 1) and kind.dtype.is_float:
        # A square, as nearly every power in a model is one: 23 µs where ONNX Runtime takes 287 for a power of 0.7.
        return constant(f"w{item}", np.full(tuple(int(str(d)) for d in kind.shape or ()), 2, kind.dtype.numpy))
    return Weight(f"w{item}", kind, None)


def with_values(graph: Graph) -> Graph:
    """The graph with random elements for its shape-only weights."""
    if all(w.data is not None for w in graph.weights):
        return graph
    filled = [
        w if w.data is not None else replace(constant(w.name, sample(w.type, i)), doc=w.doc)
        for i, w in enumerate(graph.weights)
    ]
    return replace(graph, weights=tuple(filled))


def emptied(weight: Weight) -> Weight:
    """The weight with elements that take no memory, for a model whose file says that they lie elsewhere."""
    zero = np.zeros((), weight.type.dtype.numpy)
    return replace(weight, data=ArrayData(np.broadcast_to(zero, shape_of(weight.type))))


def feeds_for(graph: Graph, sizes: Mapping[str, int] | None = None, *, integer: int = 1) -> dict[str, np.ndarray]:
    """An array for each input of the graph that no weight gives a default.

    Args:
        graph: its inputs must be tensors of known rank.
        sizes: values of symbolic dimensions; one that is not named is ``UNSPECIFIED``.
        integer: what integer inputs are filled with.

    Raises:
        NotCovered: an input is not a tensor of known rank.
    """
    feeds: dict[str, np.ndarray] = {}
    bent = len(graph.nodes) == 1 and _bends(graph)
    for position, value in enumerate(graph.inputs):
        if value.name in graph.weight:
            continue
        if value.type is None or isinstance(value.type, OpaqueType) or value.type.shape is None:
            raise NotCovered(f"the rank of input {value.name} is not known")
        drawn = sample(at_sizes(value.type, sizes or {}), position, integer=integer)
        feeds[value.name] = _of_both_signs(drawn, position) if bent else drawn
    return feeds


def _bends(graph: Graph) -> bool:
    """Whether the one operator of a graph does one thing to numbers above 0 and another to those below, and is defined
    for all: ONNX Runtime's PRelu takes ten times as long where the two alternate as where there is one sign."""
    (node,) = graph.nodes
    if node.domain or node.op not in REGISTRY:
        return False
    typing = infer(graph)
    found = typing.nodes[0]
    if not isinstance(found, Applied):
        return False
    kinds = [None if a is None else typing.types[a] for a in found.args]
    bodies = [c.body for c in found.operator.apply(kinds, found.attributes)[0].outputs]
    functions = {s.function for b in bodies for s in subexpressions(b) if isinstance(s, Call)}
    return not functions.isdisjoint(_BENDING) and functions <= _EVERYWHERE


def _of_both_signs(drawn: np.ndarray, seed: int) -> np.ndarray:
    if drawn.dtype.kind != "f":
        return drawn
    return np.where(np.random.default_rng(seed + 1).random(drawn.shape) < 0.5, -drawn, drawn).astype(drawn.dtype)


def sizes_fed(graph: Graph, sizes: Mapping[str, int]) -> dict[str, int]:
    """What a graph's symbolic sizes are costed at, and timed: the given ones, and ``UNSPECIFIED`` for each other name
    in the types of its inputs."""
    kinds = [v.type for v in graph.inputs if isinstance(v.type, TensorType)]
    return {**{n: UNSPECIFIED for k in kinds for d in k.shape or () for n in sorted(symbols(d))}, **sizes}


def at_sizes(kind: TensorType, sizes: Mapping[str, int]) -> TensorType:
    """The type with its symbolic dimensions made numbers; a size that is not given is ``UNSPECIFIED``."""
    if kind.is_static or kind.shape is None:
        return kind
    names = {n for d in kind.shape for n in symbols(d)}
    binding = {n: sizes.get(n, UNSPECIFIED) for n in names}
    return TensorType(kind.dtype, tuple(max(value_at(d, binding), 0) for d in kind.shape))


def value_at_sizes(value: AttributeValue, sizes: Mapping[str, int]) -> AttributeValue:
    """The attribute with its symbolic sizes made numbers, as :func:`at_sizes` does."""
    if isinstance(value, tuple):
        return tuple(value_at_sizes(v, sizes) for v in value)
    if isinstance(value, Poly):
        return value_at(value, {n: sizes.get(n, UNSPECIFIED) for n in symbols(value)})
    return value

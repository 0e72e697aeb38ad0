"""ONNX Runtime's fused operators as the ONNX nodes that they stand for: their meaning over the reals.

ONNX Runtime writes them into the models that it optimises (domain ``com.microsoft``, documented in its
``ContribOperators.md``), and its normalisations appear in ONNX's own domain at opsets without them. An operator that is
not listed here, or is used in another form than its entry describes, stays an opaque node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from superopt.ir.graph import Attribute, Graph, Node, Weight, constant
from superopt.ir.types import TensorType
from superopt.ops.shape_inference import infer

__all__ = ["FUSED", "bodies_of", "unfused"]

_CUBIC = 0.044715  # of the tanh approximation of Gelu (Hendrycks and Gimpel, arXiv:1606.08415)


_SIXTH = float(np.float32(1 / 6))


class _Other(Exception):
    """This use of a fused operator has no entry."""


@dataclass
class _Parts:
    """The nodes that take a fused node's place: they make its outputs under their names."""

    node: Node
    types: tuple[TensorType | None, ...]  # of the node's inputs
    opset: int
    nodes: list[Node] = field(default_factory=list)
    weights: list[Weight] = field(default_factory=list)

    def input(self, place: int) -> str:
        """An input's name, "" where it is absent."""
        return self.node.inputs[place] if place < len(self.node.inputs) else ""

    def output(self, place: int) -> str:
        return self.node.outputs[place] if place < len(self.node.outputs) else ""

    def real(self, name: str, default: float | None = None) -> float:
        value = self.node.attributes.get(name, default)
        if not isinstance(value, int | float):
            raise _Other
        return float(value)

    def integer(self, name: str, default: int) -> int:
        value = self.node.attributes.get(name, default)
        if not isinstance(value, int):
            raise _Other
        return value

    def without(self, *names: str) -> dict[str, Attribute]:
        return {k: v for k, v in self.node.attributes.items() if k not in names}

    def rank(self, place: int) -> int:
        kind = self.types[place] if place < len(self.types) else None
        if kind is None or kind.shape is None:
            raise _Other
        return len(kind.shape)

    def op(
        self, op: str, *inputs: str, to: str = "", given: Mapping[str, Attribute] | None = None, **attributes: Attribute
    ) -> str:
        """A node; its output is ``to``, or a name of its own. ``given`` are further attributes."""
        base = next(o for o in self.node.outputs if o)
        output = to or f"{base}/fused{len(self.nodes)}"
        self.nodes.append(Node(f"{output}/{op}", op, tuple(inputs), (output,), {**(given or {}), **attributes}))
        return output

    def number(self, value: float) -> str:
        """A scalar of the first input's element type."""
        kind = self.types[0]
        if kind is None:
            raise _Other
        base = next(o for o in self.node.outputs if o)
        name = f"{base}/number{len(self.weights)}"
        self.weights.append(constant(name, np.asarray(value, dtype=kind.dtype.numpy)))
        return name

    def axes(self, op: str, x: str, axes: tuple[int, ...]) -> str:
        """A reduction that keeps its axes: an attribute before opset 18, an input from there on."""
        if self.opset < 18:
            return self.op(op, x, axes=axes, keepdims=1)
        name = f"{x}/axes{len(self.weights)}"
        self.weights.append(constant(name, np.array(axes, dtype=np.int64)))
        return self.op(op, x, name, keepdims=1)

    def activate(self, x: str, name: bytes, parameters: tuple[float, ...]) -> None:
        """What is applied to the sum of a FusedConv or FusedGemm makes the node's first output."""
        to = self.output(0)
        if name in (b"Relu", b"Tanh", b"Sigmoid") and self.opset >= 6:
            self.op(name.decode(), x, to=to)
        elif name == b"LeakyRelu" and self.opset >= 6:
            self.op("LeakyRelu", x, to=to, alpha=parameters[0] if parameters else float(np.float32(0.01)))
        elif name == b"HardSigmoid" and len(parameters) > 1 and self.opset >= 6:
            self.op("HardSigmoid", x, to=to, alpha=parameters[0], beta=parameters[1])
        elif name == b"Clip" and len(parameters) > 1 and self.opset >= 11:
            self.op("Clip", x, self.number(parameters[0]), self.number(parameters[1]), to=to)
        else:
            raise _Other


def _activation(parts: _Parts) -> bytes:
    found = parts.node.attributes.get("activation", b"")
    if not isinstance(found, bytes):
        raise _Other
    return found


def _conv(parts: _Parts) -> None:
    """``activation(Conv(X, W, B) + Z)``."""
    given = parts.node.attributes.get("activation_params", ())
    if not isinstance(given, tuple) or any(not isinstance(p, int | float) for p in given):
        raise _Other
    reads = list(parts.node.inputs[:3])
    while reads and not reads[-1]:
        reads.pop()
    made = parts.op("Conv", *reads, given=parts.without("activation", "activation_params"))
    if parts.input(3):
        made = parts.op("Add", made, parts.input(3))
    parts.activate(made, _activation(parts), tuple(float(p) for p in given))


def _gemm(parts: _Parts) -> None:
    """``activation(Gemm(A, B, C))``."""
    named = ("activation_alpha", "activation_beta", "activation_gamma")
    parameters = tuple(parts.real(n) for n in named if n in parts.node.attributes)
    made = parts.op("Gemm", *parts.node.inputs, given=parts.without("activation", *named))
    parts.activate(made, _activation(parts), parameters)


def _matmul(parts: _Parts) -> None:
    """``alpha · A B``, the last two axes of either exchanged where asked."""
    if parts.integer("transBatchA", 0) or parts.integer("transBatchB", 0):
        raise _Other
    names = []
    for position, attribute in enumerate(("transA", "transB")):
        name = parts.input(position)
        if parts.integer(attribute, 0) and (rank := parts.rank(position)) > 1:
            name = parts.op("Transpose", name, perm=(*range(rank - 2), rank - 1, rank - 2))
        names.append(name)
    alpha = parts.real("alpha", 1.0)
    made = parts.op("MatMul", *names, to=parts.output(0) if alpha == 1.0 else "")
    if alpha != 1.0:
        parts.op("Mul", made, parts.number(alpha), to=parts.output(0))


def _gelu(parts: _Parts) -> None:
    """``x Φ(x)`` of ``x = X + bias``: ``0.5 x (1 + erf(x / √2))``."""
    x = parts.op("Add", parts.input(0), parts.input(1)) if parts.input(1) else parts.input(0)
    inner = parts.op("Erf", parts.op("Div", x, parts.op("Sqrt", parts.number(2.0))))
    half = parts.op("Mul", x, parts.number(0.5))
    parts.op("Mul", half, parts.op("Add", inner, parts.number(1.0)), to=parts.output(0))


def _fast_gelu(parts: _Parts) -> None:
    """``0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³)))`` of ``x = X + bias``; π from arctan."""
    x = parts.op("Add", parts.input(0), parts.input(1)) if parts.input(1) else parts.input(0)
    quarter = parts.op("Atan", parts.number(1.0))
    scale = parts.op("Sqrt", parts.op("Reciprocal", parts.op("Mul", parts.number(2.0), quarter)))
    cube = parts.op("Mul", parts.op("Mul", x, x), x)
    inner = parts.op("Add", x, parts.op("Mul", cube, parts.number(_CUBIC)))
    curve = parts.op("Tanh", parts.op("Mul", inner, scale))
    half = parts.op("Mul", x, parts.number(0.5))
    parts.op("Mul", half, parts.op("Add", curve, parts.number(1.0)), to=parts.output(0))


def _quick_gelu(parts: _Parts) -> None:
    """``x σ(alpha x)``."""
    alpha = parts.real("alpha", float(np.float32(1.702)))
    x = parts.input(0)
    scaled = x if alpha == 1.0 else parts.op("Mul", x, parts.number(alpha))
    parts.op("Mul", x, parts.op("Sigmoid", scaled), to=parts.output(0))


def _normal(parts: _Parts, x: str, scale: str, bias: str, *, first: int, rank: int, centred: bool) -> None:
    """Layer normalisation over the axes from ``first`` on: of deviations from the mean, or of the values themselves."""
    epsilon = parts.real("epsilon", float(np.float32(1e-5)))
    axes = tuple(range(first, rank))
    deviation = parts.op("Sub", x, parts.axes("ReduceMean", x, axes)) if centred else x
    square = parts.axes("ReduceMean", parts.op("Mul", deviation, deviation), axes)
    spread = parts.op("Sqrt", parts.op("Add", square, parts.number(epsilon)))
    made = parts.op("Div", deviation, spread)
    made = parts.op("Mul", made, scale, to="" if bias else parts.output(0))
    if bias:
        parts.op("Add", made, bias, to=parts.output(0))


def _skip(parts: _Parts, *, centred: bool) -> None:
    """Normalisation over the last axis of ``input + skip + bias``, which is the fourth output."""
    scale = parts.input(2)
    beta, bias = (parts.input(3), parts.input(4)) if centred else ("", parts.input(3))
    if parts.output(1) or parts.output(2):
        raise _Other
    whole = parts.output(3)
    x = parts.op("Add", parts.input(0), parts.input(1), to="" if bias else whole)
    if bias:
        x = parts.op("Add", x, bias, to=whole)
    rank = parts.rank(0)
    _normal(parts, x, scale, beta, first=rank - 1, rank=rank, centred=centred)


def _layer(parts: _Parts, *, centred: bool) -> None:
    """A normalisation in ONNX's domain, where the opset does not have it."""
    if parts.output(1) or parts.output(2) or parts.integer("stash_type", 1) != 1:
        raise _Other
    rank, axis = parts.rank(0), parts.integer("axis", -1)
    _normal(parts, parts.input(0), parts.input(1), parts.input(2), first=axis % rank, rank=rank, centred=centred)


def _hard_swish(parts: _Parts) -> None:
    """``x · HardSigmoid(x)``, ONNX's own function body: its 1/6 is a float attribute."""
    x = parts.input(0)
    parts.op("Mul", x, parts.op("HardSigmoid", x, alpha=_SIXTH, beta=0.5), to=parts.output(0))


_OWN = ("", "ai.onnx")
_BODIES: Mapping[str, Callable[[_Parts], None]] = {"HardSwish": _hard_swish}
FUSED: Mapping[tuple[str, str], Callable[[_Parts], None]] = {
    ("com.microsoft", "FusedConv"): _conv,
    ("com.microsoft", "FusedGemm"): _gemm,
    ("com.microsoft", "FusedMatMul"): _matmul,
    ("com.microsoft", "Gelu"): _gelu,
    ("com.microsoft", "BiasGelu"): _gelu,
    ("com.microsoft", "FastGelu"): _fast_gelu,
    ("com.microsoft", "QuickGelu"): _quick_gelu,
    ("com.microsoft", "SkipLayerNormalization"): lambda p: _skip(p, centred=True),
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): lambda p: _skip(p, centred=False),
    ("", "LayerNormalization"): lambda p: _layer(p, centred=True),
    ("", "SimplifiedLayerNormalization"): lambda p: _layer(p, centred=False),
}


def bodies_of(graph: Graph) -> frozenset[str]:
    """ONNX's own operators whose function bodies ONNX Runtime wrote into the model in their place."""
    wrote = (n.op == "HardSigmoid" and n.attributes.get("alpha") == _SIXTH for n in graph.nodes)
    return frozenset({"HardSwish"}) if any(wrote) else frozenset()


def unfused(graph: Graph, bodies: frozenset[str] = frozenset()) -> Graph:
    """The model with fused operators written out; values keep their names.

    Args:
        graph: the model.
        bodies: operators of ONNX's own that are written out as their function bodies, too (:func:`bodies_of`): over the
            reals they are something else, since a float attribute does not hold 1/6.
    """
    opset = graph.onnx_version or 1
    while True:  # types behind a fused node are known once it is written out
        typing = infer(graph)
        written = [_written(n, tuple(typing.types.get(i) for i in n.inputs), opset, bodies) for n in graph.nodes]
        if not any(written):
            return graph
        nodes = [m for n, parts in zip(graph.nodes, written, strict=True) for m in (parts.nodes if parts else (n,))]
        weights = [w for parts in written if parts for w in parts.weights]
        graph = replace(graph, nodes=tuple(nodes), weights=(*graph.weights, *weights)).checked()


def _written(
    node: Node, types: tuple[TensorType | None, ...], opset: int, bodies: frozenset[str]
) -> _Parts | None:  # fmt: skip
    """The nodes that a fused node stands for; ``None`` where it is none, or its types are not known yet."""
    rule = FUSED.get(("" if node.domain in _OWN else node.domain, node.op))
    if node.op in bodies and node.domain in _OWN:
        rule = _BODIES[node.op]
    if rule is None or (node.op == "LayerNormalization" and node.domain in _OWN and opset >= 17):
        return None
    parts = _Parts(node, types, opset)
    try:
        rule(parts)
    except (_Other, IndexError):
        return None
    return parts

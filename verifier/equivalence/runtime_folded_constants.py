"""The constants that a model computes from its weights, as ONNX Runtime computes them: bit for bit, in the model's
types.

These values are the truth about a constant, whoever folded it. Over the reals a constant may differ: before a
discontinuity (``Floor`` of ``0.7 · 10``) by any amount, so there the computed value replaces the expression.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from superopt.formats.onnx_writer import to_onnx_bytes
from superopt.formats.weight_data import SparseWeightData
from superopt.ir.errors import SuperoptError
from superopt.ir.graph import ArrayWeightData, Graph, Node, OpaqueAttribute, Value, Weight, constant
from superopt.ir.types import DType, TensorType, ValueType
from superopt.ops.constants_and_shapes import attribute_array
from superopt.ops.operator_definition import UnsupportedNodeForm
from superopt.ops.shape_inference import CanonicalNode, InferredTypes, infer
from superopt.runtime.node_execution import run_node
from superopt.runtime.onnx_runtime import make_session
from superopt.runtime.onnx_runtime import run as run_session

__all__ = [
    "JUMPS",
    "RANDOM",
    "RuntimeFoldedConstants",
    "ModelConstants",
    "constants_of",
    "contents_of",
    "jumps",
    "with_folded_jumps",
    "stored",
]

RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "Multinomial", "Bernoulli", "RandomNormalLike", "RandomUniformLike"}
)
# Operators of reals that jump: rounding of an argument can change the result by any amount.
JUMPS = frozenset(
    {"ArgMax", "ArgMin", "Ceil", "DynamicQuantizeLinear", "Equal", "Floor", "Greater", "GreaterOrEqual", "Less",
     "LessOrEqual", "Mod", "NonMaxSuppression", "NonZero", "QuantizeLinear", "Round", "Sign", "TopK", "Unique"}
)  # fmt: skip
_LARGEST = 2**28  # bytes of one computed constant: larger ones stay expressions, as they do in ONNX Runtime's files
_LONGEST_RUN = 30.0  # seconds for all constants of a model


@dataclass(frozen=True)
class RuntimeFoldedConstants:
    """Constants of a model.

    Attributes:
        arrays: by name, the values of nodes that read only weights, as ONNX Runtime computes them.
    """

    arrays: Mapping[str, np.ndarray]

    def make(self, node: Node) -> bool:
        """Whether every output of a node is one of them."""
        return all(o in self.arrays for o in node.outputs if o)


@dataclass(frozen=True)
class ModelConstants:
    """The first model's constants by name: the stored ones, and those that its nodes compute from them."""

    graph: Graph
    typing: InferredTypes
    computed: RuntimeFoldedConstants

    @cached_property
    def weights(self) -> Mapping[str, Weight]:
        stored = {n: w for n, w in self.graph.constants.items() if w.data is not None}
        weights = {
            n: Weight(n, TensorType(DType.of(a.dtype), tuple(map(int, a.shape))), ArrayWeightData(a))
            for n, a in self.computed.arrays.items()
            if a.dtype.kind in "fiub"
        }
        return {**weights, **stored}

    @cached_property
    def arrays(self) -> Mapping[str, tuple[np.ndarray, DType]]:
        return {n: (np.asarray(w.data.numpy()), w.type.dtype) for n, w in self.weights.items() if w.data is not None}


def contents_of(weight: Weight) -> str:
    """A name for a weight's elements: equal exactly if type, shape and bits are."""
    data = weight.data
    if data is None:
        return f"weight {weight.type} {weight.name}"
    # All others name what they hold alike.
    held = ArrayWeightData(data.numpy()) if isinstance(data, SparseWeightData) else data
    return f"weight {weight.type} {held.digest}"


def jumps(node: Node, types: Mapping[str, ValueType | None]) -> bool:
    """Whether rounding of what a node reads can change its result by any amount, or it rounds on purpose.

    A Cast of reals does unless it widens; what compares or divides integers does not.
    """
    reads = [t for n in node.inputs[:1] if n and isinstance(t := types.get(n), TensorType)]
    if reads and not reads[0].dtype.is_float:
        return False
    if node.op in ("Cast", "CastLike"):
        made = types.get(node.outputs[0])
        if not reads or not isinstance(made, TensorType):
            return True
        return not (made.dtype.is_float and np.can_cast(reads[0].dtype.numpy, made.dtype.numpy))
    return node.op in JUMPS or any(isinstance(a, OpaqueAttribute) for a in node.attributes.values())


def constants_of(graph: Graph, typing: InferredTypes, but: frozenset[str] = frozenset()) -> RuntimeFoldedConstants:
    """The constants that a model's nodes compute; one that ONNX Runtime cannot compute is not among them.

    A node whose canonical form does without what is not constant (CastLike reads its target's type) runs in that form.

    Args:
        graph: the model.
        typing: its types.
        but: values that are not computed, nor what depends on them.
    """
    nodes: list[Node] = []
    known = {n for n, w in graph.constants.items() if w.data is not None}
    for node, form in zip(graph.nodes, typing.nodes, strict=True):
        sized = all(_small(typing.types.get(o)) for o in node.outputs if o)
        if node.op in RANDOM or not sized or but.intersection(node.outputs):
            continue
        if (
            not known.issuperset(node.reads)
            and isinstance(form, CanonicalNode)
            and known.issuperset(filter(None, form.args))
        ):
            node, literals = _written(node, form, typing, graph.opset)
            graph = replace(graph, weights=(*graph.weights, *literals))
            known.update(w.name for w in literals)
        if known.issuperset(node.reads):
            nodes.append(node)
            known.update(o for o in node.outputs if o)
    if not nodes:
        return RuntimeFoldedConstants({})
    arrays = _in_one_session(graph, typing, nodes)
    return RuntimeFoldedConstants(_one_by_one(graph, typing, nodes) if arrays is None else arrays)


def _written(
    node: Node, form: CanonicalNode, typing: InferredTypes, opset: Mapping[str, int]
) -> tuple[Node, tuple[Weight, ...]]:  # fmt: skip
    """A node in its operator's canonical form, and the literals that this has for inputs; the node if there is none."""
    record = form.operator
    kinds = [t if isinstance(t, TensorType) else None for t in (typing.types.get(a) if a else None for a in form.args)]
    try:
        node_form = record.write(dict(form.attributes), kinds, opset.get(record.domain, 1))
    except UnsupportedNodeForm:
        return node, ()
    names = {position: f"{node.outputs[0]}/{position}" for position in node_form.literals}
    inputs = node_form.names(form.args, names)
    literals = tuple(constant(names[position], array) for position, array in node_form.literals.items())
    return Node(node.name, record.name, inputs, node.outputs, dict(node_form.attributes), record.domain), literals


def _small(kind: ValueType | None) -> bool:
    return not isinstance(kind, TensorType) or kind.nbytes is None or kind.nbytes <= _LARGEST


def _in_one_session(graph: Graph, typing: InferredTypes, nodes: list[Node]) -> dict[str, np.ndarray] | None:
    """All of them in one session, with its optimisations off; ``None`` where it refuses one."""
    wanted = [o for n in nodes for o in n.outputs if o]
    read = {r for n in nodes for r in n.reads}
    types = {n: t for n, t in typing.types.items() if isinstance(t, TensorType)}
    part = replace(
        graph, inputs=(), nodes=tuple(nodes), values=(),
        outputs=tuple(Value(o, TensorType(types[o].dtype, None) if o in types else None) for o in wanted),
        weights=tuple(w for w in graph.weights if w.name in read),
    )  # fmt: skip
    try:
        return run_session(make_session(to_onnx_bytes(part), optimise=False), {}, time_limit=_LONGEST_RUN)
    except SuperoptError:
        return None


def _one_by_one(graph: Graph, typing: InferredTypes, nodes: list[Node]) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for node in nodes:
        held = {n: arrays[n] for n in node.reads if n in arrays}
        for name in node.reads:
            weight = graph.constants.get(name)
            if name not in held and weight is not None and weight.data is not None:
                held[name] = np.asarray(weight.data.numpy())
        if len(held) < len(set(node.reads)):
            continue  # one of them could not be computed
        try:
            arrays.update(run_node(graph, node, held, {**typing.types, **graph.declared}))
        except SuperoptError:
            continue
    return arrays


def stored(graph: Graph) -> Graph:
    """The model with its Constants as weights: how a number is spelled says nothing of how it was rounded."""
    given = {v.name for v in graph.outputs}
    found_weights: dict[str, Weight] = {}
    for node in graph.nodes:
        if node.op == "Constant" and not node.domain and len(node.attributes) == 1 and node.outputs[0] not in given:
            [(attribute, held)] = node.attributes.items()
            array = attribute_array(attribute, held)
            if array is not None:
                found_weights[node.outputs[0]] = constant(node.outputs[0], array)
    if not found_weights:
        return graph
    nodes = tuple(n for n in graph.nodes if n.outputs[0] not in found_weights)
    values = tuple(v for v in graph.values if v.name not in found_weights)
    return replace(graph, nodes=nodes, weights=(*graph.weights, *found_weights.values()), values=values).checked()


def with_folded_jumps(graph: Graph) -> Graph:
    """The model with constants that jump replaced by what ONNX Runtime computes; over the reals they may differ."""
    typing = infer(graph)
    if not any(jumps(n, typing.types) for n in graph.nodes):
        return graph
    constants = constants_of(graph, typing)
    folded = [n for n in graph.nodes if constants.make(n) and jumps(n, typing.types)]
    made = {o: None for n in folded for o in n.outputs if o}
    if not made:
        return graph
    weights: tuple[Weight, ...] = tuple(constant(o, constants.arrays[o]) for o in made)
    nodes = tuple(n for n in graph.nodes if n not in folded)
    values = tuple(v for v in graph.values if v.name not in made)
    return replace(graph, nodes=nodes, weights=(*graph.weights, *weights), values=values).checked()

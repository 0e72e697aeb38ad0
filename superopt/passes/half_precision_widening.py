"""Half precision computed in float32: the graph that a backend makes of operators that it has no kernel for.

A backend that has no kernel of float16 for an operator casts its operands to float32 and its result back, and leaves
out the casts between two such operators. It does so after its own look at the model, and fuses less than in a float32
model. :func:`widened` does the same in the model itself: then rules, prices and fusions are those of float32.

What an operator rounds to half precision is not rounded where the next operator reads it in float32. So a result is as
near the reals as before, or nearer; and it is finite where the original exceeds the type's range. Values are rounded
as before where an operator jumps (a comparison, a rounding), where the model rounds on purpose, and at the outputs.

:func:`narrowed` puts the weights back: in the file they are of half precision, with a cast that the backend computes
once as it loads the model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property

import ml_dtypes
import numpy as np

from superopt.cost.half_precision_support import WIDE, HalfPrecisionSupport
from superopt.formats.control_flow_bodies import all_names
from superopt.ir.graph import PASS, ArrayWeightData, Graph, Node, Weight, WeightData, unused_name
from superopt.ir.types import DType, TensorType
from superopt.ops.constants_and_shapes import weight_of
from superopt.ops.onnx_node_conversion import dtype_code
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.ops.shape_inference import CanonicalNode, InferredTypes, OpaqueNode, computed_from_weights
from superopt.program.constant_folding import FoldedWeightData
from superopt.program.graph_program import ComputedWeightData

__all__ = ["POLICY", "HalfWeightStoragePolicy", "Float32WidenedGraph", "WidenedWeightData", "narrowed", "widened"]

_PASS = {PASS: "half precision"}
_HALF = frozenset({DType.FLOAT16, DType.BFLOAT16})


@dataclass(frozen=True)
class HalfWeightStoragePolicy:
    """How weights of half precision are stored.

    Attributes:
        cast_bytes: a weight that float32 makes no larger than this is stored in float32: a cast takes as much of the
            file.
        growth: share of the model's weights by which all that are stored in float32 may exceed half precision. Computed
            weights come first, since half precision would round them.
        least: bytes by which they may in any case: as much as some nodes take of the file.
        rounding: units of the largest element's rounding by which storing a computed weight may move an element: half
            a unit of half precision, as for every weight that is computed in the type.
    """

    cast_bytes: int = 128
    growth: float = 0.005
    least: int = 4096
    rounding: float = 0.5


POLICY = HalfWeightStoragePolicy()


@dataclass(frozen=True, eq=False)
class WidenedWeightData:
    """Elements of half precision, as float32."""

    source: WeightData

    @cached_property
    def digest(self) -> str:
        """Equal for equal elements."""
        return hashlib.sha256(f"{self.source.digest} as float32".encode()).hexdigest()

    def numpy(self) -> np.ndarray:
        """The elements."""
        return np.asarray(self.source.numpy()).astype(np.float32)


@dataclass(frozen=True)
class Float32WidenedGraph:
    """A graph with operators of half precision in float32.

    Attributes:
        graph: it.
        count: how many operators are computed in float32.
    """

    graph: Graph
    count: int


def widened(
    graph: Graph,
    typing: InferredTypes,
    half: HalfPrecisionSupport,
    kept: AbstractSet[str],
    reserved: AbstractSet[str] = frozenset(),
) -> Float32WidenedGraph | None:
    """The graph with operators in float32 that the backend has no kernel of half precision for; ``None``: it has none.

    An operator with such a kernel is computed in float32, too, if both what it reads and what reads it is.

    Args:
        graph: a checked graph.
        typing: of it.
        half: what the backend has kernels for.
        kept: values that stay as they are: they are rounded on purpose, or computed in integers.
        reserved: names that nothing new may have besides the graph's: of what is around a body.
    """
    if not half.concerns(typing.types.values()):
        return None
    found = _Widening(graph, typing, half, kept, reserved)
    return found.written() if found.wide else None


class _Widening:
    """Which operators are computed in float32, and the graph with them.

    ``wide`` has the positions of the nodes; ``casts`` those of the model's own casts from or to half precision, whose
    operand and result are one value in float32.
    """

    def __init__(
        self,
        graph: Graph,
        typing: InferredTypes,
        half: HalfPrecisionSupport,
        kept: AbstractSet[str],
        reserved: AbstractSet[str],
    ) -> None:
        self.graph, self.typing, self.half, self.kept, self.reserved = graph, typing, half, kept, reserved
        self.constant = computed_from_weights(graph, typing)
        self.weights = {**graph.constants, **self._written_constants()}
        able = [i for i, n in enumerate(graph.nodes) if self._able(n, typing.nodes[i])]
        self.casts = {i for i in able if graph.nodes[i].op == "Cast"}
        needs = {i for i in able if i not in self.casts and graph.nodes[i].op not in half.kernels}
        self.wide = self._chosen(set(able), needs)

    def _written_constants(self) -> Mapping[str, Weight]:
        made = (weight_of(n) for n in self.graph.nodes if n.op == "Constant")
        return {w.name: w for w in made if w is not None}

    def _is_half(self, name: str) -> bool:
        kind = self.typing.types.get(name)
        return bool(name) and kind is not None and kind.dtype in self.half.types

    def _able(self, node: Node, found: CanonicalNode | OpaqueNode) -> bool:
        """Whether a node may be computed in float32: its meaning does not jump, and its type rule takes float32."""
        if (
            not isinstance(found, CanonicalNode)
            or node.captures
            or not any(map(self._is_half, (*node.reads, *node.outputs)))
        ):
            return False
        outputs = [o for o in node.outputs if o]
        if not self.kept.isdisjoint(outputs) or not self.constant.isdisjoint(outputs):
            return False
        if node.op == "Cast":
            kinds = {self.typing.types[n] for n in (node.inputs[0], outputs[0])}
            return {k.dtype for k in kinds if k is not None} in [{WIDE, t} for t in self.half.types]
        if not all(map(self._is_half, outputs)) or not any(map(self._is_half, node.inputs)):
            return False
        types = [None if a is None else self.typing.types[a] for a in found.args]
        if any(a is not None and t is None for a, t in zip(found.args, types, strict=True)):
            return False
        try:
            jumps = found.operator.rounding(types, found.attributes).jumps
            _, made = found.operator.apply([t and self._as_wide(t) for t in types], found.attributes)
        except IllTypedOperator:
            return False
        return not jumps and all(kind.dtype == WIDE for kind in made)

    def _as_wide(self, kind: TensorType) -> TensorType:
        return replace(kind, dtype=WIDE) if kind.dtype in self.half.types else kind

    def _chosen(self, able: set[int], needs: set[int]) -> set[int]:
        """The operators that need float32, and the others that stand between such."""
        nodes, others = self.graph.nodes, able - needs
        while True:
            wide = needs | others
            made = {o for i in wide for o in nodes[i].outputs if o}
            read = {n for i in wide for n in nodes[i].inputs if n}
            left = {i for i in others if self._between(nodes[i], made, read)}
            if left == others:
                return wide if needs else set()
            others = left

    def _between(self, node: Node, made: AbstractSet[str], read: AbstractSet[str]) -> bool:
        """Whether operators in float32 make what a node reads, and read what it makes."""
        moving = [n for n in node.inputs if self._is_half(n) and n not in self.weights and n not in self.constant]
        before = bool(moving) and all(n in made for n in moving)
        after = any(o in read for o in node.outputs)
        if node.op != "Cast":
            return before and after
        return before if self._is_half(node.inputs[0]) else after

    # -- the graph ---------------------------------------------------------------------------------------------------

    def written(self) -> Float32WidenedGraph:
        nodes, outputs = self.graph.nodes, {v.name for v in self.graph.outputs}
        narrow = {n for i, node in enumerate(nodes) if i not in self.wide for n in node.reads} | outputs
        narrow |= {n for node in nodes for n in node.captures}
        read = {n for i in sorted(self.wide) for n in nodes[i].inputs if self._is_half(n)}
        taken = {*all_names(self.graph), *self.reserved}
        alias: dict[str, str] = {}  # value of half precision → the same in float32
        copies: dict[str, str] = {}  # result of a cast of the model's own to float32 → what was cast, in float32
        weights: list[Weight] = []
        for name in sorted(read & self.weights.keys()):
            own = name not in narrow
            weight, wide = self.weights[name], name if own else unused_name(f"{name}_float32", taken)
            alias[name] = wide
            data = None if weight.data is None else WidenedWeightData(weight.data)
            weights.append(replace(weight, name=wide, type=self._as_wide(weight.type), data=data))
        made: list[Node] = [self._cast(v.name, alias, taken) for v in self.graph.inputs if v.name in read]
        held = outputs | {n for node in nodes for n in node.captures}
        for i, found in enumerate(nodes):
            node = found if copies.keys().isdisjoint(found.inputs) else _reading(found, copies)
            if i in self.casts & self.wide:
                made += self._without_cast(node, alias, copies, narrow, held)
            elif i in self.wide:
                made += self._in_float32(node, alias, narrow, taken)
            elif not (node.op == "Constant" and node.outputs[0] in alias and node.outputs[0] not in narrow):
                made.append(node)
                made += [self._cast(o, alias, taken) for o in node.outputs if o in read and o not in alias]
        known = {o for node in made for o in node.outputs}
        fed = {v.name for v in self.graph.inputs}
        gone = {n for n in alias if n not in narrow and n not in fed}
        kept = [w for w in self.graph.weights if w.name not in gone]
        values = tuple(v for v in self.graph.values if v.name in known and v.name not in alias.values())
        result = replace(self.graph, nodes=tuple(made), weights=(*kept, *weights), values=values).checked()
        return Float32WidenedGraph(result, len(self.wide - self.casts))

    def _cast(self, name: str, alias: dict[str, str], taken: set[str]) -> Node:
        """The cast of a value to float32."""
        alias[name] = unused_name(f"{name}_float32", taken)
        return _cast_node(f"{alias[name]}_Cast", name, alias[name], WIDE)

    def _rounded(self, name: str, wide: str) -> Node:
        """The cast of a value back to its type."""
        kind = self.typing.types[name]
        assert kind is not None, "what is computed in float32 has a known type"
        return _cast_node(f"{name}_Cast", wide, name, kind.dtype)

    def _in_float32(self, node: Node, alias: dict[str, str], narrow: AbstractSet[str], taken: set[str]) -> list[Node]:
        for name in filter(None, node.outputs):
            alias[name] = unused_name(f"{name}_float32", taken)
        outputs = tuple(alias[o] if o else o for o in node.outputs)
        wide = replace(node, inputs=tuple(alias.get(n, n) for n in node.inputs), outputs=outputs)
        return [wide, *(self._rounded(o, alias[o]) for o in node.outputs if o in narrow)]

    def _without_cast(
        self, node: Node, alias: dict[str, str], copies: dict[str, str], narrow: AbstractSet[str],
        held: AbstractSet[str],
    ) -> list[Node]:  # fmt: skip
        """A cast of the model's own, where its operand and its result are one value in float32."""
        source, result = node.inputs[0], node.outputs[0]
        wide = alias.get(source, source)
        if self._is_half(result):
            alias[result] = wide
            return [node] if result in narrow else []
        if result in held:
            return [Node(node.name, "Identity", (wide,), (result,), metadata=node.metadata)]
        copies[result] = wide
        return []


# -- weights -------------------------------------------------------------------------------------------------------


def narrowed(graph: Graph, original: Graph, reserved: AbstractSet[str] = frozenset()) -> Graph:
    """The graph with weights of half precision behind casts, as far as it was widened from such.

    Args:
        graph: what a search made of the widened graph.
        original: what was widened.
        reserved: names that nothing new may have.
    """
    stored = {id(w.data): w for w in original.constants.values() if w.data is not None}
    types = {w.type.dtype for w in original.weights if w.type.dtype in _HALF} | _constant_types(original)
    if not types:
        return graph
    kept = {w.name for w in original.weights}
    new = [w for w in graph.constants.values() if w.data is not None and w.type.dtype == WIDE]
    own = {id(w) for w in original.weights}
    chosen = _narrow_weights([w for w in new if id(w) not in own], types, original.weight_bytes)
    hollow = (original.constants.get(w.name) for w in graph.constants.values() if w.data is None)
    chosen.update((w.name, w) for w in hollow if w is not None and w.type.dtype in _HALF)
    if not chosen:
        return graph
    outputs = {v.name for v in graph.outputs}
    taken, alias, casts = {*all_names(graph), *kept, *reserved}, dict[str, str](), list[Node]()
    weights: dict[str, Weight] = {}
    for weight in graph.weights:
        small = chosen.get(weight.name)
        if small is None or weight.name in outputs:
            weights[weight.name] = _materialized(weight)
            continue
        before = stored.get(id(weight.data.source)) if isinstance(weight.data, WidenedWeightData) else None
        small = before if before is not None else small
        alias[weight.name] = cast = unused_name(f"{weight.name}_float32", taken)
        weights.setdefault(small.name, small)
        casts.append(_cast_node(f"{cast}_Cast", small.name, cast, WIDE))
    nodes = (n if alias.keys().isdisjoint(n.inputs) else _reading(n, alias) for n in graph.nodes)
    return replace(graph, weights=tuple(weights.values()), nodes=(*casts, *nodes)).checked()


def _constant_types(graph: Graph) -> set[DType]:
    made = (weight_of(n) for n in graph.nodes if n.op == "Constant")
    return {w.type.dtype for w in made if w is not None and w.type.dtype in _HALF}


def _cast_node(name: str, source: str, result: str, dtype: DType) -> Node:
    return Node(name, "Cast", (source,), (result,), {"to": dtype_code(dtype.value)}, metadata=_PASS)


def _reading(node: Node, alias: Mapping[str, str]) -> Node:
    return replace(node, inputs=tuple(alias.get(n, n) for n in node.inputs))


def _materialized(weight: Weight) -> Weight:
    """A weight that stays in float32, with its elements at hand."""
    if not isinstance(weight.data, WidenedWeightData):
        return weight
    return replace(weight, data=ArrayWeightData(weight.data.numpy()))


def _narrow_weights(weights: Sequence[Weight], types: AbstractSet[DType], total: int) -> dict[str, Weight]:
    """The weights that are stored in half precision: all but small ones, and those whose elements it does not hold."""
    room = max(POLICY.least, POLICY.growth * total)
    found: dict[str, Weight] = {}
    for weight in sorted(weights, key=lambda w: (isinstance(w.data, WidenedWeightData), w.type.nbytes or 0, w.name)):
        size = weight.type.nbytes or 0
        room -= size / 2
        if size <= POLICY.cast_bytes or room >= 0:
            continue
        small = next((s for t in sorted(types) if (s := _stored(weight, t)) is not None), None)
        if small is not None:
            found[weight.name] = small
            room += size / 2
    return found


def _stored(weight: Weight, dtype: DType) -> Weight | None:
    """A weight in half precision; ``None`` where that moves an element by more than the type's own rounding of the
    largest."""
    assert weight.data is not None, "only weights with elements are stored"
    kind = replace(weight.type, dtype=dtype)
    if not _of_half(weight.data):
        return None
    if isinstance(weight.data, WidenedWeightData):
        return replace(weight, type=kind, data=weight.data.source)
    exact = weight.data.numpy()
    with np.errstate(over="ignore"):
        rounded = exact.astype(dtype.numpy)
    if not np.array_equal(np.isfinite(exact), np.isfinite(rounded)):
        return None
    moved = np.abs(np.where(np.isfinite(exact), rounded.astype(np.float32) - exact, 0.0)).max(initial=0.0)
    largest = np.abs(np.where(np.isfinite(exact), exact, 0.0)).max(initial=0.0)
    unit = float(ml_dtypes.finfo(dtype.numpy).eps)  # type: ignore[no-untyped-call]
    if moved > POLICY.rounding * unit * largest:
        return None
    data = weight.data
    if isinstance(data, FoldedWeightData):
        return replace(weight, type=kind, data=replace(data, types={**data.types, data.output: kind}))
    return replace(weight, type=kind, data=ArrayWeightData(rounded))


def _of_half(data: WeightData) -> bool:
    """Whether elements are those of weights of half precision, or computed from such alone."""
    if isinstance(data, FoldedWeightData):
        return bool(data.sources) and all(map(_of_half, data.sources.values()))
    if isinstance(data, ComputedWeightData):
        return bool(data.sources) and all(w.type.dtype in _HALF for w in data.sources.values())
    return isinstance(data, WidenedWeightData)

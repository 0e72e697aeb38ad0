"""What of a graph needs no search: equal applications become one, what sizes alone decide becomes a constant, a cast
that loses nothing is not made on the way to another, and what gives its operand back as it is goes.

None is a rewrite of what is computed, and none changes a bit: of two applications of one operator to the same values
one is enough; the integers that ``Shape``, ``Gather``, ``Concat`` … make of sizes that the model states are those that
:func:`superopt.ops.shape_inference` followed to read it; and a type that holds every number of another gives it back.
Rules speak of reals, to which all this is nothing. Runtimes do it as they load a graph (``Backend.folds_shapes``), so
that it is a gain only where the backend does not, or where sizes are open: a Reshape to sizes of which one is open
needs no ``Shape`` of anything, as it may leave that one to be inferred.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import numpy as np

from superopt.formats.weight_data import RandomWeightData, end_elements
from superopt.ir.graph import Graph, Node, Weight, attribute_key, constant, unused_name
from superopt.ir.size_polynomial import sym
from superopt.ir.types import DType
from superopt.ops.operator_definition import UnsupportedNodeForm
from superopt.ops.operator_semantics import ElementRead
from superopt.ops.reshape_and_transpose import sizes_of, symbolic_shape
from superopt.ops.shape_inference import CanonicalNode, InferredTypes, OpaqueNode

__all__ = ["CanonicalGraph", "fold_known_sizes", "canonicalized"]


# Bits of the significand, and least and greatest exponent of a number of full precision (IEEE 754; bfloat16).
_FLOATS = {
    DType.FLOAT16: (11, -14, 15), DType.BFLOAT16: (8, -126, 127), DType.FLOAT32: (24, -126, 127),
    DType.FLOAT64: (53, -1022, 1023),
}  # fmt: skip


# Kernels that compare or add up even where there is one element: a NaN or the sign of 0 may not come through.
_COMPUTING = frozenset({"pooling", "reduce", "resize", "normalisation"})


@dataclass(frozen=True)
class WeightDeduplicationPolicy:
    """Which equal weights become one.

    Attributes:
        least: bytes of a weight that is looked at: smaller ones make no difference to the file.
        sample: elements at both ends that are compared before all are read.
    """

    least: int = 1 << 16
    sample: int = 64


SHARING = WeightDeduplicationPolicy()


@dataclass(frozen=True)
class CanonicalGraph:
    """A graph without what needs not run.

    Attributes:
        graph: what is left.
        removed: positions, in the graph that it was, of the nodes that are gone.
        removed_size_nodes: those of them that every backend would have run: they followed sizes that are open, or
            copied.
    """

    graph: Graph
    removed: tuple[int, ...]
    removed_size_nodes: tuple[int, ...] = ()


def canonicalized(graph: Graph, typing: InferredTypes) -> CanonicalGraph:
    """The graph with one node for equal ones, weights for integers that depend on sizes alone, and no lossless casts
    between casts.

    Names that must go on being made are: outputs of the graph, and what barriers and their subgraphs read. What reads
    dequantised values stays, because the runtime makes one integer kernel of it.

    Args:
        graph: a checked graph.
        typing: of it.
    """
    kept = _required_names(graph, typing)
    known = dict(_known_integers(graph, typing, kept))
    shapes = _shapes(graph, typing)
    first: dict[tuple[object, ...], Node] = {}
    shared = {n: w for n, w in _equal_weights(graph).items() if n not in kept and w not in kept}
    alias: dict[str, str] = dict(shared)
    casts: dict[str, str] = {}  # what a cast makes → what it reads
    copies: list[int] = []
    nodes: dict[int, Node] = {}
    gone: list[int] = []
    for position, (old, found) in enumerate(zip(graph.nodes, typing.nodes, strict=True)):
        made = [o for o in old.outputs if o]
        if made and all(o in known for o in made):
            gone.append(position)
            continue
        node = old if alias.keys().isdisjoint(old.inputs) else _reading(old, alias)
        node = _uncast(node, casts, typing)
        if position in shapes:
            node = replace(node, inputs=(node.inputs[0], shapes[position][0]))
            known.update([shapes[position]])
        if node.op == "Cast" and isinstance(found, CanonicalNode):
            casts[node.outputs[0]] = node.inputs[0]
            if (
                typing.types[node.inputs[0]] == typing.types[node.outputs[0]]
                and node is not old
                and kept.isdisjoint(made)
            ):
                alias[node.outputs[0]] = node.inputs[0]
                gone.append(position)
                continue
        source = _copied(found, typing) if kept.isdisjoint(made) and not _reads_dequantised(graph, node) else None
        if source is not None:
            alias[made[0]] = alias.get(source, source)
            copies.append(position)
            continue
        alike = node
        if isinstance(found, CanonicalNode) and not node.captures and not _reads_dequantised(graph, node):
            alike = first.setdefault(_key(node), node)
        if alike is not node and kept.isdisjoint(made):
            alias.update((o, a) for o, a in zip(old.outputs, alike.outputs, strict=True) if o)
            gone.append(position)
        else:
            nodes[position] = node
    idle = _idle(graph, typing, nodes, kept)
    if not gone and not idle and not copies and not shared:
        return CanonicalGraph(graph, ())
    left = [node for position, node in nodes.items() if position not in idle]
    of_open = tuple(p for p in idle if graph.nodes[p].op != "Cast" or _makes_integers(graph.nodes[p], typing))
    removed = tuple(sorted({*gone, *idle, *copies}))
    return CanonicalGraph(_written(graph, left, known), removed, tuple(sorted({*of_open, *copies})))


def fold_known_sizes(graph: Graph, typing: InferredTypes) -> Graph:
    """The graph with weights for integers that depend on sizes alone, which the model states; else as it is.

    Args:
        graph: a checked graph.
        typing: of it.
    """
    known = _known_integers(graph, typing, _required_names(graph, typing))
    left = [n for n in graph.nodes if not any(n.outputs) or not all(o in known for o in n.outputs if o)]
    return _written(graph, left, known) if known else graph


def _equal_weights(graph: Graph) -> Mapping[str, str]:
    """Large weights that some exporters store twice (tied embeddings), by name: the first weight of equal elements."""
    large = [w for w in graph.constants.values() if w.data is not None and (w.type.nbytes or 0) >= SHARING.least]
    same: dict[str, str] = {}
    for of_type in _alike(large, lambda w: str(w.type)):
        for similar in _alike(of_type, _sample):
            for first, *others in _alike(similar, _digest):
                same.update((w.name, first.name) for w in others)
    return same


def _alike(weights: Iterable[Weight], key: Callable[[Weight], Hashable]) -> list[list[Weight]]:
    """The groups of several weights with equal keys."""
    groups: dict[Hashable, list[Weight]] = {}
    for weight in weights:
        groups.setdefault(key(weight), []).append(weight)
    return [g for g in groups.values() if len(g) > 1]


def _digest(weight: Weight) -> Hashable:
    assert weight.data is not None, "only weights with elements are compared"
    return weight.data.digest


def _sample(weight: Weight) -> Hashable:
    """Equal for equal elements, and cheap: elements at both ends, or how they are drawn."""
    data = weight.data
    assert data is not None, "only weights with elements are compared"
    if isinstance(data, RandomWeightData):  # drawing takes a second of processor time for BERT
        return data.seed, data.scale, data.offset, data.distribution
    return end_elements(data, SHARING.sample)


def _copied(found: CanonicalNode | OpaqueNode, typing: InferredTypes) -> str | None:
    """The operand that an application gives back as it is, by its meaning; ``None`` where it is none."""
    if isinstance(found, OpaqueNode) or found.operator.family in _COMPUTING:
        return None
    kinds = [None if a is None else typing.types[a] for a in found.args]
    meaning, results = found.operator.apply(kinds, found.attributes)
    body = meaning.outputs[0].body
    if len(results) != 1 or not isinstance(body, ElementRead) or results[0] != kinds[body.operand]:
        return None
    axes = meaning.outputs[0].axes
    in_place = all(len(axis) == 1 for axis in axes) and body.index == tuple(sym(axis[0][0]) for axis in axes)
    return found.args[body.operand] if in_place else None


def _uncast(node: Node, casts: Mapping[str, str], typing: InferredTypes) -> Node:
    """A cast of what a lossless cast made, as a cast of what that one read; from reals to reals.

    ONNX Runtime casts ``float32 → float16 → uint8`` as ``float32 → uint8``. So a cast to integers goes on reading what
    it read, and what a cast rounded goes on through the cast behind it, lest the rounding be lost.
    """
    source = casts.get(node.inputs[0]) if node.op == "Cast" and node.domain == "" and node.inputs else None
    if source is None or not _lossless(typing, source, node.inputs[0]):
        return node
    after = typing.types[node.outputs[0]]
    rounded = source in casts and not _lossless(typing, casts[source], source)
    return node if after is None or after.dtype not in _FLOATS or rounded else replace(node, inputs=(source,))


def _lossless(typing: InferredTypes, narrow: str, wide: str) -> bool:
    before, after = typing.types[narrow], typing.types[wide]
    return before is not None and after is not None and _holds(after.dtype, before.dtype)


def _holds(wide: DType, narrow: DType) -> bool:
    """Whether every number of one floating type is a number of the other."""
    if wide not in _FLOATS or narrow not in _FLOATS:
        return False
    (digits, least, most), (fewer, lowest, highest) = _FLOATS[wide], _FLOATS[narrow]
    return digits >= fewer and least - digits <= lowest - fewer and most >= highest


def _idle(graph: Graph, typing: InferredTypes, nodes: Mapping[int, Node], kept: AbstractSet[str]) -> tuple[int, ...]:
    """Operators that nothing reads any more, though something did."""
    before = {n for node in graph.nodes for n in node.reads}
    read = Counter(n for node in nodes.values() for n in node.reads)
    found: list[int] = []
    for position in sorted(nodes, reverse=True):
        node = nodes[position]
        made = [o for o in node.outputs if o]
        dead = not any(read[o] for o in made) and kept.isdisjoint(made) and any(o in before for o in made)
        if dead and not isinstance(typing.nodes[position], OpaqueNode):
            read.subtract(node.reads)
            found.append(position)
    return tuple(sorted(found))


def _makes_integers(node: Node, typing: InferredTypes) -> bool:
    kind = typing.types[node.outputs[0]]
    return kind is not None and kind.dtype.is_integer


def _shapes(graph: Graph, typing: InferredTypes) -> Mapping[int, tuple[str, np.ndarray]]:
    """Positions of Reshapes whose sizes are computed, though one open size at most needs to be: names and elements of
    the constants that they may read instead.

    An open size is copied (0) or inferred (−1). Not both: beside a size that turns out to be 0 none can be inferred.
    """
    found: dict[int, tuple[str, np.ndarray]] = {}
    taken = set(graph.names)
    for position, (node, applied) in enumerate(zip(graph.nodes, typing.nodes, strict=True)):
        if node.op != "Reshape" or not isinstance(applied, CanonicalNode) or len(node.inputs) < 2:
            continue
        asked, kind = typing.values.get(node.inputs[1]), typing.types[node.inputs[0]]
        if node.inputs[1] in graph.constants or asked is None or asked.array is not None or kind is None:
            continue
        try:
            written = symbolic_shape(sizes_of(applied.attributes["shape"], "shape"), kind.shape or ())
        except UnsupportedNodeForm:
            continue
        if 0 in written and (-1 in written or node.attributes.get("allowzero")):
            continue
        found[position] = unused_name(f"{node.outputs[0]}_shape", taken), np.array(written, dtype=np.int64)
    return found


def _required_names(graph: Graph, typing: InferredTypes) -> AbstractSet[str]:
    """Names that must go on being made."""
    barriers = (n for n, found in zip(graph.nodes, typing.nodes, strict=True) if not isinstance(found, CanonicalNode))
    captured = {n for node in graph.nodes for n in node.captures}
    return {v.name for v in graph.outputs} | captured | {n for node in barriers for n in node.inputs}


def _known_integers(graph: Graph, typing: InferredTypes, kept: AbstractSet[str]) -> Mapping[str, np.ndarray]:
    """The integers that nodes make of sizes: of what is fed to the graph they read no element."""
    fixed = set(graph.constants)
    found: dict[str, np.ndarray] = {}
    for node, applied in zip(graph.nodes, typing.nodes, strict=True):
        made = [o for o in node.outputs if o]
        if all(n in fixed for n in node.reads):
            fixed.update(made)  # of weights alone: settled as the runtime computes it
            continue
        if isinstance(applied, CanonicalNode) and typing.integers.keys() >= set(made) and kept.isdisjoint(made):
            found.update((o, typing.integers[o]) for o in made)
    return found


def _reads_dequantised(graph: Graph, node: Node) -> bool:
    makers = (graph.producer.get(n) for n in node.inputs)
    return any(maker is not None and maker.op == "DequantizeLinear" for maker in makers)


def _key(node: Node) -> tuple[object, ...]:
    attributes = tuple(sorted((k, type(v).__name__, attribute_key(v)) for k, v in node.attributes.items()))
    return node.op, node.domain, node.overload, node.inputs, attributes, tuple(map(bool, node.outputs))


def _reading(node: Node, alias: Mapping[str, str]) -> Node:
    return replace(node, inputs=tuple(alias.get(n, n) for n in node.inputs))


def _written(graph: Graph, nodes: Sequence[Node], known: Mapping[str, np.ndarray]) -> Graph:
    """The graph with these nodes, and weights for those of the known values that they read."""
    made = {o for node in nodes for o in node.outputs}
    read = {n for node in nodes for n in node.reads}
    weights: list[Weight] = [constant(name, array) for name, array in known.items() if name in read]
    values = tuple(v for v in graph.values if v.name in made)
    signature = {v.name for v in (*graph.inputs, *graph.outputs)}
    before = {n for node in graph.nodes for n in node.reads} - read - signature  # and now nothing reads it
    kept = tuple(w for w in graph.weights if w.name not in before)
    return replace(graph, nodes=tuple(nodes), weights=(*kept, *weights), values=values).checked()

"""What differs between two graphs: nodes that compute something the other graph does not.

Two nodes are the same when they apply the same operator with the same attributes to the same values, all the way
down to inputs (by name) and weights (by contents), whatever the values are called. Linear in the graphs' size.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from superopt.ir.graph import Graph, Node, Value, attribute_key
from superopt.ir.types import TensorType, ValueType

__all__ = ["GraphDiff", "changed_regions", "compare", "excerpt", "grown", "pieces", "value_digests"]


@dataclass(frozen=True)
class GraphDiff:
    """Nodes without a counterpart on the other side, and the number of nodes that have one.

    ``signature`` lists differences of inputs and outputs in words; ``same_outputs`` says which outputs are computed
    by exactly the same expression.
    """

    only_a: tuple[Node, ...]
    only_b: tuple[Node, ...]
    shared: int
    signature: tuple[str, ...]
    same_outputs: tuple[str, ...]

    @property
    def identical(self) -> bool:
        """Nothing differs but names of values and nodes."""
        return not (self.only_a or self.only_b or self.signature)


def value_digests(graph: Graph) -> dict[str, str]:
    """A digest of the expression that each value stands for. Weights without data count by name and type."""
    digests: dict[str, str] = {"": ""}
    for value in graph.inputs:
        digests[value.name] = _digest("input", value.name)
    for weight in graph.weights:
        content = weight.data.digest if weight.data is not None else f"shape-only {weight.name}"
        digests.setdefault(weight.name, _digest("weight", str(weight.type), content))
    for node in graph.nodes:
        attributes = (f"{k}={attribute_key(v)}" for k, v in sorted(node.attributes.items()))
        reads = (digests[n] for n in (*node.inputs, *node.captures))
        key = _digest(node.domain, node.op, node.overload, str(len(node.outputs)), *attributes, "|", *reads)
        for slot, output in enumerate(node.outputs):
            if output:
                digests[output] = _digest(key, str(slot))
    return digests


def compare(a: Graph, b: Graph) -> GraphDiff:
    """The difference of two graphs."""
    digests_a, digests_b = value_digests(a), value_digests(b)
    keys_a, keys_b = _node_keys(a, digests_a), _node_keys(b, digests_b)
    only_a, only_b = _unmatched(a, keys_a, keys_b), _unmatched(b, keys_b, keys_a)
    outputs_b = {v.name: digests_b[v.name] for v in b.outputs}
    same = tuple(v.name for v in a.outputs if outputs_b.get(v.name) == digests_a[v.name])
    return GraphDiff(only_a, only_b, len(a.nodes) - len(only_a), _signature(a, b), same)


def _node_keys(graph: Graph, digests: dict[str, str]) -> list[str]:
    return [next((digests[o] for o in node.outputs if o), "") for node in graph.nodes]


def _unmatched(graph: Graph, keys: list[str], others: list[str]) -> tuple[Node, ...]:
    available = Counter(others)
    found: list[Node] = []
    for node, key in zip(graph.nodes, keys, strict=True):
        if available[key] > 0:
            available[key] -= 1
        else:
            found.append(node)
    return tuple(found)


def _signature(a: Graph, b: Graph) -> tuple[str, ...]:
    lines: list[str] = []
    for kind, left, right in (("input", a.inputs, b.inputs), ("output", a.outputs, b.outputs)):
        names_left, names_right = [v.name for v in left], [v.name for v in right]
        if names_left != names_right:
            lines.append(f"{kind}s differ: {names_left} and {names_right}")
        types = {v.name: v.type for v in right}
        for value in left:
            if value.name in types and value.type != types[value.name]:
                lines.append(f"{kind} {value.name}: {value.type} and {types[value.name]}")
    if dict(a.opset) != dict(b.opset):
        lines.append(f"opsets differ: {dict(a.opset)} and {dict(b.opset)}")
    return tuple(lines)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()


def changed_regions(
    a: Graph, b: Graph, types: Mapping[str, ValueType | None], fixed: Set[str] = frozenset()
) -> tuple[tuple[Graph, Graph], ...]:  # fmt: skip
    """The places where ``b`` was rewritten from ``a``, each as a pair of small graphs with equal signatures.

    A node is unchanged when the other graph has the same node: outputs, operator, inputs and attributes, and the same
    elements of weights. The changed nodes fall into pieces, cut wherever both graphs have a value of one name: a piece
    reads such values as inputs, and those it makes that are read elsewhere are its outputs. If every pair is equal, so
    are the graphs (by induction along the order of the nodes); the pieces stay small, however much was changed.
    Integers are taken along with what computes them, down to the tensors whose shapes they come from, and so is what
    is made of weights alone: as inputs of their own they would be free of them.

    Args:
        a: the graph before.
        b: the graph after, with the same names for the values that both have.
        types: types of the values of ``a``.
        fixed: those of them that are made of weights alone.
    """
    pairs: list[tuple[Graph, Graph]] = []
    for part_a, part_b in pieces(a, b):
        made = {o for n in part_a for o in n.outputs if o} & {o for n in part_b for o in n.outputs if o}
        pairs.append(_pair(a, b, part_a, part_b, sorted(made), types, fixed))
    return tuple(pairs)


def pieces(a: Graph, b: Graph) -> tuple[tuple[tuple[Node, ...], tuple[Node, ...]], ...]:
    """The nodes of each place where ``b`` was rewritten from ``a``: of both sides, in the order of the first graph.

    Between two pieces stand values that both graphs have under one name, so each piece can be put in by itself.
    """
    keys_a, keys_b = {_verbatim(n) for n in a.nodes}, {_verbatim(n) for n in b.nodes}
    other = _other_constants(a, b)
    changed_a = [n for n in a.nodes if _verbatim(n) not in keys_b or not other.isdisjoint(n.reads)]
    changed_b = [n for n in b.nodes if _verbatim(n) not in keys_a or not other.isdisjoint(n.reads)]
    return tuple((tuple(x), tuple(y)) for x, y in _pieces(changed_a, changed_b))


def grown(
    a: Graph, b: Graph, pair: tuple[Graph, Graph], types: Mapping[str, ValueType | None],
    fixed: Set[str] = frozenset(),
) -> tuple[Graph, Graph]:  # fmt: skip
    """A rewritten place with nodes that make what it reads: fewer of its inputs are free.

    First those that both graphs have and that make one of its inputs of others, as which of two equal values is read
    may be the whole change; where there are none, all that make its inputs, of either graph.

    Args:
        a: the graph before.
        b: the graph after.
        pair: one of their :func:`changed_regions`, or this function's result.
        types: types of the values of ``a``.
        fixed: those of them that are made of weights alone.
    """
    reads = _of_each_other(a, b, pair) or [v.name for v in pair[0].inputs]
    parts = []
    for graph, inner in ((a, pair[0]), (b, pair[1])):
        taken = {id(n) for n in inner.nodes} | {id(graph.producer[r]) for r in reads if r in graph.producer}
        parts.append([n for n in graph.nodes if id(n) in taken])
    return _pair(a, b, parts[0], parts[1], [v.name for v in pair[0].outputs], types, fixed)


def _of_each_other(a: Graph, b: Graph, pair: tuple[Graph, Graph]) -> list[str]:
    """Inputs of a place that the same node makes in both graphs of its other inputs."""
    given = {v.name for v in pair[0].inputs}
    apart = _other_constants(a, b)
    found: list[str] = []
    for name in sorted(given & a.producer.keys() & b.producer.keys()):
        node, twin = a.producer[name], b.producer[name]
        running = set(node.reads) - a.constants.keys()
        same = apart.isdisjoint(node.reads) and _verbatim(node) == _verbatim(twin)
        if same and running and running <= given:
            found.append(name)
    return found


def _pair(
    a: Graph, b: Graph, part_a: Sequence[Node], part_b: Sequence[Node], outputs: Sequence[str],
    types: Mapping[str, ValueType | None], fixed: Set[str],
) -> tuple[Graph, Graph]:  # fmt: skip
    """Nodes of both graphs, and what computes their sizes and constants, as two graphs with equal inputs."""
    inner_a, inner_b = (
        excerpt(g, _with_sizes(g, part, other, types, fixed), outputs, types)
        for g, part, other in ((a, part_a, b), (b, part_b, a))
    )
    names = {v.name: v for v in (*inner_a.inputs, *inner_b.inputs)}
    inputs = tuple(names[k] for k in sorted(names))
    return replace(inner_a, inputs=inputs), replace(inner_b, inputs=inputs)


def _other_constants(a: Graph, b: Graph) -> set[str]:
    """Names that are a constant in either graph and something else, or other elements, in the other one."""
    found: set[str] = set()
    for graph, other in ((a, b), (b, a)):
        for name, weight in graph.constants.items():
            twin = other.constants.get(name)
            if twin is None:
                found |= {name} & other.producer.keys()
            elif twin.data is not weight.data and (
                twin.type != weight.type or twin.data is None or weight.data is None
                or twin.data.digest != weight.data.digest
            ):  # fmt: skip
                found.add(name)
    return found


def _verbatim(node: Node) -> tuple[str, ...]:
    attributes = (f"{k}={attribute_key(v)}" for k, v in sorted(node.attributes.items()))
    return (node.domain, node.op, node.overload, *node.inputs, "|", *node.outputs, "|", *attributes)


def _pieces(changed_a: list[Node], changed_b: list[Node]) -> list[tuple[list[Node], list[Node]]]:
    """Groups of nodes of both sides, connected by making the same value or by a value that only one side has."""
    from networkx.utils import UnionFind  # here, because a model that stays as it is has no pieces

    sets: UnionFind[str] = UnionFind()
    made_a, made_b = ({o for n in side for o in n.outputs if o} for side in (changed_a, changed_b))
    inner = made_a ^ made_b
    both = (*changed_a, *changed_b)
    anchors = [next((o for o in node.outputs if o), "") for node in both]
    for node, anchor in zip(both, anchors, strict=True):
        for name in (*(o for o in node.outputs if o), *(n for n in node.reads if n in inner)):
            sets.union(anchor, name)
    groups: dict[str, tuple[list[Node], list[Node]]] = {}
    for position, (node, anchor) in enumerate(zip(both, anchors, strict=True)):
        groups.setdefault(sets[anchor], ([], []))[position >= len(changed_a)].append(node)
    return list(groups.values())


def _with_sizes(
    graph: Graph, part: Sequence[Node], other: Graph, types: Mapping[str, ValueType | None], fixed: Set[str]
) -> list[Node]:  # fmt: skip
    """A piece with the nodes that compute the integers and constants it reads, in the order of the graph."""
    taken = {id(n) for n in part}
    stack = [name for n in part for name in n.reads]
    while stack:
        name = stack.pop()
        node = graph.producer.get(name)
        if node is None or id(node) in taken:
            continue
        kind = types.get(name)
        integers = isinstance(kind, TensorType) and kind.dtype.is_integer
        if name not in other.producer or integers or name in fixed:
            taken.add(id(node))
            stack.extend(node.reads)
    return [n for n in graph.nodes if id(n) in taken]


def excerpt(
    graph: Graph, nodes: Sequence[Node], outputs: Sequence[str], types: Mapping[str, ValueType | None]
) -> Graph:
    """Some nodes of a graph (in its order) as a graph: what they read and do not make is an input or a weight.

    Args:
        graph: where they are from.
        nodes: no path between two of them may lead through another node.
        outputs: names of values that they make.
        types: types of the graph's values.
    """
    made = {o for n in nodes for o in n.outputs}
    reads = dict.fromkeys(name for n in nodes for name in n.reads if name not in made)
    constants = graph.constants
    inputs = tuple(Value(name, types.get(name)) for name in reads if name not in constants)
    return Graph(
        graph.name, inputs, tuple(Value(o, types.get(o)) for o in outputs),
        tuple(constants[name] for name in reads if name in constants), tuple(nodes), graph.opset,
    )  # fmt: skip

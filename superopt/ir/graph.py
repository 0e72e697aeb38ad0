"""Graphs of named, typed values: immutable, and complete enough to give an ONNX model back unchanged.

A graph says what its file said: nodes keep their operator's ONNX name, domain and attributes. What superopt
does not read (functions, subgraphs, sparse tensors, odd types) rides along as serialised bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from superopt.ir.errors import InvalidModel, printable
from superopt.ir.types import DType, TensorType, ValueType

if TYPE_CHECKING:
    import networkx as nx  # loading it takes longer than loading NumPy: what needs it at run time imports it there

__all__ = [
    "ArrayWeightData",
    "Attribute",
    "Graph",
    "Node",
    "OWN",
    "PASS",
    "OpaqueAttribute",
    "PRECOMPUTED",
    "RULES",
    "TRAINING",
    "VALUE",
    "Value",
    "Weight",
    "WeightData",
    "rules_of",
    "unused_name",
]


TRAINING = "superopt.training"  # the metadata by which a graph says that it is a training step, and which state it has


@runtime_checkable
class WeightData(Protocol):
    """Where a weight's elements come from. Reading is lazy, so a graph of gigabytes stays small in memory."""

    @property
    def digest(self) -> str:
        """A name for the contents: equal digests mean equal elements (the reverse need not hold)."""
        ...

    def numpy(self) -> np.ndarray:
        """The elements, unpacked, in the weight's shape; a memory map where the file allows it."""
        ...


@dataclass(frozen=True, eq=False)
class ArrayWeightData:
    """Weight elements held in memory. The array must not be changed afterwards."""

    array: np.ndarray

    @cached_property
    def digest(self) -> str:
        array = np.ascontiguousarray(self.array)
        if array.dtype == object:
            elements = [e.encode() if isinstance(e, str) else e for e in array.reshape(-1).tolist()]
            return hashlib.sha256(f"{self.array.shape}{elements}".encode()).hexdigest()
        found = hashlib.sha256(f"{array.dtype}{self.array.shape}".encode())  # ascontiguousarray makes a scalar a vector
        found.update(array.reshape(-1).view(np.uint8).data)  # not a copy of it: it may be gigabytes
        return found.hexdigest()

    def numpy(self) -> np.ndarray:
        return self.array


@dataclass(frozen=True)
class Weight:
    """A constant tensor of the model (an ONNX initializer). ``data`` is ``None`` for a shape-only weight.

    ``precomputed`` marks a weight that superopt made; ``doc`` and ``metadata`` are carried through.
    """

    name: str
    type: TensorType
    data: WeightData | None
    doc: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Value:
    """A typed name: an input or output of the graph, or a declared intermediate (``value_info``)."""

    name: str
    type: ValueType | None
    doc: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class OpaqueAttribute:
    """An attribute carried as its serialised ONNX AttributeProto: subgraphs, sparse tensors, types, references.

    ``captures`` are the outer values that a subgraph inside it reads: they count as uses of those values.
    """

    payload: bytes
    captures: tuple[str, ...] = ()


# int, float, bytes (ONNX STRING), homogeneous tuples of these, a tensor (named by the attribute), or opaque.
# An empty tuple carries its ONNX kind nowhere else, so formats store it as an OpaqueAttribute.
Attribute = int | float | bytes | tuple[int, ...] | tuple[float, ...] | tuple[bytes, ...] | Weight | OpaqueAttribute


@dataclass(frozen=True)
class Node:
    """One operator application. An omitted optional input or output is the empty name ``""``."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    domain: str = ""
    overload: str = ""
    doc: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def captures(self) -> tuple[str, ...]:
        """Outer values that the node's subgraphs read, besides its inputs."""
        return tuple(n for a in self.attributes.values() if isinstance(a, OpaqueAttribute) for n in a.captures)

    @property
    def reads(self) -> tuple[str, ...]:
        """Every value the node needs: its inputs that are present, and what its subgraphs capture."""
        return tuple(n for n in self.inputs if n) + self.captures


@dataclass(frozen=True, repr=False)
class Graph:
    """A whole model. Nodes are in a valid execution order (:meth:`checked` establishes it).

    ``opset`` maps an operator domain (``""`` is ONNX's own) to its version. ``values`` are declared types of
    intermediates. ``extras`` holds named serialised parts of the original file that are carried through.
    """

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    weights: tuple[Weight, ...]
    nodes: tuple[Node, ...]
    opset: Mapping[str, int]
    values: tuple[Value, ...] = ()
    doc: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    extras: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def onnx_version(self) -> int:
        """The version of ONNX's own operators; 0 where none is stated."""
        return self.opset.get("", self.opset.get("ai.onnx", 0))

    @cached_property
    def weight(self) -> Mapping[str, Weight]:
        """Weights by name."""
        return {w.name: w for w in self.weights}

    @cached_property
    def weight_bytes(self) -> int:
        """Of all weights together, and of tensors that Constants hold; those of unknown size count nothing."""
        held = (a for n in self.nodes for a in n.attributes.values() if isinstance(a, Weight))
        return sum(w.type.nbytes or 0 for w in (*self.weights, *held))

    @cached_property
    def constants(self) -> Mapping[str, Weight]:
        """Weights whose values cannot be overridden by the caller (those that are not also inputs)."""
        fed = {v.name for v in self.inputs}
        return {w.name: w for w in self.weights if w.name not in fed}

    @cached_property
    def producer(self) -> Mapping[str, Node]:
        """The node that makes each value."""
        return {o: n for n in self.nodes for o in n.outputs if o}

    @cached_property
    def names(self) -> frozenset[str]:
        """Of all values."""
        made = (o for n in self.nodes for o in n.outputs if o)
        return frozenset((*(v.name for v in self.inputs), *self.weight, *made, *(v.name for v in self.outputs)))

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Node, ...]]:
        """The nodes that read each value, each once, in order; graph outputs are not counted."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.reads):
                found.setdefault(name, []).append(node)
        return {name: tuple(nodes) for name, nodes in found.items()}

    @cached_property
    def declared(self) -> Mapping[str, ValueType]:
        """Types that the model states: inputs, weights, value_info, outputs."""
        types: dict[str, ValueType] = {}
        for value in (*self.outputs, *self.values, *self.inputs):
            if value.type is not None:
                types[value.name] = value.type
        types.update((w.name, w.type) for w in self.weights)
        return types

    def checked(self) -> Graph:
        """This graph with its nodes in a valid order (kept as they are when they already are).

        Raises:
            InvalidModel: a name is defined twice, a node reads an undefined value, an output is undefined, or
                the nodes form a cycle.
        """
        known: set[str] = {v.name for v in self.inputs} | {w.name for w in self.weights}
        if len(self.weight) != len(self.weights):
            raise InvalidModel(f"two weights are named {printable(_repeated(w.name for w in self.weights))!r}")
        if len({v.name for v in self.inputs}) != len(self.inputs):
            raise InvalidModel(f"two inputs are named {printable(_repeated(v.name for v in self.inputs))!r}")
        made: dict[str, int] = {}
        for position, node in enumerate(self.nodes):
            for output in node.outputs:
                if output and (output in made or output in known):
                    raise InvalidModel(f"value {printable(output)!r} is defined twice", where=label(node))
                if output:
                    made[output] = position
        for node in self.nodes:
            for name in node.reads:
                if name not in made and name not in known:
                    raise InvalidModel(
                        f"reads value {printable(name)!r}, which nothing defines",
                        where=label(node),
                        hint="it must be an input, a weight or an earlier node's output",
                    )
        for value in self.outputs:
            if value.name not in made and value.name not in known:
                raise InvalidModel(f"graph output {printable(value.name)!r} is not defined by any node")
        order = topological_order(self.nodes, made)
        if all(a == b for a, b in zip(order, range(len(order)), strict=True)):
            return self
        return replace(self, nodes=tuple(self.nodes[i] for i in order))

    def __repr__(self) -> str:
        """Its name, size and signature, however large it is."""
        shown = [_signature(self.inputs), _signature(self.outputs)]
        size = f"{len(self.nodes)} nodes, {len(self.weights)} weights ({self.weight_bytes:,} bytes)"
        return f"<superopt Graph {printable(self.name)!r}: {size}, {' → '.join(shown)}>"

    def _repr_svg_(self) -> str:
        """The graph drawn, as notebooks show it."""
        from superopt.ir.drawing import svg  # which loads networkx

        return svg(self)

    def to_networkx(self) -> nx.MultiDiGraph[int | str]:
        """The graph for networkx's algorithms: who reads whom.

        Nodes are positions of the model's nodes, with attributes ``op``, ``domain`` and ``name``, and the names of
        inputs and weights, with ``op`` "" and their ``type``. Each edge is one value that is read, with ``value`` (its
        name).
        """
        import networkx as nx

        drawn: nx.MultiDiGraph[int | str] = nx.MultiDiGraph(name=self.name)
        made = {o: i for i, node in enumerate(self.nodes) for o in node.outputs if o}
        for value in self.inputs:
            drawn.add_node(value.name, op="", type=value.type)
        for weight in self.weights:
            drawn.add_node(weight.name, op="", type=weight.type)
        for position, node in enumerate(self.nodes):
            drawn.add_node(position, op=node.op, domain=node.domain, name=node.name)
        for position, node in enumerate(self.nodes):
            drawn.add_edges_from((made.get(n, n), position, {"value": n}) for n in node.reads)
        return drawn


def _signature(values: Sequence[Value]) -> str:
    """The first of the values, by name and type."""
    shown = [f"{printable(v.name, 40)} {'?' if v.type is None else printable(str(v.type), 60)}" for v in values[:4]]
    return ", ".join(shown) + (f" and {len(values) - 4} more" if len(values) > 4 else "")


def label(node: Node) -> str:
    """How messages name a node: ``node "conv_3" (Conv)``."""
    op = f"{node.domain}.{node.op}" if node.domain else node.op
    return f'node "{printable(node.name or next((o for o in node.outputs if o), "?"))}" ({printable(op)})'


def topological_order(nodes: Sequence[Node], made: Mapping[str, int]) -> list[int]:
    """Node positions in execution order: the file's order wherever it is valid, so the result is stable.

    Args:
        nodes: in any order.
        made: value → position of the node that makes it.

    Raises:
        InvalidModel: the nodes form a cycle.
    """
    if all(made.get(n, -1) < position for position, node in enumerate(nodes) for n in node.reads):
        return list(range(len(nodes)))
    import networkx as nx

    drawn: nx.DiGraph[int] = nx.DiGraph()
    drawn.add_nodes_from(range(len(nodes)))
    drawn.add_edges_from((made[n], position) for position, node in enumerate(nodes) for n in node.reads if n in made)
    try:
        return list(nx.lexicographical_topological_sort(drawn))
    except nx.NetworkXUnfeasible:
        stuck = min(min(c) for c in nx.strongly_connected_components(drawn) if len(c) > 1 or drawn.has_edge(*2 * [*c]))
        raise InvalidModel("the nodes form a cycle", where=label(nodes[stuck])) from None


def _repeated(names: Iterable[str]) -> str:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return ""


def structural_hash(graph: Graph, *, values: bool = True) -> str:
    """SHA-256 over the computation: operators, attributes, wiring, types; names of values do not count.

    Args:
        graph: a checked graph.
        values: include the contents of weights; without them, only which weights are the same and their types.
    """
    index: dict[str, str] = {"": "-"}
    lines: list[str] = [f"opset {sorted(graph.opset.items())}"]
    for position, value in enumerate(graph.inputs):
        index[value.name] = f"i{position}"
        lines.append(f"i{position} {_type_key(value.type)}")
    for position, weight in enumerate(graph.weights):
        index.setdefault(weight.name, f"w{position}")
        content = weight.data.digest if values and weight.data is not None else ""
        lines.append(f"{index[weight.name]} {_type_key(weight.type)} {content}")
    for position, node in enumerate(graph.nodes):
        for slot, output in enumerate(node.outputs):
            index[output] = f"n{position}.{slot}" if output else "-"
        attributes = "; ".join(f"{k}={attribute_key(v)}" for k, v in sorted(node.attributes.items()))
        reads = ",".join(index[n] for n in (*node.inputs, *node.captures))
        lines.append(f"{node.domain}.{node.op}:{node.overload}({reads}){len(node.outputs)}[{attributes}]")
    lines.append("out " + ",".join(index[v.name] for v in graph.outputs))
    digest = hashlib.sha256("\n".join(lines).encode())
    for key in sorted(graph.extras):
        digest.update(key.encode() + graph.extras[key])
    return digest.hexdigest()


def _type_key(kind: ValueType | None) -> str:
    return "?" if kind is None else str(kind) if isinstance(kind, TensorType) else repr(kind)


def attribute_key(value: Attribute) -> str:
    """A string that is equal exactly for equal attributes."""
    if isinstance(value, Weight):
        return f"{value.type}:{value.data.digest if value.data is not None else ''}"
    if isinstance(value, OpaqueAttribute):
        return hashlib.sha256(value.payload).hexdigest()
    return repr(value)


def constant(name: str, array: np.ndarray) -> Weight:
    """A weight that holds the array."""
    return Weight(name, TensorType(DType.of(array.dtype), tuple(map(int, array.shape))), ArrayWeightData(array))


def unused_name(hint: str, taken: set[str]) -> str:
    """The hint, numbered from 2 on where it is taken; it is taken from now on."""
    name, count = hint, 1
    while name in taken:
        count += 1
        name = f"{hint}_{count}"
    taken.add(name)
    return name


# -- Provenance ----------------------------------------------------------------------------------------------------
#
# Metadata of nodes and weights: the rules that wrote them, and their origin.


RULES = "superopt.rules"  # ids, separated by commas
PASS = "superopt.pass"  # the pass that made a node which no rule wrote
VALUE = "superopt.value"  # how a weight is computed from those of the input
PRECOMPUTED = "x-precomputed"  # "true": computed once, not on every run
OWN = frozenset({RULES, PASS, VALUE, PRECOMPUTED})


def rules_of(metadata: Mapping[str, str]) -> list[str]:
    """Ids of the rules that made a node or a weight; none where superopt did not make it."""
    return metadata.get(RULES, "").replace(",", " ").split()

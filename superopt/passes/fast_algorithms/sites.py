"""Sites: convolutions and products of matrices that can be computed by a fast bilinear algorithm.

A site is a Conv with one group, or a product of matrices, with fixed weights and known sizes (a batch may be symbolic).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

import numpy as np

from superopt.cost.cost_model import CostModel
from superopt.formats.control_flow_bodies import all_names
from superopt.formats.weight_data import set_aside
from superopt.ir.graph import PASS, Attribute, Graph, Node, Value, Weight, attribute_key, constant
from superopt.ir.terms import AttributeValue
from superopt.ir.types import DType, TensorType
from superopt.ops.shape_inference import CanonicalNode, InferredTypes, OpaqueNode, infer

__all__ = ["FEWEST", "FastAlgorithmSite", "NodeBuilder", "price_key", "isolated", "possible", "sites_of"]


# -- Sites ---------------------------------------------------------------------------------------------------------


FEWEST = 16  # channels, rows or columns below which products are too small for a bilinear form to pay
_WHERE = {"Conv", "MatMul"}


@dataclass(frozen=True)
class FastAlgorithmSite:
    """An operator that forms exist for.

    Attributes:
        node: that applies it.
        image: type of the data.
        pads: of a Conv, before and after each axis; empty for a product of matrices.
        strides, dilations: of a Conv, along each axis.
        weights: name of the fixed operand.
        bias: name of a Conv's bias.
        kernel: sizes of the fixed operand.
        after: what alone reads the result and works element by element; a form of a Conv takes it in.
        fused: what the runtime runs in one kernel with the operator besides, and would run apart from a form.
    """

    node: Node
    image: TensorType
    pads: tuple[int, ...]
    weights: str
    bias: str | None
    kernel: tuple[int, ...]
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    after: tuple[Node, ...] = ()
    fused: tuple[Node, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Those of the data; -1 for a symbolic batch."""
        return tuple(d if isinstance(d, int) else -1 for d in self.image.shape or ())

    @property
    def output(self) -> str:
        """What a form computes."""
        return (self.node, *self.after)[-1].outputs[0]

    @property
    def rows(self) -> tuple[int, int]:
        """Of a product of matrices: rows, of all leading axes together, and the inner size."""
        count = 1
        for size in self.sizes[:-1]:
            count *= size
        return count, self.sizes[-1]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """What a form replaces."""
        return (self.node, *self.after)


def possible(graph: Graph) -> bool:
    """Whether there may be sites, without types: what most models without any pay."""
    return any(
        node.op in _WHERE
        and not node.domain
        and len(node.inputs) > 1
        and (held := graph.constants.get(node.inputs[1])) is not None
        and _may_pay(node, tuple(d for d in held.type.shape or () if isinstance(d, int)))
        for node in graph.nodes
    )


def _may_pay(node: Node, fixed: tuple[int, ...]) -> bool:
    """Whether forms exist for an operator with a fixed operand of these sizes: it is large, or makes few channels."""
    few = node.op == "Conv" and len(fixed) == 4 and node.attributes.get("group", 1) == 1 and fixed[0] < FEWEST
    return few or min(fixed[:2], default=0) >= FEWEST


def sites_of(
    graph: Graph, typing: InferredTypes | None = None, costs: CostModel | None = None
) -> list[FastAlgorithmSite]:
    """The operators that some algorithm applies to.

    Args:
        graph: a checked graph.
        typing: its inferred types, if at hand.
        costs: says what the runtime would run in one kernel with each; without, that is left open.
    """
    typing = typing or infer(graph)
    known = {id(node): what for node, what in zip(graph.nodes, typing.nodes, strict=True)}
    found: list[FastAlgorithmSite] = []
    for node in graph.nodes:
        applied = known[id(node)]
        site = _site(graph, typing, node, applied) if isinstance(applied, CanonicalNode) else None
        if site is not None:
            after = tuple(_after(graph, typing, known, site.node)) if site.pads else ()
            fused = () if costs is None else tuple(_fused(graph, typing, known, (site.node, *after)[-1], costs))
            found.append(replace(site, after=after, fused=fused))
    return found


def _site(graph: Graph, typing: InferredTypes, node: Node, known: CanonicalNode) -> FastAlgorithmSite | None:
    reader = {"Conv": _conv, "MatMul": _matmul}.get(known.operator.name)
    if reader is None or len(known.args) < 2 or known.args[0] is None or known.args[1] is None:
        return None
    image, weights = typing.types.get(known.args[0]), graph.constants.get(known.args[1])
    bias = known.args[2] if len(known.args) > 2 else None
    if image is None or image.shape is None or image.dtype != DType.FLOAT32:
        return None
    if weights is None or weights.data is None or weights.type.shape is None:
        return None
    if bias is not None and bias not in graph.constants:
        return None
    kernel = tuple(d for d in weights.type.shape if isinstance(d, int))
    return reader(FastAlgorithmSite(node, image, (), known.args[1], bias, kernel), known.attributes)


def _conv(site: FastAlgorithmSite, attributes: Mapping[str, AttributeValue]) -> FastAlgorithmSite | None:
    if attributes["group"] != 1 or len(site.sizes) not in (3, 4) or min(site.sizes[1:]) < 1:
        return None
    if not _may_pay(site.node, site.kernel):
        return None
    pads, strides, dilations = (_ints(attributes[name]) for name in ("pads", "strides", "dilations"))
    return replace(site, pads=pads, strides=strides, dilations=dilations)


def _matmul(site: FastAlgorithmSite, attributes: Mapping[str, AttributeValue]) -> FastAlgorithmSite | None:
    if len(site.kernel) != 2 or len(site.sizes) < 2 or min(site.sizes) < 1:
        return None
    return site if min(*site.kernel, *site.rows) >= FEWEST else None


_Known = Mapping[int, CanonicalNode | OpaqueNode]  # by the node's identity


def _after(graph: Graph, typing: InferredTypes, nodes: _Known, node: Node) -> Iterator[Node]:
    """What follows one after the other, element by element, with constants of one element alone."""
    while (reader := _reader(graph, node.outputs[0])) is not None:
        known = nodes[id(reader)]
        if not isinstance(known, CanonicalNode) or known.operator.family not in ("elementwise", "activation"):
            return
        first, rest = reader.inputs[0], [n for n in reader.inputs[1:] if n]
        small = all(n in graph.constants and graph.constants[n].type.elements == 1 for n in rest)
        if first != node.outputs[0] or not small or typing.types.get(first) != typing.types.get(reader.outputs[0]):
            return
        yield reader
        node = reader


def _fused(graph: Graph, typing: InferredTypes, nodes: _Known, node: Node, costs: CostModel) -> Iterator[Node]:
    """What the runtime runs in one kernel with the node, one after the other."""
    while (reader := _reader(graph, node.outputs[0])) is not None and isinstance(nodes[id(reader)], CanonicalNode):
        others = [n for n in reader.reads if n != node.outputs[0]]
        fixed = [graph.constants[n].type for n in others if n in graph.constants]
        moving = [n for n in others if n not in graph.constants]
        rank = max((t.rank or 0 for t in fixed), default=0)
        if not costs.fusable(node.op, reader.op, constant_others=not moving, rank=rank):
            return
        if any(typing.types.get(n) is None for n in (*moving, *reader.outputs)):
            return
        makers = (graph.producer.get(n) for n in moving)
        if any(m is not None and costs.fusable(m.op, reader.op, constant_others=False) for m in makers):
            return  # it would run with what makes the other operand
        yield reader
        node = reader


def _reader(graph: Graph, name: str) -> Node | None:
    """The one node that reads a value which is no output."""
    readers = graph.consumers.get(name, ())
    alone = len(readers) == 1 and list(readers[0].reads).count(name) == 1
    if not alone or any(v.name == name for v in graph.outputs) or len(readers[0].outputs) != 1:
        return None
    return readers[0]


def _ints(value: AttributeValue) -> tuple[int, ...]:
    return tuple(v for v in value if isinstance(v, int)) if isinstance(value, tuple) else ()


def isolated(graph: Graph, typing: InferredTypes, site: FastAlgorithmSite) -> Graph:
    """A site's operator, with what runs in one kernel with it, as a model of its own."""
    nodes = (*site.nodes, *site.fused)
    made = {o for node in nodes for o in node.outputs}
    read = dict.fromkeys(n for node in nodes for n in node.reads if n not in made)
    weights = tuple(graph.weight[n] for n in read if n in graph.weight)
    inputs = tuple(Value(n, typing.types[n]) for n in read if n not in graph.weight)
    return Graph(site.node.op, inputs, (Value(nodes[-1].outputs[0], None),), weights, nodes, graph.opset)


def price_key(alone: Graph) -> Hashable:
    """Equal for operators of equal prices, each :func:`isolated`."""
    return (
        tuple(v.type for v in alone.inputs), tuple(w.type for w in alone.weights),
        tuple((n.op, tuple(sorted((k, attribute_key(v)) for k, v in n.attributes.items()))) for n in alone.nodes),
    )  # fmt: skip


# -- Extending a graph ---------------------------------------------------------------------------------------------
#
# Appends operators to a graph: fresh names, constants shared by value.


@dataclass
class NodeBuilder:
    """New nodes and weights whose names begin with ``prefix`` and are not in the graph.

    ``filled`` says whether weights that are computed from the graph's get elements, or only types, which is all that a
    price needs.
    """

    graph: Graph
    prefix: str
    filled: bool = True
    reserved: AbstractSet[str] = frozenset()
    nodes: list[Node] = field(default_factory=list)
    weights: list[Weight] = field(default_factory=list)

    def __post_init__(self) -> None:
        graph = self.graph
        self._taken = {n.name for n in graph.nodes} | all_names(graph) | self.reserved
        self._made: dict[Hashable, list[str]] = {}
        self._known: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def name(self, stem: str) -> str:
        """A name that nothing has."""
        name, count = f"{self.prefix}/{stem}", 1
        while name in self._taken:
            name, count = f"{self.prefix}/{stem}_{count}", count + 1
        self._taken.add(name)
        return name

    def constant(self, array: np.ndarray) -> str:
        """A weight with these elements; equal ones are made once."""
        held = np.ascontiguousarray(array)
        key = held.dtype.str, held.shape, held.tobytes()
        if key not in self._known:
            self._known[key] = self.name("weight")
            self.weights.append(constant(self._known[key], held))
        return self._known[key]

    def computed(
        self, key: Hashable, shape: Sequence[int], kind: np.dtype[np.generic], elements: Callable[[], np.ndarray]
    ) -> str:
        """A weight of this shape and type, with these elements if weights are filled; made once for a key."""
        return self.once(("weight", key), lambda: [self._computed(shape, kind, elements)])[0]

    def _computed(
        self, shape: Sequence[int], kind: np.dtype[np.generic], elements: Callable[[], np.ndarray]
    ) -> str:  # fmt: skip
        name = self.name("weight")
        data = set_aside(elements().astype(kind)) if self.filled else None
        self.weights.append(Weight(name, TensorType(DType.of(kind), tuple(shape)), data))
        return name

    def once(self, key: Hashable, make: Callable[[], list[str]]) -> list[str]:
        """Names of values that are made for a key when it is first asked for, and used again."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def sizes(self, *values: int) -> str:
        """An int64 vector."""
        return self.constant(np.array(values, dtype=np.int64))

    def op(self, op: str, *inputs: str, outputs: Sequence[str] = (), **attributes: Attribute) -> str:
        """Append a node; the name of its (first) output."""
        made = tuple(outputs) or (self.name(op),)
        self.nodes.append(
            Node(self.name(f"{op}.node"), op, inputs, made, dict(attributes), metadata={PASS: "fast algorithms"})
        )
        return made[0]

    @property
    def opset(self) -> int:
        """Whose node forms are written: sizes were attributes before they were operands."""
        return self.graph.opset.get("", 1)

    def split(self, value: str, axis: int, count: int) -> list[str]:
        """``count`` equal parts of size 1."""
        parts, sizes = [self.name("part") for _ in range(count)], (1,) * count
        if self.opset >= 13:
            self.op("Split", value, self.sizes(*sizes), outputs=parts, axis=axis)
        else:
            self.op("Split", value, outputs=parts, axis=axis, split=sizes)
        return parts

    def sliced(self, value: str, ranges: Mapping[int, tuple[int, int]], outputs: Sequence[str] = ()) -> str:
        """From a place to another (not included) along some axes."""
        starts, ends = zip(*ranges.values(), strict=True)
        if self.opset >= 10:
            limits = self.sizes(*starts), self.sizes(*ends), self.sizes(*ranges)
            return self.op("Slice", value, *limits, outputs=outputs)
        return self.op("Slice", value, outputs=outputs, starts=starts, ends=ends, axes=tuple(ranges))

    def padded(self, value: str, *pads: int) -> str:
        """With zeros before and after each axis."""
        if self.opset >= 11:
            return self.op("Pad", value, self.sizes(*pads))
        return self.op("Pad", value, pads=pads)

    def reshaped(self, value: str, *sizes: int) -> str:
        """``value`` in another shape; one size may be -1."""
        return self.op("Reshape", value, self.sizes(*sizes))

    def transposed(self, value: str, *perm: int) -> str:
        return self.op("Transpose", value, perm=perm)

"""What every node of a graph is, and the type of every value, from the operators' records.

A node that a record covers is :class:`CanonicalNode`; any other is a :class:`OpaqueNode` that says why, and its outputs
have the types that the model declares, or those of ONNX's own inference for the one node
(:mod:`superopt.ops.onnx_type_inference`). Sizes may be symbolic: a dimension that the model names is that symbol, one
it leaves open is a fresh one. Nothing is materialised: an ``Expand`` to 2³⁴ elements costs no more than its shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import copysign

import numpy as np

from superopt.ir.errors import SuperoptError
from superopt.ir.graph import Graph, Node, Weight, attribute_key, label
from superopt.ir.size_polynomial import Dim, SizePolynomial, substitute, sym, symbols
from superopt.ir.terms import AttributeValue
from superopt.ir.types import TensorType
from superopt.ops import REGISTRY
from superopt.ops.constants_and_shapes import attribute_array, constant_attribute
from superopt.ops.onnx_type_inference import fresh_size, schema_types
from superopt.ops.operator_definition import CanonicalNodeForm, OnnxNodeView, Operator, UnsupportedNodeForm
from superopt.ops.operator_semantics import ContradictoryShapes, OperatorSemantics
from superopt.ops.small_tensor_values import FLOATS, LIMIT, SmallTensorValue, evaluate_small, small_of_array

__all__ = [
    "CanonicalNode", "OpaqueNode", "InferredTypes", "application_reader", "computed_from_weights", "infer", "is_symbol",
    "known_shapes", "sizes_fed_to",
]  # fmt: skip

LARGEST = 2**63 - 1  # bytes; ONNX counts in int64
_TOO_LARGE = "an output is larger than 2⁶³ bytes, or its size is too long a formula"
LONGEST = 64  # terms of a symbolic size that is still followed
# What a hostile attribute (a size of 10¹⁰⁰, a list where a number is expected) can raise inside a record.
MALFORMED = (ArithmeticError, ValueError, TypeError, LookupError)


@dataclass(frozen=True)
class CanonicalNode:
    """A node in canonical form; ``args`` are names of values (``None``: absent).

    Outputs of the node beyond the operator's own are ones that nothing uses (the mask of an old Dropout).
    """

    operator: Operator
    args: tuple[str | None, ...]
    attributes: Mapping[str, AttributeValue]


@dataclass(frozen=True)
class OpaqueNode:
    """A node that is carried through untouched, or (``contradiction``) that no runtime could run."""

    reason: str
    contradiction: bool = False


@dataclass(frozen=True)
class InferredTypes:
    """Types of all values (``None``: unknown), what each node is, and the values of small tensors that are known."""

    types: Mapping[str, TensorType | None]
    nodes: tuple[CanonicalNode | OpaqueNode, ...]
    values: Mapping[str, SmallTensorValue] = field(default_factory=dict)

    @cached_property
    def integers(self) -> Mapping[str, np.ndarray]:
        """The known values whose elements are integers or booleans, none of them symbolic."""
        found = {n: v.array for n, v in self.values.items() if v is not None and not v.dtype.is_float}
        return {n: a for n, a in found.items() if a is not None}


@dataclass(frozen=True)
class _Outcome:
    """What one node form at given input types and values is: shared by all nodes that look the same."""

    operator: Operator
    canonical: CanonicalNodeForm
    types: tuple[TensorType, ...]
    values: tuple[SmallTensorValue | None, ...]


def computed_from_weights(graph: Graph, typing: InferredTypes) -> frozenset[str]:
    """The values that operators with a meaning make of weights alone, so that they are the same on every input."""
    known = set(graph.constants)
    for node, how in zip(graph.nodes, typing.nodes, strict=True):
        if isinstance(how, CanonicalNode) and node.reads and known.issuperset(node.reads):
            known.update(o for o in node.outputs if o)
    return frozenset(known - graph.constants.keys())


def infer(graph: Graph, sizes: Mapping[str, int] | None = None) -> InferredTypes:
    """Types and canonical forms of a whole graph, in one pass over its nodes.

    Args:
        graph: a checked graph.
        sizes: values for named dimensions.
    """
    run = _Inference(graph, dict(sizes or {}))
    nodes = tuple(run.node(node) for node in graph.nodes)
    return InferredTypes(run.types, nodes, {n: v for n, v in run.values.items() if v is not None})


def application_reader(
    graph: Graph, typing: InferredTypes
) -> Callable[[Node, Sequence[Weight]], CanonicalNode | OpaqueNode]:
    """A function that says what a node is, given the types and small values of what it reads.

    Args:
        graph: gives the version of the operators, and which values are read.
        typing: of the graph, perhaps at another version.

    Returns:
        From a node, and weights that it reads and the graph does not have, to its canonical form.
    """
    run = _Inference(graph, {})
    run.types.update(typing.types)
    run.values.update(typing.values)

    def read(node: Node, weights: Sequence[Weight]) -> CanonicalNode | OpaqueNode:
        run.types.update((w.name, w.type) for w in weights)
        run.values.update((w.name, small_of_weight(w)) for w in weights)
        found = run.outcome(node)
        if isinstance(found, OpaqueNode):
            return found
        args = tuple(None if p is None else node.inputs[p] for p in found.canonical.args)
        return CanonicalNode(found.operator, args, found.canonical.attributes)

    return read


class _Inference:
    def __init__(self, graph: Graph, sizes: Mapping[str, int]) -> None:
        self.graph = graph
        self.sizes: Mapping[str, Dim] = sizes
        self.opset = graph.onnx_version or 1
        self.declared: dict[str, TensorType] = {}
        for name, kind in graph.declared.items():
            if isinstance(kind, TensorType):
                self.declared[name] = self.bound(kind)
        self.types: dict[str, TensorType | None] = {}
        self.values: dict[str, SmallTensorValue | None] = {}
        self.memo: dict[object, _Outcome | OpaqueNode] = {}
        self.used = {name for node in graph.nodes for name in node.reads} | {v.name for v in graph.outputs}
        for value in graph.inputs:
            self.types[value.name] = self.declared.get(value.name)
        for weight in graph.weights:
            self.types[weight.name] = self.declared.get(weight.name)

    def bound(self, kind: TensorType) -> TensorType:
        """The type with the given sizes put in; names that look like index variables are set apart."""
        if kind.shape is None or kind.is_static:
            return kind
        binding = {**{n: primed(n) for d in kind.shape for n in symbols(d) if is_index_name(n)}, **self.sizes}
        return TensorType(kind.dtype, tuple(substitute(d, binding) for d in kind.shape))

    def value(self, name: str) -> SmallTensorValue | None:
        """The known elements of a small value; weights are read the first time they are asked for."""
        if name not in self.values:
            weight = self.graph.constants.get(name)
            self.values[name] = None if weight is None else small_of_weight(weight)
        return self.values[name]

    def node(self, node: Node) -> CanonicalNode | OpaqueNode:
        found = self.outcome(node)
        sizes_open = not (isinstance(found, OpaqueNode) and (found.contradiction or found.reason == _TOO_LARGE))
        if isinstance(found, _Outcome) and (why := self.misdeclared(node, found)):
            found, sizes_open = OpaqueNode(why), False
        if isinstance(found, OpaqueNode):
            refusal = self.carried(node, sizes_open)
            self.constant(node)
            return found if found.contradiction or not refusal else OpaqueNode(refusal, contradiction=True)
        for output, kind, value in zip(node.outputs, found.types, found.values, strict=False):
            if output:
                self.types[output] = kind
                self.values[output] = value
        args = tuple(None if p is None else node.inputs[p] for p in found.canonical.args)
        return CanonicalNode(found.operator, args, found.canonical.attributes)

    def carried(self, node: Node, sizes_open: bool) -> str:
        """Types of a barrier's outputs: those that the model declares, else what ONNX's own inference says.

        Args:
            node: the barrier.
            sizes_open: whether sizes that nobody knows may stand for those of its outputs.

        Returns:
            Why ONNX's inference refuses the node; "" where it does not, or was not asked.
        """
        stated = {o: self.declared.get(o) for o in node.outputs if o}
        self.types.update(stated)
        if not sizes_open or all(kind is not None and self.is_anchored(kind) for kind in stated.values()):
            return ""
        types = tuple(self.types.get(n) if n else None for n in node.inputs)
        values = tuple(self.value(n) if n else None for n in node.inputs)
        found = schema_types(node, self.opset, types, values, self.types)
        if isinstance(found, str):
            return found
        for output, kind in found.items():
            known = stated[output]
            if bounded(kind) and (known is None or (known.shape is None and known.dtype == kind.dtype)):
                self.types[output] = self.bound(kind)
            elif known is not None and known.shape is not None and kind.shape is not None and compatible(known, kind):
                self.types[output] = self.anchored(output, known, self.bound(kind))
        return ""

    @cached_property
    def own(self) -> frozenset[str]:
        """The names of open sizes that the model's inputs have."""
        kinds = (self.declared.get(v.name) for v in self.graph.inputs)
        return frozenset(s for k in kinds if k is not None for d in k.shape or () for s in symbols(d))

    def is_anchored(self, kind: TensorType) -> bool:
        """Whether the type has sizes, all of them numbers or of names that inputs have."""
        return kind.shape is not None and all(symbols(d) <= self.own for d in kind.shape)

    def anchored(self, output: str, stated: TensorType, found: TensorType) -> TensorType:
        """The declared type of an output, with what was found of sizes that a tool made names up for (``unk__7``)."""
        shape = found.shape or ()
        new = {str(fresh_size(output, axis)) for axis in range(len(shape))}
        pairs = zip(stated.shape or (), shape, strict=True)
        kept = (s if symbols(s) <= self.own or symbols(f) & new else f for s, f in pairs)
        return replace(stated, shape=tuple(kept))

    def outcome(self, node: Node) -> _Outcome | OpaqueNode:
        """What the node is, or why it is not covered."""
        if node.domain not in ("", "ai.onnx"):
            return OpaqueNode(f"domain {node.domain} is not known")
        operator = REGISTRY.get(node.op)
        if operator is None:
            return OpaqueNode(f"operator {node.op} is not known")
        if self.opset < operator.since:
            return OpaqueNode(f"{node.op} of opset {self.opset} is not covered, only from {operator.since} on")
        types = tuple(self.types.get(n) if n else None for n in node.inputs)
        if any(n and t is None for n, t in zip(node.inputs, types, strict=True)):
            unknown = next(n for n, t in zip(node.inputs, types, strict=True) if n and t is None)
            return OpaqueNode(f"the type of its input {unknown[:80]!r} is not known")
        values = tuple(self.value(n) if n else None for n in node.inputs)
        attributes = tuple(sorted((k, kind_key(v), attribute_key(v)) for k, v in node.attributes.items()))
        outputs = tuple(o in self.used or (bool(o) and p == 0) for p, o in enumerate(node.outputs))
        key = (node.op, attributes, types, tuple(bool(n) for n in node.inputs), outputs, values)
        known = self.memo.get(key)
        if known is None:
            shown = tuple(o if used else "" for o, used in zip(node.outputs, outputs, strict=True))
            if operator.outputs[-1].endswith("*"):
                shown = node.outputs
            seen = node if shown == node.outputs else replace(node, outputs=shown)
            known = self.memo[key] = self.applied(seen, operator, types, values)
        return known

    def applied(
        self,
        node: Node,
        operator: Operator,
        types: tuple[TensorType | None, ...],
        values: tuple[SmallTensorValue | None, ...],
    ) -> _Outcome | OpaqueNode:
        def constant(position: int) -> np.ndarray | None:
            value = values[position] if position < len(values) else None
            return None if value is None else value.array

        def integers(position: int) -> tuple[Dim, ...] | None:
            value = values[position] if position < len(values) else None
            return None if value is None or value.dtype.is_float else value.integers

        try:
            canonical = operator.read(OnnxNodeView(node, self.opset, types, constant, integers))
            if any(p is not None and p >= len(types) for p in canonical.args):
                return OpaqueNode(f"{node.op} with {len(types)} inputs")
            args = tuple(None if p is None else types[p] for p in canonical.args)
            meaning, found = operator.apply(args, canonical.attributes)
        except (UnsupportedNodeForm, SuperoptError) as reason:
            return OpaqueNode(str(reason), isinstance(reason, ContradictoryShapes))
        except MALFORMED as error:
            return OpaqueNode(f"its attributes make no sense to superopt ({type(error).__name__})")
        if any(map(negative_zero, canonical.attributes.values())):
            return OpaqueNode("an attribute is −0, which expressions do not tell from 0")
        if sum(map(bool, node.outputs)) > len(found):
            return OpaqueNode(f"superopt's {node.op} has {len(found)} outputs")
        if not all(bounded(t) for t in found):
            return OpaqueNode(_TOO_LARGE)
        small = [values[p] if p is not None else None for p in canonical.args]
        return _Outcome(operator, canonical, found, self.small(operator, meaning, small, found))

    def small(
        self,
        operator: Operator,
        meaning: OperatorSemantics,
        values: Sequence[SmallTensorValue | None],
        types: Sequence[TensorType],
    ) -> tuple[SmallTensorValue | None, ...]:
        """Values of the outputs, where the inputs' are known, or not read: Shape, Size, no elements."""
        if all(kind.elements == 0 for kind in types):
            return tuple(nothing(kind) for kind in types)
        if any(v is None for v in values) and operator.name not in ("Shape", "Size"):
            return (None,) * len(types)
        return tuple(
            evaluate_small(output, values, kind.dtype) if few(kind) else None
            for output, kind in zip(meaning.outputs, types, strict=True)
        )

    def constant(self, node: Node) -> None:
        """Type and value of a Constant that is kept as data."""
        if (said := constant_attribute(node)) is None:
            return
        name, given = said
        output = node.outputs[0] if node.outputs else ""
        if isinstance(given, Weight):
            self.types[output] = given.type
            self.values[output] = small_of_weight(given)
        elif (array := attribute_array(name, given)) is not None:
            kind = TensorType(REGISTRY["Constant"].result((), {"dtype": str(array.dtype)}), tuple(array.shape))
            self.types[output] = kind
            self.values[output] = small_of_array(array, kind.dtype)

    def misdeclared(self, node: Node, found: _Outcome) -> str | None:
        """Why the inferred and the declared types of the outputs cannot both be right; then neither is used."""
        for output, kind in zip(node.outputs, found.types, strict=False):
            stated = self.declared.get(output)
            if output and stated is not None and not compatible(stated, kind):
                del self.declared[output]
                return f"{label(node)}: the model declares {stated} for an output that the operator makes {kind}"
        return None


def small_of_weight(weight: Weight) -> SmallTensorValue | None:
    count = weight.type.elements
    limit = FLOATS if weight.type.dtype.is_float else LIMIT
    if weight.data is None or not isinstance(count, int) or count > limit or weight.type.dtype.bits < 8:
        return None
    return small_of_array(weight.data.numpy(), weight.type.dtype)


def nothing(kind: TensorType) -> SmallTensorValue | None:
    """The value of a tensor without elements; ``None`` where a size is open."""
    sizes = tuple(d for d in kind.shape or () if isinstance(d, int))
    return SmallTensorValue(kind.dtype, sizes, ()) if len(sizes) == kind.rank else None


def kind_key(value: object) -> str:
    """Tells attributes apart whose keys read alike."""
    return type(value).__name__


def negative_zero(value: AttributeValue) -> bool:
    """Whether a number, or one in a list, is a zero with a sign: Python's numbers, and so terms, are equal there."""
    if isinstance(value, tuple):
        return any(map(negative_zero, value))
    return isinstance(value, float) and value == 0.0 and copysign(1.0, value) < 0.0


def few(kind: TensorType) -> bool:
    count = kind.elements
    return isinstance(count, int) and count <= LIMIT


def bounded(kind: TensorType) -> bool:
    """Whether a type's sizes are numbers that ONNX can hold, or formulas of moderate length."""
    for size in kind.shape or ():
        if isinstance(size, SizePolynomial) and len(size.terms) > LONGEST:
            return False
        if isinstance(size, SizePolynomial) and any(abs(c) > LARGEST for _, c in size.terms):
            return False
        if isinstance(size, int) and not 0 <= size <= LARGEST:
            return False
    return kind.nbytes is None or kind.nbytes <= LARGEST


def compatible(stated: TensorType, found: TensorType) -> bool:
    """Whether two types of one value can both be right."""
    if stated.dtype != found.dtype:
        return False
    if stated.shape is None or found.shape is None:
        return True
    return len(stated.shape) == len(found.shape) and all(
        a == b or isinstance(a, SizePolynomial) or isinstance(b, SizePolynomial)
        for a, b in zip(stated.shape, found.shape, strict=True)
    )


def is_index_name(name: str) -> bool:
    """Whether a dimension's name could be taken for an index variable of a meaning (``i0``, ``r12``)."""
    return name[:1] in ("i", "r") and name[1:].isdecimal()


def primed(name: str) -> SizePolynomial:
    return sym(f"{name}'")


def is_symbol(dim: Dim) -> bool:
    """Whether a size is a name of its own, not computed of others."""
    return symbols(dim) == {str(dim)}


def known_shapes(
    graph: Graph, typing: InferredTypes, given: Iterable[str], *, barriers: bool = False
) -> dict[str, tuple[Dim, ...]]:
    """Shapes that follow from those of the inputs alone, whatever is in them.

    Args:
        graph: at whose inputs' sizes.
        typing: its types.
        given: names besides the inputs whose shapes are known.
        barriers: also those that a node gives which no record covers, where each of its sizes is a number.
    """
    kinds = [v.type for v in graph.inputs if isinstance(v.type, TensorType)]
    free = frozenset(s for t in kinds for d in t.shape or () if is_symbol(d) for s in symbols(d))
    sure = {v.name for v in graph.inputs if isinstance(v.type, TensorType)}.union(given)
    for node, known in zip(graph.nodes, typing.nodes, strict=True):
        if sure.issuperset(node.reads):
            made = [o for o in node.outputs if o]
            kind = [typing.types.get(o) for o in made]
            static = barriers and all(t is not None and t.is_static for t in kind)
            sure.update(made if isinstance(known, CanonicalNode) or static else ())
    shapes = {n: t.shape for n, t in typing.types.items() if n in sure and t is not None}
    return {n: s for n, s in shapes.items() if s is not None and all(symbols(d) <= free for d in s)}


def sizes_fed_to(graph: Graph, feeds: Mapping[str, np.ndarray]) -> dict[str, int]:
    """The symbolic dimensions of a graph's inputs, as these arrays have them."""
    sizes: dict[str, int] = {}
    for value in graph.inputs:
        shape = value.type.shape if isinstance(value.type, TensorType) else None
        if value.name in feeds and shape is not None:
            sizes.update((str(d), n) for d, n in zip(shape, feeds[value.name].shape, strict=True) if is_symbol(d))
    return sizes

"""How much arithmetic and memory traffic an operator is, read from its meaning and types.

Convention: an addition, a multiplication, a comparison, max, min and a transcendental function count 1 each; summing n
terms counts n; a division is an inverse and a multiplication; reading, index arithmetic, guards and a change of sign
count 0. A subexpression is counted once for each value of the index variables it depends on, as a sensible evaluation
computes it (the sum inside Softmax once per row). So Conv is ``2·N·M·OH·OW·Cg·KH·KW``, padded taps included, plus one
addition for a bias.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from superopt.ir.graph import Graph, Node
from superopt.ir.size_polynomial import Dim, symbols
from superopt.ir.symbolic_size_binding import at_sizes
from superopt.ir.terms import AttributeValue
from superopt.ir.types import OpaqueType, TensorType
from superopt.ops import REGISTRY
from superopt.ops.operator_definition import Operator
from superopt.ops.operator_semantics import (
    ElementRead,
    IllTypedOperator,
    ScalarCall,
    ScalarConditional,
    ScalarConstant,
    ScalarExpression,
    ScalarReduction,
    SizeExpression,
    TensorComprehension,
    subexpressions,
)
from superopt.ops.shape_inference import CanonicalNode, InferredTypes

__all__ = ["VIEWS", "InferenceWork", "GraphWorkAnalysis", "arithmetic", "flops", "work_of"]

VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})  # they rename memory and move none
_NEVER_FOLDED = frozenset({"DequantizeLinear"})
FREE = frozenset({"select", "cast_int", "not", "and", "or", "xor"})
Variables = frozenset[str]


def flops(operator: Operator, types: Sequence[TensorType | None], attributes: Mapping[str, AttributeValue]) -> Dim:
    """Arithmetic operations of one application, symbolic where sizes are.

    Raises:
        IllTypedOperator: the operator does not accept the types.
    """
    return _flops(operator, tuple(types), tuple(sorted(attributes.items())))


def arithmetic(typing: InferredTypes) -> int:
    """FLOPs of all nodes of a typed graph that are understood and whose sizes are known."""
    total = 0
    for node in typing.nodes:
        if isinstance(node, CanonicalNode):
            kinds = [None if a is None else typing.types[a] for a in node.args]
            found = flops(node.operator, kinds, node.attributes)
            total += found if isinstance(found, int) else 0
    return total


@lru_cache(maxsize=65536)
def _flops(
    operator: Operator, types: tuple[TensorType | None, ...], attributes: tuple[tuple[str, AttributeValue], ...]
) -> Dim:
    meaning, _ = operator.apply(types, dict(attributes))
    return sum((_output(c) for c in meaning.outputs), start=0)


def _output(output: TensorComprehension) -> Dim:
    extents: dict[str, Dim] = {v: e for axis in output.axes for v, e in axis}
    nodes = list(subexpressions(output.body))
    extents.update((n.variable, n.extent) for n in nodes if isinstance(n, ScalarReduction))
    free: dict[int, Variables] = {}
    for node in nodes:
        free[id(node)] = _free(node, free, extents)
    return sum((_own(node, free) * _times(_scope(node, free), extents) for node in nodes), start=0)


def _free(node: ScalarExpression, free: Mapping[int, Variables], extents: Mapping[str, Dim]) -> Variables:
    """Index variables that the value depends on."""
    match node:
        case SizeExpression(size):
            return symbols(size) & extents.keys()
        case ElementRead(_, index, _):
            parts = [free[id(i)] if isinstance(i, ScalarExpression) else symbols(i) & extents.keys() for i in index]
            return frozenset().union(*parts)
        case ScalarCall(_, args):
            return frozenset().union(*(free[id(a)] for a in args))
        case ScalarConditional(conditions, then, otherwise):
            guards = [symbols(c.size) & extents.keys() for c in conditions]
            return free[id(then)] | free[id(otherwise)] | frozenset().union(*guards)
        case ScalarReduction(_, variable, _, body):
            return free[id(body)] - {variable}
    return frozenset()


def _scope(node: ScalarExpression, free: Mapping[int, Variables]) -> Variables:
    """Index variables for each of whose values the node's own operation runs."""
    return free[id(node)] | {node.variable} if isinstance(node, ScalarReduction) else free[id(node)]


def _own(node: ScalarExpression, free: Mapping[int, Variables]) -> int:
    """Operations of the node itself, once."""
    match node:
        case ScalarReduction(kind, _, _, ScalarReduction(inner, _, _, _)) if kind == inner:
            return 0  # one sum over several variables: its terms are counted inside
        case ScalarReduction():
            return 1
        case ScalarCall("mul", (ScalarConstant(value), _) | (_, ScalarConstant(value))) if value in (1, -1):
            return 0
        case ScalarCall(function, args) if function not in FREE:
            return 0 if all(isinstance(a, ScalarConstant | SizeExpression) for a in args) else 1
    return 0


def _times(variables: Variables, extents: Mapping[str, Dim]) -> Dim:
    return prod((extents[v] for v in sorted(variables)), start=1)


def work_of(
    op: str,
    attributes: Mapping[str, AttributeValue],
    arg_types: Sequence[TensorType | None],
    out_types: Sequence[TensorType],
) -> tuple[int, int]:
    """FLOPs and bytes moved of one application to static types; an unknown operator counts one FLOP an element."""
    moved = sum(t.nbytes or 0 for t in (*arg_types, *out_types) if t is not None)
    if op not in REGISTRY:
        return sum(_count(t) for t in out_types), moved
    try:
        found = flops(REGISTRY[op], tuple(arg_types), attributes)
    except IllTypedOperator:
        found = sum(_count(t) for t in out_types)
    return found if isinstance(found, int) else sum(_count(t) for t in out_types), moved


def _count(kind: TensorType) -> int:
    return kind.elements if isinstance(kind.elements, int) else 0


@dataclass(frozen=True)
class InferenceWork:
    """Floating-point operations, bytes moved, and kernels that the runtime starts, in one inference."""

    flops: int = 0
    bytes: int = 0
    kernels: float = 0

    def __add__(self, other: InferenceWork) -> InferenceWork:
        return InferenceWork(self.flops + other.flops, self.bytes + other.bytes, self.kernels + other.kernels)

    def no_more_than(self, other: InferenceWork) -> bool:
        """Whether nothing of it is more, and something less."""
        mine, theirs = self._all, other._all
        return all(m <= t for m, t in zip(mine, theirs, strict=True)) and mine != theirs

    @property
    def _all(self) -> tuple[int, int, float]:
        return self.flops, self.bytes, self.kernels


class GraphWorkAnalysis:
    """The nodes of a typed graph that an inference runs at fixed sizes, and their work.

    A value is *static* if it depends on weights alone: the runtime computes it once, before the first inference. A
    dequantised weight is not: runtimes keep its integers, for kernels of integers.

    Args:
        graph: the model.
        typing: its types.
        sizes: the numbers that replace symbolic sizes.
        folds_shapes: the runtime also folds integers that follow from the declared sizes (``Backend.folds_shapes``).
            PyTorch exports a ``chunk`` as a dozen operators on such integers.
    """

    def __init__(
        self, graph: Graph, typing: InferredTypes, sizes: Mapping[str, int] | None = None, *, folds_shapes: bool = False
    ) -> None:
        self.graph = graph
        self.typing = typing
        self.sizes = sizes = dict(sizes or {})
        self.types = {n: at_sizes(t, sizes) for n, t in typing.types.items() if t is not None and t.shape is not None}
        self.static = set(graph.constants)
        if folds_shapes and all(isinstance(v.type, TensorType) and v.type.is_static for v in graph.inputs):
            self.static.update(typing.integers)
        for node in graph.nodes:
            if node.op not in _NEVER_FOLDED and all(n in self.static for n in node.reads):
                self.static.update(o for o in node.outputs if o)

    def runs(self, node: Node) -> bool:
        """Whether an inference executes the node."""
        fed = node.op in _NEVER_FOLDED or not all(n in self.static for n in node.reads)
        return fed and not all(o in self.static for o in node.outputs if o)

    def running(self) -> Iterator[tuple[Node, CanonicalNode | None]]:
        """The nodes that an inference executes, each with the operator that it applies, if superopt has that."""
        for node, applied in zip(self.graph.nodes, self.typing.nodes, strict=True):
            if self.runs(node):
                yield node, applied if isinstance(applied, CanonicalNode) else None

    def types_of(self, node: Node, applied: CanonicalNode | None) -> tuple[list[TensorType | None], list[TensorType]]:
        """The types of a node's arguments and outputs, as far as they are inferred."""
        names = applied.args if applied else tuple(n or None for n in node.inputs)
        args = [None if n is None else self.types.get(n) for n in names]
        return args, [self.types[o] for o in node.outputs if o in self.types]

    def bytes_of(self, name: str) -> int:
        """Bytes of a value; 0 where its type is not known."""
        kind = self.types.get(name)
        if kind is None:
            weight = self.graph.weight.get(name)
            kind = weight.type if weight is not None else None
        return (kind.nbytes or 0) if kind is not None and not isinstance(kind, OpaqueType) else 0

    def per_node(self) -> Iterator[tuple[Node, int, int]]:
        """FLOPs and bytes moved of each node that an inference executes."""
        for node, applied in self.running():
            if applied is not None and applied.operator.name in VIEWS:
                yield node, 0, 0
            else:
                args, outs = self.types_of(node, applied)
                name, attributes = (applied.operator.name, applied.attributes) if applied else ("", {})
                yield node, *work_of(name, attributes, args, outs)

    def flops_and_bytes(self) -> tuple[int, int]:
        """FLOPs, and bytes moved, of one inference."""
        work = [(operations, volume) for _, operations, volume in self.per_node()]
        return sum(operations for operations, _ in work), sum(volume for _, volume in work)

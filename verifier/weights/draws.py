"""Values of a model drawn at random, as far as the claims about them allow, and their evaluation.

:class:`SizedGraph` is a graph at known sizes. :class:`DrawnShapes` are the shapes of drawn values: an axis is short if
no claim is about it and all operators accept that. :class:`ConstrainedDraws` are values at one point.
:class:`DrawnValueEvaluator` computes the values of a model and of its result from them: the meanings of nodes, and
writes over known positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from superopt.ir.errors import NotEquivalent, SuperoptError
from superopt.ir.graph import Graph, Node, Weight
from superopt.ir.size_polynomial import substitute
from superopt.ir.terms import AttributeValue
from superopt.ir.types import TensorType
from superopt.ops.constants_and_shapes import weight_of
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.ops.shape_inference import CanonicalNode, infer
from superopt.rules.weight_claims import EqualSlices, UniformSlices, WeightRewriteCertificate
from superopt.runtime.comprehension_evaluation import FLOAT64, Array, evaluate
from superopt.verifier.check.input_generation import index_bound
from superopt.verifier.exact.algebra import NeedsOrder, PrimeField

__all__ = [
    "ValueClaims",
    "ConstrainedDraws",
    "DrawnValueEvaluator",
    "DrawnShapes",
    "SizedGraph",
    "fixed_shape",
    "weight_named",
]


def weight_named(graph: Graph, name: str) -> Weight | None:
    """A weight that the caller cannot override, or the tensor of a Constant."""
    node = graph.producer.get(name)
    return graph.constants.get(name) if node is None else weight_of(node)


@dataclass(frozen=True)
class ValueClaims:
    """The claims about one value: slices that are one number, slices that are equal, a test's one answer."""

    uniform: tuple[UniformSlices, ...] = ()
    equal: tuple[EqualSlices, ...] = ()
    answer: bool | None = None

    @property
    def axes(self) -> set[int]:
        """The axes that something is said about."""
        return {u.axis for u in self.uniform} | {e.axis for e in self.equal}


@dataclass
class SizedGraph:
    """A graph at known sizes, and the values that its nodes compute."""

    graph: Graph
    sizes: Mapping[str, int]
    sized: bool = False  # integers that follow from sizes alone, whatever the open ones are, are known
    nodes: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.typing = infer(self.graph, self.sizes)
        self.size_values = infer(self.graph).integers if self.sized else {}
        self.nodes = {o: i for i, n in enumerate(self.graph.nodes) for o in n.outputs if o}
        self.arrays: dict[str, np.ndarray] = {}
        self.fixed: dict[str, bool] = {}
        self.residues: dict[str, Array] = {}

    def node(self, name: str) -> Node | None:
        position = self.nodes.get(name)
        return None if position is None else self.graph.nodes[position]

    def kind(self, name: str) -> TensorType:
        kind = self.typing.types.get(name)
        if kind is None or kind.shape is None:
            raise NotEquivalent(f"the type of {name!r} is not known")
        return kind

    def weight(self, name: str) -> np.ndarray | None:
        """Elements of a weight that the caller cannot override, of a Constant, or of what follows from sizes alone."""
        if name not in self.arrays:
            weight = weight_named(self.graph, name)
            if weight is None or weight.data is None:
                return self.size_values.get(name)
            self.arrays[name] = weight.data.numpy()
        return self.arrays[name]

    def constant(self, name: str) -> bool:
        """Whether a value is computed of weights alone, and of sizes that are known."""
        if name not in self.fixed:
            node = self.node(name)
            self.fixed[name] = (
                name in self.size_values
                or weight_named(self.graph, name) is not None
                or (node is not None and self._understood(name) and all(map(self.constant, node.reads)))
            )
        return self.fixed[name]

    def _understood(self, name: str) -> bool:
        return isinstance(self.typing.nodes[self.nodes[name]], CanonicalNode)

    def overwrites(self, name: str) -> bool:
        """Whether a value is another one in which some places are written over."""
        node = self.node(name)
        return (
            node is not None and node.op in ("ScatterND", "ScatterElements") and node.domain in ("", "ai.onnx")
            and not node.overload and node.attributes.get("reduction", b"none") in (b"none", "none")
        )  # fmt: skip

    def applied(self, name: str) -> CanonicalNode:
        how = self.typing.nodes[self.nodes[name]]
        if not isinstance(how, CanonicalNode):
            raise NotEquivalent(f"what makes {name!r} is not understood")
        return how

    def attributes(self, how: CanonicalNode) -> dict[str, AttributeValue]:
        return {k: _at(v, self.sizes) for k, v in how.attributes.items()}


def _at(value: AttributeValue, sizes: Mapping[str, int]) -> AttributeValue:
    if isinstance(value, tuple):
        return tuple(_at(v, sizes) for v in value)
    return value if isinstance(value, int | float | str) else substitute(value, dict(sizes))


@dataclass
class ConstrainedDraws:
    """Values of the model at one point: drawn, subject to their claims, or computed from weights."""

    side: SizedGraph
    claims: Mapping[str, ValueClaims]
    algebra: PrimeField | None
    rng: np.random.Generator
    shapes: Mapping[str, tuple[int, ...]]
    drawn: dict[str, Array] = field(default_factory=dict)

    def number(self, value: np.ndarray, kind: TensorType) -> Array:
        """Elements of a weight as numbers of the algebra."""
        if not kind.dtype.is_float:
            whole = value.astype(np.int64)
            return whole if self.algebra is None else self.algebra.integers(whole)
        if self.algebra is None:
            return value.astype(np.float64)
        if not np.isfinite(value).all():
            raise NeedsOrder("an infinite weight")
        return self.algebra.floats(value)

    def value(self, name: str) -> Array:
        if name in self.drawn:
            return self.drawn[name]
        weight = self.side.weight(name)
        if weight is not None:
            return self.number(weight, self.side.kind(name))
        self.drawn[name] = self._drawn(name)
        return self.drawn[name]

    def _drawn(self, name: str) -> Array:
        kind = self.side.kind(name)
        shape = self.shapes.get(name) or fixed_shape(kind)
        if self.side.constant(name):
            raise NotEquivalent(f"{name!r} is computed of weights, and stands where it cannot be computed here")
        if not kind.dtype.is_float:
            positions = index_bound(self.side.graph, name, self.side.sizes)  # a table of one row has no second
            whole = self.rng.integers(0, 1 if positions == 1 else 2, size=shape)
            array: Array = whole if self.algebra is None else self.algebra.integers(whole)
        elif self.algebra is None:
            array = self.rng.standard_normal(shape)
        else:
            array = self.algebra.random(self.rng, shape)
        claims = self.claims.get(name, ValueClaims())
        if claims.answer is not None:
            array[...] = self.number(np.asarray(claims.answer), kind)
        for equal in claims.equal:
            rows = np.moveaxis(array, equal.axis, 0)
            for at, earlier in equal.pairs:
                rows[at] = rows[earlier]
        for uniform in claims.uniform:
            rows = np.moveaxis(array, uniform.axis, 0)
            numbers = self.number(np.asarray(uniform.numbers), kind)
            rows[list(uniform.indices)] = numbers.reshape(-1, *[1] * (array.ndim - 1))
        return array


def fixed_shape(kind: TensorType) -> tuple[int, ...]:
    """The sizes of a type without open ones."""
    shape = tuple(d for d in kind.shape or () if isinstance(d, int))
    if len(shape) < len(kind.shape or ()):
        raise NotEquivalent(f"a size of {kind} depends on data")
    return shape


@dataclass(frozen=True)
class DrawnShapes:
    """Shapes of values of the model.

    Attributes:
        before: the model.
        certificate: whose axes keep their lengths.
        claims: its claims, by value.
    """

    before: SizedGraph
    certificate: WeightRewriteCertificate
    claims: Mapping[str, ValueClaims]

    def drawn_shapes(self, sources: Iterable[str]) -> dict[str, tuple[int, ...]]:
        """Shapes of drawn values."""
        drawn = [n for n in dict.fromkeys(sources) if not self.before.constant(n)]
        return {n: fixed_shape(self.before.kind(n)) for n in drawn}

    def small(self, wanted: Sequence[str], sources: Iterable[str], length: int) -> Mapping[str, tuple[int, ...]] | None:
        """Shapes of drawn values with long axes made short where no claim is about them; ``None`` where the operators
        do not allow it, or none is long."""
        own = self.drawn_shapes(sources)
        fixed = {
            int(d) for n in self._near(wanted, list(own)) for d in self.before.kind(n).shape or () if isinstance(d, int)
        }
        claimed = {(n, a) for n in own for a in self._of(n).axes}
        claimed |= {(k.value, a) for k in self.certificate.kept for a, _ in k.axes}
        shapes = {
            n: tuple(
                length if d > length and d not in fixed and (n, a) not in claimed else d for a, d in enumerate(shape)
            )
            for n, shape in own.items()
        }
        return shapes if shapes != own and self._fits(wanted, shapes) else None

    def _of(self, name: str) -> ValueClaims:
        return self.claims.get(name, ValueClaims())

    def _near(self, wanted: Sequence[str], drawn: Sequence[str]) -> set[str]:
        """The constants that are read on the way from drawn values to those wanted."""
        found, stack, seen = set[str](), list(wanted), set(drawn)
        while stack:
            name = stack.pop()
            node = self.before.node(name)
            if name in seen or node is None:
                continue
            seen.add(name)
            for read in node.reads:
                (found.add if self.before.constant(read) else stack.append)(read)
        return found

    def _fits(self, wanted: Sequence[str], shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether the operators on the way take these shapes and give results of the same kept sizes."""
        types: dict[str, TensorType] = {n: TensorType(self.before.kind(n).dtype, s) for n, s in shapes.items()}
        stack = list(wanted)
        try:
            while stack:
                name = stack[-1]
                if name in types or self.before.node(name) is None:
                    types.setdefault(name, self.before.kind(name))
                    stack.pop()
                    continue
                how = self.before.applied(name)
                missing = [a for a in how.args if a is not None and a not in types]
                if missing:
                    stack += missing
                    continue
                given_tensor_types = [None if a is None else types[a] for a in how.args]
                tensor_types = how.operator.apply(given_tensor_types, self.before.attributes(how))[1]
                outputs = self.before.graph.nodes[self.before.nodes[name]].outputs
                types.update((o, t) for o, t in zip(outputs, tensor_types, strict=False) if o)
        except (IllTypedOperator, SuperoptError):
            return False
        kept = {(k.value, a) for k in self.certificate.kept for a, _ in k.axes}
        kept |= {(n, a) for n in wanted for a in self._of(n).axes}
        return all(
            (types[n].shape or ())[a] == (self.before.kind(n).shape or ())[a]
            for n, a in kept if n in types
        )  # fmt: skip


_LARGEST = 1 << 28  # bytes of weights as elements of a field that a side holds at once


@dataclass(frozen=True)
class DrawnValueEvaluator:
    """Evaluates values of either side.

    Attributes:
        before: the model.
        claims: what is said of its values.
        same: its values that are claimed to be others.
    """

    before: SizedGraph
    claims: Mapping[str, ValueClaims]
    same: Mapping[str, str]

    def evaluated(
        self, side: SizedGraph, wanted: Sequence[str], given: Mapping[str, Array], draws: ConstrainedDraws
    ) -> dict[str, Array]:
        """Values from those given; inputs of the model on the way are drawn."""
        arrays: dict[str, Array] = dict(given)
        stack = list(wanted)
        while stack:
            name = stack[-1]
            if name in arrays:
                stack.pop()
                continue
            weight = side.weight(name)
            if weight is not None:
                arrays[name] = _elements(side, name, weight, draws)
                continue
            if side.node(name) is None or (side is self.before and name not in wanted and self.is_determined(name)):
                arrays[name] = draws.value(name)
                continue
            if side is self.before and name not in wanted and name in self.same:
                if self.same[name] in arrays:
                    arrays[name] = arrays[self.same[name]]
                else:
                    stack.append(self.same[name])
                continue
            node = side.node(name) if side.overwrites(name) else None
            how = None if node is not None else side.applied(name)
            read = node.inputs if node is not None else how.args if how is not None else ()
            missing = [a for a in read if a is not None and a not in arrays]
            if missing:
                stack += missing
            elif node is not None:
                arrays[name] = _overwritten(node, [arrays[a] for a in read if a is not None], draws.algebra)
            elif how is not None:
                arrays.update(_applied(side, name, how, arrays, draws))
        return {n: arrays[n] for n in wanted}

    def static_values_between(self, name: str, sources: set[str]) -> list[str]:
        """Static values between sources and a value computed from them."""
        found: list[str] = []
        stack, seen = [name], {name, *sources}
        while stack:
            node = self.before.node(stack.pop())
            for read in node.reads if node is not None else ():
                read = self.same.get(read, read)
                if read not in seen and not self.before.constant(read):
                    seen.add(read)
                    (found if self.is_determined(read) else stack).append(read)
        return found

    def is_determined(self, name: str) -> bool:
        """Whether the claims about a value determine it."""
        shape, claims = self.before.kind(name).shape or (), self.claims.get(name, ValueClaims())
        return claims.answer is not None or any(len(set(u.indices)) == shape[u.axis] for u in claims.uniform)


def _elements(side: SizedGraph, name: str, weight: np.ndarray, draws: ConstrainedDraws) -> Array:
    """Elements of a weight as numbers of the algebra; those of a field are made once for all lengths of a place."""
    if draws.algebra is None or 8 * weight.size > _LARGEST - sum(a.nbytes for a in side.residues.values()):
        return draws.number(weight, side.kind(name))
    if name not in side.residues:
        side.residues[name] = draws.number(weight, side.kind(name))
    return side.residues[name]


def _applied(
    side: SizedGraph, name: str, how: CanonicalNode, arrays: Mapping[str, Array], draws: ConstrainedDraws
) -> Mapping[str, Array]:
    """The outputs of a node from its operands."""
    operands = [None if a is None else arrays[a] for a in how.args]
    types = [None if a is None else TensorType(side.kind(a).dtype, tuple(map(int, arrays[a].shape))) for a in how.args]
    try:
        meaning, tensor_types = how.operator.apply(types, side.attributes(how))
    except IllTypedOperator as error:
        raise NotEquivalent(f"what makes {name!r} does not fit the slices that are kept: {error}") from None
    operands += [None] * (len(how.operator.inputs) - len(operands))
    outputs = side.graph.nodes[side.nodes[name]].outputs
    algebra = draws.algebra or FLOAT64
    return {
        o: np.array(evaluate(c, operands, algebra, {})).reshape(fixed_shape(t))
        for o, c, t in zip(outputs, meaning.outputs, tensor_types, strict=False)
        if o
    }


def _overwritten(node: Node, operands: Sequence[Array], algebra: PrimeField | None) -> Array:
    """A tensor with what is written at its places, which have to be different: ONNX has no order of writes."""
    if algebra is not None:
        raise NeedsOrder("positions from the end")
    data, indices, updates = operands
    where = np.asarray(indices, dtype=np.int64)
    if node.op == "ScatterND":
        arrays = [where[..., axis] for axis in range(where.shape[-1])]
        shape = (*where.shape[:-1], *data.shape[where.shape[-1] :])
    else:
        arrays, shape = list(np.indices(where.shape)), where.shape
        axis = node.attributes.get("axis", 0)
        arrays[axis if isinstance(axis, int) else data.ndim] = where
    array, times = np.array(data, dtype=np.float64), np.zeros(data.shape[: len(arrays)], dtype=np.int64)
    if shape != updates.shape or len(arrays) > data.ndim:
        raise NotEquivalent(f"what is written into {node.outputs[0]!r} has another shape")
    try:
        np.add.at(times, tuple(arrays), 1)
    except IndexError as error:
        raise NotEquivalent(f"what {node.outputs[0]!r} is written to is not there: {error}") from None
    if (times > 1).any():
        raise NotEquivalent(f"a place of {node.outputs[0]!r} is written to twice")
    array[tuple(arrays)] = updates
    return array

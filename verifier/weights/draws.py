"""A graph at known sizes, and values of it that are drawn as far as the claims about them allow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from superopt.ir.errors import NotEquivalent
from superopt.ir.graph import Graph, Node, Weight
from superopt.ir.poly import substitute
from superopt.ir.terms import AttributeValue
from superopt.ir.types import TensorType
from superopt.ops.generators import weight_of
from superopt.ops.infer import Applied, infer
from superopt.rules.values import Equal, Uniform
from superopt.runtime.evaluate import Array
from superopt.verifier.check.input_generation import index_bound
from superopt.verifier.exact.algebra import NeedsOrder, PrimeField

__all__ = ["Claims", "Draws", "Side", "fixed_shape", "weight_named"]


def weight_named(graph: Graph, name: str) -> Weight | None:
    """A weight that the caller cannot override, or the tensor of a Constant."""
    node = graph.producer.get(name)
    return graph.constants.get(name) if node is None else weight_of(node)


@dataclass(frozen=True)
class Claims:
    """What is said of one value: slices that are one number, and slices that are equal."""

    uniform: tuple[Uniform, ...] = ()
    equal: tuple[Equal, ...] = ()

    @property
    def axes(self) -> set[int]:
        """The axes that something is said about."""
        return {u.axis for u in self.uniform} | {e.axis for e in self.equal}


@dataclass
class Side:
    """A graph at known sizes, and what its nodes compute."""

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
            found = weight_named(self.graph, name)
            if found is None or found.data is None:
                return self.size_values.get(name)
            self.arrays[name] = found.data.numpy()
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
        return isinstance(self.typing.nodes[self.nodes[name]], Applied)

    def overwrites(self, name: str) -> bool:
        """Whether a value is another one in which some places are written over."""
        node = self.node(name)
        return (
            node is not None and node.op in ("ScatterND", "ScatterElements") and node.domain in ("", "ai.onnx")
            and not node.overload and node.attributes.get("reduction", b"none") in (b"none", "none")
        )  # fmt: skip

    def applied(self, name: str) -> Applied:
        how = self.typing.nodes[self.nodes[name]]
        if not isinstance(how, Applied):
            raise NotEquivalent(f"what makes {name!r} is not understood")
        return how

    def attributes(self, how: Applied) -> dict[str, AttributeValue]:
        return {k: _at(v, self.sizes) for k, v in how.attributes.items()}


def _at(value: AttributeValue, sizes: Mapping[str, int]) -> AttributeValue:
    if isinstance(value, tuple):
        return tuple(_at(v, sizes) for v in value)
    return value if isinstance(value, int | float | str) else substitute(value, dict(sizes))


@dataclass
class Draws:
    """Values of the model at one point: drawn, given their claims, or computed from weights."""

    side: Side
    claims: Mapping[str, Claims]
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
        claims = self.claims.get(name, Claims())
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

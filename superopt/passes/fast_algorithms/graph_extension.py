"""Appending operators to a graph that exists: fresh names, constants shared by value."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import numpy as np

from superopt.formats.tensors import set_aside
from superopt.ir.graph import Attribute, Graph, Node, Weight, constant
from superopt.ir.types import DType, TensorType

__all__ = ["Writer"]


@dataclass
class Writer:
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
        self._taken = {n.name for n in graph.nodes} | graph.names | self.reserved
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
        self.nodes.append(Node(self.name(f"{op}.node"), op, inputs, made, dict(attributes)))
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

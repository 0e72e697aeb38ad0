"""Fission: a region of operators computed in parts, one after the other, so that only a part of what is inside of it is
ever alive.

A region is grown back from its result (the *head*): with a node, what makes its operands can be in the region, too, if
nothing else reads it, and if slices of it are all that is asked for. Which slices, the meanings of the operators say
(:mod:`superopt.memory.slicing`): where windows overlap, so do parts, and what is computed twice is cut off. What parts
make is concatenated, or, where the head is a sum over the axis, summed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from superopt.ir.graph import Graph
from superopt.ir.types import TensorType
from superopt.memory.inplace_kernels import IN_PLACE, RENAMING
from superopt.memory.slicing import AxisRange, OperatorSlice, OperatorSlicing, along_axis, along_sum, part
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.ops.shape_inference import CanonicalNode, InferredTypes

__all__ = [
    "FissionPartBuilder",
    "FissionRegion",
    "FissionSearchGraph",
    "FissionStep",
    "bounds",
    "form_of",
    "grown",
    "heads",
    "tails",
]

_LONGEST = 32  # nodes of a region
_REACH = 16  # nodes from a value to the head of a region that it is inside of


@dataclass(frozen=True)
class FissionRegion:
    """Nodes to compute in parts.

    Attributes:
        output: what they make.
        nodes: positions in the graph, the head's first, each before what makes its operands.
        way: how the head is cut.
        parts: how many.
        inside: bytes that are alive at once within a part.
        traffic: bytes that all parts read and write, a kernel counted as so many.
    """

    output: str
    nodes: tuple[int, ...]
    way: OperatorSlicing
    parts: int
    inside: int
    traffic: int


@dataclass(frozen=True)
class FissionStep:
    """A node of a region in one part: what its operands are cut to, and what it makes."""

    node: int
    part: OperatorSlice
    asked: AxisRange | None


@dataclass
class FissionSearchGraph:
    """A typed graph that regions are looked for in.

    Attributes:
        graph: it.
        typing: its types; only axes of known sizes are cut.
        static: names of constants, and of what is computed of them alone.
        readers: positions of the nodes that read a value.
        maker: the position of the node that makes it.
        results: names of the graph's outputs.
        ways: in which a node's first result can be computed in parts of an axis, as far as it was asked.
    """

    graph: Graph
    typing: InferredTypes
    static: set[str] = field(init=False)
    readers: dict[str, list[int]] = field(init=False)
    maker: dict[str, int] = field(init=False)
    results: set[str] = field(init=False)
    ways: dict[tuple[int, int], OperatorSlicing | None] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.static = set(self.graph.constants)
        self.readers, self.maker = {}, {}
        for at, node in enumerate(self.graph.nodes):
            if all(n in self.static for n in node.reads):
                self.static.update(o for o in node.outputs if o)
            for name in dict.fromkeys(node.reads):
                self.readers.setdefault(name, []).append(at)
            for name in node.outputs:
                if name:
                    self.maker[name] = at
        self.results = {v.name for v in self.graph.outputs}

    def type(self, name: str | None) -> TensorType | None:
        return self.typing.types.get(name) if name else None

    def types(self, form: CanonicalNode) -> list[TensorType | None]:
        return [self.type(n) for n in form.args]

    def bytes(self, name: str) -> int:
        kind = self.type(name)
        return (kind.nbytes or 0) if kind is not None and name not in self.static else 0

    def way(self, at: int, form: CanonicalNode, axis: int) -> OperatorSlicing | None:
        """How a node's first result can be computed in parts of an axis."""
        if (at, axis) not in self.ways:
            meaning, _ = form.operator.apply(self.types(form), form.attributes)
            self.ways[at, axis] = along_axis(meaning, axis)
        return self.ways[at, axis]

    def single(self, at: int) -> CanonicalNode | None:
        """What a node applies, where only its first result is used."""
        form, node = self.typing.nodes[at], self.graph.nodes[at]
        used = [o for o in node.outputs if o and (o in self.readers or o in self.results)]
        if not isinstance(form, CanonicalNode) or used != list(node.outputs[:1]) or node.captures:
            return None
        return None if node.outputs[0] in self.static or any(a and not self.type(a) for a in form.args) else form


def heads(source: FissionSearchGraph, value: str) -> list[int]:
    """Positions of the nodes that a value leads to, in the graph's order: heads of regions that it may be inside of."""
    found: set[int] = set()
    edge = list(source.readers.get(value, ()))
    while edge and len(found) < _REACH:
        at = min(edge)
        edge.remove(at)
        if at in found:
            continue
        found.add(at)
        edge += [r for o in source.graph.nodes[at].outputs for r in source.readers.get(o, ())]
    return sorted(found)


def tails(source: FissionSearchGraph, head: int) -> list[OperatorSlicing]:
    """The ways in which a node can be the head of a region: along the axes of its result, or as a sum."""
    form = source.single(head)
    if form is None:
        return []
    try:
        meaning, (result, *_) = form.operator.apply(source.types(form), form.attributes)
    except IllTypedOperator:
        return []
    found = [along_axis(meaning, axis) for axis in range(len(result.shape or ()))]
    found += along_sum(form.operator, source.types(form), form.attributes)
    return [w for w in found if w is not None and w.extent > 1 and (w.axis is not None or w.reads)]


def grown(
    source: FissionSearchGraph, head: int, way: OperatorSlicing, parts: int, around: int, kernel: int
) -> Iterator[FissionRegion]:
    """Regions with a head, each longer than the one before.

    Args:
        source: the graph.
        head: position of the node.
        way: how it is cut.
        parts: how many there are to be.
        around: position of a node that has to be inside.
        kernel: bytes that a kernel counts as besides what it reads and writes.
    """
    if parts < 2 or way.extent < parts:
        return
    low, high = bounds(way, parts)[parts // 2]
    growth = FissionPartBuilder(source, head, way, low, high)
    while growth.step():
        if around not in growth.nodes[1:]:
            if not growth.open or max(growth.open) < around:
                return
            continue
        inside, moved = growth.taken(kernel)
        output = source.graph.nodes[head].outputs[0]
        joined = (2 if way.axis is not None else 3 * parts) * source.bytes(output) + (parts + 1) * kernel
        yield FissionRegion(output, tuple(growth.nodes), way, parts, inside, moved * parts + joined)


def bounds(way: OperatorSlicing, parts: int) -> list[tuple[int, int]]:
    """The first position and the one behind the last of each part, as equal as they can be."""
    edges = [way.unit * (way.extent * i // parts) for i in range(parts + 1)]
    return list(pairwise(edges))


class FissionPartBuilder:
    """One part of a region that grows."""

    def __init__(self, source: FissionSearchGraph, head: int, way: OperatorSlicing, low: int, high: int) -> None:
        self.source, self.head, self.way, self.low, self.high = source, head, way, low, high
        self.steps: list[FissionStep] = []
        self.nodes: list[int] = []
        self.asked: dict[str, AxisRange] = {}  # of values that are read in slices
        self.whole: set[str] = set()
        self.open = [head]  # makers of what is read in slices

    def step(self) -> bool:
        """Take one more node into the region: the last that can be."""
        while self.open and len(self.nodes) < _LONGEST:
            at = max(self.open)
            self.open.remove(at)
            if at not in self.nodes and self.take(at):
                return True
        return False

    def take(self, at: int) -> bool:
        """Take a node into the region, if it can be."""
        source = self.source
        name, form = source.graph.nodes[at].outputs[0], source.single(at)
        if form is None:
            return False
        made, asked = self._result_part(at, name, form)
        if made is None:
            return False
        self.nodes.append(at)
        self.steps.append(FissionStep(at, made, asked))
        for i, operand in enumerate(form.args):
            if operand is None:
                continue
            if i in made.operands:
                self._request(operand, made.operands[i])
                if operand in source.maker and operand not in source.static:
                    self.open.append(source.maker[operand])
            elif not (i in self.way.once and at == self.head):
                self.whole.add(operand)
        return True

    def _result_part(self, at: int, name: str, form: CanonicalNode) -> tuple[OperatorSlice | None, AxisRange | None]:
        source = self.source
        types = source.types(form)
        if at == self.head:
            asked = None if self.way.axis is None else AxisRange(self.way.axis, self.low, self.high)
            return part(form.operator, types, form.attributes, self.way, self.low, self.high), asked
        inside = set(self.nodes)
        outside = name in source.results or any(r not in inside for r in source.readers[name])
        if outside or name in self.whole or name not in self.asked:
            return None, None
        asked = self.asked[name]
        way = source.way(at, form, asked.axis)
        if way is None:
            return None, None
        return part(form.operator, types, form.attributes, way, asked.low, asked.high), asked

    def _request(self, name: str, span: AxisRange) -> None:
        known = self.asked.get(name)
        if known is None:
            self.asked[name] = span
        elif known.axis == span.axis:
            self.asked[name] = AxisRange(span.axis, min(known.low, span.low), max(known.high, span.high))
        else:
            self.whole.add(name)

    def taken(self, kernel: int) -> tuple[int, int]:
        """Bytes that are alive at once within the part, and bytes that it moves."""
        source, alive, most, moved = self.source, 0, 0, 0
        made = {source.graph.nodes[s.node].outputs[0]: s for s in self.steps}
        left = Counter(a for s in self.steps for a in _operands(source, s) if a in made)
        sizes: dict[str, int] = {}
        for step in reversed(self.steps):
            node, form = source.graph.nodes[step.node], form_of(source, step.node)
            extra = 0
            for i, operand in enumerate(form.args):
                kind = source.type(operand)
                if operand is None or kind is None or operand in source.static:
                    continue
                span = step.part.operands.get(i)
                if span is None:
                    moved += kind.nbytes or 0
                    continue
                size = _size(kind, span)
                whole = span.high - span.low == (kind.shape or ())[span.axis]
                cut = (operand not in made and not whole) or (operand in made and span != made[operand].part.made)
                extra += size if cut else 0
                moved += (3 * size + kernel) if cut else size
            own = step.part.types[0].nbytes or 0
            renamed = (node.domain, node.op) in RENAMING
            dying = [a for a in _operands(source, step) if left[a] == 1]
            over = (node.domain, node.op) in IN_PLACE and any(sizes[a] == own for a in dying)
            most = max(most, alive + extra + (0 if renamed or over else own))
            sizes[node.outputs[0]] = own
            alive += own
            moved += 0 if renamed else own + kernel
            for name in _operands(source, step):
                if name in left:
                    left[name] -= 1
                    alive -= sizes[name] if not left[name] else 0
        return most, moved


def _operands(source: FissionSearchGraph, step: FissionStep) -> list[str]:
    """What a step reads, each value once."""
    return list(dict.fromkeys(a for a in form_of(source, step.node).args if a is not None))


def form_of(source: FissionSearchGraph, at: int) -> CanonicalNode:
    form = source.typing.nodes[at]
    assert isinstance(form, CanonicalNode)
    return form


def _size(kind: TensorType, span: AxisRange) -> int:
    size = (kind.shape or ())[span.axis]
    assert isinstance(size, int)
    return (kind.nbytes or 0) // size * (span.high - span.low)

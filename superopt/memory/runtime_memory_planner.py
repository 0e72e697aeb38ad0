"""What ONNX Runtime's planner makes of a graph's activations: buffers, who shares them, and where they lie in a block.

The graph is the one that it really runs (:func:`superopt.runtime.executed_graph.lowered`), whose file has its nodes in
the order in which they are executed (:func:`as_executed`). Its rules, as of 1.31 on the CPU (docs/decisions/0029):

- a graph's inputs are the caller's, its outputs have memory of their own, and the rest is one block;
- a value is its operand's memory where the kernel only renames it, and where the kernel may work in place, the shapes
  are the same, and nothing reads that memory later;
- else it takes the memory of a value of the same shape and width that is read no more, the last to become free first;
- such memory is never given back in between: it lives from the first value in it to the last reader of the last;
- the block is laid out in order of execution, each buffer in the smallest gap it fits into, else at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from superopt.ir.graph import Graph, Node
from superopt.ir.size_polynomial import Dim
from superopt.ir.types import DType, TensorType
from superopt.memory.inplace_kernels import IN_PLACE, RENAMING
from superopt.memory.liveness import Lifetime, alive
from superopt.memory.rematerialization_schedule import RematerializationProblem, RematerializationSchedule, spans

__all__ = [
    "ALIGNMENT",
    "ActivationMemoryPlan",
    "PlannedBuffer",
    "as_executed",
    "block_of",
    "execution_order",
    "planned",
]


ALIGNMENT = 256  # bytes that sizes are rounded up to


def execution_order(nodes: Sequence[Node], number: Sequence[int]) -> list[int]:
    """Positions of the nodes in the order in which they are executed.

    From the nodes that no other reads, the greatest number first, back to what each reads, again the greatest first; a
    node comes after all that it reads.

    Args:
        nodes: in any order.
        number: the runtime's number of each: its place in the file, or, for what the runtime made, a greater one.
    """
    makers = {o: i for i, n in enumerate(nodes) for o in n.outputs if o}
    reads = [sorted({makers[n] for n in node.reads if n in makers}, key=number.__getitem__) for node in nodes]
    read = {i for before in reads for i in before}
    stack = [(i, False) for i in sorted(range(len(nodes)), key=number.__getitem__) if i not in read]
    found: list[int] = []
    seen: set[int] = set()
    while stack:
        node, left = stack.pop()
        if left:
            found.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(i, False) for i in reads[node] if i not in seen]
    return found


def as_executed(lowered: Graph, given: Graph) -> Sequence[Node]:
    """The nodes of a lowered graph in the order of execution.

    ONNX Runtime writes them in that order where it has made nodes of its own; else in the order of the file that it was
    given.

    Args:
        lowered: as ONNX Runtime wrote it.
        given: what it was made of.
    """
    place = {(n.op, n.domain, n.outputs): i for i, n in enumerate(given.nodes)}
    keys = [(n.op, n.domain, n.outputs) for n in lowered.nodes]
    if not all(k in place for k in keys):
        return lowered.nodes
    return [lowered.nodes[i] for i in execution_order(lowered.nodes, [place[k] for k in keys])]


@dataclass(frozen=True)
class PlannedBuffer:
    """Memory of the block: alive from step ``start`` to step ``end``, both included.

    Attributes:
        values: who is kept in it, in order.
        size: bytes, rounded up to :data:`ALIGNMENT`.
        offset: where it begins in the block.
        start: position of the node that makes the first value.
        end: position of the last node that reads any of them.
    """

    values: tuple[str, ...]
    size: int
    offset: int
    start: int
    end: int


@dataclass(frozen=True)
class ActivationMemoryPlan:
    """What a graph's activations take in a runtime.

    Attributes:
        inputs: bytes of inputs, which the caller holds.
        outputs: bytes of outputs, which are not in the block.
        block: bytes of the block.
        buffers: what lies in it, by first step.
        steps: nodes that are executed.
    """

    inputs: int
    outputs: int
    block: int
    buffers: tuple[PlannedBuffer, ...]
    steps: int

    @property
    def occupied(self) -> list[int]:
        """Bytes of the block that are taken at each step; what is free then lies between them."""
        return alive([Lifetime(b.values[0], b.size, b.start, b.end) for b in self.buffers], self.steps)

    @property
    def peak(self) -> int:
        """Bytes that the activations take: inputs, outputs and the block."""
        return self.inputs + self.outputs + self.block


def planned(
    graph: Graph,
    types: Mapping[str, TensorType],
    known: Mapping[str, TensorType] | None = None,
    opened: Set[str] = frozenset(),
) -> ActivationMemoryPlan:
    """The plan for a lowered graph whose nodes stand in the order of execution.

    Args:
        graph: what the runtime runs.
        types: the static type of every tensor.
        known: what the runtime knows of them before it runs; symbolic dimensions are equal where their names are. By
            default, everything.
        opened: values whose sizes were hidden from the kernels that make them, and from no others.
    """
    plan = _Planner(graph, types, types if known is None else known, opened)
    for step, node in enumerate(graph.nodes):
        plan.make(step, node)
        plan.free(node)
    return plan.result()


def block_of(task: RematerializationProblem, plan: RematerializationSchedule) -> int:
    """Bytes of the block in which a plan's values lie where no sizes are known beforehand, so that nothing waits: what
    is alive at once, and the gaps between."""
    lives = [
        (str(value), start, end, rounded(task.sizes[plan.original[value]]))
        for value, start, end in spans(task, plan.steps, plan.original)
    ]
    sizes = {name: size for name, _, _, size in lives}
    return max((offset + sizes[name] for name, offset in _laid_out(lives)), default=0)


class _Planner:
    def __init__(
        self, graph: Graph, types: Mapping[str, TensorType], known: Mapping[str, TensorType], opened: Set[str]
    ) -> None:
        self.graph, self.types, self.known, self.opened = graph, types, known, opened
        self.outputs = {v.name for v in graph.outputs}
        self.held: Counter[str] = Counter(v.name for v in graph.inputs)
        self.held.update(w.name for w in graph.weights)
        self.held.update(v.name for v in graph.outputs)
        for node in graph.nodes:
            self.held.update(node.reads)
        self.root: dict[str, str] = {}
        self.first: dict[str, int] = {}  # of what lies in the block, in order of allocation
        self.dead: list[str] = []  # the last to become free at the end

    def make(self, step: int, node: Node) -> None:
        """Find memory for what a node makes."""
        for slot, name in enumerate(node.outputs):
            if not name:
                continue
            shared = None if name in self.outputs else self._operand(node, slot) or self._free(name)
            if shared is not None:
                self.root[name] = shared
                self.held[shared] += self.held[name]
            elif name not in self.outputs:
                self.first[name] = step

    def free(self, node: Node) -> None:
        """Note what nothing reads after this node."""
        for name in node.reads:
            self._read(name)
        self.dead += [n for n in node.outputs if n and self.held[self._of(n)] == 0]

    def result(self) -> ActivationMemoryPlan:
        last: dict[str, int] = {}
        values: dict[str, list[str]] = {}
        for step, node in enumerate(self.graph.nodes):
            last.update({self._of(n): step for n in node.reads})
            for name in node.outputs:
                values.setdefault(self._of(name), []).append(name)
        ends = {n: last.get(n, len(self.graph.nodes)) for n in self.first}
        sizes = {n: rounded(self._bytes(n)) for n in self.first}
        offsets = dict(_laid_out([(n, start, ends[n], sizes[n]) for n, start in self.first.items()]))
        return ActivationMemoryPlan(
            inputs=sum(self._bytes(v.name) for v in self.graph.inputs if v.name not in self.graph.weight),
            outputs=sum(self._bytes(n) for n in self.outputs if n in self.graph.producer),
            block=max((offsets[n] + sizes[n] for n in self.first), default=0),
            buffers=tuple(
                PlannedBuffer(tuple(values[n]), sizes[n], offsets[n], start, ends[n]) for n, start in self.first.items()
            ),
            steps=len(self.graph.nodes),
        )

    def _of(self, name: str) -> str:
        return self.root.get(name, name)

    def _bytes(self, name: str) -> int:
        kind = self.types.get(name)
        return (kind.nbytes or 0) if kind is not None else 0

    def _read(self, name: str) -> None:
        memory = self._of(name)
        self.held[memory] -= 1
        if self.held[memory] == 0:
            self.dead.append(memory)

    def _operand(self, node: Node, slot: int) -> str | None:
        """The operand whose memory the output takes."""
        if slot or not node.inputs:
            return None
        kernel = (node.domain, node.op)
        if kernel in RENAMING:
            return self._of(node.inputs[0])
        operand = IN_PLACE.get(kernel, len(node.inputs))
        name = node.inputs[operand] if operand < len(node.inputs) else ""
        own = node.outputs[0]
        if name and own not in self.opened and self.held[self._of(name)] == 1 and self._same(name, own):
            return self._of(name)
        return None

    def _free(self, name: str) -> str | None:
        """Memory of the same shape that is read no more."""
        shape = self._declared(name)
        if not shape or not shape[1] or name in self.opened:
            return None
        for position in range(len(self.dead) - 1, -1, -1):
            if self.dead[position] not in self.opened and self._same(self.dead[position], name):
                return self.dead.pop(position)
        return None

    def _same(self, a: str, b: str) -> bool:
        kind = self._declared(a)
        return kind is not None and kind == self._declared(b)

    def _declared(self, name: str) -> tuple[int, tuple[Dim, ...]] | None:
        """Bits of an element and the shape, as far as the runtime knows them before it runs; no strings."""
        kind = self.known.get(name)
        if kind is None or kind.shape is None or kind.dtype is DType.STRING:
            return None
        return kind.dtype.bits, kind.shape


def rounded(size: int) -> int:
    """The size rounded up to :data:`ALIGNMENT`."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def _laid_out(buffers: Sequence[tuple[str, int, int, int]]) -> Iterator[tuple[str, int]]:
    """Offsets of buffers (name, first step, last step, bytes) in order of allocation: in the gap that is left the
    smallest, of which what is free at the end of the block as it is so far is one, else at the end."""
    placed: list[tuple[int, int, int]] = []  # offset, size, last step; by offset
    block = 0
    for name, start, end, size in buffers:
        placed = [p for p in placed if p[2] >= start]
        if size == 0:
            yield name, 0
            continue
        ends = [0] + [offset + length for offset, length, _ in placed]
        starts = [offset for offset, _, _ in placed] + [block]
        gaps = [(begin - free, free, i) for i, (free, begin) in enumerate(zip(ends, starts, strict=True))]
        fitting = [g for g in gaps if g[0] >= size]
        _, offset, place = min(fitting, key=lambda g: (g[0], g[1])) if fitting else (0, ends[-1], len(placed))
        block = max(block, offset + size)
        placed.insert(place, (offset, size, end))
        yield name, offset

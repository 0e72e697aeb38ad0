"""From a graph to what a device runs: kernels, library calls, and where every value lies in one arena.

A chain of operators becomes one kernel where that computes nothing twice (or so little that memory traffic costs more);
a value that is only another's bytes under a new shape has no kernel at all; what depends on weights alone runs once.
Products go to the vendor's library; everything else is generated from the operators' meanings.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from superopt.ir.errors import Unsupported
from superopt.ir.graph import Graph, label
from superopt.ir.types import TensorType
from superopt.ops.operator_semantics import ElementRead, ScalarExpression
from superopt.ops.shape_inference import CanonicalNode, InferredTypes, OpaqueNode, infer
from superopt.runtime.cuda.c_code_emitter import LONG, free
from superopt.runtime.cuda.expression_fusion import FusedExpression, calls, inlined, reads, reduces, remapped, touches
from superopt.runtime.cuda.kernel_source import CudaKernel, kernel, position
from superopt.runtime.cuda.vendor_libraries import Call, library_call

__all__ = ["KernelLaunch", "CudaExecutionPlan", "Step", "arena", "plan"]


# -- Arena ---------------------------------------------------------------------------------------------------------
#
# One block of memory for the intermediates, shared by values that are never alive together.


ALIGNMENT = 256  # bytes; what cudaMalloc gives and vector loads want


def arena(spans: Mapping[str, tuple[int, int]], types: Mapping[str, TensorType]) -> tuple[dict[str, int], int]:
    """Byte offsets such that values alive at one time do not overlap, and the bytes needed.

    Greedy by size (Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference, 2020).

    Args:
        spans: first and last step at which each value is alive.
        types: their static types.
    """
    placed: list[tuple[int, int, str]] = []
    offsets: dict[str, int] = {}
    sizes = {name: -(-max(types[name].nbytes or 0, 1) // ALIGNMENT) * ALIGNMENT for name in spans}
    for name in sorted(spans, key=lambda n: (-sizes[n], n)):
        first, last = spans[name]
        offset = 0
        for start, end, other in sorted(placed):
            if spans[other][1] < first or spans[other][0] > last:
                continue
            if offset + sizes[name] <= start:
                break
            offset = max(offset, end)
        offsets[name] = offset
        placed.append((offset, offset + sizes[name], name))
    return offsets, max((end for _, end, _ in placed), default=0)


# -- Plan ----------------------------------------------------------------------------------------------------------


LONGEST = 400  # parts of a fused expression
_AGAIN = 32  # calls an element, computed again by whoever reads it: half of what writing and reading 8 bytes takes
_STREAMED = 4  # reads for each element written: a consumer of no more waits for memory, so that a call or two is free


@dataclass(frozen=True)
class KernelLaunch:
    """A generated kernel."""

    kernel: CudaKernel

    @property
    def reads(self) -> tuple[str, ...]:
        return self.kernel.operands

    @property
    def output(self) -> str:
        return self.kernel.output


Step = KernelLaunch | Call


@dataclass(frozen=True)
class CudaExecutionPlan:
    """What runs, in order.

    Attributes:
        setup: steps that depend on weights alone; they run once.
        steps: steps of every inference.
        types: static types of all stored values.
        alias: values that are the bytes of another.
        empty: values without elements, which nothing has to compute.
        offsets: byte offsets in the arena of what the steps (not the setup) make and no one outside reads.
        arena: its size in bytes.
    """

    graph: Graph
    setup: tuple[Step, ...]
    steps: tuple[Step, ...]
    types: Mapping[str, TensorType]
    alias: Mapping[str, str]
    empty: tuple[str, ...] = ()
    offsets: Mapping[str, int] = field(default_factory=dict)
    arena: int = 0

    @property
    def kernels(self) -> tuple[CudaKernel, ...]:
        """The generated kernels, each once."""
        launches = [s for s in (*self.setup, *self.steps) if isinstance(s, KernelLaunch)]
        return tuple({s.kernel.name: s.kernel for s in launches}.values())

    def shape(self, name: str) -> tuple[int, ...]:
        """The static shape of a value."""
        return tuple(int(s) for s in self.types[name].shape or () if isinstance(s, int))

    def root(self, name: str) -> str:
        """The stored value whose bytes a value is."""
        while name in self.alias:
            name = self.alias[name]
        return name


def plan(
    graph: Graph, sizes: Mapping[str, int] | None = None, *, fuse: bool = True, generated: Container[str] = ()
) -> CudaExecutionPlan:
    """The plan of a graph at known sizes.

    Args:
        graph: a checked graph.
        sizes: values for its named dimensions.
        fuse: put chains of operators into one kernel.
        generated: outputs of operators that no library can make here: they get a kernel too, a slow one.

    Raises:
        Unsupported: a node without a meaning, or a size that stays unknown; names the node.
    """
    return _Planner(graph, infer(graph, sizes), fuse, generated).plan()


class _Planner:
    def __init__(self, graph: Graph, typing: InferredTypes, fuse: bool, generated: Container[str]) -> None:
        self.graph, self.typing, self.fuse, self.generated = graph, typing, fuse, generated
        self.outputs = {v.name for v in graph.outputs}
        self.types: dict[str, TensorType] = {}
        self.raw: dict[str, FusedExpression] = {}
        self.calls: dict[str, Call] = {}
        self.alone: dict[str, tuple[str, Call]] = {}  # by output: a call with something left, and one without
        self.order: list[str] = []
        self.alias: dict[str, str] = {}
        self.empty: list[str] = []
        self.fixed = set(graph.weight)  # values that depend on weights alone

    def plan(self) -> CudaExecutionPlan:
        for place in self._needed():
            self._node(place)
        self._leave_no_rest(self._consumers())
        consumers = self._consumers()
        fused: dict[str, FusedExpression] = {}
        placed: set[str] = set()  # values whose bodies go into their consumers
        steps: list[Step] = []
        for name in self.order:
            if self.types[name].elements == 0:
                self.empty.append(name)
                continue
            if name in self.calls:
                steps.append(self.calls[name])
                if self.fixed.issuperset(self.calls[name].reads):
                    self.fixed.add(name)
                continue
            if self.raw[name].operands and self.fixed.issuperset(self.raw[name].operands):
                self.fixed.add(name)
            expression = inlined(self.raw[name], {n: fused[n] for n in self.raw[name].operands if n in placed})
            fused[name] = expression
            source = self._moved(name, expression)
            if source is not None:
                self.alias[name] = source
            elif self.fuse and self._dissolves(name, expression, consumers.get(name, [])):
                placed.add(name)
            else:
                steps.append(self._launch(name, expression))
        return self._finished(steps)

    def _consumers(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in self.order:
            for read in self._reads(name):
                found.setdefault(read, []).append(name)
        return found

    def _leave_no_rest(self, consumers: Mapping[str, list[str]]) -> None:
        """What would be a kernel of its own after a library's call becomes a part of the call, where it can."""
        for name, (part, call) in self.alone.items():
            if not self._dissolves(name, self.raw[name], consumers.get(name, [])):
                self.order.remove(part)
                del self.raw[name], self.calls[part]
                self.calls[name] = call

    def _reads(self, name: str) -> tuple[str, ...]:
        return self.calls[name].reads if name in self.calls else self.raw[name].operands

    def _needed(self) -> list[int]:
        """Positions of the nodes that an output depends on through data, in order."""
        live = set(self.outputs)
        found: list[int] = []
        for place in range(len(self.graph.nodes) - 1, -1, -1):
            node, how = self.graph.nodes[place], self.typing.nodes[place]
            if live.isdisjoint(n for n in node.outputs if n):
                continue
            if isinstance(how, OpaqueNode):
                raise Unsupported(
                    f"{how.reason}; the CUDA backend runs only operators with a meaning", where=label(node)
                )
            found.append(place)
            live.update(n for n in how.args if n)
        return found[::-1]

    def _type(self, name: str, where: str) -> TensorType:
        kind = self.types.get(name) or self.typing.types.get(name)
        if kind is None or not kind.is_static:
            raise Unsupported(
                f"the shape of {name!r} is not known", where=where, hint="give its sizes with --dim NAME=8"
            )
        self.types[name] = kind
        return kind

    def _node(self, place: int) -> None:
        """The expressions (or the library call) of one node."""
        node, how = self.graph.nodes[place], self.typing.nodes[place]
        assert isinstance(how, CanonicalNode)
        where = label(node)
        types = [None if n is None else self._type(n, where) for n in how.args]
        meaning, made = how.operator.apply(types, how.attributes)
        for name, comprehension, kind in zip(node.outputs, meaning.outputs, made, strict=False):
            if not name:
                continue
            self.types[name] = kind
            self._type(name, where)
            found = None if name in self.generated else library_call(name, how, types, kind)
            rest: FusedExpression | None = remapped(how.args, comprehension)
            if found is not None:
                call, rest = found.call, found.rest
                self.calls[call.output] = call
                self.types[call.output] = kind
                self.order.append(call.output)
                if found.alone is not None:
                    self.alone[name] = call.output, found.alone
            if rest is not None:
                self.raw[name] = rest
                self.order.append(name)

    # ── fusion ──

    def _moved(self, name: str, expression: FusedExpression) -> str | None:
        """The operand whose bytes this value is, when it only has another shape."""
        body = expression.comprehension.body
        if name in self.outputs or not isinstance(body, ElementRead) or body.outside is not None:
            return None
        source = expression.operands[body.operand]
        kinds = self.types[source], self.types[name]
        same = kinds[0].dtype is kinds[1].dtype and kinds[0].elements == kinds[1].elements
        return source if same and position(body, kinds[0]) == expression.target else None

    def _dissolves(self, name: str, expression: FusedExpression, consumers: Sequence[str]) -> bool:
        """Whether a value's body goes into all of its consumers, so that it is never stored."""
        if name in self.outputs or not consumers or any(c in self.calls for c in consumers):
            return False
        work = calls(expression.comprehension.body)
        if work and name in self.fixed and not self.fixed.issuperset(consumers):
            return False  # computed once, before the first inference
        reducing = reduces(expression.comprehension.body)
        if work > LONGEST or (reducing and len(consumers) > 1):
            return False
        size = prod(expression.shape, start=1)
        reuse, streamed = 0.0, True
        for consumer in dict.fromkeys(consumers):
            user = self.raw[consumer]
            here = [r for r in reads(user.comprehension.body) if user.operands[r.operand] == name]
            if any(isinstance(i, ScalarExpression) for r in here for i in r.index):
                return False
            if reducing and not all(self._keeps_rows(name, expression, user, r) for r in here):
                return False
            touched = touches(user, name)
            reuse += touched / max(size, 1)
            streamed = streamed and touched <= _STREAMED * prod(user.shape, start=1)
        if reducing:
            return True
        return reuse <= 1 or work * reuse <= _AGAIN or (work <= 2 and streamed)

    def _keeps_rows(self, name: str, expression: FusedExpression, user: FusedExpression, read: ElementRead) -> bool:
        """Whether a value with reductions is computed no more often inside a consumer.

        Either the consumer reads it at its own position, or at one position per row, where a block makes it once.
        """
        if touches(user, name) > prod(user.shape, start=1) or free(read) - {v for v, _ in user.digits}:
            return False
        if position(read, self.types[name]) == user.target:
            return True
        names = [v for v, _ in user.digits]
        row = max((names.index(v) for v in free(read)), default=-1) + 1
        rows = prod((e for _, e in user.digits[:row]), start=1)
        longest = max(expression.extents, default=0)
        return longest >= LONG and rows == prod(expression.shape, start=1)

    def _launch(self, name: str, expression: FusedExpression) -> KernelLaunch:
        return KernelLaunch(kernel(expression, name, self.types, self.types[name]))

    # ── places ──

    def _finished(self, steps: Sequence[Step]) -> CudaExecutionPlan:
        fixed = {*self.graph.weight, *self.empty}
        setup: list[Step] = []
        rest: list[Step] = []
        found = CudaExecutionPlan(self.graph, (), (), self.types, self.alias)
        for step in steps:
            if all(found.root(r) in fixed for r in step.reads) and step.output not in self.outputs:
                fixed.add(step.output)
                setup.append(step)
            else:
                rest.append(step)
        offsets, size = arena(_lifetimes(found, rest), self.types)
        return CudaExecutionPlan(
            self.graph, tuple(setup), tuple(rest), self.types, self.alias, tuple(self.empty), offsets, size
        )


def _lifetimes(found: CudaExecutionPlan, steps: Sequence[Step]) -> dict[str, tuple[int, int]]:
    """First and last step at which each stored intermediate is needed."""
    kept = {found.root(v.name) for v in found.graph.outputs}
    spans: dict[str, tuple[int, int]] = {}
    for at, step in enumerate(steps):
        if step.output not in kept:
            spans[step.output] = (at, at)
        for read in map(found.root, step.reads):
            if read in spans:
                spans[read] = (spans[read][0], at)
    return spans

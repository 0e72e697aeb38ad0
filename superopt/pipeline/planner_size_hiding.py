"""Hiding sizes from some of a model's kernels, so that their memory waits for nothing.

Which kernels, :mod:`superopt.memory.size_hiding` says. A kernel whose sizes are to be unknown reads every
operand through a guard (a view, of which no byte moves); what knows its sizes again reads a view with all of them
declared. What the runtime fuses only at sizes that it knows is found out by looking at what it then runs: what is lost
is left closed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from superopt.ir.errors import SuperoptError
from superopt.ir.graph import Graph, Node, unused_name
from superopt.memory.inplace_kernels import RENAMING
from superopt.memory.size_hiding import FOR_MEMORY, OPSET, SizeHidingReshapes, best_open, kernel_of, measurable
from superopt.ops.operator_definition import UnsupportedNodeForm
from superopt.ops.shape_inference import InferredTypes
from superopt.pipeline.memory_timeline import ActivationFootprint, footprint
from superopt.pipeline.symbolic_row_dimension import MatMulWithBias, merged, sizes_of, sums, values_of_known_sizes

__all__ = ["GraphWithHiddenSizes", "hidden_sizes", "kernels"]

_NOTHING = frozenset[str](), frozenset[str]()
_ROUNDS = 5  # in which it is found out what has to be left closed
_REFINED = 3  # graphs that are tried


@dataclass(frozen=True)
class GraphWithHiddenSizes:
    """A graph that hides sizes from some kernels.

    Attributes:
        graph: it.
        said: the values that say so, of a few bytes each.
        named: values of the graph given by what stands for them: views, and products before a view.
        after: its footprint.
    """

    graph: Graph
    said: frozenset[str]
    named: Mapping[str, str]
    after: ActivationFootprint


def hidden_sizes(
    graph: Graph, typing: InferredTypes, found: ActivationFootprint, sizes: Mapping[str, int], *, alike: bool = True
) -> Iterator[GraphWithHiddenSizes]:
    """The graph with sizes hidden: from all kernels that run without them, and then from those of them from which it is
    worth it, as simulated with the views that this takes.

    Args:
        graph: the model.
        typing: its types.
        found: its footprint.
        sizes: what symbolic dimensions are counted at.
        alike: the very same kernels have to run.
    """
    fed = {v.name for v in graph.inputs if v.name not in graph.weight and measurable(typing.types.get(v.name))}
    signal = next((n for node in found.ran.nodes for n in node.reads if n in fed), "")  # the first to be read
    if not signal or graph.opset.get("", 0) < OPSET:
        return
    opening = _Search(graph, typing, found, sizes, signal, alike)
    made = opening.wide()
    for _ in range(_REFINED):
        if made is None:
            return
        yield made
        made = opening.narrow(made)


class _Search:
    """Looks for the kernels of a graph that may know no sizes."""

    def __init__(
        self,
        graph: Graph,
        typing: InferredTypes,
        found: ActivationFootprint,
        sizes: Mapping[str, int],
        signal: str,
        alike: bool,
    ) -> None:
        self.graph, self.typing, self.found, self.sizes = graph, typing, found, sizes
        self.signal, self.alike = signal, alike
        self.owner = _owners(graph, found.ran, {})  # in what is run of the graph given
        self.may = {n.outputs[0] for n in graph.nodes if n.outputs}  # what nodes make that may know no sizes
        self.firm = frozenset[str]()
        self.seen = set[frozenset[str]]()

    def wide(self) -> GraphWithHiddenSizes | None:
        """All sizes hidden, but from what the runtime fuses only at sizes that it knows."""
        for _ in range(_ROUNDS):
            made, lost = self._hidden_graph(frozenset(self.may & self.owner.keys()))
            if made is None:
                return None
            again = values_of_known_sizes(made.after, self.may) - self.firm
            if not self._closed(lost) and not again:
                return None if lost else made
            self.firm |= again
        return None

    def narrow(self, wide: GraphWithHiddenSizes) -> GraphWithHiddenSizes | None:
        """Sizes hidden where it is worth it in what is run then."""
        owner = _owners(self.graph, wide.after.ran, wide.named)
        for _ in range(_ROUNDS):
            closed = {k for o, k in owner.items() if o not in self.may}
            chosen = best_open(wide.after.ran, wide.after.types, closed)
            hidden = frozenset(o for o in self.may if owner.get(o) in chosen)
            if not hidden or hidden in self.seen:
                return None
            made, lost = self._hidden_graph(hidden)
            if not lost or not self._closed(lost):
                return None if lost else made
        return None

    def _closed(self, lost: Set[str]) -> bool:
        """Leave it to these kernels to know sizes; whether they did not."""
        closed = {o for o in self.may if self.owner.get(o) in lost}
        self.may -= closed
        return bool(closed)

    def _hidden_graph(self, hidden: frozenset[str]) -> tuple[GraphWithHiddenSizes | None, frozenset[str]]:
        """The graph with sizes hidden, and which kernels this has cost, or what is around those that it has brought."""
        self.seen.add(hidden)
        hiding = _Hiding(self.graph, self.typing, hidden, self.firm, self.signal)
        graph, said = hiding.written()
        try:
            after = footprint(graph, sizes=self.sizes)
        except (SuperoptError, UnsupportedNodeForm):  # a shape that has to be known
            return None, frozenset()
        lost, around = _lost(self.found.ran, after.ran, said) if self.alike else _NOTHING
        if self.alike and not lost and not around and kernels(after.ran, said) != kernels(self.found.ran):
            return None, frozenset()
        open_ = {k for o, k in self.owner.items() if o in hidden}
        return GraphWithHiddenSizes(graph, said, hiding.named, after), (lost & open_) or (
            around & open_
        ) or lost or around


def kernels(ran: Graph, said: Set[str] = frozenset()) -> Counter[tuple[str, str]]:
    """What is run, without what only renames memory and what says sizes or opens rows."""
    return Counter(
        (n.domain, n.op) for n in ran.nodes
        if (n.domain, n.op) not in RENAMING and n.op != "Compress" and said.isdisjoint(n.outputs)
    )  # fmt: skip


def _lost(before: Graph, after: Graph, said: Set[str]) -> tuple[frozenset[str], frozenset[str]]:
    """First results of kernels that are run no more, and of those that others, which are run besides, stand between."""
    was, now = kernels(before), kernels(after, said)
    still = {n.outputs[0]: (n.domain, n.op) for n in after.nodes if n.outputs}
    fewer, more, maker = was - now, now - was, kernel_of(before)
    gone, around = set[str](), set[str]()
    for node in before.nodes:
        kind = (node.domain, node.op)
        if kind in fewer and still.get(node.outputs[0]) != kind:
            gone.add(node.outputs[0])
    for node in after.nodes:
        if (node.domain, node.op) in more and said.isdisjoint(node.outputs):
            around |= {maker[n] for n in (*node.reads, *node.outputs) if n in maker}
    return frozenset(gone), frozenset(around)


def _owners(graph: Graph, ran: Graph, named: Mapping[str, str]) -> dict[str, str]:
    """By first result, of every node of the graph the kernel, by its first result, that computes it.

    Args:
        graph: it.
        ran: what is run of it, or of what it was written as.
        named: values of the graph by what stands for them then.
    """
    maker, found = kernel_of(ran), dict[str, str]()
    here = {named.get(n, n) for n in maker}
    for node in ran.nodes:
        for name in node.outputs:
            stack = [named.get(name, name)] if name in maker else []
            while stack:
                own = graph.producer.get(stack.pop())
                if own is not None and own.outputs[0] not in found:
                    found[own.outputs[0]] = maker[name]
                    stack += [n for n in own.reads if n not in here]
    return found


class _Hiding:
    """Writes a graph in which the makers of some values do not know sizes; ``firm``: values of them that are known none
    the less."""

    def __init__(self, graph: Graph, typing: InferredTypes, hidden: Set[str], firm: Set[str], signal: str) -> None:
        self.graph, self.typing, self.hidden, self.signal = graph, typing, hidden, signal
        self.guards = SizeHidingReshapes.of(graph, typing.types)
        self.sums = sums(graph, typing)
        self.open = {o for n in graph.nodes if n.outputs[0] in hidden for o in n.outputs} - set(firm)
        self.static = set(graph.constants)
        for node in graph.nodes:
            if all(n in self.static for n in node.reads):
                self.static.update(node.outputs)
        self.shapes: dict[tuple[int, ...], str] = {}
        self.named: dict[str, str] = {}
        self.ranks: dict[int, str] = {}  # zeros that the runtime does not know, by their number
        self.sized: dict[str, str] = {}  # views
        self.unsized: dict[str, str] = {}

    def written(self) -> tuple[Graph, frozenset[str]]:
        """The graph, and the values that say sizes."""
        nodes = self.guards.nodes
        inside = {s.product for s in self.sums.values()}
        self._unsized(self.signal)
        for node in self.graph.nodes:
            made = node.outputs[0]
            if made in self.sums:
                nodes.append(self._merged(node, self.sums[made]))
            elif made not in inside:
                node = replace(node, inputs=tuple(self._read(n, made in self.hidden) for n in node.inputs))
                nodes.append(self._reshaped(node) if made in self.hidden else node)
        own = tuple(nodes)
        nodes = [*self._head(), *own]
        given = {o for n in self.graph.nodes for o in n.outputs}
        said = {o for n in nodes if n.op not in ("Reshape", "Gemm") for o in n.outputs} - given
        values = tuple(v for v in self.graph.values if v.name not in self.graph.producer)  # they would say sizes
        weights = (*self.graph.weights, *self.guards.weights)
        return replace(self.graph, nodes=tuple(nodes), weights=weights, values=values), frozenset(said)

    def _read(self, name: str, hides: bool) -> str:
        """What a kernel reads that does not know sizes, or does."""
        sizes = None if name in self.static else sizes_of(self.typing.types.get(name))
        if sizes is None or (name != self.signal and hides == (name in self.open)):
            return name
        if hides:
            return self._unsized(name)
        if name not in self.sized:
            source = name
            if name == self.signal:  # of two Reshape the runtime leaves out the first, and with it what it waits for
                source = self.guards.node("Flatten", (self._unsized(name),), f"{name}_flat")
            self.sized[name] = self.guards.node("Reshape", (source, self._shape(sizes)), f"{name}_sized")
            self.named[self.sized[name]] = name
        return self.sized[name]

    def _unsized(self, name: str) -> str:
        """A view of a value whose sizes are not known."""
        if name not in self.unsized:
            kind = self.typing.types[name]
            rank = len(kind.shape or ()) if kind is not None else 0
            if rank not in self.ranks:
                self.ranks[rank] = unused_name(f"as_it_is_{rank}", self.guards.taken)
            self.unsized[name] = self.guards.node("Reshape", (name, self.ranks[rank]), f"{name}_unsized")
            self.named[self.unsized[name]] = name
        return self.unsized[name]

    def _head(self) -> list[Node]:
        """What makes the shapes that say nothing, all at once and before anything else, since the first input that is
        read passes one: where they lie, no gap is cut in two."""
        made = len(self.guards.nodes)
        said = self.guards.node(
            "Add", (self.guards.zeros(sum(self.ranks)), self.guards.nothing(self.signal)), "as_it_is"
        )
        parts = self.guards.add_constant("ranks", np.array(list(self.ranks), np.int64))
        nodes = [*self.guards.nodes[made:]]
        nodes.sort(key=lambda n: n.outputs[0] == said)
        name, outputs = unused_name("as_it_is", self.guards.named), tuple(self.ranks.values())
        return [*nodes, Node(name, "Split", (said, parts), outputs, metadata=FOR_MEMORY)]

    def _shape(self, sizes: Sequence[int]) -> str:
        """A constant shape."""
        if tuple(sizes) not in self.shapes:
            self.shapes[tuple(sizes)] = self.guards.add_constant("shape", np.array(sizes, np.int64))
        return self.shapes[tuple(sizes)]

    def _reshaped(self, node: Node) -> Node:
        """The node; a ``Reshape`` to constants leaves the rows open."""
        if node.op != "Reshape" or node.domain or node.inputs[1] not in self.graph.constants:
            return node
        sizes = sizes_of(self.typing.types.get(node.outputs[0]))
        if sizes is None:
            return node
        return replace(node, inputs=(node.inputs[0], self._shape([-1, *sizes[1:]])), attributes={})

    def _merged(self, node: Node, found: MatMulWithBias) -> Node:
        """A product with a vector added, as the runtime merges them at sizes that it knows."""
        hides = node.outputs[0] in self.hidden
        left = self._read(found.left, hides)
        rows, shape = self._shape([-1, found.inner]), [-1, *found.shape[1:]] if hides else found.shape
        made = merged(self.guards, node, found, left, rows, self._shape(shape))
        self.named[made.inputs[0]] = node.outputs[0]
        return made

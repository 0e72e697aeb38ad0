"""The last step before a model is written for memory: the same kernels in less of it.

Two things about a file decide what ONNX Runtime's planner makes of it besides its kernels. Both are tried, judged by
:mod:`superopt.pipeline.footprint` on what it then really runs:

- **The order of the nodes.** The runtime walks back from the results, and where a node reads several, the one whose
  maker stands last in the file is made first; what it fuses moves to the end. So an order is written both ways round.
- **Sizes known beforehand.** It keeps a dead buffer for the next value of the same shape, and what it keeps is in the
  way meanwhile. Where a size is not known before a run, values lie where there is room (docs/decisions/0029). *Open
  rows*: inputs pass a ``Compress`` that keeps every row, shapes that name the rows name them ``-1``, and a product with
  a vector added, which the runtime merges only at sizes that it knows, is written merged.

A candidate is taken only where it runs the very same kernels, gives the same outputs bit for bit, and needs less: as
modelled, and by what the arena is asked for.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace

import numpy as np

from superopt import formats
from superopt.cost.hollow import discarded, hollow_file
from superopt.cost.trial import feeds_for, with_values
from superopt.cost.whole import least_order
from superopt.formats.onnx_reader import shapes_alone
from superopt.ir.errors import SuperoptError
from superopt.ir.graph import Graph, Node, constant, topological_order, unused_name
from superopt.ir.types import TensorType, ValueType
from superopt.memory import ALIGNMENT, RENAMING, Arena, measured_arena
from superopt.ops.infer import Typing, infer
from superopt.ops.record import NotCovered
from superopt.pipeline.footprint import Footprint, footprint
from superopt.runtime.limits import refuse_unbounded
from superopt.runtime.ort import make_session, run

__all__ = ["Scheduled", "arena_of", "asked_of", "known_again", "least_memory", "open_rows", "orders"]

_SESSIONS = 3  # more of a model, where their orders may differ
_COMPRESS = 9  # the first opset that has it


@dataclass(frozen=True)
class Scheduled:
    """A graph with its nodes and sizes as its activations take least.

    Attributes:
        graph: it; the one given where nothing takes less.
        before: footprint of the graph given.
        after: footprint of ``graph``.
        how: what was done: "", "order", "open rows", or both.
        asked: bytes of the blocks that the arena was asked for before and after, where something was found.
    """

    graph: Graph
    before: Footprint
    after: Footprint
    how: str
    asked: tuple[int, int] | None = None


def least_memory(
    graph: Graph, *, sizes: Mapping[str, int] | None = None, deadline: float = float("inf"), alike: bool = True
) -> Scheduled:
    """The same kernels with the least memory for activations that is found.

    Args:
        graph: the model.
        sizes: what symbolic dimensions are counted at.
        deadline: on the monotonic clock, after which nothing more is tried.
        alike: else what the runtime fuses only at sizes that it knows may run as it is written, rounded otherwise.

    Raises:
        InvalidModel, Unsupported, ResourceLimit: ONNX Runtime cannot run it, or not with its arena watched.
        NotCovered: an input is no tensor.
    """
    sizes = sizes or {}
    before = min(_footprints(graph, sizes), key=lambda f: f.plan.peak)
    best = unchanged = Scheduled(graph, before, before, "")
    kernels, expected = _kernels(before.ran), None
    for how, made in _candidates(graph, sizes):
        if time.monotonic() > deadline or best.after.plan.peak <= before.bound:
            break
        try:
            after = max(_footprints(made, sizes), key=lambda f: f.plan.peak)
        except (SuperoptError, NotCovered):  # a shape that has to be known
            continue
        if after.plan.peak >= best.after.plan.peak or (alike and _kernels(after.ran) != kernels):
            continue
        expected = expected or (_outputs(graph, sizes) if alike else None)
        if expected is None or _outputs(made, sizes) == expected:
            best = Scheduled(made, before, after, how)
    if best.graph is graph:
        return best
    least, given = asked_of(best.graph, sizes), asked_of(graph, sizes)
    return replace(best, asked=(given, least)) if least < given else replace(unchanged, asked=(given, given))


def asked_of(graph: Graph, sizes: Mapping[str, int]) -> int:
    """Bytes of the block that the arena is asked for: what is modelled has to hold there."""
    return arena_of(graph, sizes).block


def arena_of(graph: Graph, sizes: Mapping[str, int]) -> Arena:
    """What the arena is asked for, and what is run meanwhile.

    Raises:
        InvalidModel, Unsupported, ResourceLimit: ONNX Runtime cannot run it, or not with its arena watched.
        NotCovered: an input is no tensor.
    """
    refuse_unbounded(graph, sizes)
    with hollow_file(graph) as model:
        try:
            found = measured_arena(model, feeds_for(graph, sizes), discard=discarded(graph))
        except SuperoptError:  # integer inputs may be indices
            found = measured_arena(model, feeds_for(graph, sizes, integer=0), discard=discarded(graph))
    return replace(found, ran=shapes_alone(found.ran))


def _footprints(graph: Graph, sizes: Mapping[str, int]) -> list[Footprint]:
    """The footprint; several where sessions differ (see :class:`superopt.memory.Arena`): none may be luck."""
    first = footprint(graph, sizes=sizes)
    varies = sum(n.op == "ReorderOutput" for n in first.ran.nodes) > 1
    return [first, *(footprint(graph, sizes=sizes) for _ in range(_SESSIONS if varies else 0))]


def _candidates(graph: Graph, sizes: Mapping[str, int]) -> Iterator[tuple[str, Graph]]:
    typing = infer(graph, dict(sizes))
    opened, again = open_rows(graph, typing), frozenset[str]()
    if opened is not None:
        try:
            again = known_again(footprint(opened, sizes=sizes), graph)
        except (SuperoptError, NotCovered):  # a shape that has to be known
            opened = None
    if opened is not None:
        yield "open rows", open_rows(graph, typing, again) or opened
        if again:
            yield "open rows", opened
    ordered = list(orders(graph, typing, sizes))
    yield from (("order", g) for g in ordered)
    if opened is not None:
        yield from (("order, open rows", o) for g in ordered if (o := open_rows(g, typing, again)) is not None)


def known_again(found: Footprint, graph: Graph) -> frozenset[str]:
    """Values of a graph whose sizes the runtime knows though it does not know those of what they are made of: a
    constant that they are concatenated with says how many rows there are, say (a class token)."""
    names, made = set[str](), set[str]()  # theirs, and the runtime's own, on the way to one of theirs
    for node in found.ran.nodes:
        if all(n in found.known and n not in made for n in node.reads):
            continue
        for name in node.outputs:
            if name in found.known and (found.known[name].nbytes or 0) > ALIGNMENT:
                (names if name in graph.producer else made).add(name)
    return frozenset(names)


def orders(graph: Graph, typing: Typing, sizes: Mapping[str, int]) -> Iterator[Graph]:
    """The graph in its order of least memory, both ways round; a file that has it already is not run in it, perhaps."""
    found = least_order(graph, typing, sizes)
    nodes = tuple(graph.nodes[i] for i in found)
    if found != tuple(range(len(nodes))):
        yield replace(graph, nodes=nodes)
    reverse = nodes[::-1]
    made = {o: i for i, n in enumerate(reverse) for o in n.outputs if o}
    turned = tuple(reverse[i] for i in topological_order(reverse, made))
    if turned != graph.nodes:
        yield replace(graph, nodes=turned)


def open_rows(graph: Graph, typing: Typing, again: Set[str] = frozenset()) -> Graph | None:
    """The graph whose number of rows (the first size of every input) is not known before a run.

    Args:
        graph: the model.
        typing: its types.
        again: values (not of inputs alone) whose rows are to be opened, too.

    Returns:
        It computes the same. ``None`` where no input has a fixed number of rows, or the opset is too old.
    """
    fed = [
        v
        for v in graph.inputs
        if v.name not in graph.weight and isinstance(v.type, TensorType) and v.type.is_static and v.type.shape
    ]
    if not fed or graph.opset.get("", 0) < _COMPRESS:
        return None
    taken = {*graph.weight, *graph.declared, *(o for n in graph.nodes for o in n.outputs)}
    named = {n.name for n in graph.nodes}
    weights, nodes = list(graph.weights), list[Node]()
    renamed: dict[str, str] = {}

    def held(hint: str, elements: np.ndarray) -> str:
        weights.append(constant(unused_name(hint, taken), elements))
        return weights[-1].name

    def opened(name: str, kind: ValueType | None) -> None:
        if isinstance(kind, TensorType) and kind.is_static and kind.shape:
            every = held(f"{name}_every_row", np.ones(int(str(kind.shape[0])), bool))
            rows = unused_name(f"{name}_rows", taken)
            label = unused_name(f"{name}_Compress", named)
            nodes.append(Node(label, "Compress", (renamed.get(name, name), every), (rows,), {"axis": 0}))
            renamed[name] = rows

    for value in fed:
        opened(value.name, value.type)
    sums = _sums(graph, typing)
    inside = {s.product for s in sums.values()}
    for node in graph.nodes:
        node = replace(node, inputs=tuple(renamed.get(n, n) for n in node.inputs))
        made = node.outputs[0]
        if made in inside:
            continue
        if made in sums:
            found = sums[made]
            rows, flat = (unused_name(f"{made}_{part}", taken) for part in ("rows", "product"))
            left = held(f"{made}_shape", np.array([-1, found.inner], np.int64))
            back = held(f"{made}_shape", found.shape)
            nodes += [
                Node(unused_name(rows, named), "Reshape", (renamed.get(found.left, found.left), left), (rows,)),
                Node(unused_name(flat, named), "Gemm", (rows, found.matrix, found.bias), (flat,)),
                replace(node, op="Reshape", inputs=(flat, back), attributes={}),
            ]
        elif node.op == "Reshape" and not node.domain and node.inputs[1] in graph.constants:
            shape = _open_shape(typing.types.get(made))
            if shape is not None:
                node = replace(node, inputs=(node.inputs[0], held(f"{made}_shape", shape)), attributes={})
            nodes.append(node)
        else:
            nodes.append(node)
        if made in again:
            opened(made, typing.types.get(made))
    values = tuple(v for v in graph.values if v.name not in graph.producer)  # they would say what is to be left open
    return replace(graph, weights=tuple(weights), nodes=tuple(nodes), values=values)


@dataclass(frozen=True)
class _Sum:
    """``left @ matrix + bias`` with ``inner`` columns on the left; ``shape``: the result's, its rows left open."""

    product: str
    left: str
    matrix: str
    bias: str
    inner: int
    shape: np.ndarray


def _sums(graph: Graph, typing: Typing) -> dict[str, _Sum]:
    """Products with a constant matrix and a constant vector added, by what they make.

    ONNX Runtime runs them as a ``Gemm`` between two ``Reshape``, but only where it knows all sizes.
    """
    found: dict[str, _Sum] = {}
    outputs = {v.name for v in graph.outputs}
    for node in graph.nodes:
        for product, bias in (node.inputs, node.inputs[::-1]) if node.op == "Add" and not node.domain else ():
            maker, vector = graph.producer.get(product), graph.constants.get(bias)
            if maker is None or vector is None or maker.op != "MatMul" or maker.domain or product in outputs:
                continue
            matrix, shape = graph.constants.get(maker.inputs[1]), _open_shape(typing.types.get(node.outputs[0]))
            if matrix is None or shape is None or len(shape) < 3 or len(graph.consumers[product]) > 1:
                continue
            sides = matrix.type.shape
            if sides is not None and len(sides) == 2 and vector.type.shape == sides[1:]:
                inner = int(str(sides[0]))
                found[node.outputs[0]] = _Sum(product, maker.inputs[0], matrix.name, bias, inner, shape)
    return found


def _open_shape(kind: TensorType | None) -> np.ndarray | None:
    """What a ``Reshape`` is told so that the type results and its rows are not known beforehand."""
    if kind is None or not kind.is_static or not kind.shape:
        return None
    sizes = [int(str(d)) for d in kind.shape]
    return np.array([-1, *sizes[1:]], np.int64) if all(sizes) else None


def _kernels(ran: Graph) -> Counter[tuple[str, str]]:
    """What is run, without what only renames memory and what opens rows."""
    return Counter((n.domain, n.op) for n in ran.nodes if (n.domain, n.op) not in RENAMING and n.op != "Compress")


def _outputs(graph: Graph, sizes: Mapping[str, int]) -> dict[str, bytes]:
    """Every output's bytes on inputs that are the same for the same signature."""
    session = make_session(formats.to_onnx_bytes(with_values(graph)), threads=1)
    try:
        made = run(session, feeds_for(graph, sizes))
    except SuperoptError:  # integer inputs may be indices
        made = run(session, feeds_for(graph, sizes, integer=0))
    return {n: f"{a.dtype}{a.shape}".encode() + np.ascontiguousarray(a).tobytes() for n, a in made.items()}

"""The last step before a model is written for memory: the same kernels in less of it.

Two things about a file decide what ONNX Runtime's planner makes of it besides its kernels. Both are tried, judged by
:mod:`superopt.pipeline.memory_timeline` on what it then really runs:

- **The order of the nodes.** The runtime walks back from the results, and where a node reads several, the one whose
  maker stands last in the file is made first; what it fuses moves to the end. So an order is written both ways round.
- **Sizes known beforehand.** It keeps a dead buffer for the next value of the same shape, and what it keeps is in the
  way meanwhile. Where a size is not known before a run, values lie where there is room (docs/decisions/0029). *Open
  rows*: inputs pass a ``Compress`` that keeps every row, shapes that name the rows name them ``-1``, and a product with
  a vector added, which the runtime merges only at sizes that it knows, is written merged. *Hidden sizes*: for each
  kernel by itself (:mod:`superopt.pipeline.planner_size_hiding`).

A candidate is taken only where it runs the very same kernels (and, once, some that say sizes), gives the same outputs
bit for bit, and needs less: as modelled, and by what the arena is asked for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from superopt import formats
from superopt.cost.graph_costs import least_order
from superopt.formats.onnx_reader import shapes_alone
from superopt.ir.errors import SuperoptError
from superopt.ir.graph import Graph, topological_order
from superopt.memory.arena_measurement import ArenaMeasurement, measured_arena
from superopt.ops.operator_definition import UnsupportedNodeForm
from superopt.ops.shape_inference import InferredTypes, infer
from superopt.pipeline.memory_timeline import ActivationFootprint, footprint
from superopt.pipeline.planner_size_hiding import hidden_sizes, kernels
from superopt.pipeline.symbolic_row_dimension import open_rows, values_of_known_sizes
from superopt.runtime.executed_graph import discard_threshold, weightless_file
from superopt.runtime.onnx_runtime import make_session, run
from superopt.runtime.resource_limits import refuse_unbounded
from superopt.runtime.synthetic_tensors import feeds_for, with_values

__all__ = ["MemoryScheduledGraph", "arena_of", "arena_block", "least_memory", "orders"]

_SESSIONS = 3  # more of a model, where their orders may differ
_ASKED = 4  # graphs of which the arena is asked: a second or two each


@dataclass(frozen=True)
class MemoryScheduledGraph:
    """A graph with its nodes and sizes as its activations take least.

    Attributes:
        graph: it; the one given where nothing takes less.
        before: footprint of the graph given.
        after: footprint of ``graph``.
        how: what was done: "", "order", "open rows", "hidden sizes", or one of these in an order.
        asked: bytes of the blocks that the arena was asked for before and after, where something was found.
    """

    graph: Graph
    before: ActivationFootprint
    after: ActivationFootprint
    how: str
    asked: tuple[int, int] | None = None


def least_memory(
    graph: Graph, *, sizes: Mapping[str, int] | None = None, deadline: float = float("inf"), alike: bool = True
) -> MemoryScheduledGraph:
    """The same kernels with the least memory for activations that is found.

    Args:
        graph: the model.
        sizes: what symbolic dimensions are counted at.
        deadline: on the monotonic clock, after which nothing more is tried.
        alike: else what the runtime fuses only at sizes that it knows may run as it is written, rounded otherwise.

    Raises:
        InvalidModel, Unsupported, ResourceLimit: ONNX Runtime cannot run it, or not with its arena watched.
        UnsupportedNodeForm: an input is no tensor.
    """
    sizes = sizes or {}
    before = min(_footprints(graph, sizes), key=lambda f: f.plan.peak)
    unchanged, run = MemoryScheduledGraph(graph, before, before, ""), kernels(before.ran)
    tried, least = list[MemoryScheduledGraph](), before.plan.peak

    for how, made, said in _candidates(graph, before, sizes, alike):
        if time.monotonic() > deadline or least <= before.bound:
            break
        try:
            after = max(_footprints(made, sizes), key=lambda f: f.plan.peak)
        except (SuperoptError, UnsupportedNodeForm):  # a shape that has to be known
            continue
        if not alike or kernels(after.ran, said) == run:
            tried.append(MemoryScheduledGraph(made, before, after, how))
            least = min(least, after.plan.peak)
    better = [found for found in tried if found.after.plan.peak < before.plan.peak]
    return _best_measured(unchanged, better, sizes, deadline, alike) if better else unchanged


def _best_measured(
    unchanged: MemoryScheduledGraph,
    found: Sequence[MemoryScheduledGraph],
    sizes: Mapping[str, int],
    deadline: float,
    alike: bool,
) -> MemoryScheduledGraph:
    """Of what is modelled to need least, of each kind first, the one of which the arena is asked least: it decides, and
    not always as modelled. Of equals first what the prover follows, who does not know how many rows a ``Compress``
    keeps."""
    expected = _outputs(unchanged.graph, sizes) if alike else None
    given = arena_block(unchanged.graph, sizes)
    best, least, asked = unchanged, given, 0
    rising = sorted(found, key=lambda s: (s.after.plan.block, "open rows" in s.how))
    kinds = {s.how: s for s in reversed(rising)}  # the first of each
    for scheduled in sorted(rising, key=lambda s: kinds[s.how] is not s):
        if asked == _ASKED or (asked and time.monotonic() > deadline):
            break
        if scheduled.after.plan.block >= least:
            continue
        if expected is not None and _outputs(scheduled.graph, sizes) != expected:
            continue
        asked += 1
        block = arena_block(scheduled.graph, sizes)
        if block < least:
            best, least = scheduled, block
    return replace(best, asked=(given, least))


def arena_block(graph: Graph, sizes: Mapping[str, int]) -> int:
    """Bytes of the block that the arena is asked for: what is modelled has to hold there."""
    return arena_of(graph, sizes).block


def arena_of(graph: Graph, sizes: Mapping[str, int]) -> ArenaMeasurement:
    """What the arena is asked for, and what is run meanwhile.

    Raises:
        InvalidModel, Unsupported, ResourceLimit: ONNX Runtime cannot run it, or not with its arena watched.
        UnsupportedNodeForm: an input is no tensor.
    """
    refuse_unbounded(graph, sizes)
    with weightless_file(graph) as model:
        try:
            found = measured_arena(model, feeds_for(graph, sizes), discard=discard_threshold(graph))
        except SuperoptError:  # integer inputs may be indices
            found = measured_arena(model, feeds_for(graph, sizes, integer=0), discard=discard_threshold(graph))
    return replace(found, ran=shapes_alone(found.ran))


def _footprints(graph: Graph, sizes: Mapping[str, int]) -> list[ActivationFootprint]:
    """The footprint; several where sessions differ (:class:`superopt.memory.arena_measurement.ArenaMeasurement`): none
    may be luck."""
    first = footprint(graph, sizes=sizes)
    varies = sum(n.op == "ReorderOutput" for n in first.ran.nodes) > 1
    return [first, *(footprint(graph, sizes=sizes) for _ in range(_SESSIONS if varies else 0))]


def _candidates(
    graph: Graph, found: ActivationFootprint, sizes: Mapping[str, int], alike: bool
) -> Iterator[tuple[str, Graph, frozenset[str]]]:
    """What was done, the graph, and values in it that only say sizes."""
    typing, nothing = infer(graph, dict(sizes)), frozenset[str]()
    again, named = nothing, False
    rows = open_rows(graph, typing)
    if rows is not None:
        try:
            opened = footprint(rows, sizes=sizes)
            if alike and kernels(opened.ran) != kernels(found.ran):
                named, rows = True, open_rows(graph, typing, named=True) or rows
                opened = footprint(rows, sizes=sizes)
            again = values_of_known_sizes(opened, graph.producer.keys())
        except (SuperoptError, UnsupportedNodeForm):  # a shape that has to be known
            rows = None
    if rows is not None:
        yield "open rows", open_rows(graph, typing, again, named=named) or rows, nothing
        if again:
            yield "open rows", rows, nothing
    for made in hidden_sizes(graph, typing, found, sizes, alike=alike):
        yield "hidden sizes", made.graph, made.said
    for ordered in orders(graph, typing, sizes):
        yield "order", ordered, nothing
        if rows is not None and (made_rows := open_rows(ordered, typing, again, named=named)) is not None:
            yield "order, open rows", made_rows, nothing
        for made in hidden_sizes(
            ordered, infer(ordered, dict(sizes)), footprint(ordered, sizes=sizes), sizes, alike=alike
        ):
            yield "order, hidden sizes", made.graph, made.said


def orders(graph: Graph, typing: InferredTypes, sizes: Mapping[str, int]) -> Iterator[Graph]:
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


def _outputs(graph: Graph, sizes: Mapping[str, int]) -> dict[str, bytes]:
    """Every output's bytes on inputs that are the same for the same signature."""
    session = make_session(formats.to_onnx_bytes(with_values(graph)), threads=1)
    try:
        made = run(session, feeds_for(graph, sizes))
    except SuperoptError:  # integer inputs may be indices
        made = run(session, feeds_for(graph, sizes, integer=0))
    return {n: f"{a.dtype}{a.shape}".encode() + np.ascontiguousarray(a).tobytes() for n, a in made.items()}

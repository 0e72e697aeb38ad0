"""What can be computed slice by slice: the dimension graph and fission hierarchy tree of :mod:`lab.magis`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx

from superopt.ir.graph import Node
from superopt.ir.types import TensorType
from superopt.memory import Planned, Task
from superopt.ops import REGISTRY

__all__ = ["Region", "regions_of"]

_REGIONS = 200  # those that make most bytes
_EACH_AXIS = frozenset({"elementwise", "activation"})
_SUMS = frozenset({"ReduceSum", "ReduceMean", "MatMul", "Gemm", "Conv"})  # whose parts along what is summed add up
_WEIGHT = -1
_ROWS = frozenset({"normalisation", "conv", "selection", "resize", "slicing", "shape"})


@dataclass(frozen=True)
class Region:
    """Ops that can be executed slice by slice, one slice after the other.

    Attributes:
        ops: their positions, in order.
        most: parts, at most.
    """

    ops: tuple[int, ...]
    most: int


def _links(planned: Planned, op: int) -> tuple[list[tuple[int, int, int]], list[tuple[int, int]]]:
    """Which axes of an op's operands are axes of its results, as (value, axis, axis of the first result), and which of
    them it sums over. Where an axis of the result is one of a weight's alone, the value is :data:`_WEIGHT`."""
    node, task = planned.nodes[op], planned.task
    number = {planned.names[v]: v for v in task.ops[op].reads}
    record = REGISTRY.get(node.op) if not node.domain else None
    out = _shape(planned, node.outputs[0])
    shapes = [(number[n], i, s) for i, n in enumerate(node.inputs) if n in number and (s := _shape(planned, n))]
    if record is None or not out or len(shapes) < sum(n in number for n in node.inputs):
        return [], []
    found: list[tuple[int, int, int]] = []
    sums: list[tuple[int, int]] = []
    for value, place, shape in shapes:
        if record.family in _EACH_AXIS:
            shift = len(out) - len(shape)
            found += [(value, a, a + shift) for a in range(len(shape)) if shape[a] == out[a + shift]]
        elif node.op in _SUMS and record.family != "reduce":
            axes, summed = _of_product(node, place, shape, out)
            found += [(value, a, b) for a, b in axes]
            sums += [(value, a) for a in summed]
        elif node.op == "Transpose":
            stated: Any = node.attributes.get("perm")
            order = tuple(stated) if stated is not None else tuple(reversed(range(len(shape))))
            found += [(value, a, order.index(a)) for a in range(len(shape))]
        elif record.family == "reduce":
            kept = _kept_axes(shape, out)
            found += [(value, a, b) for a, b in kept]
            sums += [(value, a) for a in range(len(shape)) if a not in {a for a, _ in kept}]
        elif record.family == "pooling" or node.op == "BatchNormalization":
            found += [(value, 0, 0), (value, 1, 1)] if place == 0 else [(value, 0, 1)]
        elif place == 0 and record.family in _ROWS and shape[0] == out[0] and _along_rows(node):
            found.append((value, 0, 0))
    if node.op in ("MatMul", "Gemm", "Conv") and len(node.inputs) > 1 and node.inputs[1] not in number:
        found.append((_WEIGHT, 0, 1 if node.op == "Conv" else len(out) - 1))
    return found, sums if node.op in _SUMS else []


def _of_product(
    node: Node, place: int, shape: Sequence[int], out: Sequence[int]
) -> tuple[list[tuple[int, int]], list[int]]:
    """Axes of an operand of a product or convolution that are axes of its result, and those that it sums over."""
    rank, shift = len(shape), len(out) - len(shape)
    if node.op == "Conv":
        alone = node.attributes.get("group", 1) == 1
        if place:
            return ([(0, 1)], [1] if alone and place == 1 else [])
        return ([(0, 0)], [1]) if alone else ([(0, 0), (1, 1)] if shape[1] == out[1] else [(0, 0)], [])
    if node.op == "Gemm":
        flipped = bool(node.attributes.get("transA" if place == 0 else "transB", 0))
        return ([(place ^ flipped, place)], [1 - (place ^ flipped)]) if place < 2 else ([(rank - 1, 1)], [])
    if rank < 2 or len(out) < 2:
        return [], []
    own, summed = (rank - 2, rank - 1) if place == 0 else (rank - 1, rank - 2)
    batch = [(a, a + shift) for a in range(rank - 2) if shape[a] == out[a + shift]]
    return [*batch, (own, own + shift)], [summed]


def _along_rows(node: Node) -> bool:
    """Whether rows of the first operand are rows of the result, for operators that say which axis they work along."""
    return node.op not in ("ScatterND", "GatherElements", "CumSum", "Slice") and node.attributes.get("axis", 1) != 0


def _kept_axes(shape: Sequence[int], out: Sequence[int]) -> list[tuple[int, int]]:
    if len(shape) == len(out):
        return [(a, a) for a in range(len(shape)) if shape[a] == out[a]]
    lead = next((a for a in range(len(out)) if shape[a] != out[a]), len(out))
    return [(a, a) for a in range(lead)]


def _shape(planned: Planned, name: str) -> tuple[int, ...] | None:
    kind = planned.types.get(name)
    if not isinstance(kind, TensorType) or kind.shape is None or not kind.is_static:
        return None
    return tuple(int(str(d)) for d in kind.shape)


def regions_of(planned: Planned) -> list[Region]:
    """The fission hierarchy: of each component of the dimension graph what each of its ops dominates."""
    task = planned.task
    axes: nx.Graph[tuple[int, int]] = nx.Graph()
    links = [_links(planned, i) for i in range(len(task.ops))]
    for op, (found, _) in zip(task.ops, links, strict=True):
        axes.add_nodes_from((op.makes[0], b) for _, _, b in found)
        axes.add_edges_from(((v, a), (op.makes[0], b)) for v, a, b in found if v != _WEIGHT)
    above = _ancestors(task)
    kept: dict[tuple[int, ...], Region] = {}
    for component in nx.connected_components(axes):
        split = dict(component)
        if len(split) < len(component):
            continue  # two axes of one value
        ops = [i for i, op in enumerate(task.ops) if _splits(op.reads, op.makes, *links[i], split)]
        size = min((s[a] for v, a in split.items() if (s := _shape(planned, planned.names[v]))), default=1)
        if size < 2:
            continue
        for inside in _dominated(task, ops):
            if len(inside) > 1 and _convex(inside, above):
                kept[inside] = Region(inside, size)
    bytes_of = {r: sum(task.sizes[v] for i in r.ops for v in task.ops[i].makes) for r in kept.values()}
    return sorted(kept.values(), key=lambda r: (-bytes_of[r], r.ops))[:_REGIONS]


def _splits(
    reads: Sequence[int], makes: Sequence[int], found: Sequence[tuple[int, int, int]], sums: Sequence[tuple[int, int]],
    split: Mapping[int, int],
) -> bool:  # fmt: skip
    """Whether an op can be executed slice by slice where these values are split along these axes."""
    along = {v for v, a, b in found if v != _WEIGHT and split.get(v) == a and split.get(makes[0]) == b}
    summed = {v for v, a in sums if split.get(v) == a}
    mine = {v for v in reads if v in split}
    if not mine:
        return any(v == _WEIGHT and split.get(makes[0]) == b for v, _, b in found)
    return mine == along or (mine == summed and makes[0] not in split)


def _ancestors(task: Task) -> list[int]:
    maker = {v: i for i, op in enumerate(task.ops) for v in op.makes}
    found: list[int] = []
    for i, op in enumerate(task.ops):
        own = 1 << i
        for value in op.reads:
            own |= found[maker[value]] if value in maker else 0
        found.append(own)
    return found


def _convex(ops: Sequence[int], above: Sequence[int]) -> bool:
    """Whether no path leaves them and comes back."""
    inside = sum(1 << i for i in ops)
    reach = 0
    for i in range(ops[0], ops[-1] + 1):
        if inside >> i & 1:
            if above[i] & reach:
                return False
        elif above[i] & inside:
            reach |= 1 << i
    return True


def _dominated(task: Task, ops: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """For each op what it dominates among these."""
    inside = set(ops)
    graph: nx.DiGraph[int] = nx.DiGraph()
    maker = {v: i for i, op in enumerate(task.ops) for v in op.makes}
    for i in ops:
        before = {maker[v] for v in task.ops[i].reads if maker.get(v, -1) in inside}
        graph.add_edges_from((b, i) for b in before or {-1})
    if not graph:
        return
    children: dict[int, list[int]] = {}
    for i, parent in nx.immediate_dominators(graph, -1).items():
        if i != -1 and parent is not None and parent != i:
            children.setdefault(parent, []).append(i)
    below: dict[int, tuple[int, ...]] = {}
    for i in sorted(inside, reverse=True):
        below[i] = tuple(sorted([i, *(o for c in children.get(i, ()) for o in below[c])]))
    for i in children.get(-1, ()):
        yield below[i]
    yield from below.values()
    yield tuple(sorted(inside))

"""Sizes at which two models may behave otherwise, read off their constants: ends of slices, what shapes are compared
with, windows. Sizes of 2 to 5 reach none of a model that does something to the seventh row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from onnx import AttributeProto, GraphProto, TensorProto, numpy_helper

from superopt.ir.graph import Graph, Node, OpaqueAttribute
from superopt.ir.types import TensorType, ValueType
from superopt.verifier.check.input_targets import literals, numbers_of, size_targets, solved

__all__ = ["MOST", "size_candidates"]

MOST = 24  # sizes that are tried, at most
_LARGEST = 1 << 24  # a size: larger ones say "to the end"
_MANY = 8  # rows more than twice a number
_FEW = 16  # elements of a constant that is a size by itself
_WRAPS: Mapping[object, tuple[int, ...]] = {2: (256,), 3: (128, 256), 4: (1 << 16,), 5: (1 << 15, 1 << 16)}  # by type
_READ = 1 << 20  # bytes of a subgraph that is looked into

Types = Mapping[str, ValueType | None]


def size_candidates(
    graphs: Sequence[tuple[Graph, Types]], names: Iterable[str], fixed: Mapping[str, int]
) -> Iterator[tuple[tuple[str, ...], int]]:
    """Sizes to try, each of one name or of all: about each number that a graph tells one size from another by.

    Args:
        graphs: both models, with their types; sizes are named alike in them.
        names: of the sizes that are open.
        fixed: those that are not.
    """
    names = [n for n in dict.fromkeys(names) if n not in fixed]
    wanted: dict[tuple[str, int], None] = {}
    for graph, types in graphs:
        sizes = size_targets(graph, types)
        wanted.update(((n, t), None) for n in names for t in sizes.get(n, ()))
        wanted.update(dict.fromkeys((n, t) for node in graph.nodes for n, t in _sites(graph, node, types)))
    numbers = [dict.fromkeys(_numbers(graph)) for graph, _ in graphs]
    own = [t for i, held in enumerate(numbers) for t in held if not any(t in o for o in numbers[:i] + numbers[i + 1 :])]
    own += [t for graph, _ in graphs for node in graph.nodes for t in _narrowed(node)]
    inner = [t for graph, _ in graphs for t in _inner_numbers(graph)]
    wanted.update(dict.fromkeys((n, t) for t in (*own, *inner) for n in names))
    told = [(n, t) for n, t in wanted if n in names]
    together = [tuple(names)] if len(names) > 1 else []
    yield from dict.fromkeys(
        (group, size)
        for n, t in told
        for group, sizes in (*(((n,), _around(t)),), *((g, (t + 1,)) for g in together))
        for size in sizes
        if 1 < size <= _LARGEST
    )


def _around(number: int) -> tuple[int, ...]:
    """Beyond a number, at it, before it; and so far beyond that most elements are."""
    return number + 1, number, number - 1, 2 * number + _MANY


def _numbers(graph: Graph) -> Iterator[int]:
    """Whole numbers of a graph's small constants."""
    return (int(abs(t)) for t in literals(graph, _FEW) if t == int(t) and 0 < abs(t) <= _LARGEST)


def _narrowed(node: Node) -> tuple[int, ...]:
    """Numbers at which a cast to few bits wraps around: it may be of positions."""
    return _WRAPS.get(node.attributes.get("to"), ()) if node.op == "Cast" else ()


def _sites(graph: Graph, node: Node, types: Types) -> Iterator[tuple[str, int]]:
    """Names of sizes with the numbers at which a node does otherwise."""
    kind = types.get(node.inputs[0]) if node.inputs else None
    if not isinstance(kind, TensorType) or not kind.shape:
        return
    for axis, number in _axes(graph, node, len(kind.shape)):
        if -len(kind.shape) <= axis < len(kind.shape):
            yield from solved(kind.shape[axis], number)


def _axes(graph: Graph, node: Node, rank: int) -> Iterator[tuple[int, int]]:
    """Axes of a node's first operand, with lengths at which it does otherwise."""
    if node.op == "Slice":
        given = {k: _integers(graph, node, p, k) for p, k in enumerate(("starts", "ends", "axes"), 1)}
        axes = given["axes"] or range(rank)
        for numbers in (given["starts"], given["ends"]):
            yield from ((axis, abs(k)) for axis, k in zip(axes, numbers, strict=False))
    elif node.op in ("Gather", "GatherElements"):
        axis = node.attributes.get("axis", 0)
        yield from ((axis, k + 1 if k >= 0 else -k) for k in _integers(graph, node, 1, "") if isinstance(axis, int))
    elif node.op == "TopK":
        axis = node.attributes.get("axis", -1)
        yield from ((axis, k) for k in _integers(graph, node, 1, "k") if isinstance(axis, int))
    elif node.op == "Trilu":
        yield from ((axis, abs(k)) for k in _integers(graph, node, 1, "") for axis in (-1, -2))
    elif isinstance(kernel := node.attributes.get("kernel_shape"), tuple):
        yield from ((2 + i, k) for i, k in enumerate(kernel) if isinstance(k, int))


def _integers(graph: Graph, node: Node, place: int, attribute: str) -> list[int]:
    """A node's whole numbers, from a constant operand or an attribute."""
    held = node.attributes.get(attribute)
    if held is not None:
        return [v for v in (held if isinstance(held, tuple) else (held,)) if isinstance(v, int)]
    if len(node.inputs) <= place or not node.inputs[place]:
        return []
    return [int(t) for t in numbers_of(graph, node.inputs[place], _FEW) if abs(t) < 2**62]


def _inner_numbers(graph: Graph) -> Iterator[int]:
    """Whole numbers of the small constants in subgraphs."""
    for node in graph.nodes:
        for value in node.attributes.values():
            if isinstance(value, OpaqueAttribute) and len(value.payload) <= _READ:
                held = AttributeProto.FromString(value.payload)  # type: ignore[no-untyped-call]
                for body in (held.g, *held.graphs):
                    yield from _body_numbers(body)


def _body_numbers(body: GraphProto) -> Iterator[int]:
    tensors: list[TensorProto] = [t for t in body.initializer if np.prod(t.dims) <= _FEW]
    for node in body.node:
        for attribute in node.attribute:
            tensors += [attribute.t] if attribute.type == AttributeProto.TENSOR else []
            if node.op_type == "Constant":
                yield from (abs(int(v)) for v in (attribute.i, *attribute.ints, attribute.f) if 0 < abs(v) <= _LARGEST)
            for inner in (attribute.g, *attribute.graphs):
                yield from _body_numbers(inner)
    for tensor in tensors:
        if np.prod(tensor.dims) <= _FEW and tensor.data_type not in (TensorProto.STRING, TensorProto.BOOL):
            numbers = np.asarray(numpy_helper.to_array(tensor)).astype(np.float64).reshape(-1)
            yield from (abs(int(v)) for v in numbers.tolist() if 0 < abs(v) <= _LARGEST)

"""Leaving the number of rows of a model open: no size that depends on it is then known before a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from superopt.ir.graph import Graph, Node, Value, unused_name
from superopt.ir.size_polynomial import sym, symbols
from superopt.ir.types import TensorType, ValueType
from superopt.memory.runtime_memory_planner import ALIGNMENT
from superopt.memory.size_hiding import FOR_MEMORY, SizeHidingReshapes
from superopt.ops.shape_inference import InferredTypes
from superopt.pipeline.memory_timeline import ActivationFootprint

__all__ = ["MatMulWithBias", "values_of_known_sizes", "merged", "open_rows", "sizes_of", "sums"]

_COMPRESS = 9  # the first opset that has it


def open_rows(
    graph: Graph, typing: InferredTypes, again: Set[str] = frozenset(), *, named: bool = False
) -> Graph | None:
    """The graph whose number of rows (the first size of every input) is not known before a run.

    Args:
        graph: the model.
        typing: its types.
        again: values (not of inputs alone) whose rows are to be opened, too.
        named: what is summed is said to have equally many rows, by a name: in the blocked layout ONNX Runtime merges a
            sum into a convolution only where it knows its operands to have the same sizes, whatever they are.

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
    guards = SizeHidingReshapes.of(graph, typing.types)
    nodes, held = guards.nodes, guards.add_constant
    renamed: dict[str, str] = {}

    def opened(name: str, kind: ValueType | None) -> None:
        if isinstance(kind, TensorType) and kind.is_static and kind.shape:
            every = held(f"{name}_every_row", np.ones(int(str(kind.shape[0])), bool))
            rows = unused_name(f"{name}_rows", guards.taken)
            label = unused_name(f"{name}_Compress", guards.named)
            inputs = renamed.get(name, name), every
            nodes.append(Node(label, "Compress", inputs, (rows,), {"axis": 0}, metadata=FOR_MEMORY))
            renamed[name] = rows

    for value in fed:
        opened(value.name, value.type)
    added = sums(graph, typing)
    inside = {s.product for s in added.values()}
    for node in graph.nodes:
        node = replace(node, inputs=tuple(renamed.get(n, n) for n in node.inputs))
        made = node.outputs[0]
        if made in inside:
            continue
        if made in added:
            found = added[made]
            flattened = held(f"{made}_shape", np.array([-1, found.inner], np.int64))
            shape = held(f"{made}_shape", np.array([-1, *found.shape[1:]], np.int64))
            nodes.append(merged(guards, node, found, renamed.get(found.left, found.left), flattened, shape))
        elif node.op == "Reshape" and not node.domain and node.inputs[1] in graph.constants:
            sizes = sizes_of(typing.types.get(made))
            if sizes is not None:
                shape = held(f"{made}_shape", np.array([-1, *sizes[1:]], np.int64))
                node = replace(node, inputs=(node.inputs[0], shape), attributes={})
            nodes.append(node)
        else:
            nodes.append(node)
        if made in again:
            opened(made, typing.types.get(made))
    values = tuple(v for v in graph.values if v.name not in graph.producer)  # they would say what is to be left open
    values += tuple(_summed(graph, typing)) if named else ()
    return replace(graph, weights=(*graph.weights, *guards.weights), nodes=tuple(nodes), values=values)


def _summed(graph: Graph, typing: InferredTypes) -> Iterator[Value]:
    """Operands and results of sums of two computed values of the same sizes, their rows called after their number."""
    fed = [v.type.shape or () for v in graph.inputs if isinstance(v.type, TensorType)]
    taken = {name for shape in fed for size in shape for name in symbols(size)}
    named: dict[object, str] = {}
    found: dict[str, TensorType] = {}
    for node in graph.nodes:
        kind = _common_type(graph, typing, node.inputs) if node.op == "Add" and not node.domain else None
        found.update((n, kind) for n in (*node.inputs, *node.outputs) if kind is not None)
    for name in sorted(found.keys() - {v.name for v in graph.outputs}):
        rows, *rest = found[name].shape or ()
        if rows not in named:
            named[rows] = unused_name(f"rows_{rows}", taken)
        yield Value(name, TensorType(found[name].dtype, (sym(named[rows]), *rest)))


def _common_type(graph: Graph, typing: InferredTypes, names: Sequence[str]) -> TensorType | None:
    """The type of these, where nodes make all of them, of the same known sizes."""
    kinds = {typing.types.get(n) for n in names}
    kind = kinds.pop() if len(kinds) == 1 else None
    made = all(n in graph.producer for n in names)
    return kind if made and kind is not None and kind.is_static and kind.shape else None


def values_of_known_sizes(after: ActivationFootprint, given: Set[str]) -> frozenset[str]:
    """Values whose sizes the runtime knows though it does not know those of all that they are made of: a constant that
    they are concatenated with says how many rows there are, say (a class token)."""
    names, made = set[str](), set[str]()  # theirs, and the runtime's own, on the way to one of theirs
    for node in after.ran.nodes:
        if all(n in after.known and n not in made for n in node.reads):
            continue
        for name in node.outputs:
            if name in after.known and (after.known[name].nbytes or 0) > ALIGNMENT:
                (names if name in given else made).add(name)
    return frozenset(names)


@dataclass(frozen=True)
class MatMulWithBias:
    """``left @ matrix + bias`` with ``inner`` columns on the left; ``shape``: the result's."""

    product: str
    left: str
    matrix: str
    bias: str
    inner: int
    shape: Sequence[int]


def sums(graph: Graph, typing: InferredTypes) -> dict[str, MatMulWithBias]:
    """Products with a constant matrix and a constant vector added, by what they make.

    ONNX Runtime runs them as a ``Gemm`` between two ``Reshape``, but only where it knows all sizes.
    """
    found: dict[str, MatMulWithBias] = {}
    outputs = {v.name for v in graph.outputs}
    for node in graph.nodes:
        for product, bias in (node.inputs, node.inputs[::-1]) if node.op == "Add" and not node.domain else ():
            maker, vector = graph.producer.get(product), graph.constants.get(bias)
            if maker is None or vector is None or maker.op != "MatMul" or maker.domain or product in outputs:
                continue
            matrix, shape = graph.constants.get(maker.inputs[1]), sizes_of(typing.types.get(node.outputs[0]))
            if matrix is None or shape is None or len(shape) < 3 or len(graph.consumers[product]) > 1:
                continue
            sides = matrix.type.shape
            if sides is not None and len(sides) == 2 and vector.type.shape == sides[1:]:
                inner = int(str(sides[0]))
                found[node.outputs[0]] = MatMulWithBias(product, maker.inputs[0], matrix.name, bias, inner, shape)
    return found


def merged(
    guards: SizeHidingReshapes, node: Node, found: MatMulWithBias, left: str, flattened: str, shape: str
) -> Node:
    """A product with a vector added, written as the runtime merges them at sizes that it knows.

    Args:
        guards: to which nodes before the last are written.
        node: that adds; it is the last.
        found: the sum.
        left: what the matrix is multiplied from.
        flattened: the shape in which that has two axes.
        shape: of the result.
    """
    rows = guards.node("Reshape", (left, flattened), f"{node.outputs[0]}_rows")
    flat = guards.node("Gemm", (rows, found.matrix, found.bias), f"{node.outputs[0]}_product")
    return replace(node, op="Reshape", inputs=(flat, shape), attributes={})


def sizes_of(kind: TensorType | None) -> Sequence[int] | None:
    """The sizes of a value, none of them 0, where they are known and there are any."""
    if kind is None or not kind.is_static or not kind.shape:
        return None
    sizes = [int(str(d)) for d in kind.shape]
    return sizes if all(sizes) else None

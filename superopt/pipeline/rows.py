"""Leaving the number of rows of a model open: no size that depends on it is then known before a run."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from superopt.ir.graph import Graph, Node, constant, unused_name
from superopt.ir.types import TensorType, ValueType
from superopt.memory import ALIGNMENT
from superopt.ops.infer import Typing
from superopt.pipeline.footprint import Footprint

__all__ = ["Sum", "known_again", "open_rows", "sizes_of", "sums"]

_COMPRESS = 9  # the first opset that has it


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
    added = sums(graph, typing)
    inside = {s.product for s in added.values()}
    for node in graph.nodes:
        node = replace(node, inputs=tuple(renamed.get(n, n) for n in node.inputs))
        made = node.outputs[0]
        if made in inside:
            continue
        if made in added:
            found = added[made]
            rows, flat = (unused_name(f"{made}_{part}", taken) for part in ("rows", "product"))
            left = held(f"{made}_shape", np.array([-1, found.inner], np.int64))
            back = held(f"{made}_shape", np.array([-1, *found.shape[1:]], np.int64))
            nodes += [
                Node(unused_name(rows, named), "Reshape", (renamed.get(found.left, found.left), left), (rows,)),
                Node(unused_name(flat, named), "Gemm", (rows, found.matrix, found.bias), (flat,)),
                replace(node, op="Reshape", inputs=(flat, back), attributes={}),
            ]
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
    return replace(graph, weights=tuple(weights), nodes=tuple(nodes), values=values)


def known_again(after: Footprint, given: Set[str]) -> frozenset[str]:
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
class Sum:
    """``left @ matrix + bias`` with ``inner`` columns on the left; ``shape``: the result's."""

    product: str
    left: str
    matrix: str
    bias: str
    inner: int
    shape: Sequence[int]


def sums(graph: Graph, typing: Typing) -> dict[str, Sum]:
    """Products with a constant matrix and a constant vector added, by what they make.

    ONNX Runtime runs them as a ``Gemm`` between two ``Reshape``, but only where it knows all sizes.
    """
    found: dict[str, Sum] = {}
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
                found[node.outputs[0]] = Sum(product, maker.inputs[0], matrix.name, bias, inner, shape)
    return found


def sizes_of(kind: TensorType | None) -> Sequence[int] | None:
    """The sizes of a value, none of them 0, where they are known and there are any."""
    if kind is None or not kind.is_static or not kind.shape:
        return None
    sizes = [int(str(d)) for d in kind.shape]
    return sizes if all(sizes) else None

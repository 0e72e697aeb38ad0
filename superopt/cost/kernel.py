"""One node of ONNX Runtime's own optimised graph, as a small graph to be timed and a key to file it under."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from superopt.cost.record import Key
from superopt.ir.graph import Graph, Node, Value, Weight, attribute_key, constant
from superopt.ir.types import TensorType
from superopt.ops.record import NotCovered
from superopt.runtime.sample_data import sample

__all__ = ["Kernel", "kernels_of"]

_SCALES = 8  # and of up to this many reals (the scales and region of Resize, a slope)
_LITERAL = 64  # a constant of up to this many integers steers the kernel (a shape, axes): it is part of the key


@dataclass(frozen=True)
class Kernel:
    """A node of the optimised graph, with what is needed to time it alone."""

    node: Node
    key: Key
    graph: Graph
    flops: int
    moved: int


def kernels_of(graph: Graph, types: Mapping[str, TensorType]) -> tuple[Kernel | Node, ...]:
    """The nodes of a lowered graph in order; one that cannot be timed alone stays a node."""
    return tuple(_kernel(graph, node, types) for node in graph.nodes)


def _kernel(graph: Graph, node: Node, types: Mapping[str, TensorType]) -> Kernel | Node:
    if node.captures or any(n and n not in types for n in (*node.inputs, *node.outputs)):
        return node
    inputs: dict[str, Value] = {}
    weights: dict[str, Weight] = {}
    shapes: list[str] = []
    for slot, name in enumerate(node.inputs):
        if not name:
            shapes.append("")
            continue
        kind = types[name]
        if name not in graph.constants:
            inputs[name] = Value(name, kind)
            shapes.append(str(kind))
            continue
        weight, note = _constant(graph.constants[name], slot)
        weights[name] = weight
        shapes.append(f"!{kind}{note}")
    attributes = {k: attribute_key(v) for k, v in sorted(node.attributes.items())}
    key = Key(
        op=f"{node.domain}:{node.op}" if node.domain else node.op,
        attrs=json.dumps(attributes, separators=(",", ":")),
        dtype=str(types[node.outputs[0]].dtype) if node.outputs and node.outputs[0] else "",
        shapes=tuple(shapes),
        impl="kernel",
    )
    outputs = tuple(Value(n, types[n]) for n in node.outputs if n)
    small = Graph("kernel", tuple(inputs.values()), outputs, tuple(weights.values()), (node,), graph.opset)
    return Kernel(node, key, small, _flops(node, types), _moved(node, types))


def _constant(weight: Weight, slot: int) -> tuple[Weight, str]:
    """The constant as the trial holds it: literal where its value steers the kernel, random otherwise."""
    elements = weight.type.elements
    most = _LITERAL if weight.type.dtype.is_integer else _SCALES
    literal = isinstance(elements, int) and elements <= most
    if literal and weight.data is not None:
        array = weight.data.numpy()
        return constant(weight.name, array), f"={array.tolist()}"
    if not weight.type.is_static:
        raise NotCovered(f"the sizes of weight {weight.name} are not known")
    return constant(weight.name, sample(weight.type, slot)), ""


def _elements(kind: TensorType) -> int:
    return prod(int(str(d)) for d in kind.shape or ())


def _moved(node: Node, types: Mapping[str, TensorType]) -> int:
    return sum(types[n].nbytes or 0 for n in (*dict.fromkeys(node.inputs), *node.outputs) if n)


def _flops(node: Node, types: Mapping[str, TensorType]) -> int:
    """Operations, near enough for a roofline: contractions by their reduced size, all else one per element."""
    made = max((_elements(types[n]) for n in node.outputs if n), default=0)
    if len(node.inputs) > 1 and node.inputs[0] and node.inputs[1]:
        right = types[node.inputs[1]].shape or ()
        if "Conv" in node.op and len(right) > 2:
            return 2 * made * prod(int(str(d)) for d in right[1:])
        if "MatMul" in node.op or "Gemm" in node.op:
            left = types[node.inputs[0]].shape or ()
            flipped = bool(node.attributes.get("transA"))
            return 2 * made * int(str(left[-2 if flipped and len(left) > 1 else -1] if left else 1))
    return made

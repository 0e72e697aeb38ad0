"""How large the values inside bodies of control flow become, as further outputs of the nodes that hold them.

A node's further output is a vector of float32 (a matrix for Loop and Scan, a row for each turn): the largest magnitude
of each value that a rounding operator in the body reads or makes, as a share of its type's largest number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import ml_dtypes
import numpy as np

from superopt.formats.control_flow_bodies import ControlFlowBody, all_names, bodies, places_read, with_body
from superopt.formats.onnx_tensors import unknown_dim
from superopt.ir.graph import Graph, Node, Value, constant, unused_name
from superopt.ir.types import DType, TensorType
from superopt.ops.shape_inference import InferredTypes, infer
from superopt.verifier.check.rounding_noise import REALS, is_exact

__all__ = ["with_body_magnitudes"]

_OUTPUT_LISTS = ("scan_output_axes", "scan_output_directions")  # attributes of Scan with an element for each output


def with_body_magnitudes(
    graph: Graph, typing: InferredTypes, poles: frozenset[str], taken: set[str] | None = None
) -> tuple[Graph, tuple[str, ...]]:  # fmt: skip
    """The graph with the magnitudes inside bodies, and the names of the values that have them.

    Args:
        graph: the model.
        typing: its types.
        poles: operators whose results may be infinite without an overflow; these are left out.
        taken: names that are taken, around the graph, too; by default, all names of the graph.
    """
    found = tuple(bodies(graph, typing))
    read = places_read(graph, found)
    taken = set(all_names(graph)) if taken is None else taken
    outputs: dict[int, str] = {}
    for body in found:
        node = graph.nodes[body.place]
        missing = len(body.graph.outputs) - (1 if node.op == "Loop" else 0) - len(body_outputs(node, outputs, body))
        if body.place not in read or missing:
            continue
        graph = with_body(graph, body, _measured(body.graph, poles, taken))
        if body.place not in outputs:
            outputs[body.place] = unused_name("superopt.magnitudes", taken)
            node = graph.nodes[body.place]
            longer = {k: (*given, 0) for k in _OUTPUT_LISTS if isinstance(given := node.attributes.get(k), tuple)}
            wider = replace(
                node, outputs=(*node.outputs, outputs[body.place]), attributes={**node.attributes, **longer}
            )
            graph = replace(graph, nodes=(*graph.nodes[: body.place], wider, *graph.nodes[body.place + 1 :]))
    return graph, tuple(outputs.values())


def body_outputs(node: Node, outputs: dict[int, str], body: ControlFlowBody) -> tuple[str, ...]:
    """The outputs that a node had at first."""
    return tuple(o for o in node.outputs if o != outputs.get(body.place))


def _measured(graph: Graph, poles: frozenset[str], taken: set[str]) -> Graph:
    """A body with one more output: the magnitudes of its values."""
    typing = infer(graph)
    graph, inner = with_body_magnitudes(graph, typing, poles, taken)
    nodes, shares = list(graph.nodes), list[str]()
    flat, limits = unused_name("superopt.flat", taken), dict[DType, str]()
    for name in dict.fromkeys(_watched(graph, typing, poles)):
        kind = typing.types[name]
        assert isinstance(kind, TensorType)
        limit = limits.setdefault(kind.dtype, unused_name(f"superopt.limit.{kind.dtype}", taken))
        steps = [unused_name(f"superopt.share.{len(shares)}", taken) for _ in range(5)]
        nodes += [
            Node("", "Abs", (name,), (steps[0],)),
            Node("", "ReduceMax", (steps[0],), (steps[1],), {"keepdims": 0}),
            Node("", "Div", (steps[1], limit), (steps[2],)),
            Node("", "Cast", (steps[2],), (steps[3],), {"to": REALS[DType.FLOAT32]}),
            Node("", "Reshape", (steps[3], flat), (steps[4],)),
        ]
        shares.append(steps[4])
    for name in inner:
        shares.append(unused_name("superopt.inner", taken))
        nodes.append(Node("", "Reshape", (name, flat), (shares[-1],)))
    none = unused_name("superopt.none", taken)
    made = unused_name("superopt.shares", taken)
    nodes.append(Node("", "Concat", (none, *shares), (made,), {"axis": 0}))
    weights = [constant(flat, np.array([-1])), constant(none, np.zeros(1, np.float32))]
    for dtype, name in limits.items():
        largest = ml_dtypes.finfo(dtype.numpy).max  # type: ignore[no-untyped-call]
        weights.append(constant(name, np.asarray(largest, dtype.numpy)))
    kind = TensorType(DType.FLOAT32, (unknown_dim(made, 0),))
    return replace(
        graph, nodes=tuple(nodes), weights=(*graph.weights, *weights), outputs=(*graph.outputs, Value(made, kind))
    )


def _watched(graph: Graph, typing: InferredTypes, poles: frozenset[str]) -> Iterator[str]:
    for node in graph.nodes:
        if is_exact(node):
            continue
        for name in (*node.inputs, *(() if node.op in poles else node.outputs)):
            kind = typing.types.get(name)
            if name and name not in graph.weight and isinstance(kind, TensorType) and kind.dtype in REALS:
                yield name

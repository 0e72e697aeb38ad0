"""Calls of a model's own functions, replaced by the nodes of their bodies."""

from __future__ import annotations

from dataclasses import replace

from onnx.inliner import inline_local_functions

from superopt.formats.function_inlining import MOST_NODES, calls_in, functions_in
from superopt.formats.onnx_nodes import expanded_sizes
from superopt.formats.onnx_reader import from_onnx
from superopt.formats.onnx_writer import to_onnx
from superopt.ir.errors import SuperoptError
from superopt.ir.graph import Graph

__all__ = ["inlined"]

_OWN = ("onnx.node:", "onnx.model")  # parts of the file that belong to nodes and functions


def inlined(graph: Graph) -> Graph:
    """The model with every call of its own functions written out, in subgraphs and other functions too.

    A call stays where the function asks for another opset than the model, and where the result would be no valid model;
    all stay where they stand for more than :data:`superopt.formats.function_inlining.MOST_NODES` nodes.
    Weights are shared with the graph that is given.
    """
    functions = functions_in(graph)
    if not functions:
        return graph
    sizes = expanded_sizes(tuple(functions.values()))
    if sum(sizes.get(key, 0) for key in calls_in(graph)) > MOST_NODES:
        return graph
    fed = {v.name for v in graph.inputs}
    bare = replace(graph, weights=tuple(w if w.name in fed else replace(w, data=None) for w in graph.weights))
    try:
        new_graph = from_onnx(inline_local_functions(to_onnx(bare)))
    except (SuperoptError, RuntimeError):
        return graph
    weights = (*graph.weights, *(w for w in new_graph.weights if w.name not in graph.weight))
    extras = {k: v for k, v in graph.extras.items() if not k.startswith(_OWN)}
    extras |= {k: v for k, v in new_graph.extras.items() if k.startswith(_OWN)}
    return replace(new_graph, inputs=graph.inputs, outputs=graph.outputs, weights=weights, extras=extras).checked()

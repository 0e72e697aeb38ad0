"""Facts about a model that is not optimised: its signature, operators, weights and work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from superopt import cost as costs
from superopt.formats.control_flow_bodies import bodies, count_nodes, places_read
from superopt.formats.function_inlining import function_names, inlined
from superopt.ir.graph import Graph
from superopt.ops.shape_inference import InferredTypes, OpaqueNode, infer
from superopt.report.optimization_report import OpaqueOperators, operator_counts

__all__ = ["facts_of", "opaque_nodes"]


def facts_of(given: Graph, *, sizes: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Facts about a model, as JSON data.

    Args:
        given: the model.
        sizes: of symbolic dimensions.
    """
    graph = inlined(given).graph
    typing = infer(graph, sizes or {})
    work = costs.graph_work(graph, typing, sizes=sizes)
    weights = graph.weight_bytes
    return {
        "format": "superopt.inspection", "version": 1, "name": graph.name, "opset": dict(graph.opset),
        "inputs": [{"name": v.name, "type": str(v.type)} for v in graph.inputs if v.name not in graph.weight],
        "outputs": [{"name": v.name, "type": str(typing.types.get(v.name) or v.type)} for v in graph.outputs],
        "nodes": count_nodes(graph), "operators": operator_counts(graph),
        "weights": {"count": len(graph.weights), "bytes": weights,
                    "elements": sum(e for w in graph.weights if isinstance(e := w.type.elements, int))},
        "work": {**work, "nodes": [
            {"node": name, "op": op, "flops": flops, "bytes": moved, "intensity": flops / moved if moved else None}
            for name, op, flops, moved in costs.node_work(graph, typing, sizes=sizes)
        ]},
        "opaque": [vars(o) for o in opaque_nodes(graph, typing)],
        "functions": list(function_names(given)),
    }  # fmt: skip


def opaque_nodes(graph: Graph, typing: InferredTypes) -> tuple[OpaqueOperators, ...]:
    """What superopt carries through untouched, by operator and reason; in bodies of control flow, too."""
    counts = _barriers(graph, typing)
    return tuple(OpaqueOperators(op, count, reason) for (op, reason), count in sorted(counts.items()))


def _barriers(graph: Graph, typing: InferredTypes) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    inside = tuple(bodies(graph, typing))
    understood = places_read(graph, inside)
    for place, (node, known) in enumerate(zip(graph.nodes, typing.nodes, strict=True)):
        if isinstance(known, OpaqueNode) and place not in understood:
            counts[f"{node.domain}.{node.op}" if node.domain else node.op, known.reason] += 1
    for body in inside:
        counts += _barriers(body.graph, infer(body.graph))
    return counts

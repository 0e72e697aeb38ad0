"""Facts about a model that is not optimised: its signature, operators, weights and work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from superopt import cost as costs
from superopt.formats.functions import function_names, inlined
from superopt.ir.graph import Graph
from superopt.ops.infer import Barrier, Typing, infer
from superopt.report.model import Opaque, operator_counts

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
        "nodes": len(graph.nodes), "operators": operator_counts(graph),
        "weights": {"count": len(graph.weights), "bytes": weights,
                    "elements": sum(e for w in graph.weights if isinstance(e := w.type.elements, int))},
        "work": {**work, "nodes": [
            {"node": name, "op": op, "flops": flops, "bytes": moved, "intensity": flops / moved if moved else None}
            for name, op, flops, moved in costs.node_work(graph, typing, sizes=sizes)
        ]},
        "opaque": [vars(o) for o in opaque_nodes(graph, typing)],
        "functions": list(function_names(given)),
    }  # fmt: skip


def opaque_nodes(graph: Graph, typing: Typing) -> tuple[Opaque, ...]:
    """What superopt carries through untouched, by operator and reason."""
    counts: Counter[tuple[str, str]] = Counter()
    for node, known in zip(graph.nodes, typing.nodes, strict=True):
        if isinstance(known, Barrier):
            counts[f"{node.domain}.{node.op}" if node.domain else node.op, known.reason] += 1
    return tuple(Opaque(op, count, reason) for (op, reason), count in sorted(counts.items()))

"""The changed regions at which two graphs begin to differ, each run alone on the original's values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from superopt.ir.diff import changed_regions
from superopt.ir.graph import Graph, Value
from superopt.ir.types import TensorType
from superopt.ops.infer import infer
from superopt.verifier.check.sessions import REFUSALS, Arrays, Bench, attempt
from superopt.verifier.check.tolerance import excess

__all__ = ["suspects"]


def suspects(before: Graph, after: Graph, feeds: Mapping[str, np.ndarray]) -> list[tuple[str, ...]]:
    """The outputs of each changed region, ordered by how far the region strays on these inputs, the farthest first.

    A place strays by the largest distance of its outputs from the original's over the distance that needs no
    explanation, both sides being fed the original's values. Places that cannot be run come last.
    """
    types = infer(before).types
    pairs = changed_regions(before, after, types)
    with Bench() as bench:
        given = _values(before, {v.name for a, _ in pairs for v in a.inputs} - feeds.keys(), types, feeds, bench)
        found = [(_strays(a, b, given, bench), tuple(v.name for v in a.outputs)) for a, b in pairs]
    return [outputs for _, outputs in sorted(found, key=lambda f: -f[0])]


def _values(
    graph: Graph, names: set[str], types: Mapping[str, TensorType | None], feeds: Mapping[str, np.ndarray], bench: Bench
) -> Arrays:
    """The original's values on the inputs."""
    wanted = tuple(Value(n, types.get(n)) for n in sorted(names) if n in graph.producer)
    declared = {v.name for v in graph.outputs}
    outputs = (*graph.outputs, *(v for v in wanted if v.name not in declared))
    try:
        made = attempt(bench.session(replace(graph, outputs=outputs, values=()), optimise=False), feeds)
    except REFUSALS:
        made = None
    return {**feeds, **(made or {})}


def _strays(a: Graph, b: Graph, given: Mapping[str, np.ndarray], bench: Bench) -> float:
    """How far one region strays; negative if it cannot be run."""
    runs: list[Arrays] = []
    for graph in (a, b):
        try:
            made = attempt(bench.session(replace(graph, values=()), optimise=False), given)
        except REFUSALS:
            return -1.0
        if made is None:
            return -1.0
        runs.append(made)
    kinds = {v.name: v.type.dtype if isinstance(v.type, TensorType) else None for v in a.outputs}
    return max((excess(runs[0][n], runs[1][n], kind) for n, kind in kinds.items()), default=-1.0)

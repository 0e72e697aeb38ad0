"""Where a model is so near to overflow that the same sums, taken in another order, may overflow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import ml_dtypes
import networkx as nx
import numpy as np

from superopt.ir.graph import Graph, Node, Value
from superopt.ir.types import TensorType
from superopt.ops.infer import infer
from superopt.verifier.noise import ELEMENTARY, EXACT, live_values
from superopt.verifier.running import REFUSALS, Bench, attempt

__all__ = ["NEAR", "near_overflow"]

NEAR = 4.0  # at most this far below the largest number
_WATCHED = 1 << 26  # elements of intermediates that are looked at, at most
_POLES = frozenset({"Atanh", "Div", "Log", "Mod", "Pow", "Reciprocal", "Tan"})  # infinite without an overflow


def near_overflow(
    graph: Graph, output: str, bench: Bench, feeds: Mapping[str, np.ndarray], shape: tuple[int, ...]
) -> np.ndarray:
    """A mask for an output of this shape: elements at which an operator that leads to it overflows, or nearly does.

    That is one whose result, from finite operands, is infinite or within a factor of :data:`NEAR` of it, at the same
    element where the shapes are equal; where no operator's result has the output's shape, any element of any. And it
    is every element, if an operator with sums inside reads a number that large.
    """
    graph = _leading_to(graph, output)
    types, live = infer(graph).types, live_values(graph)

    def real(name: str) -> bool:
        return name in live and isinstance(t := types.get(name), TensorType) and t.dtype.is_float

    rounding = [n for n in graph.nodes if n.domain or n.op not in EXACT]
    names = dict.fromkeys(v for n in rounding for v in (*n.inputs, *n.outputs) if v and real(v) and v not in feeds)
    outputs = {**{n: Value(n, types[n]) for n in names}, **{v.name: v for v in graph.outputs if v.name not in feeds}}
    try:
        session = bench.session(replace(graph, outputs=tuple(outputs.values()), values=()), optimise=False)
        ran = attempt(session, feeds)
    except REFUSALS:
        ran = None
    if ran is None or sum(a.size for a in ran.values()) > _WATCHED:
        return np.zeros(shape, bool)
    values = {n: a.astype(np.float64) for n, a in (*feeds.items(), *ran.items()) if real(n)}
    limits = {n: float(ml_dtypes.finfo(ran[n].dtype).max) / NEAR for n in names}  # type: ignore[no-untyped-call]
    near: list[np.ndarray] = []
    for node in rounding:
        operands = [values[r] for r in node.inputs if r in values]
        near += [_large(values[o], limits[o], operands, node) for o in node.outputs if o in limits]
        if (node.domain or node.op not in ELEMENTARY) and any(_inside(a, limits, node) for a in operands):
            return np.full(shape, True)
    same = [n for n in near if n.shape == shape]
    return np.logical_or.reduce(same) if same else np.full(shape, any(bool(n.any()) for n in near))


def _leading_to(graph: Graph, output: str) -> Graph:
    """The part of a graph that an output is computed by."""
    made = graph.producer.get(output)
    drawn = graph.to_networkx()
    places = {i for i, n in enumerate(graph.nodes) if n is made}
    places |= {p for end in places for p in nx.ancestors(drawn, end) if isinstance(p, int)}
    kept = tuple(n for i, n in enumerate(graph.nodes) if i in places)
    return replace(graph, nodes=kept, outputs=tuple(v for v in graph.outputs if v.name == output))


def _large(made: np.ndarray, limit: float, operands: list[np.ndarray], node: Node) -> np.ndarray:
    large: np.ndarray = np.abs(made) >= limit  # not a NaN
    if node.op in _POLES:
        large &= np.isfinite(made)
    for operand in operands:
        infinite = np.isinf(operand)
        if operand.shape == made.shape:
            large &= ~infinite
        elif infinite.any():
            return np.zeros(made.shape, bool)
    return large


def _inside(operand: np.ndarray, limits: Mapping[str, float], node: Node) -> bool:
    """Whether sums over an operand may overflow."""
    limit = max((limits[o] for o in node.outputs if o in limits), default=np.inf)
    return bool(((np.abs(operand) >= limit) & np.isfinite(operand)).any())

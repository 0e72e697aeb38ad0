"""Where a model is so near to overflow that the same sums, taken in another order, may overflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import ml_dtypes
import numpy as np

from superopt.ir.graph import Graph, Node, Value, unused_name
from superopt.ir.types import DType, TensorType
from superopt.ops.infer import Typing
from superopt.runtime.onnx_runtime import InferenceSession
from superopt.verifier.check.noise_model import ELEMENTARY, REALS, is_exact
from superopt.verifier.check.rounding_noise import live_values
from superopt.verifier.check.sessions import REFUSALS, Bench, attempt

__all__ = ["NEAR", "Overflow", "leading_to"]

NEAR = 4.0  # at most this far below the largest number
_WATCHED = 1 << 26  # elements of intermediates that are looked at, at most
_POLES = frozenset({"Atanh", "Div", "Log", "Mod", "Pow", "Reciprocal", "Tan"})  # infinite without an overflow


class Overflow:
    """Where one output of a graph is near overflow.

    Args:
        graph: the original.
        typing: its types.
        output: the output's name.
        bench: where the session is made that gives the values inside.
    """

    def __init__(self, graph: Graph, typing: Typing, output: str, bench: Bench) -> None:
        part = leading_to(graph, output)
        types, self._live = typing.types, live_values(graph)
        self._types = types
        self._rounding = [n for n in part.nodes if not is_exact(n)]
        fed = {v.name for v in graph.inputs}
        reals = (v for n in self._rounding for v in (*n.inputs, *n.outputs) if v and self._real(v) and v not in fed)
        self._names = list(dict.fromkeys(reals))
        watched = {**{n: Value(n, types[n]) for n in self._names}, **{v.name: v for v in part.outputs}}
        self._part = replace(part, outputs=tuple(v for n, v in watched.items() if n not in fed), values=())
        self._bench = bench
        self._limits = {n: float(ml_dtypes.finfo(types[n].dtype.numpy).max) / NEAR for n in self._names}  # type: ignore[union-attr,no-untyped-call]
        measured = [v for v in self._part.outputs if self._real(v.name)]
        self._norms = self._watched(_with_norms(self._part, measured))

    @cached_property
    def _session(self) -> InferenceSession | None:
        """Gives every value inside, which together may be far more than a run holds at once."""
        return self._watched(self._part)

    def _watched(self, graph: Graph) -> InferenceSession | None:
        try:
            return self._bench.session(graph, optimise=False)
        except REFUSALS:
            return None

    def near(self, feeds: Mapping[str, np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
        """A mask for the output, of this shape: elements at which an operator that leads to it overflows, or nearly.

        That is one whose result, from finite operands, is infinite or within a factor of :data:`NEAR` of it, at the
        same element where the shapes are equal; where no operator's result has the output's shape, any element of
        any. And it is every element, if an operator with sums inside reads a number that large.
        """
        least = min(self._limits.values(), default=0.0)
        small = all(_is_small(a, least) for n, a in feeds.items() if self._real(n))
        norms = _run_or_none(self._norms, feeds) if small else None
        if norms is not None and all(float(a) < least for a in norms.values()):  # no element is larger than its norm
            return np.zeros(shape, bool)
        ran = _run_or_none(self._session, feeds)
        if ran is None or sum(a.size for a in ran.values()) > _WATCHED:
            return np.zeros(shape, bool)
        values = {n: a for n, a in (*feeds.items(), *ran.items()) if self._real(n)}
        limits = self._limits
        if all(_is_small(a, least) for a in values.values()):
            return np.zeros(shape, bool)
        near: list[np.ndarray] = []
        for node in self._rounding:
            operands = [values[r].astype(np.float64) for r in node.inputs if r in values]
            near += [
                _large(values[o].astype(np.float64), limits[o], operands, node) for o in node.outputs if o in limits
            ]
            if (node.domain or node.op not in ELEMENTARY) and any(_inside(a, limits, node) for a in operands):
                return np.full(shape, True)
        same = [n for n in near if n.shape == shape]
        return np.logical_or.reduce(same) if same else np.full(shape, any(bool(n.any()) for n in near))

    def _real(self, name: str) -> bool:
        return name in self._live and isinstance(t := self._types.get(name), TensorType) and t.dtype.is_float


def _run_or_none(session: InferenceSession | None, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
    try:
        return None if session is None else attempt(session, feeds)
    except REFUSALS:
        return None


def _with_norms(graph: Graph, values: Sequence[Value]) -> Graph:
    """The graph with the Euclidean norms of values, in float32, for outputs: one number for each.

    A norm stands right behind what makes its value, which is gone before the next is made.
    """
    taken, nodes, outputs = set(graph.names), list[Node](), list[Value]()
    wanted = {v.name: v for v in values}
    for node in graph.nodes:
        nodes.append(node)
        for value in (wanted[o] for o in node.outputs if o in wanted):
            read, single, norm = value.name, *(unused_name(f"{value.name}/{w}", taken) for w in ("single", "norm"))
            if isinstance(value.type, TensorType) and value.type.dtype is not DType.FLOAT32:
                nodes.append(Node("", "Cast", (read,), (single,), {"to": REALS[DType.FLOAT32]}))
                read = single
            nodes.append(Node("", "ReduceL2", (read,), (norm,), {"keepdims": 0}))
            outputs.append(Value(norm, TensorType(DType.FLOAT32, ())))
    return replace(graph, nodes=tuple(nodes), outputs=tuple(outputs))


def _is_small(array: np.ndarray, limit: float) -> bool:
    """Whether every element is a number, and smaller."""
    if not array.size:
        return True
    low, high = float(array.min()), float(array.max())  # NaN, if any element is
    return -limit < low and high < limit


def leading_to(graph: Graph, output: str) -> Graph:
    """The part of a graph that an output is computed by."""
    import networkx as nx  # here, because few checks come this far

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

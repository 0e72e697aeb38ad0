"""Both sides of a rule run in ONNX Runtime, at the points where they are worst and at some others.

The search for points evaluates a model of kernels. Where a real kernel differs, the real one decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.formats import to_onnx_bytes
from superopt.ir.errors import SuperoptError
from superopt.ir.graph import ArrayWeightData, Graph, Value, Weight
from superopt.ir.terms import Term
from superopt.ir.types import DType, TensorType
from superopt.ops.operator_definition import UnsupportedNodeForm
from superopt.runtime.onnx_runtime import make_session, run
from superopt.verifier.exact.runtime_cross_check import side_graph
from superopt.verifier.floats.adversarial_points import Points

if TYPE_CHECKING:
    from superopt.verifier.floats.verdict_search import RuleInstanceProgram

__all__ = ["runtime_results"]

Array = np.ndarray[Any, Any]
_ONNX_FLOAT, _ONNX_DOUBLE = 1, 11  # ONNX's numbers of the types
_OPSETS = (21, 23, 18)  # the first at which every operator of the rule can be written and run


def runtime_results(
    site: RuleInstanceProgram, batch: Points, places: Sequence[int] | None = None, dtype: DType = DType.FLOAT32
) -> tuple[list[Array], list[Array]] | None:
    """Elements of both sides at points, as ONNX Runtime computes them with its optimisations off.

    Args:
        site: the rule at some sizes.
        batch: the points, which are float32's.
        places: of which pairs; of the different ones by default.
        dtype: float32 or float64.

    Returns:
        For each of the pairs an array [point] of the left side, and of the right; ``None`` where ONNX Runtime does
        not have an operator in the type.
    """
    trial = site.trial
    wanted = [site.positions[i] for i in (site.different if places is None else places)]
    for opset in _OPSETS:
        try:
            sides = [_elements(site, side, batch, opset, wanted, dtype) for side in (trial.lhs, trial.rhs)]
        except (UnsupportedNodeForm, SuperoptError):
            continue
        return sides[0], sides[1]
    return None


def _elements(
    site: RuleInstanceProgram,
    roots: tuple[Term, ...],
    batch: Points,
    opset: int,
    wanted: Sequence[tuple[int, int]],
    dtype: DType,
) -> list[Array]:
    trial = site.trial
    graph = side_graph(roots, trial.variables, opset)
    if dtype == DType.FLOAT64:
        graph = _in_double(graph)
    session = make_session(to_onnx_bytes(graph), threads=1, optimise=False)
    count = next((a.shape[1] for a in batch.values()), 1)
    arrays = [np.empty(count, dtype.numpy) for _ in wanted]
    names = {i.name for i in graph.inputs}
    shapes = {n: tuple(int(d) for d in k.shape or ()) for n, k in trial.variables.items()}  # type: ignore[arg-type]
    fixed = {
        n: np.asarray(site.program.integers[n]).reshape(shapes[n]).astype(trial.variables[n].dtype.numpy)
        for n in site.program.integers if n in names
    }  # fmt: skip
    outputs = [o.name for o in graph.outputs]
    for point in range(count):
        feeds = fixed | {
            n: np.ascontiguousarray(a[:, point], dtype.numpy).reshape(shapes[n]) for n, a in batch.items() if n in names
        }
        new_arrays = run(session, feeds)
        for position, (root, at) in enumerate(wanted):
            arrays[position][point] = np.asarray(new_arrays[outputs[root]]).reshape(-1)[at]
    return arrays


def _in_double(graph: Graph) -> Graph:
    """A graph of float32 in float64."""

    def value(v: Value) -> Value:
        return replace(v, type=_double(v.type)) if isinstance(v.type, TensorType) else v

    def weight(w: Weight) -> Weight:
        if w.data is None or w.type.dtype != DType.FLOAT32:
            return w
        return replace(w, type=_double(w.type), data=ArrayWeightData(w.data.numpy().astype(np.float64)))

    def attribute(name: str, given: Any) -> Any:
        if isinstance(given, Weight):
            return weight(given)
        return _ONNX_DOUBLE if name in ("to", "dtype") and given == _ONNX_FLOAT else given

    nodes = [
        replace(n, attributes={k: attribute(k, a) for k, a in n.attributes.items()}) for n in graph.nodes
    ]  # fmt: skip
    return replace(
        graph, inputs=tuple(map(value, graph.inputs)), outputs=tuple(map(value, graph.outputs)), values=(),
        weights=tuple(map(weight, graph.weights)), nodes=tuple(nodes),
    ).checked()  # fmt: skip


def _double(kind: TensorType) -> TensorType:
    return replace(kind, dtype=DType.FLOAT64) if kind.dtype == DType.FLOAT32 else kind

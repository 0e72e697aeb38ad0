"""Inputs on which two models differ over the reals by more than rounding explains, element by element.

A difference far below float32's noise at the outputs is still real: a bias off by 0.05 beside one of 10⁶. Both models
run in float64, with folded constants replaced by the expressions from which they were computed. The remaining
difference can be float64's own rounding, or the rounding of constants of unknown origin. Its reach is measured by
causing it: weights and inputs are disturbed by as much, several times, and each element of the outputs shows how far it
moves (stochastic arithmetic: Vignes, "A stochastic arithmetic for reliable scientific computation", 1993). Only a
larger difference refutes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import ml_dtypes
import numpy as np
from onnx import AttributeProto

from superopt.formats.function_inlining import functions_in
from superopt.ir.errors import SuperoptError
from superopt.ir.graph import Graph, OpaqueAttribute
from superopt.ir.types import DType, TensorType
from superopt.ops.shape_inference import OpaqueNode
from superopt.runtime import reference
from superopt.verifier.check.differential import make_inputs
from superopt.verifier.check.input_generation import LEVELS
from superopt.verifier.equivalence.runtime_folded_constants import contents_of, jumps, stored
from superopt.verifier.equivalence.value_alignment import ModelValueClasses
from superopt.verifier.equivalence.weight_expressions import LIMIT

__all__ = ["refute", "witness"]

Arrays = Mapping[str, np.ndarray]

_KINDS = (("normal", 1.0), ("uniform", 1.0), ("normal", 16.0), ("edge", 1.0))
_DISTURBED = (
    6  # runs of each model: one that moves an element by less than a 16th of what is usual is rare, six are not seen
)
_FACTOR = 16.0  # how much farther apart than disturbances move them two elements may be
_BEHIND_JUMPS = 12  # the same behind discontinuities, where a disturbance shows only when it crosses one
_ROUNDING = 2.0**-48  # relative: some float64 roundings
_OPAQUE = 8.0  # the same where an opaque node computes at its own precision, in epsilons of that
_NOTHING = 1e-12  # of an output's largest element: not looked at


def refute(
    a: ModelValueClasses, b: ModelValueClasses, seed: int, deadline: float
) -> tuple[str, dict[str, np.ndarray]] | None:
    """Why two models are not equal, and inputs that show it; ``None`` if rounding explains the difference.

    Args:
        a: the first model.
        b: the second, folded constants put back.
        seed: of the inputs.
        deadline: ``time.monotonic`` value after which no other inputs are tried.
    """
    first, second = stored(a.graph), stored(b.graph)  # so that numbers in Constants are disturbed like weights
    loose = _loose(first, second), _loose(second, first)
    jumpy = any(jumps(n, s.typing.types) for s in (a, b) for n in s.graph.nodes)
    if jumpy and _requantised(a, b):
        return None
    if any(_hidden(s) for s in (a, b)):
        return None
    noise = max(_ROUNDING, *(_OPAQUE * _roughest(s) for s in (a, b)))
    for number, (kind, scale) in enumerate(_KINDS):
        if number and time.monotonic() > deadline:
            return None
        ran = _run_both(a.graph, b.graph, seed + number, kind, scale)
        if ran is None:
            continue
        feeds, left, right = ran
        suspects = [n for n in left if _suspect(left[n], right[n])]
        if not suspects:
            continue
        rng = np.random.default_rng((seed, number))
        reach: dict[str, np.ndarray] = {n: np.zeros(left[n].shape) for n in suspects}
        for _ in range(_BEHIND_JUMPS if jumpy else _DISTURBED):
            for graph, names, result in ((first, loose[0], left), (second, loose[1], right)):
                moved = _disturbed(graph, feeds, names, noise, rng)
                for n in suspects:
                    far = _move(result[n], moved[n]) if moved else np.full(reach[n].shape, np.inf)
                    reach[n] = np.maximum(reach[n], far)
        for n in suspects:
            found = _beyond(left[n], right[n], reach[n], jumpy)
            if found is not None:
                return f"output {n!r} ({kind} inputs): over the reals {found}", dict(feeds)
    return None


def _run_both(a: Graph, b: Graph, seed: int, kind: str, scale: float) -> tuple[Arrays, Arrays, Arrays] | None:
    """Inputs and the float64 outputs of both models; ``None`` where they cannot be run."""
    for level in range(LEVELS):
        try:
            feeds = make_inputs(a, seed, kind, level=level)
            feeds = {
                n: x * x.dtype.type(scale) if x.dtype.kind == "f" and scale != 1.0 else x for n, x in feeds.items()
            }
            left, right = reference.run(a, feeds), reference.run(b, feeds)
        except SuperoptError:
            continue
        real = {n for n, x in left.items() if x.dtype.kind in "fiub" and n in right}
        return feeds, {n: left[n] for n in real}, {n: right[n] for n in real}
    return None


def _suspect(x: np.ndarray, y: np.ndarray) -> bool:
    if x.shape != y.shape:
        return True
    fine = np.isfinite(x) & np.isfinite(y)
    size = float(np.max(np.abs(x), where=fine, initial=0.0))
    return bool((_distance(x, y) > _NOTHING * size).any())


def _distance(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Element by element; nothing where either is not finite, which the run in ONNX Runtime judges."""
    if x.shape != y.shape:
        return np.full(x.shape, np.inf)
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.abs(x.astype(np.float64) - y.astype(np.float64))
    return np.where(np.isfinite(gap), gap, 0.0)


def _move(result: np.ndarray, moved: np.ndarray) -> np.ndarray:
    """How far a disturbance moved each element; any distance where it is no finite number any more."""
    gap = _distance(result, moved)
    return gap if gap.shape != moved.shape else np.where(np.isfinite(result) & ~np.isfinite(moved), np.inf, gap)


def _beyond(x: np.ndarray, y: np.ndarray, reach: np.ndarray, jumpy: bool) -> str | None:
    """Where two outputs are farther apart than disturbances move them, in words."""
    if x.shape != y.shape:
        return f"its shape is {list(x.shape)} and {list(y.shape)}"
    size = float(np.max(np.abs(x), where=np.isfinite(x), initial=0.0))
    gap = _distance(x, y)
    limit = _FACTOR * (np.full(reach.shape, reach.max(initial=0.0)) if jumpy else reach) + _NOTHING * size
    over = gap > limit
    if not over.any():
        return None
    place = tuple(map(int, np.unravel_index(int(np.argmax(np.where(over, gap, -1.0))), gap.shape)))
    return (
        f"element {list(place)} is {x[place]:.9g} and {y[place]:.9g}, {gap[place]:.2g} apart, "
        f"where rounding explains {limit[place]:.2g}"
    )


def _roughest(side: ModelValueClasses) -> float:
    """The largest epsilon at which an opaque node computes reals; 0 where none does. What is not known is float32."""
    types = {**side.graph.declared, **side.typing.types}
    found = [0.0]
    for node, form in zip(side.graph.nodes, side.typing.nodes, strict=True):
        kinds = [types.get(n) for n in (*node.inputs, *node.outputs) if n] if isinstance(form, OpaqueNode) else []
        dtypes = [t.dtype if isinstance(t, TensorType) else DType.FLOAT32 for t in kinds]
        found += [float(ml_dtypes.finfo(d.numpy).eps) for d in dtypes if d.is_float]  # type: ignore[no-untyped-call]
    return max(found)


def _hidden(side: ModelValueClasses) -> bool:
    """Whether an opaque node holds other nodes: a subgraph or a function that is not inlined.

    Values in it round at magnitudes that nobody sees from outside, so only the run in ONNX Runtime judges it.
    """
    own = {f.domain for f in functions_in(side.graph).values()}
    return any(
        isinstance(form, OpaqueNode) and (node.domain in own or any(_is_graph(a) for a in node.attributes.values()))
        for node, form in zip(side.graph.nodes, side.typing.nodes, strict=True)
    )


def _is_graph(value: object) -> bool:
    holds = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
    return isinstance(value, OpaqueAttribute) and AttributeProto.FromString(value.payload).type in holds  # type: ignore[no-untyped-call]


def _loose(graph: Graph, other: Graph) -> frozenset[str]:
    """Real constants of a model that the other does not have: nobody knows how they were rounded."""
    known = {contents_of(w) for w in other.weights}
    return frozenset(w.name for w in graph.weights if w.type.dtype.is_float and contents_of(w) not in known)


def _requantised(a: ModelValueClasses, b: ModelValueClasses) -> bool:
    """Whether an opaque node of the second model reads integers that the first does not have.

    Somebody rounded reals to them, by far more than the last place of a float: what that moves is for the run in ONNX
    Runtime to judge, against what the first model's own rounding moves.
    """
    known = {contents_of(w) for w in a.graph.weights}
    opaque = [n for n, form in zip(b.graph.nodes, b.typing.nodes, strict=True) if isinstance(form, OpaqueNode)]
    read = {b.graph.weight[r].name for n in opaque for r in n.reads if r in b.graph.weight}
    return any(
        w.name in read and w.type.dtype.is_integer and w.type.dtype.bits < 64 and contents_of(w) not in known
        for w in b.graph.weights
    )


def _disturbed(
    graph: Graph, feeds: Arrays, loose: frozenset[str], noise: float, rng: np.random.Generator
) -> Arrays:  # fmt: skip
    """The outputs with inputs, weights and what opaque nodes give moved by some roundings; empty where the model cannot
    be run."""
    powers = any(node.op == "Pow" for node in graph.nodes)  # of negative numbers, if an exponent is whole
    moved: dict[str, np.ndarray] = {}
    for name, array in feeds.items():
        moved[name] = _moved(array, noise, rng) if array.dtype.kind == "f" else array
    for weight in graph.weights:
        if weight.data is None or not weight.type.dtype.is_float or weight.name in moved:
            continue
        if powers and weight.type.elements == 1 and float(weight.data.numpy().reshape(-1)[0]).is_integer():
            continue
        eps = float(ml_dtypes.finfo(weight.type.dtype.numpy).eps)  # type: ignore[no-untyped-call]
        relative = LIMIT * eps if weight.name in loose else noise
        moved[weight.name] = _moved(np.asarray(weight.data.numpy()), relative, rng)
    try:
        return reference.run(graph, moved, opaque=lambda array: _moved(array, noise, rng))
    except SuperoptError:
        return {}


def _moved(array: np.ndarray, relative: float, rng: np.random.Generator) -> np.ndarray:
    wide = array.astype(np.float64)
    return np.asarray(wide * (1.0 + relative * rng.uniform(-1.0, 1.0, wide.shape)))


def witness(a: Graph, b: Graph, seed: int) -> dict[str, np.ndarray]:
    """Inputs on which the float64 results differ most, among a few."""
    best: tuple[float, dict[str, np.ndarray]] = (-1.0, {})
    for offset, kind in enumerate(("normal", "uniform", "edge")):
        try:
            feeds = make_inputs(a, seed + offset, kind)
            left, right = reference.run(a, feeds), reference.run(b, feeds)
        except SuperoptError:
            continue
        for name, value in left.items():
            other = right[name]
            if value.shape != other.shape:
                return feeds
            gap = float(np.nanmax(np.abs(value.astype(float) - other.astype(float)), initial=0.0))
            if gap > best[0]:
                best = (gap, feeds)
    return best[1]

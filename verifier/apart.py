"""Inputs on which two models differ, by their float64 results: finer than what rounding in float32 lets one see."""

from __future__ import annotations

import numpy as np

from superopt.ir.errors import SuperoptError
from superopt.ir.graph import Graph
from superopt.runtime import reference
from superopt.verifier.differential import make_inputs

__all__ = ["far_apart", "witness"]

# Equal models differ by rounding in float64, about 1e-15 of the outputs and more where a network is ill-conditioned.
_SAME_WEIGHTS = 1e-8
# A weight that was computed and rounded to float32 moves the outputs by some 1e-7.
_NEW_WEIGHTS = 2e-5
# Where a small difference can flip a result, so that rounding of weights explains anything.
_JUMPS = frozenset(
    {"ArgMax", "ArgMin", "Cast", "Ceil", "DynamicQuantizeLinear", "Equal", "Floor", "Greater", "GreaterOrEqual", "If",
     "Less", "LessOrEqual", "Loop", "Mod", "NonMaxSuppression", "NonZero", "QuantizeLinear", "Round", "Scan", "Sign",
     "TopK", "Unique"}
)  # fmt: skip


def far_apart(a: Graph, b: Graph, seed: int) -> tuple[str, dict[str, np.ndarray]] | None:
    """Why two models are not equal, and inputs that show it; ``None`` where their float64 results agree.

    Args:
        a: the first model.
        b: the second, with computed weights put back as nodes where that is known.
        seed: of the inputs.
    """
    known = {w.data.digest for w in a.weights if w.data is not None}
    new = [w for w in b.weights if w.type.dtype.is_float and w.data is not None and w.data.digest not in known]
    if new and any(n.op in _JUMPS for n in b.nodes):
        return None
    limit = _NEW_WEIGHTS if new else _SAME_WEIGHTS
    gaps: list[float] = []
    shown: dict[str, np.ndarray] = {}
    for offset, kind in enumerate(("normal", "uniform")):
        feeds = make_inputs(a, seed + offset, kind)
        try:
            gap = _gap(reference.run(a, feeds), reference.run(b, feeds))
        except SuperoptError:
            return None
        gaps.append(gap)
        shown = shown or (feeds if gap > limit else {})
    if min(gaps) <= limit:
        return None
    return f"in float64 the results differ by {max(gaps):.1e} of their size, which rounding does not explain", shown


def _gap(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> float:
    """The root mean square of the difference over that of the values, of the output where it is largest."""
    worst = 0.0
    for name, value in left.items():
        other = right[name]
        if value.shape != other.shape:
            return float("inf")
        if value.dtype.kind not in "fiub" or not value.size:
            continue
        x, y = value.astype(np.float64), other.astype(np.float64)
        fine = np.isfinite(x) & np.isfinite(y)
        scale = float(np.sqrt(np.mean(x[fine] ** 2))) if fine.any() else 0.0
        difference = float(np.sqrt(np.mean((x - y)[fine] ** 2))) if fine.any() else 0.0
        worst = max(worst, difference / scale if scale > 0 else float(difference > 0))
    return worst


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

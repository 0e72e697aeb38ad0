"""How far one output may be from the reference: see :mod:`superopt.verifier.differential`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from superopt.ir.types import DType

__all__ = ["FACTOR", "MARGIN", "Comparison", "compare", "equal"]

FACTOR = 4.0  # how much larger than the original's error the result's may be
MARGIN: Mapping[DType, float] = {DType.FLOAT64: 1024.0, DType.FLOAT32: 64.0, DType.FLOAT16: 8.0, DType.BFLOAT16: 4.0}
ALONE = 8.0  # the tolerance grows by this where there is no reference


@dataclass(frozen=True)
class Comparison:
    """Errors of one output; ``problem`` says why it fails."""

    absolute: float = 0.0
    relative: float = 0.0
    baseline: float = 0.0
    problem: str | None = None


def compare(old: np.ndarray | None, new: np.ndarray, exact: np.ndarray | None, dtype: DType | None) -> Comparison:
    """Judge an output of the result.

    Args:
        old: what the original gave in ONNX Runtime, if it ran.
        new: what the result gave.
        exact: what the reference gave, if it ran. One of ``old`` and ``exact`` is there.
        dtype: declared element type.
    """
    truth = exact if exact is not None else old
    assert truth is not None
    shape = (old if old is not None else truth).shape
    if new.shape != shape:
        return Comparison(problem=f"its shape was {shape} and is {new.shape}")
    if dtype is None or not dtype.is_float or truth.shape != shape:
        return _compare_exactly(old, new, truth)
    alone = ALONE if exact is None or old is None else 1.0
    judge, made = _real(truth), _real(new)
    first = judge if old is None else _real(old)
    odd = ~np.isfinite(judge if first is None else first)
    same = (np.isnan(made) & np.isnan(judge if first is None else first)) | (
        made == (judge if first is None else first)
    )
    rescued = odd & ~same & np.isfinite(judge) & np.isfinite(made)
    wrong = (odd & ~same & ~rescued) | (~odd & ~np.isfinite(made))
    if wrong.any():
        place = tuple(map(int, np.argwhere(wrong)[0]))
        return Comparison(
            np.inf, np.inf, 0.0, f"at {place} the original gives {first[place]} and the result {made[place]}"
        )
    usable = np.isfinite(judge) & np.isfinite(made)
    scale = float(np.max(np.abs(judge), where=usable, initial=0.0))
    error = _errors(made, judge, usable)
    base = _errors(first, judge, usable & np.isfinite(first))
    limits = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
    tolerance = MARGIN[dtype] * float(limits.eps) * scale * alone
    tolerance = max(tolerance, float(limits.tiny))
    allowed = max(FACTOR * base[0], tolerance), max(FACTOR * base[1], tolerance)
    problem = None
    if error[0] > allowed[0] or error[1] > allowed[1]:
        problem = (
            f"its error is {error[0]:.3g} (root mean square {error[1]:.3g}) where {allowed[0]:.3g} ({allowed[1]:.3g}) "
            f"is allowed; values reach {scale:.3g}, the original's error is {base[0]:.3g}"
        )
    over = scale or 1.0
    return Comparison(error[0], error[0] / over, base[0] / over, problem)


def _compare_exactly(old: np.ndarray | None, new: np.ndarray, truth: np.ndarray) -> Comparison:
    if equal(new, truth if old is None else old):
        return Comparison()
    if new.dtype == object or truth.shape != new.shape:
        return Comparison(np.inf, np.inf, 0.0, "its elements differ from the original's")
    off = int(np.count_nonzero(new != truth))
    base = 0 if old is None else int(np.count_nonzero(old != truth))
    if off <= FACTOR * base:
        return Comparison(baseline=base / max(truth.size, 1))
    return Comparison(np.inf, np.inf, 0.0, f"{off} of {truth.size} elements differ (of the original's: {base})")


def _real(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64, copy=False)


def _errors(a: np.ndarray, b: np.ndarray, usable: np.ndarray) -> tuple[float, float]:
    """Largest and root-mean-square difference where usable."""
    if not usable.any():
        return 0.0, 0.0
    difference = np.abs(a[usable] - b[usable])
    return float(difference.max()), float(np.sqrt(np.mean(difference * difference)))


def equal(a: np.ndarray, b: np.ndarray) -> bool:
    if a.dtype == object or b.dtype == object:
        return a.shape == b.shape and repr(a.tolist()) == repr(b.tolist())
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f" and b.dtype.kind == "f"))

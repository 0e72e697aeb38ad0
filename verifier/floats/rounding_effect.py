"""The effect of a rule on rounding errors, measured: a proof is over the reals, this is about floating point.

Both sides are evaluated at seeded random elements. Every operator's result is rounded to the element type (sums are
accumulated in float64), and compared with float64 throughout. Errors are in units in the last place of the larger of an
element and the root mean square of its tensor, so that a cancellation to nearly 0 does not count as infinite.
"""

from __future__ import annotations

import hashlib

import numpy as np

from superopt.ir.errors import SuperoptError
from superopt.ir.poly import value_at
from superopt.ir.types import DType
from superopt.ops.meaning import IllTyped
from superopt.rules.canonical import rule_text
from superopt.rules.evaluation import evaluated
from superopt.rules.rule import Rule
from superopt.rules.typing import instances, types_of
from superopt.runtime.reference import at_dtype
from superopt.verifier.exact.sampling import draw
from superopt.verifier.exact.testing import Trial, trial_at

__all__ = ["rounding_of"]

_PRECISION = {DType.FLOAT32: 23, DType.FLOAT16: 10, DType.BFLOAT16: 7}  # stored bits of the fraction
_POINTS = 2
_LARGEST = 12


def rounding_of(rule: Rule) -> dict[str, object]:
    """``{"rounding": {type: {"lhs": [typical, worst], "rhs": [typical, worst]}}}`` in units in the last place.

    Typical is the median over elements, worst the largest; two significant digits, the same on every run. Empty where
    a side cannot be evaluated in a type.
    """
    seed = int.from_bytes(hashlib.sha256(rule_text(rule).encode()).digest()[:4], "big")
    rng = np.random.default_rng([seed, 64])
    try:
        instance = instances(rule, (1,))[0]
        conditions = types_of(instance).lhs_obligations
    except (SuperoptError, IllTyped):
        return {}
    trials: list[Trial] = []
    for _ in range(12 * _POINTS):
        point = draw(instance, 1 if rule.lead else 0, rng, conditions, _LARGEST)
        trial = None if point is None else trial_at(instance, point)
        if trial is not None and not trial.ill_typed:
            trials.append(trial)
        if len(trials) == _POINTS:
            break
    found: dict[str, object] = {}
    for dtype in _PRECISION:
        errors: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
        try:
            for trial in trials:
                _measure(trial, dtype, rng, errors)
        except (SuperoptError, IllTyped, ArithmeticError):
            continue
        if any(e.size for e in errors[0]) and any(e.size for e in errors[1]):
            sides = {name: _summary(np.concatenate(side)) for name, side in zip(("lhs", "rhs"), errors, strict=True)}
            found[str(dtype)] = sides
    return {"rounding": found} if found else {}


def _summary(errors: np.ndarray) -> list[float]:
    return [float(f"{v:.2g}") for v in (float(np.median(errors)), float(errors.max()))]


def _measure(
    trial: Trial, dtype: DType, rng: np.random.Generator, errors: tuple[list[np.ndarray], list[np.ndarray]]
) -> None:
    """Add the errors of both sides' elements at one point."""
    given: dict[str, np.ndarray] = {}
    for name, kind in trial.variables.items():
        shape = tuple(value_at(d, {}) for d in kind.shape or ())
        if kind.dtype == DType.FLOAT32:
            given[name] = at_dtype(rng.standard_normal(shape) + 0.5, dtype)
        else:
            given[name] = rng.integers(0, trial.below[name], shape).astype(kind.dtype.numpy)
    wide = {n: a.astype(np.float64) if trial.variables[n].dtype == DType.FLOAT32 else a for n, a in given.items()}
    for side, roots in zip(errors, (trial.lhs, trial.rhs), strict=True):
        rounded = evaluated(roots, given, dtype)
        exact = evaluated(roots, wide, DType.FLOAT64)
        for got, want in zip(rounded, exact, strict=True):
            a, b = got.astype(np.float64).ravel(), want.astype(np.float64).ravel()
            fine = np.isfinite(a) & np.isfinite(b)
            scale = np.maximum(np.abs(b[fine]), np.sqrt(np.mean(b[fine] ** 2)) if fine.any() else 0.0)
            nonzero = scale > 0
            _, exponent = np.frexp(scale[nonzero])
            side.append(np.abs(a - b)[fine][nonzero] / np.ldexp(1.0, exponent - 1 - _PRECISION[dtype]))

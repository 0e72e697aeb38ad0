"""The effect of a rule on rounding errors, measured: a proof is over the reals, this is about floating point.

Both sides are evaluated at seeded random elements. Every operator's result is rounded to the element type (sums are
accumulated in float64), and compared with float64 throughout. Errors are in units in the last place of the larger of an
element and the root mean square of its tensor, so that a cancellation to nearly 0 does not count as infinite.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from superopt.ir.errors import SuperoptError
from superopt.ir.size_polynomial import value_at
from superopt.ir.terms import OperatorTerm, OutputTerm, Term, VariableTerm, postorder
from superopt.ir.types import DType, TensorType
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.rules.canonical import rule_text
from superopt.rules.rule import Rule
from superopt.rules.typing import complete, instances, operator_of, types_of
from superopt.runtime.reference import at_dtype, evaluate_application
from superopt.verifier.exact.sampling import draw
from superopt.verifier.exact.testing import ExactTrial, trial_at

__all__ = ["evaluated", "rounding_of"]

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
    except (SuperoptError, IllTypedOperator):
        return {}
    trials: list[ExactTrial] = []
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
        except (SuperoptError, IllTypedOperator, ArithmeticError):
            continue
        if any(e.size for e in errors[0]) and any(e.size for e in errors[1]):
            sides = {name: _summary(np.concatenate(side)) for name, side in zip(("lhs", "rhs"), errors, strict=True)}
            found[str(dtype)] = sides
    return {"rounding": found} if found else {}


def _summary(errors: np.ndarray) -> list[float]:
    return [float(f"{v:.2g}") for v in (float(np.median(errors)), float(errors.max()))]


def _measure(
    trial: ExactTrial, dtype: DType, rng: np.random.Generator, errors: tuple[list[np.ndarray], list[np.ndarray]]
) -> None:
    """Add the errors of both sides' elements at one point."""
    given_arrays: dict[str, np.ndarray] = {}
    for name, kind in trial.variables.items():
        shape = tuple(value_at(d, {}) for d in kind.shape or ())
        if kind.dtype == DType.FLOAT32:
            given_arrays[name] = at_dtype(rng.standard_normal(shape) + 0.5, dtype)
        else:
            given_arrays[name] = rng.integers(0, trial.below[name], shape).astype(kind.dtype.numpy)
    wide = {
        n: a.astype(np.float64) if trial.variables[n].dtype == DType.FLOAT32 else a for n, a in given_arrays.items()
    }
    for side, roots in zip(errors, (trial.lhs, trial.rhs), strict=True):
        rounded = evaluated(roots, given_arrays, dtype)
        exact = evaluated(roots, wide, DType.FLOAT64)
        for got, want in zip(rounded, exact, strict=True):
            a, b = got.astype(np.float64).ravel(), want.astype(np.float64).ravel()
            fine = np.isfinite(a) & np.isfinite(b)
            scale = np.maximum(np.abs(b[fine]), np.sqrt(np.mean(b[fine] ** 2)) if fine.any() else 0.0)
            nonzero = scale > 0
            _, exponent = np.frexp(scale[nonzero])
            side.append(np.abs(a - b)[fine][nonzero] / np.ldexp(1.0, exponent - 1 - _PRECISION[dtype]))


def evaluated(roots: Sequence[Term], given: Mapping[str, np.ndarray], dtype: DType = DType.FLOAT32) -> list[np.ndarray]:
    """The roots' arrays; sums inside one operator are accumulated in float64. What overflows is infinite or ``nan``.

    Args:
        roots: terms without sizes or attributes that are not known.
        given: an array for every variable, at its own element type.
        dtype: the element type that the rule's class ``f`` stands for: what an omitted ``dtype`` attribute means.

    Raises:
        RuleError: superopt has no such operator, or not with such an attribute.
        IllTypedOperator: an operator does not accept these types or attributes.
    """
    found: dict[Term, tuple[np.ndarray | None, ...]] = {}
    for term in postorder(*roots):
        if isinstance(term, VariableTerm):
            found[term] = (given[term.name],)
        elif isinstance(term, OutputTerm):
            found[term] = (found[term.term][term.index],)
        else:
            found[term] = _applied(term, [None if a is None else found[a][0] for a in term.args], dtype)
    return [np.asarray(found[r][0]) for r in roots]


def _applied(term: OperatorTerm, arrays: Sequence[np.ndarray | None], dtype: DType) -> tuple[np.ndarray | None, ...]:
    types = [None if a is None else TensorType(DType.of(a.dtype), a.shape) for a in arrays]
    with np.errstate(all="ignore"):
        return evaluate_application(operator_of(term), complete(term, dtype), arrays, types)

"""“Try it”: both sides of a rule at small random sizes and elements, evaluated by the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from superopt.ir.errors import SuperoptError
from superopt.ir.size_polynomial import value_at
from superopt.ir.terms import OutputTerm, Term, VariableTerm, postorder
from superopt.ir.types import DType, TensorType
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.rules import Rule
from superopt.rules.typing import complete, instances, operator_of, types_of
from superopt.runtime.reference import evaluate_application
from superopt.verifier.exact.sampling import draw
from superopt.verifier.exact.testing import ExactTrial, trial_at

__all__ = ["try_rule"]

_LARGEST = 4  # sizes are drawn up to this
_ATTEMPTS = 12
_MOST = 4096  # elements of one tensor
_SHOWN = 64  # elements that are shown
_CLOSE = 1e-9  # of the output's magnitude, or of the inputs' (about 1) where all cancels: what float64 may round


def try_rule(rule: Rule, seed: int) -> dict[str, Any]:
    """What both sides give at one random point, as JSON data (``superopt.trial``); the same for the same seed.

    ``outcome`` is "equal", "different", or "none" where no small point was found that the rule's conditions allow.
    """
    found: dict[str, Any] = {"format": "superopt.trial", "version": 1, "rule": rule.id, "seed": seed}
    rng = np.random.default_rng([seed, 7])
    try:
        trial = _point(rule, rng)
        if trial is None:
            return found | {"outcome": "none", "reason": "no small sizes were found that its conditions allow"}
        given = _elements(trial, rng)
        exact, single = (_sides(trial, given, dtype) for dtype in (DType.FLOAT64, DType.FLOAT32))
    except (SuperoptError, IllTypedOperator, ArithmeticError, MemoryError) as error:
        return found | {"outcome": "none", "reason": f"this point cannot be evaluated: {error}"}
    outputs = [_output(*pairs) for pairs in zip(*exact, *single, strict=True)]
    return found | {
        "outcome": "equal" if all(o.pop("agrees") for o in outputs) else "different",
        "sizes": {n: int(v) for n, v in sorted(trial.point.sizes.items())} | dict(sorted(trial.point.reals.items())),
        "inputs": {n: str(t) for n, t in trial.variables.items()}, "outputs": outputs,
    }  # fmt: skip


def _point(rule: Rule, rng: np.random.Generator) -> ExactTrial | None:
    instance = instances(rule, (1,))[0]
    conditions = types_of(instance).lhs_obligations
    for _ in range(_ATTEMPTS):
        point = draw(instance, 1 if rule.lead else 0, rng, conditions, _LARGEST)
        trial = None if point is None else trial_at(instance, point)
        if trial is None or trial.ill_typed:
            continue
        if all(isinstance(t.elements, int) and t.elements <= _MOST for t in trial.variables.values()):
            return trial
    return None


def _elements(trial: ExactTrial, rng: np.random.Generator) -> dict[str, np.ndarray]:
    given: dict[str, np.ndarray] = {}
    for name, kind in trial.variables.items():
        shape = tuple(value_at(d, {}) for d in kind.shape or ())
        if kind.dtype == DType.FLOAT32:
            given[name] = (np.abs(rng.standard_normal(shape)) + 0.25).astype(np.float32)
        else:
            given[name] = trial.drawn(name, rng, shape).astype(kind.dtype.numpy)
    return given


def _sides(
    trial: ExactTrial, given: Mapping[str, np.ndarray], dtype: DType
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    return _evaluated(trial.lhs, given, dtype), _evaluated(trial.rhs, given, dtype)


def _evaluated(roots: Sequence[Term], given: Mapping[str, np.ndarray], dtype: DType) -> list[np.ndarray]:
    found: dict[Term, tuple[np.ndarray, ...]] = {}
    for term in postorder(*roots):
        if isinstance(term, VariableTerm):
            array = given[term.name]
            found[term] = (array.astype(dtype.numpy) if array.dtype == np.float32 else array,)
        elif isinstance(term, OutputTerm):
            found[term] = (found[term.term][term.index],)
        else:
            operands = [None if a is None else found[a][0] for a in term.args]
            types = [None if o is None else TensorType(DType(str(o.dtype)), o.shape) for o in operands]
            with np.errstate(all="ignore"):
                made = evaluate_application(operator_of(term), complete(term, dtype), operands, types)
            found[term] = tuple(np.asarray(m) for m in made)
    return [np.asarray(found[r][0]) for r in roots]


def _output(left: np.ndarray, right: np.ndarray, left32: np.ndarray, right32: np.ndarray) -> dict[str, Any]:
    difference, difference32 = _apart(left, right), _apart(left32, right32)
    finite = np.abs(left[np.isfinite(left)]) if left.dtype.kind == "f" else np.abs(left.astype(np.float64))
    scale = float(finite.max()) if finite.size else 0.0
    real = left.dtype.kind == "f"
    return {
        "type": str(TensorType(DType.FLOAT32 if real else DType(str(left.dtype)), left.shape)),
        "left": _shown(left32), "right": _shown(right32), "difference64": difference, "difference32": difference32,
        "agrees": left.shape == right.shape and difference <= _CLOSE * max(scale, 1.0),
    }  # fmt: skip


def _apart(left: np.ndarray, right: np.ndarray) -> float:
    """Largest difference; places where both are not numbers, or the same infinity, count as equal."""
    a, b = left.astype(np.float64), right.astype(np.float64)
    if a.shape != b.shape:
        return float(np.finfo(np.float64).max)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(all="ignore"):
        apart = np.where(same, 0.0, np.abs(a - b))
    apart = np.where(np.isfinite(apart), apart, np.finfo(np.float64).max)
    return float(apart.max()) if apart.size else 0.0


def _shown(array: np.ndarray) -> str:
    flat = array.reshape(-1)
    text = np.array2string(array if flat.size <= _SHOWN else flat[:_SHOWN], precision=5, suppress_small=True)
    return text if flat.size <= _SHOWN else f"{text}\n… {flat.size - _SHOWN} more elements"

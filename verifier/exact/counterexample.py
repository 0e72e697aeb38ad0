"""Counterexamples: made small, kept as JSON, replayed.

    {"rule": {…the row…}, "lead": 0, "sizes": {"n": 1}, "reals": {"e": 0.5}, "arithmetic": "rationals",
     "elements": {"x": ["1", "-2"]}, "pair": 0, "index": [0, 0], "left": "1", "right": "2"}

Elements are row-major, as integers (of the prime field: the residue of least magnitude) or fractions. Where it is the
types that disagree there are no elements, and ``reason`` says what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from superopt.rules.grammar import RuleError, format_rule, parse_rule
from superopt.rules.rule import Rule
from superopt.rules.typing import instances, types_of
from superopt.runtime.comprehension_evaluation import Array
from superopt.verifier.exact.algebra import MODULUS, InverseOfZero, PrimeField
from superopt.verifier.exact.sampling import SizeSample, allowed, names_of
from superopt.verifier.exact.testing import Exact, ExactTrial, SideMismatch, algebra_for, compare, fails, trial_at

__all__ = ["describe", "minimised", "replay"]

_TRIES = 6  # random elements tried at each smaller point
_DRAWN = 64  # and where a counterexample is known that does not say which they were
Failure = tuple[ExactTrial, dict[str, Array], SideMismatch | None]


def minimised(rule: Rule, instance: Rule, point: SizeSample, seed: int) -> dict[str, object]:
    """A small counterexample near a failing point: first smaller sizes and attributes, then simpler elements."""
    rng = np.random.default_rng([seed, 7])
    failure = _failure(instance, point, rng)
    if failure is None:  # it failed with other elements; look harder at the same point
        failure = next((f for _ in range(50) if (f := _failure(instance, point, rng)) is not None), None)
    if failure is None:
        return {"rule": format_rule(rule), "lead": point.lead, "sizes": dict(point.sizes), "reals": dict(point.reals)}
    progress = True
    while progress:
        progress = False
        for smaller in _smaller(instance, point):
            found = _failure(instance, smaller, rng)
            if found is not None:
                point, failure, progress = smaller, found, True
                break
    return _as_json(rule, point, _simpler(failure))


def _failure(instance: Rule, point: SizeSample, rng: np.random.Generator, tries: int = _TRIES) -> Failure | None:
    for _ in range(tries):
        try:
            found = fails(instance, point, rng)
        except InverseOfZero:
            continue
        if found is not None:
            return found
    return None


def _smaller(instance: Rule, point: SizeSample) -> list[SizeSample]:
    """Points with one or two names reduced, that satisfy the context."""
    try:
        conditions = types_of(instance).lhs_obligations
    except RuleError:
        conditions = ()
    floors = {n: 1 if s is None else max(s.bound + (s.relation == ">"), 0) for n, s in names_of(instance)}
    points: list[SizeSample] = []
    steps = [
        {name: value}
        for name, current in point.sizes.items()
        for value in dict.fromkeys((floors[name], current // 2, current - 1))
        if floors[name] <= value < current
    ]
    names = [n for n, v in point.sizes.items() if v > floors[n]]
    steps += [{a: point.sizes[a] - 1, b: point.sizes[b] - 1} for i, a in enumerate(names) for b in names[i + 1 :]]
    for step in steps:
        sizes = {**point.sizes, **step}
        try:
            if allowed(instance, sizes, conditions):
                points.append(replace(point, sizes=sizes))
        except (KeyError, ZeroDivisionError):
            continue
    return points


def _simpler(failure: Failure) -> Failure:
    """The same disagreement with as many elements as possible 0 or 1; at most 200 evaluations."""
    trial, values, difference = failure
    if difference is None:
        return failure
    algebra = algebra_for(trial)
    budget = 200

    def still(candidate: dict[str, Array]) -> SideMismatch | None:
        try:
            return compare(trial, candidate, algebra)
        except InverseOfZero:
            return None

    for name, array in list(values.items()):
        for value in (0, 1):
            candidate = {**values, name: algebra.integers(np.full(array.shape, value))}
            found_difference = still(candidate)
            if found_difference is not None:
                values, difference = candidate, found_difference
                break
    simple = {algebra.show(algebra.integers(np.asarray(v)))[0]: v for v in (0, 1)}
    for name in values:
        for position in range(values[name].size):
            shown = algebra.show(values[name].ravel()[position : position + 1])[0]
            for value in (0, 1, 2):
                if budget == 0 or shown in simple:
                    break
                budget -= 1
                array = values[name].copy()
                array.reshape(-1)[position : position + 1] = algebra.integers(np.asarray([value]))
                found_difference = still({**values, name: array})
                if found_difference is not None:
                    values, difference = {**values, name: array}, found_difference
                    break
    return trial, values, difference


def _as_json(rule: Rule, point: SizeSample, failure: Failure) -> dict[str, object]:
    trial, values, difference = failure
    data: dict[str, object] = {
        "rule": format_rule(rule),
        "lead": point.lead,
        "sizes": dict(point.sizes),
        "reals": dict(point.reals),
    }
    if difference is None:
        return {**data, "reason": trial.ill_typed}
    algebra = algebra_for(trial)
    return {
        **data,
        "arithmetic": algebra.name,
        "elements": {n: algebra.show(v) for n, v in values.items()},
        "pair": difference.pair,
        "index": list(difference.index),
        "left": difference.left,
        "right": difference.right,
    }


def replay(data: Mapping[str, Any]) -> bool:
    """Evaluate a counterexample again: whether its rule's sides still disagree there.

    Raises:
        RuleError: the data is not a counterexample.
    """
    try:
        rule = parse_rule(data["rule"], where="counterexample")
        point = SizeSample(
            {str(k): int(v) for k, v in data["sizes"].items()},
            {str(k): float(v) for k, v in data["reals"].items()},
            int(data["lead"]),
        )
        instance = instances(rule, (point.lead,), strict=False)[0]
        trial = trial_at(instance, point)
        if trial is None:  # the left side is not well-formed here: then the right side must be
            backwards = trial_at(replace(instance, lhs=instance.rhs, rhs=instance.lhs), point)
            return backwards is not None and bool(backwards.ill_typed)
        if trial.ill_typed:
            return True
        if "elements" not in data:
            return _failure(instance, point, np.random.default_rng(0), _DRAWN) is not None
        algebra = algebra_for(trial)
        values = {n: _elements(data["elements"][n], trial, n, algebra) for n in trial.variables}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RuleError(f"not a counterexample: {error}") from error
    except InverseOfZero:
        return False
    try:
        return compare(trial, values, algebra) is not None
    except InverseOfZero:
        return False


def _elements(texts: list[str], trial: ExactTrial, name: str, algebra: Exact) -> Array:
    shape = tuple(d for d in trial.variables[name].shape or () if isinstance(d, int))
    if isinstance(algebra, PrimeField):
        numbers = [int(t) for t in texts]
        residues = np.asarray([v if v >= 0 else v + MODULUS for v in numbers], dtype=np.int64)
        plain = algebra.integers(residues)
        small = algebra.integers(np.asarray(numbers, dtype=np.int64))
        return np.where(np.abs(np.asarray(numbers)) < 1000, small, plain).reshape(shape)
    array = np.empty(len(texts), dtype=object)
    array[:] = [Fraction(t) for t in texts]
    return array.reshape(shape)


def describe(data: Mapping[str, Any]) -> str:
    """A counterexample in one line."""
    sizes = ", ".join(f"{k} = {v}" for k, v in {**data["sizes"], **data["reals"]}.items())
    if "reason" in data:
        return f"at {sizes}: {data['reason']}"
    if "elements" not in data:
        return f"at {sizes}: the sides differ"
    where = f"[{', '.join(map(str, data['index']))}]" if data["index"] else ""
    return f"at {sizes}: element {where} is {data['left']} on the left and {data['right']} on the right"

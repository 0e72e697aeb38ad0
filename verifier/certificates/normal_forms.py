"""Normal forms as a certificate writes them: read, renamed, and evaluated at points beside the meanings they stand for.

Part of the independent checker. Bound variables range over all integers; an element outside its tensor is 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache, partial
from itertools import product
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np

from superopt.ir.size_polynomial import Dim, SizePolynomial, substitute, sym, symbols, value_at
from superopt.ops.operator_semantics import (
    ElementRead,
    IndexCondition,
    ScalarConditional,
    ScalarConstant,
    ScalarExpression,
    ScalarReduction,
    SizeExpression,
    TensorComprehension,
    call,
)
from superopt.rules import Rule
from superopt.rules.grammar import parse_guard
from superopt.rules.typing import types_of
from superopt.runtime.comprehension_evaluation import FLOAT64, Array, evaluate
from superopt.verifier.exact.algebra import InverseOfZero, NeedsOrder, Rationals
from superopt.verifier.exact.minimum_window_sizes import reaches
from superopt.verifier.exact.sampling import draw
from superopt.verifier.exact.testing import ExactTrial, algebra_for, elements, trial_at, values_of

__all__ = ["OperandMultiset", "CertificateRejected", "Summand", "conditions", "points", "read", "replaced", "size"]

Range = tuple[int, int]
# Where exact arithmetic knows too little of a function and disagrees, floating point decides.
_LAWLESS = ("log(", "erf(", "sin(", "cos(", "tan(", "pow(", "sqrt(", "sinh(", "cosh(")
_OF_EXP = ("exp(", "tanh(")  # where rationals decide, as an order is needed, exp(2·x) is another number than exp(x)²
_JOINS: Mapping[str, Any] = {"sum": ("add", Fraction(0)), "prod": ("mul", Fraction(1)), "max": ("max", -inf)}


class CertificateRejected(Exception):
    """The certificate does not hold; says why."""


class OperandMultiset(tuple[Any, ...]):
    """A sum of summands, or a product of (factor, power): the order does not matter."""

    def __new__(cls, items: Iterable[Any]) -> OperandMultiset:
        return super().__new__(cls, sorted(items, key=repr))


class Summand(NamedTuple):
    """``c · Σ bound | guards · Π factor^power``; a branch of a maximum or product has its value as the one factor."""

    c: Fraction
    bound: tuple[str, ...]
    guards: frozenset[IndexCondition]
    factors: OperandMultiset


@lru_cache(maxsize=65536)
def size(text: str) -> Dim:
    """A size, read by the grammar of rules."""
    return parse_guard(f"{text} >= 0").left


def conditions(rows: Iterable[tuple[str, str]]) -> frozenset[IndexCondition]:
    """Conditions from their JSON rows."""
    found_conditions = frozenset(IndexCondition(kind, size(text)) for kind, text in rows)
    if any(c.kind not in ("ge", "eq", "ne") for c in found_conditions):
        raise CertificateRejected("an unknown condition")
    return found_conditions


def read(item: Any) -> Any:
    """A normal form, or a part of one, from its JSON: a text that begins with "=" is a size."""
    match item:
        case {"c": str(c), "bound": list(bound), "guards": list(guards), "factors": list(factors)}:
            if len(set(bound)) < len(bound):
                raise CertificateRejected("a variable is bound twice")
            powers = OperandMultiset((read(f), Fraction(p)) for f, p in factors)
            return Summand(Fraction(c), tuple(sorted(bound)), conditions(guards), powers)
        case list():
            return (OperandMultiset if all(isinstance(i, dict) for i in item) else tuple)(map(read, item))
        case str():
            return size(item[1:]) if item.startswith("=") else item
    raise CertificateRejected("not a part of a normal form")


def replaced(item: Any, names: Mapping[str, Dim]) -> Any:
    """A part of a normal form with names replaced by sizes."""
    match item:
        case int() | SizePolynomial():
            return substitute(item, names)
        case IndexCondition(kind, dim):
            return IndexCondition(kind, substitute(dim, names))
        case Summand(c, bound, guards, factors):
            if set(bound) & (names.keys() | {n for d in names.values() for n in symbols(d)}):
                raise CertificateRejected("a name that is replaced is bound inside")
            return Summand(c, bound, replaced(guards, names), replaced(factors, names))
        case tuple() | frozenset():
            return type(item)(replaced(i, names) for i in item)
    return item


def points(rule: Rule, place: int, row: Mapping[str, Any], rng: np.random.Generator) -> int:
    """Compare a derivation with the meanings at random sizes, attributes and elements; at how many."""
    sides = [read(row[k]) for k in ("left", "right")]
    steps = [(read(s["before"]), read(s["after"]), read(s.get("factor", [])), s.get("power", 0)) for s in row["steps"]]
    done = 0
    for attempt in range(40):
        wide = reaches(rule) if attempt % 3 == 1 else {}  # past the numbers that the rule names
        point = draw(rule, 0, rng, types_of(rule).lhs_obligations, 2 if wide else 3 + attempt % 3, wide)
        if point is None or (trial := trial_at(rule, point)) is None:
            continue
        if trial.ill_typed:
            raise CertificateRejected(f"{trial.ill_typed} at {dict(trial.point.sizes)}")
        names = {**trial.point.sizes}
        for name, text in row["parts"].items():
            names[name] = value_at(size(text), names)
        digits = ([value_at(size(e), names) for e in d] for d in row["digits"])
        axes = tuple(tuple((f"o{i}__{k}", e) for k, e in enumerate(d)) for i, d in enumerate(digits))
        index = {n: (0, e - 1) for axis in axes for n, e in axis}
        at = partial(_meaning, axes, names, {n: i for i, n in enumerate(trial.variables)}, index)
        done += _agree(trial, place, [at(s) for s in sides], [(at(b), at(a), at(f), p) for b, a, f, p in steps], rng)
        if done == 3:
            return done
    raise CertificateRejected("too few sizes were found at which to compare")


def _meaning(
    axes: Any, names: Mapping[str, int], tensors: Any, index: Any, value: OperandMultiset
) -> TensorComprehension:
    return TensorComprehension(axes, _scalar(replaced(value, names), tensors, index))


def _agree(
    trial: ExactTrial, position: int, sides: list[TensorComprehension], steps: list[Any], rng: np.random.Generator
) -> bool:
    """Whether elements were found at which all is defined; there, sides and steps have the values that they claim."""
    terms = trial.lhs[position], trial.rhs[position]
    exact = algebra_for(trial)
    for algebra, given_arrays in ((exact, elements(trial, exact, rng)), (FLOAT64, _floats(trial, rng))):
        reals: dict[str, Any] = {n: algebra.constant(Fraction(v)) for n, v in trial.point.reals.items()}
        at = partial(evaluate, operands=list(given_arrays.values()), algebra=algebra, sizes=reals)
        try:
            arrays = values_of(terms, trial, given_arrays, algebra)
            pairs = [(f"the {n} normal form", at(sides[i]), arrays[terms[i]]) for i, n in enumerate(("left", "right"))]
            for number, (before, after, factor, power) in enumerate(steps):
                scaled = at(before)
                for _ in range(power):
                    scaled = algebra.function("mul", scaled, at(factor))
                pairs.append((f"what step {number} leaves", scaled, at(after)))
        except InverseOfZero:
            return False
        except NeedsOrder:
            continue
        wrong = [name for name, x, y in pairs if not _same(x, y, algebra)]
        if not wrong:
            return True
        text = " ".join(str(o) for m in trial.meanings.values() for o in m.outputs)
        if algebra is FLOAT64 or not any(f in text for f in _LAWLESS + _OF_EXP * isinstance(algebra, Rationals)):
            raise CertificateRejected(f"{wrong[0]} has another value than it should at {dict(trial.point.sizes)}")
    return False


def _floats(trial: ExactTrial, rng: np.random.Generator) -> dict[str, Array]:
    given_arrays: dict[str, Array] = {}
    for name, kind in trial.variables.items():
        shape = tuple(value_at(d, {}) for d in kind.shape or ())
        given_arrays[name] = (
            rng.uniform(0.5, 1.5, shape) if kind.dtype.is_float else rng.integers(0, trial.below[name], shape)
        )
    return given_arrays


def _same(x: Array, y: Array, algebra: Any) -> bool:
    if algebra is FLOAT64:
        return np.allclose(x, y, rtol=1e-7, atol=1e-7, equal_nan=True)
    return bool(algebra.equal(*np.broadcast_arrays(x, y)).all())


def _scalar(
    value: OperandMultiset, tensors: Mapping[str, int], ranges: Mapping[str, Range], kind: str = "sum"
) -> ScalarExpression:
    """A value (or the branches of a product or maximum) in the meaning language; ``ranges`` of the names free in it."""
    join, first = _JOINS[kind]
    total: ScalarExpression = ScalarConstant(first)
    for m in value:
        inner = _ranges(m, ranges)
        guards, factors = replaced((m.guards, m.factors), {n: sym(n) + inner[n][0] for n in m.bound if inner[n][0]})
        inner |= {n: (0, inner[n][1] - inner[n][0]) for n in m.bound}
        body: ScalarExpression = ScalarConstant(m.c)
        for factor, power in factors:
            body = call("mul", body, _power(factor, power, tensors, inner))
        body = ScalarConditional(tuple(guards), body, ScalarConstant(first)) if guards else body
        for name in m.bound:
            body = ScalarReduction(kind, name, max(0, inner[name][1] + 1), body)
        total = call(join, total, body)
    return total


def _power(factor: Any, power: Fraction, tensors: Mapping[str, int], ranges: Mapping[str, Range]) -> ScalarExpression:
    of = partial(_scalar, tensors=tensors, ranges=ranges)
    zero = ScalarConstant(Fraction(0))
    match factor:
        case ("apply", "exp", (value,)) if power.denominator != 1:
            return call("exp", call("mul", ScalarConstant(power), of(value)))
        case _ if power.denominator != 1:
            raise CertificateRejected("a fractional power of what is not an exponential")
        case ("element", name, index):
            base: ScalarExpression = ElementRead(tensors[name.removeprefix("?")], index, zero)
        case ("size", dim):
            base = SizeExpression(dim) if isinstance(dim, SizePolynomial) else ScalarConstant(Fraction(dim))
        case ("sum", value):
            base = of(value)
        case ("extreme", ("prod" | "max") as kind, branches):
            base = _scalar(branches, tensors, ranges, kind)
        case ("apply", "infinity", ()):
            base = ScalarConstant(inf)
        case ("apply", "at", (a, b, _)):
            base = call("equal", of(a), of(b))
        case ("apply", "positive", (a,)):
            base = call("less", zero, of(a))
        case ("apply", ("zero" | "ramp") as name, (a,)):
            base = call("equal" if name == "zero" else "max", of(a), zero)
        case ("apply", str(name), args):
            base = call(name, *map(of, args))
        case _:
            raise CertificateRejected("an unknown factor")
    base = call("inv", base) if power < 0 else base
    return prod([base] * (abs(int(power)) - 1), start=base)


def _ranges(m: Summand, ranges: Mapping[str, Range]) -> dict[str, Range]:
    """Ranges with one for each bound variable that holds all of its values at which the guards (of numbers) hold."""
    if not ranges.keys().isdisjoint(m.bound):
        raise CertificateRejected("a bound variable hides another name")
    found = dict(ranges)
    ends: dict[str, tuple[list[int], list[int]]] = {n: ([], []) for n in m.bound}
    while left := [n for n in m.bound if n not in found]:
        for name, guard in product(left, m.guards):
            slope = dict(guard.size.terms).get((name,), 0) if isinstance(guard.size, SizePolynomial) else 0
            rest = guard.size - slope * sym(name)
            if guard.kind == "ne" or not slope or not symbols(rest) <= found.keys():
                continue
            free = sorted(symbols(rest))  # an extreme value is at a corner
            corners = [value_at(rest, dict(zip(free, c, strict=True))) for c in product(*(found[n] for n in free))]
            for s, most in ((slope, max(corners)), *([(-slope, -min(corners))] if guard.kind == "eq" else [])):
                ends[name][s < 0].append(-(most // s) if s > 0 else most // -s)
        known = {n: (max(ends[n][0]), min(ends[n][1])) for n in left if all(ends[n])}
        if not known:
            raise CertificateRejected(f"a sum over {left} is not bounded")
        found |= known
    return found

"""Exact random testing of a rule: the filter before the prover, and the source of refutations.

Both sides are evaluated from the operators' meanings at random sizes, attributes and elements. Rational functions are
evaluated in a prime field: a false rule of degree d passes a trial at a shape where it is false with probability at
most d/q (Schwartz 1980, Zippel 1979). Functions that depend on order are evaluated over the rationals.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

import numpy as np

from superopt.ir.size_polynomial import value_at
from superopt.ir.terms import OperatorTerm, OutputTerm, Term, VariableTerm, computed, postorder
from superopt.ir.types import DType, TensorType
from superopt.ops.operator_semantics import (
    ElementRead,
    IllTypedOperator,
    IndexCondition,
    OperatorSemantics,
    ScalarCall,
    ScalarConditional,
    ScalarConstant,
    ScalarExpression,
    ScalarReduction,
    subexpressions,
)
from superopt.rules.grammar import format_rule
from superopt.rules.rule import CLASSES, Rule
from superopt.rules.scanner import RuleError
from superopt.rules.slice_clamping import cases
from superopt.rules.typing import at_sizes, instances, type_terms, types_of
from superopt.runtime.comprehension_evaluation import FLOAT64, Array, ArrayArithmetic, evaluate
from superopt.verifier.exact.algebra import ORDERED, InverseOfZero, NeedsOrder, PrimeField, Rationals
from superopt.verifier.exact.minimum_window_sizes import reaches
from superopt.verifier.exact.ordered_field import OrderedPrimeField
from superopt.verifier.exact.sampling import SizeSample, draw
from superopt.verifier.verdict import RefutedVerdict, TestedVerdict, UnknownVerdict, Verdict

__all__ = [
    "SideMismatch",
    "Exact",
    "ExactTrial",
    "algebra_for",
    "compare",
    "elements",
    "error_bound",
    "fails",
    "test",
    "trial_at",
    "values_of",
]

Degree = tuple[int, int]  # of numerator and denominator


def _add(a: Degree, b: Degree) -> Degree:
    return max(a[0] + b[1], b[0] + a[1]), a[1] + b[1]


def _of(scalar: ScalarExpression, operands: Sequence[Degree]) -> Degree:
    """Upper bounds, bottom-up; a function that is not rational counts as one more unknown of its arguments."""
    known: dict[int, Degree] = {}
    for part in subexpressions(scalar):
        match part:
            case ElementRead(operand, _, _):
                degree = operands[operand]
            case ScalarReduction(kind, _, extent, body):
                n, d = known[id(body)]
                times = extent if isinstance(extent, int) else 1
                degree = (n * times, d * times) if kind == "prod" else (n + (times - 1) * d, times * d)
            case ScalarConditional(_, then, otherwise):
                a, b = known[id(then)], known[id(otherwise)]
                degree = max(a[0], b[0]), max(a[1], b[1])
            case ScalarCall(function, args):
                parts = [known[id(a)] for a in args]
                degree = _called(function, parts)
            case _:
                degree = (0, 0)
        known[id(part)] = degree
    return known[id(scalar)]


def _called(function: str, parts: Sequence[Degree]) -> Degree:
    match function:
        case "add":
            return _add(parts[0], parts[1])
        case "mul":
            return parts[0][0] + parts[1][0], parts[0][1] + parts[1][1]
        case "inv":
            return parts[0][1], parts[0][0]
        case "max" | "min" | "select" | "abs" | "sign":
            return max(n for n, _ in parts), max(d for _, d in parts)
    return sum(n for n, _ in parts) + 1, sum(d for _, d in parts)


def error_bound(
    lhs: Sequence[Term], rhs: Sequence[Term], meanings: Mapping[OperatorTerm, OperatorSemantics], choices: int
) -> float:
    """Schwartz–Zippel: the probability that two different sides agree at random elements.

    Args:
        lhs: ground terms.
        rhs: the terms they are compared with.
        meanings: of every application in them.
        choices: the number of values that an element is drawn from.
    """
    found: dict[Term, Degree] = {}
    outputs: dict[OperatorTerm, list[Degree]] = {}
    for term in postorder(*lhs, *rhs):
        if isinstance(term, VariableTerm):
            found[term] = (1, 0)
        elif isinstance(term, OutputTerm):
            found[term] = outputs[term.term][term.index]
        else:
            operands = [(0, 0) if a is None else found[a] for a in term.args]
            outputs[term] = [_of(c.body, operands) for c in meanings[term].outputs]
            found[term] = outputs[term][0]
    pairs = (_add(found[a], found[b])[0] for a, b in zip(lhs, rhs, strict=True))
    return min(1.0, max(pairs, default=0) / choices)


Exact = PrimeField | Rationals
_LEADS = (1, 0, 2)
_LARGEST = (4, 3, 2, 5, 4, 3, 6, 5)  # sizes are drawn up to this, trial by trial
_WIDE = 2  # what other sizes are drawn up to in trials where images are wide
# Draws of awkward elements, where order or equality matters, besides the uniform ones; every second is from a few
# numbers that all tensors share. (With 3 in all and none shared, rules that differ at ties alone passed 8 trials.)
_ODD_DRAWS = 4
_CONSTANT_DRAWS = 8  # and so many more from a few numbers, where the rule has constants that turns have not
_INTEGER = 9  # integers without a bound are drawn up to this, of either sign
_SMALL, _LARGE = 1 << 10, 1 << 40  # constants up to these are such numbers: with powers, and without
_MOST_NAMED = 5  # of which products and quotients are, too
_FEW = 5  # numbers that tensors share in such a draw: two elements are equal in a fifth of the places, opposite in more
_TURNS = tuple(Fraction(n, 2) for n in (0, 0, 1, -1, 2, -2, 3, -3, 5, -5))  # where functions that round or compare turn
_COMMON = frozenset(_TURNS) | {v * h for v in _TURNS for h in (Fraction(1, 2), 2)}  # constants that most rules have
_MORE, _MOST_MORE = 4, 24  # further trials for each further way in which slices are clamped, and at most
_UNLUCKY = 5  # draws of a trial that may meet an inverse of zero
_MOST = 60_000  # elements of one tensor; a larger point is drawn again
# What an exact algebra replaces by a hash or knows only some laws of: a disagreement is confirmed in floating point.
_HASHED = frozenset(
    {"log", "erf", "sin", "cos", "tan", "asin", "acos", "atan", "asinh", "acosh", "atanh", "pow", "sqrt"}
)  # fmt: skip
_TRANSCENDENTAL = _HASHED | {"exp", "tanh", "sinh", "cosh"}


@dataclass(frozen=True)
class ExactTrial:
    """Both sides at one point: ground terms, their types and meanings.

    ``ill_typed`` says why the right side is not well-formed, or has another type, where the left side is. ``below`` is
    what integers and booleans are below; ``free`` are integers that no bound is declared for.
    """

    point: SizeSample
    variables: Mapping[str, TensorType]
    below: Mapping[str, int]
    lhs: tuple[Term, ...]
    rhs: tuple[Term, ...]
    meanings: Mapping[OperatorTerm, OperatorSemantics]
    ill_typed: str = ""
    free: frozenset[str] = frozenset()

    def drawn(self, name: str, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Elements of an integer or boolean variable."""
        low, high = (-_INTEGER, _INTEGER + 1) if name in self.free else (0, self.below[name])
        return rng.integers(low, high, size=shape)


@dataclass(frozen=True)
class SideMismatch:
    """Where two sides disagree: which pair of terms, at which index, and the values as text."""

    pair: int
    index: tuple[int, ...]
    left: str
    right: str


def trial_at(rule: Rule, point: SizeSample) -> ExactTrial | None:
    """The rule (an instance without ``...``) at a point; ``None`` where its left side is not well-formed."""
    variables: dict[str, TensorType] = {}
    below: dict[str, int] = {}
    for name, scheme in rule.tensors.items():
        shape = tuple(value_at(d, point.sizes) for d in scheme.shape)
        variables[name] = TensorType(DType(CLASSES[scheme.dtype]), shape)
        below[name] = 2 if scheme.below is None else value_at(scheme.below, point.sizes)
    lhs, rhs = at_sizes(rule, point.sizes, point.reals)
    try:
        types, meanings = type_terms(lhs, variables)
    except (IllTypedOperator, ZeroDivisionError):
        return None
    if _smallest(types) < 1:
        return None
    reason = ""
    try:
        right_types, right_meanings = type_terms(rhs, variables)
        meanings = meanings | right_meanings
        for i, (a, b) in enumerate(zip(lhs, rhs, strict=True)):
            if types[a][0] != right_types[b][0]:
                reason = f"term {i} has type {types[a][0]} on the left and {right_types[b][0]} on the right"
        if _smallest(right_types) < 0:
            reason = "a size on the right is negative, or not bound"
    except (IllTypedOperator, ZeroDivisionError) as error:
        reason = f"the right side is not well-formed: {error}"
    free = frozenset(n for n, scheme in rule.tensors.items() if scheme.dtype == "i" and scheme.below is None)
    return ExactTrial(
        point, variables, below, lhs, rhs, meanings, reason, frozenset() if _reads_at_data(meanings) else free
    )


def _reads_at_data(meanings: Mapping[OperatorTerm, OperatorSemantics]) -> bool:
    """Whether elements are positions somewhere: without a declared bound nothing says which ones there are."""
    return any(
        isinstance(s, ElementRead) and any(isinstance(i, ScalarExpression) for i in s.index)
        for meaning in meanings.values() for output in meaning.outputs for s in subexpressions(output.body)
    )  # fmt: skip


def _smallest(types: Mapping[Term, tuple[TensorType, ...]]) -> int:
    """The smallest size, at most 1; 0 where a tensor is too large to test, so that the point is drawn again; and -1
    where a size has a name that the rule's types and attributes do not bind."""
    smallest = 1
    for outputs in types.values():
        for kind in outputs:
            count = 1
            for size in kind.shape or ():
                if not isinstance(size, int):
                    return -1
                smallest = min(smallest, size)
                count *= size
            if count > _MOST:
                return 0
    return smallest


def elements(trial: ExactTrial, algebra: Exact, rng: np.random.Generator, *, shared: bool = False) -> dict[str, Array]:
    """Random elements for every tensor variable of the trial.

    With ``shared`` (of rationals) all tensors draw from the same few numbers, so that elements of different ones are
    equal or opposite, and meet the constants that the rule compares with.
    """
    values: dict[str, Array] = {}
    few = _few_numbers(trial, rng) if shared and isinstance(algebra, Rationals) else []
    for name, kind in trial.variables.items():
        shape = tuple(int(value_at(d, {})) for d in kind.shape or ())
        if kind.dtype == DType.FLOAT32 and few:
            array = np.empty(int(np.prod(shape)), dtype=object)
            array[:] = [few[k] for k in rng.integers(0, len(few), size=array.size)]
            values[name] = array.reshape(shape)
        elif kind.dtype == DType.FLOAT32:
            values[name] = algebra.random(rng, shape)
        else:
            values[name] = algebra.integers(trial.drawn(name, rng, shape))
    return values


def _few_numbers(trial: ExactTrial, rng: np.random.Generator) -> list[Fraction]:
    """A few numbers: where functions turn, where the rule's own constants turn something, and opposites."""
    named = _turning(trial)
    fractions = [*named, *(v + d for v in named for d in (Fraction(1, 8), Fraction(-1, 8)))]
    fractions += [
        v * h for v in named for h in (Fraction(1, 2), Fraction(-1, 2)) if v
    ]  # closer to 0 than a constant is
    known_fractions = [*_TURNS, *fractions]
    picked = [
        (some := fractions if fractions and n % 2 == 0 else known_fractions)[rng.integers(0, len(some))]
        for n in range(_FEW - 2)
    ]
    return [*picked, -picked[0], Fraction(int(rng.integers(-4096, 4097)), 1 << int(rng.choice([3, 12])))]


def _turning(trial: ExactTrial) -> list[Fraction]:
    """The rule's constants, and products and quotients of two: at 5000 is what ``Clip(x * 0.001, -5, 5)`` cuts."""
    scalars = [s for m in trial.meanings.values() for output in m.outputs for s in subexpressions(output.body)]
    powers = any(isinstance(s, ScalarCall) and s.function == "pow" for s in scalars)  # of what is large none is taken
    named = sorted({s.value for s in scalars if isinstance(s, ScalarConstant) and isinstance(s.value, Fraction)})
    factors = [Fraction(1), *(v for v in named if v)][: _MOST_NAMED + 1]
    fractions = {*named, *(f for a in factors for b in factors for f in (a * b, a / b))}
    return sorted(v for v in fractions if abs(v) <= (_SMALL if powers else _LARGE)) if named else []


def values_of(
    roots: Sequence[Term], trial: ExactTrial, given: Mapping[str, Array], algebra: ArrayArithmetic
) -> dict[Term, Array]:
    """The value of every subterm; each application evaluated once."""

    def outputs(app: OperatorTerm, operands: list[Array | None]) -> list[Array]:
        return [evaluate(c, operands, algebra, {}) for c in trial.meanings[app].outputs]

    return computed(roots, given, outputs)


def compare(trial: ExactTrial, given: Mapping[str, Array], algebra: Exact | OrderedPrimeField) -> SideMismatch | None:
    """The first disagreement of the two sides at these elements.

    Raises:
        InverseOfZero: an inverse of zero; draw other elements.
    """
    values = values_of((*trial.lhs, *trial.rhs), trial, given, algebra)
    for pair, (a, b) in enumerate(zip(trial.lhs, trial.rhs, strict=True)):
        left, right = np.broadcast_arrays(values[a], values[b])
        agree = algebra.equal(left, right)
        if not agree.all():
            index = tuple(int(i) for i in np.argwhere(~agree)[0])
            shown = (algebra.show(np.asarray(side[index], dtype=side.dtype))[0] for side in (left, right))
            return SideMismatch(pair, index, *shown)
    return None


def _functions(meanings: Mapping[OperatorTerm, OperatorSemantics]) -> frozenset[str]:
    """Functions, kinds of reductions and infinite constants that occur in meanings."""
    found: set[str] = set()
    for meaning in meanings.values():
        for output in meaning.outputs:
            for scalar in subexpressions(output.body):
                if isinstance(scalar, ScalarCall):
                    found.add(scalar.function)
                elif isinstance(scalar, ScalarReduction):
                    found.add(scalar.kind)
                elif isinstance(scalar, ScalarConstant) and isinstance(scalar.value, float):
                    found.add("max")
    return frozenset(found)


def algebra_for(trial: ExactTrial, *, odd: bool = False) -> Exact:
    """The rationals where the result depends on order, else the prime field; ``odd`` elements are awkward ones."""
    return (Rationals if _functions(trial.meanings) & ORDERED else PrimeField)(odd=odd)


def fails(
    rule: Rule, point: SizeSample, rng: np.random.Generator
) -> tuple[ExactTrial, dict[str, Array], SideMismatch | None] | None:
    """One trial: ``None`` when the point is unusable or the sides agree, else the trial, elements and difference.

    The difference is ``None`` when it is the types that disagree, or one side is defined where the other is not.

    Raises:
        InverseOfZero: neither side could be evaluated at any elements that were drawn.
    """
    trial = trial_at(rule, point)
    if trial is None:
        return None
    if trial.ill_typed:
        return trial, {}, None
    agreed = 0
    wanted = usual = 1 + (_ODD_DRAWS if _functions(trial.meanings) & (ORDERED | {"equal", "inv"}) else 0)
    if _functions(trial.meanings) & ORDERED and not frozenset(_turning(trial)) <= _COMMON:
        wanted += _CONSTANT_DRAWS
    for _ in range(wanted + _UNLUCKY):
        algebra = algebra_for(trial, odd=agreed > 0)
        values = elements(trial, algebra, rng, shared=agreed % 2 == 1 or agreed >= usual)
        try:
            difference = compare(trial, values, algebra)
        except InverseOfZero:
            if _less_defined(rule, trial, values, algebra):
                why = "one side divides by zero at elements where the other does not"
                return replace(trial, ill_typed=why), {}, None
            continue
        if difference is not None:
            return trial, values, difference
        agreed += 1
        if agreed == wanted:
            break
    if agreed:
        return None
    if _defined(trial, trial.lhs, rng) and not _defined(trial, trial.rhs, rng):
        return (
            replace(trial, ill_typed="the right side is not defined: it divides by zero whatever the elements"),
            {},
            None,
        )
    raise InverseOfZero


def _less_defined(rule: Rule, trial: ExactTrial, given_arrays: Mapping[str, Array], algebra: Exact) -> bool:
    """Whether the side that the rule puts in divides by zero at elements where the side that it takes out does not."""
    sides = (trial.lhs, trial.rhs) if rule.forward or not rule.backward else (trial.rhs, trial.lhs)
    try:
        values_of(sides[0], trial, given_arrays, algebra)
    except InverseOfZero:
        return False
    return True  # both sides were evaluated before, and one of them does


def _defined(trial: ExactTrial, roots: Sequence[Term], rng: np.random.Generator) -> bool:
    """Whether terms can be evaluated at some of a few random elements."""
    algebra = algebra_for(trial)
    for _ in range(6):
        try:
            values_of(roots, trial, elements(trial, algebra, rng), algebra)
        except InverseOfZero:
            continue
        return True
    return False


def _agrees_in_order(trial: ExactTrial, rng: np.random.Generator) -> bool:
    """Whether the sides agree where residues decide equality and floats the order: ``exp`` is a homomorphism there, and
    increases."""
    algebra = OrderedPrimeField()
    for _ in range(1 + _ODD_DRAWS):
        given: dict[str, Array] = {}
        for name, kind in trial.variables.items():
            shape = tuple(int(value_at(d, {})) for d in kind.shape or ())
            plain = kind.dtype == DType.FLOAT32
            given[name] = algebra.small(rng, shape) if plain else algebra.integers(trial.drawn(name, rng, shape))
        try:
            with np.errstate(all="ignore"):
                if compare(trial, given, algebra) is not None:
                    return False
        except (InverseOfZero, NeedsOrder):
            return False
    return True


def _float_differs(trial: ExactTrial, rng: np.random.Generator) -> bool:
    """Whether the sides differ in floating point at random positive and random signed elements."""
    for shift in (0.0, 2.5):
        given_arrays: dict[str, Array] = {}
        for name, kind in trial.variables.items():
            shape = tuple(int(value_at(d, {})) for d in kind.shape or ())
            drawn = rng.uniform(-1.5, 1.5, size=shape) + shift
            given_arrays[name] = drawn if kind.dtype == DType.FLOAT32 else trial.drawn(name, rng, shape)
        with np.errstate(all="ignore"):
            values = values_of((*trial.lhs, *trial.rhs), trial, given_arrays, FLOAT64)
        for a, b in zip(trial.lhs, trial.rhs, strict=True):
            left, right = np.asarray(values[a], float), np.asarray(values[b], float)
            usable = np.isfinite(left) & np.isfinite(right)
            if (np.abs(left - right) > 1e-7 * (1 + np.abs(left)))[usable].any():
                return True
    return False


def test(rule: Rule, *, seed: int = 0, trials: int = 8) -> Verdict:  # noqa: PT028 - not a pytest function
    """Test a rule at ``trials`` random points, each with its own sizes, attributes and elements.

    Returns:
        ``RefutedVerdict`` with a minimised counterexample, ``TestedVerdict`` with the probability that a rule which is
        false at the sizes of a trial passes it, or ``UnknownVerdict`` when no sizes satisfy the rule's context or its
        functions have no exact arithmetic.
    """
    from superopt.verifier.exact.counterexample import minimised

    started = time.perf_counter()
    rng = np.random.default_rng([seed, 20_26])
    passed, bound, unsure = 0, 0.0, ""
    ranks = instances(rule, _LEADS, strict=False)
    more = _MORE * (len(_cases(ranks[0])) - 1)
    for number in range(trials + min(more, _MOST_MORE)):
        instance = ranks[number % len(ranks)]
        wide = reaches(instance) if number % 3 != 1 else {}
        largest = min(_WIDE, *_LARGEST) + number % 2 if wide else _LARGEST[number % len(_LARGEST)]
        point = _point(instance, number // len(ranks), _LEADS[number % 3] if rule.lead else 0, rng, largest, wide)
        if point is None:
            continue
        try:
            found = fails(instance, point, rng)
        except InverseOfZero:
            continue
        if found is None:
            trial = trial_at(instance, point)
            assert trial is not None
            passed += 1
            bound = max(bound, error_bound(trial.lhs, trial.rhs, trial.meanings, algebra_for(trial).choices))
            continue
        trial, _, difference = found
        functions = _functions(trial.meanings)
        doubtful = functions & (_TRANSCENDENTAL if functions & ORDERED else _HASHED)
        if difference is not None and doubtful and not _float_differs(trial, rng):
            if functions & ORDERED and _agrees_in_order(trial, rng):
                passed += 1
                bound = max(bound, error_bound(trial.lhs, trial.rhs, trial.meanings, OrderedPrimeField.choices))
                continue
            unsure = f"exact arithmetic knows too little of {', '.join(sorted(doubtful))}; floating point agrees"
            continue
        return RefutedVerdict(minimised(rule, instance, point, seed), time.perf_counter() - started)
    seconds = time.perf_counter() - started
    if unsure:
        return UnknownVerdict(unsure, seconds=seconds)
    if not passed and (backwards := _only_backwards(rule, rng)) is not None:
        return RefutedVerdict(backwards, seconds)
    if passed < min(4, trials):
        return UnknownVerdict(
            f"only {passed} of {trials} draws of sizes satisfy the types and preconditions", seconds=seconds
        )
    return TestedVerdict(passed, bound, seconds=seconds)


def _only_backwards(rule: Rule, rng: np.random.Generator) -> Mapping[str, object] | None:
    """Sizes at which the right side is well-formed, where the left side was at none that were drawn."""
    for lead in _LEADS if rule.lead else (0,):
        instance = instances(rule, (lead,), strict=False)[0]
        other = replace(instance, lhs=instance.rhs, rhs=instance.lhs)
        for _ in range(8):
            point = draw(other, lead, rng, (), 4)
            trial = None if point is None else trial_at(other, point)
            if point is not None and trial is not None and trial.ill_typed:
                return {
                    "rule": format_rule(rule), "lead": lead, "sizes": dict(point.sizes), "reals": dict(point.reals),
                    "reason": "the left side is not well-formed, the right side is",
                }  # fmt: skip
    return None


def _point(
    instance: Rule, turn: int, lead: int, rng: np.random.Generator, largest: int, wide: Mapping[str, int]
) -> SizeSample | None:
    """A point at which the left side is well-formed, in one of the ways in which its slices can be clamped."""
    ways = _cases(instance)
    for attempt in range(25):
        case, conditions = ways[(turn + attempt) % len(ways)]
        point = draw(case, lead, rng, conditions, largest, wide)
        if point is not None and trial_at(instance, point) is not None:
            return point
        if point is None and len(ways) == 1:
            return None
    return None


@lru_cache(maxsize=256)
def _cases(instance: Rule) -> list[tuple[Rule, tuple[IndexCondition, ...]]]:
    """The cases of a rule, and what well-formedness of each demands; of those for which sizes are found."""
    rng = np.random.default_rng(0)
    found: list[tuple[Rule, tuple[IndexCondition, ...]]] = []
    written = cases(instance)
    for case in written:
        try:
            conditions = types_of(case).lhs_obligations
        except RuleError:
            continue
        if len(written) == 1 or draw(case, 0, rng, conditions, max(_LARGEST)) is not None:
            found.append((case, conditions))
    return found or [(instance, ())]

"""Evaluation of meanings over arrays: floats, residues of a prime field, exact rationals.

>>> import numpy as np
>>> from superopt.ir.types import DType, TensorType
>>> from superopt.ops.operator_semantics import build, tensor, total
>>> x = TensorType(DType.FLOAT32, (2, 3))
>>> rows = build(lambda x: tensor([2], lambda i: total(3, lambda t: x[i, t])), [x]).outputs[0]
>>> evaluate(rows, [np.arange(6.0).reshape(2, 3)], FLOAT64, {}).tolist()
[3.0, 12.0]

How it stays fast on real layers: every subexpression becomes an array over the index variables it depends on and no
others (the mean inside a LayerNormalization has one value per row); affine reads are views; a sum of products becomes a
matrix product; a guard on one index variable splits that variable's range instead of masking; a large temporary makes
it go over an output axis in pieces.

In floating point (``algebra.logarithmic``) an exponential is kept as (mantissa, exponent) until its value is needed. So
``exp(x)·inv(Σ exp(x))`` is a softmax that does not overflow, wherever the quotient is formed, and so are ``log(Σ
exp(x))``, ``log(1 + exp(x))`` and ``exp(x)·inv(1 + exp(x))``. No other rearrangement is made.

Guards and reads outside an operand contribute an exact 0 (or the stated value) to a sum of products; multiplied by an
infinite factor that 0 gives NaN, as a padded zero does in real runtimes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import prod

import numpy as np

from superopt.ops.operator_semantics import (
    ElementRead,
    ScalarCall,
    ScalarConditional,
    ScalarConstant,
    ScalarReduction,
    SizeExpression,
    TensorComprehension,
)
from superopt.runtime._array_arithmetic import (
    FLOAT64,
    Array,
    ArrayArithmetic,
    Float64Arithmetic,
    IndexVariableArray,
    aligned,
    broadcast,
    folded,
    product_sum,
)
from superopt.runtime._comprehension_program import (
    AffineIndex,
    ComprehensionProgram,
    ComprehensionStep,
    Domain,
    Form,
    lower,
    span,
)
from superopt.runtime._operand_reads import (
    MantissaExponent,
    Request,
    Task,
    Value,
    atom_positions,
    guarded,
    mask,
    positions,
    read,
    restricted,
)

__all__ = [
    "ArrayArithmetic",
    "Array",
    "ComprehensionEvaluation",
    "FLOAT64",
    "Float64Arithmetic",
    "evaluate",
    "reduction",
]


# -- Evaluation of one comprehension -------------------------------------------------------------------------------
#
# The evaluation of one lowered comprehension: a task per subexpression and domain, results shared.


@dataclass(slots=True)
class ComprehensionEvaluation:
    """One comprehension over its operands. ``limit`` bounds the elements of a temporary where that is possible."""

    program: ComprehensionProgram
    operands: Sequence[Array | None]
    algebra: ArrayArithmetic
    reals: Mapping[str, Array]
    limit: int
    memo: dict[tuple[object, ...], Value] = field(default_factory=dict)

    def output(self, domain: Domain) -> Array:
        """The body over a domain of the output's digits, one axis per digit."""
        extents = {v: stop - first for v, (first, stop) in domain.items()}
        return broadcast(self.plain(self.demand((len(self.program.steps) - 1, domain))), list(extents), extents)

    def demand(self, root: Request) -> Value:
        """The value of a step: a loop over suspended tasks, so that depth is not bounded by Python's stack."""
        stack: list[tuple[tuple[object, ...], bool, Task]] = []
        request: Request | None = root
        value: Value | None = None
        while True:
            if request is not None:
                number, domain = request
                step = self.program.steps[number]
                key = (number, *(domain[v] for v in step.variables))
                value = self.memo.get(key)
                request = None
                if value is None:
                    keep = step.uses > 1 or isinstance(step.scalar, ScalarReduction)
                    stack.append((key, keep, self.task(step, domain)))
            if not stack:
                assert value is not None
                return value
            key, keep, task = stack[-1]
            try:
                request = task.send(value)  # type: ignore[arg-type]  # None starts it
            except StopIteration as done:
                stack.pop()
                value = done.value
                if keep and value is not None:
                    self.memo[key] = value

    def forget(self, domain: Domain) -> None:
        """Drop results that belong to a piece of the domain."""
        for key in list(self.memo):
            variables = self.program.steps[key[0]].variables  # type: ignore[call-overload]
            if any(domain.get(v, r) != r for v, r in zip(variables, key[1:], strict=True)):
                del self.memo[key]

    def task(self, step: ComprehensionStep, domain: Domain) -> Task:
        match step.scalar:
            case ScalarConstant(value):
                return _done(IndexVariableArray(self.algebra.constant(value), ()))
            case SizeExpression():
                return _done(self.size(step, domain))
            case ElementRead():
                return self.read(step, domain)
            case ScalarCall(function, _):
                return self.call(function, step, domain)
            case ScalarReduction():
                return reduction(self, step, domain)
            case ScalarConditional():
                return guarded(self, step, domain)
        raise TypeError(f"not a scalar of the meaning language: {step.scalar!r}")

    def size(self, step: ComprehensionStep, domain: Domain) -> IndexVariableArray:
        """A polynomial of sizes, index variables and real attributes as numbers."""
        (form,) = step.index
        assert not isinstance(form, int)
        if isinstance(form, AffineIndex) or not self.program.reals:
            value = positions(form, domain, self.program.rank)
            return IndexVariableArray(self.algebra.integers(value.array), value.axes)
        total: IndexVariableArray | None = None
        for monomial, coefficient in form.terms:
            product = IndexVariableArray(self.algebra.integers(np.asarray(coefficient, dtype=np.int64)), ())
            for atom in monomial:
                if isinstance(atom, str) and atom in self.reals:
                    factor = IndexVariableArray(self.reals[atom], ())
                else:
                    whole = atom_positions(atom, domain, self.program.rank)
                    factor = IndexVariableArray(self.algebra.integers(whole.array), whole.axes)
                product = self.apply("mul", product, factor)
            total = product if total is None else self.apply("add", total, product)
        assert total is not None
        return total

    def read(self, step: ComprehensionStep, domain: Domain) -> Task:
        scalar = step.scalar
        assert isinstance(scalar, ElementRead)
        array = self.operands[scalar.operand]
        assert array is not None, "a meaning read an absent operand"
        index: list[AffineIndex | IndexVariableArray] = []
        for form in step.index:
            if isinstance(form, int):
                value = self.plain((yield form, domain))
                index.append(IndexVariableArray(self.algebra.positions(value.array), value.axes))
            else:
                index.append(form if isinstance(form, AffineIndex) else positions(form, domain, self.program.rank))
        outside = None if scalar.outside is None else scalar.outside.value
        return read(array, index, outside, self.algebra, domain, self.program.rank)

    def call(self, function: str, step: ComprehensionStep, domain: Domain) -> Task:
        if step.rounded_quotient and self.algebra.logarithmic:
            above, below = step.parts[0], self.program.steps[step.parts[1]].parts[0]
            dividend = self.plain((yield above, domain))
            return self.apply("div", dividend, self.plain((yield below, domain)))
        values: list[Value] = []
        for part in step.parts:
            values.append((yield part, domain))
        if self.algebra.logarithmic:
            if function == "exp":
                return MantissaExponent(None, self.plain(values[0]))
            if any(isinstance(v, MantissaExponent) for v in values):
                found = self.scaled(function, values, step.stabilise)
                if found is not None:
                    return found
        plain = list(map(self.plain, values))
        if function in ("max", "min") and not self.program.reals and all(map(self.is_place, step.parts)):
            return self.nearest(function, plain)
        return self.apply(function, *plain)

    def is_place(self, number: int) -> bool:
        """Whether a step is an integer made of sizes and positions alone: these have an order in any algebra."""
        step = self.program.steps[number]
        match step.scalar:
            case SizeExpression():
                return True
            case ScalarConstant(value):
                return isinstance(value, Fraction) and value.denominator == 1
            case ScalarCall("max" | "min", _):
                return all(map(self.is_place, step.parts))
        return False

    def nearest(self, function: str, places: Sequence[IndexVariableArray]) -> IndexVariableArray:
        """The larger or smaller of two integers."""
        whole = [IndexVariableArray(self.algebra.positions(v.array), v.axes) for v in places]
        arrays, axes = aligned(whole, self.program.rank)
        return IndexVariableArray(
            self.algebra.integers((np.maximum if function == "max" else np.minimum)(*arrays)), axes
        )

    def apply(self, function: str, *values: IndexVariableArray) -> IndexVariableArray:
        """A function of the algebra, on arrays whose axes need not be the same."""
        arrays, axes = aligned(values, self.program.rank)
        return IndexVariableArray(self.algebra.function(function, *arrays), axes)

    def plain(self, value: Value) -> IndexVariableArray:
        """The number itself."""
        if isinstance(value, IndexVariableArray):
            return value
        if value.number is None:
            power = self.apply("exp", value.exponent)
            value.number = power if value.mantissa is None else self.apply("mul", value.mantissa, power)
        return value.number

    def scaled(self, function: str, values: Sequence[Value], stabilise: bool) -> Value | None:
        """Products, quotients, logarithms and wanted sums of exponentials; ``None``: as for any number."""
        if function == "inv" and isinstance(values[0], MantissaExponent):
            mantissa = None if values[0].mantissa is None else self.apply("inv", values[0].mantissa)
            return MantissaExponent(mantissa, self.negated(values[0].exponent))
        if function == "log" and isinstance(values[0], MantissaExponent):
            mantissa, exponent = values[0].mantissa, values[0].exponent
            return exponent if mantissa is None else self.apply("add", self.apply("log", mantissa), exponent)
        if function == "mul":
            return self.product(values)
        return self.sum(values) if function == "add" and stabilise else None

    def product(self, values: Sequence[Value]) -> MantissaExponent:
        mantissa: IndexVariableArray | None = None
        exponent: IndexVariableArray | None = None
        for value in values:
            factor = value.mantissa if isinstance(value, MantissaExponent) else value
            if factor is not None:
                mantissa = factor if mantissa is None else self.apply("mul", mantissa, factor)
            if isinstance(value, MantissaExponent):
                exponent = value.exponent if exponent is None else self.apply("add", exponent, value.exponent)
        assert exponent is not None
        return MantissaExponent(mantissa, exponent)

    def sum(self, values: Sequence[Value]) -> MantissaExponent:
        """``a·exp(p) + b·exp(q) = (a·exp(p − m) + b·exp(q − m)) · exp(m)`` with ``m = max(p, q)``, 0 where infinite."""
        zero = IndexVariableArray(self.algebra.constant(0.0), ())
        largest = zero if any(isinstance(v, IndexVariableArray) for v in values) else None
        for value in values:
            if isinstance(value, MantissaExponent):
                largest = value.exponent if largest is None else self.apply("max", largest, value.exponent)
        assert largest is not None
        largest = self.apply("finite", largest)
        total: IndexVariableArray | None = None
        for value in values:
            exponent = value.exponent if isinstance(value, MantissaExponent) else zero
            term = MantissaExponent(
                value.mantissa if isinstance(value, MantissaExponent) else value,
                self.apply("add", exponent, self.negated(largest)),
            )
            number = self.plain(term)
            total = number if total is None else self.apply("add", total, number)
        assert total is not None
        return MantissaExponent(total, largest)

    def negated(self, value: IndexVariableArray) -> IndexVariableArray:
        return self.apply("mul", value, IndexVariableArray(self.algebra.integers(np.asarray(-1, dtype=np.int64)), ()))

    def bound(self, form: Form, domain: Domain) -> int:
        """The largest value of an extent over a domain."""
        if isinstance(form, AffineIndex):
            if any(stop <= first for first, stop in (domain[v] for v, _ in form.terms)):
                return 0
            return span(form, domain)[1]
        values = positions(form, domain, self.program.rank).array
        return int(values.max()) if values.size else 0

    def weight(self, step: ComprehensionStep, domain: Domain) -> int:
        """Elements that evaluating a step over a domain puts into memory; views are free."""
        if step.fused:
            return 0
        count = prod(domain[v][1] - domain[v][0] for v in step.variables)
        if isinstance(step.scalar, ElementRead) and all(isinstance(i, AffineIndex) for i in step.index):
            operand = self.operands[step.scalar.operand]
            return count if operand is not None and count > operand.size else 0
        return count

    def pieces(self, domain: Domain) -> list[Domain]:
        """The domain, cut along output axes until the temporaries are small enough (or an axis is one position)."""
        waiting: list[Domain] = [domain]
        done: list[Domain] = []
        while waiting:
            current = waiting.pop()
            cut = self.cut(current)
            if cut is None:
                done.append(current)
                continue
            variable, count = cut
            first, stop = current[variable]
            width = -(-(stop - first) // count)
            starts = range(first, stop, width)
            waiting.extend({**current, variable: (s, min(s + width, stop))} for s in reversed(starts))
        return done

    def cut(self, domain: Domain) -> tuple[str, int] | None:
        """An output axis to cut, and in how many parts."""
        whole = dict(domain)
        for step in reversed(self.program.steps):
            if isinstance(step.scalar, ScalarReduction) and step.extent is not None:
                whole[step.scalar.variable] = (0, max(self.bound(step.extent, whole), 0))
        worst: tuple[int, str] | None = None
        for step in self.program.steps:
            long = next((v for v in step.variables if v in domain and domain[v][1] - domain[v][0] > 1), None)
            if long is not None and (size := self.weight(step, whole)) > max(self.limit, worst[0] if worst else 0):
                worst = size, long
        return None if worst is None else (worst[1], -(-worst[0] // self.limit))


def _done(value: Value) -> Task:
    return value
    yield 0, {}


# -- Reductions ----------------------------------------------------------------------------------------------------
#
# Reductions: sums of products as matrix products, the others by folding.


_IDENTITY: Mapping[str, Fraction | float] = {
    "sum": Fraction(0),
    "prod": Fraction(1),
    "max": -float("inf"),
    "min": float("inf"),
}
_JOIN = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}


def reduction(run: ComprehensionEvaluation, step: ComprehensionStep, domain: Domain) -> Task:
    """``ScalarReduction`` and the reductions of the same kind directly inside it."""
    assert isinstance(step.scalar, ScalarReduction)
    kind = step.scalar.kind
    inner = dict(domain)
    variables: list[str] = []
    short: list[tuple[str, Form]] = []  # variables whose extent depends on others
    body = step
    while isinstance(body.scalar, ScalarReduction) and body.scalar.kind == kind:
        assert body.extent is not None
        inner[body.scalar.variable] = (0, max(run.bound(body.extent, inner), 0))
        variables.append(body.scalar.variable)
        if not isinstance(body.extent, AffineIndex) or body.extent.terms:
            short.append((body.scalar.variable, body.extent))
        number = body.parts[0]
        body = run.program.steps[number]
    factors: list[int] = [number]
    guards: list[tuple[str, Form]] = []
    if kind == "sum":
        factors, guards = _factors_and_conditions(run, number)
        inner, guards = restricted(guards, inner, variables)
    if any(inner[v][0] >= inner[v][1] for v in variables):
        return IndexVariableArray(run.algebra.constant(_IDENTITY[kind]), ())
    total: Value | None = None
    for scope in _scopes(run, factors, variables, inner):
        values: list[Value] = []
        for factor in factors:
            values.append((yield factor, scope))
        holds = [mask([g], scope, run.program.rank) for g in guards] + [_within(run, v, e, scope) for v, e in short]
        if kind == "sum":
            part = _summed(run, values, variables, holds, scope)
        else:
            part = _folded(run, kind, run.plain(values[0]), variables, holds, scope)
        total = part if total is None else _joined(run, _JOIN[kind], total, part)
    assert total is not None
    return total


def _factors_and_conditions(run: ComprehensionEvaluation, number: int) -> tuple[list[int], list[tuple[str, Form]]]:
    """The factors of a product and the conditions of guards with a 0 beyond."""
    steps = run.program.steps
    factors: list[int] = []
    guards: list[tuple[str, Form]] = []
    waiting = [number]
    while waiting:
        current = waiting.pop()
        step = steps[current]
        if step.fused and isinstance(step.scalar, ScalarCall):
            waiting.extend(reversed(step.parts))
        elif step.fused and isinstance(step.scalar, ScalarConditional):
            guards.extend(step.conditions)
            waiting.append(step.parts[0])
        else:
            factors.append(current)
    return factors, guards


def _scopes(
    run: ComprehensionEvaluation, factors: Sequence[int], variables: Sequence[str], inner: Domain
) -> list[Domain]:
    """The domain in pieces along a reduced variable, when a factor would be too large."""
    steps = [run.program.steps[f] for f in factors]
    size, step = max(((run.weight(s, inner), s) for s in steps), key=lambda found: found[0])
    long = next((v for v in variables if v in step.variables and inner[v][1] - inner[v][0] > 1), None)
    if size <= run.limit or long is None:
        return [inner]
    first, stop = inner[long]
    width = max(1, (stop - first) * run.limit // size)
    return [{**inner, long: (s, min(s + width, stop))} for s in range(first, stop, width)]


def _within(run: ComprehensionEvaluation, variable: str, extent: Form, scope: Domain) -> IndexVariableArray:
    rank = run.program.rank
    ends, own = positions(extent, scope, rank), positions(AffineIndex(0, ((variable, 1),)), scope, rank)
    arrays, axes = aligned([ends, own], rank)
    return IndexVariableArray(np.greater(*arrays), axes)


def _summed(
    run: ComprehensionEvaluation,
    values: Sequence[Value],
    variables: Sequence[str],
    holds: Sequence[IndexVariableArray],
    scope: Domain,
) -> Value:
    """A sum of products; exponentials are summed relative to the largest."""
    algebra, rank = run.algebra, run.program.rank
    factors = [v for v in values if isinstance(v, IndexVariableArray)]
    powers = [v for v in values if isinstance(v, MantissaExponent)]
    peak: IndexVariableArray | None = None
    rest = list(holds)
    if powers:
        product = run.product(powers)
        if product.mantissa is not None:
            factors.append(product.mantissa)
        exponent = product.exponent
        own = [v for v in variables if v in exponent.axes]
        for hold in [h for h in rest if set(h.axes) <= set(exponent.axes)]:
            exponent = _masked(run, hold, exponent, -float("inf"))
            rest = [h for h in rest if h is not hold]
        peak = run.apply("finite", folded(algebra, "max", exponent, own))
        if own or len(rest) < len(holds):
            factors.append(run.apply("exp", run.apply("add", exponent, run.negated(peak))))
    for hold in rest:
        place = next((i for i, f in enumerate(factors) if set(hold.axes) <= set(f.axes)), None)
        if place is None:
            factors.append(IndexVariableArray(algebra.integers(hold.array.astype(np.int64)), hold.axes))
        else:
            factors[place] = _masked(run, hold, factors[place], Fraction(0))
    extents = {v: stop - first for v, (first, stop) in scope.items()}
    total = product_sum(algebra, factors, variables, extents, rank)
    return total if peak is None else MantissaExponent(total, peak)


def _masked(
    run: ComprehensionEvaluation, hold: IndexVariableArray, value: IndexVariableArray, otherwise: Fraction | float
) -> IndexVariableArray:
    (holds, elements), axes = aligned([hold, value], run.program.rank)
    return IndexVariableArray(np.where(holds, elements, run.algebra.constant(otherwise)), axes)


def _folded(
    run: ComprehensionEvaluation,
    kind: str,
    value: IndexVariableArray,
    variables: Sequence[str],
    holds: Sequence[IndexVariableArray],
    scope: Domain,
) -> IndexVariableArray:
    for hold in holds:
        value = _masked(run, hold, value, _IDENTITY[kind])
    if kind == "prod" and any(v not in value.axes for v in variables):
        axes = run.program.sort({*value.axes, *variables})
        value = IndexVariableArray(
            broadcast(value, axes, {v: stop - first for v, (first, stop) in scope.items()}), axes
        )
    return folded(run.algebra, kind, value, [v for v in variables if v in value.axes])


def _joined(run: ComprehensionEvaluation, function: str, a: Value, b: Value) -> Value:
    if function == "add" and isinstance(a, MantissaExponent) and isinstance(b, MantissaExponent):
        return run.sum([a, b])
    return run.apply(function, run.plain(a), run.plain(b))


# -- Evaluation of a meaning ---------------------------------------------------------------------------------------


LIMIT = 6 * 2**20  # elements of one temporary (48 MB of float64; a handful are alive at once)


def evaluate(
    comprehension: TensorComprehension,
    operands: Sequence[Array | None],
    algebra: ArrayArithmetic,
    sizes: Mapping[str, int | Array],
    *,
    limit: int = LIMIT,
) -> Array:
    """The output array that a meaning describes.

    Args:
        comprehension: the meaning of one output.
        operands: an array of elements of the algebra per operand of the meaning; ``None`` for an absent one.
        algebra: the arithmetic.
        sizes: what symbolic sizes and attribute atoms are: integers, or 0-d arrays of elements of the algebra for
            real attributes.
        limit: most elements of a temporary array; larger ones are avoided by evaluating the output in pieces.

    Returns:
        The elements in the output's shape, digits of an axis merged; do not write to it, it may be a view.

    Raises:
        KeyError: a size is not bound.
    """
    whole = {name: value for name, value in sizes.items() if isinstance(value, int)}
    reals = {name: value for name, value in sizes.items() if not isinstance(value, int)}
    program = lower(comprehension, whole, frozenset(reals))
    shape = tuple(prod(extent for _, extent in axis) for axis in program.axes)
    digits = [digit for axis in program.axes for digit in axis]
    domain = {variable: (0, extent) for variable, extent in digits}
    run = ComprehensionEvaluation(program, operands, algebra, reals, limit)
    with np.errstate(all="ignore"):
        pieces = run.pieces(domain)
        if len(pieces) == 1:
            return run.output(domain).reshape(shape)
        result: Array | None = None
        for piece in pieces:
            part = run.output(piece)
            if result is None:
                result = np.empty([extent for _, extent in digits], part.dtype)
            elif result.dtype != part.dtype:
                result = result.astype(np.result_type(result, part))
            result[tuple(slice(*piece[v]) for v, _ in digits)] = part
            run.forget(domain)
        assert result is not None
        return result.reshape(shape)

"""The value of a term's output element, in normal form: meanings composed by substituting indices.

A read of an intermediate result becomes the producer's body at that position; a read outside the bounds becomes a
guard; an axis of several digits is read through the digits of the index, ``⌊i/d⌋`` and ``i - d·⌊i/d⌋``, which are
plain polynomials wherever the index is written in digits already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce

from superopt.ir.size_polynomial import Dim, SizePolynomial, substitute, sym, symbols
from superopt.ir.terms import OperatorTerm, OutputTerm, Term, VariableTerm
from superopt.ops.operator_semantics import (
    Axis,
    ElementRead,
    IndexCondition,
    OperatorSemantics,
    ScalarCall,
    ScalarConditional,
    ScalarConstant,
    ScalarExpression,
    ScalarReduction,
    SizeExpression,
    TensorComprehension,
)  # fmt: skip
from superopt.verifier.prover.arith import ge, negated, normal_condition
from superopt.verifier.prover.extremes import reduced
from superopt.verifier.prover.factor_facts import INFINITY, CannotProve, dimension_of, has_infinity, sealed
from superopt.verifier.prover.function_normalisation import NormalFormAlgebra
from superopt.verifier.prover.monomial_simplification import by_digits, guarded
from superopt.verifier.prover.normal_form_arithmetic import (
    ONE,
    FunctionApplication,
    TensorElement,
    Value,
    add,
    atom_value,
    constant,
    fresh,
    mul,
    scale,
    size_value,
)

__all__ = ["MeaningComposer", "UnprovedIndexBound"]


@dataclass(frozen=True)
class UnprovedIndexBound:
    """A read that its meaning promises to be inside, and that was not shown to be."""

    condition: IndexCondition
    given: tuple[IndexCondition, ...]


@dataclass
class MeaningComposer:
    """Values of terms.

    Attributes:
        algebra: functions of values, and the facts.
        meanings: the meaning of each application.
        shapes: the shape of each tensor variable.
        booleans: tensor variables whose elements are 0 or 1.
        unroll: reductions over a constant number of places, up to this many, are written out place by place.
        reads: positions that were promised to be inside, with what was known there.
        extents: constant extents of reductions that were met.
        promises: positions that depend on data, each promised to be inside an axis of a size.
    """

    algebra: NormalFormAlgebra
    meanings: Mapping[OperatorTerm, OperatorSemantics]
    shapes: Mapping[str, tuple[Dim, ...]]
    booleans: frozenset[str] = frozenset()
    unroll: int = 0
    reads: list[UnprovedIndexBound] = field(default_factory=list)
    extents: set[int] = field(default_factory=set)
    promises: list[tuple[Value, Dim]] = field(default_factory=list)
    _memo: dict[tuple[Term, tuple[Dim, ...], tuple[IndexCondition, ...]], Value] = field(default_factory=dict)
    _scope: tuple[IndexCondition, ...] = ()  # ranges and conditions in force where the value is read

    def element(self, term: Term, index: tuple[Dim, ...]) -> Value:
        """The element of a term's output at an index, one dimension per axis."""
        if isinstance(term, VariableTerm):
            name = f"?{term.name}" if term.name in self.booleans else term.name
            indices = tuple(self._plain(i, s) for i, s in zip(index, self.shapes[term.name], strict=True))
            return atom_value(TensorElement(name, indices))
        key = (term, index, self._scope)
        if key not in self._memo:
            app, output = (term.term, term.index) if isinstance(term, OutputTerm) else (term, 0)
            self._memo[key] = self._output(app, self.meanings[app].outputs[output], index)
        return self._memo[key]

    def _plain(self, index: Dim, size: Dim) -> Dim:
        return 0 if isinstance(size, int) and size == 1 else index

    def _output(self, app: OperatorTerm, output: TensorComprehension, index: tuple[Dim, ...]) -> Value:
        names: dict[str, Dim] = {}
        for axis, position in zip(output.axes, index, strict=True):
            names |= self.digits(axis, position)
        return self.algebra.tidy(self.scalar(output.body, names, app))

    def digits(self, axis: Axis, position: Dim) -> dict[str, Dim]:
        """The digits of a position inside an axis, most significant first."""
        positions: dict[str, Dim] = {}
        rest = position
        for number, (name, extent) in enumerate(reversed(axis)):
            if number == len(axis) - 1:
                positions[name] = rest
            else:
                high = self._divided(rest, extent)
                positions[name] = rest - high * extent
                rest = high
        return positions

    def _divided(self, size: Dim, divisor: Dim) -> Dim:
        """``⌊size/divisor⌋``; the part below the divisor is dropped where it is known to be in range."""
        quotient = size // divisor
        if not isinstance(quotient, SizePolynomial):
            return quotient
        whole: Dim = 0
        for monomial, c in size.terms if isinstance(size, SizePolynomial) else ():
            part = SizePolynomial.make({monomial: c})
            exact = part // divisor
            if exact * divisor - part == 0 and not any(not isinstance(a, str) for a in _atoms(exact) - _atoms(part)):
                whole = whole + exact
        rest = size - whole * divisor
        facts = self.algebra.facts
        if facts.implied(ge(rest), self._scope, 1) and facts.implied(ge(divisor - 1 - rest), self._scope, 1):
            return whole
        return quotient

    @contextmanager
    def _within(self, conditions: Iterable[IndexCondition]):  # type: ignore[no-untyped-def]
        outer = self._scope
        self._scope = tuple(dict.fromkeys((*outer, *(c for c in conditions if c.known is None))))
        try:
            yield
        finally:
            self._scope = outer

    def scalar(self, node: ScalarExpression, names: Mapping[str, Dim], app: OperatorTerm) -> Value:
        """The value of a scalar of an application's meaning, under the names of its indices.

        Raises:
            CannotProve: a construct that the prover does not treat.
        """
        match node:
            case ScalarConstant(value):
                if isinstance(value, float):
                    if value != value:
                        raise CannotProve("a constant that is not a number")
                    return scale(INFINITY, 1 if value > 0 else -1)
                return constant(Fraction(value))
            case SizeExpression(size):
                return size_value(substitute(size, names))
            case ScalarCall(function, args):
                values = [self.scalar(a, names, app) for a in args]
                known = self._first_or_second(values) if function in ("max", "min") else None
                return self.algebra.apply(function, values) if known is None else values[known ^ (function == "min")]
            case ScalarConditional(conditions, then, otherwise):
                return self._where(conditions, then, otherwise, names, app)
            case ScalarReduction(kind, variable, extent, body):
                return self._reduce(kind, variable, substitute(extent, names), body, names, app)
            case ElementRead():
                return self._read(node, names, app)
        raise CannotProve(f"a meaning with {type(node).__name__}")

    def _first_or_second(self, values: Sequence[Value]) -> int | None:
        """Which of two integers is the larger one wherever the value is read; ``None`` where that is not known."""
        one, two = map(dimension_of, values)
        if one is not None and two is not None:
            for number, apart in enumerate((one - two, two - one)):
                if self.algebra.facts.implied(normal_condition(ge(apart)), self._scope, 1):
                    return number
        return None

    def _where(
        self,
        conditions: Sequence[IndexCondition],
        then: ScalarExpression,
        otherwise: ScalarExpression,
        names: Mapping[str, Dim],
        app: OperatorTerm,
    ) -> Value:
        facts = self.algebra.facts
        if any(symbols(c.size) & self.algebra.reals.keys() for c in conditions):
            raise CannotProve("a condition on a real attribute")
        at = [normal_condition(IndexCondition(c.kind, substitute(c.size, names))) for c in conditions]
        at = [by_digits(c, facts, self._scope) for c in at if not facts.implied(c, self._scope, 0)]
        parts: list[Value] = []
        if not any(c.known is False for c in at) and not facts.contradictory((*self._scope, *at), 0):
            with self._within(at):
                parts.append(guarded(self.scalar(then, names, app), at))
        if not (isinstance(otherwise, ScalarConstant) and otherwise.value == 0):
            for i, c in enumerate(at):
                case = [*at[:i], negated(c)]
                if any(k.known is False for k in case) or facts.contradictory((*self._scope, *case), 0):
                    continue
                with self._within(case):
                    parts.append(guarded(self.scalar(otherwise, names, app), case))
        return add(*parts)

    def _reduce(
        self, kind: str, variable: str, extent: Dim, body: ScalarExpression, names: Mapping[str, Dim], app: OperatorTerm
    ) -> Value:
        if isinstance(extent, int) and kind in ("sum", "max"):
            self.extents.add(extent)
        if isinstance(extent, int) and 1 < extent <= self.unroll and kind in ("sum", "max"):
            parts = [self.scalar(body, {**names, variable: position}, app) for position in range(extent)]
            if not any(map(has_infinity, parts)):
                return self.algebra.tidy(add(*parts)) if kind == "sum" else reduce(self._larger, parts)
        name = fresh()
        span = [ge(sym(name)), normal_condition(ge(extent - 1 - sym(name)))]
        if extent == 0:
            raise CannotProve("a reduction over nothing")
        with self._within(span):
            value = self.scalar(body, {**names, variable: sym(name)}, app)
        if kind == "sum":
            if has_infinity(value):
                raise CannotProve("a sum of infinite constants")
            return self.algebra.tidy(guarded(value, span, (name,)))
        return reduced(self.algebra, kind, name, frozenset(span), value)

    def _larger(self, a: Value, b: Value) -> Value:
        return self.algebra.apply("max", [a, b])

    def _read(self, node: ElementRead, names: Mapping[str, Dim], app: OperatorTerm) -> Value:
        source = app.args[node.operand]
        if source is None:
            raise CannotProve("a read of an input that is absent")
        shape = self._shape(source)
        index: list[Dim] = []
        bound: list[str] = []
        spans: list[IndexCondition] = []
        selectors: list[Value] = []
        for i, size in zip(node.index, shape, strict=True):
            if isinstance(i, ScalarExpression):
                exact = dimension_of(self.scalar(i, names, app))
                if exact is None:
                    name = fresh()
                    bound.append(name)
                    spans += [ge(sym(name)), normal_condition(ge(size - 1 - sym(name)))]
                    place = self.scalar(i, names, app)
                    selectors.append(
                        self.algebra.by_cases([place], lambda v, n=name, s=size: _selector(n, v[0], s))  # type: ignore[misc]
                    )
                    self.promises.append((place, size))
                    exact = sym(name)
                index.append(exact)
            else:
                index.append(substitute(i, names))
        if bound and node.outside is not None:
            raise CannotProve("a padded read at a position that depends on data")
        with self._within(spans):
            value = self._inside(node, source, tuple(index), shape)
        for selector in selectors:
            value = mul(value, selector)
        return self.algebra.tidy(guarded(value, spans, tuple(bound))) if bound else value

    def _inside(self, node: ElementRead, source: Term, index: tuple[Dim, ...], shape: Sequence[Dim]) -> Value:
        inside: list[IndexCondition] = []
        for i, size in zip(index, shape, strict=True):
            for c in (normal_condition(ge(i)), normal_condition(ge(size - 1 - i))):
                if not self.algebra.facts.implied(c, self._scope, 0):
                    inside.append(by_digits(c, self.algebra.facts, self._scope))
        if node.outside is None:
            self.reads += [UnprovedIndexBound(c, self._scope) for c in inside]
            return self.element(source, index)
        if any(c.known is False for c in inside):
            return self._outside(node.outside)
        with self._within(inside):
            parts = [guarded(self.element(source, index), inside)]
        if node.outside.value != 0:
            parts += [guarded(self._outside(node.outside), [*inside[:i], negated(c)]) for i, c in enumerate(inside)]
        return add(*parts)

    def _outside(self, number: ScalarConstant) -> Value:
        if isinstance(number.value, float):
            return scale(INFINITY, 1 if number.value > 0 else -1)
        return constant(Fraction(number.value))

    def _shape(self, term: Term) -> tuple[Dim, ...]:
        if isinstance(term, VariableTerm):
            return self.shapes[term.name]
        app, output = (term.term, term.index) if isinstance(term, OutputTerm) else (term, 0)
        return self.meanings[app].outputs[output].shape


def _selector(name: str, value: Value, size: Dim) -> Value:
    """1 where the variable is the position, else 0."""
    constant = dimension_of(value)
    if constant is not None:
        return guarded(ONE, [IndexCondition("eq", sym(name) - constant)])
    return atom_value(FunctionApplication("at", (size_value(sym(name)), sealed(value), size_value(size))))


def _atoms(size: Dim) -> set[object]:
    return {a for m, _ in size.terms for a in m} if isinstance(size, SizePolynomial) else set()

"""Functions of values in normal form: inverses, exponentials, roots, maxima, comparisons and logic, case splits.

Each rewriting is an identity of real functions where both sides are defined. Where an inverse or a root is taken, the
condition is recorded in :class:`NormalFormAlgebra.domain`, so that a rule whose sides are defined at different places
is found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from superopt.ir.size_polynomial import Dim, sym
from superopt.ops.operator_semantics import IndexCondition
from superopt.verifier.prover.arith import ge, negated, normal_condition
from superopt.verifier.prover.factor_facts import (
    INFINITY,
    CannotProve,
    at_position,
    bound_names,
    closed_guards,
    constant_of,
    content_of,
    dimension_of,
    exact_root,
    has_infinity,
    idempotent,
    is_binary,
    is_bit,
    is_infinity,
    is_selector,
    leading,
    product_of,
    same_position,
    sealed,
    single_factor,
    with_bit,
)  # fmt: skip
from superopt.verifier.prover.monomial_simplification import guarded, simplified
from superopt.verifier.prover.normal_form_arithmetic import (
    ONE,
    ZERO,
    Factor,
    FunctionApplication,
    Monomial,
    SumPowerBase,
    Value,
    add,
    atom_value,
    constant,
    free,
    fresh,
    mul,
    scale,
    size_value,
    text,
)  # fmt: skip
from superopt.verifier.prover.signs import OrderAnalysis, absolute

__all__ = ["INFINITY", "ODD", "NormalFormAlgebra", "CannotProve", "has_infinity", "sealed"]

ODD = frozenset({"erf", "sin", "tan", "asin", "atan", "asinh", "atanh", "round"})
_EVEN = frozenset({"cos"})
_CASES = 200


def is_integer(m: Monomial) -> bool:
    """Whether a monomial is surely an integer."""
    return m.coefficient.denominator == 1 and all(
        p.denominator == 1 and p > 0 and (is_bit(f) or (isinstance(f, FunctionApplication) and _is_integer_valued(f)))
        for f, p in m.factors
    )


def _is_integer_valued(f: FunctionApplication) -> bool:
    return f.function in ("floor", "round", "positive", "zero") or (
        f.function == "ramp" and all(map(is_integer, f.args[0]))
    )


def _divides(value: Value, m: Monomial) -> bool:
    """Whether a monomial is divided by a value: by the factor that it is, or by it as a sum."""
    factor = single_factor(value[0]) if len(value) == 1 else SumPowerBase(value)
    return factor is not None and any(f == factor and p <= -1 for f, p in m.factors)


@dataclass
class NormalFormAlgebra(OrderAnalysis):
    """Functions under facts. ``domain`` collects ``(condition, value text)`` for partial functions."""

    domain: dict[tuple[str, str], Value] = field(default_factory=dict)
    cases: int = 0

    def apply(self, function: str, args: Sequence[Value]) -> Value:
        """A function of ``superopt.ops.operator_semantics.FUNCTIONS``, of values.

        Raises:
            CannotProve: arithmetic with infinity, or too many cases.
        """
        if function in ("max", "min") and any(has_infinity(a) for a in args):
            return self._clip(function, args)
        if function != "exp" and any(has_infinity(a) for a in args):
            raise CannotProve("arithmetic with an infinite constant")
        match function:
            case "add":
                return add(*args)
            case "mul":
                return mul(*args)
            case "and":
                return mul(self.truth(args[0]), self.truth(args[1]))
            case "or":
                a, b = self.truth(args[0]), self.truth(args[1])
                return add(a, b, scale(mul(a, b), -1))
            case "xor":
                a, b = self.truth(args[0]), self.truth(args[1])
                return add(a, b, scale(mul(a, b), -2))
            case "not":
                return add(ONE, scale(self.truth(args[0]), -1))
            case "select":
                c = self.truth(args[0])
                return self.tidy(add(mul(c, args[1]), args[2], scale(mul(c, args[2]), -1)))
        return self.by_cases(args, lambda plain: self._unguarded(function, plain))

    def _clip(self, function: str, args: Sequence[Value]) -> Value:
        """``max(x, -∞) = x``, ``min(x, ∞) = x``."""
        finite = [a for a in args if not has_infinity(a)]
        for a in args:
            if has_infinity(a) and (len(a) != 1 or (a[0].coefficient < 0) != (function == "max")):
                raise CannotProve("a maximum or minimum that is infinite")
        if len(finite) != 1:
            raise CannotProve("arithmetic with an infinite constant")
        return finite[0]

    def tidy(self, value: Value) -> Value:
        """Simplified, and idempotent factors reduced."""
        reduced = [r for m in value for o in same_position(idempotent(m)) for r in self._reduced(o)]
        return simplified(add(tuple(reduced)), self.facts)

    def _reduced(self, m: Monomial) -> Value:
        """Squares of roots and positive powers of sums multiplied out."""
        extra: list[Value] = []
        kept: list[tuple[Factor, Fraction]] = []
        for f, p in m.factors:
            if isinstance(f, FunctionApplication) and f.function == "sqrt" and p == 1 and _divides(f.args[0], m):
                extra.append(f.args[0])  # √v / v = 1 / √v
                p -= 2
            elif isinstance(f, FunctionApplication) and f.function == "sqrt" and abs(p) >= 2:
                half = int(abs(p) // 2)
                extra.append(self.power(f.args[0], half if p > 0 else -half))
                p -= 2 * half if p > 0 else -2 * half
            elif isinstance(f, SumPowerBase) and p >= 1:
                extra += [sealed(f.value)] * int(p)
                continue
            if p:
                kept.append((f, p))
        if not extra:
            return (m,)
        new_value: Value = (m.of(factors=tuple(kept)),)
        for value in extra:
            new_value = mul(new_value, value)
        return self.tidy(new_value)

    # Case splits

    def by_cases(self, args: Sequence[Value], apply: Callable[[Sequence[Value]], Value]) -> Value:
        """``f`` of guarded sums: ``Σ over cases [case] · f(what the arguments are there)``."""
        return add(*(guarded(self.tidy(self._by_position(plain, apply)), case) for case, plain in self.split(args)))

    def _by_position(self, args: Sequence[Value], apply: Callable[[Sequence[Value]], Value]) -> Value:
        """``f(… Σ_d at(d, i)·g(d) …) = Σ_e at(e, i)·f(… g(e) …)`` for a position ``i`` that is inside its axis."""
        factor = next(
            (f for a in args for m in a for f, _ in m.factors if is_selector(f) and f.free & set(m.bound)), None
        )
        if factor is None:
            return self._by_bits(args, apply)
        assert isinstance(factor, FunctionApplication)
        _, position, size = factor.args
        if free(position) & bound_names(args):
            return self._by_bits(args, apply)
        self.cases += 1
        if self.cases > _CASES:
            raise CannotProve("too many cases")
        name = fresh()
        shown = text(position), text(size)
        extent = dimension_of(size)
        assert extent is not None
        span = [ge(sym(name)), normal_condition(ge(extent - 1 - sym(name)))]
        plain = [self.assume(self.tidy(add(*(at_position(m, shown, sym(name)) for m in a))), span) for a in args]
        inner = self.by_cases(plain, apply)
        return guarded(
            mul(atom_value(FunctionApplication("at", (size_value(sym(name)), position, size))), inner), span, (name,)
        )

    def _by_bits(self, args: Sequence[Value], apply: Callable[[Sequence[Value]], Value]) -> Value:
        """``f(… b …) = b·f(… 1 …) + (1 - b)·f(… 0 …)`` for a factor ``b`` that is 0 or 1."""
        bit = next((f for a in args for m in a for f, _ in m.factors if is_bit(f) and not f.free & set(m.bound)), None)
        if bit is None or all(is_binary(a) for a in args):
            return apply(args)
        self.cases += 1
        if self.cases > _CASES:
            raise CannotProve("too many cases")
        here = atom_value(bit)
        one = self._by_bits([with_bit(a, bit, 1) for a in args], apply)
        zero = self._by_bits([with_bit(a, bit, 0) for a in args], apply)
        return add(mul(here, one), zero, scale(mul(here, zero), -1))

    def split(self, args: Sequence[Value]) -> list[tuple[tuple[IndexCondition, ...], Sequence[Value]]]:
        """Disjoint, exhaustive cases in which no argument has a guard on names that are free in it."""
        done: list[tuple[tuple[IndexCondition, ...], Sequence[Value]]] = []
        pending: list[tuple[tuple[IndexCondition, ...], Sequence[Value]]] = [((), [tuple(a) for a in args])]
        while pending:
            case, values = pending.pop()
            guard = next((g for v in values for m in v for g in closed_guards(m)), None)
            if guard is None:
                done.append((case, values))
                continue
            self.cases += 1
            if self.cases > _CASES:
                raise CannotProve("too many cases")
            for condition in (negated(guard), guard):
                extended = (*case, condition)
                if not self.facts.contradictory(extended, 1):
                    pending.append((extended, [self.assume(v, extended) for v in values]))
        return done

    def assume(self, value: Value, case: Sequence[IndexCondition]) -> Value:
        """The value where the conditions hold: closed guards decided as far as they can be."""
        kept_monomials: list[Monomial] = []
        for m in value:
            closed = set(closed_guards(m))
            if any(g in case or negated(g) in case for g in closed):
                if any(negated(g) in case for g in closed):
                    continue
                m = m.of(guards=m.guards - {g for g in closed if g in case})
                closed = set(closed_guards(m))
            if closed and self.facts.contradictory((*case, *closed), 1):
                continue
            implied = {g for g in closed if self.facts.implied(g, case, 1)}
            kept_monomials.append(m.of(guards=m.guards - implied) if implied else m)
        return add(tuple(kept_monomials))

    # Functions of unguarded values

    def _unguarded(self, function: str, args: Sequence[Value]) -> Value:
        args = [self.tidy(a) for a in args]
        first = args[0]
        match function:
            case "inv":
                return self.power(first, -1)
            case "exp":
                return self.exponential(first)
            case "sqrt":
                return self.root(first)
            case "max":
                return add(args[1], self.ramp(add(first, scale(args[1], -1))))
            case "min":
                return add(first, scale(self.ramp(add(first, scale(args[1], -1))), -1))
            case "abs":
                return add(scale(self.ramp(first), 2), scale(first, -1))
            case "less":
                return self.positive(add(args[1], scale(first, -1)))
            case "equal":
                return self.zero(add(first, scale(args[1], -1)))
            case "sign":
                return add(self.positive(first), scale(self.positive(scale(first, -1)), -1))
            case "tanh":  # 1 - 2 / (1 + exp(2x))
                inner = add(ONE, self.exponential(scale(first, 2)))
                return add(ONE, scale(self.power(inner, -1), -2))
            case "sinh" | "cosh":  # (exp(x) ∓ exp(-x)) / 2
                other = self.exponential(scale(first, -1))
                return scale(
                    add(self.exponential(first), scale(other, -1 if function == "sinh" else 1)), Fraction(1, 2)
                )
            case "floor":
                return self.floor(first)
            case "round" if all(map(is_integer, first)):
                return first
            case "ceil":
                return scale(self._unguarded("floor", [scale(first, -1)]), -1)
            case "floormod" | "truncmod":
                return self.remainder(function, first, self.tidy(args[1]))
            case "log":
                return self.logarithm(first)
            case "pow":
                return self.pow(first, args[1])
        return self.opaque(function, args)

    def remainder(self, function: str, value: Value, divisor: Value) -> Value:
        """``a mod b`` without whole multiples of ``b`` in ``a``; ``a`` itself where ``0 <= a < b``; once, not twice.

        A remainder with the sign of the dividend (``truncmod``) is the same as one with the divisor's where both are
        not negative; multiples are dropped only there.
        """
        factor = single_factor(value[0]) if len(value) == 1 and value[0].coefficient == 1 else None
        if (
            isinstance(factor, FunctionApplication)
            and factor.function == function
            and factor.args[1] == sealed(divisor)
        ):
            return value
        rest = value
        if len(divisor) == 1 and not (divisor[0].bound or divisor[0].guards):
            unit = divisor[0].of(coefficient=1)
            rest = tuple(
                m for m in value
                if m.of(coefficient=1) != unit or Fraction(m.coefficient, divisor[0].coefficient).denominator != 1
            )  # fmt: skip
        inside = self.positive(divisor) == ONE and not self.positive(scale(rest, -1))
        if function == "truncmod" and not (inside and not self.positive(scale(value, -1))):
            rest = value
        elif inside and self.positive(add(divisor, scale(rest, -1))) == ONE:
            return rest
        return self.opaque(function, [rest, divisor])

    def floor(self, value: Value) -> Value:
        """``⌊k + v⌋ = k + ⌊v⌋`` for a whole ``k``; ``⌊max(v, 0)⌋ = max(⌊v⌋, 0)``, and of ``min`` alike."""
        whole = tuple(m for m in value if is_integer(m))
        rest = tuple(m for m in value if not is_integer(m))
        factor = single_factor(rest[0]) if len(rest) == 1 else None
        if not rest:
            return whole
        if isinstance(factor, FunctionApplication) and factor.function == "ramp":
            return add(whole, self.ramp(self.floor(factor.args[0])))
        opposite = single_factor(rest[0].of(coefficient=-rest[0].coefficient)) if len(rest) == 1 else None
        if isinstance(opposite, FunctionApplication) and opposite.function == "ramp":
            return add(whole, scale(self.ramp(scale(self.floor(scale(opposite.args[0], -1)), -1)), -1))
        return add(whole, self.opaque("floor", [rest]))

    def opaque(self, function: str, args: Sequence[Value]) -> Value:
        """The function as an atom; odd and even ones with an oriented argument."""
        if len(args) == 1 and function in ODD | _EVEN and args[0]:
            lead = leading(args[0])
            if lead < 0:
                value = atom_value(FunctionApplication(function, (sealed(scale(args[0], -1)),)))
                return scale(value, -1) if function in ODD else value
        if len(args) == 1 and function in ODD and not args[0]:
            return ZERO
        return atom_value(FunctionApplication(function, tuple(sealed(a) for a in args)))

    def pow(self, base: Value, exponent: Value) -> Value:
        """``base^exponent``; integer and half exponents are products, inverses and roots."""
        number = constant_of(exponent)
        if number is not None and number.denominator == 1 and -4 <= number <= 8:
            return self.power(base, int(number))
        if number == Fraction(1, 2):
            return self.root(base)
        if number == Fraction(-1, 2):
            return self.power(self.root(base), -1)
        return self.opaque("pow", [base, exponent])

    def power(self, base: Value, exponent: int) -> Value:
        """An integer power of an unguarded value."""
        if exponent == 0:
            return ONE
        if exponent > 0:
            product = base
            for _ in range(exponent - 1):
                product = mul(product, base)
            return self.tidy(product)
        if not base:
            raise CannotProve("division by zero")
        content, rest = content_of(base)
        monomial = Monomial(
            content.coefficient**exponent, (), frozenset(), tuple((f, p * exponent) for f, p in content.factors)
        )
        factors = [f for f, p in content.factors]
        if rest != ONE:
            atom = SumPowerBase(sealed(rest))
            factors.append(atom)
            monomial = monomial.of(factors=(*monomial.factors, (atom, Fraction(exponent))))
        for factor in factors:
            self._demand_nonzero(factor)
        return product_of(monomial)

    def _demand_nonzero(self, factor: Factor) -> None:
        value = factor.value if isinstance(factor, SumPowerBase) else atom_value(factor)
        if isinstance(factor, FunctionApplication) and factor.function == "sqrt":
            value = factor.args[0]  # a root is 0 where its radicand is
        if (inner := absolute(value)) is not None:
            value = inner  # so is an absolute value
        if self.sign(value) != 2:
            self._record("nonzero", value)

    def _record(self, condition: str, value: Value) -> None:
        """A condition on the domain, for all indices alike: names of index variables are hidden."""
        hidden: dict[str, Dim] = {n: sym("_") for n in free(value) if "~" in n or "." in n}
        self.domain.setdefault((condition, text(value, hidden)), value)

    def exponential(self, value: Value) -> Value:
        """``exp(Σ c·m) = Π exp(m)^c``, so that ``exp(a)·exp(b) = exp(a + b)`` is arithmetic on powers."""
        if any(m.coefficient < 0 and is_infinity(m) for m in value):
            return ZERO
        if has_infinity(value):
            raise CannotProve("the exponential of an infinite constant")
        factors = []
        for m in value:
            inner = m.of(coefficient=Fraction(1))
            log = single_factor(inner)
            if isinstance(log, FunctionApplication) and log.function == "log" and m.coefficient.denominator == 1:
                return mul(
                    self.power(log.args[0], int(m.coefficient)), self.exponential(tuple(o for o in value if o is not m))
                )
            factors.append((FunctionApplication("exp", (sealed((inner,)),)), m.coefficient))
        return product_of(Monomial(Fraction(1), (), frozenset(), tuple(factors)))

    def root(self, value: Value) -> Value:
        """``√value``; the square of the atom is the value again (see :func:`_idempotent`)."""
        number = constant_of(value)
        if number is not None and number >= 0:
            top, bottom = exact_root(number.numerator), exact_root(number.denominator)
            if top is not None and bottom is not None:
                return constant(Fraction(top, bottom))
        outside, inside = self._squares(value)
        if inside == ONE:
            return outside
        if self.sign(inside) < 1:
            self._record("nonnegative", inside)
        return mul(outside, atom_value(FunctionApplication("sqrt", (sealed(inside),))))

    def _squares(self, value: Value) -> tuple[Value, Value]:
        """``√(c²·v) = c·√v`` for ``c > 0``: what comes out of a root, and what stays in it."""
        content, _ = content_of(value)
        top, bottom = exact_root(abs(content.coefficient.numerator)), exact_root(content.coefficient.denominator)
        number = Fraction(top, bottom) if top is not None and bottom is not None else Fraction(1)
        out = tuple(
            (f, p / 2)
            for f, p in content.factors
            if (p % 2 == 0 and self.sign(atom_value(f)) == 2)
            or (isinstance(f, FunctionApplication) and f.function == "exp")
        )
        if number == 1 and not out:
            return ONE, value
        inverse = Monomial(1 / number**2, (), frozenset(), tuple((f, -2 * p) for f, p in out))
        return (Monomial(number, (), frozenset(), out),), self.tidy(mul(value, (inverse,)))

    def logarithm(self, value: Value) -> Value:
        """``log`` of a product of positive factors is a sum."""
        if value == ONE:
            return ZERO
        if not value:
            raise CannotProve("the logarithm of zero")
        if len(value) == 1 and value[0].factors and all(p < 0 for _, p in value[0].factors) and not value[0].bound:
            inverse = value[0].of(factors=tuple((f, -p) for f, p in value[0].factors))
            return scale(self.logarithm((inverse.of(coefficient=1 / inverse.coefficient),)), -1)
        if len(value) == 1 and not value[0].bound and value[0].coefficient > 0:
            m = value[0]
            if all(
                self.sign(atom_value(f)) == 2 or (isinstance(f, SumPowerBase) and self.sign(f.value) == 2)
                for f, _ in m.factors
            ):
                parts = [] if m.coefficient == 1 else [self.opaque("log", [constant(m.coefficient)])]
                for f, p in m.factors:
                    if isinstance(f, FunctionApplication) and f.function == "exp":
                        parts.append(scale(f.args[0], p))
                    else:
                        base = f.value if isinstance(f, SumPowerBase) else atom_value(f)
                        parts.append(scale(self.opaque("log", [base]), p))
                return add(*parts)
        content, rest = content_of(value)
        positive = content.coefficient > 0 and all(self.sign(atom_value(f)) == 2 for f, _ in content.factors)
        if len(value) > 1 and positive and (content.factors or content.coefficient != 1) and self.sign(rest) == 2:
            return add(self.logarithm((content,)), self.opaque("log", [rest]))
        if len(value) == 1 and value[0].bound and positive and content.factors and self.sign(rest) == 2:
            return add(self.logarithm((content,)), self.opaque("log", [rest]))
        if self.sign(value) != 2:
            self._record("positive", value)
        return self.opaque("log", [value])

    def truth(self, value: Value) -> Value:
        """1 where the value is not 0; a value that is 0 or 1 is its own truth."""
        if is_binary(value):
            return value
        return self.by_cases([value], lambda v: add(ONE, scale(self.zero(v[0]), -1)))

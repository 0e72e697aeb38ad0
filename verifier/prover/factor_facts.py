"""Small facts about single values, monomials and factors, which the functions of values are built from."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import isqrt

from superopt.ir.size_polynomial import Dim, sym, symbols
from superopt.ops.operator_semantics import IndexCondition
from superopt.verifier.prover.arith import ge, normal_condition
from superopt.verifier.prover.normal_form_arithmetic import (
    ONE,
    ZERO,
    Factor,
    FunctionApplication,
    Monomial,
    SizeFactor,
    TensorElement,
    Value,
    add,
    atom_value,
    mul,
    rename_apart,
    scale,
    text,
)  # fmt: skip

INFINITY: Value = atom_value(FunctionApplication("infinity", ()))
BINARY_VALUED = frozenset({"at", "positive", "zero", "nonzero", "isnan", "isinf"})


class CannotProve(Exception):  # a verdict, not a fault
    """The prover stops, and says why."""


def has_infinity(value: Value) -> bool:
    """Whether an infinite constant is a summand."""
    return any(isinstance(f, FunctionApplication) and f.function == "infinity" for m in value for f, _ in m.factors)


def sealed(value: Value) -> Value:
    """The value with its own bound variables renamed, to be put inside a factor."""
    return tuple(rename_apart(m) for m in value)


def closed_guards(m: Monomial) -> list[IndexCondition]:
    """Guards that do not mention the monomial's own bound variables, in a fixed order."""
    if not m.guards:
        return []
    bound = set(m.bound)
    return sorted((g for g in m.guards if not symbols(g.size) & bound), key=str)


def leading(value: Value) -> Fraction:
    """The coefficient of the monomial whose key is first."""
    return min(value, key=lambda m: (not m.factors, masked_key(m), m.key)).coefficient


def masked_key(m: Monomial) -> str:
    """The key with the names of enclosing bound variables hidden, so that it does not depend on them."""
    return m.show({n: sym("_") for n in m.free if "~" in n})


def constant_of(value: Value) -> Fraction | None:
    if not value:
        return Fraction(0)
    m = value[0]
    return m.coefficient if len(value) == 1 and not (m.bound or m.guards or m.factors) else None


def single_factor(m: Monomial) -> Factor | None:
    if m.bound or m.guards or len(m.factors) != 1 or m.factors[0][1] != 1:
        return None
    return m.factors[0][0]


def is_infinity(m: Monomial) -> bool:
    return any(isinstance(f, FunctionApplication) and f.function == "infinity" for f, _ in m.factors)


def is_selector(factor: Factor) -> bool:
    """``at(d, i, n)``: 1 where the position ``d`` is the value ``i``, which is promised to be inside ``0 … n - 1``."""
    return isinstance(factor, FunctionApplication) and factor.function == "at"


def bound_names(args: Sequence[Value]) -> set[str]:
    return {n for a in args for m in a for n in m.bound}


def same_position(m: Monomial) -> Value:
    """``at(d, i)·at(e, i) = [d = e]·at(d, i)``; ``Σ_d at(d, i) = 1`` where ``d`` occurs nowhere else."""
    chosen = [f for f, _ in m.factors if is_selector(f)]
    for k, f in enumerate(chosen):
        assert isinstance(f, FunctionApplication)
        for other in chosen[:k]:
            assert isinstance(other, FunctionApplication)
            if text(f.args[1]) == text(other.args[1]):
                a, b = dimension_of(f.args[0]), dimension_of(other.args[0])
                assert a is not None
                assert b is not None
                equal = normal_condition(IndexCondition("eq", a - b))
                if equal.known is False:
                    return ZERO
                guards = m.guards if equal.known else m.guards | {equal}
                kept = tuple(fp for fp in m.factors if fp[0] is not f)
                return same_position(m.of(guards=guards, factors=kept))
    for f in chosen:
        assert isinstance(f, FunctionApplication)
        d, extent = dimension_of(f.args[0]), dimension_of(f.args[2])
        name = str(d)
        assert extent is not None
        span = {ge(sym(name)), normal_condition(ge(extent - 1 - sym(name)))}
        own = {g for g in m.guards if name in symbols(g.size)}
        if name in m.bound and own == span and not any(name in g.free for g, _ in m.factors if g is not f):
            bound = tuple(n for n in m.bound if n != name)
            kept = tuple(fp for fp in m.factors if fp[0] is not f)
            return same_position(Monomial(m.coefficient, bound, m.guards - own, kept))
    return (m,)


def at_position(m: Monomial, shown: tuple[str, str], place: Dim) -> Value:
    """The monomial where the value shown is the position ``place``."""
    guards = set(m.guards)
    kept: list[tuple[Factor, Fraction]] = []
    for f, p in m.factors:
        if isinstance(f, FunctionApplication) and f.function == "at" and (text(f.args[1]), text(f.args[2])) == shown:
            d = dimension_of(f.args[0])
            assert d is not None
            guards.add(normal_condition(IndexCondition("eq", d - place)))
        else:
            kept.append((f, p))
    if any(g.known is False for g in guards):
        return ZERO
    return (m.of(guards=frozenset(g for g in guards if g.known is None), factors=tuple(kept)),)


def dimension_of(value: Value) -> Dim | None:
    """The integer polynomial that a value is, if it is one."""
    total: Dim = 0
    for m in value:
        if m.bound or m.guards or m.coefficient.denominator != 1:
            return None
        product: Dim = int(m.coefficient)
        for factor, power in m.factors:
            if not isinstance(factor, SizeFactor) or power < 0 or power.denominator != 1:
                return None
            for _ in range(int(power)):
                product = product * factor.size
        total = total + product
    return total


def is_binary(value: Value) -> bool:
    """Whether the value is plainly 0 or 1: a product of such factors, or 1 minus one."""
    rest = value
    if len(value) == 2 and (ones := [m for m in value if m == ONE[0]]):
        rest = scale(tuple(m for m in value if m is not ones[0]), -1)
    if not rest:
        return True
    m = rest[0]
    return len(rest) == 1 and m.coefficient == 1 and not m.bound and all(is_bit(f) and p > 0 for f, p in m.factors)


def with_bit(value: Value, bit: Factor, number: int) -> Value:
    shown = bit.show({})
    kept_monomials = []
    for m in value:
        if any(f.show({}) == shown for f, _ in m.factors):
            if number:
                kept_monomials.append(m.of(factors=tuple((f, p) for f, p in m.factors if f.show({}) != shown)))
        else:
            kept_monomials.append(m)
    return add(tuple(kept_monomials))


def is_bit(factor: Factor) -> bool:
    if isinstance(factor, TensorElement):
        return factor.tensor.startswith("?")
    return isinstance(factor, FunctionApplication) and factor.function in BINARY_VALUED


def exact_root(number: int) -> int | None:
    root = isqrt(number)
    return root if root * root == number else None


def product_of(m: Monomial) -> Value:
    """The monomial with like factors merged, its roots squared and its positive sums expanded."""
    value: Value = (m.of(factors=()),)
    for factor, power in m.factors:
        value = mul(value, ((Monomial(Fraction(1), (), frozenset(), ((factor, power),)),)))
    return value


def idempotent(m: Monomial) -> Monomial:
    """Powers of 0-or-1 factors are themselves."""
    if not any(is_bit(f) and p > 1 for f, p in m.factors):
        return m
    return m.of(factors=tuple((f, Fraction(1) if is_bit(f) and p > 1 else p) for f, p in m.factors))


def content_of(value: Value) -> tuple[Monomial, Value]:
    """``value = content · rest``: the common factors, a leading coefficient of 1, positive powers in rest."""
    common: dict[str, tuple[Factor, Fraction]] = {}
    for position, m in enumerate(value):
        own = {f.show({}): (f, p) for f, p in m.factors if not f.free & set(m.bound)}
        if position == 0:
            common = own
            continue
        merged: dict[str, tuple[Factor, Fraction]] = {}
        for name in common.keys() | own.keys():
            f = (common.get(name) or own[name])[0]
            low = min(common[name][1] if name in common else Fraction(0), own[name][1] if name in own else Fraction(0))
            if low:
                merged[name] = (f, low)
        common = merged
    for m in value:  # a factor that some monomial binds cannot be taken out of it
        for name in [n for n, (f, _) in common.items() if f.free & set(m.bound)]:
            del common[name]
    lead = leading(value)
    factors = tuple(sorted(common.values(), key=lambda fp: fp[0].show({})))
    inverse = Monomial(1 / lead, (), frozenset(), tuple((f, -p) for f, p in factors))
    return Monomial(lead, (), frozenset(), factors), mul(value, (inverse,))

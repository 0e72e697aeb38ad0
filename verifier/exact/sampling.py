"""Random sizes and attributes at which a rule's context holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from superopt.ir.size_polynomial import Dim, SizePolynomial, substitute
from superopt.ops.operator_semantics import IndexCondition
from superopt.rules.rule import AttributeVariableType, Rule

__all__ = ["SizeSample", "allowed", "draw"]

ATTEMPTS = 400


@dataclass(frozen=True)
class SizeSample:
    """Values of a rule's names: sizes and integer attributes, real attributes, and the number of leading axes."""

    sizes: Mapping[str, int]
    reals: Mapping[str, float]
    lead: int = 0


def names_of(rule: Rule) -> tuple[tuple[str, AttributeVariableType | None], ...]:
    """Every name of a rule without ``...``: sizes (no scheme) and attribute atoms."""
    return (*((n, None) for n in rule.sizes), *rule.attribute_atoms.items())


def allowed(rule: Rule, sizes: Mapping[str, int], conditions: Sequence[IndexCondition]) -> bool:
    """Whether sizes are positive, attributes in range, and the guards and conditions hold."""
    for name, scheme in names_of(rule):
        if name in sizes and not (sizes[name] >= 1 if scheme is None else scheme.allows(sizes[name])):
            return False
    for scheme_t in rule.tensors.values():
        if any(_number(d, sizes) < 1 for d in scheme_t.shape):
            return False
    return all(g.holds(sizes) for g in rule.where) and all(holds(c, sizes) for c in conditions)


def holds(condition: IndexCondition, sizes: Mapping[str, int]) -> bool:
    """The truth of a condition where every name is bound."""
    return IndexCondition(condition.kind, _number(condition.size, sizes)).known is True


def _number(value: Dim, sizes: Mapping[str, int]) -> int:
    number = substitute(value, sizes)
    if isinstance(number, SizePolynomial):
        raise KeyError(str(number))
    return number


def draw(
    rule: Rule, lead: int, rng: np.random.Generator, conditions: Sequence[IndexCondition], size: int,
    wide: Mapping[str, int] | None = None,
) -> SizeSample | None:  # fmt: skip
    """A point where the rule's ranges, guards and the conditions hold, or ``None`` when none was found.

    Args:
        rule: an instance without ``...``.
        lead: recorded in the point.
        rng: where numbers come from.
        conditions: well-formedness of the side that must be well-formed.
        size: sizes are drawn up to this.
        wide: names that are drawn further, up to these sizes (and from half of them on).
    """
    bounds = [g.condition for g in rule.where if g.condition.kind == "ge"] + [c for c in conditions if c.kind == "ge"]
    equalities = [g.condition for g in rule.where if g.relation == "=="] + [c for c in conditions if c.kind == "eq"]
    for attempt in range(ATTEMPTS):
        ceiling = size if attempt < ATTEMPTS // 2 else size + 1 + attempt // 100
        sizes: dict[str, int] = {}
        reals: dict[str, float] = {}
        for name, scheme in names_of(rule):
            if scheme is not None and scheme.kind == "real":
                reals[name] = _real(scheme, rng)
            else:
                sizes[name] = _integer(scheme, rng, ceiling)
        for name, most in (wide or {}).items():
            sizes[name] = int(rng.integers((most + 1) // 2, most + 2))
        for condition in equalities:
            _solve(condition.size, sizes)
        if attempt % 2:
            for condition in bounds:
                _raise(condition.size, sizes, int(rng.integers(0, 3)))
        try:
            if allowed(rule, sizes, conditions):
                return SizeSample(sizes, reals, lead)
        except (KeyError, ZeroDivisionError):
            continue
    return None


def _integer(scheme: AttributeVariableType | None, rng: np.random.Generator, ceiling: int) -> int:
    if scheme is None:
        return int(rng.integers(1, ceiling + 1))
    low = {">=": scheme.bound, ">": scheme.bound + 1}.get(scheme.relation, -2)
    return int(rng.integers(low, max(low, 2) + 2)) if low >= 0 else int(rng.integers(low, 4))


def _real(scheme: AttributeVariableType, rng: np.random.Generator) -> float:
    """A dyadic number in range, so that it is the same in every arithmetic."""
    while True:
        value = int(rng.integers(-24, 25)) / 8
        if scheme.relation in (">", ">="):
            value = scheme.bound + abs(value)
        if scheme.allows(value):
            return value


def _solve(size: Dim, sizes: dict[str, int]) -> None:
    """Make ``size == 0`` by changing one name that occurs in it linearly and alone, if there is one."""
    if isinstance(size, int):
        return
    for monomial, coefficient in size.terms:
        name = monomial[0] if len(monomial) == 1 else None
        if not isinstance(name, str) or name not in sizes:
            continue
        rest = substitute(
            size - coefficient * SizePolynomial(((monomial, 1),)), {n: v for n, v in sizes.items() if n != name}
        )
        if isinstance(rest, int) and rest % coefficient == 0 and -rest // coefficient >= 0:
            sizes[name] = -rest // coefficient
            return


def _raise(size: Dim, sizes: dict[str, int], slack: int) -> None:
    """Make ``size >= 0`` by raising one name that occurs in it linearly and alone, if there is one."""
    try:
        value = _number(size, sizes)
    except (KeyError, ZeroDivisionError):
        return
    if value >= 0 or isinstance(size, int):
        return
    for monomial, coefficient in size.terms:
        name = monomial[0] if len(monomial) == 1 else None
        if isinstance(name, str) and name in sizes and coefficient > 0:
            sizes[name] += -(value // coefficient) + slack
            return

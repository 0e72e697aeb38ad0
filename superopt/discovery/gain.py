"""Which side of a rule is expected to be faster, and by how much: orientation and annotation, never truth.

Without a measured profile this is a roofline at nominal sizes: arithmetic and memory traffic read from the meanings,
plus a fixed overhead per operator. What depends on weights alone is computed before inference and counts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from superopt.discovery.config import Theme
from superopt.ir.poly import Dim, Poly, substitute
from superopt.ir.terms import App, Project, Term, Var, postorder
from superopt.ir.types import TensorType
from superopt.ops.meaning import IllTyped
from superopt.ops.work import flops
from superopt.rules.rule import Rule
from superopt.rules.scanner import RuleError
from superopt.rules.typing import complete, instances, operator_of, types_of

__all__ = ["expected", "oriented"]

OVERHEAD_US = 2.0  # of starting one operator
FLOPS_PER_US = 20_000.0  # two CPU cores, float32
BYTES_PER_US = 8_000.0
NOMINAL: Mapping[str, int] = {"b": 1, "h": 28, "w": 28, "u": 3, "v": 3}
SIZE, ATTRIBUTE = 128, 1


def expected(rule: Rule, weights: frozenset[str]) -> tuple[float, float] | None:
    """Modelled microseconds of the two sides; ``None`` where a size cannot be given a nominal value."""
    try:
        plain = instances(rule, (1,))[0]
        found = types_of(plain)
    except (RuleError, IllTyped, ZeroDivisionError):
        return None
    nominal: dict[str, Dim] = dict.fromkeys(plain.attribute_atoms, ATTRIBUTE)
    for name in plain.sizes:
        nominal[name] = NOMINAL.get(name.rstrip("0123456789_"), SIZE)
    nominal |= {n: 0 for n, s in plain.attribute_atoms.items() if s.relation == ">=" and s.bound == 0}
    left, right = (_side(side, found.types, nominal, weights) for side in (plain.lhs, plain.rhs))
    return None if left is None or right is None else (left, right)


def _side(
    roots: tuple[Term, ...], types: Mapping[Term, tuple[TensorType, ...]], nominal: Mapping[str, Dim],
    weights: frozenset[str],
) -> float | None:  # fmt: skip
    total = 0.0
    constant: set[Term] = set()
    for term in postorder(*roots):
        if isinstance(term, Var):
            if term.name in weights:
                constant.add(term)
            continue
        below = [term.term] if isinstance(term, Project) else [a for a in term.args if a is not None]
        if all(b in constant for b in below):
            constant.add(term)
            continue
        if isinstance(term, App):
            cost = _application(term, types, nominal)
            if cost is None:
                return None
            total += cost
    return total


def _application(term: App, types: Mapping[Term, tuple[TensorType, ...]], nominal: Mapping[str, Dim]) -> float | None:
    kinds = [None if a is None else types[a][0] for a in term.args]
    work = flops(operator_of(term), kinds, complete(term))
    moved = [prod(k.shape or (), start=1) for k in (*kinds, *types[term]) if k is not None]
    numbers = [substitute(v, nominal) for v in (work, *moved)]
    if any(isinstance(n, Poly) for n in numbers):
        return None
    first, *rest = (n for n in numbers if isinstance(n, int))
    return OVERHEAD_US + max(first / FLOPS_PER_US, 4 * sum(rest) / BYTES_PER_US)


def oriented(rule: Rule, theme: Theme) -> Rule:
    """The rule with the side that is expected to be slower on the left, where search can use it in that direction."""
    if len(rule.lhs) > 1:
        return rule  # siblings on the left, what they merge into on the right
    found = expected(rule, frozenset(n for n in rule.tensors if theme.is_weight(n)))
    if found is None:
        swap = not rule.forward
    else:
        left, right = found
        swap = rule.backward and (right > left * 1.001 or not rule.forward)
    return replace(rule, lhs=rule.rhs, rhs=rule.lhs) if swap else rule

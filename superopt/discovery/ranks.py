"""Elementwise rules for any rank, and leading axes ``...`` in front of data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

from superopt.discovery.config import Theme
from superopt.discovery.generalise import well_typed
from superopt.ir.poly import sym
from superopt.ir.terms import App, AttributeValue, Term, Var, children, postorder, remade, variables
from superopt.ir.types import TensorType
from superopt.ops.meaning import IllTyped
from superopt.rules.rule import Rule, TensorScheme, TypeScheme
from superopt.rules.typing import operator_of, type_terms, variable_types

__all__ = ["any_rank", "leading", "with_lead"]


def any_rank(rule: Rule) -> Rule | None:
    """An elementwise rule over tensors of one shape, booleans among them or not, for tensors of rank 0 to 5; of rank 3
    to 5 where one boolean would stand for true and false alike; ``None`` for other rules.
    """
    shapes = {s.shape for s in rule.tensors.values() if s.shape}
    families = {operator_of(t).family for t in postorder(*rule.lhs, *rule.rhs) if isinstance(t, App)}
    pointwise = families <= {"elementwise", "activation", "generators"}
    scalars = all(
        dict(t.attributes).get("shape") == ()
        for t in postorder(*rule.lhs, *rule.rhs)
        if isinstance(t, App) and operator_of(t).family == "generators"
    )
    if len(shapes) > 1 or not pointwise or not scalars or any(s.lead or s.dtype == "i" for s in rule.tensors.values()):
        return None
    names = tuple(n for n in ("a", "b", "c", "d", "e", "h", "i", "j") if n not in rule.forall)[:3]
    wide = tuple(map(sym, names))
    masked = {s.dtype for s in rule.tensors.values()} == {"b", "f"}
    forall: dict[str, TypeScheme] = {
        n: replace(s, shape=wide if masked else (), lead=True)
        if isinstance(s, TensorScheme) and (s.shape or not shapes)
        else s
        for n, s in rule.forall.items()
    }
    made = replace(rule, forall=forall)
    return made if well_typed(made) else None


def leading(rule: Rule, theme: Theme) -> Iterator[Rule]:
    """The rule with ``...`` in front of all tensors of the largest rank, and in front of as few as it takes.

    The second is what networks have: a batch of data times weights without a batch. Where a matrix product is involved
    other choices are tried as well; for elementwise operators the broadcasting of a few leading axes has themes of its
    own.
    """
    if not theme.batch or any(s.lead for s in rule.tensors.values()):
        return
    ranks = {n: len(s.shape) for n, s in rule.tensors.items() if s.dtype == "f"}
    largest = max(ranks.values(), default=0)
    widest = [n for n in variables(*rule.lhs, *rule.rhs) if ranks.get(n) == largest]
    if not largest:
        return
    if any(not theme.is_weight(n) for n in widest):
        widest.sort(key=theme.is_weight)
    subsets = [frozenset(widest), frozenset(n for n in widest if not theme.is_weight(n)) or frozenset(widest)]
    if "MatMul" in rule.operators:
        subsets += [frozenset({widest[0], *more}) for r in range(3) for more in combinations(widest[1:], r)]
    found = 0
    for chosen in dict.fromkeys(subsets):
        made = with_lead(rule, chosen)
        if made is not None and well_typed(made):
            yield made
            found += 1
            if found == 2:
                return


def with_lead(rule: Rule, chosen: frozenset[str]) -> Rule | None:
    """The rule with ``...`` in front of these variables, axes counted from the end; ``None`` if it has no types."""
    try:
        types = type_terms((*rule.lhs, *rule.rhs), variable_types(rule))[0]
    except IllTyped:
        return None
    forall: dict[str, TypeScheme] = {
        n: replace(s, lead=True) if n in chosen and isinstance(s, TensorScheme) else s for n, s in rule.forall.items()
    }
    made: dict[Term, Term] = {}
    wide: set[Term] = set()
    for term in postorder(*rule.lhs, *rule.rhs):
        values = None
        if isinstance(term, App):
            first = next((a for a in term.args if a is not None), None)
            if first in wide:
                values = tuple((k, _from_end(term, k, v, types[first])) for k, v in term.attributes)
        if any(a in wide for a in children(term)) or (isinstance(term, Var) and term.name in chosen):
            wide.add(term)
        made[term] = remade(term, made, values)
    return replace(rule, forall=forall, lhs=tuple(made[t] for t in rule.lhs), rhs=tuple(made[t] for t in rule.rhs))


def _from_end(term: App, name: str, value: AttributeValue, first: tuple[TensorType, ...]) -> AttributeValue:
    """Axes counted from the end, shapes and permutations with ``...`` in front."""
    rank = len(first[0].shape or ())
    if name == "perm" and isinstance(value, tuple):
        return ("...", *(v - rank if isinstance(v, int) else v for v in value))
    if name == "shape" and isinstance(value, tuple):
        return ("...", *value)
    if name in ("axis", "axes"):
        if term.op == "Unsqueeze" and isinstance(value, tuple):
            rank += len(value)
        if isinstance(value, tuple):
            return tuple(v - rank if isinstance(v, int) else v for v in value)
        return value - rank if isinstance(value, int) else value
    return value

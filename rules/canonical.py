"""Canonical form of a rule: the same for rules that differ only in names, order of terms, or which side is left."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations

from superopt.ir.poly import Dim, Poly, substitute, sym
from superopt.ir.terms import App, AttributeValue, Term, Var, postorder, rebuilt
from superopt.rules.grammar import format_guard, format_scheme, format_term
from superopt.rules.rule import (
    Guard,
    Rule,
    TensorScheme,
    TypeScheme,
    attribute_symbols,
    value_symbols,
)

__all__ = ["canonical", "map_terms", "named", "rule_text", "text_digest"]


def map_value(value: AttributeValue, binding: Mapping[str, Dim]) -> AttributeValue:
    """An attribute value with names replaced."""
    if isinstance(value, tuple):
        return tuple(map_value(v, binding) for v in value)
    return substitute(value, binding) if isinstance(value, Poly) else value


def map_terms(roots: tuple[Term, ...], names: Mapping[str, Term], binding: Mapping[str, Dim]) -> tuple[Term, ...]:
    """Terms with tensor variables and attribute names replaced; shared subterms stay shared; iterative."""
    return rebuilt(roots, lambda _app, _name, value: map_value(value, binding), lambda term: names.get(term.name, term))


def _renamed(rule: Rule) -> Rule:
    """Names in order of first occurrence: tensors x0…, attribute variables a0…, sizes n0…."""
    order: dict[str, None] = {}
    tensors: dict[str, None] = {}
    owner = {a: n for n, s in rule.attributes.items() for a in attribute_symbols(n, s)}
    for term in postorder(*rule.lhs, *rule.rhs):
        if isinstance(term, Var):
            tensors[term.name] = None
            for size in rule.tensors[term.name].shape:
                order.update(dict.fromkeys(_in_order(size)))
        elif isinstance(term, App):
            for _, value in term.attributes:
                for part in value if isinstance(value, tuple) else (value,):
                    order.update(dict.fromkeys(_in_order(part)))
    order.update(dict.fromkeys(sorted({*rule.sizes, *rule.attribute_atoms} - set(order))))
    variables = {n: f"x{i}" for i, n in enumerate(tensors)}
    attributes = {n: f"a{i}" for i, n in enumerate(dict.fromkeys(owner[s] for s in order if s in owner))}
    binding: dict[str, Dim] = {s: sym(f"n{i}") for i, s in enumerate(s for s in order if s not in owner)}
    for name, new in attributes.items():
        scheme = rule.attributes[name]
        pairs = zip(attribute_symbols(name, scheme), attribute_symbols(new, scheme), strict=True)
        binding |= {a: sym(b) for a, b in pairs}
    forall: dict[str, TypeScheme] = {}
    for name, new in variables.items():
        scheme_t = rule.tensors[name]
        below = None if scheme_t.below is None else substitute(scheme_t.below, binding)
        shape = tuple(substitute(d, binding) for d in scheme_t.shape)
        forall[new] = TensorScheme(scheme_t.dtype, shape, scheme_t.lead, below)
    forall |= {new: rule.attributes[n] for n, new in attributes.items()}
    leaves: dict[str, Term] = {n: Var(v) for n, v in variables.items()}
    guards = {Guard(substitute(g.left, binding), g.relation, substitute(g.right, binding)) for g in rule.where}
    return Rule(
        id=rule.id, forall=forall, where=tuple(sorted(guards, key=format_guard)),
        lhs=map_terms(rule.lhs, leaves, binding), rhs=map_terms(rule.rhs, leaves, binding),
        origin=rule.origin, family=rule.family,
    )  # fmt: skip


def _in_order(value: AttributeValue) -> list[str]:
    return sorted(value_symbols(value)) if isinstance(value, Poly | tuple) else []


def rule_text(rule: Rule) -> str:
    """One line that says the whole rule, its id and origin apart."""
    forall = "; ".join(f"{n}: {format_scheme(s)}" for n, s in rule.forall.items())
    guards = ", ".join(map(format_guard, rule.where))
    sides = (", ".join(format_term(t, rule.forall) for t in side) for side in (rule.lhs, rule.rhs))
    return f"[{forall}] [{guards}] {' = '.join(sides)}"


def canonical(rule: Rule) -> Rule:
    """The representative of the rule under renaming, swapping sides and reordering its pairs of terms.

    It is the smallest text over both orientations and (up to four) pairs in any order.
    """
    pairs = list(zip(rule.lhs, rule.rhs, strict=True))
    orders = permutations(pairs) if len(pairs) <= 4 else [tuple(pairs)]
    candidates: list[Rule] = []
    for order in orders:
        left, right = tuple(a for a, _ in order), tuple(b for _, b in order)
        candidates += [_renamed(replace(rule, lhs=left, rhs=right)), _renamed(replace(rule, lhs=right, rhs=left))]
    return min(candidates, key=rule_text)


def text_digest(rule: Rule) -> str:
    """SHA-256 of the canonical text."""
    return hashlib.sha256(rule_text(canonical(rule)).encode()).hexdigest()


def named(rule: Rule) -> Rule:
    """The rule with a stable id: its family and four hexadecimal digits of its digest."""
    return replace(rule, id=f"{rule.family or 'rule'}-{text_digest(rule)[:4]}")

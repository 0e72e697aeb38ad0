"""A rule set grown by duplicates of itself, all of them as true as the rules they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from superopt.ir.size_polynomial import SizePolynomial, substitute
from superopt.ir.terms import AttributeValue, OperatorTerm, OutputTerm, Term, VariableTerm, postorder
from superopt.rules import Rule
from superopt.rules.rule import AttributeVariableType, TensorVariableType

__all__ = ["mirrored", "renamed", "tenfold"]


def renamed(rule: Rule, suffix: str) -> Rule:
    """The rule with other names for its tensors; it finds exactly the same."""

    def written(roots: tuple[Term, ...]) -> tuple[Term, ...]:
        made: dict[Term, Term] = {}
        for term in postorder(*roots):
            if isinstance(term, VariableTerm):
                made[term] = VariableTerm(term.name + suffix)
            elif isinstance(term, OutputTerm):
                made[term] = OutputTerm(made[term.term], term.index)
            else:
                made[term] = OperatorTerm(
                    term.op, tuple(None if a is None else made[a] for a in term.args), term.attributes
                )
        return tuple(made[r] for r in roots)

    forall = {n + suffix if isinstance(s, TensorVariableType) else n: s for n, s in rule.forall.items()}
    return replace(rule, id=rule.id + suffix, forall=forall, lhs=written(rule.lhs), rhs=written(rule.rhs))


def mirrored(rule: Rule, suffix: str) -> Rule:
    """The rule the other way round."""
    return replace(rule, id=rule.id + suffix, lhs=rule.rhs, rhs=rule.lhs)


def specialised(rule: Rule, suffix: str, size: int) -> Rule:
    """The rule at one value of one of its free sizes: true, and found by fewer places."""
    sizes = sorted(
        {a for s in rule.tensors.values() for d in s.shape if isinstance(d, SizePolynomial) for a in _names(d)}
    )
    free = [n for n in sizes if n not in rule.attribute_atoms and not any(n in g.names for g in rule.where)]
    if not free:
        return renamed(rule, suffix)
    at = {free[0]: size}

    def value(given: AttributeValue) -> AttributeValue:
        if isinstance(given, tuple):
            return tuple(map(value, given))
        return substitute(given, at) if isinstance(given, SizePolynomial) else given

    def written(roots: tuple[Term, ...]) -> tuple[Term, ...]:
        made: dict[Term, Term] = {}
        for term in postorder(*roots):
            if isinstance(term, OperatorTerm):
                args = tuple(None if a is None else made[a] for a in term.args)
                made[term] = OperatorTerm(term.op, args, tuple((k, value(v)) for k, v in term.attributes))
            else:
                made[term] = OutputTerm(made[term.term], term.index) if isinstance(term, OutputTerm) else term
        return tuple(made[r] for r in roots)

    forall = {
        n: replace(s, shape=tuple(value(d) for d in s.shape)) if isinstance(s, TensorVariableType) else s
        for n, s in rule.forall.items()
        if not (isinstance(s, AttributeVariableType) and n == free[0])
    }
    return replace(rule, id=rule.id + suffix, forall=forall, lhs=written(rule.lhs), rhs=written(rule.rhs))


def _names(size: SizePolynomial) -> list[str]:
    return [a for monomial, _ in size.terms for a in monomial if isinstance(a, str)]


def tenfold(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """Ten times as many rules: each renamed, mirrored, and at seven sizes."""
    return (
        *rules, *(renamed(r, "-renamed") for r in rules), *(mirrored(r, "-mirrored") for r in rules),
        *(specialised(r, f"-at-{n}", n) for n in (1, 4, 8, 64, 196, 512, 768) for r in rules),
    )  # fmt: skip

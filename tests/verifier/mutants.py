"""Small changes to a rule's right side: inputs swapped, attributes and axes ± 1, a term dropped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from superopt.ir.poly import Poly
from superopt.ir.terms import App, AttributeValue, Project, Term, Var, postorder
from superopt.rules import Rule

__all__ = ["mutants"]


def mutants(rule: Rule) -> Iterator[tuple[str, Rule]]:
    """Each mutant with what was changed. Some are true again, some are not well-formed."""
    seen = {rule.rhs}
    for term in postorder(*rule.rhs):
        if not isinstance(term, App):
            continue
        for what, changed in _changes(term):
            rhs = tuple(_replaced(root, term, changed) for root in rule.rhs)
            if rhs not in seen:
                seen.add(rhs)
                yield f"{what} in {term.op}", replace(rule, rhs=rhs)


def _changes(app: App) -> Iterator[tuple[str, Term]]:
    if len(app.args) >= 2:
        yield "swapped inputs", replace(app, args=(app.args[1], app.args[0], *app.args[2:]))
        for kept in app.args[:2]:
            if kept is not None:
                yield "dropped a term", kept
    elif len(app.args) == 1 and app.args[0] is not None:
        yield "dropped the operator", app.args[0]
    for position, (name, value) in enumerate(app.attributes):
        for shown, changed in _nearby(value):
            attributes = (*app.attributes[:position], (name, changed), *app.attributes[position + 1 :])
            yield f"{name} {shown}", replace(app, attributes=attributes)


def _nearby(value: AttributeValue) -> Iterator[tuple[str, AttributeValue]]:
    if isinstance(value, tuple):
        for i, v in enumerate(value):
            for shown, changed in _nearby(v):
                yield f"[{i}] {shown}", (*value[:i], changed, *value[i + 1 :])
        if len(value) > 1 and value[0] != value[-1]:
            yield "reversed", value[::-1]
    elif isinstance(value, int | float | Poly):
        yield "+ 1", value + 1
        yield "- 1", value - 1


def _replaced(root: Term, old: Term, new: Term) -> Term:
    made: dict[Term, Term] = {}
    for term in postorder(root):
        if term == old:
            made[term] = new
        elif isinstance(term, Var):
            made[term] = term
        elif isinstance(term, Project):
            inner = made[term.term]
            made[term] = Project(inner, term.index) if isinstance(inner, App) else inner
        else:
            made[term] = replace(term, args=tuple(None if a is None else made[a] for a in term.args))
    return made[root]

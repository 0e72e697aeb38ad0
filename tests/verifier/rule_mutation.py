"""Small changes of a rule that almost always make it false: what testing must refute and the prover must not prove."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from superopt.ir.size_polynomial import SizePolynomial
from superopt.ir.terms import AttributeValue, OperatorTerm, OutputTerm, Term, VariableTerm, postorder
from superopt.ops import REGISTRY
from superopt.rules.rule import Rule

__all__ = ["mutants"]

_ALIKE = (
    ("Relu", "Abs", "Neg", "Sigmoid"), ("Add", "Sub"), ("Mul", "Div"), ("Max", "Min"), ("Exp", "Tanh"),
    ("ReduceSum", "ReduceMean", "ReduceMax"), ("Softmax", "LogSoftmax"), ("GlobalAveragePool", "GlobalMaxPool"),
)  # fmt: skip


def mutants(rule: Rule) -> Iterator[tuple[str, Rule]]:
    """Changed rules, each with what was changed.

    On the right side: arguments swapped, an attribute ± 1, a term dropped, an operator replaced by one like it, a
    variable by another of its type. And a precondition dropped.

    A mutant may by chance be true (an attribute of an operator whose kernel has one element, say), or ill-typed at
    every size; the caller must be ready for both.
    """
    roots = rule.rhs
    for term in postorder(*roots):
        if not isinstance(term, OperatorTerm):
            continue
        for what, changed in (*_changes(term), *_exchanged(term, rule)):
            yield f"{term.op}: {what}", replace(rule, id=f"{rule.id}-mutant", rhs=_replaced(roots, {term: changed}))
    for place, guard in enumerate(rule.where):
        rest = rule.where[:place] + rule.where[place + 1 :]
        yield f"without {guard.left} {guard.relation} {guard.right}", replace(rule, id=f"{rule.id}-mutant", where=rest)


def _exchanged(term: OperatorTerm, rule: Rule) -> Iterator[tuple[str, Term]]:
    """Another operator of the same arguments and attributes, or another variable of the same type."""
    for family in _ALIKE:
        if term.op in family:
            other = family[(family.index(term.op) + 1) % len(family)]
            yield f"{other} instead", replace(term, op=other)
    names = list(rule.tensors)
    for place, arg in enumerate(term.args):
        if isinstance(arg, VariableTerm):
            same = [n for n in names if n != arg.name and rule.tensors[n] == rule.tensors[arg.name]]
            for name in same[:1]:
                args = (*term.args[:place], VariableTerm(name), *term.args[place + 1 :])
                yield f"{name} for {arg.name}", replace(term, args=args)


def _changes(term: OperatorTerm) -> Iterator[tuple[str, Term]]:
    first, *rest = term.args or (None,)
    second = rest[0] if rest else None
    if first is not None and second is not None and first != second:
        if term.op not in REGISTRY or not REGISTRY[term.op].commutative:
            yield "inputs swapped", replace(term, args=(second, first, *rest[1:]))
        if term.op in ("Add", "Sub", "Mul", "Div"):
            yield "second input dropped", first
    for name, value in term.attributes:
        if name in ("dtype", "k"):
            continue
        for where, step, changed in _shifted(value):
            attributes = tuple((k, changed if k == name else v) for k, v in term.attributes)
            yield f"{name}{where} {step:+d}", replace(term, attributes=attributes)


def _shifted(value: AttributeValue) -> Iterator[tuple[str, int, AttributeValue]]:
    if isinstance(value, tuple):
        for position, element in enumerate(value):
            for where, step, changed in _shifted(element):
                yield f"[{position}]{where}", step, (*value[:position], changed, *value[position + 1 :])
    elif isinstance(value, int | SizePolynomial | float):
        for step in (1, -1):
            yield "", step, value + step


def _replaced(roots: tuple[Term, ...], changed: Mapping[Term, Term]) -> tuple[Term, ...]:
    made: dict[Term, Term] = {}
    for term in postorder(*roots):
        if term in changed:
            made[term] = changed[term]
        elif isinstance(term, OperatorTerm):
            made[term] = replace(term, args=tuple(None if a is None else made[a] for a in term.args))
        elif isinstance(term, OutputTerm):
            inner = made[term.term]
            made[term] = OutputTerm(inner, term.index) if isinstance(inner, OperatorTerm) else inner
        else:
            made[term] = term
    return tuple(made[r] for r in roots)

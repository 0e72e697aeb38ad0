"""Whether an expression has a part that another one, more general, says everything about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from superopt.discovery.lifting import Problem
from superopt.ir.poly import Dim, Poly, substitute, symbols
from superopt.ir.terms import App, AttributeValue, Project, Term, Var, postorder, variables
from superopt.ir.types import TensorType
from superopt.rules.typing import operator_of, type_terms

__all__ = ["is_instance"]

Binding = dict[str, Term | Dim]  # leaves to terms, names of sizes and attributes to sizes


def is_instance(problem: Problem, general: Problem) -> bool:
    """Whether a part of a problem is the general one's term, for some terms as its data and weights as its weights.

    The whole problem counts if an equal of the general one leaves its data as they are, for there are weights to work
    on, or if they are leaves: ``Conv(x, k) + Conv(x, k)`` is ``y + y`` for a ``y`` that an equal may open.

    Args:
        problem: the expression that is looked at.
        general: one of which an equal is known.
    """
    types = type_terms([problem.term], problem.kinds)[0]
    return any(
        (part != problem.term or general.weights or _leaves(binding)) and _typed(general, binding, types)
        for part in postorder(problem.term)
        for binding in _matches(general.term, part, {}, general, problem.weights)
    )


def _leaves(binding: Binding) -> bool:
    return all(isinstance(bound, Var | int | Poly) for bound in binding.values())


def _matches(
    pattern: Term, term: Term, binding: Binding, general: Problem, weights: frozenset[str]
) -> Iterator[Binding]:
    """Ways to read a term as a pattern, with operands of commutative operators in either order."""
    if isinstance(pattern, Var):
        bound = binding.get(pattern.name)
        constant = set(variables(term)) <= weights
        if (bound is None and (constant or pattern.name not in general.weights)) or bound == term:
            yield {**binding, pattern.name: term}
    elif isinstance(pattern, Project):
        if isinstance(term, Project) and term.index == pattern.index:
            yield from _matches(pattern.term, term.term, binding, general, weights)
    elif isinstance(term, App) and term.op == pattern.op and len(term.args) == len(pattern.args):
        attributes = _attributes(pattern, term, binding)
        if attributes is None:
            return
        orders = [term.args, term.args[::-1]] if operator_of(term).commutative else [term.args]
        for order in orders:
            some = [attributes]
            for mine, theirs in zip(pattern.args, order, strict=True):
                if mine is None or theirs is None:
                    some = some if mine is theirs else []
                else:
                    some = [more for b in some for more in _matches(mine, theirs, b, general, weights)]
            yield from some


def _attributes(pattern: App, term: App, binding: Binding) -> Binding | None:
    given = dict(term.attributes)
    if {k for k, _ in pattern.attributes} != set(given):
        return None
    found: Binding | None = binding
    for key, value in pattern.attributes:
        found = None if found is None else _value(value, given[key], found)
    return found


def _value(value: AttributeValue, given: AttributeValue, binding: Binding) -> Binding | None:
    if isinstance(value, tuple) and isinstance(given, tuple):
        found: Binding | None = binding if len(value) == len(given) else None
        for mine, theirs in zip(value, given, strict=False):
            found = None if found is None else _value(mine, theirs, found)
        return found
    name = _name(value)
    if name is not None and isinstance(given, int | Poly):
        return {**binding, name: given} if binding.get(name, given) == given else None
    return binding if value == given else None


def _name(value: object) -> str | None:
    """The name that a size is, by itself."""
    if isinstance(value, Poly) and len(value.terms) == 1:
        ((monomial, coefficient),) = value.terms
        if coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], str):
            return monomial[0]
    return None


def _typed(general: Problem, binding: Binding, types: Mapping[Term, tuple[TensorType, ...]]) -> bool:
    """Whether the terms that leaves are bound to have the leaves' types, for some sizes."""
    sizes: dict[str, Dim] = {n: v for n, v in binding.items() if isinstance(v, int | Poly)}
    wanted: list[tuple[Dim, Dim]] = []
    for name, kind in general.kinds.items():
        term = binding.get(name)
        if term is None or isinstance(term, int | Poly):
            continue
        have = types[term][0]
        if have.dtype != kind.dtype or len(have.shape or ()) != len(kind.shape or ()):
            return False
        wanted += zip(kind.shape or (), have.shape or (), strict=True)
    for size, given in sorted(wanted, key=lambda pair: _name(pair[0]) is None):
        left = substitute(size, sizes)
        free = sorted(symbols(left))
        if not free:
            if left != given:
                return False
            continue
        zero, one = (substitute(left, {free[0]: n}) for n in (0, 1))
        slope = one - zero
        if slope == 0:
            return False
        sizes[free[0]] = (given - zero) // slope
        if substitute(left, sizes) != given:
            return False
    return True

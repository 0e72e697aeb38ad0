"""What is put in order before or behind operators with weights, in the other orders that these allow.

A product with a weight sums over the elements of a row, and its weight may have its rows in any order: of all orders in
which the data can be taken apart, the one that a device moves quickest is as good. So for the columns, and what puts
them in order behind it. Which weights there are for an order, if any, is solved for, like any weight of a skeleton.
"""

from __future__ import annotations

from collections.abc import Iterator

from superopt.discovery.data_movement import rearranged
from superopt.discovery.lifting import Problem
from superopt.ir.terms import App, Term, Var, replaced, variables
from superopt.rules.typing import operator_of, type_terms

__all__ = ["reordered"]

_CORE = Var("@core")


def reordered(problem: Problem) -> Iterator[Term]:
    """The problem with other movements of elements before its operators with weights, or behind them.

    Args:
        problem: the left side; nothing where it is not movements around operators that each have one operand of data.
    """
    outer, core = _moved(problem, problem.term)
    inner = core
    while isinstance(inner, App) and operator_of(inner).family != "shape" and (below := _data(problem, inner)):
        inner = below
    if inner == core:
        return
    _, leaf = _moved(problem, inner)
    types = type_terms([problem.term], problem.kinds)[0]
    if isinstance(leaf, Var) and leaf != inner:
        for term in rearranged(leaf, types[leaf][0].shape or (), types[inner][0].shape or (), joined=True):
            yield replaced(problem.term, inner, term)
    if outer:
        shape, wanted = types[core][0].shape or (), types[problem.term][0].shape or ()
        for term in rearranged(_CORE, shape, wanted, joined=True):
            yield replaced(term, _CORE, core)


def _moved(problem: Problem, term: Term) -> tuple[bool, Term]:
    """Whether a term is movements of the elements of another, and which."""
    found = term
    while isinstance(found, App) and operator_of(found).family == "shape" and (below := _data(problem, found)):
        found = below
    return found != term, found


def _data(problem: Problem, app: App) -> Term | None:
    """The operand that depends on data, if there is one alone."""
    found = [a for a in app.args if a is not None and not set(variables(a)) <= problem.weights]
    return found[0] if len(found) == 1 else None

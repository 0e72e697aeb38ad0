"""What terms come to on arrays, with every operator's result rounded to its element type, as kernels round it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from superopt.ir.terms import App, Project, Term, Var, postorder
from superopt.ir.types import DType, TensorType
from superopt.rules.typing import complete, operator_of
from superopt.runtime.reference import evaluate_application

__all__ = ["evaluated"]


def evaluated(roots: Sequence[Term], given: Mapping[str, np.ndarray], dtype: DType = DType.FLOAT32) -> list[np.ndarray]:
    """The roots' arrays; sums inside one operator are accumulated in float64. What overflows is infinite or ``nan``.

    Args:
        roots: terms without sizes or attributes that are not known.
        given: an array for every variable, at its own element type.
        dtype: the element type that the rule's class ``f`` stands for: what an omitted ``dtype`` attribute means.

    Raises:
        RuleError: superopt has no such operator, or not with such an attribute.
        IllTyped: an operator does not accept these types or attributes.
    """
    found: dict[Term, tuple[np.ndarray | None, ...]] = {}
    for term in postorder(*roots):
        if isinstance(term, Var):
            found[term] = (given[term.name],)
        elif isinstance(term, Project):
            found[term] = (found[term.term][term.index],)
        else:
            found[term] = _applied(term, [None if a is None else found[a][0] for a in term.args], dtype)
    return [np.asarray(found[r][0]) for r in roots]


def _applied(term: App, arrays: Sequence[np.ndarray | None], dtype: DType) -> tuple[np.ndarray | None, ...]:
    types = [None if a is None else TensorType(DType.of(a.dtype), a.shape) for a in arrays]
    with np.errstate(all="ignore"):
        return evaluate_application(operator_of(term), complete(term, dtype), arrays, types)

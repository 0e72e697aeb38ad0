"""Directions that leave the range of a floating-point type where their source stays in it.

A rule is proved over the reals, where ``Exp(x) / ReduceSum(Exp(x))`` is ``Softmax(x)``. In float32 the one is ``nan``
from x = 89 on, and the other is not, since its kernels subtract the largest element first. The rule may be used from
left to right, but not from right to left: what a model computes must not come to depend on how large its values are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from superopt.ir.errors import SuperoptError
from superopt.ir.poly import value_at
from superopt.ir.terms import App, Project, Term, Var, postorder
from superopt.ir.types import DType, TensorType
from superopt.ops.meaning import IllTyped
from superopt.rules.rule import CLASSES, Rule
from superopt.rules.typing import at_sizes, complete, operator_of
from superopt.runtime.reference import evaluate_application

__all__ = ["overflows"]

# Operators that take moderate numbers out of range, or back into it from where a kernel cannot follow.
_FAR = frozenset({"Exp", "Log", "Pow", "Reciprocal", "Sqrt", "Div", "Sinh", "Cosh"})
_ELEMENTS = (0.0, 1.0, -1.0, 0.5, -8.0, 100.0, -100.0, 600.0, -600.0)  # exp(600) is finite in float64, not in float32
_DRAWS = 18
_SIZE, _REAL = 2, 0.5  # of every symbolic size or attribute


def overflows(rule: Rule, source: Sequence[Term], target: Sequence[Term]) -> bool:
    """Whether the target side is infinite or ``nan`` in float32 at elements at which the source side is finite.

    Only targets with more of the far-reaching operators than the source has are evaluated, at small sizes, at elements
    of magnitudes up to 600. Where that cannot be done (sizes that do not fit, say), the answer is no: a result's
    check, which runs the whole model at edges, has the last word anyway.

    Args:
        rule: a plain rule (an instance, without ``...``).
        source: the side that is there.
        target: the side that would take its place.
    """
    if _far(target) <= _far(source):
        return False
    sizes = dict.fromkeys((*rule.sizes, *rule.attribute_atoms), _SIZE)
    rng = np.random.default_rng(0)
    try:
        sides = at_sizes(rule, sizes, dict.fromkeys(rule.attribute_atoms, _REAL))
        left, right = sides if list(source) == list(rule.lhs) else sides[::-1]
        for number in range(_DRAWS):
            given = _drawn(rule, sizes, number, rng)
            with np.errstate(all="ignore"):
                if _finite(left, given) and not _finite(right, given):
                    return True
    except (SuperoptError, IllTyped, ArithmeticError):
        return False
    return False


def _far(roots: Sequence[Term]) -> Counter[str]:
    return Counter(t.op for t in postorder(*roots) if isinstance(t, App) and t.op in _FAR)


def _drawn(rule: Rule, sizes: Mapping[str, int], number: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Elements of every variable; of reals, a draw takes a few of the interesting ones, or one for each variable."""
    few = [_ELEMENTS[number // 2 % len(_ELEMENTS)], *rng.choice(_ELEMENTS, 2)]
    found = {}
    for name, scheme in rule.tensors.items():
        shape = tuple(value_at(d, sizes) for d in scheme.shape)
        dtype = DType(CLASSES[scheme.dtype])
        below = 2 if scheme.below is None else value_at(scheme.below, sizes)
        real = rng.choice(few, shape if number % 2 else ()) + np.zeros(shape)
        drawn = real if dtype.is_float else rng.integers(0, below, shape)
        found[name] = drawn.astype(dtype.numpy)
    return found


def _finite(roots: Sequence[Term], given: Mapping[str, np.ndarray]) -> bool:
    """Whether all elements of the roots are, where every operator's result is rounded to float32."""
    found: dict[Term, tuple[np.ndarray | None, ...]] = {}
    for term in postorder(*roots):
        if isinstance(term, Var):
            found[term] = (given[term.name],)
        elif isinstance(term, Project):
            found[term] = (found[term.term][term.index],)
        else:
            arrays = [None if a is None else found[a][0] for a in term.args]
            types = [None if a is None else TensorType(DType.of(a.dtype), a.shape) for a in arrays]
            found[term] = evaluate_application(operator_of(term), complete(term), arrays, types)
    return all(np.isfinite(np.asarray(found[r][0])).all() for r in roots)

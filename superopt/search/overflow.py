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
from superopt.ir.terms import App, Term, postorder
from superopt.ir.types import DType
from superopt.ops.meaning import IllTyped
from superopt.rules.evaluation import evaluated
from superopt.rules.rule import CLASSES, Rule
from superopt.rules.typing import at_sizes

__all__ = ["overflows"]

# Operators that take moderate numbers out of range, or back into it from where a kernel cannot follow.
_FAR = frozenset({"Exp", "Log", "Pow", "Reciprocal", "Sqrt", "Div", "Sinh", "Cosh"})
_ELEMENTS = (0.0, 1.0, -1.0, 0.5, -8.0, 100.0, -100.0, 600.0, -600.0)  # exp(600) is finite in float64, not in float32
_DRAWS = 18
_SIZE, _REAL = 2, 0.5  # of every symbolic size or attribute


def overflows(rule: Rule, *, backward: bool) -> bool:
    """Whether the target side is infinite or ``nan`` in float32 at elements at which the source side is finite.

    Only targets with more of the far-reaching operators than the source has are evaluated, at small sizes, at elements
    of magnitudes up to 600. Where that cannot be done (sizes that do not fit, say), the answer is no: a result's
    check, which runs the whole model at edges, has the last word anyway.

    Args:
        rule: a plain rule (an instance, without ``...``).
        backward: whether the right side is the source, the one that is there, and the left one would take its place.
    """
    source, target = (rule.rhs, rule.lhs) if backward else (rule.lhs, rule.rhs)
    if _far(target) <= _far(source):
        return False
    sizes = dict.fromkeys((*rule.sizes, *rule.attribute_atoms), _SIZE)
    rng = np.random.default_rng(0)
    try:
        left, right = at_sizes(rule, sizes, dict.fromkeys(rule.attribute_atoms, _REAL))
        source, target = (right, left) if backward else (left, right)
        for number in range(_DRAWS):
            given = _drawn(rule, sizes, number, rng)
            if _finite(source, given) and not _finite(target, given):
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
    return all(np.isfinite(array).all() for array in evaluated(roots, given))

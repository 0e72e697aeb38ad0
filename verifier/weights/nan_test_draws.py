"""What a test is computed from, and draws of it at which the test may have another answer.

A test is followed back to inputs of the model and to sums of products (MatMul, Conv, Gemm, Einsum), which are drawn as
finite numbers of several magnitudes. What lies between, masks included, is computed in float64: a mask that a model
computes from an input masks whole rows at some draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from superopt.ir.errors import NotEquivalent
from superopt.ops.shape_inference import CanonicalNode
from superopt.runtime.comprehension_evaluation import Array
from superopt.verifier.weights.draws import ConstrainedDraws, DrawnValueEvaluator, SizedGraph

__all__ = ["check_answer", "leaves_of_test"]

_MOST = 64  # nodes between a test and what is drawn
_SUMS = frozenset({"Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul"})
_SCALES = (1.0, 0.0, 100.0, 1e-3)  # of drawn reals, a turn each


def leaves_of_test(side: SizedGraph, name: str) -> list[str]:
    """The values that a test is computed from.

    Raises:
        NotEquivalent: a node on the way is not understood, or there are too many.
    """
    found: dict[str, None] = {}
    stack, seen = [name], {name}
    while stack:
        here = stack.pop()
        node = side.node(here)
        how = None if node is None else side.typing.nodes[side.nodes[here]]
        if node is None or (isinstance(how, CanonicalNode) and how.operator.name in _SUMS):
            found[here] = None
            continue
        for read in (a for a in side.applied(here).args if a is not None):
            if read not in seen and not side.constant(read):
                seen.add(read)
                stack.append(read)
        if len(seen) > _MOST:
            raise NotEquivalent(f"{name!r} is computed by more than {_MOST} nodes")
    return list(found)


def check_answer(
    values: DrawnValueEvaluator,
    name: str,
    answer: bool,
    leaves: Sequence[str],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    seed: int,
) -> None:
    """Check that a test has one answer at all draws of what it is computed from.

    Args:
        values: what evaluates the model.
        name: of the test.
        answer: of all its elements.
        leaves: what it is computed from.
        shapes: of those.
        seed: of the draws.

    Raises:
        NotEquivalent: some element has another answer.
    """
    for turn in range(len(_SCALES)):
        draws = ConstrainedDraws(values.before, {}, None, np.random.default_rng((seed, turn)), shapes)
        given = {leaf: _drawn_leaf(draws, leaf, turn) for leaf in leaves}
        array = values.evaluated(values.before, [name], given, draws)[name]
        if not (array == float(answer)).all():
            raise NotEquivalent(f"{name!r} is not {'true' if answer else 'false'} everywhere")


def _drawn_leaf(draws: ConstrainedDraws, name: str, turn: int) -> Array:
    """A value at random: reals of one scale a turn; integers and booleans also all 0 and all 1."""
    array = draws.value(name)
    if draws.side.kind(name).dtype.is_float:
        return array * _SCALES[turn]
    return array if turn in (0, len(_SCALES) - 1) else np.full_like(array, turn - 1)

"""Checks a value that is read from a table against the model, at every value of its index.

The values of the index are read off the model again: its element type, what makes it, or the axis that a Gather reads
(a position beyond it is an error). Any other integer is one that may occur: those about the table's ends and the
extremes of the type are tried. They stand at random places, so a value that depends on the place is refuted, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from superopt.ir.errors import NotEquivalent
from superopt.ir.types import DType
from superopt.rules.weight_claims import LookupTableValue
from superopt.verifier.weights.draws import ConstrainedDraws, DrawnValueEvaluator, SizedGraph, fixed_shape

__all__ = ["check_tabulated"]

_MOST_RUNS = 64  # of both sides; of more values as many are drawn as these runs hold
_BYTES = (DType.INT8, DType.UINT8)
# Of the largest element, what the runtime's sums of thousands of terms may be off.
_ROUNDING = {DType.FLOAT16: 2.0**-7, DType.BFLOAT16: 2.0**-4}
_SINGLE = 2.0**-16


def check_tabulated(
    claim: LookupTableValue, before: SizedGraph, after: SizedGraph, values: DrawnValueEvaluator, seed: int
) -> None:
    """Check a value of the result that a table gives.

    Args:
        claim: which value, and of what.
        before: the model.
        after: the result.
        values: what evaluates both.
        seed: of the draws.

    Raises:
        NotEquivalent: at some value of the index the two differ.
    """
    rng = np.random.default_rng(seed)
    shape = fixed_shape(before.kind(claim.index))
    count = max(prod(shape), 1)
    numbers = rng.permutation(np.asarray(_numbers(claim, before), dtype=object))
    numbers = np.resize(numbers, -(-numbers.size // count) * count)[: _MOST_RUNS * count]
    for part in numbers.reshape(-1, *shape):
        index = part.astype(np.int64)
        draws = ConstrainedDraws(before, {}, None, rng, {})
        try:
            wanted, array = (
                values.evaluated(side, [claim.value], {claim.index: index}, draws)[claim.value]
                for side in (before, after)
            )
        except IndexError as error:
            raise NotEquivalent(f"a value of {claim.index!r} has no row: {error}") from None
        kind = before.kind(claim.value)
        share = _ROUNDING.get(kind.dtype, _SINGLE) if kind.dtype.is_float else 0.0
        alike = array.shape == wanted.shape and np.allclose(
            array, wanted, rtol=0, atol=share * float(np.abs(wanted).max(initial=0.0)), equal_nan=True
        )
        if not alike:
            raise NotEquivalent(f"{claim.value!r} is not what the table of {claim.index!r} says")


def _numbers(claim: LookupTableValue, side: SizedGraph) -> Sequence[int]:
    """Values that the index may have."""
    bounds = _bounds(side, claim.index)
    if bounds is not None:
        return range(bounds[0], bounds[1] + 1)
    ends = np.iinfo(side.kind(claim.index).dtype.numpy)
    reach = 2 * (claim.high - claim.low + 2)
    return [*range(-reach, reach + 1), int(ends.min), int(ends.min) + 1, int(ends.max), -(2**31), 2**31 - 1]


def _bounds(side: SizedGraph, name: str) -> tuple[int, int] | None:
    """The least and the largest value of an index; ``None`` where any integer may occur."""
    dtype = side.kind(name).dtype
    if dtype in _BYTES:
        return int(np.iinfo(dtype.numpy).min), int(np.iinfo(dtype.numpy).max)
    if lengths := list(_axis_lengths(side, name)):
        return -min(lengths), min(lengths) - 1
    if side.node(name) is None:
        return None
    how = side.applied(name)
    if how.operator.name == "Cast" and how.args[0] is not None and side.kind(how.args[0]).dtype in _BYTES:
        return _bounds(side, how.args[0])
    low, high = how.attributes.get("min"), how.attributes.get("max")
    if how.operator.name == "Clip" and isinstance(low, int) and isinstance(high, int):
        return low, high
    return None


def _axis_lengths(side: SizedGraph, name: str) -> Iterator[int]:
    """Lengths of the axes that Gathers read at these positions."""
    for node in side.graph.consumers.get(name, ()):
        if node.op == "Gather" and node.domain == "" and node.inputs[1] == name:
            axis, shape = side.applied(node.outputs[0]).attributes["axis"], side.kind(node.inputs[0]).shape or ()
            length = shape[axis] if isinstance(axis, int) else None
            if isinstance(length, int):
                yield length

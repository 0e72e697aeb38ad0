"""Evaluates meanings over arrays of numbers: floats, residues of a prime field, exact rationals.

>>> import numpy as np
>>> from superopt.ir.types import DType, TensorType
>>> from superopt.ops.meaning import build, tensor, total
>>> x = TensorType(DType.FLOAT32, (2, 3))
>>> rows = build(lambda x: tensor([2], lambda i: total(3, lambda t: x[i, t])), [x]).outputs[0]
>>> evaluate(rows, [np.arange(6.0).reshape(2, 3)], FLOAT64, {}).tolist()
[3.0, 12.0]

How it stays fast on real layers: every subexpression becomes an array over the index variables it depends on and
no others (the mean inside a LayerNormalization has one value per row); affine reads are views; a sum of products
becomes a matrix product; a guard on one index variable splits that variable's range instead of masking; a large
temporary makes it go over an output axis in pieces.

In floating point (``algebra.logarithmic``) an exponential is kept as (mantissa, exponent) until its value is needed.
So ``exp(x)·inv(Σ exp(x))`` is a softmax that does not overflow, wherever the quotient is formed, and so are
``log(Σ exp(x))``, ``log(1 + exp(x))`` and ``exp(x)·inv(1 + exp(x))``. No other rearrangement is made.

Guards and reads outside an operand contribute an exact 0 (or the stated value) to a sum of products; multiplied by an
infinite factor that 0 gives NaN, as a padded zero does in real runtimes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from superopt.ops.meaning import Comprehension
from superopt.runtime._algebra import FLOAT64, Algebra, Array, Float64
from superopt.runtime._evaluation import Evaluation
from superopt.runtime._program import lower

__all__ = ["FLOAT64", "Algebra", "Array", "Float64", "evaluate"]

LIMIT = 6 * 2**20  # elements of one temporary (48 MB of float64; a handful are alive at once)


def evaluate(
    comprehension: Comprehension,
    operands: Sequence[Array | None],
    algebra: Algebra,
    sizes: Mapping[str, int | Array],
    *,
    limit: int = LIMIT,
) -> Array:
    """The output array that a meaning describes.

    Args:
        comprehension: the meaning of one output.
        operands: an array of elements of the algebra per operand of the meaning; ``None`` for an absent one.
        algebra: the arithmetic.
        sizes: what symbolic sizes and attribute atoms are: integers, or 0-d arrays of elements of the algebra for
            real attributes.
        limit: most elements of a temporary array; larger ones are avoided by evaluating the output in pieces.

    Returns:
        The elements in the output's shape, digits of an axis merged; do not write to it, it may be a view.

    Raises:
        KeyError: a size is not bound.
    """
    whole = {name: value for name, value in sizes.items() if isinstance(value, int)}
    reals = {name: value for name, value in sizes.items() if not isinstance(value, int)}
    program = lower(comprehension, whole, frozenset(reals))
    shape = tuple(prod(extent for _, extent in axis) for axis in program.axes)
    digits = [digit for axis in program.axes for digit in axis]
    domain = {variable: (0, extent) for variable, extent in digits}
    run = Evaluation(program, operands, algebra, reals, limit)
    with np.errstate(all="ignore"):
        pieces = run.pieces(domain)
        if len(pieces) == 1:
            return run.output(domain).reshape(shape)
        result: Array | None = None
        for piece in pieces:
            part = run.output(piece)
            if result is None:
                result = np.empty([extent for _, extent in digits], part.dtype)
            elif result.dtype != part.dtype:
                result = result.astype(np.result_type(result, part))
            result[tuple(slice(*piece[v]) for v, _ in digits)] = part
            run.forget(domain)
        assert result is not None
        return result.reshape(shape)

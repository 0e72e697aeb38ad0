"""Evaluates meanings over arrays of numbers: floats, residues of a prime field, exact rationals."""

from __future__ import annotations

from superopt.runtime._algebra import FLOAT64, Algebra, Array, Float64

__all__ = ["FLOAT64", "Algebra", "Array", "Float64", "evaluate"]

# evaluate(comprehension, operands: Sequence[Array | None], algebra, sizes: Mapping[str, int | Array]) -> Array

"""What an operator does to rounding errors, read from its meaning: whether it is exact, and whether it jumps.

A constant that a rewrite made is evaluated in float64 and rounded once. That is nearer to the real number than what a
runtime computes step by step, and as good, as long as nothing downstream jumps: just below 7, ``Floor`` is 6. So it may
go through a jump only where it has no rounding error at all, and a cast that rounds is never evaluated ahead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from superopt.ir.types import DType, TensorType
from superopt.ops.operator_semantics import (
    ElementRead,
    OperatorSemantics,
    ScalarCall,
    ScalarConditional,
    ScalarConstant,
    ScalarExpression,
    ScalarReduction,
    SizeExpression,
    parts,
)

__all__ = ["EXACT", "JUMPS", "RoundingEffect", "moves", "representable", "rounding_of"]

# Of FUNCTIONS: those whose result is always a number that the operands' own type holds …
EXACT = frozenset({
    "max", "min", "abs", "floor", "ceil", "round", "sign", "less", "equal", "not", "and", "or", "xor", "select",
    "truncdiv", "floormod", "truncmod", "cast_int", "isnan", "isinf",
})  # fmt: skip
# … and those that jump: however small an error of a real operand is, the result's need not be.
JUMPS = frozenset({
    "floor", "ceil", "round", "sign", "less", "equal", "truncdiv", "floormod", "truncmod", "cast_int", "isnan", "isinf",
})  # fmt: skip
_MANTISSA = {
    DType.BFLOAT16: 8,
    DType.FLOAT16: 11,
    DType.FLOAT32: 24,
    DType.FLOAT64: 53,
}  # bits, the hidden one included
_EXPONENT = {DType.BFLOAT16: 8, DType.FLOAT16: 5, DType.FLOAT32: 8, DType.FLOAT64: 11}


@dataclass(frozen=True)
class RoundingEffect:
    """How an application treats errors of its operands.

    Attributes:
        exact: of exact operands the result is exact, in its own element type.
        jumps: somewhere, however small an error of an operand is, that of the result is not.
        narrows: it rounds to a narrower type on purpose: a cast that a float does not survive unchanged.
    """

    exact: bool
    jumps: bool
    narrows: bool = False


@dataclass(frozen=True)
class _Exactness:
    """Of a scalar expression. ``discrete``: integers or truth values, which have no rounding error."""

    exact: bool
    jumps: bool
    discrete: bool


def rounding_of(
    meaning: OperatorSemantics, given: Sequence[TensorType | None], results: Sequence[TensorType]
) -> RoundingEffect:
    """What a meaning at these types does to errors; indices are whole numbers and do not count."""
    dtypes = [None if t is None else t.dtype for t in given]
    found = [_scalar(c.body, dtypes, r.dtype) for c, r in zip(meaning.outputs, results, strict=True)]
    turned = {
        (d, r.dtype) for c, r in zip(meaning.outputs, results, strict=True) for o in _read(c.body)
        if (d := dtypes[o]) is not None
    }  # fmt: skip
    narrows = any(_narrows(source, target) for source, target in turned)
    exact = all(f.exact for f in found) and all(_holds(source, target) for source, target in turned)
    return RoundingEffect(exact and not narrows, any(f.jumps for f in found), narrows)


def moves(meaning: OperatorSemantics, given: Sequence[TensorType | None], results: Sequence[TensorType]) -> bool:
    """Whether each element of the outputs is one of an operand of the same type, or written in the operator.

    Which one must not depend on data: a position may be out of range.
    """
    for comprehension, result in zip(meaning.outputs, results, strict=True):
        kinds = [given[o] for o in _read(comprehension.body)]
        if not _moves(comprehension.body) or any(k is None or k.dtype != result.dtype for k in kinds):
            return False
    return True


def representable(value: Fraction | float, dtype: DType) -> bool:
    """Whether an element type holds a number as it is."""
    if isinstance(value, float):
        return True  # infinite or NaN
    if not dtype.is_float:
        return value.denominator == 1
    try:
        wide = float(value)
    except OverflowError:
        return False
    with np.errstate(over="ignore"):
        return Fraction(wide) == value and float(np.float64(wide).astype(dtype.numpy)) == wide


def _values(body: ScalarExpression) -> Iterator[ScalarExpression]:
    """Every scalar that is a value, operands first; what stands in indices is not. Iterative: a Concat is as deep as
    its operands are many."""
    stack, seen = [(body, False)], set[int]()
    while stack:
        scalar, expanded = stack.pop()
        if expanded:
            yield scalar
        elif id(scalar) not in seen:
            seen.add(id(scalar))
            stack.append((scalar, True))
            if not isinstance(scalar, ElementRead):
                stack.extend((p, False) for p in parts(scalar))


def _read(body: ScalarExpression) -> set[int]:
    """The operands whose elements are values here, not positions."""
    return {s.operand for s in _values(body) if isinstance(s, ElementRead)}


def _moves(body: ScalarExpression) -> bool:
    for scalar in _values(body):
        match scalar:
            case ElementRead(_, index) if not any(isinstance(i, ScalarExpression) for i in index):
                pass
            case ScalarConstant() | SizeExpression() | ScalarConditional():
                pass
            case _:
                return False
    return True


def _narrows(source: DType, target: DType) -> bool:
    """Whether numbers of a float type are rounded, or cut off, to be of another type."""
    return source.is_float and (target.is_integer or (target.is_float and not _holds(source, target)))


def _holds(source: DType, target: DType) -> bool:
    """Whether every number of one type is one of the other's; truth values are 0 and 1."""
    if source == target or DType.BOOL in (source, target):
        return True
    if target.is_float:
        bits = _MANTISSA.get(target, 0)
        if source.is_float:
            return _MANTISSA.get(source, 64) <= bits and _EXPONENT.get(source, 64) <= _EXPONENT.get(target, 0)
        return source.bits <= bits
    return source.is_integer  # what would wrap around has no meaning


def _scalar(body: ScalarExpression, dtypes: Sequence[DType | None], result: DType) -> _Exactness:
    found: dict[int, _Exactness] = {}
    for scalar in _values(body):
        inside = [] if isinstance(scalar, ElementRead) else [found[id(p)] for p in parts(scalar)]
        found[id(scalar)] = _one(scalar, inside, dtypes, result)
    return found[id(body)]


def _one(
    scalar: ScalarExpression, inside: Sequence[_Exactness], dtypes: Sequence[DType | None], result: DType
) -> _Exactness:
    """What is found of a scalar, given what was found of its parts."""
    exact, jumps = all(f.exact for f in inside), any(f.jumps for f in inside)
    discrete = all(f.discrete for f in inside)
    match scalar:
        case ElementRead(operand):
            dtype = dtypes[operand]
            return _Exactness(True, False, dtype is not None and not dtype.is_float)
        case ScalarConstant(value):
            whole = isinstance(value, Fraction) and value.denominator == 1
            return _Exactness(representable(value, result) or (whole and not result.is_float), False, whole)
        case SizeExpression():
            return _Exactness(not result.is_float, False, True)
        case ScalarConditional():
            return _Exactness(exact, jumps, discrete)
        case ScalarReduction(kind):
            return _Exactness(exact and (discrete or kind in ("max", "min")), jumps, discrete)
        case ScalarCall(function, args):
            whole = function in ("less", "equal", "not", "and", "or", "xor", "isnan", "isinf")
            certain = function in EXACT or (function == "mul" and any(_is_sign(a) for a in args))
            closed = discrete and function in ("add", "mul")
            return _Exactness(
                exact and (certain or closed), jumps or (function in JUMPS and not discrete),
                whole or (discrete and (certain or closed)),
            )  # fmt: skip
    return _Exactness(False, True, False)


def _is_sign(scalar: ScalarExpression) -> bool:
    return isinstance(scalar, ScalarConstant) and abs(scalar.value) == 1

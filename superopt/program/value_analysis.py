"""Value analysis: bounds of magnitudes, signs, and whether a value carries rounding errors.

Verdicts on rules in floating point (:mod:`superopt.rules.float_verdicts`) hold under conditions on operands, and these
facts decide the conditions. The analysis starts at weights, whose elements are read, and at inputs, which are only
known to be finite. It goes through operators by interval bounds. A value carries rounding errors where an inexact
operator computed it and only data movement followed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from math import ceil, inf, isfinite, log2, sqrt
from typing import NamedTuple

import numpy as np

from superopt.ir.terms import AttributeValue
from superopt.ir.types import DType, TensorType
from superopt.rules.float_verdicts import GENEROUS, SafeConditions

__all__ = [
    "ANYTHING", "ValueFacts", "rounded_facts", "result_facts", "array_facts", "conditions_hold", "merged",
    "stands_for_rounded",
]  # fmt: skip


class ValueFacts(NamedTuple):
    """Facts of a value's elements.

    Attributes:
        rounded: they are results of inexact arithmetic that depend on inputs.
        finite: none is infinite or nan where the inputs are finite, barring overflow.
        most: a bound of their magnitudes; infinite where there is none.
        least: a bound from below of the magnitudes of those that are not 0; 0 where there is none.
        regular: as ``finite``, and no operator on the way has a pole: no division by what may be 0, no logarithm.
        sign: :data:`POSITIVE` or :data:`NOT_NEGATIVE` where all of them are; else 0.
        masked: some may be -infinity; each row along the last axis has one that is finite, and the rest is as in
            ``regular``. A Softmax of such rows is finite.
    """

    rounded: bool = False
    finite: bool = True
    most: float = inf
    least: float = 0.0
    regular: bool = True
    sign: int = 0
    masked: bool = False


NOT_NEGATIVE, POSITIVE = 1, 2
ANYTHING = ValueFacts()
OPAQUE = ValueFacts(regular=False)  # what an operator makes of which nothing is known
_LARGEST = 1 << 26  # bytes of a weight up to which its elements are looked at
_RUNGS = (-20, -10, -4)  # exponents by which least magnitudes of float32 are told apart
_ORDINARY = 2.0 ** (GENEROUS[1] + 1)
# Constants beside which an operand that nothing rounded may stand where a verdict wants a rounded one. A unit of its
# rounding, times constants up to 2⁷ or divided by ones from 2⁻¹⁰ (a variance: a deviation of 2⁻⁵), moves a result of
# magnitude 1 by at most 2⁷ units of float32: 7.6e-6, less than the errors that `standard` allows fast algorithms.
_MOST_BESIDE = 2.0**7
_LEAST_DIVISOR = 2.0**-10
# Exponents by which bounds of float32 are told apart: the ends of windows.
_LADDER = (-60, -48, -40, -30, -20, 3, 4, 5, 6, 7, 8, 10, 20, 30, 40, 48, 62, 80, 100, 120, 124, 126, 127, 128)
# Data is moved, or chosen; -1 and max(x, 0) are exact too.
_EXACT = frozenset({
    "Abs", "Clip", "Concat", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather", "GatherElements", "GatherND",
    "GlobalMaxPool", "Identity", "Max", "MaxPool", "Min", "Neg", "OneHot", "Pad", "ReduceMax", "ReduceMin", "Relu",
    "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Where",
})  # fmt: skip
_UNIT = frozenset({"Erf", "HardSigmoid", "Sigmoid", "Softmax", "Softsign", "Tanh", "Sin", "Cos"})  # magnitudes up to 1
_MEANS = frozenset({"AveragePool", "GlobalAveragePool", "ReduceMean", "Mean"})
_SMALLER = frozenset({"Gelu", "HardSwish", "LeakyRelu", "Mish", "Swish", "ThresholdedRelu", "Shrink"})
_SUMS = frozenset({"Add", "Sub", "Sum"})
# Finite at all finite numbers, as normalisations by a positive epsilon; with those above, what is not in _DOMAIN.
_TOTAL = frozenset({
    "And", "Atan", "Attention", "BatchNormalization", "Cast", "Ceil", "Celu", "Conv", "ConvTranspose", "CumSum",
    "Einsum", "Elu", "Equal", "EyeLike", "Floor", "Gemm", "Greater", "GreaterOrEqual", "GroupNormalization",
    "InstanceNormalization", "LayerNormalization", "Less", "LessOrEqual", "LogSoftmax", "MatMul", "Mul", "Not", "Or",
    "PRelu", "RMSNormalization", "Range", "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceSum", "ReduceSumSquare",
    "Resize", "Round", "ScatterND", "Selu", "Sign", "Softplus", "Trilu",
}) | _EXACT | _UNIT | _MEANS | _SMALLER | _SUMS  # fmt: skip
_DOMAIN: Mapping[str, tuple[int, int]] = {  # operator → the operand and the sign that it has to have there
    "Div": (1, POSITIVE), "Log": (0, POSITIVE), "Pow": (0, POSITIVE), "Reciprocal": (0, POSITIVE),
    "Sqrt": (0, NOT_NEGATIVE),
}  # fmt: skip
_NONE_NEGATIVE = frozenset({"Abs", "Exp", "ReduceL1", "ReduceL2", "ReduceSumSquare", "Relu", "Sigmoid", "Softmax"})
_KEEPS_SIGN = frozenset({
    "Add", "Concat", "Div", "Expand", "Flatten", "Gather", "GlobalAveragePool", "Identity", "Max", "Min", "Mul",
    "Reciprocal", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Reshape", "Slice", "Split", "Sqrt", "Squeeze",
    "Sum", "Tile", "Transpose", "Unsqueeze",
})  # fmt: skip


def array_facts(array: np.ndarray) -> ValueFacts:
    """Facts of a weight, from its elements."""
    if not array.size or array.dtype.kind in "biuOUS" or array.nbytes > _LARGEST:
        return ANYTHING
    wide = array if array.dtype in (np.float32, np.float64) else array.astype(np.float32)
    bottom = float(wide.min())
    top = max(float(wide.max()), -bottom)
    if not isfinite(top):
        rows = wide.ndim > 0 and float(wide.max()) < inf and bool((wide.max(axis=-1) > -inf).all())  # NaN is neither
        return ValueFacts(finite=False, regular=False, masked=rows)
    # Of a scalar or elements along one axis, by which layers divide. Those of matrices would tell equal layers apart.
    least = float(np.abs(wide).min()) if array.size == max(array.shape, default=1) else 0.0
    if array.dtype.itemsize <= 2:  # float16 and bfloat16: underflow is near
        sizes = np.abs(wide)
        least = float(np.min(sizes, where=sizes > 0, initial=inf))
        least = least if isfinite(least) else top
    return ValueFacts(most=top, least=least, sign=_sign_of(bottom))


def result_facts(
    op: str, attributes: Mapping[str, AttributeValue], args: Sequence[ValueFacts | None],
    types: Sequence[TensorType | None], constant: bool, uniform: Sequence[float | None],
) -> ValueFacts:  # fmt: skip
    """Facts of an application's result (of every output).

    Args:
        op: the operator.
        attributes: its canonical attributes.
        args: facts of its arguments.
        types: of its arguments.
        constant: it depends on weights alone.
        uniform: of each argument, the one value of all its elements, where it has one.
    """
    if op in ("Constant", "ConstantOfShape"):
        given = attributes.get("values", ()) if op == "Constant" else (attributes.get("value", 0.0),)
        return _of_numbers(given if isinstance(given, tuple) else ())
    real = [
        a for a, t in zip(args, types, strict=True)
        if a is not None and (t is None or t.dtype.is_float)
    ]  # fmt: skip
    finite = all(a.finite for a in real) or op in _UNIT
    sign = _sign(op, real)
    regular = all(a.regular for a in real) and (_is_total(op, real) or _is_whole_power(op, uniform))
    masked = not regular and _has_masked_rows(op, args, types)
    regular = regular or (op == "Softmax" and _over_masked_rows(attributes, args, types))
    most, least = _bounds(op, real, types)
    exact = op in _EXACT or _scales_exactly(op, uniform)
    if op not in _EXACT and most >= _ORDINARY:
        most = inf  # a bound, which nothing need reach: it says no more than none
    moving = [a for a, u in zip(args, uniform, strict=True) if a is not None and u is None] if exact else []
    chosen = [a for a in moving if a in real]
    rounded = not constant and (all(a.rounded for a in chosen) and bool(chosen) if exact else bool(real))
    return ValueFacts(rounded, finite, most, least, regular, sign, masked)


def _has_masked_rows(op: str, args: Sequence[ValueFacts | None], types: Sequence[TensorType | None]) -> bool:
    """Whether it is a sum of rows that a mask leaves one element of, at least, and of finite ones."""
    given = [(a, t) for a, t in zip(args, types, strict=True) if a is not None and t is not None and t.shape]
    masks = [t.shape[-1] for a, t in given if a.masked and t.shape]
    if op != "Add" or len(given) != len(args) or len(masks) != 1:
        return False
    others = [t.shape[-1] for a, t in given if a.regular and t.shape]
    return len(others) == 1 and others[0] in (1, masks[0])


def _over_masked_rows(
    attributes: Mapping[str, AttributeValue], args: Sequence[ValueFacts | None], types: Sequence[TensorType | None]
) -> bool:  # fmt: skip
    """Whether a Softmax goes along rows that a mask leaves one element of, at least."""
    first, kind = args[0], types[0]
    if first is None or kind is None or kind.shape is None:
        return False
    return first.masked and attributes.get("axis") in (-1, len(kind.shape) - 1)


def _is_whole_power(op: str, uniform: Sequence[float | None]) -> bool:
    exponent = uniform[1] if op == "Pow" else None
    return exponent is not None and exponent >= 0 and exponent.is_integer()


def _of_numbers(values: Sequence[object]) -> ValueFacts:
    """Facts of a literal's elements."""
    numbers = [float(v) if isinstance(v, int | float) else inf for v in values]
    if not all(map(isfinite, numbers)):
        return ValueFacts(finite=False, regular=False)
    sizes = [abs(v) for v in numbers]
    least = min((s for s in sizes if s), default=0.0)
    return ValueFacts(most=max(sizes, default=0.0), least=least, sign=_sign_of(min(numbers, default=-1.0)))


def _sign_of(bottom: float) -> int:
    """Of numbers whose least is this."""
    return POSITIVE if bottom > 0 else NOT_NEGATIVE if bottom == 0 else 0


def _sign(op: str, real: Sequence[ValueFacts]) -> int:
    if op in _NONE_NEGATIVE:
        return NOT_NEGATIVE
    if op not in _KEEPS_SIGN or not real:
        return 0
    signs = [a.sign for a in real]
    return max(signs) if op in ("Add", "Sum") and all(signs) else min(signs)


def _is_total(op: str, real: Sequence[ValueFacts]) -> bool:
    """Whether finite operands of what is known of these give a finite result, barring overflow."""
    if op not in _DOMAIN:
        return op in _TOTAL
    place, wanted = _DOMAIN[op]
    return place < len(real) and real[place].sign >= wanted


def _scales_exactly(op: str, uniform: Sequence[float | None]) -> bool:
    """A product or quotient by a power of two, or a sum with 0."""
    if op in ("Mul", "Div"):
        return any(u is not None and u != 0 and isfinite(u) and log2(abs(u)).is_integer() for u in uniform)
    return op in ("Add", "Sub") and any(u == 0 for u in uniform)


def _bounds(op: str, real: Sequence[ValueFacts], types: Sequence[TensorType | None]) -> tuple[float, float]:
    if not real:
        return inf, 0.0
    each = [a.most for a in real]
    if op in _EXACT:
        return max(each), min(a.least for a in real) if op not in ("Clip", "Pad") else 0.0
    if op in _UNIT:
        return 1.0, 0.0
    if op in _MEANS or op in _SMALLER:
        return each[0], 0.0
    if op in _SUMS:
        return sum(each), 0.0
    if op == "Mul":
        return _product(each), _product([a.least for a in real])
    if op in ("Div", "Reciprocal") and real[-1].sign == POSITIVE and real[-1].least > 0:
        return (each[0] if op == "Div" else 1.0) / real[-1].least, 0.0
    if op in ("MatMul", "Conv", "Gemm", "ReduceSum"):
        terms = _terms(op, types)
        extra = each[2] if len(each) > 2 else 0.0
        return terms * _product(each[:2] if op != "ReduceSum" else each) + extra, 0.0
    if op in ("LayerNormalization", "RMSNormalization", "InstanceNormalization") and len(each) > 1:
        return sqrt(_elements(types[0])) * each[1] + (each[2] if len(each) > 2 else 0.0), 0.0
    return inf, 0.0


def _product(sizes: Sequence[float]) -> float:
    found = 1.0
    for size in sizes:
        found = 0.0 if size == 0 or found == 0 else found * size
    return found


def _terms(op: str, types: Sequence[TensorType | None]) -> float:
    """How many products, or elements, a sum has at most."""
    if op == "ReduceSum":
        return _elements(types[0])
    weights = types[1] if len(types) > 1 else None
    if weights is None or weights.shape is None or not weights.shape:
        return inf
    first = weights.shape[0]
    if op == "MatMul":
        size = weights.shape[-2] if len(weights.shape) > 1 else first
        return float(size) if isinstance(size, int) else inf
    return _elements(weights) / first if op == "Conv" and isinstance(first, int) and first else _elements(weights)


def _elements(kind: TensorType | None) -> float:
    count = None if kind is None else kind.elements
    return float(count) if isinstance(count, int) else inf


def merged(a: ValueFacts, b: ValueFacts) -> ValueFacts:
    """Facts of a value of which both are true. Exact wins: what an input is equal to is exactly that input."""
    if a == b:
        return a
    return ValueFacts(
        a.rounded and b.rounded, a.finite or b.finite, min(a.most, b.most), max(a.least, b.least),
        a.regular and b.regular, max(a.sign, b.sign), a.masked or b.masked,
    )  # fmt: skip


def rounded_facts(known: ValueFacts, dtype: DType) -> ValueFacts:
    """What verdicts can tell apart, so that layers whose weights differ a little are still alike."""
    if dtype == DType.FLOAT16:
        least = 2.0 ** (ceil(log2(known.least)) - 1) if 0 < known.least < inf else 0.0
        return known._replace(most=_above(known.most, range(-30, 17)), least=least)
    least = next((2.0**e for e in reversed(_RUNGS) if known.least >= 2.0**e), 0.0)
    return known._replace(most=_above(known.most, _LADDER), least=least)


def _above(size: float, exponents: Sequence[int]) -> float:
    return next((2.0**e for e in exponents if size < 2.0**e), inf)


def stands_for_rounded(constants: Mapping[str, ValueFacts], divisors: Set[str], dtype: DType) -> bool:
    """Whether the constants of a match are such that its other operands need not be results of inexact arithmetic.

    A verdict that wants a rounded operand says that a unit of its rounding explains all that the direction does to the
    result. What a unit amounts to follows from the constants, and here they are known.

    Args:
        constants: facts of the constant operands.
        divisors: names of those by which something is divided.
        dtype: the element type.
    """
    if dtype not in (DType.FLOAT32, DType.FLOAT64):
        return False
    return all(
        k.finite
        and k.most <= _MOST_BESIDE
        and (n not in divisors or (k.sign == POSITIVE and k.least >= _LEAST_DIVISOR))
        for n, k in constants.items()
    )


def conditions_hold(
    ways: Sequence[SafeConditions], known: Mapping[str, ValueFacts], types: Mapping[str, TensorType], dtype: DType,
    as_rounded: Set[str] = frozenset(),
) -> bool:  # fmt: skip
    """Whether some way's conditions hold of the operands.

    A window that ordinary data does not leave is only held against an operand that is known to leave it: the result's
    check, whose inputs have several magnitudes, has the last word. Any other has to be known.

    Args:
        ways: of which one has to hold.
        known: facts of the operands.
        types: their types.
        dtype: the element type.
        as_rounded: operands that may stand for rounded ones (:func:`stands_for_rounded`).
    """
    return any(_meets(way, known, types, dtype, as_rounded) for way in ways)


def _meets(
    way: SafeConditions, known: Mapping[str, ValueFacts], types: Mapping[str, TensorType], dtype: DType,
    as_rounded: Set[str],
) -> bool:  # fmt: skip
    if way.finite and not all(k.finite for k in known.values()):
        return False
    if way.regular and not all(_is_regular(known[n]) for n, t in types.items() if n in known and t.dtype.is_float):
        return False
    if not all(known[n].rounded or n in as_rounded for n in way.rounded if n in known):
        return False
    narrow = dtype == DType.FLOAT16
    margin = max((_longest(t) for t in types.values()), default=1.0) if narrow else 1.0
    for name, (low, high) in way.window.items():
        found = known.get(name)
        if found is None:
            continue
        inside = found.most * margin < 2.0 ** (high + 1)
        if way.generous and not narrow:
            if (isfinite(found.most) and not inside) or 0 < found.most <= 2.0**low:
                return False
        elif not inside or (low > _LEAST[dtype] and not found.least >= 2.0**low):
            return False
    return True


def _is_regular(known: ValueFacts) -> bool:
    """Whether it is a constant's, or what arithmetic without a pole makes: that asks its own operands to be finite."""
    return known.regular and (known.rounded or isfinite(known.most))


_LEAST = {DType.FLOAT16: -24, DType.BFLOAT16: -133, DType.FLOAT32: -149, DType.FLOAT64: -149}  # of denormals


def _longest(kind: TensorType) -> float:
    """The longest axis: windows were found with a few terms in a sum."""
    return max((float(d) if isinstance(d, int) else inf for d in kind.shape or ()), default=1.0)

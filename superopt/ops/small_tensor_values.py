"""Values of small tensors, symbolic where sizes are: what an exported model computes its shapes with.

``Shape → Gather → Mul → Concat → Reshape`` is followed by evaluating each operator's meaning over polynomials. A value
that is not certain (a comparison of unknown sizes, a float that rounds) makes the result unknown, never wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product as indices
from math import ceil, floor, trunc

import numpy as np

from superopt.ir.size_polynomial import Dim, SizePolynomial, substitute
from superopt.ir.types import DType
from superopt.ops.onnx_node_conversion import surely_nonnegative
from superopt.ops.operator_semantics import (
    ElementRead,
    IndexCondition,
    ScalarCall,
    ScalarConditional,
    ScalarConstant,
    ScalarExpression,
    ScalarReduction,
    SizeExpression,
    TensorComprehension,
)  # fmt: skip

__all__ = ["LIMIT", "SmallTensorValue", "evaluate_small", "small_of_array"]

LIMIT = 128  # elements of a value that is followed: sizes of the parts of a Split, which forms have up to 121 of
FLOATS = 8  # the same for floats: bounds, scales and ratios, but no weights
_SIZED = 32  # bits of the types that are taken to hold every size: those of fewer wrap or round at ordinary ones
STEPS = 20_000  # scalar operations spent on one output

Element = Dim | Fraction


class UnknownTensorValue(Exception):
    """The value is not certain."""


@dataclass(frozen=True)
class SmallTensorValue:
    """Elements in row-major order: integers, polynomials over sizes, or rationals."""

    dtype: DType
    shape: tuple[int, ...]
    elements: tuple[Element, ...]

    @property
    def integers(self) -> tuple[Dim, ...] | None:
        """The elements of a vector or scalar of integers."""
        if len(self.shape) > 1 or not all(isinstance(e, int | SizePolynomial) for e in self.elements):
            return None
        return tuple(e for e in self.elements if isinstance(e, int | SizePolynomial))

    @property
    def array(self) -> np.ndarray | None:
        """The elements as an array, if none is symbolic or beyond what its type holds: who computes it wraps it."""
        if any(isinstance(e, SizePolynomial) for e in self.elements):
            return None
        flat = [float(e) if isinstance(e, Fraction) else e for e in self.elements]
        try:
            return np.array(flat, dtype=self.dtype.numpy).reshape(self.shape)
        except OverflowError:
            return None


def small_of_array(array: np.ndarray, dtype: DType) -> SmallTensorValue | None:
    """A known array as a small value; ``None`` if it is large, not numeric or not finite."""
    if array.size > (FLOATS if dtype.is_float else LIMIT) or not (
        dtype.is_float or dtype.is_integer or dtype == DType.BOOL
    ):
        return None
    if not dtype.is_float:
        return SmallTensorValue(dtype, tuple(array.shape), tuple(int(v) for v in array.reshape(-1)))
    wide = array.astype(np.float64).reshape(-1)
    if not np.isfinite(wide).all():
        return None
    return SmallTensorValue(dtype, tuple(array.shape), tuple(whole(Fraction(float(v))) for v in wide))


def whole(value: Fraction) -> Element:
    return value.numerator if value.denominator == 1 else value


def evaluate_small(
    comprehension: TensorComprehension,
    arguments: Sequence[SmallTensorValue | None],
    dtype: DType,
) -> SmallTensorValue | None:
    """The output's elements, or ``None`` where they are many or not certain."""
    shape = comprehension.shape
    if not all(isinstance(s, int) for s in shape):
        return None
    known = tuple(s for s in shape if isinstance(s, int))
    digits = [(v, e) for axis in comprehension.axes for v, e in axis]
    count = 1
    for size in known:
        count *= size
    if count > LIMIT or not all(isinstance(e, int) for _, e in digits):
        return None
    run = _Run(arguments, dtype)
    try:
        elements = []
        for at in indices(*(range(e) for _, e in digits if isinstance(e, int))):
            place: dict[str, Dim] = {v: i for (v, _), i in zip(digits, at, strict=True)}
            elements.append(run.result(run.value(comprehension.body, place)))
    except (UnknownTensorValue, ZeroDivisionError, OverflowError):  # a rational beyond float64's largest number
        return None
    return SmallTensorValue(dtype, known, tuple(elements))


class _Run:
    """One evaluation, bounded in steps; recursion is as deep as one operator's meaning."""

    def __init__(self, arguments: Sequence[SmallTensorValue | None], dtype: DType) -> None:
        self.arguments = arguments
        self.dtype = dtype
        self.left = STEPS

    def result(self, value: Element) -> Element:
        """The value as the output's element type holds it, if exactly."""
        if isinstance(value, SizePolynomial):
            if self.dtype.bits < _SIZED:
                raise UnknownTensorValue
            return value
        if self.dtype.is_float:
            with np.errstate(over="ignore"):  # infinity equals no value
                held = np.asarray(float(value)).astype(self.dtype.numpy)
            if float(held.astype(np.float64)) != value:
                raise UnknownTensorValue
        elif isinstance(value, Fraction) or abs(value) >= 2**63:
            raise UnknownTensorValue
        return value

    def value(self, scalar: ScalarExpression, at: Mapping[str, Dim]) -> Element:
        self.left -= 1
        if self.left < 0:
            raise UnknownTensorValue
        match scalar:
            case ScalarConstant(v):
                if isinstance(v, float):
                    raise UnknownTensorValue
                return whole(v)
            case SizeExpression(size):
                return substitute(size, at)
            case ElementRead():
                return self.read(scalar, at)
            case ScalarCall(function, args):
                return self.call(function, args, at)
            case ScalarConditional(conditions, then, otherwise):
                return self.value(then if all(self.holds(c, at) for c in conditions) else otherwise, at)
            case ScalarReduction(kind, variable, extent, body):
                return self.reduce(kind, variable, substitute(extent, at), body, at)
        raise UnknownTensorValue

    def holds(self, condition: IndexCondition, at: Mapping[str, Dim]) -> bool:
        known = IndexCondition(condition.kind, substitute(condition.size, at)).known
        if known is None:
            raise UnknownTensorValue
        return known

    def read(self, read: ElementRead, at: Mapping[str, Dim]) -> Element:
        source = self.arguments[read.operand]
        if source is None:
            raise UnknownTensorValue
        flat = 0
        for index, size in zip(read.index, source.shape, strict=True):
            position = self.value(index, at) if isinstance(index, ScalarExpression) else substitute(index, at)
            if not isinstance(position, int):
                raise UnknownTensorValue
            if not 0 <= position < size:
                if read.outside is None:
                    raise UnknownTensorValue
                return self.value(read.outside, at)
            flat = flat * size + position
        return source.elements[flat]

    def reduce(self, kind: str, variable: str, extent: Dim, body: ScalarExpression, at: Mapping[str, Dim]) -> Element:
        if not isinstance(extent, int) or extent > LIMIT or (extent == 0 and kind in ("max", "min")):
            raise UnknownTensorValue
        values = [self.value(body, {**at, variable: i}) for i in range(extent)]
        function = {"sum": "add", "prod": "mul"}.get(kind, kind)
        if not values:
            return 0 if kind == "sum" else 1
        folded = values[0]
        for value in values[1:]:
            folded = apply(function, (folded, value))
        return folded

    def call(self, function: str, args: tuple[ScalarExpression, ...], at: Mapping[str, Dim]) -> Element:
        if function == "select":
            chosen = self.value(args[0], at)
            if isinstance(chosen, SizePolynomial):
                raise UnknownTensorValue
            return self.value(args[1] if chosen else args[2], at)
        return apply(function, tuple(self.value(a, at) for a in args))


def apply(function: str, args: tuple[Element, ...]) -> Element:
    """A function of the meaning language on certain values.

    Raises:
        UnknownTensorValue: the result is not certain or not rational.
    """
    if any(isinstance(a, SizePolynomial) for a in args):
        return apply_symbolic(function, tuple(a for a in args if not isinstance(a, Fraction)), len(args))
    exact = tuple(Fraction(a) for a in args if not isinstance(a, SizePolynomial))
    match function, exact:
        case "add", (a, b):
            return whole(a + b)
        case "mul", (a, b):
            return whole(a * b)
        case (("max" | "min"), (a, b)):
            return whole(max(a, b) if function == "max" else min(a, b))
        case "inv", (a,):
            return whole(1 / a)
        case "abs", (a,):
            return whole(abs(a))
        case "sign", (a,):
            return (a > 0) - (a < 0)
        case (("floor" | "ceil" | "round" | "cast_int"), (a,)):
            rounding: Mapping[str, Callable[[Fraction], int]] = {
                "floor": floor, "ceil": ceil, "round": round, "cast_int": trunc,
            }  # fmt: skip
            return rounding[function](a)
        case "less", (a, b):
            return int(a < b)
        case "equal", (a, b):
            return int(a == b)
        case "not", (a,):
            return int(a == 0)
        case (("and" | "or" | "xor"), (a, b)):
            left, right = a != 0, b != 0
            return int({"and": left and right, "or": left or right, "xor": left != right}[function])
        case "truncdiv", (a, b):
            return trunc(a / b)
        case "floormod", (a, b):
            return whole(a - b * floor(a / b))
        case "truncmod", (a, b):
            return whole(a - b * trunc(a / b))
    raise UnknownTensorValue


def apply_symbolic(function: str, args: tuple[Dim, ...], arity: int) -> Element:
    """The same where a size is symbolic. What is decided holds for sizes of 0, too, unless it divides by them."""
    if len(args) != arity:
        raise UnknownTensorValue
    match function, args:
        case "add", (a, b):
            return a + b
        case "mul", (a, b):
            return a * b
        case (("floor" | "ceil" | "round" | "cast_int"), (a,)):
            return a
        case "abs", (a,) if surely_nonnegative(a, 0):
            return a
        case (("max" | "min"), (a, b)):
            if surely_nonnegative(a - b, 0):
                return a if function == "max" else b
            if surely_nonnegative(b - a, 0):
                return b if function == "max" else a
        case "less", (a, b):
            if surely_nonnegative(b - a - 1, 0):
                return 1
            if surely_nonnegative(a - b, 0):
                return 0
        case "equal", (a, b):
            if a == b:
                return 1
            if surely_nonnegative(a - b - 1, 0) or surely_nonnegative(b - a - 1, 0):
                return 0
        case (("truncdiv" | "floormod"), (a, b)) if surely_nonnegative(b - 1):
            if function == "floormod":
                return a % b
            if surely_nonnegative(a):
                return a // b
    raise UnknownTensorValue

"""What straight-line arithmetic comes to at many points at once: as kernels round it, and much more precisely.

The precise values are in the 80-bit format of x87 (64 bits of fraction, 15 of exponent): products of some hundred
float32 extremes stay in range, and every value comes with a bound of the *rounding error that the kernels themselves
may make*, from the same operations in the same order (a running error analysis, Higham 2002, §3.3). The precise
value's own error obeys the same bound with 2⁻⁶⁴ in the place of 2⁻²⁴: it is below 2⁻⁴⁰ of what it is compared with,
whatever cancels. (For float16 and bfloat16 even less. The error function is evaluated in float64: 2⁻²⁹.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import erf
from typing import Any

import numpy as np

from superopt.ir.types import DType
from superopt.verifier.floats.scalar_program import Node

__all__ = [
    "FLOAT64",
    "FORMATS",
    "FloatFormat",
    "PreciseValues",
    "cone",
    "degree_of",
    "kernel_values",
    "rounded",
    "sensitivities",
    "wide_values",
]

Array = np.ndarray[Any, Any]
# variable → [element, point], elements of the type at hand held in float32
Inputs = Mapping[str, Array | Mapping[int, Array]]
WIDE = np.longdouble
_FUNCTION_ULPS = 4.0  # what elementary functions of mathematical libraries are off by, in units of rounding


@dataclass(frozen=True)
class FloatFormat:
    """A floating-point type: ``unit`` of rounding, half the least denormal, the exponents of normal numbers.

    ``inner`` and ``inner_tiny`` are the unit and half the least denormal of what an operator computes with inside:
    float32 for all three types that are searched.
    """

    dtype: DType
    unit: float
    tiny: float
    exponents: tuple[int, int]
    largest: float
    inner: float = 2.0**-24
    inner_tiny: float = 2.0**-150


FORMATS: Mapping[DType, FloatFormat] = {
    DType.FLOAT32: FloatFormat(DType.FLOAT32, 2.0**-24, 2.0**-150, (-126, 127), float(np.finfo(np.float32).max)),
    DType.FLOAT16: FloatFormat(DType.FLOAT16, 2.0**-11, 2.0**-25, (-14, 15), 65504.0),
    DType.BFLOAT16: FloatFormat(DType.BFLOAT16, 2.0**-8, 2.0**-134, (-126, 127), float(255 * 2.0**120)),
}
# Not searched: its verdicts are float32's, but where kernels differ. Half of its least denormal would be 0 here.
FLOAT64 = FloatFormat(
    DType.FLOAT64, 2.0**-53, 5e-324, (-1022, 1023), float(np.finfo(np.float64).max), 2.0**-53, 5e-324
)  # fmt: skip


def rounded(array: Array, dtype: DType) -> Array:
    """Float32 elements rounded to a type (to nearest, ties to even) and held in float32."""
    if dtype == DType.FLOAT16:
        with np.errstate(over="ignore"):
            return array.astype(np.float16).astype(np.float32)
    if dtype == DType.BFLOAT16:
        bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
        upper = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
        return np.where(np.isfinite(array), upper.view(np.float32), array)
    return array


def cone(nodes: Sequence[Node], roots: Iterable[int]) -> list[int]:
    """The nodes that roots depend on, operands first."""
    found: set[int] = set()
    stack = list(roots)
    while stack:
        number = stack.pop()
        if number not in found:
            found.add(number)
            stack.extend(operands(nodes[number]))
    return sorted(found)


def operands(node: Node) -> tuple[int, ...]:
    return () if node[0] in ("read", "const") else tuple(node[1:])


def degree_of(nodes: Sequence[Node], roots: Iterable[int]) -> float:
    """How many factors the largest product has: by that much less of the range each of them has for itself."""
    degree: dict[int, float] = {}
    for number in cone(nodes, roots):
        name, *args = nodes[number]
        below = [degree[a] for a in operands(nodes[number])]
        if name in ("mul", "div"):
            degree[number] = sum(below)
        elif name == "pow":
            value = nodes[args[1]][1] if nodes[args[1]][0] == "const" else 2
            degree[number] = below[0] * max(1.0, abs(float(value)))
        elif name == "sqrt":
            degree[number] = below[0] / 2
        else:
            degree[number] = 1.0 if name == "read" else max(below, default=0.0)
    return max((d for d in degree.values()), default=1.0)


def _erf(x: Array) -> Array:
    return np.fromiter(map(erf, x.astype(np.float64).ravel().tolist()), np.float64, x.size).reshape(x.shape)


_RISING: Mapping[str, Callable[[Array], Array]] = {
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "erf": _erf, "tanh": np.tanh, "sinh": np.sinh, "asin": np.arcsin,
    "atan": np.arctan, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "floor": np.floor, "ceil": np.ceil, "round": np.rint, "cast_int": np.trunc, "sign": np.sign,
}  # fmt: skip  # monotone ones: bounds go through them at the ends of an interval
_FUNCTIONS: Mapping[str, Callable[..., Array]] = {
    **_RISING, "sin": np.sin, "cos": np.cos, "tan": np.tan, "acos": np.arccos, "cosh": np.cosh,
    "add": np.add, "mul": np.multiply, "div": np.divide, "inv": np.reciprocal, "neg": np.negative, "abs": np.abs,
    "max": np.maximum, "min": np.minimum, "pow": np.power,
    "less": lambda a, b: a < b, "equal": lambda a, b: a == b, "not": lambda a: a == 0,
    "and": lambda a, b: (a != 0) & (b != 0), "or": lambda a, b: (a != 0) | (b != 0),
    "xor": lambda a, b: (a != 0) ^ (b != 0), "isnan": np.isnan, "isinf": np.isinf,
    "truncdiv": lambda a, b: np.trunc(a / b), "floormod": np.mod, "truncmod": np.fmod,
}  # fmt: skip
_LOGICAL = frozenset({"less", "equal", "not", "and", "or", "xor", "isnan", "isinf"})
_STEPS = frozenset({"floor", "ceil", "round", "cast_int", "sign"})  # exact, but they jump


def _named(name: str, args: Sequence[Array], real: type) -> Array:
    if name == "select":
        return np.where(args[0] != 0, args[1], args[2])
    array = _FUNCTIONS[name](*args)
    return array.astype(real) if name in _LOGICAL or array.dtype != real else array


def _constant(value: Fraction | float, real: type) -> Array:
    if isinstance(value, float):
        return np.asarray(value, real)
    if real is np.float32:
        return np.asarray(np.float32(float(value)))
    return np.asarray(WIDE(value.numerator) / WIDE(value.denominator))


def kernel_values(nodes: Sequence[Node], order: Sequence[int], inputs: Inputs, dtype: DType) -> dict[int, Array]:
    """Every node's values as kernels of a type round them, held in float32: [point] each."""
    arrays: dict[int, Array] = {}
    with np.errstate(all="ignore"):
        for number in order:
            name, *args = nodes[number]
            if name == "read":
                arrays[number] = inputs[args[0]][args[1]]
            elif name == "const":
                arrays[number] = _constant(args[0], np.float32)
            elif name == "to_type":
                arrays[number] = rounded(arrays[args[0]], dtype)
            elif name == "sum":
                total = arrays[args[0]] + arrays[args[1]]
                for part in args[2:]:
                    total = total + arrays[part]
                arrays[number] = total
            else:
                arrays[number] = _named(name, [arrays[a] for a in args], np.float32)
    return arrays


@dataclass(frozen=True)
class PreciseValues:
    """Precise values by node, and bounds of the rounding error of kernels (float64; infinite where there is none)."""

    values: Mapping[int, Array]
    errors: Mapping[int, Array]


def wide_values(nodes: Sequence[Node], order: Sequence[int], inputs: Inputs, form: FloatFormat) -> PreciseValues:
    """Every node precisely, with what the rounding of the operations up to it may add up to."""
    values: dict[int, Array] = {}
    errors: dict[int, Array] = {}
    sizes: dict[int, Array] = {}
    zero = np.zeros(())
    with np.errstate(all="ignore"):
        for number in order:
            name, *args = nodes[number]
            if name == "read":
                values[number], errors[number] = inputs[args[0]][args[1]].astype(WIDE), zero
            elif name == "const":
                values[number] = _constant(args[0], WIDE)
                stored = np.float64 if form.dtype == DType.FLOAT64 else np.float32
                exact = stored(values[number]) == values[number]
                errors[number] = zero if exact else abs(values[number].astype(np.float64)) * form.inner
            else:
                given_arrays = [values[a] for a in args]
                for a in args:
                    if a not in sizes:
                        sizes[a] = np.abs(values[a]).astype(np.float64)
                beside = [sizes[a] for a in args], [errors[a] for a in args]
                values[number], errors[number] = _step_with_error(name, given_arrays, *beside, nodes, args, form)
    return PreciseValues(values, errors)


def _step_with_error(
    name: str, args: Sequence[Array], sizes: Sequence[Array], errors: Sequence[Array], nodes: Sequence[Node],
    numbers: Sequence[int], form: FloatFormat,
) -> tuple[Array, Array]:  # fmt: skip
    match name:
        case "to_type":
            if form.unit == form.inner:
                return args[0], errors[0]  # rounded where it was computed
            exact = nodes[numbers[0]][0] in ("add", "neg")  # sums of two are never lost in the denormals
            own = sizes[0] * form.unit
            return args[0], errors[0] + (own if exact else np.maximum(own, form.tiny))
        case "sum":
            value, size, error = args[0], sizes[0], errors[0]
            for a, s, e in zip(args[1:], sizes[1:], errors[1:], strict=True):
                value, size, error = value + a, size + s, error + e
            return value, error + (len(args) - 1) * form.inner * (size + error)
        case "add":
            value = args[0] + args[1]
            error = errors[0] + errors[1]
            return value, error + form.inner * (np.abs(value).astype(np.float64) + error)
        case "mul":
            value = args[0] * args[1]
            error = sizes[0] * errors[1] + sizes[1] * errors[0] + errors[0] * errors[1]
        case "div":
            value = args[0] / args[1]
            least = sizes[1] - errors[1]
            size = np.abs(value).astype(np.float64)
            error = np.where(least > 0, (errors[0] + size * errors[1]) / least, np.inf)
            error = np.where((errors[0] == 0) & (errors[1] == 0), 0.0, error)
        case "inv":
            value = 1 / args[0]
            least = sizes[0] - errors[0]
            error = np.where(least > 0, errors[0] / (sizes[0] * least), np.inf)
            error = np.where(errors[0] == 0, 0.0, error)
        case "neg" | "abs":
            return _named(name, args, WIDE), errors[0]
        case "max" | "min":
            return _named(name, args, WIDE), np.maximum(errors[0], errors[1])
        case "select":
            chosen = args[0] != 0
            return np.where(chosen, args[1], args[2]), np.where(chosen, errors[1], errors[2])
        case "pow":
            value = np.power(args[0], args[1])
            size = np.abs(value).astype(np.float64)
            relative = sizes[1] * errors[0] / sizes[0] + np.abs(np.log(sizes[0])) * errors[1]
            error = np.where((errors[0] == 0) & (errors[1] == 0), 0.0, size * np.expm1(relative))
        case _:
            value, error = _through(name, args, errors)
            if name in _LOGICAL or name in _STEPS:
                return value, error
    size = np.abs(value).astype(np.float64)
    units = 1.0 if name in ("mul", "div", "inv", "sqrt") else _FUNCTION_ULPS
    return value, error + np.maximum(units * form.inner * (size + error), form.inner_tiny)


def _through(name: str, args: Sequence[Array], errors: Sequence[Array]) -> tuple[Array, Array]:
    """A function, and how far it moves if its argument does. Jumps do not count: none is an excuse for another."""
    value = _named(name, args, WIDE)
    if name in _LOGICAL or name in _STEPS or not any(np.any(e) for e in errors):
        return value, np.zeros(())
    if name in _RISING:
        off = errors[0].astype(WIDE)
        ends = [np.abs(_RISING[name](args[0] + sign * off) - value).astype(np.float64) for sign in (1, -1)]
        found = np.maximum(*ends)
        return value, np.where(np.isnan(found), np.inf, found)
    if name in ("sin", "cos"):
        return value, np.minimum(errors[0], 2.0)
    return value, np.where(errors[0] == 0, 0.0, np.inf)


def sensitivities(nodes: Sequence[Node], order: Sequence[int], wide: PreciseValues, root: int) -> dict[str, Array]:
    """``Σ |∂root/∂v · v|`` over the elements of every variable ``v``, by variable: total derivatives.

    A variable that occurs twice and cancels contributes what remains: the derivative of ``a − (a − x)`` by ``a`` is 0.
    """
    adjoint: dict[int, Array] = {root: np.ones((), WIDE)}
    arrays: dict[str, Array] = {}
    values = wide.values
    with np.errstate(all="ignore"):
        for number in reversed(order):
            above = adjoint.pop(number, None)
            name, *args = nodes[number]
            if above is None or name == "const":
                continue
            if name == "read":
                size = np.abs(above * values[number]).astype(np.float64)
                arrays[args[0]] = arrays[args[0]] + size if args[0] in arrays else size
                continue
            for arg, slope in zip(args, _slopes(name, [values[a] for a in args], values[number]), strict=True):
                if slope is not None:
                    part = above * slope
                    adjoint[arg] = adjoint[arg] + part if arg in adjoint else part
    return arrays


def _slopes(name: str, args: Sequence[Array], value: Array) -> list[Array | None]:
    """Partial derivatives of a function; ``None`` where it is flat."""
    one = np.ones((), WIDE)
    match name:
        case "to_type":
            return [one]
        case "sum" | "add":
            return [one] * len(args)
        case "mul":
            return [args[1], args[0]]
        case "div":
            return [1 / args[1], -value / args[1]]
        case "inv":
            return [-value * value]
        case "neg":
            return [-one]
        case "abs":
            return [np.sign(args[0])]
        case "max" | "min":
            first = (args[0] >= args[1]) if name == "max" else (args[0] <= args[1])
            second = (args[1] >= args[0]) if name == "max" else (args[1] <= args[0])
            return [first.astype(WIDE), second.astype(WIDE)]
        case "select":
            return [None, (args[0] != 0).astype(WIDE), (args[0] == 0).astype(WIDE)]
        case "pow":
            return [args[1] * np.power(args[0], args[1] - 1), value * np.log(args[0])]
        case "exp":
            return [value]
        case "log":
            return [1 / args[0]]
        case "sqrt":
            return [0.5 / value]
        case "tanh":
            return [1 - value * value]
        case "erf":
            return [2 / np.sqrt(WIDE(np.pi)) * np.exp(-args[0] * args[0])]
        case "sin":
            return [np.cos(args[0])]
        case "cos":
            return [-np.sin(args[0])]
        case "tan":
            return [1 + value * value]
        case "sinh":
            return [np.cosh(args[0])]
        case "cosh":
            return [np.sinh(args[0])]
        case "asin" | "acos":
            return [(1 if name == "asin" else -1) / np.sqrt(1 - args[0] * args[0])]
        case "atan":
            return [1 / (1 + args[0] * args[0])]
        case "asinh" | "acosh":
            return [1 / np.sqrt(args[0] * args[0] + (1 if name == "asinh" else -1))]
        case "atanh":
            return [1 / (1 - args[0] * args[0])]
    return [None] * len(args)

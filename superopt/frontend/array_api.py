"""Functions of the Python array API on symbolic tensors: each is operators of ONNX.

``x.__array_namespace__()`` is this module, and NumPy's own functions of the same names come here when they are given a
symbolic tensor. What is not here cannot be traced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from superopt.frontend.symbolic_tensor import Axes, Operand, SymbolicTensor
from superopt.ir.errors import UsageError
from superopt.ir.types import DType

__all__ = ["FUNCTIONS"]

UNARY = {
    "abs": "Abs", "absolute": "Abs", "acos": "Acos", "arccos": "Acos", "acosh": "Acosh", "arccosh": "Acosh",
    "asin": "Asin", "arcsin": "Asin", "asinh": "Asinh", "arcsinh": "Asinh", "atan": "Atan", "arctan": "Atan",
    "atanh": "Atanh", "arctanh": "Atanh", "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh", "exp": "Exp", "floor": "Floor",
    "log": "Log", "logical_not": "Not", "negative": "Neg", "reciprocal": "Reciprocal", "round": "Round",
    "sign": "Sign", "sin": "Sin", "sinh": "Sinh", "sqrt": "Sqrt", "tan": "Tan", "tanh": "Tanh",
}  # fmt: skip
BINARY = {
    "add": "Add", "divide": "Div", "true_divide": "Div", "equal": "Equal", "greater": "Greater",
    "greater_equal": "GreaterOrEqual", "less": "Less", "less_equal": "LessOrEqual", "logical_and": "And",
    "logical_or": "Or", "logical_xor": "Xor", "matmul": "MatMul", "maximum": "Max", "minimum": "Min",
    "multiply": "Mul", "pow": "Pow", "power": "Pow", "subtract": "Sub",
}  # fmt: skip
REDUCTIONS = {"max": "ReduceMax", "mean": "ReduceMean", "min": "ReduceMin", "prod": "ReduceProd", "sum": "ReduceSum"}


def first_of(values: Sequence[Any]) -> SymbolicTensor:
    """The first symbolic tensor among operands."""
    return next(v for v in values if isinstance(v, SymbolicTensor))


def elementwise(op: str) -> Callable[..., SymbolicTensor]:
    def function(*operands: Operand) -> SymbolicTensor:
        beside = first_of(operands)
        return beside.builder.op(op, *(beside.like(v) for v in operands))

    return function


def reduction(op: str) -> Callable[..., SymbolicTensor]:
    def function(x: SymbolicTensor, axis: Axes = None, *, keepdims: bool = False) -> SymbolicTensor:
        return x.reduced(op, axis, keepdims)

    return function


def square(x: SymbolicTensor) -> SymbolicTensor:
    return x * x


def where(condition: SymbolicTensor, x: Operand, y: Operand) -> SymbolicTensor:
    beside = next((v for v in (x, y) if isinstance(v, SymbolicTensor)), None)
    return condition.builder.op("Where", condition, *(v if beside is None else beside.like(v) for v in (x, y)))


def reshape(x: SymbolicTensor, shape: Sequence[int] | int) -> SymbolicTensor:
    return x.reshape(*([shape] if isinstance(shape, int) else shape))


def permute_dims(x: SymbolicTensor, axes: Sequence[int] | None = None) -> SymbolicTensor:
    return x.transpose(*(range(x.ndim - 1, -1, -1) if axes is None else axes))


def expand_dims(x: SymbolicTensor, axis: int = 0) -> SymbolicTensor:
    return x.unsqueeze(axis)


def squeeze(x: SymbolicTensor, axis: int | Sequence[int]) -> SymbolicTensor:
    return x.squeeze(*([axis] if isinstance(axis, int) else axis))


def concat(arrays: Sequence[Operand], axis: int = 0) -> SymbolicTensor:
    beside = first_of(arrays)
    return beside.builder.op("Concat", *(beside.like(v) for v in arrays), axis=axis)


def stack(arrays: Sequence[Operand], axis: int = 0) -> SymbolicTensor:
    beside = first_of(arrays)
    return concat([beside.like(v).unsqueeze(axis) for v in arrays], axis)


def broadcast_to(x: SymbolicTensor, shape: Sequence[int]) -> SymbolicTensor:
    return x.builder.op("Expand", x, np.array(shape, np.int64))


def astype(x: SymbolicTensor, dtype: Any) -> SymbolicTensor:
    return x.builder.op("Cast", x, to=list(DType).index(DType.of(np.dtype(dtype))) + 1)


def take(x: SymbolicTensor, indices: Operand, axis: int = 0) -> SymbolicTensor:
    return x.builder.op(
        "Gather", x, np.asarray(indices) if not isinstance(indices, SymbolicTensor) else indices, axis=axis
    )


def cumulative_sum(x: SymbolicTensor, axis: int = 0) -> SymbolicTensor:
    return x.builder.op("CumSum", x, np.array(axis, np.int64))


def clip(
    x: SymbolicTensor, min: float | None = None, max: float | None = None
) -> SymbolicTensor:  # the array API's names
    return x.builder.op("Clip", x, None if min is None else x.like(min), None if max is None else x.like(max))


FUNCTIONS: dict[str, Callable[..., SymbolicTensor]] = {
    **{name: elementwise(op) for name, op in {**UNARY, **BINARY}.items()},
    **{name: reduction(op) for name, op in REDUCTIONS.items()},
    "amax": reduction("ReduceMax"), "amin": reduction("ReduceMin"), "square": square, "where": where,
    "reshape": reshape, "permute_dims": permute_dims, "transpose": permute_dims, "expand_dims": expand_dims,
    "squeeze": squeeze, "concat": concat, "concatenate": concat, "stack": stack, "broadcast_to": broadcast_to,
    "astype": astype, "take": take, "cumulative_sum": cumulative_sum, "cumsum": cumulative_sum, "clip": clip,
}  # fmt: skip


def __getattr__(name: str) -> Callable[..., SymbolicTensor]:
    """The array API's functions by their names."""
    if name not in FUNCTIONS:
        raise AttributeError(f"{name} cannot be traced")
    return FUNCTIONS[name]


def function_named(name: str) -> Callable[..., SymbolicTensor]:
    """A function of the array API, or of NumPy by another name.

    Raises:
        UsageError: it cannot be traced.
    """
    if name not in FUNCTIONS:
        raise UsageError(f"{name} cannot be traced", hint="use functions of the array API: superopt.frontend.array_api")
    return FUNCTIONS[name]

"""Elementwise operators, with ONNX multidirectional broadcasting."""

from __future__ import annotations

from collections.abc import Callable

from superopt.ir.poly import Dim
from superopt.ops.forms import reader, writer
from superopt.ops.meaning import Comprehension, Operand, Scalar, broadcast_dims, call, tensor
from superopt.ops.record import FLOATS, NUMERIC, Operator

__all__ = ["OPERATORS"]


def element(x: Operand, index: tuple[Dim, ...]) -> Scalar:
    """The element of ``x`` that broadcasting puts at an index of the result."""
    inner = index[len(index) - x.rank :] if x.rank else ()
    return x[tuple(0 if size == 1 and isinstance(size, int) else i for i, size in zip(inner, x.shape, strict=True))]


def pointwise(function: Callable[..., Scalar]) -> Callable[..., Comprehension]:
    """The meaning that applies a scalar function to broadcast operands."""

    def meaning(*operands: Operand) -> Comprehension:
        return tensor(
            broadcast_dims([x.shape for x in operands]), lambda *index: function(*(element(x, index) for x in operands))
        )

    return meaning


def unary(name: str, since: int, meaning: Callable[[Scalar], Scalar], dtypes=FLOATS) -> Operator:
    return Operator(
        name=name, inputs=("X",), meaning=pointwise(meaning), since=since, dtypes=dtypes,
        read=reader(), write=writer(since), family="elementwise",
    )  # fmt: skip


def binary(
    name: str, since: int, meaning: Callable[[Scalar, Scalar], Scalar], *, commutative: bool = False, dtypes=NUMERIC
) -> Operator:
    return Operator(
        name=name, inputs=("A", "B"), meaning=pointwise(meaning), since=since, dtypes=dtypes, commutative=commutative,
        read=reader(), write=writer(since), family="elementwise",
    )  # fmt: skip


OPERATORS = (
    unary("Relu", 6, lambda x: call("max", x, 0)),
    unary("Exp", 6, lambda x: call("exp", x)),
    unary("Sigmoid", 6, lambda x: 1 / (1 + call("exp", -x))),
    binary("Add", 7, lambda a, b: a + b, commutative=True),
    binary("Mul", 7, lambda a, b: a * b, commutative=True),
)

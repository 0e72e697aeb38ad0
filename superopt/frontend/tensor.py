"""A handle on one value of a graph under construction, with the operators of an array library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from superopt.ir.errors import UsageError
from superopt.ir.types import TensorType

if TYPE_CHECKING:
    from superopt.frontend.builder import GraphBuilder

__all__ = ["Operand", "Tensor"]


@dataclass(frozen=True, eq=False)
class Tensor:
    """One value of the graph that ``builder`` is making. Arithmetic on it appends nodes to that graph.

    Numbers on either side of an operator become scalar constants of the tensor's element type (float32 where that is
    not known).

    >>> from superopt.frontend import GraphBuilder
    >>> b = GraphBuilder("mean_of_squares")
    >>> x = b.input("x", "float32", (8,))
    >>> b.output((x * x).mean([0], keepdims=False) / 2, "y")
    >>> [n.op for n in b.build().nodes]
    ['Mul', 'ReduceMean', 'Div']
    """

    builder: GraphBuilder
    name: str

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {self.type or 'of a type that is not known'})"

    @property
    def type(self) -> TensorType | None:
        """Element type and shape: declared, or inferred from the operators' records; ``None`` where not known."""
        return self.builder.type_of(self)

    def __add__(self, other: Operand) -> Tensor:
        return self.builder.op("Add", self, other)

    def __radd__(self, other: Operand) -> Tensor:
        return self.builder.op("Add", self.like(other), self)

    def __sub__(self, other: Operand) -> Tensor:
        return self.builder.op("Sub", self, other)

    def __rsub__(self, other: Operand) -> Tensor:
        return self.builder.op("Sub", self.like(other), self)

    def __mul__(self, other: Operand) -> Tensor:
        return self.builder.op("Mul", self, other)

    def __rmul__(self, other: Operand) -> Tensor:
        return self.builder.op("Mul", self.like(other), self)

    def __truediv__(self, other: Operand) -> Tensor:
        return self.builder.op("Div", self, other)

    def __rtruediv__(self, other: Operand) -> Tensor:
        return self.builder.op("Div", self.like(other), self)

    def __pow__(self, other: Operand) -> Tensor:
        return self.builder.op("Pow", self, other)

    def __matmul__(self, other: Operand) -> Tensor:
        return self.builder.op("MatMul", self, other)

    def __rmatmul__(self, other: Operand) -> Tensor:
        return self.builder.op("MatMul", self.like(other), self)

    def __neg__(self) -> Tensor:
        return self.builder.op("Neg", self)

    def __iter__(self) -> Tensor:
        raise UsageError("a symbolic tensor cannot be iterated over", where=self.name, hint="use split or slice")

    def __bool__(self) -> bool:
        raise UsageError(
            "a symbolic tensor has no truth value while a graph is being built", where=self.name, hint="use op('Where')"
        )

    def like(self, other: Operand) -> Tensor:
        """``other`` as a tensor of this graph; a number takes this tensor's element type."""
        return self.builder.operand(other, self)

    def relu(self) -> Tensor:
        return self.builder.op("Relu", self)

    def sigmoid(self) -> Tensor:
        return self.builder.op("Sigmoid", self)

    def tanh(self) -> Tensor:
        return self.builder.op("Tanh", self)

    def exp(self) -> Tensor:
        return self.builder.op("Exp", self)

    def sqrt(self) -> Tensor:
        return self.builder.op("Sqrt", self)

    def erf(self) -> Tensor:
        return self.builder.op("Erf", self)

    def softmax(self, axis: int = -1) -> Tensor:
        return self.builder.op("Softmax", self, axis=axis)

    def reshape(self, *shape: int) -> Tensor:
        """Reshape to ``shape``, where 0 copies the input's size at that place and -1 is what remains (ONNX)."""
        return self.builder.op("Reshape", self, np.array(shape, np.int64))

    def transpose(self, *perm: int) -> Tensor:
        """Axes permuted: axis i of the result is axis ``perm[i]`` of this tensor."""
        return self.builder.op("Transpose", self, perm=perm)

    def unsqueeze(self, *axes: int) -> Tensor:
        return self.builder.op("Unsqueeze", self, np.array(axes, np.int64))

    def squeeze(self, *axes: int) -> Tensor:
        return self.builder.op("Squeeze", self, np.array(axes, np.int64))

    def flatten(self, axis: int = 1) -> Tensor:
        return self.builder.op("Flatten", self, axis=axis)

    def sum(self, axes: Sequence[int], *, keepdims: bool = True) -> Tensor:
        return self.builder.op("ReduceSum", self, np.array(axes, np.int64), keepdims=int(keepdims))

    def mean(self, axes: Sequence[int], *, keepdims: bool = True) -> Tensor:
        return self.builder.op("ReduceMean", self, np.array(axes, np.int64), keepdims=int(keepdims))

    def slice(self, axis: int, start: int, end: int, step: int = 1) -> Tensor:
        """Elements ``start``, ``start + step`` … before ``end`` along ``axis``."""
        bounds = [np.array([v], np.int64) for v in (start, end, axis, step)]
        return self.builder.op("Slice", self, *(bounds if step != 1 else bounds[:3]))

    def take(self, axis: int, index: int) -> Tensor:
        """The slice at ``index`` along ``axis``, without that axis (Gather with a scalar index)."""
        return self.builder.op("Gather", self, np.array(index, np.int64), axis=axis)

    def split(self, sizes: Sequence[int], axis: int) -> tuple[Tensor, ...]:
        """Consecutive parts of the given sizes along ``axis``."""
        return self.builder.ops("Split", self, np.array(sizes, np.int64), outputs=len(sizes), axis=axis)


Operand = Tensor | np.ndarray | np.generic | float | int | Sequence[int]

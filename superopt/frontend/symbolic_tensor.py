"""A handle on one value of a graph under construction, with the operators of an array library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.ir.errors import UsageError
from superopt.ir.size_polynomial import Dim
from superopt.ir.types import TensorType

if TYPE_CHECKING:
    from superopt.frontend.builder import GraphBuilder

__all__ = ["Operand", "SymbolicTensor"]


@dataclass(frozen=True, eq=False)
class SymbolicTensor:
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

    def __add__(self, other: Operand) -> SymbolicTensor:
        return self.builder.op("Add", self, other)

    def __radd__(self, other: Operand) -> SymbolicTensor:
        return self.builder.op("Add", self.like(other), self)

    def __sub__(self, other: Operand) -> SymbolicTensor:
        return self.builder.op("Sub", self, other)

    def __rsub__(self, other: Operand) -> SymbolicTensor:
        return self.builder.op("Sub", self.like(other), self)

    def __mul__(self, other: Operand) -> SymbolicTensor:
        return self.builder.op("Mul", self, other)

    def __rmul__(self, other: Operand) -> SymbolicTensor:
        return self.builder.op("Mul", self.like(other), self)

    def __truediv__(self, other: Operand) -> SymbolicTensor:
        return self.builder.op("Div", self, other)

    def __rtruediv__(self, other: Operand) -> SymbolicTensor:
        return self.builder.op("Div", self.like(other), self)

    def __pow__(self, other: Operand) -> SymbolicTensor:
        return self.builder.op("Pow", self, other)

    def __matmul__(self, other: Operand) -> SymbolicTensor:
        return self.builder.op("MatMul", self, other)

    def __rmatmul__(self, other: Operand) -> SymbolicTensor:
        return self.builder.op("MatMul", self.like(other), self)

    def __neg__(self) -> SymbolicTensor:
        return self.builder.op("Neg", self)

    def __iter__(self) -> SymbolicTensor:
        raise UsageError("a symbolic tensor cannot be iterated over", where=self.name, hint="use split or slice")

    def __bool__(self) -> bool:
        raise UsageError(
            "a symbolic tensor has no truth value while a graph is being built", where=self.name, hint="use op('Where')"
        )

    @property
    def shape(self) -> tuple[Dim, ...]:
        """Sizes of the axes.

        Raises:
            UsageError: even their number is not known.
        """
        kind = self.type
        if kind is None or kind.shape is None:
            raise UsageError("its shape is not known", where=self.name)
        return kind.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def T(self) -> SymbolicTensor:
        """The axes in reverse order."""
        return self.transpose(*range(self.ndim - 1, -1, -1))

    def __lt__(self, other: Operand) -> SymbolicTensor:
        return self.builder.op("Less", self, self.like(other))

    def __le__(self, other: Operand) -> SymbolicTensor:
        return self.builder.op("LessOrEqual", self, self.like(other))

    def __gt__(self, other: Operand) -> SymbolicTensor:
        return self.builder.op("Greater", self, self.like(other))

    def __ge__(self, other: Operand) -> SymbolicTensor:
        return self.builder.op("GreaterOrEqual", self, self.like(other))

    def __getitem__(self, key: int | slice | tuple[int | slice, ...]) -> SymbolicTensor:
        """Basic indexing by known integers and slices, one for each of the first axes."""
        tensor, axis = self, 0
        for part in key if isinstance(key, tuple) else (key,):
            if isinstance(part, slice):
                step = part.step or 1
                first = (0 if step > 0 else -1) if part.start is None else part.start
                last = (2**63 - 1 if step > 0 else -(2**63) + 1) if part.stop is None else part.stop
                if part != slice(None):
                    tensor = tensor.slice(axis, first, last, step)
                axis += 1
            else:
                tensor = tensor.take(axis, part)
        return tensor

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        """Functions of the array API for symbolic tensors."""
        from superopt.frontend import array_api  # which is made of this class

        return array_api

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Operand, **options: object) -> SymbolicTensor:
        """NumPy's functions of elements, on symbolic tensors."""
        from superopt.frontend.array_api import function_named

        if method != "__call__" or options:
            raise UsageError(f"np.{ufunc.__name__}.{method} with {sorted(options)} cannot be traced", where=self.name)
        return function_named(ufunc.__name__)(*inputs)

    def __array_function__(self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> SymbolicTensor:
        """NumPy's other functions, on symbolic tensors."""
        from superopt.frontend.array_api import function_named

        return function_named(function.__name__)(*args, **kwargs)

    def like(self, other: Operand) -> SymbolicTensor:
        """``other`` as a tensor of this graph; a number takes this tensor's element type."""
        return self.builder.operand(other, self)

    def relu(self) -> SymbolicTensor:
        return self.builder.op("Relu", self)

    def sigmoid(self) -> SymbolicTensor:
        return self.builder.op("Sigmoid", self)

    def tanh(self) -> SymbolicTensor:
        return self.builder.op("Tanh", self)

    def exp(self) -> SymbolicTensor:
        return self.builder.op("Exp", self)

    def sqrt(self) -> SymbolicTensor:
        return self.builder.op("Sqrt", self)

    def erf(self) -> SymbolicTensor:
        return self.builder.op("Erf", self)

    def softmax(self, axis: int = -1) -> SymbolicTensor:
        return self.builder.op("Softmax", self, axis=axis)

    def reshape(self, *shape: int) -> SymbolicTensor:
        """Reshape to ``shape``, where 0 copies the input's size at that place and -1 is what remains (ONNX)."""
        return self.builder.op("Reshape", self, np.array(shape, np.int64))

    def transpose(self, *perm: int) -> SymbolicTensor:
        """Axes permuted: axis i of the result is axis ``perm[i]`` of this tensor."""
        return self.builder.op("Transpose", self, perm=perm)

    def unsqueeze(self, *axes: int) -> SymbolicTensor:
        return self.builder.op("Unsqueeze", self, np.array(axes, np.int64))

    def squeeze(self, *axes: int) -> SymbolicTensor:
        return self.builder.op("Squeeze", self, np.array(axes, np.int64))

    def flatten(self, axis: int = 1) -> SymbolicTensor:
        return self.builder.op("Flatten", self, axis=axis)

    def sum(self, axes: Axes = None, *, axis: Axes = None, keepdims: bool | None = None) -> SymbolicTensor:
        """The sum over axes; see :meth:`reduced`."""
        return self.reduced("ReduceSum", axes if axis is None else axis, keepdims)

    def mean(self, axes: Axes = None, *, axis: Axes = None, keepdims: bool | None = None) -> SymbolicTensor:
        """The mean over axes; see :meth:`reduced`."""
        return self.reduced("ReduceMean", axes if axis is None else axis, keepdims)

    def max(self, axes: Axes = None, *, axis: Axes = None, keepdims: bool | None = None) -> SymbolicTensor:
        """The largest along axes; see :meth:`reduced`."""
        return self.reduced("ReduceMax", axes if axis is None else axis, keepdims)

    def min(self, axes: Axes = None, *, axis: Axes = None, keepdims: bool | None = None) -> SymbolicTensor:
        """The smallest along axes; see :meth:`reduced`."""
        return self.reduced("ReduceMin", axes if axis is None else axis, keepdims)

    def reduced(self, op: str, axes: Axes, keepdims: bool | None = None) -> SymbolicTensor:
        """A reduction over axes: a list as ONNX takes it (they stay, of size 1); else as NumPy does (they go).

        Args:
            op: the operator.
            axes: a list; or a number, a tuple, or ``None`` for all.
            keepdims: whether they stay, whatever is usual.
        """
        keep = isinstance(axes, list) if keepdims is None else keepdims
        chosen = range(self.ndim) if axes is None else [axes] if isinstance(axes, int) else axes
        return self.builder.op(op, self, np.array(chosen, np.int64), keepdims=int(keep))

    def slice(self, axis: int, start: int, end: int, step: int = 1) -> SymbolicTensor:
        """Elements ``start``, ``start + step`` … before ``end`` along ``axis``."""
        bounds = [np.array([v], np.int64) for v in (start, end, axis, step)]
        return self.builder.op("Slice", self, *(bounds if step != 1 else bounds[:3]))

    def take(self, axis: int, index: int) -> SymbolicTensor:
        """The slice at ``index`` along ``axis``, without that axis (Gather with a scalar index)."""
        return self.builder.op("Gather", self, np.array(index, np.int64), axis=axis)

    def split(self, sizes: Sequence[int], axis: int) -> tuple[SymbolicTensor, ...]:
        """Consecutive parts of the given sizes along ``axis``."""
        return self.builder.ops("Split", self, np.array(sizes, np.int64), outputs=len(sizes), axis=axis)


Axes = int | Sequence[int] | None
Operand = SymbolicTensor | np.ndarray | np.generic | float | int | Sequence[int]

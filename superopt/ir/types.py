"""Element types and tensor types."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from math import prod

import ml_dtypes
import numpy as np

from superopt.ir.size_polynomial import Dim

__all__ = ["DType", "OpaqueType", "TensorType", "ValueType"]


class DType(StrEnum):
    """An ONNX element type, by its ONNX name in lower case."""

    FLOAT32 = "float32"
    UINT8 = "uint8"
    INT8 = "int8"
    UINT16 = "uint16"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    STRING = "string"
    BOOL = "bool"
    FLOAT16 = "float16"
    FLOAT64 = "float64"
    UINT32 = "uint32"
    UINT64 = "uint64"
    COMPLEX64 = "complex64"
    COMPLEX128 = "complex128"
    BFLOAT16 = "bfloat16"
    FLOAT8E4M3FN = "float8e4m3fn"
    FLOAT8E4M3FNUZ = "float8e4m3fnuz"
    FLOAT8E5M2 = "float8e5m2"
    FLOAT8E5M2FNUZ = "float8e5m2fnuz"
    UINT4 = "uint4"
    INT4 = "int4"
    FLOAT4E2M1 = "float4e2m1"
    FLOAT8E8M0 = "float8e8m0"
    UINT2 = "uint2"
    INT2 = "int2"

    @property
    def is_float(self) -> bool:
        """True for the types that rules about real numbers cover: float16, bfloat16, float32, float64."""
        return self in _REAL

    @property
    def is_integer(self) -> bool:
        return self in _BITS and self.value.startswith(("int", "uint"))

    @property
    def bits(self) -> int:
        """Bits an element takes; 0 for strings, whose size is not fixed."""
        return _BITS.get(self, 0)

    @property
    def numpy(self) -> np.dtype:
        """The NumPy dtype that holds such elements unpacked (one byte each for 2- and 4-bit types)."""
        return _NUMPY[self]

    @staticmethod
    def of(dtype: np.dtype) -> DType:
        """The element type of a NumPy array.

        Raises:
            KeyError: ONNX has no such element type.
        """
        return _FROM_NUMPY[np.dtype(dtype)]


_REAL = frozenset({DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64})
_BITS = {
    DType.BOOL: 8, DType.UINT8: 8, DType.INT8: 8, DType.UINT16: 16, DType.INT16: 16, DType.UINT32: 32,
    DType.INT32: 32, DType.UINT64: 64, DType.INT64: 64, DType.FLOAT16: 16, DType.BFLOAT16: 16,
    DType.FLOAT32: 32, DType.FLOAT64: 64, DType.COMPLEX64: 64, DType.COMPLEX128: 128,
    DType.FLOAT8E4M3FN: 8, DType.FLOAT8E4M3FNUZ: 8, DType.FLOAT8E5M2: 8, DType.FLOAT8E5M2FNUZ: 8,
    DType.FLOAT8E8M0: 8, DType.UINT4: 4, DType.INT4: 4, DType.FLOAT4E2M1: 4, DType.UINT2: 2, DType.INT2: 2,
}  # fmt: skip
_ML = {
    DType.BFLOAT16: "bfloat16", DType.FLOAT8E4M3FN: "float8_e4m3fn", DType.FLOAT8E4M3FNUZ: "float8_e4m3fnuz",
    DType.FLOAT8E5M2: "float8_e5m2", DType.FLOAT8E5M2FNUZ: "float8_e5m2fnuz", DType.UINT4: "uint4",
    DType.INT4: "int4", DType.FLOAT4E2M1: "float4_e2m1fn", DType.FLOAT8E8M0: "float8_e8m0fnu",
    DType.UINT2: "uint2", DType.INT2: "int2",
}  # fmt: skip
_NUMPY = {d: np.dtype(getattr(ml_dtypes, _ML[d])) if d in _ML else np.dtype(d.value) for d in DType if d != "string"}
_NUMPY[DType.STRING] = np.dtype(object)
_FROM_NUMPY = {n: d for d, n in _NUMPY.items()}


@dataclass(frozen=True)
class TensorType:
    """Element type and shape. ``shape`` is ``None`` where even the rank is unknown."""

    dtype: DType
    shape: tuple[Dim, ...] | None

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    @cached_property
    def is_static(self) -> bool:
        """Every dimension is a known integer."""
        return self.shape is not None and all(isinstance(d, int) for d in self.shape)

    @property
    def elements(self) -> Dim | None:
        """Number of elements, symbolic where a dimension is; ``None`` for an unknown rank."""
        return None if self.shape is None else prod(self.shape, start=1)

    @property
    def nbytes(self) -> int | None:
        """Bytes of the packed tensor; ``None`` unless the shape is static."""
        count = self.elements
        return (count * self.dtype.bits + 7) // 8 if isinstance(count, int) else None

    def __str__(self) -> str:
        return f"{self.dtype}[{'*' if self.shape is None else ', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class OpaqueType:
    """A type we carry but do not read (sequence, map, optional, sparse): its serialised ONNX TypeProto."""

    payload: bytes

    def __str__(self) -> str:
        return "opaque"


ValueType = TensorType | OpaqueType

"""Where a weight's elements come from, and the packed bytes in which ONNX and safetensors store them.

*Packed* means ONNX's ``raw_data``: little-endian, row-major, 2- and 4-bit elements several to a byte, lowest bits
first. Digests are those of :class:`superopt.ir.graph.ArrayWeightData`: a weight keeps its digest whichever file it
lives in.
"""

from __future__ import annotations

import contextlib
import hashlib
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from superopt.formats.mapped_file import CHUNK, MappedFile, ScratchArray, scratch
from superopt.ir.errors import InvalidModel, ResourceLimit
from superopt.ir.graph import ArrayWeightData, Graph, WeightData
from superopt.ir.types import DType, TensorType

__all__ = [
    "ScratchWeightData", "FileWeightData", "PackedWeightData", "RandomWeightData", "SparseWeightData", "end_elements",
    "expected_bytes", "pack", "packed_chunks", "refuse_changed_files", "set_aside", "shape_of", "unpack",
]  # fmt: skip

MAX_ELEMENTS = 2**62
_SMALL = 1 << 16  # bytes of a draw that is held: writing as many takes as long as drawing them
_BLOCK = 1 << 17  # elements that are drawn and mapped at a time
MAX_EXPANDED = 8 << 30  # bytes that a few bytes of file may ask for (random and sparse weights)


def shape_of(kind: TensorType) -> tuple[int, ...]:
    """The static shape of a weight's type."""
    assert kind.shape is not None
    return tuple(d for d in kind.shape if isinstance(d, int))


def checked_shape(dims: tuple[int, ...], where: str = "") -> tuple[int, ...]:
    """The same dims, if they can be a tensor's.

    Raises:
        InvalidModel: one is negative, or their product overflows.
    """
    product = 1
    for dim in dims:
        if dim < 0:
            raise InvalidModel(f"a weight has the negative dimension {dim}", where=where)
        product *= max(dim, 1)
        if product > MAX_ELEMENTS:
            raise InvalidModel("the product of the weight's dimensions overflows", where=where)
    return dims


def expected_bytes(kind: TensorType) -> int:
    """Packed bytes of a weight of this type."""
    size = kind.nbytes
    assert size is not None
    return size


def unpack(buffer: bytes | memoryview, kind: TensorType) -> np.ndarray:
    """Elements from packed bytes; a view where elements take whole bytes."""
    dtype, shape = kind.dtype, shape_of(kind)
    if dtype.bits >= 8:
        return np.frombuffer(buffer, dtype.numpy).reshape(shape)
    per_byte = 8 // dtype.bits
    data = np.frombuffer(buffer, np.uint8)
    split = (data[:, None] >> (np.arange(per_byte, dtype=np.uint8) * dtype.bits)) & ((1 << dtype.bits) - 1)
    codes = split.reshape(-1)[: int(np.prod(shape, dtype=np.int64))].reshape(shape).astype(np.uint8)
    if dtype in (DType.INT4, DType.INT2):
        shift = 8 - dtype.bits
        return ((codes << shift).view(np.int8) >> shift).astype(dtype.numpy)
    return codes.view(dtype.numpy) if dtype is DType.FLOAT4E2M1 else codes.astype(dtype.numpy)


def pack(array: np.ndarray, dtype: DType) -> bytes:
    """Packed bytes of the elements, which must already be of the type (strings have no packed form)."""
    flat = np.ascontiguousarray(array, dtype=dtype.numpy).reshape(-1)
    if dtype.bits >= 8:
        return flat.tobytes()
    whole: np.ndarray = flat.view(np.uint8) if dtype is DType.FLOAT4E2M1 else flat.astype(np.int8).view(np.uint8)
    codes: np.ndarray = whole & ((1 << dtype.bits) - 1)
    per_byte = 8 // dtype.bits
    codes = np.concatenate([codes, np.zeros(-len(codes) % per_byte, np.uint8)]).reshape(-1, per_byte)
    return bytes(np.bitwise_or.reduce(codes << (np.arange(per_byte, dtype=np.uint8) * dtype.bits), axis=1).astype("u1"))


def _digest(kind: TensorType, chunks: Iterator[bytes | memoryview]) -> str:
    digest = hashlib.sha256(f"{kind.dtype.numpy}{shape_of(kind)}".encode())
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class PackedWeightData:
    """Elements as packed bytes in memory."""

    type: TensorType
    raw: bytes = field(repr=False)

    @cached_property
    def digest(self) -> str:
        if self.type.dtype.bits < 8:
            return ArrayWeightData(self.numpy()).digest
        return _digest(self.type, iter((self.raw,)))

    def numpy(self) -> np.ndarray:
        return unpack(self.raw, self.type)


@dataclass(frozen=True, eq=False)
class FileWeightData:
    """Packed elements in a file: mapped when they are read, copied in chunks when they are only saved again."""

    type: TensorType
    file: MappedFile
    offset: int

    @cached_property
    def digest(self) -> str:
        if self.type.dtype.bits < 8:
            return ArrayWeightData(self.numpy()).digest
        return _digest(self.type, self.chunks())

    def chunks(self) -> Iterator[bytes | memoryview]:
        return self.file.chunks(self.offset, expected_bytes(self.type))

    def numpy(self) -> np.ndarray:
        size = expected_bytes(self.type)
        if size == 0:
            return unpack(b"", self.type)
        return unpack(self.file.window(self.offset, size), self.type)


@dataclass(frozen=True)
class RandomWeightData:
    """Seeded random elements: ``offset + scale * draw`` from NumPy's ``Generator(PCG64(seed))``.

    ``normal`` draws ``standard_normal``, ``uniform`` draws from [0, 1); both in float32 (float64 for float64), the
    affine map in the same precision, then converted: integers by rounding half to even, booleans by ``> 0``.
    """

    type: TensorType
    seed: int
    scale: float = 1.0
    offset: float = 0.0
    distribution: str = "normal"
    _made: list[np.ndarray | ScratchArray | weakref.ref[np.ndarray]] = field(
        default_factory=list, compare=False, repr=False
    )

    @cached_property
    def digest(self) -> str:
        return ArrayWeightData(self.numpy()).digest

    def numpy(self) -> np.ndarray:
        """The elements: drawn once and kept, large ones in a scratch file. Where that has no room, they are drawn again
        once nobody holds them.

        Raises:
            ResourceLimit: they would take more than 8 GiB.
        """
        made = self._made[0] if self._made else None
        found = made.array() if isinstance(made, ScratchArray) else made() if isinstance(made, weakref.ref) else made
        if found is None:
            bound_expansion(self.type)
            made = self._drawn()
            self._made[:] = [made if isinstance(made, ScratchArray) or made.nbytes < _SMALL else weakref.ref(made)]
            found = made.array() if isinstance(made, ScratchArray) else made
        return found

    def _drawn(self) -> np.ndarray | ScratchArray:
        shape, dtype = shape_of(self.type), self.type.dtype.numpy
        count = prod(shape)
        if count * dtype.itemsize >= _SMALL:
            with contextlib.suppress(OSError):  # no room
                return ScratchArray(shape, dtype, self._blocks(count))
        array = np.empty(count, dtype)
        for number, block in enumerate(self._blocks(count)):
            array[number * _BLOCK : (number + 1) * _BLOCK] = block
        return array.reshape(shape)

    def _blocks(self, count: int) -> Iterator[np.ndarray]:
        """The elements, so many at a time as a core's cache holds: new memory costs as much as drawing does. Each block
        is good until the next."""
        generator = np.random.Generator(np.random.PCG64(self.seed))
        wide = np.float64 if self.type.dtype in (DType.FLOAT64, DType.COMPLEX128) else np.float32
        draw = generator.standard_normal if self.distribution == "normal" else generator.random
        room: np.ndarray[Any, Any] = np.empty(min(count, _BLOCK), wide)
        for start in range(0, count, _BLOCK):
            block = room[: min(_BLOCK, count - start)]
            draw(dtype=wide, out=block)
            if self.scale != 1.0:
                block *= wide(self.scale)
            if self.offset != 0.0:
                block += wide(self.offset)
            yield self._converted(block)

    def _converted(self, block: np.ndarray) -> np.ndarray:
        if self.type.dtype is DType.BOOL:
            return np.asarray(np.greater(block, 0))
        if self.type.dtype.is_integer:
            block = np.rint(block).astype(np.int64)
        return np.asarray(block.astype(self.type.dtype.numpy, copy=False))

    def __getstate__(self) -> dict[str, object]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_made", "digest")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _made=[])


def bound_expansion(kind: TensorType) -> None:
    """Refuse to make a tensor out of all proportion to its file.

    Raises:
        ResourceLimit: it would take more than 8 GiB.
    """
    count = kind.elements
    if isinstance(count, int) and count * max(1, kind.dtype.numpy.itemsize) > MAX_EXPANDED:
        raise ResourceLimit(f"a weight {kind} would take {count * kind.dtype.numpy.itemsize} bytes; the limit is 8 GiB")


@dataclass(frozen=True, eq=False)
class ScratchWeightData:
    """Elements that were computed once, in the process's scratch file: they take memory while they are read."""

    held: ScratchArray

    @cached_property
    def digest(self) -> str:
        return ArrayWeightData(self.numpy()).digest

    def numpy(self) -> np.ndarray:
        return self.held.array()

    def __reduce__(self) -> tuple[type[ArrayWeightData], tuple[np.ndarray]]:
        return ArrayWeightData, (self.numpy().copy(),)  # another process has a scratch file of its own


def set_aside(array: np.ndarray) -> WeightData:
    """The elements as a weight holds them: large ones in the scratch file, if it has room."""
    held = scratch(array) if array.nbytes >= _SMALL and not array.dtype.hasobject else None
    return ArrayWeightData(array) if held is None else ScratchWeightData(held)


def end_elements(data: WeightData, count: int) -> bytes | None:
    """The first and the last elements, in which large weights differ, if they differ at all; ``None`` where elements
    are strings, or have to be computed first.

    Args:
        data: of a weight.
        count: elements at either end.
    """
    if not isinstance(data, ArrayWeightData | FileWeightData | PackedWeightData | ScratchWeightData):
        return None
    flat = np.asarray(data.numpy()).reshape(-1)
    return None if flat.dtype.hasobject else flat[:count].tobytes() + flat[-count:].tobytes()


@dataclass(frozen=True, eq=False)
class SparseWeightData:
    """A sparse initializer: its serialised SparseTensorProto, with its non-zero values and their flat positions."""

    type: TensorType
    payload: bytes = field(repr=False)
    values: WeightData
    indices: WeightData  # signed integers, [nnz] flat positions or [nnz, rank] coordinates

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(b"sparse" + self.payload).hexdigest()

    def numpy(self) -> np.ndarray:
        """The dense elements.

        Raises:
            InvalidModel: an index lies outside the tensor.
            ResourceLimit: the dense tensor would take more than 8 GiB.
        """
        bound_expansion(self.type)
        shape = shape_of(self.type)
        dense = np.zeros(shape, self.type.dtype.numpy)
        indices = self.indices.numpy()
        bounds = np.array(shape if indices.ndim == 2 else dense.size, np.int64)
        if indices.size and not bool(((indices >= 0) & (indices < bounds)).all()):
            raise InvalidModel("a sparse weight has an index outside its shape")
        flat = (
            np.ravel_multi_index(tuple(indices.T), shape) if indices.ndim == 2 and indices.size else indices.reshape(-1)
        )
        dense.reshape(-1)[flat] = self.values.numpy()
        return dense


def refuse_changed_files(graph: Graph) -> None:
    """Pass a graph whose weights are as they were when it was loaded: what is read of them is of one state.

    Raises:
        InvalidModel: somebody wrote into a file that they are in.
    """
    for file in {id(w.data.file): w.data.file for w in graph.weights if isinstance(w.data, FileWeightData)}.values():
        file.refuse_changed()


def packed_chunks(data: WeightData, dtype: DType) -> Iterator[bytes | memoryview]:
    """The packed bytes of a weight, in pieces of a few MiB where they need not be held at once."""
    if isinstance(data, FileWeightData):
        yield from data.chunks()
        return
    if isinstance(data, PackedWeightData) or dtype.bits < 8:
        view = memoryview(data.raw if isinstance(data, PackedWeightData) else pack(data.numpy(), dtype))
    else:
        view = np.ascontiguousarray(data.numpy(), dtype=dtype.numpy).reshape(-1).view(np.uint8).data
    for start in range(0, len(view), CHUNK):
        yield view[start : start + CHUNK]

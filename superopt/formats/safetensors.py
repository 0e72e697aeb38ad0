"""The safetensors layout, read without loading and written as a stream.

A file is a little-endian 64-bit header length, a JSON header ``{name: {dtype, shape, data_offsets}}``, and the
tensors' bytes (https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from superopt.formats.json_scan import Cursor, parse_json
from superopt.formats.mapped_file import MappedFile
from superopt.formats.tensors import FileData, checked_shape, expected_bytes, packed_chunks, shape_of
from superopt.ir.errors import InvalidModel, printable
from superopt.ir.graph import Weight
from superopt.ir.types import DType, TensorType

__all__ = ["Stored", "layout", "read_header", "stored_data", "stream"]

MAX_HEADER = 100_000_000  # the format's own limit
MAX_TENSORS = 200_000
_NAMES = {
    DType.FLOAT64: "F64", DType.FLOAT32: "F32", DType.FLOAT16: "F16", DType.BFLOAT16: "BF16", DType.INT64: "I64",
    DType.INT32: "I32", DType.INT16: "I16", DType.INT8: "I8", DType.UINT64: "U64", DType.UINT32: "U32",
    DType.UINT16: "U16", DType.UINT8: "U8", DType.BOOL: "BOOL", DType.FLOAT8E4M3FN: "F8_E4M3",
    DType.FLOAT8E5M2: "F8_E5M2",
}  # fmt: skip
_ENTRY = frozenset({"dtype", "shape", "data_offsets"})


@dataclass(frozen=True)
class Stored:
    """One tensor of a file: its safetensors type name, shape, and place from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(file: MappedFile) -> Mapping[str, Stored]:
    """The tensors of a safetensors file.

    Raises:
        InvalidModel: the header is not well-formed or does not fit the file, or names more than 200,000 tensors.
    """
    where = printable(file.path.name)
    length = int.from_bytes(b"".join(file.chunks(0, 8)), "little") if file.size >= 8 else -1
    if not 2 <= length <= min(MAX_HEADER, file.size - 8):
        raise InvalidModel("is not a safetensors file, or is truncated", where=where)
    try:
        header = b"".join(file.chunks(8, length))
        if header.count(b"{") > MAX_TENSORS + 2:  # before parsing, which would take long and much memory
            raise InvalidModel(f"names about {header.count(b'{')} tensors; the limit is {MAX_TENSORS}")
        entries = Cursor(parse_json(header)).mapping()
        return {k: _entry(v, 8 + length, file.size) for k, v in entries.items() if k != "__metadata__"}
    except InvalidModel as error:
        raise error.within(where) from error


def _entry(cursor: Cursor, base: int, size: int) -> Stored:
    members = cursor.members(_ENTRY, _ENTRY)
    shape = checked_shape(tuple(d.integer(0) for d in members["shape"].items()))
    offsets = [o.integer(0) for o in members["data_offsets"].items()]
    if len(offsets) != 2 or offsets[0] > offsets[1] or base + offsets[1] > size:
        members["data_offsets"].fail("does not lie within the file")
    return Stored(members["dtype"].string(), shape, base + offsets[0], base + offsets[1])


def stored_data(found: Stored, kind: TensorType, file: MappedFile) -> FileData:
    """The elements of a weight, left in the file. Types that safetensors lacks are stored packed, as bytes (U8).

    Raises:
        InvalidModel: the stored tensor is not of the weight's type and shape.
    """
    fits = found.dtype == _NAMES.get(kind.dtype) and found.shape == kind.shape
    packed = found.dtype == "U8" and found.shape == (expected_bytes(kind),) and kind.dtype not in _NAMES
    if not (fits or packed) or found.end - found.start != expected_bytes(kind):
        stored = f"{printable(found.dtype)}{list(found.shape)} in {found.end - found.start} bytes"
        raise InvalidModel(f"the weight is {kind}, but {stored} is stored", where=printable(file.path.name))
    return FileData(kind, file, found.start)


def layout(weights: Sequence[Weight]) -> tuple[bytes, Sequence[Weight]]:
    """The file's bytes before the tensors, and the weights in the order of their bytes (widest first: aligned)."""
    ordered = sorted(weights, key=lambda w: -w.type.dtype.bits)
    header: dict[str, object] = {}
    end = 0
    for w in ordered:
        size = expected_bytes(w.type)
        name = _NAMES.get(w.type.dtype)
        shape = list(shape_of(w.type)) if name else [size]
        header[tensor_name(w)] = {"dtype": name or "U8", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, ordered


def tensor_name(w: Weight) -> str:
    """The key of a weight in its file; one key is reserved by the format."""
    return "__metadata__ (weight)" if w.name == "__metadata__" else w.name


def stream(weights: Sequence[Weight]) -> Iterator[bytes | memoryview]:
    """The file's bytes, each weight read only when its turn comes."""
    head, ordered = layout(weights)
    yield head
    for w in ordered:
        assert w.data is not None
        yield from packed_chunks(w.data, w.type.dtype)

"""The elements of weights in a JSON graph: seeded random, inline, packed in base64, in a safetensors file, or none."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping

import numpy as np
from google.protobuf.message import DecodeError

from superopt.formats.json_scan import Cursor
from superopt.formats.onnx_tensors import ExternalFiles, as_bytes, sparse_from_payload
from superopt.formats.safetensors import Stored, read_header, stored_data, tensor_name
from superopt.formats.tensors import PackedData, RandomData, SparseData, checked_shape, expected_bytes, pack
from superopt.ir.errors import InvalidModel, printable
from superopt.ir.graph import ArrayData, Weight, WeightData
from superopt.ir.types import DType, TensorType

__all__ = ["DTYPE_NAMES", "INLINE", "Sidecars", "decode", "describe", "encode", "tensor_type", "weight_data"]

INLINE = 64  # elements that are still pleasant to read in the file
DTYPE_NAMES = frozenset(d.value for d in DType)
SOURCES = ("random", "values", "raw", "sparse", "file")
_RANDOM = frozenset({"seed", "scale", "offset", "distribution"})
_BYTES = frozenset({"bytes"})


class Sidecars:
    """The safetensors files that one JSON graph reads from; each header is read once."""

    def __init__(self, files: ExternalFiles) -> None:
        self._files = files
        self._headers: dict[str, Mapping[str, Stored]] = {}

    def data(self, location: Cursor, tensor: str, kind: TensorType) -> WeightData:
        """The elements of a weight, left in their file."""
        name = location.string()
        try:
            file = self._files.get(name)
            if name not in self._headers:
                self._headers[name] = read_header(file)
            if tensor not in self._headers[name]:
                raise InvalidModel(f"holds no tensor {printable(tensor)!r}", where=printable(name))
            return stored_data(self._headers[name][tensor], kind, file)
        except InvalidModel as error:
            raise error.within(printable(location.pointer)) from error


def decode(cursor: Cursor) -> bytes:
    """The bytes of a base64 string."""
    try:
        return base64.b64decode(cursor.string(), validate=True)
    except (binascii.Error, ValueError):
        cursor.fail("is not base64")


def encode(data: bytes) -> str:
    """Base64 text."""
    return base64.b64encode(data).decode("ascii")


def tensor_type(members: Mapping[str, Cursor], cursor: Cursor) -> TensorType:
    """The static type of a weight."""
    text = members["dtype"].string()
    if text not in DTYPE_NAMES:
        members["dtype"].fail(f"{printable(text)!r} is not an element type", f"known are {', '.join(DType)}")
    shape = tuple(d.integer(0) for d in members["shape"].items())
    return TensorType(DType(text), checked_shape(shape, cursor.pointer))


def weight_data(name: str, members: Mapping[str, Cursor], kind: TensorType, sidecars: Sidecars) -> WeightData | None:
    """Where a weight's elements come from; ``None`` for a weight that has only a shape."""
    given = [s for s in SOURCES if s in members]
    if len(given) > 1:
        members[given[1]].fail(f"a weight has one source of values; {given[0]!r} is given too")
    if "tensor" in members and "file" not in members:
        members["tensor"].fail("names a tensor, but there is no file")
    match given:
        case ["random"]:
            return _random(members["random"], kind)
        case ["values"]:
            return _inline(members["values"], kind)
        case ["raw"]:
            return _packed(members["raw"], kind)
        case ["sparse"]:
            return _sparse(name, members["sparse"], kind)
        case ["file"]:
            tensor = members["tensor"].string() if "tensor" in members else name
            return sidecars.data(members["file"], tensor, kind)
    return None


def _random(cursor: Cursor, kind: TensorType) -> RandomData:
    members = cursor.members(_RANDOM, frozenset({"seed"}))
    if kind.dtype is DType.STRING:
        cursor.fail("strings cannot be random")
    distribution = members["distribution"].string() if "distribution" in members else "normal"
    if distribution not in ("normal", "uniform"):
        members["distribution"].fail("is neither 'normal' nor 'uniform'")
    scale, offset = (members[k].number() if k in members else d for k, d in (("scale", 1.0), ("offset", 0.0)))
    if not (math.isfinite(scale) and math.isfinite(offset)):
        cursor.fail("scale and offset must be finite")
    return RandomData(kind, members["seed"].integer(0), scale, offset, distribution)


def _inline(cursor: Cursor, kind: TensorType) -> WeightData:
    items = list(cursor.items())
    if len(items) != kind.elements:
        cursor.fail(f"holds {len(items)} values, but {kind} takes {kind.elements}")
    if kind.dtype is DType.STRING:
        array = np.empty(len(items), object)
        array[:] = [_string(i) for i in items]
        return ArrayData(array.reshape(kind.shape))  # type: ignore[arg-type]
    if kind.dtype is DType.BOOL:
        values: list[object] = [_boolean(i) for i in items]
    elif kind.dtype.is_integer:
        signed = kind.dtype.value.startswith("int")
        bits = kind.dtype.bits - signed
        values = [i.integer(-(2**bits) if signed else 0, 2**bits - 1) for i in items]
    elif kind.dtype in (DType.COMPLEX64, DType.COMPLEX128):
        cursor.fail("complex values are written packed, as raw")
    else:
        return _floats(cursor, items, kind)
    wide = np.array(values, np.uint64 if kind.dtype is DType.UINT64 else np.int64).astype(kind.dtype.numpy)
    return PackedData(kind, pack(wide, kind.dtype))


def _floats(cursor: Cursor, items: list[Cursor], kind: TensorType) -> PackedData:
    exact = np.array([i.number() for i in items], np.float64)
    with np.errstate(over="ignore"):
        array = exact.astype(kind.dtype.numpy)
    over = np.isfinite(exact) & ~np.isfinite(array.astype(np.float64))
    if over.any():
        items[int(np.argmax(over))].fail(f"is too large for {kind.dtype}")
    return PackedData(kind, pack(array, kind.dtype))


def _string(cursor: Cursor) -> bytes:
    if isinstance(cursor.value, dict):
        return decode(cursor.members(_BYTES, _BYTES)["bytes"])
    return cursor.string().encode()


def _boolean(cursor: Cursor) -> bool:
    if not isinstance(cursor.value, bool):
        cursor.expected("true or false")
    return cursor.value


def _packed(cursor: Cursor, kind: TensorType) -> PackedData:
    raw = decode(cursor)
    if kind.dtype is DType.STRING:
        cursor.fail("strings have no packed form; write them as values")
    if len(raw) != expected_bytes(kind):
        cursor.fail(f"holds {len(raw)} bytes, but {kind} takes {expected_bytes(kind)}")
    return PackedData(kind, raw)


def _sparse(name: str, cursor: Cursor, kind: TensorType) -> WeightData:
    try:
        found = sparse_from_payload(name, decode(cursor))
    except DecodeError:
        cursor.fail("is not a serialised SparseTensorProto")
    except InvalidModel as error:
        raise error.within(cursor.pointer) from error
    if found.type != kind or found.data is None:
        cursor.fail(f"is {found.type}, but the weight is {kind}")
    return found.data


def describe(w: Weight, sidecar: str | None) -> dict[str, object]:
    """The members that say where a weight's elements come from.

    Args:
        w: the weight.
        sidecar: name of the safetensors file that it is written to, or ``None`` to keep it in the document.
    """
    data = w.data
    if data is None:
        return {}
    if isinstance(data, RandomData):
        spec: dict[str, object] = {"seed": data.seed, "scale": data.scale}
        if data.offset:
            spec["offset"] = data.offset
        return {"random": spec if data.distribution == "normal" else {**spec, "distribution": data.distribution}}
    if isinstance(data, SparseData):
        return {"sparse": encode(data.payload)}
    if w.type.dtype is DType.STRING:
        return {"values": [_text(as_bytes(e)) for e in data.numpy().reshape(-1).tolist()]}
    if sidecar is not None:
        return {"file": sidecar, "tensor": tensor_name(w)}
    count = w.type.elements
    assert isinstance(count, int)
    values = _values(data.numpy(), w.type) if count <= INLINE else None
    return {"values": values} if values is not None else {"raw": encode(pack(data.numpy(), w.type.dtype))}


def _text(element: bytes) -> object:
    try:
        return element.decode()
    except UnicodeDecodeError:
        return {"bytes": encode(element)}


def _values(array: np.ndarray, kind: TensorType) -> list[object] | None:
    """The elements as JSON values if these give back the same bits (some NaNs do not), else ``None``."""
    if not (kind.dtype.is_float or kind.dtype.is_integer or kind.dtype is DType.BOOL):
        return None
    with np.errstate(invalid="ignore"):  # a signalling NaN is found out below
        wide = array.astype(np.float64) if kind.dtype.is_float else array
    if kind.dtype.is_integer and kind.dtype is not DType.UINT64:
        wide = array.astype(np.int64)
    values = [finite(v) for v in wide.reshape(-1).tolist()]
    again = _inline(Cursor(values), kind)
    assert isinstance(again, PackedData)
    return values if again.raw == pack(array, kind.dtype) else None


def finite(value: object) -> object:
    """A number as JSON can hold it: one that is not finite becomes its name."""
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"

"""The elements of weights in a JSON graph: seeded random, inline, packed in base64, in a safetensors file, or none."""

from __future__ import annotations

import base64
import binascii
import difflib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from google.protobuf.message import DecodeError

from superopt.formats.mapped_file import MappedFile
from superopt.formats.onnx_tensors import ExternalFiles, as_bytes, sparse_from_payload
from superopt.formats.weight_data import (
    FileWeightData,
    PackedWeightData,
    RandomWeightData,
    SparseWeightData,
    checked_shape,
    expected_bytes,
    pack,
    packed_chunks,
    shape_of,
)
from superopt.ir.errors import InvalidModel, printable
from superopt.ir.graph import ArrayWeightData, Weight, WeightData
from superopt.ir.types import DType, TensorType

__all__ = [
    "JsonCursor",
    "DTYPE_NAMES",
    "INLINE",
    "SafetensorsFiles",
    "SafetensorsEntry",
    "decode",
    "describe",
    "encode",
    "layout",
    "parse_json",
    "read_header",
    "stored_data",
    "stream",
    "tensor_type",
    "weight_data",
]


# -- Strict JSON ---------------------------------------------------------------------------------------------------
#
# JSON with bounds: input that Python's parser accepts wrongly, crashes on, or needs unbounded time for is refused
# first.


MAX_DEPTH = 64
MAX_DIGITS = 400  # the longest float64 written out in full has about 330 before its point
# Possessive, and matching unterminated strings and whole runs, so that the scan is linear on any input.
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{}]|[-+.0-9eE]{8,}+', re.DOTALL)


def parse_json(data: bytes) -> object:
    """The JSON value in UTF-8 bytes.

    Raises:
        InvalidModel: not UTF-8, not JSON, nested deeper than 64, a number with more than 400 digits, NaN or Infinity,
            or an object with a repeated key.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidModel(f"is not UTF-8 text (byte {error.start})") from error
    _bound(text)
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except json.JSONDecodeError as error:
        raise InvalidModel(
            f"is not valid JSON: {error.msg}", where=f"line {error.lineno}, column {error.colno}"
        ) from error
    except RecursionError as error:  # the depth was bounded above, but the caller may be deep already
        raise InvalidModel("is nested too deep") from error


def _bound(text: str) -> None:
    depth = 0
    for match in _TOKEN.finditer(text):
        first = text[match.start()]
        if first in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise InvalidModel(
                    f"is nested deeper than {MAX_DEPTH} levels", where=_line_and_column(text, match.start())
                )
        elif first in "]}":
            depth -= 1
        elif first != '"' and match.end() - match.start() > MAX_DIGITS:
            raise InvalidModel(
                f"holds a number of more than {MAX_DIGITS} digits", where=_line_and_column(text, match.start())
            )


def _line_and_column(text: str, position: int) -> str:
    line = text.count("\n", 0, position) + 1
    return f"line {line}, column {position - text.rfind(chr(10), 0, position)}"


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
        raise InvalidModel(f"the key {printable(twice)!r} is given twice in one object")
    return found


def _constant(text: str) -> NoReturn:
    raise InvalidModel(f"{text} is not JSON", hint='write numbers that are not finite as "nan", "inf" or "-inf"')


class JsonCursor:
    """A JSON value and the pointer (RFC 6901) to it, so that every error says where it is."""

    __slots__ = ("pointer", "value")

    def __init__(self, value: object, pointer: str = "") -> None:
        self.value = value
        self.pointer = pointer

    def fail(self, what: str, hint: str = "") -> NoReturn:
        """Raise InvalidModel at this place."""
        raise InvalidModel(what, where=printable(self.pointer, 200) or "/", hint=hint)

    def expected(self, what: str) -> NoReturn:
        """Raise InvalidModel: something else was expected here."""
        kind = "null" if self.value is None else _KINDS.get(type(self.value), "a value")
        self.fail(f"is {kind}; {what} is expected")

    def members(self, known: frozenset[str], required: frozenset[str] = frozenset()) -> Mapping[str, JsonCursor]:
        """The members of an object: only known keys and ``x-…``, and all required ones."""
        if not isinstance(self.value, dict):
            self.expected("an object")
        for key in self.value:
            if key not in known and not key.startswith("x-"):
                near = difflib.get_close_matches(key, known, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}, and x-…"
                self.fail(f"the key {printable(key)!r} is not known", hint)
        for key in sorted(required):
            if key not in self.value:
                self.fail(f"the key {key!r} is missing")
        return {k: self._member(k, v) for k, v in self.value.items()}

    def mapping(self) -> Mapping[str, JsonCursor]:
        """The members of an object with any keys."""
        if not isinstance(self.value, dict):
            self.expected("an object")
        return {self._text(k): self._member(k, v) for k, v in self.value.items()}

    def _member(self, key: str, value: object) -> JsonCursor:
        return JsonCursor(value, f"{self.pointer}/{key.replace('~', '~0').replace('/', '~1')}")

    def items(self) -> Iterator[JsonCursor]:
        """The elements of an array."""
        if not isinstance(self.value, list):
            self.expected("an array")
        return (JsonCursor(v, f"{self.pointer}/{i}") for i, v in enumerate(self.value))

    def string(self) -> str:
        """A string without lone surrogates (which no other format can hold)."""
        if not isinstance(self.value, str):
            self.expected("a string")
        return self._text(self.value)

    def _text(self, text: str) -> str:
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail("holds half of a surrogate pair, which is not text")
        return text

    def integer(self, least: int = -(2**63), most: int = 2**63 - 1) -> int:
        """An integer within bounds."""
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            self.expected("an integer")
        if not least <= self.value <= most:
            self.fail(f"lies outside {least} … {most}")
        return self.value

    def number(self) -> float:
        """A number, or one of "nan", "inf", "-inf"."""
        if isinstance(self.value, str) and self.value in _NOT_FINITE:
            return float(self.value)
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            self.expected("a number")
        try:
            found = float(self.value)
        except OverflowError:
            found = float("inf")
        if found in (float("inf"), float("-inf")):
            self.fail("is too large for a float64")
        return found


_NOT_FINITE = ("nan", "inf", "-inf")
_KINDS = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "an array", dict: "an object"}


# -- The safetensors layout ----------------------------------------------------------------------------------------
#
# The safetensors layout, read without loading and written as a stream.
#
# A file is a little-endian 64-bit header length, a JSON header ``{name: {dtype, shape, data_offsets}}``, and the
# tensors' bytes (https://github.com/huggingface/safetensors#format).


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
class SafetensorsEntry:
    """One tensor of a file: its safetensors type name, shape, and place from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(file: MappedFile) -> Mapping[str, SafetensorsEntry]:
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
        entries = JsonCursor(parse_json(header)).mapping()
        return {k: _entry(v, 8 + length, file.size) for k, v in entries.items() if k != "__metadata__"}
    except InvalidModel as error:
        raise error.within(where) from error


def _entry(cursor: JsonCursor, base: int, size: int) -> SafetensorsEntry:
    members = cursor.members(_ENTRY, _ENTRY)
    shape = checked_shape(tuple(d.integer(0) for d in members["shape"].items()))
    offsets = [o.integer(0) for o in members["data_offsets"].items()]
    if len(offsets) != 2 or offsets[0] > offsets[1] or base + offsets[1] > size:
        members["data_offsets"].fail("does not lie within the file")
    return SafetensorsEntry(members["dtype"].string(), shape, base + offsets[0], base + offsets[1])


def stored_data(found: SafetensorsEntry, kind: TensorType, file: MappedFile) -> FileWeightData:
    """The elements of a weight, left in the file. Types that safetensors lacks are stored packed, as bytes (U8).

    Raises:
        InvalidModel: the stored tensor is not of the weight's type and shape.
    """
    fits = found.dtype == _NAMES.get(kind.dtype) and found.shape == kind.shape
    packed = found.dtype == "U8" and found.shape == (expected_bytes(kind),) and kind.dtype not in _NAMES
    if not (fits or packed) or found.end - found.start != expected_bytes(kind):
        stored = f"{printable(found.dtype)}{list(found.shape)} in {found.end - found.start} bytes"
        raise InvalidModel(f"the weight is {kind}, but {stored} is stored", where=printable(file.path.name))
    return FileWeightData(kind, file, found.start)


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


# -- Weights of a JSON graph ---------------------------------------------------------------------------------------


INLINE = 64  # elements that are still pleasant to read in the file
DTYPE_NAMES = frozenset(d.value for d in DType)
SOURCES = ("random", "values", "raw", "sparse", "file")
_RANDOM = frozenset({"seed", "scale", "offset", "distribution"})
_BYTES = frozenset({"bytes"})


class SafetensorsFiles:
    """The safetensors files that one JSON graph reads from; each header is read once."""

    def __init__(self, files: ExternalFiles) -> None:
        self._files = files
        self._headers: dict[str, Mapping[str, SafetensorsEntry]] = {}

    def data(self, location: JsonCursor, tensor: str, kind: TensorType) -> WeightData:
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


def decode(cursor: JsonCursor) -> bytes:
    """The bytes of a base64 string."""
    try:
        return base64.b64decode(cursor.string(), validate=True)
    except (binascii.Error, ValueError):
        cursor.fail("is not base64")


def encode(data: bytes) -> str:
    """Base64 text."""
    return base64.b64encode(data).decode("ascii")


def tensor_type(members: Mapping[str, JsonCursor], cursor: JsonCursor) -> TensorType:
    """The static type of a weight."""
    text = members["dtype"].string()
    if text not in DTYPE_NAMES:
        members["dtype"].fail(f"{printable(text)!r} is not an element type", f"known are {', '.join(DType)}")
    shape = tuple(d.integer(0) for d in members["shape"].items())
    return TensorType(DType(text), checked_shape(shape, cursor.pointer))


def weight_data(
    name: str, members: Mapping[str, JsonCursor], kind: TensorType, sidecars: SafetensorsFiles
) -> WeightData | None:
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


def _random(cursor: JsonCursor, kind: TensorType) -> RandomWeightData:
    members = cursor.members(_RANDOM, frozenset({"seed"}))
    if kind.dtype is DType.STRING:
        cursor.fail("strings cannot be random")
    distribution = members["distribution"].string() if "distribution" in members else "normal"
    if distribution not in ("normal", "uniform"):
        members["distribution"].fail("is neither 'normal' nor 'uniform'")
    scale, offset = (members[k].number() if k in members else d for k, d in (("scale", 1.0), ("offset", 0.0)))
    if not (math.isfinite(scale) and math.isfinite(offset)):
        cursor.fail("scale and offset must be finite")
    return RandomWeightData(kind, members["seed"].integer(0), scale, offset, distribution)


def _inline(cursor: JsonCursor, kind: TensorType) -> WeightData:
    items = list(cursor.items())
    if len(items) != kind.elements:
        cursor.fail(f"holds {len(items)} values, but {kind} takes {kind.elements}")
    if kind.dtype is DType.STRING:
        array = np.empty(len(items), object)
        array[:] = [_string(i) for i in items]
        return ArrayWeightData(array.reshape(kind.shape))  # type: ignore[arg-type]
    if kind.dtype is DType.BOOL:
        values: list[object] = [_boolean(i) for i in items]
    elif kind.dtype.is_integer:
        signed = kind.dtype.value.startswith("int")
        bits = kind.dtype.bits - signed
        values = [i.integer(-(2**bits) if signed else 0, 2**bits - 1) for i in items]
    elif kind.dtype in (DType.COMPLEX64, DType.COMPLEX128):
        cursor.fail("complex values are written packed, as raw")
    else:
        return _floats(items, kind)
    wide = np.array(values, np.uint64 if kind.dtype is DType.UINT64 else np.int64).astype(kind.dtype.numpy)
    return PackedWeightData(kind, pack(wide, kind.dtype))


def _floats(items: list[JsonCursor], kind: TensorType) -> PackedWeightData:
    exact = np.array([i.number() for i in items], np.float64)
    with np.errstate(over="ignore"):
        array = exact.astype(kind.dtype.numpy)
    over = np.isfinite(exact) & ~np.isfinite(array.astype(np.float64))
    if over.any():
        items[int(np.argmax(over))].fail(f"is too large for {kind.dtype}")
    return PackedWeightData(kind, pack(array, kind.dtype))


def _string(cursor: JsonCursor) -> bytes:
    if isinstance(cursor.value, dict):
        return decode(cursor.members(_BYTES, _BYTES)["bytes"])
    return cursor.string().encode()


def _boolean(cursor: JsonCursor) -> bool:
    if not isinstance(cursor.value, bool):
        cursor.expected("true or false")
    return cursor.value


def _packed(cursor: JsonCursor, kind: TensorType) -> PackedWeightData:
    raw = decode(cursor)
    if kind.dtype is DType.STRING:
        cursor.fail("strings have no packed form; write them as values")
    if len(raw) != expected_bytes(kind):
        cursor.fail(f"holds {len(raw)} bytes, but {kind} takes {expected_bytes(kind)}")
    return PackedWeightData(kind, raw)


def _sparse(name: str, cursor: JsonCursor, kind: TensorType) -> WeightData:
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
    if isinstance(data, RandomWeightData):
        spec: dict[str, object] = {"seed": data.seed, "scale": data.scale}
        if data.offset:
            spec["offset"] = data.offset
        return {"random": spec if data.distribution == "normal" else {**spec, "distribution": data.distribution}}
    if isinstance(data, SparseWeightData):
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
    again = _inline(JsonCursor(values), kind)
    assert isinstance(again, PackedWeightData)
    return values if again.raw == pack(array, kind.dtype) else None


def finite(value: object) -> object:
    """A number as JSON can hold it: one that is not finite becomes its name."""
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"

"""TensorProto and SparseTensorProto to weights and back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from onnx import SparseTensorProto, TensorProto, TensorShapeProto, TypeProto, ValueInfoProto

from superopt.formats.mapped_file import MappedFile, open_plain
from superopt.formats.safe_file_access import open_inside
from superopt.formats.weight_data import (
    FileWeightData,
    PackedWeightData,
    SparseWeightData,
    checked_shape,
    expected_bytes,
    packed_chunks,
    shape_of,
)
from superopt.ir.errors import InvalidModel, printable
from superopt.ir.graph import ArrayWeightData, Value, Weight
from superopt.ir.size_polynomial import Dim, sym
from superopt.ir.types import DType, OpaqueType, TensorType, ValueType

__all__ = [
    "DTYPES",
    "ELEMENT_TYPES",
    "ExternalFiles",
    "EmbeddedWeightLocation",
    "ModelWithoutWeights",
    "TypedFieldWeightData",
    "is_anonymous",
    "lean",
    "sparse_proto",
    "sparse_weight",
    "tensor_header",
    "tensor_proto",
    "type_proto",
    "unknown_dim",
    "value",
    "value_info",
    "value_type",
    "weight",
]


# -- Positions of large weights in a file --------------------------------------------------------------------------
#
# Protobuf's parser needs three times the memory of the weights that it reads. A protobuf message is a concatenation of
# fields, each with a tag and, where it is long, a length. So the scan skips each large ``raw_data`` and the parser
# reads the rest. A file in an unusual encoding goes to the parser as a whole.


SCANNED_FROM = 256 << 20  # bytes of a file: below, reading takes less than what is done with it afterwards
LARGE_WEIGHT = 1 << 16  # bytes of a weight: shorter ones are all read, as the rest of the message is
_GRAPH, _INITIALIZER, _RAW = 7, 5, 9  # fields of ModelProto, GraphProto and TensorProto
_PLAIN = frozenset({1, 2, 8, 9, 12, 16})  # fields of a TensorProto with raw data: dims, type, name, docs, metadata
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_HEAD = 20  # bytes of a tag and a length, at most


@dataclass(frozen=True)
class EmbeddedWeightLocation:
    """Elements of a weight that lie in the model's own file."""

    file: MappedFile
    offset: int
    length: int


@dataclass(frozen=True)
class ModelWithoutWeights:
    """A model's message without its large weights, and where these lie, by their numbers among the initializers."""

    message: bytes
    weights: Mapping[int, EmbeddedWeightLocation] = field(default_factory=dict)


class _Strange(Exception):
    """The message is not written as everybody writes it."""


@dataclass(frozen=True)
class _Field:
    number: int
    kind: int
    start: int
    content: int
    end: int


def lean(path: Path, limit: int) -> ModelWithoutWeights | None:
    """A large ONNX file, its large weights left where they are; ``None`` where it is to be read as usual.

    Args:
        path: the file.
        limit: bytes of a file that is read at all.

    Raises:
        InvalidModel: it is not a regular file, or cannot be read, or it became shorter meanwhile.
    """
    file = MappedFile(path, open_plain(path))
    if not SCANNED_FROM <= file.size <= limit:
        return None
    try:
        parts = list(_fields(file, 0, file.size))
        (graph,) = (part for part in parts if part.number == _GRAPH)
        content, weights = _graph(file, graph)
    except (_Strange, ValueError):
        return None
    if not weights:
        return None
    before, after = (_bytes(file, a, b) for a, b in ((0, graph.start), (graph.end, file.size)))
    return ModelWithoutWeights(before + _nested(_GRAPH, content) + after, weights)


def _graph(file: MappedFile, graph: _Field) -> tuple[bytes, Mapping[int, EmbeddedWeightLocation]]:
    if graph.kind != _BYTES:
        raise _Strange
    kept: list[bytes] = []
    weights: dict[int, EmbeddedWeightLocation] = {}
    copied, count = graph.content, 0  # what lies between weights is copied at once
    for part in _fields(file, graph.content, graph.end):
        if part.number != _INITIALIZER:
            continue
        if part.kind != _BYTES:
            raise _Strange
        raw = _large(list(_fields(file, part.content, part.end)))
        if raw is not None:
            tensor = _bytes(file, part.content, raw.start) + _bytes(file, raw.end, part.end)
            kept += _bytes(file, copied, part.start), _nested(_INITIALIZER, tensor)
            weights[count], copied = EmbeddedWeightLocation(file, raw.content, raw.end - raw.content), part.end
        count += 1
    kept.append(_bytes(file, copied, graph.end))
    return b"".join(kept), weights


def _large(tensor: Sequence[_Field]) -> _Field | None:
    """The elements of a tensor that has nothing but raw data, and much of it."""
    raw = [part for part in tensor if part.number == _RAW]
    if len(raw) != 1 or raw[0].kind != _BYTES or raw[0].end - raw[0].content < LARGE_WEIGHT:
        return None
    return raw[0] if {part.number for part in tensor} <= _PLAIN else None


def _fields(file: MappedFile, start: int, end: int) -> Iterator[_Field]:
    """The fields of a message.

    Raises:
        _Strange: it is not one, or it has groups.
    """
    while start < end:
        head = _bytes(file, start, min(start + _HEAD, end))
        tag, at = _varint(head, 0)
        kind, size = tag & 7, 0
        if kind == _VARINT:
            size = _varint(head, at)[1] - at
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        elif kind == _BYTES:
            size, at = _varint(head, at)
        else:
            raise _Strange
        found = _Field(tag >> 3, kind, start, start + at, start + at + size)
        if found.end > end or not found.number:
            raise _Strange
        yield found
        start = found.end


def _bytes(file: MappedFile, start: int, end: int) -> bytes:
    return b"".join(file.chunks(start, end - start))


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number, seven bits a byte, and where it ends."""
    value = 0
    for place, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at + place + 1
    raise _Strange


def _nested(number: int, content: bytes) -> bytes:
    """A message as a field of another."""
    head = bytearray()
    for value in (number << 3 | _BYTES, len(content)):
        while value >= 0x80:
            head.append(value & 0x7F | 0x80)
            value >>= 7
        head.append(value)
    return bytes(head) + content


# -- Tensors -------------------------------------------------------------------------------------------------------


_PROTO_NAME = {DType.FLOAT32: "FLOAT", DType.FLOAT64: "DOUBLE"}
ELEMENT_TYPES: Mapping[DType, int] = {
    d: getattr(TensorProto, name) for d in DType if hasattr(TensorProto, name := _PROTO_NAME.get(d, d.name))
}
DTYPES: Mapping[int, DType] = {number: d for d, number in ELEMENT_TYPES.items()}

# of the positions of a sparse tensor: ONNX has int64, ONNX Runtime reads and writes narrower ones as well
_INDICES = frozenset({DType.INT8, DType.INT16, DType.INT32, DType.INT64})
_EXTERNAL_KEYS = frozenset({"location", "offset", "length", "checksum"})
_NUMBER = re.compile(r"[0-9]{1,18}\Z")
_TYPED = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
_FIELD = {
    DType.FLOAT32: "float_data", DType.COMPLEX64: "float_data", DType.FLOAT64: "double_data",
    DType.COMPLEX128: "double_data", DType.INT64: "int64_data", DType.UINT32: "uint64_data",
    DType.UINT64: "uint64_data", DType.STRING: "string_data",
}  # fmt: skip


class ExternalFiles:
    """The files that one model may read its weights from; each is opened once.

    Args:
        base: the model's directory, or ``None`` where there is none (bytes from the network).
        allowed: whether locations are accepted at all; the service accepts none.
    """

    def __init__(self, base: Path | None, allowed: bool = True) -> None:
        self._base = base
        self._allowed = allowed
        self._open: dict[str, MappedFile] = {}

    def get(self, location: str) -> MappedFile:
        """The open file.

        Raises:
            InvalidModel: external data is not accepted here, or this location is refused.
        """
        if self._base is None or not self._allowed:
            raise InvalidModel(
                f"the weights are in another file, {printable(location)!r}, which is not accepted here",
                hint="send them along as safetensors, or inside the model",
            )
        if location not in self._open:
            self._open[location] = open_inside(self._base, location)
        return self._open[location]

    @property
    def paths(self) -> tuple[Path, ...]:
        """Those that were opened so far."""
        return tuple(file.path for file in self._open.values())


@dataclass(frozen=True, eq=False)
class TypedFieldWeightData:
    """Elements in a TensorProto's typed field (``float_data`` …), decoded when read and written back as they were."""

    type: TensorType
    payload: bytes = field(repr=False)  # the TensorProto without its name and docs

    @cached_property
    def digest(self) -> str:
        return ArrayWeightData(self.numpy()).digest

    def numpy(self) -> np.ndarray:
        proto, dtype = TensorProto.FromString(self.payload), self.type.dtype
        values = getattr(proto, _FIELD.get(dtype, "int32_data"))
        if dtype is DType.STRING:
            array = np.empty(len(values), object)
            array[:] = list(values)
        elif dtype in (DType.COMPLEX64, DType.COMPLEX128):
            array = np.array(values, np.float32 if dtype is DType.COMPLEX64 else np.float64).view(dtype.numpy)
        elif _FIELD.get(dtype) or dtype in (DType.INT32, DType.BOOL):
            array = np.array(values, dtype.numpy)
        else:  # int32_data holds one element's bits (or the bits of several) in each entry
            width = np.uint16 if dtype.bits == 16 else np.uint8
            packed = np.array(values, np.int32).astype(width)
            return PackedWeightData(self.type, packed.tobytes()).numpy()
        return array.reshape(self.type.shape)  # type: ignore[arg-type]


def weight(
    proto: TensorProto, files: ExternalFiles, name: str | None = None, inside: EmbeddedWeightLocation | None = None
) -> Weight:  # fmt: skip
    """A weight whose elements are left where they are until they are read.

    Args:
        proto: the tensor.
        files: where external data lies.
        name: instead of its own.
        inside: where its raw data lies, if not in ``proto``.

    Raises:
        InvalidModel: type, dims and stored bytes do not fit together, or its external location is refused.
    """
    name = proto.name if name is None else name
    where = f"weight {printable(name)!r}"
    try:
        dtype = DTYPES[proto.data_type]
    except KeyError:
        raise InvalidModel(f"unknown element type {proto.data_type}", where=where) from None
    if proto.HasField("segment"):
        raise InvalidModel("segmented tensors are not supported", where=where)
    kind = TensorType(dtype, checked_shape(tuple(proto.dims), where))
    try:
        data = _data(proto, kind, files) if inside is None else _raw(kind, inside)
    except InvalidModel as error:
        raise error.within(where) from error
    return Weight(name, kind, data, proto.doc_string, {e.key: e.value for e in proto.metadata_props})


def _data(
    proto: TensorProto, kind: TensorType, files: ExternalFiles
) -> PackedWeightData | TypedFieldWeightData | FileWeightData:
    if proto.data_location == TensorProto.EXTERNAL:
        if kind.dtype is DType.STRING:
            raise InvalidModel("strings cannot be external data")
        return _external(proto, kind, files)
    if proto.external_data:
        raise InvalidModel("has external-data entries although its data is inside the model")
    if proto.HasField("raw_data") and (proto.raw_data or not any(len(getattr(proto, f)) for f in _TYPED)):
        return _raw(kind, proto.raw_data)
    name = _FIELD.get(kind.dtype, "int32_data")
    found, count = len(getattr(proto, name)), kind.elements
    assert isinstance(count, int)
    if 0 < kind.dtype.bits < 8:
        count = expected_bytes(kind)
    if kind.dtype in (DType.COMPLEX64, DType.COMPLEX128):
        count *= 2
    if found != count:
        raise InvalidModel(f"{kind} takes {count} entries of {name}, but {found} are there")
    bare = TensorProto()
    bare.CopyFrom(proto)
    for key in ("name", "doc_string", "metadata_props"):
        bare.ClearField(key)
    return TypedFieldWeightData(kind, bare.SerializeToString())


def _raw(kind: TensorType, found: bytes | EmbeddedWeightLocation) -> PackedWeightData | FileWeightData:
    if kind.dtype is DType.STRING:
        raise InvalidModel("strings cannot be raw data")
    length = len(found) if isinstance(found, bytes) else found.length
    if length != expected_bytes(kind):
        raise InvalidModel(f"{kind} takes {expected_bytes(kind)} bytes, but {length} are there")
    return PackedWeightData(kind, found) if isinstance(found, bytes) else FileWeightData(kind, found.file, found.offset)


def _external(proto: TensorProto, kind: TensorType, files: ExternalFiles) -> FileWeightData:
    keys = [e.key for e in proto.external_data]
    entries = {e.key: e.value for e in proto.external_data}
    if unknown := sorted(set(keys) - _EXTERNAL_KEYS):
        raise InvalidModel(f"unknown external-data key {printable(unknown[0])!r}")
    if len(keys) != len(entries):
        raise InvalidModel("an external-data key is given twice")
    numbers = {}
    for key in ("offset", "length"):
        text = entries.get(key, "0" if key == "offset" else str(expected_bytes(kind)))
        if not _NUMBER.match(text):
            raise InvalidModel(f"the external data's {key} is {printable(text, 40)!r}, not a number of bytes")
        numbers[key] = int(text)
    if numbers["length"] != expected_bytes(kind):
        raise InvalidModel(f"{kind} takes {expected_bytes(kind)} bytes, but its length is {numbers['length']}")
    location = entries.get("location", "")
    file = files.get(location)
    end = numbers["offset"] + numbers["length"]
    if end > file.size:
        where = f"external data {printable(location)!r}"
        raise InvalidModel(f"the data ends at byte {end}, but the file has {file.size}", where=where)
    return FileWeightData(kind, file, numbers["offset"])


def sparse_weight(proto: SparseTensorProto, files: ExternalFiles) -> Weight:
    """A sparse initializer as a weight of its dense type; written back as it was.

    Raises:
        InvalidModel: its parts do not fit together.
    """
    values = weight(proto.values, files)
    indices = weight(proto.indices, files, f"{values.name} (indices)")
    where = f"sparse weight {printable(values.name)!r}"
    shape = checked_shape(tuple(proto.dims), where)
    count = values.type.elements
    fits = indices.type.shape in ((count,), (count, len(shape)))
    if indices.type.dtype not in _INDICES or values.type.rank != 1 or not fits:
        raise InvalidModel(f"values {values.type} and indices {indices.type} do not fit {list(shape)}", where=where)
    assert values.data is not None
    assert indices.data is not None
    bare = SparseTensorProto()
    bare.CopyFrom(proto)
    bare.values.name = ""
    for part in (bare.values, bare.indices):
        internalise(part, files)
    kind = TensorType(values.type.dtype, shape)
    return Weight(values.name, kind, SparseWeightData(kind, bare.SerializeToString(), values.data, indices.data))


def internalise(proto: TensorProto, files: ExternalFiles) -> int:
    """Move external data into the proto (used for tensors inside subgraphs); gives the bytes moved."""
    if proto.data_location != TensorProto.EXTERNAL:
        return 0
    found = weight(proto, files)
    assert found.data is not None
    raw = b"".join(packed_chunks(found.data, found.type.dtype))
    proto.ClearField("data_location")
    proto.ClearField("external_data")
    proto.raw_data = raw
    return len(raw)


def tensor_proto(w: Weight, external: tuple[str, int, int] | None = None) -> TensorProto:
    """The TensorProto of a weight with values.

    Args:
        w: the weight; its ``data`` must not be ``None``.
        external: location, offset and length, where its bytes are stored in a file beside the model.
    """
    assert w.data is not None
    proto = tensor_header(w)
    if external is not None:
        proto.data_location = TensorProto.EXTERNAL
        for key, value in zip(("location", "offset", "length"), external, strict=True):
            proto.external_data.add(key=key, value=str(value))
    elif isinstance(w.data, TypedFieldWeightData):
        proto.ClearField("dims")
        proto.MergeFrom(TensorProto.FromString(w.data.payload))
    elif w.type.dtype is DType.STRING:
        proto.string_data.extend(as_bytes(e) for e in w.data.numpy().reshape(-1).tolist())
    else:
        proto.raw_data = b"".join(packed_chunks(w.data, w.type.dtype))
    return proto


def tensor_header(w: Weight) -> TensorProto:
    """The TensorProto of a weight but for its elements."""
    proto = TensorProto(dims=shape_of(w.type), data_type=ELEMENT_TYPES[w.type.dtype])
    if w.name:
        proto.name = w.name
    if w.doc:
        proto.doc_string = w.doc
    for key, value in w.metadata.items():
        proto.metadata_props.add(key=key, value=value)
    return proto


def as_bytes(element: str | bytes) -> bytes:
    """A string element as ONNX stores it."""
    return element.encode() if isinstance(element, str) else bytes(element)


def sparse_proto(w: Weight) -> SparseTensorProto:
    """The SparseTensorProto that a weight with :class:`SparseWeightData` came from, under the weight's name."""
    assert isinstance(w.data, SparseWeightData)
    proto = SparseTensorProto()
    proto.ParseFromString(w.data.payload)
    proto.values.name = w.name
    return proto


def sparse_from_payload(name: str, payload: bytes) -> Weight:
    """The weight of a serialised SparseTensorProto, as :class:`SparseWeightData` holds it."""
    proto = SparseTensorProto.FromString(payload)
    proto.values.name = name
    return sparse_weight(proto, ExternalFiles(None))


# -- Values --------------------------------------------------------------------------------------------------------
#
# A dimension without a size gets a symbol of its own, ``?NAME.AXIS``: two unknown sizes are never equal. Symbols that
# begin with ``?`` are written as dimensions without a size.


def unknown_dim(name: str, axis: int) -> Dim:
    """The symbol of a size that the model does not state."""
    return sym(f"?{name}.{axis}")


def is_anonymous(dim: Dim) -> bool:
    """Whether the dimension is one made by :func:`unknown_dim`."""
    return not isinstance(dim, int) and str(dim).startswith("?")


def value(proto: ValueInfoProto) -> Value:
    """The typed name that a ValueInfoProto states.

    Raises:
        InvalidModel: it has no name, or a dimension below -1 (-1 is read as "not known", as ONNX Runtime does).
    """
    if not proto.name:
        raise InvalidModel("an input, output or value_info has no name")
    kind = value_type(proto.type, proto.name) if proto.HasField("type") else None
    return Value(proto.name, kind, proto.doc_string, {e.key: e.value for e in proto.metadata_props})


def value_type(proto: TypeProto, name: str) -> ValueType | None:
    """Its type: a tensor's, one carried as bytes (sequence, map, optional …), or ``None`` where it says nothing."""
    which = proto.WhichOneof("value")
    if which is None:
        return None
    if which != "tensor_type":
        return OpaqueType(proto.SerializeToString(deterministic=True))
    tensor = proto.tensor_type
    if tensor.elem_type == 0:
        return None
    if tensor.elem_type not in DTYPES:
        raise InvalidModel(f"unknown element type {tensor.elem_type}", where=f"value {printable(name)!r}")
    shape = None
    if tensor.HasField("shape"):
        shape = tuple(_dim(d, name, axis) for axis, d in enumerate(tensor.shape.dim))
    return TensorType(DTYPES[tensor.elem_type], shape)


def _dim(dim: TensorShapeProto.Dimension, name: str, axis: int) -> Dim:
    which = dim.WhichOneof("value")
    if which == "dim_value":
        if dim.dim_value < -1:
            raise InvalidModel(f"has the negative dimension {dim.dim_value}", where=f"value {printable(name)!r}")
        return dim.dim_value if dim.dim_value >= 0 else unknown_dim(name, axis)
    if which == "dim_param" and dim.dim_param and not dim.dim_param.startswith("?"):
        return sym(dim.dim_param)
    return unknown_dim(name, axis)


def value_info(v: Value) -> ValueInfoProto:
    """The ValueInfoProto of a value."""
    proto = ValueInfoProto(name=v.name)
    if v.type is not None:
        proto.type.CopyFrom(type_proto(v.type))
    if v.doc:
        proto.doc_string = v.doc
    for key, text in v.metadata.items():
        proto.metadata_props.add(key=key, value=text)
    return proto


def type_proto(kind: ValueType) -> TypeProto:
    """The TypeProto of a type."""
    proto = TypeProto()
    if isinstance(kind, OpaqueType):
        proto.ParseFromString(kind.payload)
        return proto
    proto.tensor_type.elem_type = ELEMENT_TYPES[kind.dtype]
    if kind.shape is not None:
        proto.tensor_type.shape.SetInParent()
        for dim in kind.shape:
            if is_anonymous(dim):
                proto.tensor_type.shape.dim.add()
            elif isinstance(dim, int):
                proto.tensor_type.shape.dim.add(dim_value=dim)
            else:
                proto.tensor_type.shape.dim.add(dim_param=str(dim))
    return proto

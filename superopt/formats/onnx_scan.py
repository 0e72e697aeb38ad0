"""Where in an ONNX file its large weights lie: reading them takes three times the memory that they have.

A protobuf message is its fields, concatenated, each with a tag and, where it is long, its length in front (the encoding
of Protocol Buffers). So the large ``raw_data`` can be passed over, and everything else be parsed as if they were not
there. Only what is written as everybody writes it is read like this; anything else is left to the parser.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from superopt.formats.mapped_file import MappedFile, open_plain

__all__ = ["Inside", "Lean", "lean"]

SCANNED_FROM = 256 << 20  # bytes of a file: below, reading takes less than what is done with it afterwards
LARGE_WEIGHT = 1 << 16  # bytes of a weight: shorter ones are all read, as the rest of the message is
_GRAPH, _INITIALIZER, _RAW = 7, 5, 9  # fields of ModelProto, GraphProto and TensorProto
_PLAIN = frozenset({1, 2, 8, 9, 12, 16})  # fields of a TensorProto with raw data: dims, type, name, docs, metadata
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_HEAD = 20  # bytes of a tag and a length, at most


@dataclass(frozen=True)
class Inside:
    """Elements of a weight that lie in the model's own file."""

    file: MappedFile
    offset: int
    length: int


@dataclass(frozen=True)
class Lean:
    """A model's message without its large weights, and where these lie, by their numbers among the initializers."""

    message: bytes
    weights: Mapping[int, Inside] = field(default_factory=dict)


class _Strange(Exception):
    """The message is not written as everybody writes it."""


@dataclass(frozen=True)
class _Field:
    number: int
    kind: int
    start: int
    content: int
    end: int


def lean(path: Path, limit: int) -> Lean | None:
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
    return Lean(before + _nested(_GRAPH, content) + after, weights)


def _graph(file: MappedFile, graph: _Field) -> tuple[bytes, Mapping[int, Inside]]:
    if graph.kind != _BYTES:
        raise _Strange
    kept: list[bytes] = []
    weights: dict[int, Inside] = {}
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
            weights[count], copied = Inside(file, raw.content, raw.end - raw.content), part.end
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

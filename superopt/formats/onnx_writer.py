"""Graph to ONNX: in memory, or streamed to a file whose weights are never all held at once.

A protobuf message is the concatenation of its fields, in any order. So a model is written as: its fields without the
graph; the graph's tag and length; the graph's fields without weights; then each weight as tag, length, header and
raw bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

from superopt.formats.onnx_nodes import node, node_proto
from superopt.formats.onnx_reader import SHAPE_ONLY, default_ir_version
from superopt.formats.onnx_tensors import (
    ExternalFiles,
    TypedFieldWeightData,
    sparse_proto,
    tensor_header,
    tensor_proto,
    value,
    value_info,
)
from superopt.formats.safe_file_access import AtomicFileReplacement
from superopt.formats.weight_data import SparseWeightData, expected_bytes, packed_chunks, refuse_changed_files
from superopt.ir.errors import InvalidModel, ResourceLimit, printable
from superopt.ir.graph import Graph, Node, Value, Weight, attribute_key
from superopt.ir.types import DType

__all__ = ["onnx_bytes", "save_with_external", "save_onnx", "to_onnx", "to_onnx_bytes"]

SINGLE_FILE = 1_800_000_000  # bytes of weights above which they go to a file beside the model (protobuf ends at 2 GiB)
KEPT_INSIDE = 1024  # a weight of at most this many bytes stays inside the model in any case
_ALIGNMENT = 4096  # so that ONNX Runtime can map the weights
_GRAPH, _INITIALIZER, _RAW = b"\x3a", b"\x2a", b"\x4a"  # field number << 3 | 2 (length-delimited)


def to_onnx(graph: Graph) -> ModelProto:
    """The ONNX model of a graph, weights inside.

    Raises:
        ResourceLimit: the weights are too large for one protobuf message.
    """
    model = ModelProto()
    model.ParseFromString(to_onnx_bytes(graph))
    return model


def to_onnx_bytes(graph: Graph) -> bytes:
    """The serialised ONNX model of a graph, weights inside.

    Raises:
        ResourceLimit: the weights are too large for one protobuf message.
    """
    if (total := _stored(graph)) > SINGLE_FILE:
        raise ResourceLimit(f"{total} bytes of weights do not fit into one ONNX message; save to a file instead")
    return b"".join(_stream(graph, {}))


def onnx_bytes(graph: Graph) -> int:
    """How large the ONNX model of a graph is, weights inside or beside it; no weight is read for it."""
    model, body = _skeleton(graph)
    parts = [_part(w, None) for w in graph.weights if not (w.data is None or isinstance(w.data, SparseWeightData))]
    inner = int(body.ByteSize()) + sum(
        len(_INITIALIZER + _varint(len(p.header) + p.size)) + len(p.header) + p.size for p in parts
    )
    return int(model.ByteSize()) + len(_GRAPH + _varint(inner)) + inner


def save_onnx(graph: Graph, path: Path, *, force: bool = False, external_above: int = SINGLE_FILE) -> None:
    """Write an ONNX file, and beside it ``<path>.data`` where the weights exceed ``external_above`` bytes.

    Raises:
        InvalidModel: a file that weights are in was written to since the graph was loaded.
        UsageError: a file exists already and ``force`` is false, or cannot be written.
    """
    sidecar = path.parent / f"{path.name}.data"
    places: dict[str, tuple[str, int, int]] = {}
    end = 0
    if _stored(graph) > external_above:
        for w in graph.weights:
            if w.data is None or isinstance(w.data, SparseWeightData) or w.type.dtype is DType.STRING:
                continue
            if (size := expected_bytes(w.type)) > KEPT_INSIDE:
                start = -(-end // _ALIGNMENT) * _ALIGNMENT
                places[w.name] = (sidecar.name, start, size)
                end = start + size
    with AtomicFileReplacement() as files:
        if places:
            files.add(sidecar, _sidecar(graph, places), force=force)
        files.add(path, _stream(graph, places), force=force)
        refuse_changed_files(graph)


def save_with_external(graph: Graph, path: Path, places: dict[str, tuple[str, int, int]]) -> None:
    """Write an ONNX file to be run and thrown away; ``places`` are weights (by name) that lie in a file beside it.

    Args:
        graph: the model.
        path: overwritten.
        places: file name, first byte and bytes of each such weight.
    """
    with path.open("wb") as file:
        file.writelines(_stream(graph, places))


def _stored(graph: Graph) -> int:
    """Bytes of the weights that have values, as they would be written inside the model."""
    stored = [w for w in graph.weights if w.data is not None and w.type.dtype is not DType.STRING]
    return sum(len(w.data.payload) if isinstance(w.data, SparseWeightData) else expected_bytes(w.type) for w in stored)


def _sidecar(graph: Graph, places: dict[str, tuple[str, int, int]]) -> Iterator[bytes | memoryview]:
    end = 0
    for w in graph.weights:
        if w.name in places and w.data is not None:
            _, start, size = places[w.name]
            yield bytes(start - end)
            yield from packed_chunks(w.data, w.type.dtype)
            end = start + size


def _stream(graph: Graph, places: dict[str, tuple[str, int, int]]) -> Iterator[bytes | memoryview]:
    model, body = _skeleton(graph)
    head = model.SerializeToString(deterministic=True)
    inner = body.SerializeToString(deterministic=True)
    parts = [
        _part(w, places.get(w.name))
        for w in graph.weights
        if not (w.data is None or isinstance(w.data, SparseWeightData))
    ]
    tags = [_INITIALIZER + _varint(len(p.header) + p.size) for p in parts]
    total = len(inner) + sum(len(t) + len(p.header) + p.size for t, p in zip(tags, parts, strict=True))
    if len(head) + total > 2**31 - 64:
        raise ResourceLimit("what the model holds besides its weights does not fit into one ONNX message of 2 GiB")
    yield head + _GRAPH + _varint(total)
    yield inner
    for tag, part in zip(tags, parts, strict=True):
        yield tag + part.header
        yield from part.chunks


@dataclass(frozen=True)
class _Part:
    """One initializer: its fields before the raw bytes, and those, which are read only when they are written."""

    header: bytes
    size: int
    chunks: Iterator[bytes | memoryview]


def _part(w: Weight, place: tuple[str, int, int] | None) -> _Part:
    assert w.data is not None
    if place is not None or isinstance(w.data, TypedFieldWeightData) or w.type.dtype is DType.STRING:
        return _Part(tensor_proto(w, place).SerializeToString(), 0, iter(()))
    bare = tensor_header(w)
    size = expected_bytes(w.type)
    header = bare.SerializeToString() + _RAW + _varint(size)
    return _Part(header, size, packed_chunks(w.data, w.type.dtype))


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _skeleton(graph: Graph) -> tuple[ModelProto, GraphProto]:
    """The model without its graph, and the graph without its dense weights."""
    model = ModelProto.FromString(graph.extras.get("onnx.model", b""))
    if not model.HasField("ir_version"):
        model.ir_version = default_ir_version(graph)
    for domain, version in graph.opset.items():
        model.opset_import.add(domain=domain, version=version)
    if graph.doc:
        model.doc_string = graph.doc
    for key, text in graph.metadata.items():
        model.metadata_props.add(key=key, value=text)
    body = GraphProto.FromString(graph.extras.get("onnx.graph", b""))
    listed = list(body.input)
    body.ClearField("input")
    if graph.name:
        body.name = graph.name
    body.input.extend(_inputs(graph, listed, model.ir_version))
    body.output.extend(_value(graph, v, "output") for v in graph.outputs)
    body.value_info.extend(_value(graph, v, "value") for v in graph.values)
    body.node.extend(_node(graph, n) for n in graph.nodes)
    body.sparse_initializer.extend(sparse_proto(w) for w in graph.weights if isinstance(w.data, SparseWeightData))
    _prune_annotations(graph, body)
    return model, body


def _inputs(graph: Graph, listed: list[ValueInfoProto], ir_version: int) -> Iterator[ValueInfoProto]:
    """The inputs; before IR version 4 with all weights among them, at their old places where they had one."""
    own = {v.name: v for v in graph.inputs}
    done: set[str] = set()
    if ir_version < 4:
        for old in listed:
            kept = own.get(old.name) or graph.weight.get(old.name)
            if kept is not None:
                done.add(old.name)
                yield old if value(old).type == kept.type else value_info(Value(kept.name, kept.type))
    yield from (_value(graph, v, "input") for v in graph.inputs if v.name not in done)
    for w in graph.weights:
        if w.data is None:
            yield value_info(Value(w.name, w.type, w.doc, {**w.metadata, SHAPE_ONLY: "true"}))
        elif ir_version < 4 and w.name not in done and w.name not in own:
            yield value_info(Value(w.name, w.type))


def _value(graph: Graph, v: Value, role: str) -> ValueInfoProto:
    """The value as the file had it if that still says the same, else anew."""
    original = graph.extras.get(f"onnx.{role}:{v.name}")
    if original is not None:
        found = ValueInfoProto()
        found.ParseFromString(original)
        if value(found) == v:
            return found
    return value_info(v)


def _node(graph: Graph, n: Node) -> NodeProto:
    """The node as the file had it if that still says the same, else anew."""
    for name, held in n.attributes.items():
        if isinstance(held, Weight) and held.data is None:
            raise InvalidModel(
                f"attribute {printable(name)!r} is a tensor without values", where=f"node {printable(n.name)!r}"
            )
    key = next((o for o in n.outputs if o), "")
    original = graph.extras.get(f"onnx.node:{key}") if graph.extras else None
    if original is None:
        return node_proto(n)
    proto = NodeProto.FromString(original)
    try:
        return proto if _same(node(proto, ExternalFiles(None)), n) else node_proto(n)
    except InvalidModel:  # its tensor is in another file, so the bytes cannot be written as they were
        return node_proto(n)


def _same(a: Node, b: Node) -> bool:
    def key(n: Node) -> tuple[object, ...]:
        attributes = [(k, attribute_key(v)) for k, v in n.attributes.items()]
        return n.name, n.op, n.inputs, n.outputs, n.domain, n.overload, n.doc, dict(n.metadata), attributes

    return key(a) == key(b)


def _prune_annotations(graph: Graph, body: GraphProto) -> None:
    """Drop quantization annotations of tensors that are no longer there."""
    if not body.quantization_annotation:
        return
    names = {v.name for v in graph.inputs} | graph.weight.keys() | graph.producer.keys()
    kept = [a for a in body.quantization_annotation if a.tensor_name in names]
    body.ClearField("quantization_annotation")
    body.quantization_annotation.extend(kept)

"""Graph to the JSON graph (docs/usage.md): one node or weight a line, so that differences between files can be read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from superopt.formats.json_reader import FORMAT, VERSION
from superopt.formats.json_weights import INLINE, describe, encode, finite, parse_json, stream
from superopt.formats.onnx_tensors import is_anonymous
from superopt.formats.safe_file_access import AtomicFileReplacement
from superopt.formats.weight_data import RandomWeightData, SparseWeightData, packed_chunks, refuse_changed_files
from superopt.ir.errors import InvalidModel
from superopt.ir.graph import Attribute, Graph, Node, OpaqueAttribute, Value, Weight
from superopt.ir.types import DType, OpaqueType, ValueType

__all__ = ["format_document", "save_json", "save_together", "shared_key", "to_json", "whole_document"]

_AROUND = 8  # a value of a weight's metadata is at most so deep: in the tensor of a node's attribute, in seven others
_INSIDE = "\0"  # the name of no file: stands for elements that are inside the document


def save_json(graph: Graph, path: Path, *, force: bool = False) -> None:
    """Write ``path``, and beside it ``<stem>.safetensors`` when a weight is too long to read inline.

    Raises:
        InvalidModel: a file that weights are in was written to since the graph was loaded.
        UsageError: a file exists already and ``force`` is false, or cannot be written.
    """
    sidecar = path.with_name(path.stem + ".safetensors")
    large = [w for w in graph.weights if _is_large(w)]
    with AtomicFileReplacement() as files:
        if large:
            files.add(sidecar, stream(large), force=force)
        text = format_document(to_json(graph, sidecar=sidecar.name if large else None))
        files.add(path, [text.encode()], force=force)
        refuse_changed_files(graph)


def save_together(graphs: Mapping[Path, Graph], sidecar: Path) -> None:
    """Write graphs that have much in common: their long weights are in one file beside all of them, equal ones once.

    Args:
        graphs: by the path of each, all in one folder.
        sidecar: the safetensors file, in the same folder; none is written where no weight is long.

    Raises:
        UsageError: a file exists already, or cannot be written.
    """
    shared: dict[str, Weight] = {}
    with AtomicFileReplacement() as files:
        for path, graph in graphs.items():
            document = to_json(graph, sidecar=sidecar.name)
            rows = document.get("weights", [])
            assert isinstance(rows, list)
            for row, weight in zip(rows, graph.weights, strict=True):
                if "file" in row:
                    row["tensor"] = key = shared_key(weight)
                    shared.setdefault(key, replace(weight, name=key))
            files.add(path, [format_document(document).encode()], force=False)
        if shared:
            files.add(sidecar, stream(list(shared.values())), force=False)


def shared_key(weight: Weight) -> str:
    """By what a weight is known where equal ones are kept once: its type and a digest of its elements."""
    assert weight.data is not None
    return f"{weight.type} {weight.data.digest}"


def _is_large(w: Weight) -> bool:
    count = w.type.elements
    made = w.data is None or isinstance(w.data, RandomWeightData | SparseWeightData) or w.type.dtype is DType.STRING
    return not made and isinstance(count, int) and count > INLINE


def to_json(graph: Graph, *, sidecar: str | None = None) -> dict[str, object]:
    """The JSON document of a graph.

    Args:
        graph: any graph.
        sidecar: name of the safetensors file that long weights are said to be in; without it they are inside, as
            base64.
    """
    document: dict[str, object] = {"format": FORMAT, "version": VERSION}
    if graph.name:
        document["name"] = graph.name
    if graph.doc:
        document["doc"] = graph.doc
    document["opset"] = dict(graph.opset)
    document["inputs"] = [_value(v) for v in graph.inputs]
    if graph.weights:
        document["weights"] = [_weight(w, sidecar if _is_large(w) else None) for w in graph.weights]
    document["nodes"] = [_node(n) for n in graph.nodes]
    document["outputs"] = [_value(v) for v in graph.outputs]
    if graph.values:
        document["values"] = [_value(v) for v in graph.values]
    _annotate(document, "", graph.metadata)
    if graph.extras:
        document["extras"] = {k: encode(v) for k, v in graph.extras.items()}
    return document


def _value(v: Value) -> dict[str, object]:
    entry: dict[str, object] = {"name": v.name, **_type(v.type)}
    _annotate(entry, v.doc, v.metadata)
    return entry


def _type(kind: ValueType | None) -> dict[str, object]:
    if kind is None:
        return {}
    if isinstance(kind, OpaqueType):
        return {"type": encode(kind.payload)}
    if kind.shape is None:
        return {"dtype": kind.dtype.value}
    shape = [d if isinstance(d, int) else None if is_anonymous(d) else str(d) for d in kind.shape]
    return {"dtype": kind.dtype.value, "shape": shape}


def _weight(w: Weight, sidecar: str | None) -> dict[str, object]:
    entry = {**({"name": w.name} if w.name else {}), **_type(w.type), **describe(w, sidecar)}
    _annotate(entry, w.doc, w.metadata)
    return entry


def _node(n: Node) -> dict[str, object]:
    entry: dict[str, object] = {"name": n.name} if n.name else {}
    entry["op"] = n.op
    if n.domain:
        entry["domain"] = n.domain
    if n.overload:
        entry["overload"] = n.overload
    entry |= {"inputs": list(n.inputs), "outputs": list(n.outputs)}
    if n.attributes:
        entry["attributes"] = {k: _attribute(v) for k, v in n.attributes.items()}
    _annotate(entry, n.doc, n.metadata)
    return entry


def _attribute(value: Attribute) -> object:
    if isinstance(value, OpaqueAttribute):
        return {"opaque": encode(value.payload)}
    if isinstance(value, Weight):
        return {"tensor": _weight(value, None)}
    if isinstance(value, float):
        return value if finite(value) is value else {"float": finite(value)}
    if isinstance(value, int):
        return int(value)
    if isinstance(value, bytes):
        return _readable(value) if _readable(value) is not None else {"bytes": encode(value)}
    strings = [v for v in value if isinstance(v, bytes)]
    if strings:
        texts = [_readable(v) for v in strings]
        return texts if None not in texts else {"bytes": [encode(v) for v in strings]}
    if any(isinstance(v, float) for v in value):
        items = [finite(float(v)) for v in value]
        return {"floats": items} if any(isinstance(i, str) for i in items) else items
    return [int(v) for v in value]


def _readable(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _annotate(entry: dict[str, object], doc: str, metadata: Mapping[str, str]) -> None:
    """Docs and metadata; metadata that came from ``x-`` keys goes back there."""
    if doc:
        entry["doc"] = doc
    plain: dict[str, str] = {}
    for key, text in metadata.items():
        if key.startswith("x-") and _is_canonical(text):
            entry[key] = json.loads(text)
        else:
            plain[key] = text
    if plain:
        entry["metadata"] = plain


def _is_canonical(text: str) -> bool:
    """Whether a JSON text is exactly what reading its value back from the document would give."""
    try:
        if len(text) >= 100_000 or json.dumps(json.loads(text)) != text:
            return False
        parse_json(f"{'[' * _AROUND}{text}{']' * _AROUND}".encode())
    except (InvalidModel, ValueError, RecursionError):
        return False
    return True


def format_document(document: Mapping[str, object]) -> str:
    """JSON text with one element of a top-level list to a line. Only ASCII, so that no name can act on a terminal."""
    return "".join(_pieces(document))


def whole_document(graph: Graph) -> Iterator[bytes]:
    """The text of :func:`to_json` in pieces, each weight read and encoded only when its turn comes."""
    return (piece.encode() for piece in _pieces(to_json(graph, sidecar=_INSIDE), graph.weights))


def _pieces(document: Mapping[str, object], weights: Sequence[Weight] = ()) -> Iterator[str]:
    """A document's text in pieces; elements that it says are :data:`_INSIDE` are those of ``weights``."""
    yield "{"
    for position, (key, value) in enumerate(document.items()):
        yield f"{',' if position else ''}\n {json.dumps(key)}: "
        if not isinstance(value, list) or not value:
            yield json.dumps(value, allow_nan=False)
            continue
        for number, row in enumerate(value):
            yield f"{',' if number else '['}\n  "
            if key == "weights" and row.get("file") == _INSIDE:
                yield from _long_row(row, weights[number])
            else:
                yield json.dumps(row, allow_nan=False)
        yield "\n ]"
    yield "\n}\n"


def _long_row(row: dict[str, object], weight: Weight) -> Iterator[str]:
    """The row of a weight whose elements are inside, from one that says they are in a file."""
    packed = {("raw" if k == "file" else k): v for k, v in row.items() if k != "tensor"}
    before, after = json.dumps(packed, allow_nan=False).split(f'"raw": {json.dumps(_INSIDE)}', 1)
    yield f'{before}"raw": "'
    assert weight.data is not None
    left = b""
    for chunk in packed_chunks(weight.data, weight.type.dtype):
        held = left + bytes(chunk)
        whole = len(held) // 3 * 3  # three bytes are four characters
        yield encode(held[:whole])
        left = held[whole:]
    yield f'{encode(left)}"{after}'

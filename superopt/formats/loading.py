"""Load and save a model, whichever format it is in: what a file is, its content says, not its name."""

from __future__ import annotations

import re
from pathlib import Path

from superopt.formats.contradictions import refuse_contradictions
from superopt.formats.files import read_plain
from superopt.formats.json_reader import read_json
from superopt.formats.json_writer import save_json
from superopt.formats.onnx_reader import from_model_bytes
from superopt.formats.onnx_scan import lean
from superopt.formats.onnx_tensors import ExternalFiles
from superopt.formats.onnx_writer import SINGLE_FILE, save_onnx
from superopt.ir.errors import InvalidModel, SuperoptError, printable
from superopt.ir.graph import Graph

__all__ = ["from_bytes", "load", "load_with_files", "save"]

MAX_MESSAGE = 2**31 - 1  # protobuf's own limit
_JSON = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*\{")
_FOREIGN = (
    (re.compile(rb"PK\x03\x04"), "a zip archive (a PyTorch checkpoint?)"),
    (re.compile(rb"\x1f\x8b"), "gzip-compressed"),
    (re.compile(rb"\x80[\x02-\x05]"), "a Python pickle, which is never loaded"),
    (re.compile(rb"\x89HDF"), "an HDF5 file (Keras?)"),
    (re.compile(rb"(?s).{4}TFL3"), "a TensorFlow Lite model"),
    (re.compile(rb"(?s).{4}ORTM"), "an ONNX Runtime .ort model"),
    (re.compile(rb"(?s).{6}\0\0\{"), "a safetensors file, which holds weights and no graph"),
    (re.compile(rb"BZh|\xfd7zXZ|\x28\xb5\x2f\xfd"), "compressed"),
    (re.compile(rb"version https://git-lfs"), "a Git LFS pointer (`git lfs pull` fetches the file)"),
    (re.compile(rb"(?i)\s*<(?:!doctype|html)"), "a web page (a download that went wrong?)"),
    (re.compile(rb"\s*<\s*ir_version|\s*ir_version:"), "ONNX's text form"),
    (re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:\[|null\s*$)"), "JSON, but no object"),
)
_NEXT = "superopt reads ONNX models and its own JSON graphs"


def load(path: Path | str, *, external: bool = True) -> Graph:
    """The graph in a file: an ONNX model or a JSON graph. Weights stay in their files until they are read.

    Args:
        path: the file. Files it points to must be plain files in the same directory or below.
        external: whether it may point to other files at all; a service that gets files from strangers says no.

    Raises:
        InvalidModel: the file cannot be read or is not a valid model; the message names the file.
        ResourceLimit: the model asks for unbounded work.
    """
    return load_with_files(path, external=external)[0]


def load_with_files(path: Path | str, *, external: bool = True) -> tuple[Graph, tuple[Path, ...]]:
    """:func:`load`, and all files that the graph is in: the one that is named, and those that hold its weights."""
    path = Path(path)
    files = ExternalFiles(path.parent, external)
    try:
        found = lean(path, MAX_MESSAGE)
        graph = _checked(
            _parse(read_plain(path, MAX_MESSAGE), files) if found is None
            else from_model_bytes(found.message, files, found.weights)
        )  # fmt: skip
    except SuperoptError as error:
        raise error.within(printable(str(path))) from error
    return graph, (path, *files.paths)


def from_bytes(data: bytes, *, name: str = "model") -> Graph:
    """The graph in bytes that came from no file; it may point to no other file.

    Args:
        data: an ONNX model or a JSON graph.
        name: what messages call it.

    Raises:
        InvalidModel: the bytes are not a valid model.
        ResourceLimit: the model asks for unbounded work.
    """
    try:
        return _checked(_parse(data, ExternalFiles(None)))
    except SuperoptError as error:
        raise error.within(printable(name)) from error


def _checked(graph: Graph) -> Graph:
    refuse_contradictions(graph)
    return graph


def _parse(data: bytes, files: ExternalFiles) -> Graph:
    if not data:
        raise InvalidModel("is empty", hint=_NEXT)
    if _JSON.match(data):
        return read_json(data, files)
    for pattern, what in _FOREIGN:
        if pattern.match(data):
            raise InvalidModel(f"is {what}, not a model", hint=_NEXT)
    return from_model_bytes(data, files)


def save(graph: Graph, path: Path | str, *, force: bool = False, external_above: int = SINGLE_FILE) -> None:
    """Write a model: JSON where the name ends in ``.json``, else ONNX. Nothing half-written is ever seen.

    Large weights go beside the model: ``model.onnx.data`` when they exceed ``external_above`` bytes in sum,
    ``model.safetensors`` for those of a JSON graph that are too long to read inline.

    Raises:
        UsageError: a file exists already and ``force`` is false, or cannot be written.
    """
    path = Path(path)
    if path.suffix == ".json":
        save_json(graph, path, force=force)
    else:
        save_onnx(graph, path, force=force, external_above=external_above)

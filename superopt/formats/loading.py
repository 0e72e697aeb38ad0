"""Load and save a model, whichever format it is in: what a file is, its content says, not its name."""

from __future__ import annotations

import os
import re
from pathlib import Path

from superopt.formats.contradictions import refuse_contradictions
from superopt.formats.files import read_plain
from superopt.formats.foreign import READS, foreign_bytes, foreign_folder, foreign_name
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
        if os.path.isdir(path):
            raise foreign_folder(path)
        found = lean(path, MAX_MESSAGE)
        graph = _checked(
            _parse(read_plain(path, MAX_MESSAGE), files, printable(str(path))) if found is None
            else from_model_bytes(found.message, files, found.weights)
        )  # fmt: skip
    except SuperoptError as error:
        foreign = foreign_name(path) if not error.hint and os.path.isfile(path) else None
        raise (foreign or error).within(printable(str(path))) from error
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
        return _checked(_parse(data, ExternalFiles(None), "FILE"))
    except SuperoptError as error:
        raise error.within(printable(name)) from error


def _checked(graph: Graph) -> Graph:
    refuse_contradictions(graph)
    return graph


def _parse(data: bytes, files: ExternalFiles, name: str) -> Graph:
    """The graph in bytes of a file; ``name`` is what hints call that."""
    if not data:
        raise InvalidModel("is empty", hint=READS)
    if _JSON.match(data):
        return read_json(data, files)
    if (foreign := foreign_bytes(data, name)) is not None:
        raise foreign
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

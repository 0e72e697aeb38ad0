"""Load and save a model, whichever format it is in: what a file is, its content says, not its name."""

from __future__ import annotations

import os
import re
from pathlib import Path

from superopt.formats.json_reader import read_json
from superopt.formats.json_writer import save_json
from superopt.formats.onnx_reader import from_model_bytes
from superopt.formats.onnx_tensors import ExternalFiles, lean
from superopt.formats.onnx_writer import SINGLE_FILE, save_onnx
from superopt.formats.safe_file_access import read_plain
from superopt.formats.shape_contradictions import refuse_contradictions
from superopt.ir.errors import InvalidModel, SuperoptError, printable
from superopt.ir.graph import Graph

__all__ = ["READS", "foreign_bytes", "foreign_folder", "foreign_name", "from_bytes", "load", "load_with_files", "save"]


# -- Models of other formats ---------------------------------------------------------------------------------------
#
# Recognises other formats and names the tool that converts them to ONNX.


READS = "superopt reads ONNX models and its own JSON graphs"
_TF = "convert it with tf2onnx: python -m tf2onnx.convert {} --output model.onnx"
_TORCH = "load the module in Python, then superopt.optimize(module, example_inputs=(x,)), or torch.onnx.export"
_HUB = "export it with optimum: optimum-cli export onnx --model {} onnx/"
_TEXT = "convert it: python -c \"import onnx; onnx.save(onnx.load('{{name}}', format='{}'), 'model.onnx')\""
_PICKLED = (
    re.compile(rb"\x80[\x02-\x05]"),
    "a Python pickle (a PyTorch checkpoint?), which superopt never loads",
    _TORCH,
)
_CONTENT: tuple[tuple[re.Pattern[bytes], str, str], ...] = (
    (re.compile(rb"(?s)PK\x03\x04.{22,60}config\.json|(?s:PK\x03\x04.{22,60}metadata\.json)"), "a Keras model",
     _TF.format("--keras {name}")),
    (re.compile(rb"PK\x03\x04"), "a zip archive (a PyTorch checkpoint?)", _TORCH),
    (re.compile(rb"\x1f\x8b"), "gzip-compressed", "decompress it first: gunzip"),
    (re.compile(rb"BZh|\xfd7zXZ|\x28\xb5\x2f\xfd"), "compressed", "decompress it first"),
    _PICKLED,
    (re.compile(rb"\x89HDF"), "an HDF5 file (a Keras model?)", _TF.format("--keras {name}")),
    (re.compile(rb"(?s).{4}TFL3"), "a TensorFlow Lite model", _TF.format("--tflite {name}")),
    (re.compile(rb"(?s).{4}ORTM"), "an ONNX Runtime .ort model", "take the ONNX model that it was made of"),
    (re.compile(rb"GGUF"), "a GGUF file, which holds weights and no graph", _HUB.format("REPOSITORY")),
    (re.compile(rb"(?s).{6}\0\0\{"), "a safetensors file, which holds weights and no graph", _HUB.format("FOLDER")),
    (re.compile(rb"version https://git-lfs"), "a Git LFS pointer", "git lfs pull fetches the file"),
    (re.compile(rb"(?i)\s*<(?:!doctype|html)"), "a web page (a download that went wrong?)", READS),
    (re.compile(rb"(?s)\s*<(?:\?xml[^>]*>\s*<)?net\b"), "an OpenVINO model",
     "take the model that it was made of, and export that to ONNX"),
    (re.compile(rb"\s*<\s*ir_version"), "ONNX's text form", _TEXT.format("onnxtxt")),
    (re.compile(rb"\s*(?:ir_version|opset_import|producer_name|graph)\s*[:{]"), "protobuf's text form of ONNX",
     _TEXT.format("textproto")),
    (re.compile(rb'\s*\{\s*"(?:irVersion|opsetImport|producerName|graph)"'), "protobuf's JSON form of ONNX",
     _TEXT.format("json")),
    (re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:\[|null\s*$)"), "JSON, but no object", READS),
)  # fmt: skip
_SUFFIXES = {
    ".pb": ("a frozen TensorFlow graph", _TF.format("--graphdef {name} --inputs IN:0 --outputs OUT:0")),
    ".pdmodel": ("a PaddlePaddle model", "convert it: paddle2onnx --model_dir DIR --save_file model.onnx"),
    ".mlmodel": ("a Core ML model", "take the model that it was made of, and export that to ONNX"),
    ".caffemodel": ("a Caffe model", "take the model that it was made of, and export that to ONNX"),
    **dict.fromkeys((".pt", ".pth", ".ckpt", ".bin"), ("a PyTorch checkpoint", _TORCH)),
    ".tflite": ("a TensorFlow Lite model", _TF.format("--tflite {name}")),
    **dict.fromkeys((".h5", ".keras"), ("a Keras model", _TF.format("--keras {name}"))),
}  # fmt: skip


def foreign_bytes(data: bytes, name: str) -> InvalidModel | None:
    """The error for content that another format begins with; ``None`` for any other."""
    for pattern, what, hint in _CONTENT:
        if pattern.match(data):
            return _refusal(what, hint, name)
    return None


def foreign_name(path: Path) -> InvalidModel | None:
    """The error for a file that cannot be read as a model, by its name; ``None`` where that says nothing."""
    found = _SUFFIXES.get(path.suffix.lower())
    return None if found is None else _refusal(f"probably {found[0]}", found[1], printable(str(path)))


def foreign_folder(path: Path) -> InvalidModel:
    """The error for a folder, by what lies in it."""
    try:
        names = sorted(os.listdir(path))
    except OSError:  # it may not be read
        names = []
    shown = printable(str(path))
    if "saved_model.pb" in names:
        return _refusal("a TensorFlow SavedModel", _TF.format("--saved-model {name}"), shown)
    if path.suffix == ".mlpackage":
        return _refusal("a Core ML model", _SUFFIXES[".mlmodel"][1], shown)
    models = [n for n in names if n.endswith(".onnx")]
    if models:
        more = f" (it holds {len(models)} ONNX models)" if len(models) > 1 else ""
        return InvalidModel(f"is a directory{more}", hint=f"name the model: {printable(str(path / models[0]))}")
    if "config.json" in names:
        return _refusal("a directory of a model's configuration and weights", _HUB.format("{name}"), shown)
    return InvalidModel("is a directory", hint="name the file of a model; " + READS)


def _refusal(what: str, hint: str, name: str) -> InvalidModel:
    return InvalidModel(f"is {what}, not an ONNX model", hint=hint.replace("{name}", name))


# -- Loading and saving --------------------------------------------------------------------------------------------


_ADDRESS = re.compile(r"(?i)[a-z][a-z0-9+.-]+:/")  # a path has one of the two slashes
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
        if _ADDRESS.match(str(path)) and not os.path.lexists(path):
            raise InvalidModel("is an address, and superopt reads files", hint="download it first: curl -LO ADDRESS")
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
    if (foreign := foreign_bytes(data, name)) is not None:
        raise foreign
    if _JSON.match(data):
        return read_json(data, files)
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

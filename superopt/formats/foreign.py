"""Models of other formats, which superopt does not read: what they are, and which tool makes an ONNX model of them."""

from __future__ import annotations

import os
import re
from pathlib import Path

from superopt.ir.errors import InvalidModel, printable

__all__ = ["READS", "foreign_bytes", "foreign_folder", "foreign_name"]

READS = "superopt reads ONNX models and its own JSON graphs"
_TF = "convert it with tf2onnx: python -m tf2onnx.convert {} --output model.onnx"
_TORCH = "load the module in Python, then superopt.optimize(module, example_inputs=(x,)), or torch.onnx.export"
_HUB = "export it with optimum: optimum-cli export onnx --model {} onnx/"
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
    (re.compile(rb"\s*<\s*ir_version|\s*ir_version:"), "ONNX's text form", "onnx.parser.parse_model reads it"),
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

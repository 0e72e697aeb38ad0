"""Models of other formats: each is named, with the tool that makes an ONNX model of it."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path

import pytest

from superopt.formats import from_bytes, load
from superopt.ir.errors import InvalidModel


def zipped(name: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, "{}")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "what", "hint"),
    [
        ("m.tflite", b"\x1c\0\0\0TFL3" + bytes(40), "a TensorFlow Lite model", "tf2onnx.convert --tflite "),
        ("m.h5", b"\x89HDF\r\n\x1a\n" + bytes(40), "an HDF5 file (a Keras model?)", "tf2onnx.convert --keras "),
        ("m.keras", zipped("config.json"), "a Keras model", "tf2onnx.convert --keras "),
        ("m.pt", zipped("m/data.pkl"), "a zip archive (a PyTorch checkpoint?)", "superopt.optimize(module, "),
        ("m.pth", pickle.dumps({"state": 1}), "a Python pickle", "superopt.optimize(module, example_inputs=(x,))"),
        ("m.pb", b"\x0a\x0afrozen", "probably a frozen TensorFlow graph", "tf2onnx.convert --graphdef "),
        ("m.gguf", b"GGUF" + bytes(40), "a GGUF file", "optimum-cli export onnx"),
        ("m.safetensors", b"\x40\0\0\0\0\0\0\0{}" + bytes(40), "a safetensors file", "optimum-cli export onnx"),
        ("m.xml", b'<?xml version="1.0"?>\n<net name="m">', "an OpenVINO model", "export that to ONNX"),
        ("m.mlmodel", b"\x08\x04\x12\x99", "probably a Core ML model", "export that to ONNX"),
        ("m.onnx", b"version https://git-lfs.github.com/spec/v1", "a Git LFS pointer", "git lfs pull"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith("m.") else "",
)
def test_a_file_of_another_format_names_the_converter(
    name: str, content: bytes, what: str, hint: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InvalidModel) as error:
        load(path)
    assert str(error.value).startswith(f"{path}: is {what}")
    assert ", not an ONNX model; " in str(error.value)
    assert hint in error.value.hint
    assert "{name}" not in error.value.hint


@pytest.mark.parametrize(
    ("holds", "what", "hint"),
    [
        (["saved_model.pb"], "is a TensorFlow SavedModel, not an ONNX model", "tf2onnx.convert --saved-model {path}"),
        (["b.onnx", "a.onnx"], "is a directory (it holds 2 ONNX models)", "name the model: {path}/a.onnx"),
        (["only.onnx", "readme"], "is a directory", "name the model: {path}/only.onnx"),
        (["config.json", "model.safetensors"], "is a directory of a model's", "optimum-cli export onnx --model {path}"),
        ([], "is a directory", "name the file of a model"),
    ],
)
def test_a_folder_names_what_to_do_with_it(holds: list[str], what: str, hint: str, tmp_path: Path) -> None:
    for name in holds:
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(InvalidModel) as error:
        load(tmp_path)
    assert str(error.value).startswith(f"{tmp_path}: {what}")
    assert hint.format(path=tmp_path) in error.value.hint


def test_what_is_not_there_is_not_guessed_at(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match="cannot be read: No such file or directory"):
        load(tmp_path / "m.tflite")


def test_bytes_are_recognised_too() -> None:
    with pytest.raises(InvalidModel, match="model: is a TensorFlow Lite model, not an ONNX model; convert it"):
        from_bytes(b"\x1c\0\0\0TFL3" + bytes(40))

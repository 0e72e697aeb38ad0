"""Models in files: ONNX and superopt's JSON graph, both ways, without loss. Protobuf stops here."""

from superopt.formats.json_reader import read_json
from superopt.formats.json_schema import schema
from superopt.formats.json_writer import save_together, shared_key, to_json
from superopt.formats.loading import from_bytes, load, load_with_files, save
from superopt.formats.onnx_reader import from_onnx
from superopt.formats.onnx_writer import onnx_bytes, to_onnx, to_onnx_bytes

__all__ = [
    "from_bytes",
    "from_onnx",
    "load",
    "load_with_files",
    "onnx_bytes",
    "read_json",
    "save",
    "save_together",
    "schema",
    "shared_key",
    "to_json",
    "to_onnx",
    "to_onnx_bytes",
]

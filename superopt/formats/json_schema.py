"""The JSON Schema (draft 2020-12) of the JSON graph, as ``superopt schema`` prints it."""

from __future__ import annotations

from superopt.formats.json_reader import FORMAT, VERSION
from superopt.ir.types import DType

__all__ = ["schema"]

_TEXT: dict[str, object] = {"type": "string"}
_COUNT: dict[str, object] = {"type": "integer", "minimum": 0}
_BASE64: dict[str, object] = {"type": "string", "contentEncoding": "base64"}
_METADATA: dict[str, object] = {"type": "object", "additionalProperties": {"type": "string"}}
_NUMBER: dict[str, object] = {"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]}


def _object(required: list[str], **properties: object) -> dict[str, object]:
    """An object with these properties, docs and metadata, and any ``x-`` keys."""
    return {
        "type": "object",
        "required": required,
        "properties": {**properties, "doc": _TEXT, "metadata": _METADATA},
        "patternProperties": {"^x-": True},
        "additionalProperties": False,
    }


def _list(items: object, **rest: object) -> dict[str, object]:
    return {"type": "array", "items": items, **rest}


def _tag(name: str, inner: object) -> dict[str, object]:
    return {"type": "object", "required": [name], "properties": {name: inner}, "additionalProperties": False}


def _tensor(required: list[str]) -> dict[str, object]:
    sources = ["random", "values", "raw", "sparse", "file"]
    return {
        **_object(
            required,
            name=_TEXT,
            dtype={"$ref": "#/$defs/dtype"},
            shape=_list(_COUNT),
            random={"$ref": "#/$defs/random"},
            values=_list({"anyOf": [_NUMBER, {"type": ["boolean", "string"]}, _tag("bytes", _BASE64)]}),
            raw={**_BASE64, "description": "little-endian elements, packed as in ONNX raw_data"},
            sparse={**_BASE64, "description": "a serialised ONNX SparseTensorProto"},
            file={**_TEXT, "description": "a safetensors file beside this one"},
            tensor={**_TEXT, "description": "its name there; the weight's own name by default"},
        ),
        "not": {"anyOf": [{"required": [a, b]} for i, a in enumerate(sources) for b in sources[:i]]},
        "dependentRequired": {"tensor": ["file"]},
    }


def _definitions() -> dict[str, object]:
    value = _object(
        ["name"],
        name={**_TEXT, "minLength": 1},
        dtype={"$ref": "#/$defs/dtype"},
        shape=_list({"anyOf": [_COUNT, {**_TEXT, "pattern": "^[^?]"}, {"type": "null"}]}),
        type={**_BASE64, "description": "a serialised ONNX TypeProto, for what is not a tensor"},
    )
    random = {
        "type": "object",
        "description": (
            "offset + scale * draw, from NumPy's Generator(PCG64(seed)): standard_normal or uniform on [0, 1), in "
            "float32 (float64 for float64), then converted; integers by rounding half to even, booleans by > 0"
        ),
        "required": ["seed"],
        "properties": {
            "seed": _COUNT,
            "scale": {"type": "number", "default": 1.0},
            "offset": {"type": "number", "default": 0.0},
            "distribution": {"enum": ["normal", "uniform"], "default": "normal"},
        },
        "patternProperties": {"^x-": True},
        "additionalProperties": False,
    }
    attribute = {
        "anyOf": [
            {"type": ["number", "string"]},
            _list({"type": "number"}),
            _list(_TEXT),
            _tag("float", _NUMBER),
            _tag("floats", _list(_NUMBER, minItems=1)),
            _tag("bytes", {"anyOf": [_BASE64, _list(_BASE64, minItems=1)]}),
            _tag("tensor", {"$ref": "#/$defs/tensor"}),
            _tag("opaque", {**_BASE64, "description": "a serialised ONNX AttributeProto: subgraphs, types …"}),
        ]
    }
    node = _object(
        ["op", "inputs", "outputs"],
        name=_TEXT,
        op={**_TEXT, "minLength": 1},
        domain=_TEXT,
        overload=_TEXT,
        inputs=_list(_TEXT, description='names of values; "" leaves an optional input out'),
        outputs=_list(_TEXT),
        attributes={"type": "object", "additionalProperties": {"$ref": "#/$defs/attribute"}},
    )
    return {
        "dtype": {"enum": [d.value for d in DType]},
        "value": value,
        "random": random,
        "weight": _tensor(["name", "dtype", "shape"]),
        "tensor": _tensor(["dtype", "shape"]),
        "attribute": attribute,
        "node": node,
    }


def schema() -> dict[str, object]:
    """The schema as a JSON value. A document that it accepts may still be refused (cycles, types that do not fit …)."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"https://superopt.dev/schema/graph-{VERSION}.json",
        "title": "superopt graph",
        **_object(
            ["format", "version", "opset", "inputs", "nodes", "outputs"],
            **{"$schema": _TEXT},
            format={"const": FORMAT},
            version={"const": VERSION},
            name=_TEXT,
            opset={"type": "object", "additionalProperties": {"type": "integer", "minimum": 1}},
            inputs=_list({"$ref": "#/$defs/value"}),
            weights=_list({"$ref": "#/$defs/weight"}),
            nodes=_list({"$ref": "#/$defs/node"}),
            outputs=_list({"$ref": "#/$defs/value"}, minItems=1),
            values=_list({"$ref": "#/$defs/value"}, description="declared types of intermediates"),
            extras={
                "type": "object",
                "description": "parts of an ONNX file that superopt carries through, as serialised protobuf",
                "additionalProperties": _BASE64,
            },
        ),
        "$defs": _definitions(),
    }

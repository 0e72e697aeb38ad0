"""JSON graphs that must be survived: the error points at the place, whatever was written there."""

from __future__ import annotations

import contextlib
import copy
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superopt.formats import from_bytes, load, read_json
from superopt.ir.errors import InvalidModel, ResourceLimit

TINY: dict[str, object] = {
    "format": "superopt.graph", "version": 1, "name": "tiny", "opset": {"": 21},
    "inputs": [{"name": "x", "dtype": "float32", "shape": ["N", 3]}],
    "weights": [
        {"name": "w", "dtype": "float32", "shape": [3], "random": {"seed": 1, "scale": 0.02}},
        {"name": "s", "dtype": "float32", "shape": [], "values": [0.125]},
        {"name": "v", "dtype": "float32", "shape": [64, 10]},
    ],
    "nodes": [{"name": "add", "op": "Add", "inputs": ["x", "w"], "outputs": ["y"]},
              {"op": "LeakyRelu", "inputs": ["y"], "outputs": ["z"], "attributes": {"alpha": 1}}],
    "outputs": [{"name": "z"}],
}  # fmt: skip

TEXTS = {
    "deep": (b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested deeper"),
    "deep objects": (b'{"a":' * 200_000 + b"1" + b"}" * 200_000, "nested deeper"),
    "NaN": (b'{"format": NaN}', "NaN is not JSON"),
    "Infinity": (b'{"format": -Infinity}', "not JSON"),
    "long number": (b'{"format": ' + b"9" * 1_000_000 + b"}", "digits"),
    "long fraction": (b'{"format": 0.' + b"9" * 1_000_000 + b"}", "digits"),
    "duplicate key": (b'{"format": 1, "format": 2}', "given twice"),
    "not UTF-8": (b'{"format": "\xff"}', "not UTF-8"),
    "truncated": (b'{"format": "superopt.graph", "ver', "not valid JSON"),
    "unterminated escapes": (b"{" + b'\\"' * 300_000, "not valid JSON"),
    "two documents": (b"{}{}", "not valid JSON"),
    "surrogate": (json.dumps({**TINY, "name": "\ud800"}).encode(), "surrogate"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_text_that_is_refused(name: str) -> None:
    data, cause = TEXTS[name]
    with pytest.raises(InvalidModel) as caught:
        from_bytes(data, name="bad.json")
    assert cause in str(caught.value)
    assert str(caught.value).startswith("bad.json")


EDITS = {
    "/version": (("version",), 2, "reads version 1"),
    "/format": (("format",), "onnx", "is not 'superopt.graph'"),
    "/opset/": (("opset", ""), "21", "an integer is expected"),
    "/inputs/0/dtype": (("inputs", 0, "dtype"), "float33", "not an element type"),
    "/inputs/0/shape/1": (("inputs", 0, "shape", 1), -3, "outside"),
    "/inputs/0/shape/0": (("inputs", 0, "shape", 0), 1.5, "an integer is expected"),
    "/inputs/0": (("inputs", 0, "shpae"), [1], "did you mean 'shape'?"),
    "/weights/0/random/seed": (("weights", 0, "random", "seed"), -1, "outside"),
    "/weights/0/random/distribution": (("weights", 0, "random", "distribution"), "cauchy", "normal"),
    "/weights/1/values": (("weights", 1, "values"), [1, 2], "takes 1"),
    "/weights/1/values/0": (("weights", 1, "values"), [True], "a number is expected"),
    "/weights/2/shape/0": (("weights", 2, "shape"), [10**30], "outside"),
    "/weights/2": (("weights", 2, "shape"), [2**40, 2**40], "overflows"),
    "/weights/2/raw": (("weights", 2, "raw"), "!", "base64"),
    "/weights/0/values": (("weights", 0, "values"), [1, 2, 3], "one source"),
    "/weights/2/file": (("weights", 2, "file"), "../w.safetensors", "not accepted here"),
    "/nodes/0/inputs/1": (("nodes", 0, "inputs", 1), "ghost", "which nothing defines"),
    "/nodes/0/op": (("nodes", 0, "op"), "", "is empty"),
    "/nodes/0": (("nodes", 0, "inputs"), ["x"], "1 inputs"),
    "/nodes/1/attributes/alpha": (("nodes", 1, "attributes", "alpha"), 1e300, "too large"),
    "/nodes/1/attributes/beta/opaque": (("nodes", 1, "attributes", "beta"), {"opaque": "AAAA"}, ""),
    "/nodes/1/attributes/a~1b": (("nodes", 1, "attributes", "a/b"), None, "null"),
    "/outputs": (("outputs",), [], "nothing to compute"),
    "/extras/onnx.model": (("extras",), {"onnx.model": "OgA="}, "belongs elsewhere"),
    "/extras/evil": (("extras",), {"evil": ""}, "not a part"),
}  # fmt: skip


@pytest.mark.parametrize("pointer", EDITS)
def test_an_error_points_at_its_place(pointer: str) -> None:
    path, value, cause = EDITS[pointer]
    document = copy.deepcopy(TINY)
    place: object = document
    for key in path[:-1]:
        place = place[key]  # type: ignore[index]
    place[path[-1]] = value  # type: ignore[index]
    with pytest.raises(InvalidModel) as caught:
        read_json(json.dumps(document).encode())
    assert caught.value.where.split(",")[0] == pointer
    assert cause in str(caught.value)


def test_a_whole_number_is_a_float_where_the_operator_says_so() -> None:
    graph = read_json(json.dumps(TINY).encode())
    alpha = graph.nodes[1].attributes["alpha"]
    assert isinstance(alpha, float)
    assert graph.weight["v"].data is None


def _places(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(p for k, v in children for p in _places(v, (*path, k)))]


_ODD = st.sampled_from(
    [None, True, -1, 0, 2**70, 1.5, "", "x", "\ud800", [], {}, [[]], {"x": {}}, [None], "nan", {"opaque": "AA=="}]
)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(_places(TINY)[1:]), _ODD)
def test_wrong_types_anywhere_are_an_error_or_a_graph(path: tuple[object, ...], value: object) -> None:
    document = copy.deepcopy(TINY)
    place: object = document
    for key in path[:-1]:
        place = place[key]  # type: ignore[index]
    place[path[-1]] = value  # type: ignore[index]
    with contextlib.suppress(InvalidModel, ResourceLimit):
        read_json(json.dumps(document).encode())


def _sidecar(folder: Path, header: bytes, body: bytes = bytes(12)) -> Path:
    (folder / "w.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + body)
    document = copy.deepcopy(TINY)
    document["weights"][0] = {"name": "w", "dtype": "float32", "shape": [3], "file": "w.safetensors"}  # type: ignore[index]
    (folder / "m.json").write_text(json.dumps(document))
    return folder / "m.json"


HEADERS = {
    "good": (b'{"w":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}}', ""),
    "beyond": (b'{"w":{"dtype":"F32","shape":[3],"data_offsets":[4,16]}}', "within the file"),
    "backwards": (b'{"w":{"dtype":"F32","shape":[3],"data_offsets":[12,0]}}', "within the file"),
    "negative": (b'{"w":{"dtype":"F32","shape":[3],"data_offsets":[-12,0]}}', "outside"),
    "other type": (b'{"w":{"dtype":"I32","shape":[3],"data_offsets":[0,12]}}', "is stored"),
    "other shape": (b'{"w":{"dtype":"F32","shape":[1,3],"data_offsets":[0,12]}}', "is stored"),
    "other name": (b'{"u":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}}', "holds no tensor"),
    "not JSON": (b"garbage!", "not valid JSON"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_safetensors_headers(name: str, tmp_path: Path) -> None:
    header, cause = HEADERS[name]
    path = _sidecar(tmp_path, header)
    if not cause:
        assert load(path).weight["w"].data.numpy().tolist() == [0, 0, 0]  # type: ignore[union-attr]
        return
    with pytest.raises(InvalidModel) as caught:
        load(path)
    assert cause in str(caught.value)
    assert "w.safetensors" in str(caught.value)


def test_a_million_empty_safetensors_entries(tmp_path: Path) -> None:
    entries = ",".join(f'"{i}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for i in range(1_000_000))
    with pytest.raises(InvalidModel, match="limit is 200000"):
        load(_sidecar(tmp_path, f"{{{entries}}}".encode()))


def test_safetensors_length_bomb_and_fifo(tmp_path: Path) -> None:
    path = _sidecar(tmp_path, b"{}")
    (tmp_path / "w.safetensors").write_bytes((2**62).to_bytes(8, "little") + b"{}")
    with pytest.raises(InvalidModel, match="truncated"):
        load(path)
    (tmp_path / "w.safetensors").unlink()
    os.mkfifo(tmp_path / "w.safetensors")
    with pytest.raises(InvalidModel, match="FIFO"):
        load(path)

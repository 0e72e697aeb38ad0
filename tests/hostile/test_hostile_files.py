"""Inputs that must be survived: each gives one error of exit code 3 or 7 naming file and cause, and no output."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, helper, numpy_helper

from superopt.formats import from_bytes, load, read_json, save, to_json, to_onnx_bytes
from superopt.formats.safe_file_access import read_plain
from superopt.ir.errors import InvalidModel, SuperoptError

Maker = Callable[[Path], None]


def model(*nodes: NodeProto, weights: tuple[TensorProto, ...] = (), outputs: tuple[str, ...] = ("y",), opset: int = 17,
          functions: tuple[FunctionProto, ...] = ()) -> ModelProto:  # fmt: skip
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])
    found = [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs]
    graph = helper.make_graph(list(nodes), "g", [x], found, list(weights))
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, ir_version=8, opset_imports=imports, functions=list(functions))


def relu() -> NodeProto:
    return helper.make_node("Relu", ["x"], ["y"])


def write(proto: ModelProto) -> Maker:
    return lambda path: void(path.write_bytes(proto.SerializeToString()))


def void(_: object) -> None:
    return None


def raw(data: bytes) -> Maker:
    return lambda path: void(path.write_bytes(data))


def tensor(dims: list[int], data: bytes, kind: int = TensorProto.FLOAT) -> ModelProto:
    return model(relu(), weights=(TensorProto(name="w", dims=dims, data_type=kind, raw_data=data),))


def external(
    setup: Callable[[Path], object] = lambda folder: None, dims: tuple[int, ...] = (4,), **entries: str
) -> Maker:
    """A model whose weight is external data with these entries; ``setup`` prepares its directory."""

    def make(path: Path) -> None:
        (path.parent / "good.bin").write_bytes(bytes(16))
        setup(path.parent)
        proto = TensorProto(name="w", dims=dims, data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
        for key, value in {"location": "good.bin", **entries}.items():
            proto.external_data.add(key=key, value=value)
        path.write_bytes(model(relu(), weights=(proto,)).SerializeToString())

    return make


def outside(folder: Path) -> Path:
    """A secret beside the model's directory."""
    secret = folder.parent / f"{folder.name}-secret.bin"
    secret.write_bytes(bytes(16))
    return secret


def field(number: int, payload: bytes) -> bytes:
    """A length-delimited protobuf field: deeper nesting than the library would itself build."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def nested_ifs(depth: int) -> bytes:
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None).SerializeToString()
    graph = field(1, relu().SerializeToString()) + field(12, out)
    for _ in range(depth):
        branches = b"".join(field(5, field(1, n) + field(6, graph) + b"\xa0\x01\x05") for n in (b"then_branch",))
        graph = field(1, field(1, b"c") + field(2, b"y") + field(4, b"If") + branches) + field(12, out)
    return b"\x08\x08" + field(7, graph) + field(8, b"\x10\x11")


def dangling_capture() -> ModelProto:
    body = GraphProto(name="b", node=[helper.make_node("Relu", ["ghost"], ["z"])])
    body.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    return model(helper.make_node("If", ["x"], ["y"], then_branch=body, else_branch=body))


def function(name: str, *calls: str) -> FunctionProto:
    nodes = [helper.make_node(c, [f"a{i}"], [f"a{i + 1}"], domain="own") for i, c in enumerate(calls)]
    return helper.make_function("own", name, ["a0"], [f"a{len(calls)}"], nodes, [helper.make_opsetid("own", 1)])


def doubling(levels: int) -> ModelProto:
    chain = [function(f"f{i}", f"f{i + 1}", f"f{i + 1}") for i in range(levels)]
    leaf = helper.make_function("own", f"f{levels}", ["a"], ["b"], [helper.make_node("Neg", ["a"], ["b"])], [])
    return model(helper.make_node("f0", ["x"], ["y"], domain="own"), functions=(*chain, leaf))


def bad_utf8() -> bytes:
    return (
        model(helper.make_node("Relu", ["x"], ["y"], name="NAME"))
        .SerializeToString()
        .replace(b"NAME", b"\xff\xfe\xff\xfe")
    )


def sparse(index: int) -> ModelProto:
    proto = model(relu())
    values = numpy_helper.from_array(np.ones(1, np.float32), "s")
    indices = numpy_helper.from_array(np.array([[0, index, 0]]), "i")
    proto.graph.sparse_initializer.append(SparseTensorProto(values=values, indices=indices, dims=[4]))
    return proto


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("data.pkl", b"x")
    return file.getvalue()


GOOD = model(relu()).SerializeToString()
X = helper.make_tensor_value_info("x", TensorProto.FLOAT, [-7])
ONNX: dict[str, tuple[Maker, str]] = {
    "empty file": (raw(b""), "is empty"),
    "garbage": (raw(random.Random(0).randbytes(4096)), "not an ONNX model"),
    "text": (raw(b"hello, I am a model"), "not an ONNX model"),
    "truncated": (raw(GOOD[: len(GOOD) // 2]), "not an ONNX model"),
    "length bomb": (raw(b"\x08\x08\x3a\xff\xff\xff\xff\x07" + b"x" * 64), "not an ONNX model"),
    "no graph": (raw(ModelProto(ir_version=8).SerializeToString()), "no graph"),
    "pickle": (raw(pickle.dumps({"a": 1})), "pickle"),
    "zip": (raw(zipped()), "zip"),
    "gzip": (raw(gzip.compress(GOOD)), "gzip"),
    "LFS pointer": (raw(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"), "git lfs pull"),
    "web page": (raw(b"\n<!DOCTYPE html>\n<html></html>"), "a web page"),
    "text form": (raw(b'<\n  ir_version: 8,\n  opset_import: ["" : 17]\n>'), "format='onnxtxt'"),
    "protobuf's text": (raw(b"ir_version: 8\ngraph {}\n"), "format='textproto'"),
    "protobuf's text without a version": (raw(b"graph {\n  name: 'g'\n}\n"), "format='textproto'"),
    "protobuf's JSON": (raw(b'{\n  "irVersion": "8",\n  "graph": {}\n}'), "format='json'"),
    "JSON array": (raw(b" [1, 2]"), "JSON, but no object"),
    "JSON null": (raw(b"null\n"), "JSON, but no object"),
    "directory": (lambda path: path.mkdir(), "a directory"),
    "FIFO": (lambda path: os.mkfifo(path), "a FIFO"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "a device"),
    "missing": (lambda path: None, "No such file"),
    "external ..": (external(outside, location="../secret.bin"), "leaves the model's directory"),
    "external inner ..": (external(outside, location="a/../../secret.bin"), "leaves the model's directory"),
    "external absolute": (external(location="/etc/passwd"), "relative path"),
    "external drive": (external(location="C:\\x.bin"), "relative path"),
    "external scheme": (external(location="file:/x.bin"), "relative path"),
    "external itself": (external(location="."), "empty parts"),
    "external NUL": (external(location="good.bin\0"), "relative path"),
    "external empty": (external(location=""), "relative path"),
    "external symlink": (external(lambda f: (f / "l").symlink_to(outside(f)), location="l"), "symbolic link"),
    "external directory symlink": (external(lambda f: (f / "d").symlink_to(f), location="d/good.bin"), "opened"),
    "external hard link": (external(lambda f: os.link(outside(f), f / "h"), location="h"), "hard links"),
    "external FIFO": (external(lambda f: os.mkfifo(f / "p"), location="p"), "a FIFO"),
    "external directory": (external(lambda f: (f / "d").mkdir(), location="d"), "a directory"),
    "external missing": (external(location="none.bin"), "No such file"),
    "external memory address": (external(location="*/_ORT_MEM_ADDR_/*"), "cannot be opened"),
    "negative offset": (external(offset="-8"), "offset"),
    "offset beyond": (external(offset="1000000"), "but the file has 16"),
    "huge offset": (external(offset="9" * 30), "offset"),
    "length beyond": (external(dims=(8,)), "but the file has 16"),
    "length not dims": (external(length="12"), "16 bytes"),
    "injected key": (external(path="/etc/passwd"), "unknown external-data key"),
    "dims overflow": (write(tensor([2**40, 2**40], b"")), "overflows"),
    "dims overflow with zero": (write(tensor([2**62, 2**62, 0], b"")), "overflows"),
    "negative dims": (write(tensor([-1, 4], bytes(16))), "negative dimension"),
    "dims not bytes": (write(tensor([4], bytes(12))), "16 bytes, but 12"),
    "unknown dtype": (write(tensor([4], bytes(16), 99)), "element type 99"),
    "string as raw": (write(tensor([1], b"a", TensorProto.STRING)), "raw"),
    "negative input": (write(ModelProto(ir_version=8, graph=GraphProto(input=[X]))), "negative dimension"),
    "nested Ifs": (raw(nested_ifs(40)), "does not parse"),
    "unclosed nested Ifs": (raw(nested_ifs(5000)), "does not parse"),
    "recursive function": (
        write(model(helper.make_node("f", ["x"], ["y"], domain="own"),
                    functions=(function("f", "g"), function("g", "f")))),
        "calls itself",
    ),
    "exponential functions": (write(doubling(40)), "expand"),
    "function named as an operator": (
        write(model(relu(), functions=(helper.make_function("", "Relu", ["a"], ["a"], [], []),))), "takes the name",
    ),
    "cycle": (
        write(model(helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"]),
                    outputs=("a",))),
        "cycle",
    ),
    "self-loop": (write(model(helper.make_node("Add", ["x", "y"], ["y"]))), "cycle"),
    "duplicate SSA name": (write(model(relu(), relu())), "defined twice"),
    "dangling input": (write(model(helper.make_node("Relu", ["nowhere"], ["y"]))), "nowhere"),
    "dangling capture": (write(dangling_capture()), "ghost"),
    "missing inputs": (write(model(helper.make_node("Add", ["x"], ["y"]))), "inputs"),
    "left-out required input": (write(model(helper.make_node("Conv", ["x", ""], ["y"]))), "required"),
    "missing attribute": (write(model(helper.make_node("Concat", ["x", "x"], ["y"]))), "'axis'"),
    "absurd opset": (write(model(relu(), opset=10**9)), "does not exist"),
    "opset 0": (write(model(relu(), opset=0)), "does not exist"),
    "absurd IR version": (write(ModelProto(ir_version=10**6, graph=GraphProto())), "IR version"),
    "no outputs": (write(model(relu(), outputs=())), "no outputs"),
    "names that are not UTF-8": (raw(bad_utf8()), "not UTF-8"),
    "sparse mismatch": (write(sparse(1)), "do not fit"),
}  # fmt: skip


@pytest.mark.parametrize("name", ONNX)
def test_refused(name: str, tmp_path: Path) -> None:
    make, cause = ONNX[name]
    folder = tmp_path / "models"
    folder.mkdir()
    path = folder / "bad.onnx"
    make(path)
    before = sorted(folder.iterdir())
    with pytest.raises(SuperoptError) as caught:
        save(load(path), folder / "out.onnx")
    message = str(caught.value)
    assert caught.value.exit_code in (3, 7)
    assert "bad.onnx" in message
    assert cause in message
    assert "\n" not in message
    assert len(message) < 1000
    assert sorted(folder.iterdir()) == before, "something was written"


@pytest.mark.parametrize("address", ["https://example.com/m.onnx", "s3://bucket/m.onnx", "file:///m.onnx"])
def test_an_address_is_told_from_a_file(address: str) -> None:
    for named in (address, Path(address)):
        with pytest.raises(InvalidModel, match="is an address, and superopt reads files; download it first"):
            load(named)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_permission(tmp_path: Path) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(GOOD)
    path.chmod(0)
    with pytest.raises(SuperoptError, match="Permission"):
        load(path)


@pytest.mark.parametrize(
    "text", ["<script>alert(1)</script>", "\x1b[31mred\x1b[0m", "a\0b", "x" * 1_000_000, "line\nbreak", "\u202e"]
)
def test_hostile_names_are_carried_and_printed_escaped(text: str, tmp_path: Path) -> None:
    good = model(helper.make_node("Relu", ["x"], [text], name=text), outputs=(text,))
    (tmp_path / "m.onnx").write_bytes(good.SerializeToString())
    graph = load(tmp_path / "m.onnx")
    save(graph, tmp_path / "m.json")
    save(load(tmp_path / "m.json"), tmp_path / "again.onnx")
    assert load(tmp_path / "again.onnx").nodes[0].name == text
    bad = model(helper.make_node("Relu", [text], ["y"], name=text))
    with pytest.raises(SuperoptError) as caught:
        from_bytes(bad.SerializeToString())
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 1000


def test_a_file_may_be_named_as_what_saved_it_was_told(tmp_path: Path) -> None:
    """Weights beside ``r_profile:cpu.json`` lie in a file with a colon in its name."""
    external()(tmp_path / "m.onnx")
    graph = load(tmp_path / "m.onnx")
    for name in ("a:b.json", "r_profile:cpu.onnx"):
        save(graph, tmp_path / name)
        assert load(tmp_path / name).names == graph.names
    external(lambda f: (f / "good.bin").rename(f / "go:od.bin"), location="go:od.bin")(tmp_path / "n.onnx")
    assert load(tmp_path / "n.onnx").names == graph.names


def test_the_service_accepts_no_external_data(tmp_path: Path) -> None:
    external()(tmp_path / "m.onnx")
    assert load(tmp_path / "m.onnx").weight["w"].data is not None
    with pytest.raises(SuperoptError, match="not accepted here"):
        load(tmp_path / "m.onnx", external=False)
    with pytest.raises(SuperoptError, match="not accepted here"):
        from_bytes((tmp_path / "m.onnx").read_bytes())


def test_external_data_inside_subgraphs_and_functions_is_checked_too(tmp_path: Path) -> None:
    secret = TensorProto(name="w", dims=[4], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    secret.external_data.add(key="location", value="/etc/passwd")
    body = GraphProto(name="b", node=[helper.make_node("Relu", ["w"], ["z"])], initializer=[secret])
    body.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    branch = model(helper.make_node("If", ["x"], ["y"], then_branch=body, else_branch=body))
    constant = helper.make_node("Constant", [], ["b"], value=secret)
    called = helper.make_function("own", "f", ["a"], ["b"], [constant], [helper.make_opsetid("", 17)])
    inside = model(helper.make_node("f", ["x"], ["y"], domain="own"), functions=(called,))
    attribute = model(helper.make_node("Constant", [], ["y"], value=secret))
    for index, proto in enumerate((branch, inside, attribute)):
        path = tmp_path / f"{index}.onnx"
        path.write_bytes(proto.SerializeToString())
        with pytest.raises(SuperoptError, match="relative path"):
            load(path)


def test_a_long_chain_loads_and_saves(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", [f"v{i}" if i else "x"], [f"v{i + 1}"]) for i in range(20_000)]
    (tmp_path / "chain.onnx").write_bytes(model(*nodes, outputs=("v20000",)).SerializeToString())
    graph = load(tmp_path / "chain.onnx")
    save(graph, tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").stat().st_size > 200_000


def mutated(data: bytes, chance: random.Random) -> bytes:
    """A few bytes changed, removed or put in."""
    changed = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 5])):
        at = chance.randrange(len(changed))
        match chance.randrange(5):
            case 0:
                del changed[at : at + chance.randrange(1, 6)]
            case 1:
                changed[at:at] = chance.randbytes(chance.randrange(1, 6))
            case _:
                changed[at] = chance.randrange(256)
    return bytes(changed)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_files_are_an_error_or_a_graph_that_can_be_saved(seed: int) -> None:
    chance = random.Random(seed)
    models = [GOOD, doubling(3).SerializeToString(), sparse(1).SerializeToString(), nested_ifs(3)]
    models += [tensor([4], bytes(16)).SerializeToString(), dangling_capture().SerializeToString()]
    models.append(json.dumps(to_json(from_bytes(models[1]))).encode())
    outcomes = set()
    for _ in range(400):
        data = mutated(chance.choice(models), chance)
        try:
            graph = from_bytes(data)
            to_onnx_bytes(read_json(json.dumps(to_json(graph)).encode()))
            outcomes.add(0)
        except SuperoptError as error:
            outcomes.add(error.exit_code)
    assert {0, 3} <= outcomes <= {0, 3, 7}


def test_what_grows_or_does_not_tell_its_length_is_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "long"
    path.write_bytes(bytes(range(256)) * 40)
    assert read_plain(path, 10240) == path.read_bytes()
    with pytest.raises(InvalidModel, match="is 10240 bytes long; the limit for this kind of file is 10239"):
        read_plain(path, 10239)
    told = Path("/proc/self/status")  # 0 bytes long, it says
    assert read_plain(told, 1 << 20).startswith(b"Name:")
    monkeypatch.setattr("superopt.formats.safe_file_access.CHUNK", 100)
    with pytest.raises(InvalidModel, match="the limit for this kind of file is 200"):
        read_plain(told, 200)

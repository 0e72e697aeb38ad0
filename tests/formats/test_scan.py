"""A large ONNX file read without its weights says what it says read whole, and what is odd is left to the parser."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from superopt.formats import load, onnx_tensors, onnx_writer, save, to_onnx_bytes
from superopt.formats.weight_data import FileWeightData, PackedWeightData
from superopt.ir.errors import InvalidModel
from superopt.ir.graph import structural_hash

LIMIT = 2**31 - 1
LONG, SHORT = np.arange(60, dtype=np.float32).reshape(6, 10), np.arange(3, dtype=np.float32)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if files of some bytes, and weights of 100, were large."""
    monkeypatch.setattr(onnx_tensors, "SCANNED_FROM", 1)
    monkeypatch.setattr(onnx_tensors, "LARGE_WEIGHT", 100)


def tensor(name: str, array: np.ndarray) -> TensorProto:
    made = numpy_helper.from_array(array, name)
    made.doc_string = "what it is"
    return made


def model(*tensors: TensorProto) -> ModelProto:
    named = [t.name for t in tensors]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [6, 10])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [6, 10])
    nodes = [helper.make_node("Sum", ["x", *named], ["y"], name="all")]
    graph = helper.make_graph(nodes, "g", [x], [y], initializer=tensors, doc_string="a graph")
    return helper.make_model(graph, producer_name="somebody", opset_imports=[helper.make_opsetid("", 21)])


def written(folder: Path, content: bytes) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(content)
    return path


def as_usual(path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """What reading it whole gives: a graph's bytes, or an error's text."""
    with monkeypatch.context() as patch:
        patch.setattr(onnx_tensors, "SCANNED_FROM", LIMIT)
        return outcome(path)


def outcome(path: Path) -> object:
    try:
        return to_onnx_bytes(load(path))
    except InvalidModel as error:
        return str(error)


def test_large_weights_stay_in_the_file_and_nothing_else_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = model(tensor("a", SHORT[:1]), tensor("b", LONG), tensor("c", SHORT[1:2]), tensor("d", LONG + 1))
    path = written(tmp_path, made.SerializeToString())
    graph = load(path)
    kinds = {w.name: type(w.data) for w in graph.weights}
    assert kinds == {"a": PackedWeightData, "b": FileWeightData, "c": PackedWeightData, "d": FileWeightData}
    np.testing.assert_array_equal(graph.weight["d"].data.numpy(), LONG + 1)  # type: ignore[union-attr]
    assert to_onnx_bytes(graph) == as_usual(path, monkeypatch)
    assert structural_hash(pickle.loads(pickle.dumps(graph))) == structural_hash(graph)
    save(graph, path, force=True)  # onto itself
    onnx.checker.check_model(onnx.load(path))
    assert outcome(path) == as_usual(path, monkeypatch)


def later(made: ModelProto) -> bytes:
    """The same message, with the graph in two parts: what a parser merges."""
    rest = ModelProto()
    rest.graph.initializer.append(made.graph.initializer[-1])
    del made.graph.initializer[-1]
    return made.SerializeToString() + rest.SerializeToString()


def with_field(made: ModelProto, change: str) -> bytes:
    found = made.graph.initializer[1]
    if change == "twice":
        content = found.SerializeToString()
        raw = TensorProto(raw_data=(LONG * 2).tobytes()).SerializeToString()
        twice = onnx_tensors._nested(onnx_tensors._INITIALIZER, content + raw)
        del made.graph.initializer[1]
        made.graph.node[0].input.remove("b")
        made.graph.node[0].input.append("b")
        graph = made.graph.SerializeToString() + twice
        made.ClearField("graph")
        return made.SerializeToString() + onnx_tensors._nested(onnx_tensors._GRAPH, graph)
    if change == "typed too":
        found.float_data.extend([1.0, 2.0])
    elif change == "outside too":
        found.data_location = TensorProto.EXTERNAL
        found.external_data.add(key="location", value="nowhere")
    elif change == "too short":
        found.raw_data = found.raw_data[:-4]
    elif change == "strings":
        found.data_type = TensorProto.STRING
    elif change == "segment":
        found.segment.begin = 1
    elif change == "unknown type":
        found.data_type = 99
    elif change == "negative":
        found.dims[0] = -6
    return bytes(made.SerializeToString())


@pytest.mark.parametrize(
    "change",
    ["twice", "typed too", "outside too", "too short", "strings", "segment", "unknown type", "negative", "nothing"],
)
def test_what_is_odd_means_what_it_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    made = model(tensor("a", SHORT[:1]), tensor("b", LONG), tensor("c", LONG + 3))
    path = written(tmp_path, with_field(made, change))
    assert outcome(path) == as_usual(path, monkeypatch)


def test_a_graph_in_two_parts_is_left_to_the_parser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, later(model(tensor("b", LONG), tensor("c", LONG + 3))))
    assert onnx_tensors.lean(path, LIMIT) is None
    assert outcome(path) == as_usual(path, monkeypatch)
    assert isinstance(outcome(path), bytes)


def test_no_part_of_a_file_and_no_noise_is_read_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = model(tensor("a", SHORT[:1]), tensor("b", LONG), tensor("c", LONG + 3)).SerializeToString()
    rng = np.random.default_rng(0)
    cases = [whole[:stop] for stop in range(0, len(whole), 7)]
    for _ in range(300):
        noisy = bytearray(whole)
        for at in rng.integers(0, len(whole), 1 + int(rng.integers(3))):
            noisy[at] = int(rng.integers(256))
        cases.append(bytes(noisy))
    for content in cases:
        path = written(tmp_path, content)
        assert outcome(path) == as_usual(path, monkeypatch)


def test_a_longer_file_than_a_message_can_be_is_refused_as_before(tmp_path: Path) -> None:
    path = written(tmp_path, model(tensor("b", LONG)).SerializeToString())
    assert onnx_tensors.lean(path, path.stat().st_size - 1) is None


@pytest.mark.parametrize("name", ["out.onnx", "out.json"])
def test_a_file_that_changed_since_it_was_loaded_is_not_written_as_another(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, model(tensor("a", SHORT[:1]), tensor("b", LONG)).SerializeToString())
    graph = load(path)
    with path.open("r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"\1" * 8)
    os.utime(path, (1, 1))
    with pytest.raises(InvalidModel, match="changed since the model was loaded"):
        save(graph, tmp_path / name)
    assert sorted(tmp_path.iterdir()) == [path]


class Interrupting:
    """``os.replace`` that is interrupted, once, when it has renamed so many files."""

    def __init__(self, after: int) -> None:
        self.after, self.done, self.replace = after, 0, os.replace

    def __call__(self, old: str, new: Path) -> None:
        self.replace(old, new)
        self.done += 1
        if self.done == self.after:
            raise KeyboardInterrupt


@pytest.mark.parametrize("after", [1, 2])
def test_an_interrupt_leaves_no_model_beside_weights_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    path = written(tmp_path, model(tensor("a", SHORT[:1]), tensor("b", LONG)).SerializeToString())
    target = tmp_path / "out.onnx"
    with monkeypatch.context() as patch:
        patch.setattr(onnx_writer, "KEPT_INSIDE", 10)
        save(load(path), target, external_above=1)
        written(tmp_path, model(tensor("a", SHORT[1:2]), tensor("b", LONG * 2)).SerializeToString())
        patch.setattr(os, "replace", Interrupting(after))
        with pytest.raises(KeyboardInterrupt):
            save(load(path), target, external_above=1, force=True)
    small, large = (load(target).weight[n].data for n in "ab")
    assert small is not None
    assert large is not None
    np.testing.assert_array_equal(small.numpy(), SHORT[1:2])
    np.testing.assert_array_equal(large.numpy(), LONG * 2)
    assert not [p for p in tmp_path.iterdir() if p.suffix == ".tmp"]


def test_a_process_that_ends_between_two_names_leaves_no_old_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, model(tensor("a", SHORT[:1]), tensor("b", LONG)).SerializeToString())
    target = tmp_path / "out.onnx"
    seen: list[bool] = []

    def looked(old: str, new: Path) -> None:
        seen.append(target.exists())

    with monkeypatch.context() as patch:
        patch.setattr(onnx_writer, "KEPT_INSIDE", 10)
        save(load(path), target, external_above=1)
        patch.setattr(os, "replace", looked)
        save(load(path), target, external_above=1, force=True)
    assert seen == [False, False]

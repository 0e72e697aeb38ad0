"""ONNX Runtime sessions: element types, errors in our own words, and the race's structure."""

import numpy as np
import pytest

from superopt import formats
from superopt.ir.errors import InvalidModel, SuperoptError, Unsupported, UsageError
from superopt.ir.graph import Graph, Node, Value, constant
from superopt.ir.size_polynomial import sym
from superopt.ir.types import DType, TensorType
from superopt.runtime.onnx_runtime import element_type, make_session, run
from superopt.runtime.paired_benchmark import time_models

SQUARE = TensorType(DType.FLOAT32, (sym("n"), sym("n")))


def model(nodes, kind, *, weights=(), outputs=("y",), opset=21):
    return formats.to_onnx_bytes(
        Graph(
            "g", (Value("x", kind),), tuple(Value(o, None) for o in outputs), tuple(weights), tuple(nodes), {"": opset}
        )
    )


def through_float32(dtype):
    """A cast to float32 and back, so that bits are interpreted and not only copied."""
    number = {"float16": 10, "bfloat16": 16, "float8e4m3fn": 17, "float8e5m2": 19, "uint4": 21, "int4": 22}[dtype]
    return [Node("a", "Cast", ("x",), ("f",), {"to": 1}), Node("b", "Cast", ("f",), ("y",), {"to": number})]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8e4m3fn", "float8e5m2", "uint4", "int4"])
@pytest.mark.parametrize("width", [1, 4, 5])
def test_types_that_numpy_lacks_go_in_and_come_out(dtype, width):
    kind = TensorType(DType(dtype), (2, width))
    low = 0 if dtype.startswith("u") else -2
    array = np.resize(np.arange(low, 5), (2, width)).astype(kind.dtype.numpy)
    out = run(make_session(model(through_float32(dtype), kind), threads=1), {"x": array})["y"]
    assert out.dtype == array.dtype
    assert out.astype(np.float32).tolist() == array.astype(np.float32).tolist()


def test_strings_and_empty_tensors_go_through():
    text = np.array([["a", "é"]], dtype=object)
    out = run(
        make_session(model([Node("i", "Identity", ("x",), ("y",))], TensorType(DType.STRING, (1, 2)))), {"x": text}
    )
    assert out["y"].tolist() == text.tolist()
    empty = np.zeros((0, 3), np.float32)
    session = make_session(model([Node("r", "Relu", ("x",), ("y",))], TensorType(DType.FLOAT32, (sym("n"), 3))))
    assert run(session, {"x": empty})["y"].shape == (0, 3)


def test_chosen_outputs_only():
    nodes = [Node("a", "Relu", ("x",), ("y",)), Node("b", "Neg", ("x",), ("z",))]
    session = make_session(model(nodes, SQUARE, outputs=("y", "z")))
    assert list(run(session, {"x": np.ones((1, 1), np.float32)}, ["z"])) == ["z"]


def test_every_element_type_of_onnx_runtime_is_read():
    assert element_type("tensor(float)") is DType.FLOAT32
    assert element_type("tensor(Float8E4M3FN)") is DType.FLOAT8E4M3FN
    assert element_type("seq(tensor(float))") is None


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x08\x0c"])
def test_what_is_no_model_is_invalid(content):
    with pytest.raises(InvalidModel):
        make_session(content)


def test_unknown_operators_are_unsupported_and_missing_files_a_usage_error(tmp_path):
    graph = Graph(
        "g",
        (Value("x", SQUARE),),
        (Value("y", None),),
        (),
        (Node("n", "Foo", ("x",), ("y",), domain="odd"),),
        {"": 21, "odd": 1},
    )
    with pytest.raises(Unsupported, match="odd"):
        make_session(formats.to_onnx_bytes(graph))
    with pytest.raises(SuperoptError):
        make_session(tmp_path / "missing.onnx")


def test_wrong_inputs_are_usage_errors_and_failing_nodes_are_not():
    session = make_session(model([Node("m", "MatMul", ("x", "x"), ("y",))], SQUARE))
    for feeds in ({}, {"x": np.ones(3, np.float32)}, {"x": np.ones((2, 2))}):
        with pytest.raises(UsageError):
            run(session, feeds)
    with pytest.raises(InvalidModel, match="MatMul"):
        run(session, {"x": np.ones((2, 3), np.float32)})


def test_messages_are_one_line_without_source_paths():
    with pytest.raises(SuperoptError) as caught:
        make_session(model([Node("m", "MatMul", ("x",), ("y",))], SQUARE))
    assert "\n" not in str(caught.value)
    assert "onnxruntime_src" not in str(caught.value)


def test_a_race_reports_each_model_against_the_first():
    fast = model([Node("r", "Relu", ("x",), ("y",))], SQUARE)
    slow = model([Node("m", "MatMul", ("x", "x"), ("m",)), Node("n", "MatMul", ("m", "x"), ("y",))], SQUARE)
    result = time_models(
        [fast, slow, fast], {"x": np.ones((64, 64), np.float32)}, rounds=5, burst=2, threads=1, clock="cpu"
    )
    assert result.rounds == 5
    assert result.ratios[0] == 1.0
    assert result.ratios[1] > 1.0
    assert len(result.ms) == len(result.best_ms) == len(result.spread) == 3
    assert all(0 < best <= middle for best, middle in zip(result.best_ms, result.ms, strict=True))
    assert {"device", "threads", "clock", "runtime", "date"} <= set(result.circumstances)


def test_a_race_keeps_its_time_limit_but_runs_once():
    fast = model([Node("r", "Relu", ("x",), ("y",))], SQUARE)
    assert time_models([fast], {"x": np.ones((2, 2), np.float32)}, rounds=10**9, time_limit=0.0).rounds == 1


def test_a_race_takes_strings_and_shapes_that_change_from_run_to_run():
    text = model([Node("i", "Identity", ("x",), ("y",))], TensorType(DType.STRING, (2,)))
    assert time_models([text, text], {"x": np.array(["a", "b"], dtype=object)}, rounds=2).rounds == 2
    nodes = [
        Node("r", "RandomUniformLike", ("x",), ("u",)), Node("h", "Greater", ("u", "half"), ("b",)),
        Node("z", "NonZero", ("b",), ("y",)),
    ]  # fmt: skip
    half = constant("half", np.array(0.5, np.float32))
    changing = model(nodes, TensorType(DType.FLOAT32, (50,)), weights=[half])
    assert time_models([changing], {"x": np.ones(50, np.float32)}, rounds=3).rounds == 3


def test_a_race_refuses_what_makes_no_sense():
    fast = model([Node("r", "Relu", ("x",), ("y",))], SQUARE)
    with pytest.raises(UsageError, match="threads=1"):
        time_models([fast], {"x": np.ones((2, 2), np.float32)}, threads=2, clock="cpu")
    with pytest.raises(UsageError):
        time_models([], {})
    with pytest.raises(UsageError, match="'x'"):
        time_models([fast], {})

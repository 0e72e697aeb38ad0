"""Valid models that must not be run: they load, are refused before a runtime sees them, and come back from optimize."""

from __future__ import annotations

import errno
import os
import resource
import signal
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from superopt.formats import from_onnx, load, save, to_onnx_bytes
from superopt.formats.onnx_reader import from_model_bytes
from superopt.formats.onnx_tensors import ExternalFiles
from superopt.ir.errors import InvalidModel, MachineLimit, ResourceLimit
from superopt.ops.shape_inference import infer
from superopt.runtime import resource_limits
from superopt.runtime.onnx_runtime import make_session, run
from superopt.verifier.check.differential import check

make = helper.make_node


def constant(name: str, value: object) -> TensorProto:
    return numpy_helper.from_array(np.asarray(value), name)


def info(name: str, kind: int = TensorProto.FLOAT, shape: list[int] | None = None) -> object:
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes: list[NodeProto], weights: tuple[TensorProto, ...] = (), shape: tuple[int, ...] = (2, 4),
          functions: tuple[object, ...] = ()) -> ModelProto:  # fmt: skip
    graph = helper.make_graph(nodes, "g", [info("x", shape=list(shape))], [info("y")], list(weights))
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, ir_version=8, opset_imports=imports, functions=list(functions))


def loop(*trips: NodeProto, first: str) -> list[NodeProto]:
    body = helper.make_graph(
        [make("Identity", ["c"], ["c2"]), make("Neg", ["v"], ["v2"])], "b",
        [info("i", TensorProto.INT64, []), info("c", TensorProto.BOOL, []), info("v", shape=[2, 4])],
        [info("c2", TensorProto.BOOL, []), info("v2", shape=[2, 4])],
    )  # fmt: skip
    return [*trips, make("Loop", [first, "true", "x"], ["y"], body=body)]


def doubling(levels: int) -> tuple[object, ...]:
    names = [f"f{i}" for i in range(levels)]
    own = [helper.make_opsetid("own", 1), helper.make_opsetid("", 17)]
    made = [
        helper.make_function("own", n, ["a"], ["c"], [make(f"f{i + 1}", ["a"], ["b"], domain="own"),
                                                     make(f"f{i + 1}", ["b"], ["c"], domain="own")], own)
        for i, n in enumerate(names)
    ]  # fmt: skip
    return (*made, helper.make_function("own", f"f{levels}", ["a"], ["c"], [make("Neg", ["a"], ["c"])], own))


FILLED = [make("ConstantOfShape", ["n"], ["t"]), make("ReduceSum", ["t"], ["sum"]), make("Add", ["x", "sum"], ["y"])]
TOWER = [make("Tile", [f"t{i}" if i else "x", "rep"], [f"t{i + 1}"]) for i in range(20)]
BOMBS: dict[str, tuple[ModelProto, str]] = {
    "ConstantOfShape 2^40": (model(FILLED, (constant("n", np.array([2**40])),)), "memory"),
    "Expand 2^34": (
        model([make("Expand", ["x", "n"], ["e"]), make("ReduceSum", ["e"], ["y"])],
              (constant("n", np.array([2**31, 2, 4])),)), "memory",
    ),
    "Range 1e12": (
        model([make("Range", ["a", "b", "d"], ["r"]), make("Cast", ["r"], ["f"], to=1), make("ReduceMax", ["f"], ["m"]),
               make("Add", ["x", "m"], ["y"])],
              (constant("a", np.int64(0)), constant("b", np.int64(10**12)), constant("d", np.int64(1)))), "memory",
    ),
    "Tile tower": (
        model([*TOWER, make("ReduceSum", ["t20"], ["y"])], (constant("rep", np.array([8, 8])),)), "memory",
    ),
    "outer product": (
        model([make("Transpose", ["x"], ["t"], perm=[1, 0]), make("MatMul", ["t", "x"], ["p"]),
               make("ReduceSum", ["p"], ["y"])], shape=(1, 2**20)), "memory",
    ),
    "huge input": (model([make("Relu", ["x"], ["y"])], shape=(2**20, 2**20)), "memory"),
    "operations": (model([make("MatMul", ["x", "x"], ["p"]), make("ReduceSum", ["p"], ["y"])], shape=(15000, 15000)),
                   "operations"),
    "Loop 1e12": (model(loop(first="n"), (constant("n", np.int64(10**12)), constant("true", np.array(True)))), "turns"),
    "Loop 2e12, computed": (
        model(loop(make("Add", ["n", "n"], ["n2"]), first="n2"),
              (constant("n", np.int64(10**12)), constant("true", np.array(True)))), "turns",
    ),
    "functions": (model([make("f0", ["x"], ["y"], domain="own")], functions=doubling(20)), "expand"),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_is_refused_before_it_is_run(name: str) -> None:
    proto, cause = BOMBS[name]
    graph = from_onnx(proto)
    with pytest.raises(ResourceLimit, match=cause):
        resource_limits.refuse_unbounded(graph)
    result = check(graph, graph)
    assert result.verdict == "skipped"
    assert cause in result.reason


def test_an_endless_loop_is_ended() -> None:
    graph = from_onnx(model(loop(first=""), (constant("true", np.array(True)),)))
    resource_limits.refuse_unbounded(graph)  # nothing tells that it will not end
    session = make_session(to_onnx_bytes(graph), threads=1)
    with pytest.raises(ResourceLimit, match="more than"):
        run(session, {"x": np.ones((2, 4), np.float32)}, time_limit=0.5)


def test_allocations_beyond_the_memory_fail_instead_of_killing() -> None:
    with resource_limits.bounded_memory(0.0), pytest.raises(MemoryError):
        np.ones(1 << 28)
    assert np.ones(1 << 20).nbytes == 8 << 20


def test_a_message_that_memory_is_lacking_for_is_not_called_broken() -> None:
    """protobuf reports a refused allocation as it reports a bad message."""
    data = model([make("Relu", ["x"], ["y"])], (constant("w", np.zeros(32 << 20, np.float32)),)).SerializeToString()
    assert len(data) > 128 << 20
    with resource_limits.bounded_memory(0.0), pytest.raises(MemoryError):
        from_model_bytes(data, ExternalFiles(None))
    with pytest.raises(InvalidModel, match="truncated"):
        from_model_bytes(data[:-1], ExternalFiles(None))


def test_an_allocation_that_python_has_no_exception_for_is_one_too() -> None:
    with pytest.raises(MemoryError, match="without exception"), resource_limits.bounded_memory():
        raise SystemError("error return without exception set")


def test_a_small_model_asks_for_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory is limited (``ulimit -v``) or never promised beyond what there is, what is asked for counts."""
    path = tmp_path / "m.onnx"
    save(from_onnx(model([make("Relu", ["x"], ["y"])])), path)
    load(path)  # imports what it needs
    monkeypatch.setattr(resource_limits, "available", lambda: 64 << 20)
    with resource_limits.bounded_memory(1.0):
        assert len(load(path).nodes) == 1


def test_ordinary_models_pass() -> None:
    graph = from_onnx(model([make("MatMul", ["x", "x"], ["y"])], shape=(512, 512)))
    resource_limits.refuse_unbounded(graph, typing=infer(graph), copies=3.0)


def test_a_full_disk_is_a_limit_and_leaves_nothing(tmp_path: Path) -> None:
    weight = constant("w", np.random.default_rng(0).standard_normal((400, 400)).astype(np.float32))
    graph = from_onnx(model([make("MatMul", ["x", "w"], ["y"])], (weight,), shape=(2, 400)))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(ResourceLimit, match="cannot be written"):
            save(graph, tmp_path / "out.onnx")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_under_the_result_names_no_other_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(
        MachineLimit, match=r"cannot be written: no space left on the disk; .* another place with -o"
    ) as told:
        save(from_onnx(model([make("Relu", ["x"], ["y"])])), tmp_path / "out.onnx")
    assert "TMPDIR" not in str(told.value)
    assert list(tmp_path.iterdir()) == []

"""`superopt verify` as a user meets it: words, exit codes, and files that hide no verdict."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.cli.in_process import run_in

WEIGHT = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)


def model(path: Path, weight: np.ndarray, *, scale: float = 1.0, name: str = "x") -> Path:
    """``x · weight``, times a scale if it is not 1."""
    nodes = [helper.make_node("MatMul", [name, "w"], ["p"]), helper.make_node("Mul", ["p", "s"], ["y"])]
    arrays = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.float32(scale), "s")]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])], arrays,
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def verify(folder: Path, *args: object) -> subprocess.CompletedProcess[str]:
    return run_in(folder, "verify", *args)


def test_a_folded_scale_is_proved_up_to_rounding(tmp_path: Path) -> None:
    a = model(tmp_path / "a.onnx", WEIGHT, scale=0.3)
    b = model(tmp_path / "b.onnx", WEIGHT * np.float32(0.3))
    done = verify(tmp_path, a, b, "--json", "-")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["verdict"] == "proved up to rounding"
    assert data["words"].startswith("proved over the reals, up to the rounding of folded constants (max 1 ulp)")
    assert data["max_ulp"] == 1
    assert {"verdict", "reason", "nodes", "proved_share", "regions", "check", "power", "unexercised"} <= set(data)
    assert all({"output", "verdict", "operators", "reason", "max_ulp"} == set(r) for r in data["regions"])
    assert done.stderr.startswith(data["words"])


def test_a_refutation_keeps_its_exit_code_whatever_exists(tmp_path: Path) -> None:
    a = model(tmp_path / "a.onnx", WEIGHT, name="file")  # a name that numpy.savez takes for an option of its own
    b = model(tmp_path / "b.onnx", -WEIGHT, name="file")
    first = verify(tmp_path, a, b, "--counterexample", "c.npz", "--json", "v.json")
    assert first.returncode == 5, first.stderr
    assert json.loads((tmp_path / "v.json").read_text())["counterexample"] == "c.npz"
    kept = (tmp_path / "c.npz").read_bytes()
    again = verify(tmp_path, a, b, "--counterexample", "c.npz", "--json", "v.json")
    assert again.returncode == 5, again.stderr
    assert (tmp_path / "c.npz").read_bytes() == kept
    assert json.loads((tmp_path / "v-1.json").read_text())["counterexample"] == "c-1.npz"
    assert "c-1.npz" in again.stdout
    assert "v-1.json" in again.stderr
    assert np.load(tmp_path / "c-1.npz")["file"].shape == (2, 4)
    assert verify(tmp_path, a, b, "--counterexample", "c.npz", "-f").returncode == 5
    assert not (tmp_path / "c-2.npz").exists()


def test_a_model_that_does_not_run_has_no_counterexample(tmp_path: Path) -> None:
    a, b = model(tmp_path / "a.onnx", WEIGHT), model(tmp_path / "b.onnx", WEIGHT)
    broken = onnx.load(b)
    broken.graph.node[0].op_type = "NoSuch"
    onnx.save(broken, b)
    done = verify(tmp_path, a, b)
    assert done.returncode == 5
    assert done.stdout.startswith("refuted: does not run")
    assert "run side by side" not in done.stdout
    assert {p.name for p in tmp_path.iterdir()} == {"a.onnx", "b.onnx"}


def test_a_counterexample_that_cannot_be_written_hides_nothing(tmp_path: Path) -> None:
    a = model(tmp_path / "a.onnx", WEIGHT)
    b = model(tmp_path / "b.onnx", -WEIGHT)
    done = verify(tmp_path, a, b, "--counterexample", "nowhere/c.npz")
    assert done.returncode == 5
    assert done.stdout.startswith("refuted")
    assert "not written" in done.stderr


@pytest.mark.parametrize("scale", [np.inf, 3e38])
def test_an_error_that_is_not_finite_is_reported(tmp_path: Path, scale: float) -> None:
    a = model(tmp_path / "a.onnx", WEIGHT)
    b = model(tmp_path / "b.onnx", WEIGHT, scale=scale)
    done = verify(tmp_path, a, b, "--json", "-")
    assert done.returncode == 5, done.stderr
    assert json.loads(done.stdout)["verdict"] == "refuted"


def test_a_test_states_its_power(tmp_path: Path) -> None:
    """Two products made one: equal over the reals, and guessed by no fold."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])
    other = WEIGHT[::-1].copy()
    arrays = [numpy_helper.from_array(a, n) for n, a in (("w", WEIGHT), ("v", other), ("u", WEIGHT + other))]
    products = [helper.make_node("MatMul", ["x", n], [f"p{n}"]) for n in "wv"]
    two = helper.make_graph([*products, helper.make_node("Add", ["pw", "pv"], ["y"])], "g", [x], [y], arrays[:2])
    one = helper.make_graph([helper.make_node("MatMul", ["x", "u"], ["y"])], "g", [x], [y], arrays[2:])
    for name, graph in (("a", two), ("b", one)):
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(made, tmp_path / f"{name}.onnx")
    done = verify(tmp_path, tmp_path / "a.onnx", tmp_path / "b.onnx", "--json", "-")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["verdict"] == "tested"
    assert data["words"] == f"tested (power {data['power']['share']:.0%}); differs at infinities"
    assert data["power"]["caught"] <= data["power"]["mutants"]
    assert isinstance(data["unexercised"], list)


def test_a_second_model_that_is_not_valid_does_not_run(tmp_path: Path) -> None:
    a, b = model(tmp_path / "a.onnx", WEIGHT), model(tmp_path / "b.onnx", WEIGHT[:3])
    done = verify(tmp_path, a, b)
    assert done.returncode == 5, done.stderr
    assert done.stdout.startswith("refuted: does not run")
    assert verify(tmp_path, b, a).returncode == 3  # a first model that is not valid is no verdict
    (tmp_path / "c.onnx").write_bytes(b"\x00no model")
    assert verify(tmp_path, a, tmp_path / "c.onnx").returncode == 3

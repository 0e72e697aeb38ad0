"""`superopt gradients …` and `superopt train-step` as a user meets them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import onnx

from superopt.formats import save
from superopt.frontend import GraphBuilder
from tests.cli.in_process import run_in


def call(folder: Path, *args: object) -> subprocess.CompletedProcess[str]:
    return run_in(folder, *args)


def model(folder: Path) -> Path:
    b = GraphBuilder("energy")
    x = b.input("positions", "float32", ("n", 3))
    b.output((x @ b.weight("w", (3, 2))).tanh().sum([0, 1], keepdims=False), "energy")
    save(b.build(), folder / "m.onnx")
    return folder / "m.onnx"


def test_a_model_is_differentiated(tmp_path: Path) -> None:
    done = call(tmp_path, "gradients", "of", model(tmp_path), "--of", "energy", "--to", "positions", "-o", "g.onnx")
    assert done.returncode == 0, done.stderr
    assert "d energy/d positions: float32[n, 3]" in done.stdout
    onnx.checker.check_model(onnx.load(tmp_path / "g.onnx"), full_check=True)
    again = call(tmp_path, "gradients", "of", "m.onnx", "-o", "g.onnx")
    assert again.returncode == 2  # it exists
    forward = call(tmp_path, "gradients", "of", "m.onnx", "--mode", "forward", "--keep-outputs", "-o", "f.onnx")
    assert forward.returncode == 0, forward.stderr
    assert "tangent energy: float32[]" in forward.stdout


def test_the_cheaper_mode_is_told(tmp_path: Path) -> None:
    done = call(tmp_path, "gradients", "modes", model(tmp_path), "--dim", "n=4", "--json", "-")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["cheaper"] == "reverse"
    assert call(tmp_path, "gradients", "modes", "m.onnx").returncode == 2  # n is not known


def test_proofs_are_shown(tmp_path: Path) -> None:
    done = call(tmp_path, "gradients", "check", "Relu", "MatMul", "--json", "p.json")
    assert done.returncode == 0, done.stderr
    assert "2 of 2 operators (100.0%) proved for all sizes" in done.stderr
    found = {row["op"]: row for row in json.loads((tmp_path / "p.json").read_text())}
    assert found["Relu"]["how"] == "derived"
    assert found["MatMul"]["how"] == "declared"
    assert call(tmp_path, "gradients", "check", "Shape").returncode == 2


def test_a_training_step_is_written_and_tried(tmp_path: Path) -> None:
    options = ["--loss", "output", "--optimizer", "adamw", "--lr", "0.01", "--dim", "n=4", "--try", "3", "-o", "s.onnx"]
    done = call(tmp_path, "train-step", model(tmp_path), *options)
    assert done.returncode == 0, done.stderr
    assert "1 weights are learnt" in done.stdout
    assert "3 steps: loss" in done.stdout
    names = {v.name for v in onnx.load(tmp_path / "s.onnx").graph.output}
    assert {"loss", "next w", "next mean w", "next step", "next learning_rate"} <= names
    assert call(tmp_path, "train-step", "m.onnx", "--freeze", "*").returncode == 2


def test_what_cannot_be_differentiated_is_named(tmp_path: Path) -> None:
    corpus = Path(__file__).parents[2] / "corpus" / "tiny" / "quantised.json"
    done = call(tmp_path, "train-step", corpus)
    assert done.returncode == 4
    assert 'node "DequantizeLinear' in done.stderr

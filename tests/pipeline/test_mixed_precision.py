"""``--precision mixed`` as a whole: traps, what is refused, and the same result through every door."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper, parser
from typer.testing import CliRunner

import superopt
from lab.mixed_precision import TRAPS, trap
from superopt import formats
from superopt.cli import app
from superopt.formats.onnx_reader import from_onnx
from superopt.formats.onnx_writer import to_onnx_bytes
from superopt.ir.graph import Graph
from superopt.ir.types import DType
from superopt.ops.shape_inference import infer
from superopt.pipeline.result import Result
from superopt.report.html import render
from superopt.runtime.onnx_runtime import make_session, run
from superopt.verifier.check.output_errors import error_inputs, error_of

SETTINGS = {"target": "profile:cpu-epyc-2core", "effort": "quick", "precision": "mixed", "dim": {"N": 64}}
KEPT = {  # by trap, a reason of what stays
    "overflow": "overflow", "layer norm": "overflow", "softmax": "exponent", "long sum": "overflow",
    "reciprocal": "underflow", "mask": "overflow",
}  # fmt: skip


def read(text: str, head: str = '<ir_version: 10, opset_import: ["": 18]> g ', **held: np.ndarray) -> Graph:
    made = parser.parse_model(head + text)
    made.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in held.items())
    return from_onnx(made)


def perceptron() -> Graph:
    rng = np.random.default_rng(3)
    held = {n: (rng.standard_normal((64, 64)) / 8).astype(np.float32) for n in ("u", "v", "w")}
    return read(
        "(float[N, 64] x) => (float[N, 64] y) "
        "{ a = MatMul(x, u) b = Relu(a) c = MatMul(b, v) d = Relu(c) y = MatMul(d, w) }",
        **held,
    )


def optimized(graph: Graph | Path, **more: object) -> Result:
    return superopt.optimize(graph, **{**SETTINGS, **more})  # type: ignore[arg-type]


def errors_elsewhere(result: Result, inputs: int = 100) -> float:
    """The largest error on inputs of another seed; infinite where an output is not finite."""
    before, after = (make_session(to_onnx_bytes(g), threads=1) for g in (result.original, result.graph))
    drawn = error_inputs(result.original, 12345, {"N": 5})
    return max(error_of(run(before, f), run(after, f)).relative for f, _ in zip(drawn, range(inputs), strict=False))


@pytest.mark.parametrize("name", TRAPS)
def test_traps_stay_finite_and_within_the_budget(name: str) -> None:
    result = optimized(trap(name))
    found = result.report.precision
    assert found is not None, result.report.notes
    assert found.error <= 1e-3
    assert errors_elsewhere(result) <= 1e-3
    assert KEPT[name] in {k.reason for k in found.kept}


def test_a_perceptron_is_of_half_precision() -> None:
    result = optimized(perceptron(), error=1e-2)
    found = result.report.precision
    assert found is not None
    assert (found.nodes_half, found.nodes, found.type) == (5, 5, "float16")
    assert found.weight_bytes_half == found.weight_bytes == 3 * 64 * 64 * 4
    assert result.report.reason.code == "precision"
    assert result.report.check.verdict == "passed"
    assert 0.0 < result.report.check.max_abs_error < 0.1
    assert result.graph.weight_bytes * 2 == result.original.weight_bytes
    assert [v.type for v in result.graph.outputs] == [v.type for v in result.original.outputs]
    assert errors_elsewhere(result) <= 1e-2


def test_a_small_budget_leaves_the_model() -> None:
    result = optimized(perceptron(), error=1e-9)
    assert result.report.precision is None
    assert any("nothing gains within the budget" in note for note in result.report.notes)


def test_bfloat16_is_for_weights_where_no_kernel_takes_it() -> None:
    result = optimized(perceptron(), precision="mixed:bfloat16", error=0.05)
    found = result.report.precision
    assert found is not None
    assert (found.type, found.nodes_half, found.weight_bytes_half) == ("bfloat16", 0, found.weight_bytes)
    assert {k.reason for k in found.kept if k.what == "operators"} == {"no kernel"}
    assert errors_elsewhere(result, 10) <= 0.05


@pytest.mark.parametrize(
    ("graph", "why"),
    [
        (read("(float16[4] x) => (float16[4] y) { y = Relu(x) }"), "has values of float16 already"),
        (read("(int64[4] x) => (int64[4] y) { y = Neg(x) }"), "no values of float32"),
        (read("(float[4] x) => (float[4] y) { y = Relu(x) }", '<ir_version: 3, opset_import: ["": 8]> g '), "opset 8"),
    ],
)
def test_what_is_not_supported_says_so(graph: Graph, why: str) -> None:
    result = optimized(graph)
    assert result.report.precision is None
    assert any(why in note for note in result.report.notes), result.report.notes


def test_every_door_gives_the_same(tmp_path: Path) -> None:
    source, target, told = tmp_path / "model.onnx", tmp_path / "half.onnx", tmp_path / "report.json"
    formats.save(perceptron(), source)
    line = ["optimize", str(source), "-o", str(target), "--json", str(told), "--error", "1e-2", "--precision", "mixed"]
    done = CliRunner().invoke(app, [*line, "--target", "profile:cpu-epyc-2core", "--effort", "quick", "--dim", "N=64"])
    assert done.exit_code == 0, done.output
    assert "float16: 5 of 5 nodes" in done.output
    report = json.loads(told.read_text())
    result = optimized(source, error=1e-2)
    assert report["result"] == result.report.json()["result"]
    assert report["precision"] == result.report.json()["precision"]
    assert "Precision" in render("model", result.report)
    written = formats.load(target)
    kinds = {t.dtype for t in infer(written).types.values() if t is not None}
    assert kinds == {DType.FLOAT16, DType.FLOAT32}


def test_proofs_are_not_claimed() -> None:
    result = optimized(perceptron(), error=1e-2, verify="certify")
    assert result.report.verification is None
    assert any("nothing is proved" in note for note in result.report.notes)

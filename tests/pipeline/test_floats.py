"""``--float``: which verdicts in floating point count, and that the report says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import superopt
from superopt.formats import to_onnx_bytes
from superopt.frontend import GraphBuilder
from superopt.ir.errors import UsageError
from superopt.ir.graph import Graph
from superopt.runtime.onnx_runtime import make_session, run


def tricks() -> Graph:
    """Rounding to integers by adding a large number and taking it away."""
    builder = GraphBuilder("tricks")
    x = builder.input("x", "float32", [8, 16])
    large = builder.input("large", "float32", [8, 16])
    kept = builder.op("Sub", builder.op("Add", x, large), large)
    builder.output(kept, "y", shape=[8, 16])
    return builder.build()


@pytest.mark.parametrize("mode", ["strict", "standard", "fast"])
def test_the_report_says_what_was_used(mode: str) -> None:
    enable = (
        () if mode == "standard" else ("algebra",)
    )  # what the other modes admit is compiled here: for seconds, of all
    result = superopt.optimize(
        tricks(), target="profile:cpu-epyc-2core", time_limit=None, floats=mode, check=mode != "fast", enable=enable
    )
    assert result.report.json()["float"] == mode
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(0, 5, (8, 16)).astype(np.float32), "large": np.full((8, 16), 12582912, np.float32)}
    before, after = (
        run(make_session(to_onnx_bytes(g), threads=1, optimise=False), feeds)["y"]
        for g in (result.original, result.graph)
    )
    np.testing.assert_array_equal(before, np.rint(feeds["x"]))
    if mode != "fast":  # which takes what is true of the reals
        np.testing.assert_array_equal(after, before)


def test_another_mode_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="strict, standard, fast"):
        superopt.optimize(tricks(), floats="loose")
    command = [sys.executable, "-m", "superopt.cli", "optimize", "none.onnx", "--float", "loose"]
    done = subprocess.run(command, capture_output=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"superopt: --float 'loose' is none of strict, standard, fast\n"


SIGNED = {
    "a literal": "b = Constant<value_float = -0.0>() s = Add(x, b) y = Reciprocal(s)",
    "a literal beside 0": "a = Constant<value_float = 0.0>() b = Constant<value_float = -0.0>() e = Relu(x) "
    "c = Mul(e, a) d = Mul(e, b) r = Reciprocal(c) t = Reciprocal(d) y = Min(r, t)",
    "a weight beside 0": "e = Relu(x) c = Mul(e, p) d = Mul(e, q) r = Reciprocal(c) t = Reciprocal(d) y = Min(r, t)",
}


@pytest.mark.parametrize("name", SIGNED)
def test_a_constant_keeps_the_sign_of_its_zero(name: str) -> None:
    text = f"""<ir_version: 9, opset_import: ["": 21]> g (float[2, 3] z, float[4] x) => (float[2, 3] w, float[4] y)
        <float p = {{0.0}}, float q = {{-0.0}}> {{ h = Neg(z) w = Neg(h) {SIGNED[name]} }}"""
    result = superopt.optimize(onnx.parser.parse_model(text), target="profile:cpu-epyc-2core", check=False)
    assert len(result.graph.nodes) < len(result.original.nodes)  # it was rewritten
    feeds = {"z": np.ones((2, 3), np.float32), "x": np.array([1, -2, 0.0, -0.0], np.float32)}
    before, after = (
        run(make_session(to_onnx_bytes(g), threads=1, optimise=False), feeds)["y"]
        for g in (result.original, result.graph)
    )
    np.testing.assert_array_equal(after, before)

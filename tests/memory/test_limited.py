"""A model that does not fit a process of 512 MiB runs in one after ``--memory-limit 400MiB``, with equal outputs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import superopt
from superopt import formats
from superopt.ir.graph import Graph, Node, Value, constant
from superopt.ir.types import DType, TensorType
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.runtime.synthetic_tensors import feeds_for

LIMIT, PROCESS = 400 << 20, 512 << 20
_RUN = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({process}, {process}))
import numpy as np, onnxruntime as ort
options = ort.SessionOptions()
options.intra_op_num_threads = 1
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
with np.load(sys.argv[2]) as held:
    feeds = dict(held)
session.run(None, feeds)[0].tofile(sys.argv[3])
"""


def skips(depth: int, rows: int) -> Graph:
    """Activations are needed again in the opposite order, as in a training step or a U-Net without convolutions."""
    kind = TensorType(DType.FLOAT32, (rows, 64))
    rng = np.random.default_rng(0)
    nodes, weights = [], []
    for i in range(depth):
        weights.append(constant(f"w{i}", (rng.standard_normal((64, 64)) / 8).astype(np.float32)))
        nodes.append(Node(f"m{i}", "MatMul", (f"a{i}" if i else "x", f"w{i}"), (f"m{i}",)))
        nodes.append(Node(f"t{i}", "Tanh", (f"m{i}",), (f"a{i + 1}",)))
    nodes.append(Node("top", "Sin", (f"a{depth}",), (f"g{depth}",)))
    for i in reversed(range(depth)):
        nodes.append(Node(f"b{i}", "MatMul", (f"g{i + 1}", f"w{i}"), (f"b{i}",)))
        nodes.append(Node(f"s{i}", "Mul", (f"b{i}", f"a{i + 1}"), (f"g{i}",)))
    return Graph("skips", (Value("x", kind),), (Value("g0", kind),), tuple(weights), tuple(nodes), {"": 18})


def run_limited(model: Path, feeds: Path, results: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", _RUN.format(process=PROCESS), str(model), str(feeds), str(results)],
        capture_output=True, text=True, timeout=300, env=environment, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_what_did_not_fit_runs_within_the_limit(tmp_path: Path) -> None:
    graph = skips(depth=32, rows=65536)  # 16 MiB each
    model, less, feeds = tmp_path / "model.onnx", tmp_path / "less.onnx", tmp_path / "feeds.npz"
    formats.save(graph, model)
    np.savez(feeds, **feeds_for(graph))
    assert run_limited(model, feeds, tmp_path / "none.bin").returncode != 0
    found = superopt.optimize(
        graph, memory_limit=LIMIT, target="profile:cpu-epyc-2core", time_limit=120.0, effort="quick"
    )
    assert found.report.check.verdict == "passed"
    assert any("the limit is 400.0 MiB" in n for n in found.report.notes), found.report.notes
    found.save(less)
    done = run_limited(less, feeds, tmp_path / "less.bin")
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = ONNX_RUNTIME.load(formats.to_onnx_bytes(graph)).run(feeds_for(graph), ["g0"])["g0"]
    assert (tmp_path / "less.bin").read_bytes() == theirs.tobytes()

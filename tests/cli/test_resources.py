"""Few open files, small files, signals: the command goes on, or says what the machine lacks, and leaves nothing."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from typer.testing import CliRunner

from superopt.cli import app

PRICES = ("--target", "profile:cpu-epyc-2core")
GROUPS = ("", "optimize", "corpus", "corpus compare", "rules", "rules list", "serve")


def command(folder: Path, *arguments: str, limit: Callable[[], None] | None = None) -> subprocess.Popen[str]:
    (folder / "tmp").mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "superopt.cli", *arguments], cwd=folder, env={**os.environ, "TMPDIR": f"{folder}/tmp"},
        preexec_fn=limit, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def sums(path: Path, count: int, side: int) -> Path:
    """A stack of sums, each with a weight in a file of its own."""
    weights = [numpy_helper.from_array(np.full((side, side), i, np.float32), f"{path.stem}-{i}") for i in range(count)]
    nodes = [helper.make_node("Add", [f"x{i}", w.name], [f"x{i + 1}"]) for i, w in enumerate(weights)]
    ends = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [side, side]) for n in ("x0", f"x{count}")]
    graph = helper.make_graph(nodes, "sums", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, path, save_as_external_data=True, all_tensors_to_one_file=False, size_threshold=0)
    return path


def small_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))


def few_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))


def test_a_model_of_more_weights_than_files_may_be_open(tmp_path: Path) -> None:
    sums(tmp_path / "m.onnx", 60, 130)
    process = command(tmp_path, "optimize", "m.onnx", "-o", "out.onnx", "--effort", "quick", *PRICES, limit=few_files)
    said, problems = process.communicate()
    assert process.returncode == 0, problems
    assert "check passed" in said
    assert (tmp_path / "out.onnx").is_file()
    assert list((tmp_path / "tmp").iterdir()) == []


def test_one_failure_for_want_of_room_does_not_end_a_batch(tmp_path: Path) -> None:
    for name, side in (("a", 600), ("b", 8), ("c", 9)):
        sums(tmp_path / f"{name}.onnx", 2, side)
    models = ["a.onnx", "b.onnx", "c.onnx"]
    process = command(
        tmp_path, "optimize", *models, "-o", "out", "--workers", "1", "--json", "report.json", *PRICES,
        limit=small_files,
    )  # fmt: skip
    _, problems = process.communicate()
    assert process.returncode == 7
    assert any("a.onnx: " in line and "ulimit -f" in line for line in problems.splitlines())
    rows = json.loads((tmp_path / "report.json").read_text())["models"]
    assert [Path(row["model"]).name for row in rows] == models
    assert [row.get("exit_code") for row in rows] == [7, None, None]
    assert {p.name for p in (tmp_path / "out").glob("*.onnx")} == {"b.onnx", "c.onnx"}
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_no_temporary_files(tmp_path: Path, number: signal.Signals) -> None:
    sums(tmp_path / "m.onnx", 20, 600)
    process = command(tmp_path, "optimize", "m.onnx", "-o", "out.onnx", *PRICES)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "tmp").glob("*/*")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(number)
    process.communicate()
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("group", GROUPS)
def test_h_is_help(group: str) -> None:
    done = CliRunner().invoke(app, [*group.split(), "-h"])
    assert done.exit_code == 0
    assert "Usage: " in done.output


def test_debug_shows_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPEROPT_DEBUG", "1")
    process = command(tmp_path, "inspect", "missing.onnx")
    _, problems = process.communicate()
    assert process.returncode == 3
    assert problems.startswith("Traceback")
    assert problems.splitlines()[-1].startswith("superopt: missing.onnx: cannot be read")

"""Whole runs of several processes at once over one cache folder that is empty when they start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TINY = Path(__file__).resolve().parents[2] / "corpus" / "tiny"


def test_runs_at_once_with_one_cache(tmp_path: Path) -> None:
    """Two of one model and one of another: the library, the moves and the regions are all being written."""
    models = ("deep_linear", "deep_linear", "linear_attention")
    cache = tmp_path / "cache"
    started = [
        subprocess.Popen(
            [
                sys.executable, "-m", "superopt.cli", "optimize", str(TINY / f"{model}.json"),
                "-o", str(tmp_path / f"{number}.onnx"), "--target", "profile:cpu-epyc-2core",
                "--enable", "matmul", "--time-limit", "300",
            ],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "SUPEROPT_CACHE": str(cache)},
        )
        for number, model in enumerate(models)
    ]  # fmt: skip
    for process in started:
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0, err.decode()
        assert b"Traceback" not in err
        assert b"faster" in out + err
    assert (tmp_path / "0.onnx").read_bytes() == (tmp_path / "1.onnx").read_bytes()
    kept = [p for p in cache.rglob("*") if p.is_file()]
    assert {p.relative_to(cache).parts[0] for p in kept} >= {"regions"}
    assert not [p for p in kept if p.name.startswith(".")]  # nothing half written is left

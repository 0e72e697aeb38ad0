"""ONNX Runtime tells nobody what is run: it would keep names and errors at home, and send them to its maker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IMPORTS = {
    "the command": "from superopt.cli import main; main()",
    "a module that runs graphs": "import superopt.runtime.onnx_runtime",
    "the library": "import superopt; superopt.load",
    "what is measured of memory": "import superopt.memory.arena_measurement",
}


@pytest.mark.parametrize("how", IMPORTS)
def test_nothing_is_kept_to_be_sent(how: str, tmp_path: Path) -> None:
    """Where there is no network, too, it leaves its files: a device's id, a database of events, a session's id."""
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    own = {k: v for k, v in os.environ.items() if k not in ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME", "CI")}
    own |= {"HOME": str(home), "TMPDIR": str(temporary), "SUPEROPT_CACHE": str(tmp_path / "cache")}
    code = f"{IMPORTS[how]}\nimport onnxruntime; onnxruntime.SessionOptions()"
    arguments = [
        "optimize",
        "corpus/tiny/lora.json",
        "--target",
        "profile:cpu-epyc-2core",
        "-o",
        str(tmp_path / "o.onnx"),
    ]
    command = [sys.executable, "-c", code, *(arguments if how == "the command" else ())]
    done = subprocess.run(command, capture_output=True, text=True, env=own, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    assert [p for folder in (home, temporary) for p in folder.rglob("*")] == []


@pytest.mark.parametrize(("given", "then"), [(None, "1"), ("", "1"), ("0", "0"), ("1", "1")])
def test_whoever_sets_the_variable_has_decided(given: str | None, then: str) -> None:
    own = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
    own |= {} if given is None else {"ORT_DISABLE_TELEMETRY": given}
    code = "import os, superopt.runtime; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=own, cwd=ROOT, timeout=60)
    assert done.stdout.strip() == then, done.stderr

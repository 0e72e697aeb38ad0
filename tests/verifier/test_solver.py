"""Without Z3, which is an extra: models are optimised, and what needs a proof says what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from superopt import formats

WITHOUT = """
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "z3" else found(name, *rest)
sys.modules["z3"] = None
from superopt.__main__ import main
main()
"""


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *arguments], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "SUPEROPT_CACHE": str(folder / "cache")}, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "command",
    ["verify m.onnx m.onnx", "optimize m.onnx --verify certify -o out.onnx", "rules prove", "discover --out found"],
)
def test_what_needs_a_proof_says_what_to_install(command: str, tmp_path: Path) -> None:
    formats.save(formats.load("corpus/tiny/resnet18.json"), tmp_path / "m.onnx")
    code, err = run(tmp_path, *command.split())
    assert code == 2, err
    assert err == "superopt: proofs need Z3, which is not installed; pip install 'superopt[prove]'\n"
    assert not (tmp_path / "out.onnx").exists()


def test_models_are_optimised(tmp_path: Path) -> None:
    formats.save(formats.load("corpus/tiny/resnet18.json"), tmp_path / "m.onnx")
    code, err = run(
        tmp_path, "optimize", "m.onnx", "--effort", "quick", "--target", "profile:cpu-epyc-2core", "-o", "out.onnx"
    )
    assert code == 0, err
    assert (tmp_path / "out.onnx").is_file()

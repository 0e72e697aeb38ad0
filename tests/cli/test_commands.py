"""The command that optimises is made without the others, and says the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from superopt.cli import app


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "superopt", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)


def test_a_settings_file_that_speaks_of_no_command_is_refused_by_the_optimiser_too(tmp_path: Path) -> None:
    (tmp_path / "superopt.toml").write_text("[nonsense]\nseed = 1\n")
    ended = run(tmp_path, "optimize", "model.onnx")
    assert ended.returncode == 2
    assert "there is no command 'nonsense'" in ended.stderr


def test_a_command_that_is_nearly_one_is_suggested(tmp_path: Path) -> None:
    ended = run(tmp_path, "optimise", "model.onnx")
    assert ended.returncode == 2
    assert "Did you mean 'optimize'?" in ended.stderr


def test_all_commands_are_there_for_who_asks_for_them() -> None:
    assert {"optimize", "slim", "verify"} <= {c.callback.__name__ for c in app.registered_commands if c.callback}
    assert {"rules", "corpus"} <= {group.name for group in app.registered_groups}
    with pytest.raises(ImportError):
        from superopt.cli import nothing  # type: ignore[attr-defined]  # noqa: F401

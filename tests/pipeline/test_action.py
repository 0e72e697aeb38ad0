"""The GitHub Action: its file is well-formed, and its shell step does what it says, run as a plain process."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ACTION = Path(__file__).resolve().parents[2] / "action.yml"
_COMMAND = """#!/usr/bin/env bash
printf '%s\\n' "$@" > "$SEEN"
while [ $# -gt 0 ]; do
  case "$1" in
    --markdown) echo "## summary" > "$2"; shift ;;
    --sarif) echo '{}' > "$2"; shift ;;
  esac
  shift
done
exit "$CODE"
"""


@pytest.fixture
def action() -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(ACTION.read_text(encoding="utf-8"))
    return data


def _step(action: dict[str, Any]) -> dict[str, Any]:
    [step] = [s for s in action["runs"]["steps"] if s.get("id") == "compare"]
    return step


def test_the_action_is_a_composite_action(action: dict[str, Any]) -> None:
    assert action["runs"]["using"] == "composite"
    for step in action["runs"]["steps"]:
        assert ("run" in step) != ("uses" in step)
        assert "run" not in step or step["shell"] == "bash"
    for values in action["inputs"].values():
        assert values["description"]
    for output in action["outputs"].values():
        assert re.fullmatch(r"\$\{\{ steps\.compare\.outputs\.[\w-]+ \}\}", output["value"])


def test_no_input_is_text_of_a_script(action: dict[str, Any]) -> None:
    for step in action["runs"]["steps"]:
        assert "${{" not in step.get("run", "")
    used = re.findall(r"inputs\.([\w-]+)", ACTION.read_text(encoding="utf-8"))
    assert set(used) == set(action["inputs"])


def _run(
    action: dict[str, Any], folder: Path, code: int, **given: str
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    step = _step(action)
    fake = folder / "bin" / "superopt"
    fake.parent.mkdir(exist_ok=True)
    fake.write_text(_COMMAND)
    fake.chmod(0o755)
    inputs = {name: given.get(name.replace("-", "_"), str(v["default"])) for name, v in action["inputs"].items()}
    environment = {
        variable: inputs[re.fullmatch(r"\$\{\{ inputs\.([\w-]+) \}\}", text).group(1)]  # type: ignore[union-attr]
        for variable, text in step["env"].items()
    }
    environment |= {
        "PATH": f"{fake.parent}:{os.environ['PATH']}", "SEEN": str(folder / "seen"), "CODE": str(code),
        "GITHUB_STEP_SUMMARY": str(folder / "summary"), "GITHUB_OUTPUT": str(folder / "output"),
        "RUNNER_TEMP": str(folder),
    }  # fmt: skip
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    return done, (folder / "seen").read_text().splitlines()


@pytest.mark.parametrize("code", [0, 5, 6])
def test_the_step_passes_the_exit_code_on(action: dict[str, Any], tmp_path: Path, code: int) -> None:
    done, seen = _run(action, tmp_path, code, models="models/*.onnx", profile="cpu-epyc-2core", baseline="b.json")
    assert done.returncode == code, done.stderr
    assert seen[:2] == ["corpus", "compare"]
    assert seen[seen.index("--target") + 1] == "profile:cpu-epyc-2core"
    assert seen[seen.index("--baseline") + 1] == "b.json"
    assert (tmp_path / "summary").read_text() == "## summary\n"
    outputs = dict(line.split("=", 1) for line in (tmp_path / "output").read_text().splitlines())
    assert outputs == {"sarif": "superopt.sarif", "junit": "superopt-junit.xml", "exit-code": str(code)}


def test_models_are_words_on_any_line_and_never_commands(action: dict[str, Any], tmp_path: Path) -> None:
    _, seen = _run(action, tmp_path, 0, models="a.onnx 'b c'\n$(touch gone) --run\n", threshold="0.05")
    assert seen[seen.index("--") + 1 :] == ["a.onnx", "'b", "c'", "$(touch", "gone)", "--run"]
    assert seen[seen.index("--threshold") + 1] == "0.05"
    assert not (tmp_path / "gone").exists()


def test_without_inputs_the_settings_file_decides(action: dict[str, Any], tmp_path: Path) -> None:
    done, seen = _run(action, tmp_path, 0)
    assert done.returncode == 0
    assert not {"--target", "--baseline", "--threshold", "--total-threshold"} & set(seen)
    assert seen[-1] == "--"


def test_every_flag_is_one_of_the_command(action: dict[str, Any]) -> None:
    import typer.main

    from superopt.cli import app

    root: Any = typer.main.get_command(app)
    known = {option for parameter in root.commands["corpus"].commands["compare"].params for option in parameter.opts}
    assert set(re.findall(r"--[a-z-]+", _step(action)["run"])) <= known

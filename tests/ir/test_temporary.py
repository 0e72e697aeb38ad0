"""Temporary folders go with their process, however it ends, and no living process loses one."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from superopt.ir.errors import MachineLimit
from superopt.ir.temporary_folders import TemporaryFolder, own_folder

_HOLD = """
import sys
from superopt.ir.temporary_folders import TemporaryFolder
folder = TemporaryFolder("test")
(folder.path / "large").write_bytes(b"1" * 1000)
print(folder.path, flush=True)
sys.stdin.read()
"""


def holder(base: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that holds a temporary folder until its input ends, and that folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD], env={"TMPDIR": str(base)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_folder_is_gone_after_the_body_and_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with TemporaryFolder("one") as first:
        (first / "file").write_text("")
    with pytest.raises(ValueError, match="of the body"), TemporaryFolder("two") as second:
        raise ValueError("of the body")
    assert not first.exists()
    assert not second.exists()
    assert list(own_folder().iterdir()) == []


def test_the_end_of_a_process_removes_its_folder(tmp_path: Path) -> None:
    process, folder = holder(tmp_path)
    assert (folder / "large").exists()
    process.communicate("")
    assert process.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_the_next_process_removes_what_a_killed_one_left_and_nothing_else(tmp_path: Path) -> None:
    living, kept = holder(tmp_path)
    killed, left = holder(tmp_path)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert left.exists()
    (tmp_path / "superopt-other").mkdir()
    following, own = holder(tmp_path)
    assert not left.parent.exists()
    assert kept.exists()
    assert own.exists()
    for process in (living, following):
        process.communicate("")
    assert [p.name for p in tmp_path.iterdir()] == ["superopt-other"]


def test_a_folder_that_cannot_be_written_is_the_machine_s_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    with pytest.raises(MachineLimit, match=r"file: temporary files cannot be written: Not a directory; .*TMPDIR"):
        TemporaryFolder("test")

"""The commands give the same bytes in this process, on two processes, on a Dask cluster and under mpiexec.

Minutes, so not in the gate: ``make test-slow``. What a task, a kill and a resumed run are is in test_dask and test_mpi.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clusters import dask_cluster, mpiexec

ROOT = Path(__file__).parents[2]
TINY = ("lora", "deep_linear", "siamese", "gru", "expand_conv", "repvgg_a0")
MODELS = [str(ROOT / "corpus" / "tiny" / f"{name}.json") for name in TINY]
TARGET = ("--target", "profile:cpu-epyc-2core")
CONFIG = """
seed = 5
trials = 6
prove_seconds = 20.0

[[theme]]
name = "clipping"
operators = 2
leaves = { x = "f[m, n]", t = "f[]" }
vocabulary = ["Relu(A)", "Mul(A, B)", "Neg(A)"]

[[theme]]
name = "sums"
operators = 2
leaves = { x = "f[m, n]", y = "f[m, n]" }
vocabulary = ["Add(A, B)", "Neg(A)", "Sub(A, B)"]
"""
Run = Callable[..., subprocess.Popen[str]]

pytestmark = pytest.mark.slow


def commands(folder: Path) -> dict[str, list[str]]:
    """What is compared: each writes below the folder."""
    (folder / "config.toml").write_text(CONFIG)
    rules = sorted((ROOT / "rules").glob("*.toml"), key=lambda p: p.stat().st_size)[0]
    return {
        "discover": ["discover", "--config", str(folder / "config.toml"), "--out", str(folder / "found")],
        "prove": ["rules", "prove", str(rules), "--json", str(folder / "verdicts.json")],
        "corpus": ["corpus", "run", *MODELS[:3], *TARGET, "--json", str(folder / "run.json")],
        "optimize": ["optimize", *MODELS, *TARGET, "-o", str(folder / "faster")],
    }  # fmt: skip


def results(folder: Path) -> dict[str, Any]:
    """What must be the same: all but times, and where it ran."""
    found: dict[str, Any] = {
        str(p.relative_to(folder)): p.read_bytes()
        for place in ("found", "faster") for p in sorted((folder / place).iterdir())
        if p.is_file() and p.name not in ("run.json", ".superopt.jsonl")
    }  # fmt: skip
    verdicts = json.loads((folder / "verdicts.json").read_text())["verdicts"]
    found["verdicts"] = {name: {k: v for k, v in row.items() if k != "seconds"} for name, row in verdicts.items()}
    models = json.loads((folder / "run.json").read_text())["models"]
    found["corpus"] = {name: {k: v for k, v in row.items() if k != "seconds"} for name, row in models.items()}
    return found


def here(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "superopt.cli", *arguments], cwd=ROOT, stdout=-3, stderr=-1, text=True
    )


SHARDED = ("--shards", "3")  # of discover: by ranges of fingerprints, which is to change nothing


def everything(run: Run, folder: Path, *more: str) -> dict[str, Any]:
    for command in commands(folder).values():
        done = run(*command, *more)
        _, said = done.communicate(timeout=600)
        assert done.returncode == 0, said
    return results(folder)


def until_work_is_done(folder: Path, name: str, run: subprocess.Popen[str]) -> None:
    """Wait for the first results that a command keeps."""
    journal = folder / "faster" / ".superopt.jsonl"
    while run.poll() is None:
        if name == "discover" and any((folder / "found" / ".chunks").glob("*/*.json")):
            return
        if name == "optimize" and journal.is_file() and journal.read_bytes().count(b"\n") > 1:
            return
        time.sleep(0.05)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """In one process."""
    found = everything(here, tmp_path_factory.mktemp("one"), "--workers", "1")
    assert sum(name.startswith("faster/") and name.endswith(".json") for name in found) == len(TINY)
    assert len(found["corpus"]) == 3
    assert any(name.startswith("found/") and name.endswith(".toml") for name in found)
    return found


def test_on_processes_of_this_machine(expected: dict[str, Any], tmp_path: Path) -> None:
    assert everything(here, tmp_path, "--workers", "2") == expected


def test_on_a_dask_cluster_while_a_worker_and_the_client_are_killed(expected: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="an extra: pip install 'superopt[dask]'")
    (tmp_path / "dask").mkdir()
    with dask_cluster(tmp_path / "dask", 2) as cluster:
        for name, given in commands(tmp_path).items():
            command = [*given, *(SHARDED if name == "discover" else ())]
            done = here(*command, "--cluster", cluster.address)
            if name in ("discover", "optimize"):  # a worker is killed while it works, then the client
                until_work_is_done(tmp_path, name, done)
                cluster.workers[-1].send_signal(signal.SIGKILL)
                cluster.add()
                time.sleep(1.0)
                done.send_signal(signal.SIGKILL)
                done.communicate()
                done = (
                    here(*command, "--workers", "3")
                    if name == "discover"
                    else here(*command, "--cluster", cluster.address)
                )
            _, said = done.communicate(timeout=600)
            assert done.returncode == 0, said
    assert results(tmp_path) == expected


def test_under_mpiexec_while_a_rank_is_killed(expected: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("mpi4py", reason="an extra: pip install 'superopt[mpi]'")
    launcher = mpiexec()
    if launcher is None:
        pytest.skip("no mpiexec here: pip install mpich, or the system's")

    def ranks(count: int) -> Run:
        start = [launcher, "-n", str(count), sys.executable, "-m", "superopt.cli"]
        return lambda *arguments: subprocess.Popen([*start, *arguments], cwd=ROOT, stdout=-3, stderr=-1, text=True)

    killed = ranks(3)(*commands(tmp_path)["discover"], *SHARDED)
    until_work_is_done(tmp_path, "discover", killed)
    rank = _ranks_of(killed.pid)[-1]
    os.kill(rank, signal.SIGKILL)  # MPI ends the whole job
    killed.communicate(timeout=60)
    assert killed.returncode != 0
    shutil.rmtree(tmp_path / "faster", ignore_errors=True)
    for count, each in zip((2, 3, 3, 3), commands(tmp_path).values(), strict=True):
        done = ranks(count)(*each)
        _, said = done.communicate(timeout=600)
        assert done.returncode == 0, said
    assert results(tmp_path) == expected


def _ranks_of(launcher: int) -> list[int]:
    """Processes of superopt below a launcher, by id."""
    found, todo = [], [launcher]
    while todo:
        parent = todo.pop()
        for line in subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True
        ).stdout.split():
            todo.append(int(line))
            if b"superopt.cli" in Path(f"/proc/{line}/cmdline").read_bytes():
                found.append(int(line))
    return sorted(found)

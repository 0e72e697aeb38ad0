"""A fleet under mpiexec: rank 0 is the client, the others work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from clusters import mpiexec

pytest.importorskip("mpi4py", reason="an extra: pip install 'superopt[mpi]'")
EXEC = mpiexec()
if EXEC is None:
    pytest.skip("no mpiexec here: pip install mpich, or the system's", allow_module_level=True)

SCRIPT = """
import json, sys
from pathlib import Path
import fleet_tasks as work
from superopt.fleet import WorkerPool, TaskJournal, WorkerTask, TaskLost, digest, mpi

folder = Path(sys.argv[1])
with mpi.client() as wanted:
    if wanted:
        with WorkerPool.open() as fleet, TaskJournal(folder / "journal") as journal:
            squares = [o.result() for o in fleet.map([WorkerTask(work.square, (n,)) for n in range(20)])]
            lost, again = fleet.map(
                [WorkerTask(work.dies, (str(folder / name), signal)) for name, signal in (("a", 99), ("b", 2))])
            (late,) = fleet.map([WorkerTask(work.sleeps, (600.0,), seconds=0.3)])
            kept = [o.kept for o in fleet.map(
                [WorkerTask(work.slow, (n, 0.05, str(folder / "c")), key=digest(n)) for n in range(10)], kept=journal)]
            found = [fleet.where, fleet.size, squares, str(lost.error), again.result(), str(late.error), kept]
        with WorkerPool.open() as fleet:  # a command may open one after the other
            found.append([o.result() for o in fleet.map([WorkerTask(work.square, (n,)) for n in range(3)])])
        print(json.dumps(found))
"""


def run(ranks: int, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
    assert EXEC is not None
    path = f"{Path(__file__).parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, "PYTHONPATH": path, **more}
    own = ["--oversubscribe", "--allow-run-as-root"] if b"Open MPI" in _version() else []
    return subprocess.run(
        [EXEC, *own, "-n", str(ranks), sys.executable, *command],
        env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


def _version() -> bytes:
    return subprocess.run([str(EXEC), "--version"], capture_output=True, check=False).stdout


def test_ranks_are_workers(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
    for ranks in (3, 2):
        done = run(ranks, "-c", SCRIPT, str(tmp_path))
        assert done.returncode == 0, done.stderr
        where, size, squares, lost, again, late, kept, more = json.loads(done.stdout)
        assert (where, size) == ("MPI", ranks - 1)
        assert squares == [n * n for n in range(20)]
        assert "3 times" in lost
        assert again == 2
        assert "longer than" in late
        assert kept == [ranks == 2] * 10  # the second run, on another number of workers, does none of them again
        assert more == [0, 1, 4]
    assert len(list((tmp_path / "c").iterdir())) == 10


def test_a_command_that_has_no_use_for_ranks_runs_once() -> None:
    done = run(3, "-m", "superopt.cli", "--version")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("superopt ") == 1


def test_errors_are_said_once() -> None:
    for command, code, said in (
        (("rules", "prove", "no-such-file.toml"), 2, "no such folder"),
        (("rules", "prove", "--all", "--cluster", "tcp://localhost:1"), 2, "one of the two"),
    ):
        done = run(3, "-m", "superopt.cli", *command)
        assert done.returncode == code, done
        assert done.stderr.count(said) == 1
        assert "Traceback" not in done.stderr


def test_without_the_extra(tmp_path: Path) -> None:
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("raise ImportError('not installed')\n")
    done = run(
        2, "-m", "superopt.cli", "--version", PYTHONPATH=f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    )
    assert done.returncode == 7
    assert done.stderr.count("pip install 'superopt[mpi]'") == 1
    assert "Traceback" not in done.stderr


def test_an_mpi_that_is_not_this_mpiexecs(tmp_path: Path) -> None:
    """What each process sees whose mpi4py is made for another MPI: ranks in the environment, and a world of one."""
    world = {"PMI_SIZE": "3", "OMPI_COMM_WORLD_SIZE": "3"}
    done = subprocess.run(
        [sys.executable, "-m", "superopt.cli", "--version"], env={**os.environ, **world},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 7
    assert "not the MPI of this mpiexec" in done.stderr or "mpi4py" in done.stderr

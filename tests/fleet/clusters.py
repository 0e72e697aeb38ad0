"""Clusters of the tests: a Dask scheduler with worker processes, and mpiexec."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class DaskCluster:
    """A scheduler and its workers, each a process of its own, without nannies that would start them again."""

    folder: Path
    address: str = ""
    scheduler: subprocess.Popen[bytes] | None = None
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, count: int) -> None:
        file = self.folder / "scheduler.json"
        self.scheduler = self._process("scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", str(file))
        until = time.monotonic() + 60
        while not (file.is_file() and file.stat().st_size):
            assert self.scheduler.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
        self.address = json.loads(file.read_text())["address"]
        for _ in range(count):
            self.add()

    def add(self, **environment: str) -> subprocess.Popen[bytes]:
        made = self._process(
            "worker", self.address, "--nthreads", "1", "--no-nanny", "--no-dashboard", "--memory-limit", "0",
            "--local-directory", str(self.folder), environment=environment,
        )  # fmt: skip
        self.workers.append(made)
        return made

    def _process(
        self, *arguments: str, environment: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:  # fmt: skip
        command = [sys.executable, "-m", "distributed.cli.dask_" + arguments[0], *arguments[1:]]
        log = (self.folder / f"{arguments[0]}-{len(self.workers)}.log").open("wb")
        with log:
            return subprocess.Popen(command, env={**os.environ, **(environment or {})}, stdout=log, stderr=log)

    def stop(self) -> None:
        for process in (*self.workers, self.scheduler):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGKILL)
        for process in (*self.workers, self.scheduler):
            if process is not None:
                process.wait()


@contextmanager
def dask_cluster(folder: Path, workers: int) -> Iterator[DaskCluster]:
    """A cluster for as long as it is needed."""
    made = DaskCluster(folder)
    try:
        made.start(workers)
        yield made
    finally:
        made.stop()


def mpiexec() -> str | None:
    """The ``mpiexec`` of the MPI that mpi4py finds: beside this Python (a wheel's), or the system's."""
    beside = Path(sys.executable).parent / "mpiexec"
    return str(beside) if beside.is_file() else shutil.which("mpiexec")

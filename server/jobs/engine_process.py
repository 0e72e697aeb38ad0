"""The process that has the engine loaded, as its worker sees it: told of a folder, it says how its child ended."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from pathlib import Path

import superopt
from superopt.server.settings import ServiceSettings

__all__ = ["EngineProcess"]

_ROOT = str(Path(superopt.__file__).parents[1])
_START = "import sys; sys.path.append({root!r}); from superopt.server.jobs.child import main; main()"


class EngineProcess:
    """The process that has the engine loaded and forks a child for each job."""

    def __init__(self, settings: ServiceSettings) -> None:
        limits = settings.limits
        seconds = limits.job_seconds + limits.last_words
        given = json.dumps(
            {"memory": limits.job_memory, "result": limits.result, "inline": limits.inline, "seconds": seconds}
        )
        environment = {
            "PATH": os.defpath, "HOME": "/nonexistent", "OMP_NUM_THREADS": "1",
            "SUPEROPT_CACHE": str(settings.data / "profile"),
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", _START.format(root=_ROOT), str(os.getpid()), given],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd="/", start_new_session=True,
        )  # fmt: skip
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._ear, self._mouth = self.process.stdin, self.process.stdout
        os.set_blocking(self._mouth.fileno(), False)
        self._said = b""
        self._loaded = False

    def ask(self, folder: Path) -> None:
        """Have a child do the job in this folder."""
        with contextlib.suppress(BrokenPipeError):
            self._ear.write(f"{folder}\n".encode())
            self._ear.flush()

    def hear(self, seconds: float) -> tuple[str, int] | None:
        """What it says next, within ``seconds``: ("pid", N), ("exit", N), or ("gone", 0) if it died."""
        if b"\n" not in self._said and select.select([self._mouth], [], [], seconds)[0]:
            chunk = self._mouth.read(4096)
            if chunk == b"":
                return "gone", 0
            self._said += chunk or b""
        if b"\n" not in self._said:
            return None
        line, _, self._said = self._said.partition(b"\n")
        word, number = line.split()
        return word.decode(), int(number)

    def ready(self) -> bool:
        """Whether it has the engine loaded and lives."""
        if not self._loaded and (said := self.hear(0)) is not None:
            self._loaded = said[0] == "ready"
        return self._loaded and self.alive()

    def alive(self) -> bool:
        """Whether it can be asked."""
        return self.process.poll() is None

    def end(self) -> None:
        """End it; a child that it still has dies too."""
        self.process.kill()
        self.process.wait()
        for pipe in (self._ear, self._mouth):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

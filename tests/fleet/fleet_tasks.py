"""Functions that workers import: a task's function has to be found by name in another process."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def square(x: int) -> int:
    return x * x


def row(x: int) -> dict[str, int]:
    return {"x": x, "square": x * x}


def noted(x: int, folder: str) -> dict[str, int]:
    """As :func:`row`, and leaves a file for each time that it is run."""
    (Path(folder) / f"{x}-{time.monotonic_ns()}-{os.getpid()}").touch()
    return row(x)


def slow(x: int, seconds: float, folder: str) -> dict[str, int]:
    time.sleep(seconds)
    return noted(x, folder)


def dies(folder: str, times: int) -> int:
    """Kills its process the first so many times; returns how often it did."""
    before = len(list(Path(folder).iterdir()))
    if before < times:
        (Path(folder) / str(before)).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return before


def wrong(x: int) -> int:
    raise ValueError(f"no {x}")


def sleeps(seconds: float) -> int:
    time.sleep(seconds)
    return 1


def process(_: int) -> int:
    return os.getpid()


def slow_process(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def lambda_of(_: int) -> object:
    return lambda: 1

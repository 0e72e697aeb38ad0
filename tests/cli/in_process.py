"""A command in this process, as if it were one of its own, which would import everything and read the library again."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from superopt.cli import main

__all__ = ["run", "run_in"]


def run(*args: str) -> subprocess.CompletedProcess[bytes]:
    """The exit code and what was said."""
    ends = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        for name, stands in (("argv", ["superopt", *args]), ("stdout", out), ("stderr", err)):
            patch.setattr(sys, name, stands)
        with pytest.raises(SystemExit) as end:
            main()
    for number, handler in ends.items():
        signal.signal(number, handler)
    said = (s.buffer.getvalue() for s in (out, err))
    return subprocess.CompletedProcess(args, int(end.value.code or 0), *said)


def run_in(folder: Path, *args: object) -> subprocess.CompletedProcess[str]:
    """The same in a folder, as text."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        done = run(*map(str, args))
    finally:
        os.chdir(before)
    return subprocess.CompletedProcess(args, done.returncode, done.stdout.decode(), done.stderr.decode())
